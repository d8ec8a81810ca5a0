"""Settling: the table, each verdict's conditions, and what holds in any order of messages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconciler.builders import at, finding, found, settle_requested

from trueup_common.contracts.states import FindVerdict
from trueup_common.contracts.task import FindTask
from trueup_reconciler.core import settle
from trueup_reconciler.core.settlement import TABLE, Act, Heard, SettlementRow, SettlementState

CONFIRMED, MISSING, UNKNOWN, AMBIGUOUS = (
    FindVerdict.CONFIRMED,
    FindVerdict.MISSING,
    FindVerdict.UNKNOWN,
    FindVerdict.AMBIGUOUS,
)


def opened(**options: object) -> tuple[SettlementRow, FindTask]:
    step = settle.request(None, settle_requested(**options), business=at(0), real=at(0))  # type: ignore[arg-type]
    assert step.find is not None
    return step.row, step.find


def test_the_table_answers_every_state_and_everything_that_can_be_heard() -> None:
    assert set(TABLE) == {(state, heard) for state in SettlementState for heard in Heard}


def test_only_the_look_in_hand_an_exhausted_budget_or_a_new_request_moves_a_settlement() -> None:
    finishing = {key for key, (_, act) in TABLE.items() if act is Act.FINISH}
    assert finishing == {
        (SettlementState.FINDING, Heard.DECIDED),
        (SettlementState.FINDING, Heard.EXHAUSTED),
        (SettlementState.OPEN, Heard.EXHAUSTED),
    }
    leaving_done = {
        heard for (state, heard), (to, _) in TABLE.items() if state is SettlementState.DONE and to is not state
    }
    assert leaving_done == {Heard.REQUESTED}


def test_a_request_looks_at_once_under_a_higher_fence_and_says_that_it_started() -> None:
    """Requirements: X4"""
    step = settle.request(None, settle_requested(fence=4), business=at(0), real=at(0))
    assert step.find is not None
    assert (step.row.state, step.find.fence) == (SettlementState.FINDING, 5)
    assert [(told.started, told.finished, told.verdict) for told in step.told] == [(True, False, None)]


def test_an_effect_that_is_found_confirms_with_what_was_found() -> None:
    """Requirements: E3"""
    row, task = opened()
    step = settle.found(row, found(task, finding(CONFIRMED), seconds=1), business=at(1), real=at(1))
    assert step.row.state is SettlementState.DONE
    assert step.row.next_at is None
    (told,) = step.told
    assert (told.finished, told.verdict, told.fence) == (True, CONFIRMED, 2)
    assert told.finding is not None
    assert told.finding.evidence == "marker"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"answer": finding(MISSING, proof=False), "seconds": 100}, "no_proof_of_access"),
        ({"answer": finding(MISSING, proof=True), "seconds": 100, "provable_at": at(101)}, "too_early"),
        ({"answer": finding(MISSING, proof=True), "seconds": 100, "provable_at": at(100)}, "too_early"),
        ({"answer": finding(MISSING, proof=True), "seconds": 40}, "too_early"),
        ({"answer": finding(MISSING, proof=True), "seconds": 100, "fence": 1}, "older_attempt_not_shut_out"),
        ({"answer": finding(MISSING, proof=True), "seconds": 100, "fence": 9}, "newer_attempt_known"),
    ],
)
def test_absence_is_not_believed_without_access_too_early_or_with_an_older_attempt_at_large(
    answer: dict[str, object], reason: str
) -> None:
    """Requirements: E3"""
    row, task = opened(late_until=at(50))
    step = settle.found(row, found(task, **answer), business=at(110), real=at(110))  # type: ignore[arg-type]
    assert step.row.state is SettlementState.OPEN
    assert step.told == ()
    assert step.row.finding is not None
    assert step.row.finding["reason"] == reason
    assert step.row.next_at is not None


def test_absence_with_access_after_the_last_possible_moment_and_behind_the_fence_is_believed() -> None:
    """Requirements: E3"""
    row, task = opened(late_until=at(50))
    answer = found(task, finding(MISSING, proof=True), seconds=51, provable_at=at(50))
    step = settle.found(row, answer, business=at(51), real=at(51))
    assert [told.verdict for told in step.told] == [MISSING]


@pytest.mark.parametrize(
    "answer", [finding(CONFIRMED, candidates=2), finding(AMBIGUOUS, candidates=2), finding(AMBIGUOUS)]
)
def test_several_candidates_are_ambiguous_never_missing_and_never_confirmed(answer: object) -> None:
    """Requirements: E3"""
    row, task = opened()
    step = settle.found(row, found(task, answer, seconds=1), business=at(1), real=at(1))  # type: ignore[arg-type]
    assert [told.verdict for told in step.told] == [AMBIGUOUS]


def test_a_look_that_is_too_early_comes_again_no_later_than_absence_can_be_proved() -> None:
    row, task = opened()
    answer = found(task, finding(MISSING, proof=True), seconds=1, provable_at=at(1.2))
    step = settle.found(row, answer, business=at(1), real=at(1))
    assert step.row.next_at is not None
    assert at(1.2) < step.row.next_at < at(1.5)


def test_while_absence_cannot_be_proved_few_looks_are_made_and_the_last_one_proves() -> None:
    """Four looks and the one that counts, in a window in which the looks of a failing target would be eight.

    Requirements: R6, Q7
    """
    row, task = opened()
    looked_at, now = [0.0], 0.0
    while now <= 50:
        answer = found(task, finding(MISSING, proof=True), seconds=now, provable_at=at(50))
        step = settle.found(row, answer, business=at(now), real=at(now))
        assert step.row.next_at is not None
        now = (step.row.next_at - at(0)).total_seconds()
        looked_at.append(now)
        again = settle.due(step.row, business=at(now), real=at(now))
        assert again.find is not None
        row, task = again.row, again.find
    assert looked_at == [0, 1, 4, 14, 50.05]


def test_the_next_look_after_an_undecided_answer_backs_off_and_raises_the_fence() -> None:
    row, task = opened()
    waits, fences, now = [], [task.fence], 1.0
    for _ in range(5):
        step = settle.found(row, found(task, finding(UNKNOWN), seconds=now), business=at(now), real=at(now))
        assert step.row.next_at is not None
        waits.append((step.row.next_at - at(now)).total_seconds())
        now += waits[-1]
        again = settle.due(step.row, business=at(now), real=at(now))
        assert again.find is not None
        row, task = again.row, again.find
        fences.append(task.fence)
    assert waits == [0.5, 1, 2, 5, 10]
    assert fences == [2, 3, 4, 5, 6, 7]


def test_a_look_that_is_not_answered_is_asked_again_under_a_higher_fence_and_with_more_patience() -> None:
    row, task = opened(deadline_seconds=10_000)
    step = settle.due(row, business=at(30), real=at(30))
    assert step.find is not None
    assert step.find.fence == task.fence + 1
    assert step.find.find_id != task.find_id
    assert step.row.next_at == at(30 + 60)


def test_business_time_that_jumps_does_not_make_an_answer_late_that_is_on_its_way() -> None:
    row, task = opened(deadline_seconds=60)
    step = settle.due(row, business=at(86400), real=at(1))
    assert step.find is None
    assert step.row.state is SettlementState.FINDING
    assert step.row.next_at == at(86400) + timedelta(seconds=29)
    late = settle.found(step.row, found(task, finding(CONFIRMED), seconds=2), business=at(86401), real=at(2))
    assert [told.verdict for told in late.told] == [CONFIRMED]


def test_an_answer_of_an_older_look_moves_nothing_but_bars_absence() -> None:
    row, first = opened()
    second = settle.due(row, business=at(30), real=at(30))
    assert second.find is not None
    kept = settle.found(second.row, found(first, finding(CONFIRMED), seconds=31), business=at(31), real=at(31))
    assert (kept.act, kept.told, kept.row.state) == (Act.KEEP_EVIDENCE, (), SettlementState.FINDING)
    assert [item["fence"] for item in kept.row.evidence] == [2]
    denied = settle.found(
        kept.row, found(second.find, finding(MISSING, proof=True), seconds=32), business=at(32), real=at(32)
    )
    assert denied.told == ()
    assert denied.row.finding is not None
    assert denied.row.finding["reason"] == "effect_seen_before"


def test_a_repeated_answer_after_the_verdict_tells_nothing_again() -> None:
    row, task = opened()
    answer = found(task, finding(CONFIRMED), seconds=1)
    done = settle.found(row, answer, business=at(1), real=at(1)).row
    again = settle.found(done, answer, business=at(2), real=at(2))
    assert again.told == ()
    assert (again.row.verdict, again.row.state) == (CONFIRMED, SettlementState.DONE)


def test_a_spent_deadline_or_budget_hands_the_outcome_to_a_person_as_unknown() -> None:
    row, _ = opened(deadline_seconds=20)
    step = settle.due(row, business=at(31), real=at(31))
    assert [(told.verdict, told.finding.reason if told.finding else None) for told in step.told] == [
        (UNKNOWN, "deadline_exhausted")
    ]
    row, _ = opened(deadline_seconds=10**9)
    looks = 1
    for number in range(1, settle.FINDS_MAX + 5):
        step = settle.due(row, business=at(1000 * number), real=at(1000 * number))
        row = step.row
        looks += step.find is not None
        if step.told:
            break
    assert looks == settle.FINDS_MAX
    assert (row.state, row.verdict) == (SettlementState.DONE, UNKNOWN)


@pytest.mark.parametrize("reason", sorted(settle.HOPELESS))
def test_where_looking_can_never_prove_anything_a_person_decides_at_once(reason: str) -> None:
    """Requirements: E3, I3"""
    row, task = opened()
    silent = finding(UNKNOWN).evolve(reason=reason)
    step = settle.found(row, found(task, silent, seconds=1), business=at(1), real=at(1))
    assert [(told.verdict, told.finding.reason if told.finding else None) for told in step.told] == [(UNKNOWN, reason)]


def test_a_request_that_arrives_after_its_deadline_is_still_looked_at_once() -> None:
    step = settle.request(None, settle_requested(deadline_seconds=-5), business=at(0), real=at(0))
    assert step.find is not None


def test_a_second_request_with_a_higher_fence_opens_a_new_round_above_all_earlier_fences() -> None:
    row, task = opened(fence=1)
    done = settle.found(row, found(task, finding(CONFIRMED), seconds=1), business=at(1), real=at(1)).row
    step = settle.request(done, settle_requested(fence=7), business=at(5), real=at(5))
    assert step.find is not None
    assert (step.find.fence, step.row.round, step.row.finds_count, step.row.verdict) == (8, 2, 1, None)


def test_the_same_request_again_repeats_the_result_and_looks_no_more() -> None:
    row, task = opened(fence=1)
    waiting = settle.request(row, settle_requested(fence=1), business=at(1), real=at(1))
    assert (waiting.find, waiting.told) == (None, ())
    done = settle.found(row, found(task, finding(CONFIRMED), seconds=1), business=at(1), real=at(1)).row
    repeated = settle.request(done, settle_requested(fence=1), business=at(5), real=at(5))
    assert repeated.find is None
    assert [told.verdict for told in repeated.told] == [CONFIRMED]


# --- properties -------------------------------------------------------------------------------------------------------

ANSWERS = st.tuples(
    st.sampled_from(list(FindVerdict)),
    st.booleans(),  # proof of access
    st.integers(0, 2),  # candidates
    st.sampled_from([None, 5.0, 500.0]),  # provable at
    st.integers(-1, 1),  # fence relative to the task
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), ANSWERS, st.integers(0, 10)),
        st.tuples(st.just("due"), st.floats(0, 400), st.just(0)),
        st.tuples(st.just("request"), st.integers(1, 12), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, late=st.sampled_from([None, 20.0, 300.0]))
def test_in_any_order_nothing_gets_stuck_fences_only_grow_and_absence_is_always_proved(
    events: list[tuple[str, object, int]], late: float | None
) -> None:
    """Whatever arrives, repeated and out of order: an open settlement has a next look, above all looks before it.

    Requirements: E3
    """
    row, task = opened(late_until=at(late) if late is not None else None, deadline_seconds=2000)
    tasks, now = [task], 0.0
    for kind, what, which in events:
        now += 0.25
        if kind == "due":
            assert isinstance(what, float)
            now += what
            if row.next_at is None or row.next_at > at(now):
                continue
            step = settle.due(row, business=at(now), real=at(now))
        elif kind == "request":
            assert isinstance(what, int)
            step = settle.request(row, settle_requested(fence=what), business=at(now), real=at(now))
        else:
            asked = tasks[which % len(tasks)]
            verdict, proof, candidates, provable, shift = what  # type: ignore[misc]
            answer = found(
                asked,
                finding(verdict, proof=proof, candidates=candidates),
                seconds=now,
                provable_at=at(provable) if provable is not None else None,
                fence=asked.fence + shift,
            )
            step = settle.found(row, answer, business=at(now), real=at(now))
            for told in step.told:
                if told.verdict is MISSING:
                    assert proof
                    assert candidates < 2
                    assert provable is None or now > provable
                    assert row.late_until is None or at(now) > row.late_until
                    assert asked.fence + shift == row.fence
                    assert asked.find_id == row.find_id
        if step.find is not None:
            assert step.find.fence > max(asked.fence for asked in tasks)
            tasks.append(step.find)
        assert step.row.fence >= row.fence
        row = step.row
        assert (row.state is SettlementState.DONE) == (row.next_at is None)
        assert (row.state is SettlementState.FINDING) == (row.find_id is not None)
        assert (row.verdict is not None) == (row.state is SettlementState.DONE)


@settings(max_examples=100, deadline=None)
@given(gaps=st.lists(st.floats(0, 30), min_size=1, max_size=5))
def test_left_alone_every_settlement_ends_with_a_person(gaps: list[float]) -> None:
    row, _ = opened(deadline_seconds=5000)
    for number in range(10 * settle.FINDS_MAX):
        if row.next_at is None:
            break
        now = row.next_at + timedelta(seconds=gaps[number % len(gaps)])
        row = settle.due(row, business=now, real=now).row
    assert (row.state, row.verdict) == (SettlementState.DONE, UNKNOWN)


def test_what_was_never_dispatched_is_looked_for_too() -> None:
    """A redrive looks before the first attempt: its fence is 0, and the look shuts it out. Asked again, it is the same.

    Requirements: Q6
    """
    step = settle.request(None, settle_requested(fence=0), business=at(0), real=at(0))
    assert step.find is not None and step.find.fence == 1
    again = settle.request(step.row, settle_requested(fence=0), business=at(0), real=at(0))
    assert again.find is None and again.row == step.row
