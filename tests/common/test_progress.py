"""Progress: made when it is due, replaced by what is newer, dropped for what is durable."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.bus import (
    PROGRESS_DELAY_SECONDS_MAX,
    PROGRESS_PER_SECOND,
    PROGRESS_WAITING_MAX,
    Bus,
    BusPublisher,
)

AT = datetime(2030, 1, 1, tzinfo=UTC)
DELAY_SECONDS = 0.5


class Noting(BusPublisher):
    """A publisher whose bus takes everything at once."""

    def __init__(self) -> None:
        super().__init__(cast(Bus, None))
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def _start(self, message: Message, answers: Any) -> None:
        await self._write(message)

    async def _write(self, message: Message, reply: str = "") -> bool:
        self.sent.put_nowait(message.id)
        return True


class Progress:
    """Progress of one case, and whether anybody wanted to see it."""

    def __init__(self, number: int, delay_seconds: float = DELAY_SECONDS, case: str = "case") -> None:
        self.made = 0
        self.number = number
        self.item = Outgoing(self._make, durable=False, delay_seconds=delay_seconds, coalesce=case)

    def _make(self) -> Message:
        self.made += 1
        return message(f"progress-{self.number}")


def message(name: str) -> Message:
    return Message(
        id=name, type="CaseChanged", subject="trueup.evt.x.acme", tenant="acme", source="x", time=AT, data=b"{}"
    )


async def test_only_the_newest_progress_is_made() -> None:
    """What was replaced before it was due costs nothing."""
    publisher, first, second = Noting(), Progress(1), Progress(2)
    await publisher.publish([first.item])
    await publisher.publish([second.item])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await publisher.sent.get() == "progress-2"
    assert (first.made, second.made, publisher.sent.empty()) == (0, 1, True)


async def test_progress_that_is_replaced_again_and_again_is_told_all_the_same() -> None:
    """The newer one takes over the older one's time: a case that never rests is not silent."""
    publisher, first = Noting(), Progress(1)
    await publisher.publish([first.item])
    patient = Progress(2, delay_seconds=3600)
    await publisher.publish([patient.item])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await publisher.sent.get() == "progress-2"


async def test_what_is_durable_makes_progress_superfluous() -> None:
    """It carries everything since the last durable message."""
    publisher, first = Noting(), Progress(1, delay_seconds=0.0001)
    await publisher.publish([first.item])
    durable = replace(message("durable"))
    await publisher.publish([Outgoing(durable, coalesce="case")])
    assert publisher.sent.get_nowait() == "durable"
    assert (publisher._pending, first.made) == ({}, 0)


async def test_a_crowd_is_told_of_no_faster_than_one_case_after_the_other() -> None:
    """Each telling is a whole case. So many a second, and nobody is silent for longer than the bound.

    Requirements: B1
    """
    publisher, began = Noting(), asyncio.get_running_loop().time()
    crowd = [Progress(number, case=f"case-{number}") for number in range(PROGRESS_WAITING_MAX + 1)]
    await publisher.publish([progress.item for progress in crowd])
    now = asyncio.get_running_loop().time()
    waits = [publisher._pending[f"case-{number}"].handle.when() for number in range(len(crowd))]
    for pending in publisher._pending.values():
        pending.handle.cancel()
    assert waits[0] - now <= DELAY_SECONDS, "alone, a case is told of soon"
    assert waits[4 * PROGRESS_PER_SECOND] - began >= 4, "behind so many it waits"
    assert max(waits) - now <= PROGRESS_DELAY_SECONDS_MAX, "and not for ever"
    assert waits[-1] - now <= DELAY_SECONDS, "and not where so many wait that it costs memory"
