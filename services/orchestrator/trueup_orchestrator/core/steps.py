"""Beginning a step's effect: what its operation is, whether its key is taken, and its way into the queue in one commit.

A key that stands for the very same effect of another case is attached to; that case's effect is never undone by this
one. A key that stands for anything else is a conflict.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from trueup_common.contracts.canonical import fingerprint
from trueup_common.contracts.declaration import CommandDeclaration, target_of
from trueup_common.contracts.ids import command_id
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import (
    EFFECT_CLASS_RANK,
    CompensationState,
    EffectClass,
    ErrorClass,
    OperationState,
)
from trueup_common.contracts.workflow import Step, StepKind, StepPhase, StepState
from trueup_common.documents.expressions import ExpressionFailed
from trueup_common.documents.payloads import PayloadSchemas
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.bounds import KEY_CHARACTERS_MAX, NAME_CHARACTERS_MAX, PAYLOAD_BYTES_MAX, bounded, named
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import mandate_expired, wake_when_too_late
from trueup_orchestrator.core.operation import PERSONS, Trigger
from trueup_orchestrator.core.rows import new_row
from trueup_orchestrator.core.start import IDENTITY_IN_USE, identity_of
from trueup_orchestrator.core.success import desired_of, document

PATIENCE_SECONDS: Final = 900.0
"""How long a step's effect may take in all where neither document nor declaration needs longer."""

ATTACHED_POLL_SECONDS: Final = 5.0
"""How often a step looks at another case's operation that it is attached to (business time)."""


SCHEMAS: Final = PayloadSchemas()
"""Compiled payload schemas by declaration; a cache of a pure function."""


@dataclass(frozen=True, slots=True)
class Begin:
    """An effect that a step wants to begin. Whether its key is free is looked up next."""

    workflow_id: str
    step_id: str
    declaration: CommandDeclaration
    resource: str
    expected_version: str | None
    payload: dict[str, Any]
    key: str
    identity: str | None
    fingerprint: str


def scope_of(fold: Fold) -> dict[str, Any]:
    """What the document's expressions may read: recorded facts, nothing else."""
    instance = fold.instance
    steps: dict[str, Any] = {}
    for state in fold.steps.values():
        row = fold.operations.get(state.command_id or "") or fold.foreign.get(state.command_id or "")
        if state.kind is StepKind.COMMAND:
            if row is not None and row.state is OperationState.SUCCESS:
                steps[state.id] = {**(row.receipt or {}), "command_id": row.command_id}
        elif state.output is not None:
            steps[state.id] = state.output
    return {
        "input": instance.input,
        "steps": steps,
        "case": {
            "workflow_id": instance.workflow_id,
            "tenant": instance.tenant,
            "definition": instance.definition,
            "version": instance.version,
            "started_at": rfc3339(instance.created_at),
        },
    }


def actions_left(fold: Fold, *, beginning: int = 0) -> bool:
    """True while the case may cause one more effect, beside those that are about to begin."""
    used = sum(row.compensates is None for row in fold.operations.values())
    return used + beginning < fold.instance.actions_max


def prepare(fold: Fold, step: Step, state: StepState) -> Begin:
    """Everything about the effect of a step. Raises ExpressionFailed."""
    workflow, instance = fold.workflow, fold.instance
    assert workflow is not None and step.command is not None
    scope, fill = scope_of(fold), partial(workflow.expressions.fill, effort=fold.effort)
    declaration = workflow.declarations[step.command]
    payload = bounded(step.command, fill(step.payload, scope), PAYLOAD_BYTES_MAX)
    wrong = SCHEMAS.errors(declaration, payload)
    if wrong:
        raise ExpressionFailed(step.command, f"its payload does not fit: {wrong[0][1]}", wrong[0][0])
    own = f"{instance.object_type}/{instance.object_id}"
    resource = fill(step.resource, scope) if step.resource else target_of(declaration, payload, own)
    resource = named("resource", resource, NAME_CHARACTERS_MAX)
    version = fill(step.expected_version, scope) if step.expected_version else None
    key = fill(step.key, scope) if step.key else f"{instance.definition}:{instance.object_id}:{step.id}"
    key = named("key", key, KEY_CHARACTERS_MAX)
    target = {"system": declaration.system, "resource": resource, "expected_version": version}
    return Begin(
        workflow_id=instance.workflow_id,
        step_id=step.id,
        declaration=declaration,
        resource=resource,
        expected_version=None if version is None else named("expected_version", version, NAME_CHARACTERS_MAX),
        payload=payload,
        key=key,
        identity=identity_of(declaration, {"system": declaration.system, "resource": resource}, payload),
        fingerprint=fingerprint(declaration.type, target, payload),
    )


def ended_without_effect(row: JournalRow) -> bool:
    """True where nothing of an operation stands in the world, so that its key may be used again."""
    if row.compensation_state is CompensationState.COMPENSATED:
        return True
    return row.state in (OperationState.FAILED, OperationState.CANCELLED) and not barred(row)


UNDOING: Final = frozenset(
    {CompensationState.COMPENSATION_PENDING, CompensationState.COMPENSATING, CompensationState.COMPENSATION_UNKNOWN}
)
"""An effect that is on its way out: whoever would rely on it waits for how that ends."""


def begin(
    fold: Fold,
    wanted: Begin,
    authority: Authority,
    *,
    holder: JournalRow | None = None,
    identity_holder: str | None = None,
) -> None:
    """Begin an effect, attach to the operation that has its key already, or fail for a conflict."""
    state = fold.steps[wanted.step_id]
    generation = 1
    if holder is not None:
        same = holder.request_fingerprint == wanted.fingerprint and holder.command_type == wanted.declaration.type
        if ended_without_effect(holder):
            generation = holder.generation + 1
        elif (
            same
            and holder.state not in PERSONS
            and holder.compensation_state is not CompensationState.COMPENSATION_FAILED
        ):
            _attach(fold, state, holder)
            return
        else:
            identity_holder = holder.command_id
            generation = holder.generation + 1
    row = _row(fold, wanted, state, generation, taken=identity_holder is not None)
    fold.add(row)
    fold.note(
        "StepStarted",
        actor="orchestrator",
        at=fold.moment.business,
        command_type=row.command_type,
        system=row.target_system,
        resource=row.target_resource,
        idempotency_key=row.idempotency_key,
        generation=generation if generation > 1 else None,
        payload_sha256=row.payload_sha256,
        declaration_sha256=row.declaration_sha256,
        approval_id=row.approval_id,
    )
    fold.step(
        state.id,
        phase=StepPhase.RUNNING,
        command_id=row.command_id,
        started_at=fold.moment.business,
        deadline_at=row.deadline_at,
    )
    refused = _refusal(fold, wanted, authority)
    if refused is not None:
        fold.move(Trigger.TAKE_UP)
        fold.fail(Trigger.REFUSE, ErrorClass.PERMANENT, *refused)
    elif identity_holder is not None:
        detail = f"{identity_holder} already holds this key or business identity"
        fold.move(Trigger.TAKE_UP)
        fold.fail(Trigger.CONFLICT, ErrorClass.BUSINESS, IDENTITY_IN_USE, detail, human_review_required=True)
    else:
        wake_at = wake_when_too_late(fold.operation, wanted.declaration)
        fold.move(Trigger.TAKE_UP, Trigger.ADMIT, Trigger.ENQUEUE, wake_at=wake_at)


def _attach(fold: Fold, state: StepState, holder: JournalRow) -> None:
    own = holder.workflow_id == fold.instance.workflow_id
    fold.case_note("StepAttached", step_id=state.id, command_id=holder.command_id, workflow_id=holder.workflow_id)
    if not own:
        fold.foreign[holder.command_id] = holder
    fold.step(
        state.id,
        phase=StepPhase.RUNNING,
        command_id=holder.command_id,
        attached=not own,
        started_at=fold.moment.business,
        wake_at=None if own else fold.moment.business + timedelta(seconds=ATTACHED_POLL_SECONDS),
    )


def _refusal(fold: Fold, wanted: Begin, authority: Authority) -> tuple[str, str] | None:
    """None where the mandate admits the effect; else (code, reason)."""
    mandate, declaration = fold.instance.mandate, wanted.declaration
    highest = EFFECT_CLASS_RANK[EffectClass(mandate["effect_class_max"])]
    missing = declaration.expected_version == "required" and wanted.expected_version is None
    checks = (
        ("revoked", authority.revoked is None, authority.revoked or ""),
        ("mandate_command_type", declaration.type in mandate["command_types"], "the mandate does not name the type"),
        ("mandate_effect_class", EFFECT_CLASS_RANK[declaration.effect_class] <= highest, "above the mandate's class"),
        ("mandate_expired", not mandate_expired(fold.instance, fold.moment.business), "the mandate's lifetime is over"),
        ("payload_invalid", not missing, "this type requires an expected version"),
    )
    return next(((code, reason) for code, holds, reason in checks if not holds), None)


def _row(fold: Fold, wanted: Begin, state: StepState, generation: int, *, taken: bool) -> JournalRow:
    instance, declaration, now = fold.instance, wanted.declaration, fold.moment.business
    command = command_id(instance.workflow_id, wanted.step_id, state.generation)
    known = document({"system": declaration.system, "resource": wanted.resource}, wanted.payload, command)
    return new_row(
        fold,
        declaration,
        command_id=command,
        step_id=wanted.step_id,
        generation=generation,
        target_resource=wanted.resource,
        expected_version=wanted.expected_version,
        payload=wanted.payload,
        idempotency_key=wanted.key,
        identity=None if taken else wanted.identity,
        request_fingerprint=wanted.fingerprint,
        desired_state=desired_of(declaration, known),
        deadline_at=_deadline(fold, wanted, now),
        approval_id=_approval_of(fold, wanted.step_id),
        supersedes=_earlier(fold, wanted.step_id),
    )


def _earlier(fold: Fold, step_id: str) -> str | None:
    """The operation of the same step before it began anew."""
    earlier = [row.command_id for row in fold.operations.values() if row.step_id == step_id]
    return earlier[-1] if earlier else None


def _deadline(fold: Fold, wanted: Begin, now: datetime) -> datetime:
    assert fold.workflow is not None
    step = fold.workflow.document.by_id[wanted.step_id]
    patience = max(PATIENCE_SECONDS, wanted.declaration.retry_horizon_seconds)
    longest = step.timeout or timedelta(seconds=patience)
    return min(now + longest, fold.instance.deadline_at)


def _approval_of(fold: Fold, step_id: str) -> str | None:
    """The newest approval among everything that a step needs: what its grant rests on."""
    assert fold.workflow is not None
    given = [
        state
        for each in fold.workflow.document.before[step_id]
        if (state := fold.steps[each]).kind is StepKind.APPROVAL and state.phase is StepPhase.DONE
    ]
    newest = max(given, key=lambda state: (state.ended_at or fold.moment.business, state.id), default=None)
    return newest.approval_id if newest is not None else None
