"""The recovery decision table: what may follow a situation, given where the case stands with its pivot.

Backwards before the pivot, forwards after it, and no backward step while anything is in flight or unknown. A cell that
the table leaves open (None) says nothing: a step that runs beside an undecided pivot can meet it, and waits.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import EffectClass, OperationState


class Situation(StrEnum):
    """What happened."""

    TRANSIENT = "transient, budget and deadline left"
    UNKNOWN = "outcome unknown"
    ABSENT = "proved absent, approval holds"
    PERMANENT = "permanent or business failure"
    EXHAUSTED = "budget or deadline exhausted"
    AMBIGUOUS = "high risk and ambiguous"


class Pivot(StrEnum):
    """Where the case stands with its pivot."""

    NO = "no"
    UNKNOWN = "unknown"
    PASSED = "passed"


class Action(StrEnum):
    """What may follow."""

    RETRY = "retry"
    RECONCILE = "reconcile"
    RESEND = "resend, fresh grant"
    COMPENSATE = "compensate in reverse"
    WAIT = "wait for the verdict"
    FORWARD = "forward: repair, person"
    DEAD_LETTER_BACKWARD = "dead letter, then compensate or person by document"
    DEAD_LETTER_FORWARD = "dead letter, repair; never undo"
    PERSON = "person"


TABLE: Final[Mapping[tuple[Situation, Pivot], Action | None]] = MappingProxyType(
    {
        (Situation.TRANSIENT, Pivot.NO): Action.RETRY,
        (Situation.TRANSIENT, Pivot.UNKNOWN): None,
        (Situation.TRANSIENT, Pivot.PASSED): Action.RETRY,
        (Situation.UNKNOWN, Pivot.NO): Action.RECONCILE,
        (Situation.UNKNOWN, Pivot.UNKNOWN): Action.RECONCILE,
        (Situation.UNKNOWN, Pivot.PASSED): Action.RECONCILE,
        (Situation.ABSENT, Pivot.NO): Action.RESEND,
        (Situation.ABSENT, Pivot.UNKNOWN): None,
        (Situation.ABSENT, Pivot.PASSED): Action.RESEND,
        (Situation.PERMANENT, Pivot.NO): Action.COMPENSATE,
        (Situation.PERMANENT, Pivot.UNKNOWN): Action.WAIT,
        (Situation.PERMANENT, Pivot.PASSED): Action.FORWARD,
        (Situation.EXHAUSTED, Pivot.NO): Action.DEAD_LETTER_BACKWARD,
        (Situation.EXHAUSTED, Pivot.UNKNOWN): Action.WAIT,
        (Situation.EXHAUSTED, Pivot.PASSED): Action.DEAD_LETTER_FORWARD,
        (Situation.AMBIGUOUS, Pivot.NO): Action.PERSON,
        (Situation.AMBIGUOUS, Pivot.UNKNOWN): Action.PERSON,
        (Situation.AMBIGUOUS, Pivot.PASSED): Action.PERSON,
    }
)

BACKWARD: Final = frozenset({Action.COMPENSATE, Action.DEAD_LETTER_BACKWARD})
"""Actions that undo something."""

_PIVOTAL: Final = frozenset({EffectClass.PIVOT, EffectClass.IRREVERSIBLE})

_OPEN: Final = frozenset(
    {
        OperationState.DISPATCHING,
        OperationState.RUNNING,
        OperationState.OUTCOME_UNKNOWN,
        OperationState.ORPHAN_SUSPECTED,
        OperationState.RECONCILING,
        OperationState.NEEDS_REVIEW,
    }
)


def action(situation: Situation, pivot: Pivot) -> Action:
    """What may follow. Raises LookupError for a cell that the table leaves open."""
    found = TABLE[situation, pivot]
    if found is None:
        raise LookupError(f"nothing is laid down for {situation} beside a pivot that is {pivot}")
    return found


def pivot_of(effect_class: EffectClass, state: OperationState, *, proposed: bool = False) -> Pivot:
    """What one operation says about the pivot: passed once it succeeded, unknown while it may have happened."""
    if effect_class not in _PIVOTAL:
        return Pivot.NO
    if state is OperationState.SUCCESS:
        return Pivot.PASSED
    return Pivot.UNKNOWN if state in _OPEN or proposed else Pivot.NO


_PIVOT_RANK: Final = (Pivot.NO, Pivot.UNKNOWN, Pivot.PASSED)


def pivot_of_all(rows: Iterable[JournalRow]) -> Pivot:
    """What a whole case says about its pivot; what its own compensation does is no pivot."""
    said = [pivot_of(row.effect_class, row.state, proposed=row.proposed) for row in rows if row.compensates is None]
    return max(said, key=_PIVOT_RANK.index, default=Pivot.NO)


def markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| situation | before the pivot | pivot unknown | after the pivot |", "|---|---|---|---|"]
    for situation in Situation:
        cells = " | ".join(str(TABLE[situation, pivot] or "–") for pivot in Pivot)
        lines.append(f"| {situation} | {cells} |")
    return "\n".join(lines) + "\n"
