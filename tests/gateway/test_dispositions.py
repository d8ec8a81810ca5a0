"""Waiting for what becomes of signals costs one look for all who wait, and is bounded."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.patience import PATIENCE_SECONDS

from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway import dispositions
from trueup_gateway.core.person_records import SignalRow
from trueup_gateway.dispositions import LOOK_SECONDS, Dispositions, Key


def pending(number: int) -> SignalRow:
    """A signal that nobody has disposed of."""
    return SignalRow(
        workflow_id=f"wf_{number}",
        event_id="shift",
        tenant="acme",
        fingerprint="f" * 64,
        type="partner.reply",
        actor="operator:olga",
        disposition="pending",
        received_at=real_now(),
    )


class Looks:
    """What the poller asks for, and which of it is disposed of."""

    def __init__(self, *, busy: int = 0) -> None:
        self.asked: list[list[Key]] = []
        self.times: list[float] = []
        self.over = False
        self._busy = busy

    async def __call__(self, signals: Sequence[Key]) -> list[SignalRow]:
        self.asked.append(list(signals))
        self.times.append(asyncio.get_running_loop().time())
        if self._busy:
            self._busy -= 1
            raise StoreBusy("asked to")
        told = {(row.workflow_id, row.event_id): row for row in map(pending, range(100))}
        return [told[key].evolve(disposition="accepted") for key in signals] if self.over else []


async def test_all_who_wait_share_one_look() -> None:
    """Thirty requests wait, and each look is one question about all of them, also after the store was busy.

    Requirements: B4, B5
    """
    look = Looks(busy=1)
    waiting = Dispositions(look)
    tasks = [asyncio.create_task(waiting.of(pending(number), PATIENCE_SECONDS)) for number in range(30)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(look.asked) < 3:
            await asyncio.sleep(0)
    assert {len(asked) for asked in look.asked} == {30}
    assert all(later - earlier >= 0.9 * LOOK_SECONDS for earlier, later in pairwise(look.times))
    look.over = True
    assert {row.disposition for row in await asyncio.gather(*tasks)} == {"accepted"}
    assert waiting._poller is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting._poller  # nobody waits, so nobody looks


async def test_the_same_signal_may_be_waited_for_twice() -> None:
    """Who gives up early takes nothing from the other."""
    look = Looks()
    waiting = Dispositions(look)
    patient = asyncio.create_task(waiting.of(pending(1), PATIENCE_SECONDS))
    assert (await waiting.of(pending(1), 0.0)).disposition == "pending"
    look.over = True
    assert (await patient).disposition == "accepted"


async def test_past_the_bound_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is kept; the answer says that its end is not known yet.

    Requirements: B5
    """
    monkeypatch.setattr(dispositions, "WAITS_MAX", 1)
    look = Looks()
    waiting = Dispositions(look)
    first = asyncio.create_task(waiting.of(pending(1), PATIENCE_SECONDS))
    await asyncio.sleep(0)
    assert (await waiting.of(pending(2), PATIENCE_SECONDS)).disposition == "pending"
    look.over = True
    assert (await first).disposition == "accepted"
