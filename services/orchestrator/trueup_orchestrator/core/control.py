"""What people ask of a case as a whole: cancel, pause, resume. The case decides when and whether it can."""

from typing import Final

from trueup_common.contracts.events import ControlAsked
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import INSTANCE_TERMINAL, OperationState
from trueup_orchestrator.core.due import fold_cancel
from trueup_orchestrator.core.fold import Fold

CANCEL: Final = "cancel"
PAUSE: Final = "pause"
RESUME: Final = "resume"

_EVENTS: Final = {CANCEL: "CancelRequested", PAUSE: "CasePaused", RESUME: "CaseResumed"}


def fold_control(fold: Fold, asked: ControlAsked, cause: str | None) -> None:
    """Take up what is asked, once; what does not fit the state any more is noted and changes nothing."""
    if fold.workflow is None:
        if asked.action == CANCEL:
            fold_cancel(fold, reason=asked.reason, actor=asked.actor, cause=cause)
        return
    instance = fold.instance
    fits = {
        CANCEL: instance.cancel is None,
        PAUSE: instance.paused is None,
        RESUME: instance.paused is not None,
    }.get(asked.action, False)
    if instance.status in INSTANCE_TERMINAL or not fits:
        fold.case_note("ControlWithoutEffect", actor=asked.actor, at=asked.at, cause=cause, action=asked.action)
        return
    fold.case_note(
        _EVENTS[asked.action],
        actor=asked.actor,
        at=asked.at,
        cause=cause,
        reason=asked.reason,
        control_id=asked.control_id,
    )
    entry = {"actor": asked.actor, "reason": asked.reason, "at": rfc3339(asked.at), "control_id": asked.control_id}
    if asked.action == CANCEL:
        fold.instance = instance.evolve(cancel=entry)
    else:
        fold.instance = instance.evolve(paused=entry if asked.action == PAUSE else None)


def hold(fold: Fold) -> None:
    """Keep queued effects from being dispatched while the case is paused; what is out settles as ever."""
    paused = fold.instance.paused is not None
    for row in list(fold.operations.values()):
        if row.state is not OperationState.QUEUED or row.proposed or row.compensates is not None:
            continue
        if paused and row.next_retry_at != row.deadline_at:
            fold.at(row.command_id).set(next_retry_at=row.deadline_at)
        elif not paused and row.next_retry_at == row.deadline_at:
            fold.at(row.command_id).set(next_retry_at=None)
