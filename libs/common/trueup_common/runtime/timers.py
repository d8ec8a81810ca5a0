"""Loops that due rows drive instead of messages: sweeps and the relay. A long wait is a row, never a sleeping task."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.topology import STREAMS
from trueup_common.runtime.bus import Bus, BusPublisher
from trueup_common.runtime.mail import MailTransaction
from trueup_common.runtime.metrics import OUTBOX_UNSENT
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Store, StoreBusy, Transaction, Watch

T = TypeVar("T", bound=Transaction)

log = logging.getLogger("trueup.timers")

RELAY_INTERVAL_SECONDS: Final = 0.5
RELAY_AGE_SECONDS: Final = 2.0
RELAY_LIMIT: Final = 500
STREAM_CHECK_TICKS: Final = 10
PURGE_TICKS: Final = 60
PURGE_INBOX_ROUNDS: Final = 120
"""How many rounds there are from one look for old ids in the inbox to the next: they are kept for days."""
OUTBOX_KEEP_SECONDS: Final = 3600
INBOX_KEEP_SECONDS: Final = 8 * 86400
PURGE_LIMIT: Final = 5000


class DueLoop(Generic[T]):
    """Takes due rows in a transaction, again and again while there are some, else once per interval or when woken."""

    def __init__(
        self,
        *,
        name: str,
        store: Store[T],
        tick: Callable[[T, Moment], Awaitable[Sequence[Outgoing]]],
        publisher: Publisher,
        crash: CrashPoints,
        interval_seconds: float = 0.5,
        due: Callable[[], Awaitable[bool]] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """`due` asks without a transaction whether there is anything to do; most ticks end there (ADR 0010).

        `failed` hears of a tick that failed for another reason than a busy store, so that the next one can take fewer
        rows or leave out the one that fails alone. One such row must never keep all others from being looked at.
        """
        self.name = name
        self.store = store
        self.tick = tick
        self.publisher = publisher
        self.crash = crash
        self.interval_seconds = interval_seconds
        self.due = due
        self.failed = failed
        self.failures_count = 0
        self.stopping = False
        self.ticks_count = 0
        self.watch: Watch | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    async def once(self) -> int:
        """One tick; answers how many messages it sent. StoreBusy means: nothing happened, look again later."""
        watch = self.watch
        begun = watch.now() if watch else 0
        if self.due is not None and self.ticks_count and not await self.due():
            self.ticks_count += 1
            return 0
        async with self.store.transaction() as tx:
            moment, _ = await tx.claim(self.name, [])
            outgoing = await self.tick(tx, moment)
            if outgoing:
                await tx.post(outgoing)
            self.crash.reach(f"{self.name}.before_commit")
        committed = watch.now() if watch else 0
        self.crash.reach(f"{self.name}.committed")
        self.ticks_count += 1
        if outgoing:
            await self.publisher.publish(outgoing)
            if watch:
                watch.sent([item.message for item in outgoing], begun, committed)
        return len(outgoing)

    async def run(self) -> None:
        """Until `stopping`."""
        while not self.stopping:
            sent = 0
            try:
                sent = await self.once()
            except StoreBusy as busy:
                log.info("store busy, looking again", extra={"loop": self.name, "reason": str(busy)})
            except Exception as error:  # the boundary: a row that fails is the tick's to isolate, the loop goes on
                self.failures_count += 1
                log.exception("tick failed", extra={"loop": self.name})
                if self.failed is not None:
                    self.failed(error)
            if sent:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_seconds):
                    await self._wake.wait()
            self._wake.clear()


class Relay:
    """Marks what was confirmed, sends what nobody confirmed, and sends again what a reset stream may have lost."""

    def __init__(
        self, store: Store[MailTransaction], publisher: BusPublisher, bus: Bus, crash: CrashPoints | None = None
    ) -> None:
        self.store = store
        self.publisher = publisher
        self.bus = bus
        self.crash = crash
        self.stopping = False
        self._ticks = 0
        self._purging = self._purging_inbox = False

    async def run(self) -> None:
        """Until `stopping`; a last mark on the way out."""
        while not self.stopping:
            await asyncio.sleep(RELAY_INTERVAL_SECONDS)
            await self.once()
        await self.once()

    async def once(self) -> None:
        """One round."""
        self._ticks += 1
        confirmed = self.publisher.take_confirmed()
        try:
            if confirmed:
                async with self.store.transaction() as tx:
                    await tx.mark_sent(confirmed)
            confirmed = []
            if self._ticks % STREAM_CHECK_TICKS == 1:
                await self._check_streams()
            if self._ticks % PURGE_TICKS == 0:
                self._purging = True
                self._purging_inbox |= self._ticks // PURGE_TICKS % PURGE_INBOX_ROUNDS == 1
            if self._purging:
                await self._purge()
            if self._ticks % 2 == 0:
                await self._send_unsent()
        except StoreBusy as busy:
            self.publisher.confirmed.extend(confirmed)
            log.info("store busy, relaying later", extra={"reason": str(busy)})

    async def _purge(self) -> None:
        """One portion. Where it was full there is more, and the next tick takes it: mail never grows for good."""
        async with self.store.transaction() as tx:
            inbox = INBOX_KEEP_SECONDS if self._purging_inbox else None
            full = await tx.purge(OUTBOX_KEEP_SECONDS, inbox, PURGE_LIMIT) >= PURGE_LIMIT
        self._purging, self._purging_inbox = full, full and self._purging_inbox

    async def _send_unsent(self) -> None:
        if not self.bus.connected:
            return
        async with self.store.transaction() as tx:
            messages = await tx.unsent(RELAY_AGE_SECONDS, RELAY_LIMIT)
            OUTBOX_UNSENT.set(len(messages))
            if not messages:
                return
            log.warning("relaying what was not confirmed", extra={"messages": len(messages)})
            await self.publisher.publish([Outgoing(message) for message in messages])
            if self.crash is not None:
                self.crash.reach("relay.published")
            await tx.mark_sent(self.publisher.take_confirmed())

    async def _check_streams(self) -> None:
        """A stream that is younger or shorter than it was has lost messages: take back `sent`."""
        found = [(stream.name, await self.bus.stream_state(stream.name)) for stream in STREAMS]
        known = [(name, state) for name, state in found if state is not None]
        if not known:
            return
        async with self.store.transaction() as tx:
            reset = [name for name, state in known if await tx.stream_reset(name, *state)]
            count = await tx.forget_sent() if reset else 0
        if reset:
            log.warning("stream was reset, sending again", extra={"streams": reset, "messages": count})
