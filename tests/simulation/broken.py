"""Looking for a seed that a broken variant of the services does not survive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.run import run_seed
from trueup_adapters.core import effect
from trueup_adapters.core.effect import Action, Asked, Standing

Break = Callable[[pytest.MonkeyPatch], None]


def first_bite(most: int, theme: str | None, likely: int, *, sagas: bool) -> tuple[int, str] | None:
    """The first seed that finds it: the one that found it last time, else the first of so many."""
    for seed in (likely, *range(most)):
        result = run_seed(seed, theme, sagas=sagas)
        if result.violation is not None:
            return seed, result.violation
    return None


def resend_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    table = dict(effect.TABLE)
    for standing in (Standing.SENT, Standing.UNKNOWN):
        table[standing, Asked.NEWER] = table[standing, Asked.SAME] = Action.SEND
    patch.setattr(effect, "TABLE", table)
