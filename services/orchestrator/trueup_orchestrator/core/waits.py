"""Waiting: for a person, for an event, for a lock. A wait holds no worker and has an owner and a deadline.

An event races a timer by compare-and-set of the case: whichever is folded first wins, the other is told that it is
late. An approval is arbitrated by the gateway's row; the timer only asks that row to expire.
"""

from datetime import timedelta
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import ApprovalAsked, ApprovalDecided
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_common.contracts.topology import event_subject
from trueup_common.contracts.workflow import Step, StepKind, StepOutcome, StepPhase, StepState
from trueup_orchestrator.core.bounds import SHOWN_BYTES_MAX, bounded
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.steps import ATTACHED_POLL_SECONDS, scope_of

HELD_MAX: Final = 20
SIGNALS_MAX: Final = 100
ASK_AGAIN_SECONDS: Final = 5.0
"""How long to wait for the gateway's word on an approval that should have expired, before asking again."""

_HEX: Final = frozenset("0123456789abcdef")


def content_sha256_of(binds: list[Any]) -> str:
    """What exactly is approved: the one bound value where it is a SHA-256 itself, else the digest of all of them."""
    only = binds[0] if len(binds) == 1 else None
    if isinstance(only, str) and len(only) == 64 and set(only) <= _HEX:
        return only
    return digest(binds)


def open_approval(fold: Fold, step: Step, state: StepState) -> None:
    """Ask a person. Raises ExpressionFailed."""
    assert fold.workflow is not None and step.approval is not None
    scope, now = scope_of(fold), fold.moment.business
    binds = [fold.workflow.expressions.fill(value, scope, fold.effort) for value in step.approval.binds]
    summary = fold.workflow.expressions.fill(step.approval.shows, scope, fold.effort)
    bounded("what an approval binds and shows", [binds, summary], SHOWN_BYTES_MAX)
    content = content_sha256_of(binds)
    approval = derived_id("apr", fold.instance.workflow_id, step.id, state.generation)
    deadline = min(now + step.approval.timeout, fold.instance.deadline_at)
    fold.case_note(
        "ApprovalAsked", step_id=step.id, approval_id=approval, content_sha256=content, deadline=rfc3339(deadline)
    )
    fold.step(
        step.id,
        phase=StepPhase.WAITING,
        approval_id=approval,
        content_sha256=content,
        started_at=now,
        deadline_at=deadline,
        wake_at=deadline,
        output={"binds": binds, "summary": summary},
    )
    _ask(fold, fold.steps[step.id], "open")


def _ask(fold: Fold, state: StepState, action: str) -> None:
    assert fold.workflow is not None
    approval, instance = fold.workflow.document.by_id[state.id].approval, fold.instance
    assert approval is not None and state.approval_id is not None and state.content_sha256 is not None
    assert state.started_at is not None and state.deadline_at is not None
    asked = state.output or {}
    version = instance.state_version + 1
    fold.send(
        ApprovalAsked(
            approval_id=state.approval_id,
            workflow_id=instance.workflow_id,
            saga_id=instance.saga_id,
            tenant=instance.tenant,
            step_id=state.id,
            action=action,
            scope=approval.scope,
            content_sha256=state.content_sha256,
            binds=asked.get("binds", []),
            summary=asked.get("summary", {}),
            requested_by=instance.subject,
            owner=approval.owner,
            backup_owner=approval.backup,
            definition=instance.definition,
            version=instance.version,
            document_sha256=instance.sha256,
            state_version=version,
            asked_at=state.started_at,
            expires_at=state.deadline_at,
        ),
        message_id=f"{state.approval_id}:{action}" + (f":{version}" if action == "expire" else ""),
        subject=event_subject(SOURCE, "approval", instance.tenant),
    )


def withdraw(fold: Fold, state: StepState) -> None:
    """Nobody needs to answer any more."""
    if state.kind is StepKind.APPROVAL:
        _ask(fold, state, "withdraw")
    fold.case_note("WaitWithdrawn", step_id=state.id)
    fold.step(state.id, phase=StepPhase.WITHDRAWN, wake_at=None, ended_at=fold.moment.business)


_PHASE_OF_DECISION: Final[dict[str, tuple[StepPhase, StepOutcome | None]]] = {
    "approved": (StepPhase.DONE, None),
    "rejected": (StepPhase.FAILED, StepOutcome.REJECTED),
    "expired": (StepPhase.FAILED, StepOutcome.TIMEOUT),
    "withdrawn": (StepPhase.WITHDRAWN, None),
    "superseded": (StepPhase.WITHDRAWN, None),
}


_ECHOES: Final = frozenset({"withdrawn", "superseded"})


def fold_approval(fold: Fold, decided: ApprovalDecided, cause: str | None) -> None:
    """How an approval ended, as its row arbitrated it. Only the approval that the step waits for moves it."""
    state = fold.steps.get(decided.step_id)
    if state is not None and state.phase is StepPhase.WITHDRAWN and decided.outcome in _ECHOES:
        return  # our own withdrawal comes back
    waits = state is not None and state.phase is StepPhase.WAITING and state.approval_id == decided.approval_id
    same = state is not None and state.content_sha256 == decided.content_sha256
    known = decided.outcome in _PHASE_OF_DECISION
    fold.case_note(
        "ApprovalDecided" if waits and same and known else "LateApprovalReceived",
        actor=decided.reviewer or "gateway",
        at=decided.decided_at,
        cause=cause,
        step_id=decided.step_id,
        approval_id=decided.approval_id,
        outcome=decided.outcome,
        content_sha256=decided.content_sha256,
        decision_id=decided.decision_id,
        reason=decided.reason,
    )
    if state is None or not (waits and same and known):
        return
    phase, outcome = _PHASE_OF_DECISION[decided.outcome]
    fold.step(
        state.id,
        phase=phase,
        outcome=outcome,
        reason=decided.reason,
        wake_at=None,
        ended_at=fold.moment.business,
        output={
            "approved": phase is StepPhase.DONE,
            "reviewer": decided.reviewer,
            "content_sha256": decided.content_sha256,
            "decided_at": rfc3339(decided.decided_at),
            "decision_id": decided.decision_id,
        },
    )


def fold_timers(fold: Fold) -> None:
    """Waits whose time is over: an event's wait ends, an approval's row is asked to expire."""
    now = fold.moment.business
    for state in list(fold.steps.values()):
        if state.wake_at is None or state.wake_at > now:
            continue
        if state.phase is not StepPhase.WAITING:
            again = now + timedelta(seconds=ATTACHED_POLL_SECONDS)
            fold.step(state.id, wake_at=again if state.attached and state.phase is StepPhase.RUNNING else None)
        elif state.kind is StepKind.APPROVAL:
            fold.case_note("ApprovalExpiryAsked", step_id=state.id, approval_id=state.approval_id)
            _ask(fold, state, "expire")
            fold.step(state.id, wake_at=now + timedelta(seconds=ASK_AGAIN_SECONDS))
        else:
            fold.case_note("WaitTimedOut", step_id=state.id)
            fold.step(
                state.id,
                phase=StepPhase.FAILED,
                outcome=StepOutcome.TIMEOUT,
                reason="nothing came in time",
                wake_at=None,
                ended_at=now,
            )


def describe_wait(fold: Fold) -> dict[str, Any] | None:
    """What the case waits for, for people: the wait with the nearest deadline."""
    assert fold.workflow is not None
    if fold.instance.status in INSTANCE_TERMINAL:
        return None
    if not fold.instance.locked:
        return _lock_wait(fold)
    waiting = [state for state in fold.steps.values() if state.phase is StepPhase.WAITING]
    if not waiting:
        return _attached_wait(fold) or _paused_wait(fold)
    state = min(waiting, key=lambda item: (item.deadline_at or fold.instance.deadline_at, item.id))
    step = fold.workflow.document.by_id[state.id]
    rule = step.approval or step.wait
    assert rule is not None
    return {
        "reason": "approval" if step.approval else "signal",
        "expects": step.approval.scope if step.approval else step.wait.event if step.wait else None,
        "step_id": state.id,
        "approval_id": state.approval_id,
        "owner": rule.owner,
        "backup_owner": rule.backup,
        "deadline": rfc3339(state.deadline_at) if state.deadline_at else None,
        "next_wake_at": rfc3339(state.wake_at) if state.wake_at else None,
    }


def _attached_wait(fold: Fold) -> dict[str, Any] | None:
    """A step that waits for another case's operation, where nothing else is waited for."""
    attached = [state for state in fold.steps.values() if state.attached and state.phase is StepPhase.RUNNING]
    if not attached:
        return None
    state = attached[0]
    return {
        "reason": "other_case",
        "expects": state.command_id,
        "step_id": state.id,
        "approval_id": None,
        "owner": fold.terms.exception_owner,
        "backup_owner": None,
        "deadline": rfc3339(fold.instance.deadline_at),
        "next_wake_at": rfc3339(state.wake_at) if state.wake_at else None,
    }


def _paused_wait(fold: Fold) -> dict[str, Any] | None:
    """A pause, where nothing else is waited for: somebody has to end it."""
    if fold.instance.paused is None:
        return None
    return {
        "reason": "paused",
        "expects": "resume",
        "step_id": None,
        "approval_id": None,
        "owner": fold.terms.exception_owner,
        "backup_owner": None,
        "deadline": rfc3339(fold.instance.deadline_at),
        "next_wake_at": None,
    }


def _lock_wait(fold: Fold) -> dict[str, Any]:
    wake = fold.instance.wake_at
    return {
        "reason": "lock",
        "expects": fold.instance.locks[0] if fold.instance.locks else None,
        "step_id": None,
        "approval_id": None,
        "owner": fold.terms.exception_owner,
        "backup_owner": None,
        "deadline": rfc3339(fold.instance.deadline_at),
        "next_wake_at": rfc3339(wake) if wake else None,
    }
