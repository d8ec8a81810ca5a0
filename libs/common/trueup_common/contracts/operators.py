"""What people and repairs may do with what is stuck: one table, asked by the gateway and again by whoever performs it.

A row names the actions that a state admits, a guard takes one away where a fact forbids it. What is in neither is not
possible. Nothing here sends anything: an action is a command with a decision of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.journal import InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import INSTANCE_TERMINAL, ExceptionKind, InstanceStatus, OperationState
from trueup_common.contracts.workflow import Direction


class OperatorAction(StrEnum):
    """The closed list of what an operator or a repair may ask for. There is no "run any tool"."""

    RETRY = "RETRY"
    RECONCILE = "RECONCILE"
    REDRIVE = "REDRIVE"
    REPAIR = "REPAIR"
    COMPENSATE = "COMPENSATE"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    CANCEL = "CANCEL"
    MARK_RESOLVED = "MARK_RESOLVED"
    ESCALATE = "ESCALATE"
    ASSIGN = "ASSIGN"
    SETTLE = "SETTLE"
    TAKE_OVER = "TAKE_OVER"
    HAND_BACK = "HAND_BACK"


class TargetKind(StrEnum):
    """What an action may be about."""

    COMMAND = "command"
    WORKFLOW = "workflow"
    EXCEPTION = "exception"
    DEAD_LETTER = "dead_letter"
    REPAIR = "repair"


class CommandState(StrEnum):
    """Where an operator command stands."""

    ACCEPTED = "ACCEPTED"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """Whoever performs it has taken it up; its end is still to come."""
    DONE = "DONE"
    REFUSED = "REFUSED"


class Settled(StrEnum):
    """How a person settles what nobody else can know."""

    EXISTS = "EXISTS"
    ABSENT = "ABSENT"
    CLOSE = "CLOSE"


A = OperatorAction
S = OperationState
Actions = tuple[OperatorAction, ...]

IN_HAND: Final = "running"
"""`operator_status` of an operation on which an operator command is at work."""
ENDED: Final = "done"
SETTLED_ABSENT: Final = "settled_absent"
"""`resolution_type` where a person found that nothing is there: sending it again needs a new approval."""
UNVERIFIED: Final = "unverified"
"""Failure code of what a case owes that was still not observed to hold at its deadline."""
UNDOING: Final = "undoing"
"""Member of a failure's envelope while its case takes back, by its document, all that it caused: the failure ends with
that, and nobody repairs it meanwhile. Reported anew as false the moment that this goes on no more by itself."""
INVARIANT: Final = "invariant_"
"""How the failure code of a broken invariant begins: the plane itself is at fault, and no case can end it."""

SENDS: Final = frozenset({A.RETRY, A.REDRIVE, A.COMPENSATE})
"""Actions after which an operation may be sent again."""

REPAIRS: Final = frozenset({A.RETRY, A.RECONCILE, A.REDRIVE, A.REPAIR, A.COMPENSATE, A.SETTLE, A.MARK_RESOLVED})
"""Actions of which one at a time may be at work on the same thing."""

REPAIRERS: Final = frozenset({A.RECONCILE, A.REDRIVE})
"""All that the planner's own identity asks for, and so all that it may ask for: the rest is a person's."""

RENEWS: Final = frozenset({A.RETRY, A.REDRIVE, A.HAND_BACK, A.RESUME})
"""Actions that give new time: their decision renews a mandate that ran out."""

_PERSONS: Final = frozenset({S.FAILED, S.CONFLICT, S.DEAD_LETTERED, S.NEEDS_REVIEW})
_MOVING: Final = (A.CANCEL,)
_AGAIN: Final = (A.RETRY, A.RECONCILE, A.REDRIVE, A.COMPENSATE, A.MARK_RESOLVED, A.SETTLE)

OPERATION: Final[Mapping[OperationState, Actions]] = MappingProxyType(
    {
        S.RECEIVED: _MOVING,
        S.VALIDATING: _MOVING,
        S.AUTHORIZED: _MOVING,
        S.QUEUED: _MOVING,
        S.DISPATCHING: _MOVING,
        S.RUNNING: _MOVING,
        S.RETRY_PENDING: (A.RETRY, A.CANCEL),
        S.OUTCOME_UNKNOWN: _MOVING,
        S.ORPHAN_SUSPECTED: _MOVING,
        S.RECONCILING: _MOVING,
        S.FAILED: _AGAIN,
        S.DEAD_LETTERED: _AGAIN,
        S.NEEDS_REVIEW: (A.RECONCILE, A.REDRIVE, A.COMPENSATE, A.MARK_RESOLVED, A.SETTLE),
        S.CONFLICT: (A.COMPENSATE, A.MARK_RESOLVED, A.SETTLE),
        S.SUCCESS: (A.MARK_RESOLVED, A.SETTLE),
        S.CANCELLED: (A.MARK_RESOLVED, A.SETTLE),
        S.RESOLVED: (),
    }
)
"""What the state of an operation admits."""

CASE: Final[Mapping[InstanceStatus, Actions]] = MappingProxyType(
    {
        InstanceStatus.RUNNING: (A.PAUSE, A.CANCEL, A.TAKE_OVER),
        InstanceStatus.WAITING: (A.PAUSE, A.CANCEL, A.TAKE_OVER),
        InstanceStatus.PAUSED: (A.RESUME, A.CANCEL, A.TAKE_OVER),
        InstanceStatus.CANCEL_PENDING: (),
        InstanceStatus.COMPENSATING: (A.MARK_RESOLVED,),
        InstanceStatus.HUMAN_TAKEOVER: (A.COMPENSATE, A.RESUME, A.CANCEL, A.MARK_RESOLVED, A.HAND_BACK),
        InstanceStatus.VERIFYING: (A.MARK_RESOLVED,),
        **dict.fromkeys(INSTANCE_TERMINAL, ()),
        InstanceStatus.SAFE_STOPPED: (A.MARK_RESOLVED,),
    }
)
"""What the status of a workflow admits. Of a single command's case its operation decides."""

_DUTY: Final = (A.ESCALATE, A.ASSIGN)
EXCEPTION: Final[Mapping[ExceptionKind, Actions]] = MappingProxyType(
    {
        **dict.fromkeys(ExceptionKind, (A.REPAIR, *_DUTY)),
        ExceptionKind.STATE_DRIFT: (A.RECONCILE, A.REPAIR, A.MARK_RESOLVED, *_DUTY),
        ExceptionKind.QUARANTINED_MESSAGE: (A.MARK_RESOLVED, *_DUTY),
        ExceptionKind.QUARANTINED_CALLBACK: (A.MARK_RESOLVED, *_DUTY),
    }
)
"""What an open exception admits by itself; to it comes what its operation, or its case as a whole, admits."""

APART: Final = frozenset(
    {ExceptionKind.STATE_DRIFT, ExceptionKind.QUARANTINED_MESSAGE, ExceptionKind.QUARANTINED_CALLBACK}
)
"""Exceptions that are not the trouble of an operation or a case: nothing of theirs helps."""


@record
class CaseFacts:
    """What the table must know of a case.

    `revoked`: the authority behind it was taken back. `unverified`: what it owes was not observed in time.
    """

    single: bool
    status: InstanceStatus
    direction: Direction
    pivot: str
    revoked: bool = False
    unverified: bool = False


@record
class OperationFacts:
    """What the table must know of an operation.

    `touched`: an attempt was sent, or may have been. `alert`: a person must look although the state alone does not say
    so. `undoes`: it is the compensation of another one. `replaced`: another command has its business identity by now.
    """

    state: OperationState
    touched: bool
    findable: bool = True
    alert: bool = False
    undoes: bool = False
    settled_absent: bool = False
    replaced: bool = False


@record
class ExceptionFacts:
    """What the table must know of an exception."""

    kind: ExceptionKind
    is_open: bool


@record
class Facts:
    """Everything about one target."""

    case: CaseFacts | None = None
    operation: OperationFacts | None = None
    exception: ExceptionFacts | None = None


def maybe_sent(row: JournalRow) -> bool:
    """True where an attempt was sent, or nobody can say that it was not."""
    return any(item.get("sent") or item["state"] not in ("NOT_SENT", "ABSENT", "REJECTED") for item in row.attempts)


def operation_facts(
    row: JournalRow, *, findable: bool = True, alert: bool = False, replaced: bool = False
) -> OperationFacts:
    """The facts of a journal row."""
    return OperationFacts(
        state=row.state,
        touched=maybe_sent(row),
        findable=findable,
        alert=alert,
        undoes=row.compensates is not None,
        settled_absent=row.resolution_type == SETTLED_ABSENT,
        replaced=replaced,
    )


def is_unverified(obligations: Iterable[ObligationRow]) -> bool:
    """True where a case owes a person's look at what was not observed in time."""
    return any(item.status == "open" and item.envelope.get("failure_code") == UNVERIFIED for item in obligations)


def case_facts(instance: InstanceRow, *, revoked: bool = False, unverified: bool = False) -> CaseFacts:
    """The facts of a case."""
    return CaseFacts(
        single=instance.definition == "command",
        status=instance.status,
        direction=Direction(instance.direction),
        pivot=instance.pivot,
        revoked=revoked,
        unverified=unverified,
    )


def is_paused(case: CaseFacts) -> bool:
    """True where nothing of the case is sent before somebody resumes it: what was asked for would only wait, and hold
    back everybody else."""
    return case.status is InstanceStatus.PAUSED


def _goes_its_way(case: CaseFacts, operation: OperationFacts) -> bool:
    """True where the case still goes the way that the operation belongs to, or stands in a person's hands before it."""
    if case.status in INSTANCE_TERMINAL:
        return False
    if operation.undoes:
        return case.pivot != "passed" and case.direction in (Direction.BACKWARD, Direction.PERSON)
    return case.single or case.direction in (Direction.FORWARD, Direction.PERSON)


def _may_send(case: CaseFacts, operation: OperationFacts) -> bool:
    permitted = operation.undoes or not case.revoked  # undoing is its own permission and outlives a revocation
    barred = operation.settled_absent or operation.replaced or (is_paused(case) and not operation.undoes)
    return permitted and not barred and _goes_its_way(case, operation)


def _may_settle(case: CaseFacts, operation: OperationFacts) -> bool:
    if operation.state in (S.SUCCESS, S.CANCELLED):
        return operation.alert
    return case.status not in INSTANCE_TERMINAL or case.status is InstanceStatus.SAFE_STOPPED or operation.alert


def _may_close(case: CaseFacts, operation: OperationFacts) -> bool:
    """Of a case that is over, too: a FAILED operation owes nothing then, a dead letter or a conflict is still owed."""
    persons = operation.state in (S.DEAD_LETTERED, S.CONFLICT, S.NEEDS_REVIEW)
    return persons or _may_settle(case, operation)


Guard = Callable[[CaseFacts, OperationFacts], bool]

OPERATION_GUARDS: Final[Mapping[OperatorAction, Guard]] = MappingProxyType(
    {
        A.RETRY: lambda case, row: _may_send(case, row) and (row.state is S.RETRY_PENDING or not row.touched),
        A.REDRIVE: lambda case, row: _may_send(case, row) and (row.findable or not row.touched),
        A.COMPENSATE: lambda case, row: row.undoes and _may_send(case, row) and (row.findable or not row.touched),
        A.RECONCILE: lambda case, row: row.touched and row.findable and _goes_its_way(case, row),
        A.CANCEL: lambda case, row: case.single and case.status is not InstanceStatus.CANCEL_PENDING,
        A.SETTLE: _may_settle,
        A.MARK_RESOLVED: _may_close,
    }
)
"""Where an action that the state admits is possible after all."""

_OURS: Final = (Direction.FORWARD, Direction.PERSON)
_LOOKED_AT: Final = frozenset({InstanceStatus.VERIFYING, InstanceStatus.COMPENSATING})
"""What the plane is at work on by itself: a person closes it only where it could not be observed in time."""

CASE_GUARDS: Final[Mapping[OperatorAction, Callable[[CaseFacts], bool]]] = MappingProxyType(
    {
        A.COMPENSATE: lambda case: case.pivot == "no" and case.direction in _OURS,
        A.RESUME: lambda case: case.status is InstanceStatus.PAUSED or (not case.revoked and case.direction in _OURS),
        A.CANCEL: lambda case: (
            case.direction is Direction.FORWARD or (case.pivot == "no" and case.direction is Direction.PERSON)
        ),
        A.HAND_BACK: lambda case: not case.revoked and case.direction is Direction.PERSON,
        A.MARK_RESOLVED: lambda case: case.pivot != "unknown" and (case.status not in _LOOKED_AT or case.unverified),
    }
)


def _of_operation(case: CaseFacts, operation: OperationFacts) -> set[OperatorAction]:
    return {
        action
        for action in OPERATION[operation.state]
        if action not in OPERATION_GUARDS or OPERATION_GUARDS[action](case, operation)
    }


def _of_case(case: CaseFacts) -> set[OperatorAction]:
    return {action for action in CASE[case.status] if action not in CASE_GUARDS or CASE_GUARDS[action](case)}


def _of_exception(exception: ExceptionFacts, facts: Facts) -> set[OperatorAction]:
    if not exception.is_open:
        return set()
    found = set(EXCEPTION[exception.kind])
    if exception.kind in APART:
        return found
    if stands_alone(facts):
        return {A.MARK_RESOLVED, *_DUTY}
    if facts.case is not None and facts.operation is not None:
        found |= _of_operation(facts.case, facts.operation)
    elif facts.case is not None and not facts.case.single:
        found |= _of_case(facts.case)
    paused = facts.case is not None and is_paused(facts.case)
    if paused or not found & {A.REDRIVE, A.RECONCILE, A.COMPENSATE}:
        found.discard(A.REPAIR)
    return found


def stands_alone(facts: Facts) -> bool:
    """True for an exception that nothing of an operation or a case can end: it is about none, or about one that is over
    and owes nothing (the plane itself is at fault). Who looked into it ends it."""
    case, operation = facts.case, facts.operation
    if facts.exception is not None and facts.exception.kind in APART:
        return False
    if case is None:
        return operation is None
    if case.status not in INSTANCE_TERMINAL:
        return False
    return not (_of_operation(case, operation) if operation is not None else _of_case(case))


def allowed(kind: TargetKind, facts: Facts) -> Actions:
    """The actions that are possible on a target right now, in the order of their list."""
    case, operation = facts.case, facts.operation
    match kind:
        case TargetKind.EXCEPTION | TargetKind.DEAD_LETTER:
            found = _of_exception(facts.exception, facts) if facts.exception is not None else set()
        case TargetKind.COMMAND:
            found = _of_operation(case, operation) if case is not None and operation is not None else set()
        case TargetKind.WORKFLOW:
            if case is None:
                found = set()
            elif case.single:
                found = _of_operation(case, operation) if operation is not None else set()
            else:
                found = _of_case(case)
        case TargetKind.REPAIR:
            ours = _of_exception(facts.exception, facts) if facts.exception is not None else set()
            found = ours & {A.REPAIR, *_DUTY}
    return tuple(action for action in OperatorAction if action in found)


ORCHESTRATOR: Final = "orchestrator"
PLANNER: Final = "repair-planner"
RECONCILER: Final = "reconciler"


def performer(action: OperatorAction, exception: ExceptionKind | None, *, alone: bool = False) -> str:
    """The service that performs an action and tells how it ended: exactly one. `alone`: see `stands_alone`."""
    if action in _DUTY or (alone and exception is not None):
        return PLANNER
    if exception is ExceptionKind.STATE_DRIFT:
        return PLANNER if action is A.REPAIR else RECONCILER
    return PLANNER if exception in APART else ORCHESTRATOR
