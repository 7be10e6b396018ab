"""One module for each suite: what `bed.running.Suite` asks for. None of the suites' own code is kept here."""
