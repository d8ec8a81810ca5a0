"""Testing: imported by tests only."""
