"""Contracts: what services say to each other. Pure data and pure functions; no clock, no randomness, no I/O."""
