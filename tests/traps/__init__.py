"""Traps that were measured before building, each as a test on the product; the inventory says which test holds it."""
