"""Running jobs: slots, rates and timeouts per (tenant, system), so that one slow target never blocks another.

Finished jobs go into a queue in memory that feeds the second loop. Losing that queue loses no fact: the ledger says
`SENT`, and the scan looks.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.trace import SpanKind

from trueup_adapters.attempts import Transmission, find, perform, probe, undecided, unread
from trueup_adapters.connections import unknown_setting
from trueup_adapters.core.breaker import Breaker
from trueup_adapters.core.effect import EffectRow
from trueup_adapters.core.job import (
    Finished,
    FinishedMessage,
    Job,
    Looked,
    LookJob,
    Probed,
    ProbeJob,
    SendJob,
    Sent,
    job_id,
    tenant_and_system,
)
from trueup_adapters.handler import keep_progress
from trueup_adapters.payloads import NO_PAYLOADS, PayloadAway, PayloadInvalid, PayloadMissing, Payloads
from trueup_adapters.store import AdaptersTransaction
from trueup_common.contracts.adapter import Adapter, Connection, LeaseLost, Outcome, Target, not_sent, rejected
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import Beat, RunningAttempt
from trueup_common.runtime.clock import monotonic, real_now
from trueup_common.runtime.gathering import Gathering
from trueup_common.runtime.ports import CrashPoints, Store, StoreBusy
from trueup_common.runtime.tracing import failed, span

log = logging.getLogger("trueup.execution")

FETCH_WAIT_SECONDS: Final = 0.5
PROBE_TIMEOUT_SECONDS: Final = 30.0
JOBS_MAX: Final = 1000
"""Jobs under way in one process. More tasks than that stay in the stream, where another replica can take them."""


class FinishedDelivery:
    """One finished job on its way into the ledger."""

    __slots__ = ("_queue", "message")

    def __init__(self, message: FinishedMessage, queue: "FinishedQueue") -> None:
        self.message = message
        self._queue = queue

    async def ack(self) -> None:
        """It is in the ledger."""

    async def nak(self, delay_seconds: float) -> None:
        """Again, a little later."""
        asyncio.get_running_loop().call_later(delay_seconds, self._queue.put, self.message)

    async def term(self) -> None:
        """It is in quarantine; the row stays `SENT`, and the scan looks."""


class FinishedQueue:
    """The source of one system's second loop."""

    def __init__(self, system: str) -> None:
        self.name = f"adapters-{system}-outcomes"
        self._waiting: deque[FinishedMessage] = deque()
        self._arrived = asyncio.Event()
        self._gathering = Gathering()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: FinishedMessage) -> None:
        """A job is finished."""
        self._waiting.append(message)
        self._arrived.set()

    async def fetch(self, limit: int) -> Sequence[FinishedDelivery]:
        """What is finished; empty after a bounded wait."""
        if not self._waiting:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FETCH_WAIT_SECONDS):
                    await self._arrived.wait()
        if self._waiting:
            await self._gathering.wait()
        taken = self.take(limit)
        self._gathering.took(len(taken))
        return taken

    def take(self, limit: int) -> list[FinishedDelivery]:
        """What is finished now."""
        count = min(limit, len(self._waiting))
        return [FinishedDelivery(self._waiting.popleft(), self) for _ in range(count)]


class Rate:
    """At most so many sends per second, evenly spread."""

    def __init__(self, per_second: float | None) -> None:
        self._gap = 1.0 / per_second if per_second else 0.0
        self._next = 0.0

    def wait_seconds(self, now: float, until: float) -> float | None:
        """How long to wait for the next place; None where it would come after `until` (then none is taken)."""
        if not self._gap:
            return 0.0
        at = max(now, self._next)
        if at > until:
            return None
        self._next = at + self._gap
        return at - now


class Line:
    """One connection at work: its target, its slots and its rate."""

    def __init__(self, connection: Connection, target: Target) -> None:
        self.connection = connection
        self.target = target
        self.sends = asyncio.Semaphore(connection.max_concurrency)
        self.reads = asyncio.Semaphore(connection.max_concurrency)
        self.rate = Rate(connection.requests_per_second)
        self.breaker = Breaker()

    def timeout_seconds(self, declared: float) -> float:
        """The declared timeout, or the connection's own where that is shorter (leases count with the declared one)."""
        own = self.connection.timeout_seconds
        return declared if own is None else min(declared, own)


def _told(row: EffectRow, attempt_id: str | None, fence: int) -> dict[str, str | int]:
    """What a span says of a call."""
    return {
        "trueup.system": row.system,
        "trueup.command_type": row.command_type,
        "trueup.command_id": row.command_id,
        "trueup.attempt_id": attempt_id or "",
        "trueup.fence": fence,
        "trueup.tenant": row.tenant,
    }


def open_lines(connections: Iterable[Connection], adapters: Mapping[str, Adapter]) -> dict[tuple[str, str], Line]:
    """Lines for every connection that an adapter here can serve. Raises ValueError for unusable settings."""
    lines: dict[tuple[str, str], Line] = {}
    for connection in connections:
        adapter = adapters.get(connection.system)
        if adapter is None:
            continue
        wrong = unknown_setting(adapter, connection)
        if wrong is not None:
            raise ValueError(wrong)
        lines[connection.tenant, connection.system] = Line(connection, adapter.open(connection))
    return lines


class Execution:
    """Runs jobs in the background."""

    def __init__(
        self,
        lines: Mapping[tuple[str, str], Line],
        finished: Mapping[str, FinishedQueue],
        store: Store[AdaptersTransaction],
        crash: CrashPoints,
        worker: str,
        *,
        payloads: Payloads = NO_PAYLOADS,
    ) -> None:
        self.payloads = payloads
        self.lines = dict(lines)
        self.finished = dict(finished)
        self.store = store
        self.crash = crash
        self.worker = worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._transmissions: dict[str, Transmission] = {}
        self._freed = asyncio.Event()

    def start(self, job: Job) -> None:
        """Begin a job; returns at once."""
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a job ended without an answer; the ledger says SENT and the scan will look", exc_info=error)

    async def room(self, limit: int) -> int:
        """How many more jobs may begin, at most `limit`; waits a bounded time for the first place, then answers 0."""
        if len(self._tasks) >= JOBS_MAX:
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FETCH_WAIT_SECONDS):
                    await self._freed.wait()
        return max(0, min(limit, JOBS_MAX - len(self._tasks)))

    async def _run(self, job: Job) -> None:
        line = self.lines.get(tenant_and_system(job))
        result: Finished
        match job:
            case SendJob():
                result = Sent(job, await self._send(job, line))
            case LookJob():
                result = Looked(job, await self._find(job, line))
            case ProbeJob():
                result = Probed(job, await self._probe(job, line))
        self._hand_over(job, result)

    def _hand_over(self, job: Job, result: Finished) -> None:
        tenant, system = tenant_and_system(job)
        self.finished[system].put(
            FinishedMessage(
                id=job_id(job),
                type=type(result).__name__,
                subject=f"finished.{system}",
                tenant=tenant,
                source=f"adapter.{system}",
                time=real_now(),
                data=b"{}",
                traceparent=job.traceparent,
                finished=result,
            )
        )

    async def _send(self, job: SendJob, line: Line | None) -> Outcome:
        if line is None:
            return rejected(ErrorClass.TRANSIENT, "no_connection", "no connection to this system for this tenant")
        if line.sends.locked():
            try:
                async with asyncio.timeout(job.send_by_seconds - monotonic()):
                    await line.sends.acquire()
            except TimeoutError:
                return not_sent("no_slot", "no free slot before send_by")
        else:
            await line.sends.acquire()
        try:
            wait = line.rate.wait_seconds(monotonic(), job.send_by_seconds)
            if wait is None:
                return not_sent("no_slot", "the connection's rate has no place before send_by")
            if wait:
                await asyncio.sleep(wait)
            ready = await self._with_payload(job)
            if isinstance(ready, Outcome):
                return ready
            if not line.breaker.admits(monotonic()):
                return not_sent("circuit_open", "the target fails for everyone; one at a time tries whether it is back")
            outcome = await self._transmit(ready, line)
            if line.breaker.heard(outcome, monotonic()):
                about = {"tenant": line.connection.tenant, "system": line.connection.system}
                log.warning("circuit opened", extra=about)
            return outcome
        finally:
            line.sends.release()

    async def _with_payload(self, job: SendJob) -> SendJob | Outcome:
        """The job with its whole payload, before anything is sent; else what the attempt has come to."""
        operation = job.row.operation
        if operation.payload_ref is None:
            return job
        try:
            async with asyncio.timeout(job.send_by_seconds - monotonic()):
                return replace(job, row=job.row.evolve(operation=await self.payloads.whole(operation)))
        except (PayloadAway, TimeoutError) as error:
            return not_sent("payload_unavailable", str(error))
        except PayloadMissing:
            return rejected(ErrorClass.TRANSIENT, "payload_missing", "the payload's artifact has no content")
        except PayloadInvalid as error:
            return rejected(ErrorClass.PERMANENT, "payload_invalid", str(error))

    async def _transmit(self, job: SendJob, line: Line) -> Outcome:
        with span(
            f"{job.row.command_type} perform",
            job.traceparent,
            kind=SpanKind.CLIENT,
            attributes=_told(job.row, job.attempt.attempt_id, job.attempt.fence),
        ) as seen:
            outcome = await self._attempt(job, line)
            seen.set_attribute("trueup.outcome", outcome.status.value)
            if outcome.status is not ReceiptStatus.CONFIRMED:
                failed(seen, outcome.error_code or outcome.status.value, outcome.status.value)
            return outcome

    async def _attempt(self, job: SendJob, line: Line) -> Outcome:
        timeout_seconds = line.timeout_seconds(job.declaration.timeout_seconds)
        transmission = Transmission(job, monotonic, timeout_seconds)
        self._transmissions[job.attempt.attempt_id] = transmission
        self.crash.reach(f"adapters-{job.row.system}.before_send")
        try:
            async with asyncio.timeout(transmission.stop_at_seconds - monotonic()) as limit:

                async def progress(cursor: dict[str, Any]) -> None:
                    await self._progress(job, cursor)
                    transmission.cursor = cursor
                    transmission.progress_count += 1
                    transmission.stop_at_seconds = monotonic() + timeout_seconds
                    limit.reschedule(asyncio.get_running_loop().time() + timeout_seconds)

                outcome = await perform(transmission, line.target, timeout_seconds, progress)
            self.crash.reach(f"adapters-{job.row.system}.target_acted")
            return outcome
        except TimeoutError:
            return transmission.doubt("timeout")
        finally:
            del self._transmissions[job.attempt.attempt_id]

    async def _progress(self, job: SendJob, cursor: dict[str, Any]) -> None:
        """A cursor that could not be stored stops the attempt: nobody could resume from it."""
        try:
            await keep_progress(self.store, job, cursor, self.finished[job.row.system].name)
        except StoreBusy as busy:
            raise LeaseLost from busy

    async def _find(self, job: LookJob, line: Line | None) -> Finding:
        if line is None:
            return undecided("no_connection")
        timeout_seconds = line.timeout_seconds(job.declaration.timeout_seconds)
        with span(
            f"{job.row.command_type} find",
            job.traceparent,
            kind=SpanKind.CLIENT,
            attributes=_told(job.row, job.look.answer_attempt_id, job.look.fence),
        ) as seen:
            try:
                async with asyncio.timeout(timeout_seconds), line.reads:
                    whole = await self.payloads.whole(job.row.operation)
                    ready = job if whole is job.row.operation else replace(job, row=job.row.evolve(operation=whole))
                    finding = await find(ready, line.target, timeout_seconds)
            except TimeoutError:
                finding = undecided("timeout")
            except (PayloadAway, PayloadMissing, PayloadInvalid) as error:
                log.warning("payload not read", extra={"command_id": job.row.command_id, "reason": repr(error)[:200]})
                finding = undecided("payload_unavailable")
            seen.set_attribute("trueup.outcome", finding.verdict.value)
            if finding.verdict is FindVerdict.UNKNOWN:
                failed(seen, finding.reason or "unknown")
            return finding

    async def _probe(self, job: ProbeJob, line: Line | None) -> Sequence[Observation]:
        if line is None:
            return unread(job, "no_connection", real_now())
        task = job.task
        with span(
            f"{task.system} probe",
            job.traceparent,
            kind=SpanKind.CLIENT,
            attributes={"trueup.system": task.system, "trueup.tenant": task.tenant, "trueup.visit_id": task.visit_id},
        ) as seen:
            try:
                async with asyncio.timeout(line.timeout_seconds(PROBE_TIMEOUT_SECONDS)), line.reads:
                    observations = await probe(job, line.target, real_now)
            except TimeoutError:
                observations = unread(job, "timeout", real_now())
            reasons = [item.reason for item in observations if item.verdict is ProbeVerdict.UNKNOWN]
            if reasons:
                failed(seen, reasons[0] or "unknown")
            return observations

    def beats(self, systems: Iterable[str]) -> list[Beat]:
        """One beat per system: slots by tenant, and the attempts that need their lease renewed."""
        now, at = monotonic(), real_now()
        beats = []
        for system in systems:
            slots = {line.connection.tenant: line.connection.max_concurrency for line in self._of(system)}
            running = tuple(
                RunningAttempt(
                    command_id=transmission.job.row.command_id,
                    tenant=transmission.job.row.tenant,
                    fence=transmission.job.attempt.fence,
                    progress=transmission.progress_count,
                )
                for transmission in self._transmissions.values()
                if transmission.job.row.system == system
                and now - transmission.started_at_seconds > transmission.job.declaration.timeout_seconds / 2
            )
            beats.append(Beat(worker=self.worker, system=system, slots=slots, running=running, at=at))
        return beats

    def _of(self, system: str) -> list[Line]:
        return [line for line in self.lines.values() if line.connection.system == system]

    @property
    def jobs_count(self) -> int:
        """Jobs under way."""
        return len(self._tasks)

    async def idle(self, timeout_seconds: float) -> None:
        """Until no job runs, within a bound."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_seconds)

    async def close(self) -> None:
        """Stop what still runs (the ledger says `SENT`, the scan will look) and release the connections."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1)
        for line in self.lines.values():
            await line.target.close()
