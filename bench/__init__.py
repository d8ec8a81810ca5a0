"""The benchmark: Trueup next to the floor in one run, and the counted budget of one command."""
