"""Waiting for company: a crowd shares a transaction, who comes alone waits for nobody."""

from __future__ import annotations

import asyncio

import pytest

from trueup_common.runtime import gathering
from trueup_common.runtime.gathering import CROWD, Gathering


@pytest.mark.parametrize(("taken", "waits"), [([], 0), ([CROWD - 1], 0), ([CROWD], 1), ([CROWD, 1], 0)])
async def test_only_after_a_crowd_the_next_batch_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, taken: list[int], waits: int
) -> None:
    """A message that comes alone, and the first of a crowd, is taken at once.

    Requirements: B1, B3
    """
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(gathering.asyncio, "sleep", sleep)
    place = Gathering()
    for count in taken:
        place.took(count)
    await place.wait()
    monkeypatch.undo()
    await asyncio.sleep(0)
    assert paused == [gathering.LINGER_SECONDS] * waits
