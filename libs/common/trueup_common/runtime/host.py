"""The one loop: receive a batch → claim → decide → store state, history and outbox → commit → publish → ack.

A failed batch runs again one by one; only a message that fails alone is counted, and at the limit it is quarantined
with its bytes and reason. A busy store is repeated inside the loop and never counts as a failure; a row that another
replica moved first is read again, and only a batch that loses every time is taken apart.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Final, Generic, TypeVar

from trueup_common.contracts.envelope import BROKEN, Message, Outgoing
from trueup_common.runtime.ports import (
    CrashPoints,
    Delivery,
    Foreseeing,
    Handler,
    Publisher,
    Schedule,
    Source,
    Store,
    StoreBusy,
    Transaction,
    VersionConflict,
    Watch,
)
from trueup_common.runtime.redact import told

T = TypeVar("T", bound=Transaction)

log = logging.getLogger("trueup.host")

BATCH_MAX: Final = 200
FAILURES_MAX: Final = 5
BUSY_PAUSE_SECONDS: Final = 0.02
BUSY_PAUSE_SECONDS_MAX: Final = 2.0
CONFLICTS_MAX: Final = 30
"""Lost so often in a row, a race is none: the batch contradicts itself, and would hold up all that is behind it."""
NAK_DELAY_SECONDS: Final = 1.0
WORK_SECONDS_MAX: Final = 10.0
"""Processor time of one decision, far above any that is meant to be: the database ends a session that stands still for
so long (`IDLE_SECONDS`), and the same decision taken again would end like that again, for ever."""


class Unprocessable(Exception):
    """A message that can never be processed (unreadable, contradictory): quarantined at once, without counting."""


class TooMuchTime(Exception):
    """A decision took so much of the processor that its transaction was lost: not the store's fault, and counted."""


class TooEarly(Exception):
    """A message about something whose own message is still on its way: handed back, to come again, without counting."""


@dataclass(slots=True)
class LoopStatistics:
    """What a loop did, for /metrics and for the budget test."""

    batches_count: int = 0
    messages_count: int = 0
    duplicates_count: int = 0
    commits_count: int = 0
    busy_count: int = 0
    presumptions_count: int = 0
    """Batches that presumed what was not so, and ran again."""
    failures_count: int = 0
    quarantined_count: int = 0
    lag_seconds: float = 0.0
    """How long the oldest message of the last batch had waited when it was claimed."""
    claimed_at_seconds: float | None = None
    """This process's monotonic clock at that claim."""
    extra: dict[str, int] = field(default_factory=dict)


class Loop(Generic[T]):
    """One consumer of one service."""

    def __init__(
        self,
        *,
        source: Source,
        store: Store[T],
        handler: Handler[T],
        publisher: Publisher,
        crash: CrashPoints,
        schedule: Schedule,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self.source = source
        self.store = store
        self.handler = handler
        self.publisher = publisher
        self.crash = crash
        self.schedule = schedule
        self.batch_max = batch_max
        self.statistics = LoopStatistics()
        self.watch: Watch | None = None
        self.stopping = False

    async def run(self) -> None:
        """Until `stopping`: fetch and process. The batch in hand is finished first."""
        while not self.stopping:
            batch = await self.source.fetch(self.batch_max)
            if batch:
                await self.process(batch)

    async def process(self, batch: Sequence[Delivery]) -> None:
        """One batch from delivery to ack; whole where possible, else one by one."""
        watch = self.watch
        begun = watch.now() if watch else 0
        self.crash.reach(f"{self.source.name}.fetched")
        batch = await self._set_broken_aside(batch)
        if not batch:
            return
        try:
            messages, outgoing = await self._commit([delivery.message for delivery in batch])
        except Exception as error:  # noqa: BLE001 - the boundary: whatever fails here is isolated, counted and kept
            if len(batch) > 1:
                log.warning("batch failed, running one by one", extra={"loop": self.source.name, "error": told(error)})
                for delivery in batch:
                    await self.process([delivery])
            else:
                await self._fail(batch[0], error)
                if watch:
                    watch.processed([batch[0].message], begun, 0, error)
            return
        committed = watch.now() if watch else 0
        self.crash.reach(f"{self.source.name}.committed")
        if outgoing:
            await self.publisher.publish(outgoing)
            self.crash.reach(f"{self.source.name}.published")
        for delivery in batch:
            await delivery.ack()
        self.crash.reach(f"{self.source.name}.acked")
        self.statistics.batches_count += 1
        self.statistics.messages_count += len(batch)
        if watch:
            watch.processed([delivery.message for delivery in batch], begun, committed)
        await self.handler.settled(messages)

    async def _set_broken_aside(self, batch: Sequence[Delivery]) -> Sequence[Delivery]:
        """A message that does not say what it is goes to quarantine, never to a handler."""
        broken = [delivery for delivery in batch if delivery.message.type == BROKEN]
        for delivery in broken:
            await self._fail(delivery, Unprocessable(delivery.message.attributes.get("broken", "no envelope")))
        return [delivery for delivery in batch if delivery.message.type != BROKEN] if broken else batch

    async def _commit(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Outgoing]]:
        pause = BUSY_PAUSE_SECONDS
        repeated, conflicts = False, 0
        while True:
            presumed, begun = False, process_time()
            try:
                async with self.store.transaction() as tx:
                    ids = [message.id for message in messages] if self.handler.inbox else []
                    known = None
                    if isinstance(self.handler, Foreseeing) and self.handler.foresee(tx, messages) and not repeated:
                        known = tx.presume(self.source.name, ids)
                    moment, fresh = known or await tx.claim(self.source.name, ids)
                    presumed = moment.presumed
                    moment = replace(moment, repeated=True) if repeated else moment
                    self.statistics.lag_seconds = (moment.real - messages[0].time).total_seconds()
                    self.statistics.claimed_at_seconds = moment.asked_at_seconds
                    todo = _first_of_each(messages, fresh if self.handler.inbox else None)
                    outgoing = await self.handler.handle(tx, moment, todo) if todo else ()
                    if outgoing:
                        await tx.post(outgoing)
                    self.crash.reach(f"{self.source.name}.before_commit")
                self.statistics.commits_count += 1
                self.statistics.duplicates_count += len(messages) - len(todo)
                return todo, outgoing
            except StoreBusy as busy:
                spent = process_time() - begun
                if spent > WORK_SECONDS_MAX:
                    raise TooMuchTime(f"its decision took {spent:.0f} s of the processor") from busy
                repeated = True
                if presumed and isinstance(busy, VersionConflict):
                    self.statistics.presumptions_count += 1
                    continue  # nobody was asked: now we do, at once
                conflicts = conflicts + 1 if isinstance(busy, VersionConflict) else 0
                if conflicts >= CONFLICTS_MAX:
                    raise
                self.statistics.busy_count += 1
                log.info("store busy, repeating", extra={"loop": self.source.name, "reason": str(busy)})
                await self.schedule.pause(pause)
                pause = min(pause * 2, BUSY_PAUSE_SECONDS_MAX)

    async def _fail(self, delivery: Delivery, error: Exception) -> None:
        message = delivery.message
        reason = told(error)
        if isinstance(error, TooEarly):
            log.info("message came too early", extra={"loop": self.source.name, "message_id": message.id})
            await delivery.nak(NAK_DELAY_SECONDS)
            return
        self.statistics.failures_count += 1
        log.error(
            "message failed alone",
            extra={
                "loop": self.source.name,
                "message_id": message.id,
                "type": message.type,
                "reason": reason,
                "traceparent": message.traceparent,
            },
            exc_info=not isinstance(error, Unprocessable),
        )
        final = await self._record_failure(message, error, reason)
        if final:
            self.statistics.quarantined_count += 1
            await delivery.term()
        else:
            await delivery.nak(NAK_DELAY_SECONDS)

    async def _record_failure(self, message: Message, error: Exception, reason: str) -> bool:
        pause = BUSY_PAUSE_SECONDS
        while True:
            try:
                async with self.store.transaction() as tx:
                    final = isinstance(error, Unprocessable)
                    final = final or await tx.count_failure(self.source.name, message.id) >= FAILURES_MAX
                    if final:
                        await tx.quarantine(self.source.name, message, reason)
                return final
            except StoreBusy:
                self.statistics.busy_count += 1
                await self.schedule.pause(pause)
                pause = min(pause * 2, BUSY_PAUSE_SECONDS_MAX)
            except Exception as refusal:  # noqa: BLE001 - the boundary: one message must not end the process again and again
                log.critical(
                    "failure could not be recorded, handing the message back",
                    extra={"loop": self.source.name, "message_id": message.id[:200], "reason": told(refusal)},
                )
                return False


def _first_of_each(messages: Sequence[Message], fresh: frozenset[str] | None) -> list[Message]:
    """Each id once, in order; with an inbox only those that it did not know."""
    seen: set[str] = set()
    kept: list[Message] = []
    for message in messages:
        if message.id in seen or (fresh is not None and message.id not in fresh):
            continue
        seen.add(message.id)
        kept.append(message)
    return kept
