"""Deterministic simulation of the whole plane: real handlers and the real loop, fake ports, one seed."""
