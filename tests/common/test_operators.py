"""The table of what operators may do: written down once more by hand, and the laws that hold over all of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from trueup_common.contracts.operators import (
    APART,
    CASE,
    EXCEPTION,
    OPERATION,
    ORCHESTRATOR,
    PLANNER,
    RECONCILER,
    REPAIRS,
    SENDS,
    CaseFacts,
    ExceptionFacts,
    Facts,
    OperationFacts,
    OperatorAction,
    TargetKind,
    allowed,
    performer,
)
from trueup_common.contracts.states import INSTANCE_TERMINAL, ExceptionKind, InstanceStatus, OperationState
from trueup_common.contracts.workflow import Direction

A, S = OperatorAction, OperationState
SINGLE = CaseFacts(True, InstanceStatus.HUMAN_TAKEOVER, Direction.FORWARD, "no")
CANCELS = {A.CANCEL}
BY_HAND = {A.SETTLE, A.MARK_RESOLVED}

# state → what a single command admits (nothing ever sent, something maybe sent), written down by hand
EXPECTED: dict[OperationState, tuple[set[OperatorAction], set[OperatorAction]]] = {
    S.RECEIVED: (CANCELS, CANCELS),
    S.VALIDATING: (CANCELS, CANCELS),
    S.AUTHORIZED: (CANCELS, CANCELS),
    S.QUEUED: (CANCELS, CANCELS),
    S.DISPATCHING: (CANCELS, CANCELS),
    S.RUNNING: (CANCELS, CANCELS),
    S.RETRY_PENDING: ({A.RETRY, A.CANCEL}, {A.RETRY, A.CANCEL}),
    S.OUTCOME_UNKNOWN: (CANCELS, CANCELS),
    S.ORPHAN_SUSPECTED: (CANCELS, CANCELS),
    S.RECONCILING: (CANCELS, CANCELS),
    S.FAILED: ({A.RETRY, A.REDRIVE, *BY_HAND}, {A.REDRIVE, A.RECONCILE, *BY_HAND}),
    S.DEAD_LETTERED: ({A.RETRY, A.REDRIVE, *BY_HAND}, {A.REDRIVE, A.RECONCILE, *BY_HAND}),
    S.NEEDS_REVIEW: ({A.REDRIVE, *BY_HAND}, {A.REDRIVE, A.RECONCILE, *BY_HAND}),
    S.CONFLICT: (BY_HAND, BY_HAND),
    S.SUCCESS: (set(), set()),
    S.CANCELLED: (set(), set()),
    S.RESOLVED: (set(), set()),
}

# status of a workflow that stands before its pivot, forward unless a person has it → what it admits
OF_A_WORKFLOW: dict[InstanceStatus, set[OperatorAction]] = {
    InstanceStatus.RUNNING: {A.PAUSE, A.CANCEL, A.TAKE_OVER},
    InstanceStatus.WAITING: {A.PAUSE, A.CANCEL, A.TAKE_OVER},
    InstanceStatus.PAUSED: {A.RESUME, A.CANCEL, A.TAKE_OVER},
    InstanceStatus.CANCEL_PENDING: set(),
    InstanceStatus.COMPENSATING: set(),
    InstanceStatus.HUMAN_TAKEOVER: {A.COMPENSATE, A.RESUME, A.CANCEL, A.MARK_RESOLVED, A.HAND_BACK},
    InstanceStatus.VERIFYING: set(),
    InstanceStatus.CLOSED: set(),
    InstanceStatus.COMPENSATED: set(),
    InstanceStatus.CANCELLED: set(),
    InstanceStatus.SAFE_STOPPED: {A.MARK_RESOLVED},
    InstanceStatus.RESOLVED: set(),
}


def of_operation(case: CaseFacts, operation: OperationFacts) -> set[OperatorAction]:
    return set(allowed(TargetKind.COMMAND, Facts(case=case, operation=operation)))


def every_case() -> Iterator[CaseFacts]:
    for single, status, direction, pivot, revoked in itertools.product(
        (True, False), InstanceStatus, Direction, ("no", "unknown", "passed"), (True, False)
    ):
        yield CaseFacts(single, status, direction, pivot, revoked)


def every_operation() -> Iterator[OperationFacts]:
    for state, *rest in itertools.product(OperationState, *[(True, False)] * 5):
        yield OperationFacts(state, *rest)


@pytest.mark.parametrize("state", list(OperationState))
def test_a_single_command_admits_what_is_written_down(state: OperationState) -> None:
    """Requirements: O3"""
    for touched, expected in zip((False, True), EXPECTED[state], strict=True):
        assert of_operation(SINGLE, OperationFacts(state, touched)) == expected
        whole = allowed(TargetKind.WORKFLOW, Facts(case=SINGLE, operation=OperationFacts(state, touched)))
        assert set(whole) == expected, "the case of a single command is its operation"


@pytest.mark.parametrize("status", list(InstanceStatus))
def test_a_workflow_admits_what_is_written_down(status: InstanceStatus) -> None:
    """Requirements: O3, L14"""
    direction = Direction.PERSON if status is InstanceStatus.HUMAN_TAKEOVER else Direction.FORWARD
    case = CaseFacts(False, status, direction, "no")
    assert set(allowed(TargetKind.WORKFLOW, Facts(case=case))) == OF_A_WORKFLOW[status]


def test_no_state_and_no_kind_is_without_a_row() -> None:
    """Requirements: O3"""
    assert set(OPERATION) == set(OperationState)
    assert set(CASE) == set(InstanceStatus)
    assert set(EXCEPTION) == set(ExceptionKind)


def test_the_laws_of_operations_hold_in_every_combination() -> None:
    """Nothing is sent again without authority, beside a find that cannot be made, for a case that is over, paused or
    goes the other way, or after a person found nothing there; what is final stays; nothing is undone after the pivot.

    Requirements: O3, X8, S3, P3
    """
    operations = list(every_operation())
    for case in every_case():
        over = case.status in INSTANCE_TERMINAL
        for row in operations:
            found = of_operation(case, row)
            sends = found & SENDS
            text = f"{case} {row}"
            assert not (sends and over), text
            assert not (sends and case.revoked and not row.undoes), text
            assert not (sends and row.settled_absent), text
            assert not (sends and case.status is InstanceStatus.PAUSED and not row.undoes), text
            assert not (found & {A.REDRIVE, A.RECONCILE, A.COMPENSATE} and row.touched and not row.findable), text
            assert A.RETRY not in found or not row.touched or row.state is S.RETRY_PENDING, text
            assert not (row.undoes and sends and case.pivot == "passed"), text
            assert not (not row.undoes and not case.single and sends and case.direction is Direction.BACKWARD), text
            assert A.COMPENSATE not in found or row.undoes, text
            assert found <= {A.SETTLE, A.MARK_RESOLVED} or row.state not in (S.SUCCESS, S.CANCELLED, S.RESOLVED), text
            assert not found or row.state is not S.RESOLVED, text
            assert not found & {A.TAKE_OVER, A.HAND_BACK, A.PAUSE, A.RESUME, A.ASSIGN, A.ESCALATE}, text


def test_the_laws_of_cases_hold_in_every_combination() -> None:
    """Requirements: O3, S3, L14"""
    for case in every_case():
        found = set(allowed(TargetKind.WORKFLOW, Facts(case=case)))
        if case.single:
            assert not found, "without its operation nothing is known of it"
            continue
        assert A.COMPENSATE not in found or case.pivot == "no"
        assert A.HAND_BACK not in found or (case.direction is Direction.PERSON and not case.revoked)
        assert not found or case.status not in INSTANCE_TERMINAL or case.status is InstanceStatus.SAFE_STOPPED
        assert not (case.revoked and A.RESUME in found) or case.status is InstanceStatus.PAUSED
        assert A.CANCEL not in found or case.direction is not Direction.BACKWARD


@pytest.mark.parametrize("kind", list(ExceptionKind))
def test_an_exception_offers_its_duty_and_what_helps(kind: ExceptionKind) -> None:
    """An open one can always be assigned and escalated, a closed one nothing; REPAIR only where repairing can help.

    Requirements: O3, Q4
    """
    for row in every_operation():
        facts = Facts(SINGLE, row, ExceptionFacts(kind, True))
        found = set(allowed(TargetKind.EXCEPTION, facts))
        assert {A.ASSIGN, A.ESCALATE} <= found
        if kind in APART:
            assert found <= {A.ASSIGN, A.ESCALATE, A.REPAIR, A.RECONCILE, A.MARK_RESOLVED}
        else:
            assert found - {A.ASSIGN, A.ESCALATE, A.REPAIR} == of_operation(SINGLE, row)
            assert (A.REPAIR in found) == bool(found & {A.REDRIVE, A.RECONCILE, A.COMPENSATE})
        assert allowed(TargetKind.DEAD_LETTER, facts) == allowed(TargetKind.EXCEPTION, facts)
        paused = Facts(
            CaseFacts(False, InstanceStatus.PAUSED, Direction.FORWARD, "no"), row, ExceptionFacts(kind, True)
        )
        held = set(allowed(TargetKind.EXCEPTION, paused)) & {A.REPAIR, A.RETRY, A.REDRIVE}
        assert kind in APART or not held, "in a paused case it would only wait"
        closed = Facts(SINGLE, row, ExceptionFacts(kind, False))
        assert allowed(TargetKind.EXCEPTION, closed) == ()


def test_each_act_has_exactly_one_performer() -> None:
    """Requirements: G7, O3"""
    for action in OperatorAction:
        for kind in (None, *ExceptionKind):
            who = performer(action, kind)
            if action in (A.ASSIGN, A.ESCALATE):
                assert who == PLANNER
            elif kind is ExceptionKind.STATE_DRIFT:
                assert who == (PLANNER if action is A.REPAIR else RECONCILER)
            elif kind in APART:
                assert who == PLANNER
            else:
                assert who == ORCHESTRATOR
    assert SENDS <= REPAIRS
