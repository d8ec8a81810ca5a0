"""Jobs: what runs between two transactions. The commit of a task makes one, the commit of its outcome ends it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trueup_adapters.core.effect import EffectRow
from trueup_adapters.core.fold import Attempt, Look
from trueup_common.contracts.adapter import Outcome
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.shape import record
from trueup_common.contracts.task import FindTask, ProbeTask


@record
class SendJob:
    """Transmit one attempt. `row` is the ledger row as committed; `send_by_seconds` is monotonic time."""

    row: EffectRow
    attempt: Attempt
    declaration: CommandDeclaration
    send_by_seconds: float
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class LookJob:
    """Look for one operation's effect. `task` is set where a find task asked."""

    row: EffectRow
    look: Look
    declaration: CommandDeclaration
    task: FindTask | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """Read the elements of one resource."""

    task: ProbeTask
    traceparent: str | None = None


Job = SendJob | LookJob | ProbeJob


@record
class Sent:
    """What an attempt came to."""

    job: SendJob
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look-up said."""

    job: LookJob
    finding: Finding


@dataclass(frozen=True, slots=True)
class Probed:
    """What the reads said."""

    job: ProbeJob
    observations: Sequence[Observation] = field(default_factory=tuple)


Finished = Sent | Looked | Probed


@record
class FinishedMessage(Message):
    """A finished job on its way into the second loop. `data` is only a note for the quarantine."""

    finished: Finished | None = None


def tenant_and_system(job: Job) -> tuple[str, str]:
    """Which connection a job needs."""
    if isinstance(job, ProbeJob):
        return job.task.tenant, job.task.system
    return job.row.tenant, job.row.system


def job_id(job: Job) -> str:
    """The identity of a job, for the second loop's deduplication within a batch."""
    match job:
        case SendJob():
            return f"{job.attempt.attempt_id}:sent"
        case LookJob():
            name = job.task.find_id if job.task is not None else job.look.answer_attempt_id
            return f"{name}:{job.look.purpose.value}"
        case ProbeJob():
            return f"{job.task.visit_id}:probed"
