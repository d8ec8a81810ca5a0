"""The states of one operation: one table says every transition, and what it does not say cannot happen.

A transition is named by its trigger. `move` looks the pair up and raises IllegalTransition where there is none; nothing
else in this service may set a state.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.states import SETTLED, OperationState


class Trigger(StrEnum):
    """What may move an operation."""

    TAKE_UP = "take_up"
    ADMIT = "admit"
    REFUSE = "refuse"
    CONFLICT = "conflict"
    ENQUEUE = "enqueue"
    DISPATCH = "dispatch"
    REFUSE_GRANT = "refuse_grant"
    PASS_DEADLINE = "pass_deadline"
    DOUBT = "doubt"
    START = "start"
    RETURN_UNSENT = "return_unsent"
    LOSE_START = "lose_start"
    LOSE_LEASE = "lose_lease"
    CONFIRM = "confirm"
    REJECT_TRANSIENT = "reject_transient"
    REJECT_PERMANENT = "reject_permanent"
    LEAVE_UNKNOWN = "leave_unknown"
    FALL_DUE = "fall_due"
    EXHAUST = "exhaust"
    BEAT = "beat"
    RECONCILE = "reconcile"
    PROVE_ABSENT = "prove_absent"
    PROVE_FAILED = "prove_failed"
    PROVE_CANCELLED = "prove_cancelled"
    GIVE_UP = "give_up"
    RETRY_BY_PERSON = "retry_by_person"
    SETTLE_EXISTS = "settle_exists"
    SETTLE_ABSENT = "settle_absent"
    RESOLVE = "resolve"
    CANCEL = "cancel"


class IllegalTransition(ValueError):
    """A trigger that this state does not know. Nothing was changed."""

    def __init__(self, state: OperationState, trigger: Trigger) -> None:
        super().__init__(f"{state} does not know {trigger}")
        self.state = state
        self.trigger = trigger


S = OperationState
T = Trigger

_OUTCOME: Final = {
    T.CONFIRM: S.SUCCESS,
    T.REJECT_TRANSIENT: S.RETRY_PENDING,
    T.REJECT_PERMANENT: S.FAILED,
    T.CONFLICT: S.CONFLICT,
    T.LEAVE_UNKNOWN: S.OUTCOME_UNKNOWN,
}
"""What an attempt's own outcome leads to, from wherever the attempt may be in flight."""

_BY_PERSON: Final = {
    T.RETRY_BY_PERSON: S.QUEUED,
    T.SETTLE_EXISTS: S.SUCCESS,
    T.SETTLE_ABSENT: S.FAILED,
    T.RESOLVE: S.RESOLVED,
}
"""What only an operator's or repair's command may do with an operation that ended badly."""

_ROWS: Final[dict[OperationState, dict[Trigger, OperationState]]] = {
    S.RECEIVED: {T.TAKE_UP: S.VALIDATING, T.CANCEL: S.CANCELLED},
    S.VALIDATING: {T.ADMIT: S.AUTHORIZED, T.REFUSE: S.FAILED, T.CONFLICT: S.CONFLICT, T.CANCEL: S.CANCELLED},
    S.AUTHORIZED: {T.ENQUEUE: S.QUEUED, T.CANCEL: S.CANCELLED},
    S.QUEUED: {
        T.DISPATCH: S.DISPATCHING,
        T.REFUSE_GRANT: S.FAILED,
        T.PASS_DEADLINE: S.DEAD_LETTERED,
        T.DOUBT: S.OUTCOME_UNKNOWN,
        T.CANCEL: S.CANCELLED,
    },
    S.DISPATCHING: {
        T.START: S.RUNNING,
        T.RETURN_UNSENT: S.QUEUED,
        T.LOSE_START: S.ORPHAN_SUSPECTED,
        T.CANCEL: S.DISPATCHING,
    },
    S.RUNNING: {
        **_OUTCOME,
        T.RETURN_UNSENT: S.QUEUED,
        T.LOSE_LEASE: S.ORPHAN_SUSPECTED,
        T.CANCEL: S.RUNNING,
    },
    S.RETRY_PENDING: {T.FALL_DUE: S.QUEUED, T.EXHAUST: S.DEAD_LETTERED, T.CANCEL: S.CANCELLED},
    S.OUTCOME_UNKNOWN: {**_OUTCOME, T.BEAT: S.RUNNING, T.RECONCILE: S.RECONCILING, T.CANCEL: S.OUTCOME_UNKNOWN},
    S.ORPHAN_SUSPECTED: {
        **_OUTCOME,
        T.RETURN_UNSENT: S.QUEUED,
        T.BEAT: S.RUNNING,
        T.RECONCILE: S.RECONCILING,
        T.CANCEL: S.ORPHAN_SUSPECTED,
    },
    S.RECONCILING: {
        T.CONFIRM: S.SUCCESS,
        T.PROVE_ABSENT: S.RETRY_PENDING,
        T.PROVE_FAILED: S.FAILED,
        T.PROVE_CANCELLED: S.CANCELLED,
        T.GIVE_UP: S.NEEDS_REVIEW,
        T.CANCEL: S.RECONCILING,
    },
    S.FAILED: {**_BY_PERSON},
    S.CONFLICT: {**_BY_PERSON},
    S.DEAD_LETTERED: {**_BY_PERSON},
    S.NEEDS_REVIEW: {**_BY_PERSON},
    S.SUCCESS: {},
    S.CANCELLED: {},
    S.RESOLVED: {},
}

Table = Mapping[tuple[OperationState, Trigger], OperationState]

TABLE: Final[Table] = MappingProxyType(
    {(state, trigger): after for state, row in _ROWS.items() for trigger, after in row.items()}
)
"""The transition table: (state, trigger) → state."""

BEFORE_SENDING: Final = frozenset({S.RECEIVED, S.VALIDATING, S.AUTHORIZED, S.QUEUED})
"""Nothing of this operation is on its way (a QUEUED one only while it is not proposed)."""

IN_FLIGHT: Final = frozenset({S.DISPATCHING, S.RUNNING})
"""An attempt is out and holds a lease."""

UNDECIDED: Final = frozenset({S.OUTCOME_UNKNOWN, S.ORPHAN_SUSPECTED, S.RECONCILING})
"""Only looking can tell what happened; a settlement is in flight."""

PERSONS: Final = frozenset({S.FAILED, S.CONFLICT, S.DEAD_LETTERED, S.NEEDS_REVIEW})
"""Ended badly: a person owns what follows."""


def move(state: OperationState, trigger: Trigger) -> OperationState:
    """The state after a trigger. Raises IllegalTransition."""
    after = TABLE.get((state, trigger))
    if after is None:
        raise IllegalTransition(state, trigger)
    return after


def knows(state: OperationState, trigger: Trigger) -> bool:
    """True where the table has this pair."""
    return (state, trigger) in TABLE


def mermaid(table: Table = TABLE) -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> RECEIVED"]
    edges: dict[tuple[OperationState, OperationState], list[Trigger]] = {}
    for (state, trigger), after in table.items():
        if state is not after:
            edges.setdefault((state, after), []).append(trigger)
    lines += [f"    {state} --> {after}: {', '.join(triggers)}" for (state, after), triggers in edges.items()]
    lines += [f"    {state} --> [*]" for state in OperationState if state in SETTLED]
    return "\n".join(lines) + "\n"
