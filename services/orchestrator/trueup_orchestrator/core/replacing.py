"""A command in the place of one that ended without its effect: what that one still owes is over, and says so.

The trouble has moved to the younger command, which owes for itself; of what succeeded nothing is taken back.
"""

from collections.abc import Iterable
from typing import Final

from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import CompensationState, OperationState
from trueup_common.contracts.workflow import Direction
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.operation import Trigger

SUPERSEDED: Final = "superseded"
OWING: Final = frozenset({OperationState.FAILED, OperationState.CONFLICT, OperationState.DEAD_LETTERED})
"""Ends that a person still has to deal with, and of which it is known that nothing happened."""


def taken_back(rows: Iterable[JournalRow], cases: Iterable[InstanceRow]) -> set[str]:
    """The operations whose effect their own case undoes, or has undone: a repair of one would put there again what
    nobody answers for any more. What does the undoing stands, and may be repaired."""
    backward = {case.workflow_id for case in cases if case.direction == Direction.BACKWARD}
    return {
        row.command_id
        for row in rows
        if row.compensation_state is not CompensationState.NONE
        or (row.workflow_id in backward and row.compensation_command is not None and row.compensates is None)
    }


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
