"""Clocks: the only place where a service reads time.

Business time is real time plus an offset that operators move in tests (`trueup clock advance`); in SQL it is
`trueup.now()`, and services take it from there with each claim. Leases, grants and HTTP timeouts are real time.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta


def real_now() -> datetime:
    """Real time, aware, UTC."""
    return datetime.now(UTC)


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
