"""Failures that are told to a person in one sentence instead of a traceback."""


class ToldError(RuntimeError):
    """A known failure: its message says what is wrong and what can be done."""
