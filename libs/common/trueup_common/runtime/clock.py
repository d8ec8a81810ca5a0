"""Clocks: the only place where a service reads time.

Business time is real time plus an offset that operators move in tests (`trueup clock advance`); in SQL it is
`trueup.now()`, and services take it from there with each claim. Leases, grants and HTTP timeouts are real time.

Real time is the database's: one machine of several may be minutes off, and what it signs, checks or observes would then
be early or late for all others. A machine whose clock is wrong is tried out with `set_skew` (development mode only).
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final

TOLERANCE_SECONDS: Final = 1.0
"""Less than this is as likely the way to the database and back."""


class _Machine:
    """This machine's clock, one for the whole process: how wrong it is made, how far ahead it was measured to be."""

    skew = timedelta()
    ahead = timedelta()


def set_skew(seconds: float) -> None:
    """From now on this machine's clock is so much ahead."""
    _Machine.skew = timedelta(seconds=seconds)


def machine_now() -> datetime:
    """What this machine's clock says, aware, UTC."""
    return datetime.now(UTC) + _Machine.skew


def agree(asked_at: datetime, database: datetime, answered_at: datetime) -> float:
    """Compare the machine's clock with what the database said in between; answers by how many seconds it is ahead.

    An answer that took too long (a process that was paused) tells nothing: what was known stays.
    """
    between = answered_at - asked_at
    if abs(between.total_seconds()) <= TOLERANCE_SECONDS:
        ahead = asked_at + between / 2 - database
        _Machine.ahead = ahead if abs(ahead.total_seconds()) > TOLERANCE_SECONDS else timedelta()
    return _Machine.ahead.total_seconds()


def real_now() -> datetime:
    """Real time, aware, UTC."""
    return machine_now() - _Machine.ahead


def monotonic() -> float:
    """Seconds that only grow, for bounds inside one process."""
    return time.monotonic()


class BusinessClock:
    """Business time outside a transaction (the HTTP edge). `offset` follows the control message."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        """Business time, aware, UTC."""
        return real_now() + self.offset


class RealSchedule:
    """Waiting in real time."""

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
