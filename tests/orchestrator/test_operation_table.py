"""The transition table against the protocol: every state with every trigger."""

from __future__ import annotations

import pytest

from trueup_common.contracts.states import SETTLED, OperationState
from trueup_orchestrator.core.operation import TABLE, IllegalTransition, Trigger, mermaid, move

S = OperationState

# What the protocol's table allows, written down independently of the code: state → all states that may follow.
ALLOWED: dict[OperationState, set[OperationState]] = {
    S.RECEIVED: {S.VALIDATING, S.CANCELLED},
    S.VALIDATING: {S.AUTHORIZED, S.FAILED, S.CONFLICT, S.CANCELLED},
    S.AUTHORIZED: {S.QUEUED, S.CANCELLED},
    S.QUEUED: {S.DISPATCHING, S.FAILED, S.DEAD_LETTERED, S.CANCELLED, S.OUTCOME_UNKNOWN},
    S.DISPATCHING: {S.RUNNING, S.QUEUED, S.ORPHAN_SUSPECTED, S.DISPATCHING},
    S.RUNNING: {
        S.SUCCESS,
        S.RETRY_PENDING,
        S.FAILED,
        S.CONFLICT,
        S.OUTCOME_UNKNOWN,
        S.ORPHAN_SUSPECTED,
        S.QUEUED,
        S.RUNNING,
    },
    S.RETRY_PENDING: {S.QUEUED, S.DEAD_LETTERED, S.CANCELLED},
    S.OUTCOME_UNKNOWN: {
        S.SUCCESS,
        S.RETRY_PENDING,
        S.FAILED,
        S.CONFLICT,
        S.OUTCOME_UNKNOWN,
        S.RUNNING,
        S.RECONCILING,
    },
    S.ORPHAN_SUSPECTED: {
        S.SUCCESS,
        S.RETRY_PENDING,
        S.FAILED,
        S.CONFLICT,
        S.OUTCOME_UNKNOWN,
        S.QUEUED,
        S.RUNNING,
        S.RECONCILING,
        S.ORPHAN_SUSPECTED,
    },
    S.RECONCILING: {S.SUCCESS, S.RETRY_PENDING, S.FAILED, S.CANCELLED, S.NEEDS_REVIEW, S.RECONCILING},
    S.FAILED: {S.QUEUED, S.SUCCESS, S.FAILED, S.RESOLVED},
    S.CONFLICT: {S.QUEUED, S.SUCCESS, S.FAILED, S.RESOLVED},
    S.DEAD_LETTERED: {S.QUEUED, S.SUCCESS, S.FAILED, S.RESOLVED},
    S.NEEDS_REVIEW: {S.QUEUED, S.SUCCESS, S.FAILED, S.RESOLVED},
    S.SUCCESS: set(),
    S.CANCELLED: set(),
    S.RESOLVED: set(),
}


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("trigger", list(Trigger))
def test_every_state_and_trigger_is_decided_by_the_table(state: OperationState, trigger: Trigger) -> None:
    """A pair is either in the table or refused; nothing else can happen.

    Requirements: X2
    """
    if (state, trigger) in TABLE:
        assert move(state, trigger) is TABLE[state, trigger]
        assert TABLE[state, trigger] in ALLOWED[state]
    else:
        with pytest.raises(IllegalTransition) as caught:
            move(state, trigger)
        assert (caught.value.state, caught.value.trigger) == (state, trigger)


@pytest.mark.parametrize("state", list(S))
def test_the_table_reaches_exactly_what_the_protocol_allows(state: OperationState) -> None:
    """Requirements: X2"""
    assert {after for (before, _), after in TABLE.items() if before is state} == ALLOWED[state]


@pytest.mark.parametrize("state", sorted(SETTLED))
def test_settled_states_never_change(state: OperationState) -> None:
    """SUCCESS, CANCELLED and RESOLVED know no trigger at all.

    Requirements: X2
    """
    for trigger in Trigger:
        with pytest.raises(IllegalTransition):
            move(state, trigger)


@pytest.mark.parametrize("trigger", [Trigger.LOSE_START, Trigger.LOSE_LEASE, Trigger.LEAVE_UNKNOWN])
def test_lost_contact_never_fails_an_operation(trigger: Trigger) -> None:
    """Silence, a lost lease and an unknown outcome lead to looking, never to FAILED or to a resend.

    Requirements: X4
    """
    reached = {after for (_, by), after in TABLE.items() if by is trigger}
    assert reached
    assert reached <= {S.OUTCOME_UNKNOWN, S.ORPHAN_SUSPECTED}


def test_the_table_cannot_be_changed() -> None:
    """Requirements: X2"""
    with pytest.raises(TypeError):
        TABLE[S.SUCCESS, Trigger.CANCEL] = S.CANCELLED  # type: ignore[index]


def test_the_diagram_shows_every_edge_of_the_table() -> None:
    lines = mermaid().splitlines()
    for (state, trigger), after in TABLE.items():
        if state is not after:
            assert any(
                line.strip().startswith(f"{state} --> {after}: ") and trigger.value in line.split(": ")[1].split(", ")
                for line in lines
            )
