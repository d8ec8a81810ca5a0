"""What runs between an adapter's two loops: the real attempts, look-ups and reads, against the fake world.

Only slots, rates and timeouts are played here (the real ones are asyncio's); what an attempt means is service code.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final

from tests.simulation.engine import STEP, Engine, Process, Signal, Sleep
from tests.simulation.world import World, WorldTarget
from trueup_adapters.attempts import Transmission, find, perform, probe, undecided, unread
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
from trueup_common.contracts.adapter import Connection, Outcome
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.task import Beat, RunningAttempt
from trueup_common.runtime.ports import CrashPoints

BEAT_SECONDS: Final = 1.0
SLOTS: Final = 2


class Bounded:
    """Runs a coroutine until a deadline, as `asyncio.timeout` does; then it is dropped where it waits."""

    def __init__(self, engine: Engine, coroutine: Coroutine[Any, Any, Any], seconds: float) -> None:
        self._engine = engine
        self._coroutine = coroutine
        self._until = engine.now + seconds

    def __await__(self) -> Generator[Any, None, Any]:
        coroutine = self._coroutine
        while True:
            try:
                wanted = coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            left = self._until - self._engine.now
            over = left <= 0
            if isinstance(wanted, Sleep) and wanted.seconds is not None and wanted.seconds > left:
                yield Sleep(max(0.0, left), wanted.signal)
                over = True
            elif not over:
                yield wanted
            if over:
                coroutine.close()
                raise TimeoutError


class JobDelivery:
    """A finished job in the hands of the second loop."""

    __slots__ = ("_jobs", "message")

    def __init__(self, jobs: Jobs, message: FinishedMessage) -> None:
        self._jobs = jobs
        self.message: Message = message

    async def ack(self) -> None:
        """It is in the ledger."""

    async def nak(self, delay_seconds: float) -> None:
        """Again later."""
        self._jobs.engine.call_later(delay_seconds, lambda: self._jobs.put(self.message))

    async def term(self) -> None:
        """Given up."""


class Jobs:
    """The source of one system's second loop: finished jobs, in the memory of one process."""

    def __init__(self, engine: Engine, system: str) -> None:
        self.name = f"adapters-{system}-outcomes"
        self.engine = engine
        self._finished: list[Any] = []
        self._signal = Signal(engine)

    def put(self, message: Message) -> None:
        """A job is finished."""
        self._finished.append(message)
        self._signal.notify()

    async def fetch(self, limit: int) -> Sequence[JobDelivery]:
        """What is finished."""
        while not self._finished:
            await Sleep(None, self._signal)
        await STEP
        batch, self._finished = self._finished[:limit], self._finished[limit:]
        return [JobDelivery(self, message) for message in batch]


class SimulatedBackground:
    """Runs each job as a coroutine of its process; a crash loses all of them."""

    def __init__(
        self,
        world: World,
        process: Process,
        jobs: dict[str, Jobs],
        crash: CrashPoints,
        worker: str,
        beat: Callable[[Beat], None],
    ) -> None:
        self._world = world
        self._engine = world.engine
        self._process = process
        self._jobs = jobs
        self._crash = crash
        self._worker = worker
        self._beat = beat
        self._transmissions: dict[str, Transmission] = {}

    def start(self, job: Job) -> None:
        """Begin."""
        self._process.spawn(self._run(job), job_id(job))

    def _monotonic(self) -> float:
        return self._engine.now

    async def _run(self, job: Job) -> None:
        await STEP
        tenant, system = tenant_and_system(job)
        target = WorldTarget(self._world, Connection(tenant=tenant, system=system), self._process.clock)
        finished = await self._perform(target, job)
        faults = self._world.faults
        held = faults.slow_look if isinstance(job, LookJob) else faults.slow_worker
        if self._engine.strikes("answer held by a slow worker", held):
            await Sleep(faults.slow_worker_seconds * self._engine.random.random())  # what it saw grows old in its hands
        self._jobs[system].put(
            FinishedMessage(
                id=job_id(job),
                type=type(finished).__name__,
                subject=f"finished.{system}",
                tenant=tenant,
                source=f"adapter.{system}",
                time=self._engine.real(),
                data=b"{}",
                finished=finished,
            )
        )

    async def _perform(self, target: WorldTarget, job: Job) -> Finished:
        engine = self._engine
        if isinstance(job, ProbeJob):
            try:
                return Probed(job, await Bounded(engine, probe(job, target, self._process.clock), 30.0))
            except TimeoutError:
                return Probed(job, unread(job, "timeout", self._process.clock()))
        timeout_seconds = job.declaration.timeout_seconds
        if isinstance(job, LookJob):
            try:
                return Looked(job, await Bounded(engine, find(job, target, timeout_seconds), timeout_seconds))
            except TimeoutError:
                return Looked(job, undecided("timeout"))
        return Sent(job, await self._transmit(target, job, timeout_seconds))

    async def _transmit(self, target: WorldTarget, job: SendJob, timeout_seconds: float) -> Outcome:
        engine, name = self._engine, job.attempt.attempt_id
        transmission = Transmission(job, self._monotonic, timeout_seconds)
        self._transmissions[name] = transmission
        self._crash.reach(f"adapters-{job.row.system}.before_send")
        engine.call_later(timeout_seconds / 2 + 0.1, lambda: self._announce(name))
        performed = perform(transmission, target, timeout_seconds, _no_progress)
        try:
            outcome: Outcome = await Bounded(engine, performed, transmission.stop_at_seconds - engine.now)
            self._crash.reach(f"adapters-{job.row.system}.target_acted")
        except TimeoutError:
            outcome = transmission.doubt("timeout")
        finally:
            self._transmissions.pop(name, None)
        return outcome

    def _announce(self, name: str) -> None:
        """Beat for a long attempt while it runs."""
        transmission = self._transmissions.get(name)
        process, engine = self._process, self._engine
        if transmission is None or not process.alive:
            return
        if process.paused_until <= engine.now:
            row = transmission.job.row
            running = RunningAttempt(command_id=row.command_id, tenant=row.tenant, fence=transmission.job.attempt.fence)
            self._beat(
                Beat(
                    worker=self._worker,
                    system=row.system,
                    slots={row.tenant: SLOTS},
                    running=(running,),
                    at=process.clock(),
                )
            )
        engine.call_later(BEAT_SECONDS, lambda: self._announce(name))


async def _no_progress(_: dict[str, Any]) -> None:
    await STEP
