"""Waiting for what becomes of signals: one poller per process looks after all of them, in one statement per look.

A shift change sends thousands within a minute. If each request looked for itself, the looks of those that wait would
delay those that could be disposed of; and past a bound nobody waits, the signal is kept and `pending` says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.core.person_records import SignalRow

log = logging.getLogger("trueup.gateway.dispositions")

LOOK_SECONDS: Final = 0.03
WAITS_MAX: Final = 500
PENDING: Final = "pending"

Key = tuple[str, str]
"""(workflow id, event id)."""

Look = Callable[[Sequence[Key]], Awaitable[Sequence[SignalRow]]]


class Dispositions:
    """Who waits for which signal. The poller runs while somebody waits."""

    def __init__(self, look: Look) -> None:
        """`look` answers those of these signals that are disposed of."""
        self._look = look
        self._waits: dict[Key, list[asyncio.Future[SignalRow]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self.looks_count = 0

    async def of(self, row: SignalRow, seconds: float) -> SignalRow:
        """The row once it is disposed of, or as it is where that takes longer or too many wait already."""
        if row.disposition != PENDING:
            return row
        if len(self._waits) >= WAITS_MAX:
            return row
        key, future = (row.workflow_id, row.event_id), asyncio.get_running_loop().create_future()
        self._waits.setdefault(key, []).append(future)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="dispositions")
        try:
            async with asyncio.timeout(seconds):
                disposed: SignalRow = await future
                return disposed
        except TimeoutError:
            return row
        finally:
            self._forget(key, future)

    def _forget(self, key: Key, future: "asyncio.Future[SignalRow]") -> None:
        waits = self._waits.get(key, [])
        if future in waits:
            waits.remove(future)
            if not waits:
                del self._waits[key]

    async def _poll(self) -> None:
        """Look until nobody waits."""
        while self._waits:
            await asyncio.sleep(LOOK_SECONDS)
            self.looks_count += 1
            try:
                found = await self._look(sorted(self._waits))
            except StoreBusy as busy:
                log.info("not looked: store busy", extra={"reason": str(busy)})
                continue
            for row in found:
                for future in self._waits.pop((row.workflow_id, row.event_id), ()):
                    if not future.done():
                        future.set_result(row)
