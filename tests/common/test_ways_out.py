"""Every exception has a way out: an act of a person that ends it, or the plane itself is at work on it and must end.

The table of kinds is written down by hand, from whoever reports them.
"""

from __future__ import annotations

from itertools import product

import pytest

from trueup_common.contracts.operators import (
    ORCHESTRATOR,
    PLANNER,
    RECONCILER,
    CaseFacts,
    ExceptionFacts,
    Facts,
    OperationFacts,
    OperatorAction,
    TargetKind,
    allowed,
    performer,
    stands_alone,
)
from trueup_common.contracts.states import INSTANCE_TERMINAL, ExceptionKind, InstanceStatus, OperationState
from trueup_common.contracts.workflow import Direction

A, K, S = OperatorAction, ExceptionKind, OperationState
DUTY = {A.ASSIGN, A.ESCALATE}
ENDS = {A.MARK_RESOLVED, A.SETTLE}
"""Acts after which an exception is over whatever the world says; the others try to make it true."""

AT_WORK = (S.OUTCOME_UNKNOWN, S.RECONCILING, S.ORPHAN_SUSPECTED, S.RUNNING, S.DISPATCHING, S.QUEUED)
"""The plane moves on by itself: a settlement ends by its deadline, a lease runs out, a timer fires."""

OF_STATE: dict[ExceptionKind, tuple[OperationState, ...]] = {
    K.FAILED: (S.FAILED,),
    K.CONFLICT: (S.CONFLICT,),
    K.NEEDS_REVIEW: (S.NEEDS_REVIEW,),
    K.DEAD_LETTER: (S.DEAD_LETTERED,),
    K.COMPENSATION_FAILED: (S.FAILED, S.CONFLICT, S.NEEDS_REVIEW, S.DEAD_LETTERED),
}
"""Kinds that a person's state of an operation is."""
OPEN = [status for status in InstanceStatus if status not in INSTANCE_TERMINAL]


def ways(kind: ExceptionKind, case: CaseFacts | None, operation: OperationFacts | None) -> set[OperatorAction]:
    return set(allowed(TargetKind.EXCEPTION, Facts(case, operation, ExceptionFacts(kind, True)))) - DUTY


@pytest.mark.parametrize("kind", list(OF_STATE))
def test_what_stands_in_a_persons_hands_can_be_ended_by_a_person(kind: ExceptionKind) -> None:
    """Whatever was sent, whether it can be found, whoever revoked it, before the pivot or after.

    Requirements: Q8, O3
    """
    undoes = kind is K.COMPENSATION_FAILED
    for state, single, status, touched, findable, revoked in product(
        OF_STATE[kind], (True, False), [*OPEN, InstanceStatus.SAFE_STOPPED], *[(True, False)] * 3
    ):
        case = CaseFacts(single and not undoes, status, Direction.PERSON, "unknown", revoked)
        operation = OperationFacts(state, touched, findable=findable, undoes=undoes)
        assert ways(kind, case, operation) & ENDS, (kind, case, operation)


@pytest.mark.parametrize("kind", [K.STATE_DRIFT, K.QUARANTINED_MESSAGE, K.QUARANTINED_CALLBACK])
def test_what_is_about_no_operation_can_be_ended_by_a_person_whatever_its_case_does(kind: ExceptionKind) -> None:
    """Requirements: Q8, O3"""
    for case, operation in (
        (None, None),
        (CaseFacts(True, InstanceStatus.CLOSED, Direction.FORWARD, "no"), OperationFacts(S.SUCCESS, True)),
        (CaseFacts(False, InstanceStatus.RUNNING, Direction.FORWARD, "no"), None),
    ):
        assert A.MARK_RESOLVED in ways(kind, case, operation)
    assert performer(A.MARK_RESOLVED, kind) == (RECONCILER if kind is K.STATE_DRIFT else PLANNER)


@pytest.mark.parametrize("kind", [K.NEEDS_REVIEW, K.STALE_RUNNING, K.FAILED])
def test_what_is_about_no_case_or_about_one_that_owes_nothing_is_ended_by_whoever_looked(kind: ExceptionKind) -> None:
    """An unmanaged effect, a dead detector, an anomaly; an invariant that is broken after the end.

    Requirements: Q8, V5, V6, R10
    """
    for status, state in product(INSTANCE_TERMINAL, (S.SUCCESS, S.CANCELLED, S.RESOLVED)):
        facts = Facts(
            CaseFacts(True, status, Direction.FORWARD, "no"), OperationFacts(state, True), ExceptionFacts(kind, True)
        )
        assert stands_alone(facts)
        assert set(allowed(TargetKind.EXCEPTION, facts)) - DUTY == {A.MARK_RESOLVED}
    nobody = Facts(None, None, ExceptionFacts(kind, True))
    assert stands_alone(nobody)
    assert set(allowed(TargetKind.EXCEPTION, nobody)) - DUTY == {A.MARK_RESOLVED}
    assert performer(A.MARK_RESOLVED, kind, alone=True) == PLANNER


@pytest.mark.parametrize("kind", [K.UNKNOWN_OUTCOME, K.STALE_RUNNING])
def test_nobody_calls_resolved_what_the_plane_is_still_finding_out(kind: ExceptionKind) -> None:
    """Requirements: X4, Q8. It ends by itself, or becomes a kind that a person ends."""
    for state, single, status in product(AT_WORK, (True, False), OPEN):
        found = ways(kind, CaseFacts(single, status, Direction.FORWARD, "no"), OperationFacts(state, True))
        assert not found & ENDS, (state, status)


@pytest.mark.parametrize("status", [InstanceStatus.VERIFYING, InstanceStatus.COMPENSATING])
def test_what_nobody_could_observe_in_time_is_ended_by_a_person_and_not_before(status: InstanceStatus) -> None:
    """The read account is lost for ever: what is owed will never be seen. Of a workflow the exception is the case's, of
    a single command its operation's.

    Requirements: Q8, O3, L15
    """
    for direction, pivot, revoked in product(Direction, ("no", "passed"), (True, False)):
        for overdue in (True, False):
            case = CaseFacts(False, status, direction, pivot, revoked, overdue)
            assert (A.MARK_RESOLVED in ways(K.NEEDS_REVIEW, case, None)) is overdue, case
            assert (A.MARK_RESOLVED in allowed(TargetKind.WORKFLOW, Facts(case))) is overdue, case
    for overdue in (True, False):
        one = CaseFacts(True, InstanceStatus.VERIFYING, Direction.FORWARD, "no", unverified=overdue)
        found = ways(K.NEEDS_REVIEW, one, OperationFacts(S.SUCCESS, True, alert=overdue))
        assert found == (ENDS if overdue else set())
    assert performer(A.MARK_RESOLVED, K.NEEDS_REVIEW) == ORCHESTRATOR


def test_an_alert_on_what_is_over_is_the_cases_own_to_end() -> None:
    """Two effects of one operation: a person closes it where its journal is, not beside it. Requirements: Q8, P3"""
    facts = Facts(
        CaseFacts(True, InstanceStatus.CLOSED, Direction.FORWARD, "no"),
        OperationFacts(S.SUCCESS, True, alert=True),
        ExceptionFacts(K.NEEDS_REVIEW, True),
    )
    assert not stands_alone(facts)
    assert set(allowed(TargetKind.EXCEPTION, facts)) & ENDS == ENDS
