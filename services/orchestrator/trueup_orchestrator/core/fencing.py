"""Fencing: what was not sent never will be; what may be out is marked, so that its absence ends it."""

from typing import Final

from trueup_common.contracts.states import OperationState
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.operation import Trigger

_UNSENT: Final = frozenset(
    {
        OperationState.RECEIVED,
        OperationState.VALIDATING,
        OperationState.AUTHORIZED,
        OperationState.QUEUED,
        OperationState.RETRY_PENDING,
    }
)


def fence(fold: Fold, command_id: str, reason: str) -> None:
    """Cancel an operation that was not sent; mark one that may be out, so that its absence ends it."""
    row = fold.at(command_id).operation
    if not fold.knows(Trigger.CANCEL) or (row.cancel_requested and row.state not in _UNSENT):
        return
    if row.proposed or row.state not in _UNSENT:
        if not row.cancel_requested:
            fold.set(cancel_requested=True)
        return
    if barred(row):
        fold.set(cancel_requested=True, wake_at=fold.moment.business, next_retry_at=fold.moment.business)
        return
    fold.own_note("EffectWithdrawn", reason=reason)
    fold.set(cancel_requested=True)
    fold.move(Trigger.CANCEL)
