"""Requests that wait at the same moment share one transaction: those that come while one is under way share the next.

A request is answered after the commit of its batch and before its publication; what is not published then, the relay
sends from the outbox. The queue is bounded: past its limit a request is refused with 429, never kept waiting. A batch
that cannot be committed runs again one by one, so that nobody is refused for a neighbour.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from trueup_common.contracts.envelope import Outgoing
from trueup_common.runtime import tracing
from trueup_common.runtime.gathering import Gathering
from trueup_common.runtime.ports import CrashPoints, Publisher, Schedule, StoreBusy, VersionConflict
from trueup_gateway.core.refusal import Refused
from trueup_gateway.store import KeyTaken, lock_timed_out

log = logging.getLogger("trueup.gateway.batching")

BATCH_MAX: Final = 100
TRIES_MAX: Final = 5
PAUSE_SECONDS: Final = 0.02


class Traced(Protocol):
    """A request that may belong to a trace."""

    @property
    def traceparent(self) -> str | None:
        """The trace context that its client sent."""
        ...


R = TypeVar("R", bound=Traced)
V = TypeVar("V")


@dataclass(slots=True)
class _Waiting(Generic[R, V]):
    request: R
    verdict: "asyncio.Future[V | Refused]"


class Batching(ABC, Generic[R, V]):
    """Decides and stores requests in shared transactions; `name` is the prefix of its crash points."""

    name: str

    def __init__(self, *, publisher: Publisher, crash: CrashPoints, schedule: Schedule, queue_max: int) -> None:
        self._publisher = publisher
        self._crash = crash
        self._schedule = schedule
        self._queue_max = queue_max
        self._waiting: list[_Waiting[R, V]] = []
        self._wake = asyncio.Event()
        self._gathering = Gathering()
        self._task: asyncio.Task[None] | None = None
        self.batches_count = 0
        self.accepted_count = 0

    @abstractmethod
    async def _once(self, requests: Sequence[R]) -> tuple[list[V | Refused], list[Outgoing]]:
        """Decide on a batch in one transaction: a verdict for each, and what is to be sent once it is committed."""

    def start(self) -> None:
        """Begin to take requests."""
        self._task = asyncio.create_task(self._flush(), name=self.name)

    async def close(self) -> None:
        """Stop; what still waits was never accepted and is answered as unavailable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        _answer(self._waiting, [_unavailable()] * len(self._waiting))
        self._waiting.clear()

    @property
    def alive(self) -> bool:
        """True while requests are taken."""
        return self._task is not None and not self._task.done()

    async def submit(self, request: R) -> V:
        """The verdict on one request, after its commit. Raises Refused."""
        verdict = await self.enqueue(request)
        if isinstance(verdict, Refused):
            raise verdict
        return verdict

    def enqueue(self, request: R) -> "asyncio.Future[V | Refused]":
        """Put a request into the next batch. Raises Refused where too many wait already."""
        if len(self._waiting) >= self._queue_max:
            raise Refused("rate-limited", "Too many requests wait to be accepted.", retry_after_seconds=1)
        future: asyncio.Future[V | Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, future))
        self._wake.set()
        return future

    async def _flush(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            await self._gathering.wait()
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            self._gathering.took(len(batch))
            outgoing = await self._accept(batch)
            if outgoing:
                await self._publisher.publish(outgoing)
                self._crash.reach(f"{self.name}.published")

    async def _accept(self, batch: Sequence[_Waiting[R, V]]) -> list[Outgoing]:
        """Accept a batch, whole where possible; one by one where others were first too often or something broke."""
        try:
            verdicts, outgoing = await self._commit([item.request for item in batch])
        except StoreBusy as busy:
            if lock_timed_out(busy) or isinstance(busy, KeyTaken | VersionConflict):
                return await self._apart(batch, _in_flight())
            log.warning("not accepted: store busy", extra={"reason": str(busy), "requests": len(batch)})
            _answer(batch, [_unavailable()] * len(batch))
            return []
        except Exception as error:
            if len(batch) == 1:
                log.exception("not accepted")
                if not batch[0].verdict.done():
                    batch[0].verdict.set_exception(error)
                return []
            return await self._apart(batch, None)
        self._crash.reach(f"{self.name}.committed")
        # In the next turn: who waits for the end of his command waits less where its message leaves before he goes on.
        asyncio.get_running_loop().call_soon(_answer, batch, verdicts)
        return outgoing

    async def _apart(self, batch: Sequence[_Waiting[R, V]], alone: Refused | None) -> list[Outgoing]:
        if len(batch) == 1 and alone is not None:
            _answer(batch, [alone])
            return []
        outgoing: list[Outgoing] = []
        for item in batch:
            outgoing += await self._accept([item])
        return outgoing

    async def _commit(self, requests: Sequence[R]) -> tuple[list[V | Refused], list[Outgoing]]:
        """One transaction, repeated for passing reasons. Raises StoreBusy when they do not pass."""
        for number in range(1, TRIES_MAX + 1):
            begun = tracing.instant()
            try:
                kept = await self._once(requests)
                tracing.record_commits([item.traceparent for item in requests] if begun else (), begun)
                return kept
            except StoreBusy as busy:
                if number == TRIES_MAX or lock_timed_out(busy):
                    raise
                await self._schedule.pause(PAUSE_SECONDS * number)
        raise AssertionError("unreachable")


def _answer(batch: Sequence[_Waiting[R, V]], verdicts: Sequence[V | Refused]) -> None:
    for item, verdict in zip(batch, verdicts, strict=True):
        if not item.verdict.done():
            item.verdict.set_result(verdict)


def _in_flight() -> Refused:
    return Refused(
        "idempotency-in-flight", "Another request holds this key or capability right now.", retry_after_seconds=1
    )


def _unavailable() -> Refused:
    return Refused("unavailable", "The gateway's store does not answer right now.", retry_after_seconds=1)
