"""A command in the place of one that ended without its effect: what that one still owes is over, and says so.

The trouble has moved to the younger command, which owes for itself; of what succeeded nothing is taken back.
"""

from typing import Final

from trueup_common.contracts.states import OperationState
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.operation import Trigger

SUPERSEDED: Final = "superseded"
OWING: Final = frozenset({OperationState.FAILED, OperationState.CONFLICT, OperationState.DEAD_LETTERED})
"""Ends that a person still has to deal with, and of which it is known that nothing happened."""


def supersede(fold: Fold, by: str) -> None:
    """Another command took the place of this one."""
    if fold.workflow is not None or fold.state not in OWING:
        return
    fold.own_note("CommandSuperseded", superseded_by=by)
    fold.move(
        Trigger.RESOLVE,
        resolved_at=fold.moment.business,
        resolution_type=SUPERSEDED,
        human_review_required=False,
    )
