"""Programs that open and end connections without pause, and what watches them."""
