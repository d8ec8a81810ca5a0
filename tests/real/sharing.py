"""Tests of other packages taken over with another world under them: one expectation, several systems."""

from __future__ import annotations

from typing import Any, Final

KINDS: Final = ("real", "sandbox")


def shared(module: Any, fixture: str = "world") -> dict[str, Any]:
    """The tests of a module that act on this fixture, under names that say where they come from."""
    prefix = module.__name__.rpartition("test_")[2]
    return {
        f"test_{prefix}_{name.removeprefix('test_')}": test
        for name, test in vars(module).items()
        if name.startswith("test_") and fixture in getattr(test, "__annotations__", {})
    }
