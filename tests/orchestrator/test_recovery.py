"""The recovery decision table."""

from __future__ import annotations

import itertools

import pytest

from trueup_common.contracts.states import EffectClass, OperationState
from trueup_orchestrator.core.recovery import BACKWARD, TABLE, Action, Pivot, Situation, action, markdown, pivot_of


def test_every_situation_has_a_cell_for_every_pivot() -> None:
    """Requirements: S3"""
    assert set(TABLE) == set(itertools.product(Situation, Pivot))


@pytest.mark.parametrize("situation", list(Situation))
def test_nothing_goes_backwards_unless_the_pivot_is_known_not_to_have_happened(situation: Situation) -> None:
    """Requirements: S3"""
    for pivot in (Pivot.UNKNOWN, Pivot.PASSED):
        assert TABLE[situation, pivot] not in BACKWARD


def test_the_cells_say_what_the_protocol_says() -> None:
    """Requirements: S3"""
    assert [action(Situation.UNKNOWN, pivot) for pivot in Pivot] == [Action.RECONCILE] * 3
    assert [action(Situation.AMBIGUOUS, pivot) for pivot in Pivot] == [Action.PERSON] * 3
    assert action(Situation.PERMANENT, Pivot.NO) is Action.COMPENSATE
    assert action(Situation.PERMANENT, Pivot.PASSED) is Action.FORWARD
    assert action(Situation.EXHAUSTED, Pivot.PASSED) is Action.DEAD_LETTER_FORWARD
    with pytest.raises(LookupError):
        action(Situation.TRANSIENT, Pivot.UNKNOWN)


@pytest.mark.parametrize("state", list(OperationState))
def test_a_pivot_is_unknown_while_it_may_have_happened(state: OperationState) -> None:
    """Requirements: S3"""
    unknown = {"DISPATCHING", "RUNNING", "OUTCOME_UNKNOWN", "ORPHAN_SUSPECTED", "RECONCILING", "NEEDS_REVIEW"}
    expected = "passed" if state == "SUCCESS" else "unknown" if state.value in unknown else "no"
    for pivotal in (EffectClass.PIVOT, EffectClass.IRREVERSIBLE):
        assert pivot_of(pivotal, state) == expected
    assert pivot_of(EffectClass.COMPENSABLE, state) is Pivot.NO
    assert pivot_of(EffectClass.PIVOT, OperationState.QUEUED, proposed=True) is Pivot.UNKNOWN


def test_the_printed_table_has_every_cell() -> None:
    rows = [line.split(" | ") for line in markdown().splitlines()[2:]]
    assert len(rows) == len(Situation)
    assert all(len(row) == 4 for row in rows)
