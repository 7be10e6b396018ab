"""What all suites have in common: where they live, how they are run, how results are compared."""
