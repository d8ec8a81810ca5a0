"""Pausing: what is queued is held back while its case is paused; what is out settles as ever."""

from trueup_common.contracts.states import OperationState
from trueup_orchestrator.core.fold import Fold


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
