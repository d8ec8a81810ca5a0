"""Starting a workflow: the checks that admit it, its semantic locks, and the case with all steps pending."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import StartWorkflow
from trueup_common.contracts.journal import InstanceRow
from trueup_common.contracts.states import InstanceStatus
from trueup_common.contracts.workflow import Concurrency, Direction, StepState
from trueup_orchestrator.core.case import Authority, Case, Moment, Terms
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.reactions import turn
from trueup_orchestrator.core.status import OBJECT_IN_USE, START_KEY_IN_USE
from trueup_orchestrator.core.workflow import Workflow

LOCK_POLL_SECONDS: Final = 60.0
"""How often a queued case looks at its locks by itself; whoever frees one wakes it at once."""

OBJECT_LOCK: Final = "object"
LOCK_CHARACTERS_MAX: Final = 300


def start_workflow(
    message: StartWorkflow,
    workflow: Workflow,
    authority: Authority,
    moment: Moment,
    terms: Terms,
    *,
    key_taken: bool = False,
    cause: str | None = None,
    traceparent: str | None = None,
) -> Fold:
    """A new case with all its steps pending. Its locks are taken next (`take_locks`)."""
    fold = Fold(Case(_row(message, workflow, traceparent), ()), moment, terms, created=True, workflow=workflow)
    fold.case_note(
        "CaseStarted",
        actor=message.mandate.subject,
        at=message.accepted_at,
        cause=cause,
        definition=message.definition,
        version=message.version,
        document_sha256=message.document_sha256,
        declarations=message.declarations,
        start_key=message.start_key,
        input_sha256=message.input_sha256,
        purpose=message.purpose,
        source_version=message.source_version,
        parent_id=message.parent_id,
        decision_id=message.mandate.decision_id,
        mandate_id=message.mandate.mandate_id,
    )
    if key_taken:
        fold.instance = fold.instance.evolve(start_key=None)
        turn(fold, Direction.BACKWARD, START_KEY_IN_USE)
    elif authority.revoked:
        turn(fold, Direction.BACKWARD, "cancelled", detail=authority.revoked)
    return fold


def _row(message: StartWorkflow, workflow: Workflow, traceparent: str | None) -> InstanceRow:
    document, expressions = workflow.document, workflow.expressions
    scope = {"input": message.input, "steps": {}, "case": {"workflow_id": message.workflow_id}}
    object_id = str(expressions.fill(document.object.id, scope))
    declared = [f"declared:{lock_name(str(expressions.fill(lock, scope)))}" for lock in document.locks]
    return InstanceRow(
        workflow_id=message.workflow_id,
        saga_id=message.saga_id,
        tenant=message.tenant,
        definition=message.definition,
        version=message.version,
        sha256=message.document_sha256,
        status=InstanceStatus.RUNNING,
        state_version=0,
        stage=message.stage,
        object_type=document.object.type,
        object_id=object_id,
        subject=message.mandate.subject,
        mandate=message.mandate.model_dump(mode="json"),
        input=message.input,
        input_sha256=message.input_sha256,
        start_key=message.start_key,
        request_fingerprint=message.request_fingerprint,
        purpose=message.purpose,
        source_version=message.source_version,
        on_terminal=message.on_terminal,
        actions_max=message.actions_max,
        declarations=message.declarations,
        steps=[
            StepState(id=step.id, kind=step.kind, command_type=step.command).model_dump(mode="json", exclude_none=True)
            for step in document.steps
        ],
        locks=sorted({f"{OBJECT_LOCK}:{document.object.type}:{object_id}", *declared}),
        locked=False,
        parent_id=message.parent_id,
        revision=message.revision,
        created_at=message.accepted_at,
        deadline_at=message.deadline_at,
        correlation_id=message.correlation_id,
        trace_id=message.trace_id,
        traceparent=traceparent,
    )


def lock_name(text: str) -> str:
    """A declared lock as its row names it: what no index can hold stands there by its hash."""
    if len(text) <= LOCK_CHARACTERS_MAX and "\0" not in text:
        return text
    return f"sha256:{digest(text)}"


def take_locks(fold: Fold, holders: Mapping[str, str]) -> bool:
    """Take all locks at once where no other case holds one; else queue or refuse. True where they are taken now.

    `holders` says which case holds which of this case's locks.
    """
    workflow, instance = fold.workflow, fold.instance
    assert workflow is not None
    if instance.locked or instance.direction != Direction.FORWARD:
        return False
    foreign = {key: holder for key, holder in holders.items() if holder != instance.workflow_id}
    if not foreign:
        fold.instance = instance.evolve(locked=True, wake_at=None)
        fold.case_note("LocksTaken", locks=instance.locks)
        return True
    now, rule = fold.moment.business, workflow.document.object
    key, holder = min(foreign.items())
    over = instance.created_at + rule.queue_timeout
    if rule.concurrency is Concurrency.REFUSE or now >= over:
        turn(fold, Direction.BACKWARD, OBJECT_IN_USE, detail=f"{holder} holds {key}")
        return False
    if instance.wake_at is None:
        fold.case_note("LockQueued", lock=key, holder=holder)
    fold.instance = fold.instance.evolve(wake_at=min(now + timedelta(seconds=LOCK_POLL_SECONDS), over))
    return False


def outlived(fold: Fold) -> bool:
    """True where an open workflow's lifetime is over."""
    deadline: datetime = fold.instance.deadline_at
    return fold.instance.closed_at is None and deadline <= fold.moment.business


def fold_lifetime(fold: Fold) -> None:
    """The lifetime is over: what still moves forward is a person's from here on; the next reminder is set."""
    if not outlived(fold):
        return
    if fold.instance.status in (InstanceStatus.VERIFYING, InstanceStatus.COMPENSATING):
        return  # what is still to be verified has its own alarm
    if fold.instance.direction == Direction.FORWARD:
        turn(fold, Direction.PERSON, "lifetime_over")
    else:
        fold.case_note("CaseOverdue")
    fold.instance = fold.instance.evolve(
        deadline_at=fold.moment.business + timedelta(seconds=fold.terms.exception_sla_seconds)
    )
