"""Progress: made when it is due, replaced by what is newer, dropped for what is durable."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.bus import Bus, BusPublisher

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

    def __init__(self, number: int, delay_seconds: float = DELAY_SECONDS) -> None:
        self.made = 0
        self.number = number
        self.item = Outgoing(self._make, durable=False, delay_seconds=delay_seconds, coalesce="case")

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
