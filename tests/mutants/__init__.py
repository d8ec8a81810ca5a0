"""Mutants: each law broken by hand, one at a time in a copy, and the tests or seeds that must notice it."""
