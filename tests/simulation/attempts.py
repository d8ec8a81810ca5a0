"""What runs between an adapter's two loops: attempts, look-ups and reads against the fake world, as plain coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trueup_adapters.core.job import Finished, FinishedMessage, Job, Looked, LookJob, Probed, ProbeJob, SendJob, Sent
from trueup_adapters.core.job import job_id, tenant_and_system
from trueup_common.contracts.adapter import Call, Connection, SlotLost, not_sent
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.grant import GrantClaims, refusal
from trueup_common.contracts.task import ExecuteTask
from trueup_common.runtime.grants import GrantKeys

from tests.simulation.engine import STEP, Engine, Process, Signal, Sleep
from tests.simulation.world import World, WorldTarget


class SimulatedAuthority:
    """The adapter's check of a grant: genuine, for exactly this attempt, not revoked, not frozen."""

    def __init__(self, keys: GrantKeys, governance: Any) -> None:
        self._keys = keys
        self._governance = governance

    def check(self, task: ExecuteTask, declaration: CommandDeclaration, now: datetime) -> GrantClaims | str:
        """Claims, or the check that fails."""
        claims = self._keys.verify(task.operation.target.system, task.grant)
        if isinstance(claims, str):
            return claims
        failed = refusal(claims, task, now=now, epoch_min=task.min_epoch)
        if failed is not None:
            return failed
        if self._governance.revoked("mandate", claims.mandate) or self._governance.revoked("decision", claims.decision):
            return "revoked"
        return claims


class _JobDelivery:
    """A finished job in the hands of the second loop."""

    __slots__ = ("_jobs", "message")

    def __init__(self, jobs: Jobs, message: FinishedMessage) -> None:
        self._jobs = jobs
        self.message: Message = message

    async def ack(self) -> None:
        """Done."""

    async def nak(self, delay_seconds: float) -> None:
        """Again later."""
        self._jobs.engine.call_later(delay_seconds, lambda: self._jobs.put(self.message))

    async def term(self) -> None:
        """Given up."""


class Jobs:
    """The source of the second loop: finished jobs, in the memory of one process."""

    name = "adapters-outcomes"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._finished: list[Any] = []
        self._signal = Signal(engine)

    def put(self, message: Any) -> None:
        """A job is finished."""
        self._finished.append(message)
        self._signal.notify()

    async def fetch(self, limit: int) -> Sequence[_JobDelivery]:
        """What is finished."""
        while not self._finished:
            await Sleep(None, self._signal)
        await STEP
        batch, self._finished = self._finished[:limit], self._finished[limit:]
        return [_JobDelivery(self, message) for message in batch]


class SimulatedBackground:
    """Runs each job as a coroutine of its process; a crash loses all of them."""

    def __init__(self, world: World, process: Process, jobs: Jobs) -> None:
        self._world = world
        self._process = process
        self._jobs = jobs

    def start(self, job: Job) -> None:
        """Begin."""
        self._process.spawn(self._run(job), job_id(job))

    async def _run(self, job: Job) -> None:
        await STEP
        tenant, system = tenant_and_system(job)
        target = WorldTarget(self._world, Connection(tenant=tenant, system=system))
        finished = await self._perform(target, job)
        engine = self._world.engine
        if engine.chance(self._world.faults.slow_worker):
            await Sleep(12.0 * engine.random.random())  # a busy process: what it saw grows old in its hands
        self._jobs.put(
            FinishedMessage(
                id=job_id(job),
                type=type(finished).__name__,
                subject="local",
                tenant=tenant,
                source=self._process.name,
                time=engine.real(),
                data=b"",
                finished=finished,
            )
        )

    async def _perform(self, target: WorldTarget, job: Job) -> Finished:
        if isinstance(job, ProbeJob):
            return Probed(job, tuple(await target.probe(job.task.elements)))
        if isinstance(job, LookJob):
            call = self._call(job, job.look.answer_attempt_id, job.look.fence, job.row.sent_at)
            return Looked(job, await target.find(call))
        call = self._call(job, job.attempt.attempt_id, job.attempt.fence, None)
        try:
            return Sent(job, await target.perform(call))
        except SlotLost:
            return Sent(job, not_sent("send_by_passed"))

    def _call(self, job: SendJob | LookJob, attempt_id: str, fence: int, sent_before: datetime | None) -> Call:
        engine = self._world.engine

        def may_send() -> None:
            if not isinstance(job, SendJob) or engine.now > job.send_by_seconds:
                raise SlotLost

        async def progress(cursor: dict[str, Any]) -> None:
            await STEP

        return Call(
            operation=job.row.operation,
            declaration=job.declaration,
            attempt_id=attempt_id,
            fence=fence,
            timeout_seconds=job.declaration.timeout_seconds,
            may_send=may_send,
            progress=progress,
            sent_before=sent_before,
        )
