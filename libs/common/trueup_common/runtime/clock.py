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

from trueup_common.runtime.ports import Moment

TOLERANCE_SECONDS: Final = 1.0
"""Less than this is as likely the way to the database and back."""
HEARD_SECONDS: Final = 2.0
"""How long the time that the database told is counted on from."""
ANSWER_SECONDS: Final = 0.05
"""An answer that took longer is not counted on from: it may be old already."""


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


class DatabaseTime:
    """What the database said last about the time. Who heard it a moment ago counts on from there (ADR 0037).

    What is counted is never ahead of the database, and behind it by no more than the answer's way back.
    """

    def __init__(self) -> None:
        self._heard: Moment | None = None
        self._answered_at = 0.0
        self._forgotten_at = 0.0

    def hear(self, moment: Moment) -> None:
        """An answer has come just now. One that took long says too little, one asked before `forget` is outdated."""
        asked, answered = moment.asked_at_seconds, monotonic()
        if asked is not None and answered - asked <= ANSWER_SECONDS and asked > self._forgotten_at:
            self._heard, self._answered_at = moment, answered

    def now(self) -> Moment | None:
        """The time by now; None where nothing was heard for too long."""
        heard = self._heard
        if heard is None or heard.asked_at_seconds is None:
            return None
        since = monotonic() - self._answered_at
        if since > HEARD_SECONDS:
            return None
        passed = timedelta(seconds=since)
        return Moment(heard.business + passed, heard.real + passed, heard.asked_at_seconds + since, presumed=True)

    def forget(self) -> None:
        """Business time was moved."""
        self._heard, self._forgotten_at = None, monotonic()


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
