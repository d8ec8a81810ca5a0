"""How far each consumer is behind: what it has not settled yet, and how long the oldest of it waits.

The broker is asked now and then, never per message. A loop that stands still gets older with the clock, not fresher.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trueup_common.runtime.bus import Bus, ConsumerSource
from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.host import Loop
from trueup_common.runtime.metrics import Family, Labels
from trueup_common.runtime.timers import DueLoop

ASK_SECONDS: Final = 15.0


class Queues:
    """The queues of one process."""

    def __init__(self, bus: Bus, loops: Sequence[Loop[Any]], timers: Sequence[DueLoop[Any]]) -> None:
        self._bus = bus
        self._loops = {loop.source.name: loop for loop in loops}
        self._timers = timers
        self.pending: dict[str, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Ask again and again."""
        while not stop.is_set():
            await self.ask()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await stop.wait()

    async def ask(self) -> None:
        """One round of questions; what the broker does not answer stays as it was known."""
        for name, loop in self._loops.items():
            if isinstance(loop.source, ConsumerSource):
                count = await self._bus.pending(loop.source.consumer)
                if count is not None:
                    self.pending[name] = count

    def lags(self) -> dict[str, float]:
        """How long the oldest unsettled message of each consumer waits, as far as it is known."""
        now, found = monotonic(), {}
        for name, loop in self._loops.items():
            statistics = loop.statistics
            if not self.pending.get(name):
                found[name] = 0.0
            elif statistics.claimed_at_seconds is not None:
                found[name] = max(0.0, statistics.lag_seconds) + now - statistics.claimed_at_seconds
            else:
                found[name] = max(0.0, statistics.lag_seconds)
        return found

    def families(self) -> tuple[Family, ...]:
        """What /metrics shows of it."""
        return (
            Family("trueup_queue_pending", "Messages not settled yet", ("loop",), lambda: _by_name(self.pending)),
            Family("trueup_queue_lag_seconds", "Age of the oldest of them", ("loop",), lambda: _by_name(self.lags())),
            Family(
                "trueup_timer_ticks",
                "Times that a timer looked",
                ("timer",),
                lambda: _by_name({timer.name: timer.ticks_count for timer in self._timers}),
                counter=True,
            ),
            Family(
                "trueup_timer_failures",
                "Times that a timer failed",
                ("timer",),
                lambda: _by_name({timer.name: timer.failures_count for timer in self._timers}),
                counter=True,
            ),
        )


def _by_name(values: Mapping[str, float]) -> Mapping[Labels, float]:
    return {(name,): value for name, value in values.items()}
