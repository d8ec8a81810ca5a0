"""Moving business time: from due time to due time, each step acknowledged by every running process.

A jump straight to the target would skip the order in which things fall due. So each step ends at the next due time, and
the next one starts when every process works with the new time and what fell due was looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from trueup_common.contracts.topology import CLOCK_SUBJECT, DUE
from trueup_devkit.told import ToldError

if TYPE_CHECKING:
    import asyncpg
    from nats.aio.client import Client

ACK_TIMEOUT_SECONDS = 60.0
"""A process that was just killed has to come back first, on whatever machine."""
SETTLE_TIMEOUT_SECONDS = 2.0
STEPS_MAX = 10_000
_ASK_AGAIN_SECONDS = 1.0
_SETTLE_POLL_SECONDS = 0.02
_PIECE = re.compile(r"(\d+)\s*([dhms])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


class ClockError(ToldError):
    """The clock could not be moved; the message says how far it got."""


def parse_duration(text: str) -> timedelta:
    """Read `90s`, `15m`, `2h`, `1d12h`."""
    pieces = _PIECE.findall(text.strip().lower())
    if not pieces or "".join(n + unit for n, unit in pieces) != re.sub(r"\s+", "", text.lower()):
        raise ValueError(f"not a duration: {text!r} (examples: 90s, 15m, 2h, 1d12h)")
    total = timedelta()
    for number, unit in pieces:
        total += timedelta(**{_UNITS[unit]: int(number)})
    if total > timedelta(days=3660):
        raise ValueError("at most ten years at once")
    return total


class Timeline(Protocol):
    """What moving time needs from the plane."""

    async def now(self) -> datetime:
        """Business time."""
        ...

    async def next_due(self) -> datetime | None:
        """The earliest due time that still lies ahead."""
        ...

    async def overdue(self, now: datetime) -> int:
        """How many due times lie at or before `now`."""
        ...

    async def move_to(self, moment: datetime) -> float:
        """Set business time to a moment not before now; answers the offset in seconds."""
        ...

    async def announce(self, offset_seconds: float) -> None:
        """Return when every running process works with the offset; raises ClockError naming those that do not."""
        ...


@dataclass(frozen=True)
class Step:
    """One step that was taken."""

    moment: datetime
    offset_seconds: float


async def advance(timeline: Timeline, distance: timedelta) -> list[Step]:
    """Move business time forward by `distance`; answers the steps."""
    target = await timeline.now() + distance
    steps: list[Step] = []
    while len(steps) < STEPS_MAX:
        now = await timeline.now()
        if now >= target:
            return steps
        due = await timeline.next_due()
        moment = target if due is None else min(due, target)
        waiting = await timeline.overdue(now)
        offset_seconds = await timeline.move_to(moment)
        await timeline.announce(offset_seconds)
        steps.append(Step(moment, offset_seconds))
        if due is not None and due <= target:
            await _let_settle(timeline, moment, waiting)
    raise ClockError(f"{STEPS_MAX} steps were not enough; business time is {await timeline.now():%Y-%m-%dT%H:%M:%SZ}")


async def _let_settle(timeline: Timeline, moment: datetime, waiting: int) -> None:
    """Give what just fell due a bounded time to be taken up, so that its consequences are ordered before the rest.

    Bounded, because some due times stay due until a person acts.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_SECONDS
    while await timeline.overdue(moment) > waiting:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_SETTLE_POLL_SECONDS)


class PlaneTimeline:
    """The timeline of a running plane: its clock row, its due columns and its processes."""

    def __init__(self, database: asyncpg.Connection, bus: Client, instances: Iterable[str]) -> None:
        self._database = database
        self._bus = bus
        self._instances = frozenset(instances)

    async def now(self) -> datetime:
        moment: datetime = await self._database.fetchval("SELECT trueup.now()")
        return moment

    async def next_due(self) -> datetime | None:
        moment: datetime | None = await self._database.fetchval("SELECT trueup.next_due()")
        return moment

    async def overdue(self, now: datetime) -> int:
        import asyncpg

        count = 0
        for schema, table, column, condition in DUE:
            statement = f'SELECT count(*) FROM "{schema}"."{table}" WHERE ({condition}) AND "{column}" <= $1'
            with contextlib.suppress(asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
                count += await self._database.fetchval(statement, now)
        return count

    async def move_to(self, moment: datetime) -> float:
        # Never backwards: real time may have passed the moment since it was read.
        offset: timedelta | None = await self._database.fetchval(
            'UPDATE trueup.clock SET "offset" = greatest("offset", $1::timestamptz - now()) RETURNING "offset"', moment
        )
        if offset is None:
            raise ClockError("this plane has no clock row; start it with --clock virtual")
        return offset.total_seconds()

    async def announce(self, offset_seconds: float) -> None:
        missing = set(self._instances)
        inbox = self._bus.new_inbox()
        answers = await self._bus.subscribe(inbox)
        body = json.dumps({"offset_seconds": offset_seconds}).encode()
        deadline = asyncio.get_running_loop().time() + ACK_TIMEOUT_SECONDS
        asked_at = float("-inf")
        try:
            while missing:
                now = asyncio.get_running_loop().time()
                if now > deadline:
                    raise ClockError(f"no acknowledgement of the new time from {', '.join(sorted(missing))}")
                if now - asked_at >= _ASK_AGAIN_SECONDS:  # a process may have just been restarted
                    await self._bus.publish(CLOCK_SUBJECT, body, reply=inbox)
                    asked_at = now
                missing -= await _acknowledged(answers, offset_seconds)
        finally:
            await answers.unsubscribe()


async def _acknowledged(answers: Any, offset_seconds: float) -> set[str]:
    try:
        message = await asyncio.wait_for(answers.next_msg(timeout=0.2), 0.5)
        answer = json.loads(message.data)
        if abs(float(answer["offset_seconds"]) - offset_seconds) < 0.001:
            return {str(answer["instance"])}
    except (TimeoutError, ValueError, KeyError, TypeError):
        pass  # nothing yet, an older offset, or not an answer: it is asked again until the deadline
    return set()


@asynccontextmanager
async def plane_timeline(database_url: str, nats_url: str, instances: Iterable[str]) -> AsyncIterator[PlaneTimeline]:
    """Connect to a running plane as its owner."""
    import asyncpg

    from trueup_common.runtime.bus import connect_admin

    database = await asyncpg.connect(database_url)
    try:
        bus = await connect_admin(nats_url)
        try:
            yield PlaneTimeline(database, bus, instances)
        finally:
            await bus.close()
    finally:
        await database.close()
