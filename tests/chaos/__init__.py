"""Breaking real processes: a table of faults, one loop, one judge. `python -m tests.chaos` runs it; pytest does not."""
