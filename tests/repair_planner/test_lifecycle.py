"""The planner's cores: every exception is classified, owned and dated at once, and leaves only by a recorded step."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repair_planner.builders import at, closed, quarantine, reported

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass
from trueup_repair_planner.core import classify, lifecycle
from trueup_repair_planner.core.lifecycle import TABLE, Duty, ExceptionRow, IllegalTurn, Stage, Turn

DUTY = Duty(owner="operators", escalation_owner="duty-manager", sla_seconds=600)


def take(row: ExceptionRow | None, event: ExceptionReported, seconds: float = 0) -> ExceptionRow:
    return lifecycle.report(row, event, now=at(seconds), duty=DUTY)


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("move", list(Turn))
def test_every_stage_by_every_turn_moves_by_the_table_or_is_refused(stage: Stage, move: Turn) -> None:
    row = take(None, reported()).evolve(lifecycle=stage)
    if (stage, move) in TABLE:
        assert lifecycle.step(row, move, at(1), "someone").lifecycle is TABLE[stage, move]
    else:
        with pytest.raises(IllegalTurn):
            lifecycle.step(row, move, at(1), "someone")


def test_only_a_verified_repair_or_a_withdrawn_cause_closes() -> None:
    assert {key for key, to in TABLE.items() if to is Stage.CLOSED} == {
        (Stage.VERIFIED, Turn.CLOSE),
        (Stage.ASSIGNED, Turn.WITHDRAW),
        (Stage.REPAIRED, Turn.WITHDRAW),
    }


@pytest.mark.parametrize("kind", list(ExceptionKind))
def test_an_exception_of_any_kind_has_owner_deadline_class_and_whole_envelope_from_its_first_second(
    kind: ExceptionKind,
) -> None:
    """Requirements: Q2, Q3, Q4"""
    row = take(None, reported(kind=kind.value))
    assert (row.lifecycle, row.status, row.owner) == (Stage.ASSIGNED, "open", "operators")
    assert row.deadline_at == at(600)
    assert row.failure_class in FailureClass.__members__
    assert set(classify.ENVELOPE_FIELDS) <= set(row.envelope)
    empty = {name for name in classify.ENVELOPE_FIELDS if row.envelope[name] is None}
    assert empty <= {"last_external_status", "payload_reference", "decision_id", "capability_id"}
    assert row.envelope["recommended_repair"]


def test_what_the_reporter_says_stands_in_the_envelope() -> None:
    """Requirements: Q2"""
    said = {
        "failed_step": "publish",
        "failure_code": "rate_limited",
        "failure_reason": "429 six times",
        "first_failed_at": at(-50).isoformat(),
        "last_failed_at": at(-1).isoformat(),
        "attempt_count": 6,
        "last_external_status": "429",
        "payload_reference": "sha256:1",
        "decision_id": "dec_1",
        "capability_id": "cap_1",
        "human_review_required": False,
    }
    row = take(None, reported(envelope=said))
    assert {name: row.envelope[name] for name in said} == said
    assert row.failure_class == "DEPENDENCY_ERROR"
    assert row.envelope["failure_class"] == "DEPENDENCY_ERROR"


def test_an_exception_without_owner_gets_the_one_on_duty() -> None:
    """Requirements: Q4"""
    assert take(None, reported(owner="")).owner == "operators"


@pytest.mark.parametrize(
    ("options", "expected", "origin"),
    [
        ({"failure_class": "SCHEMA_ERROR"}, "SCHEMA_ERROR", "work"),
        ({"envelope": {"failure_code": "unauthenticated"}}, "AUTH_ERROR", "environment"),
        ({"envelope": {"failure_code": "unavailable"}}, "DEPENDENCY_ERROR", "environment"),
        ({"envelope": {"failure_code": "version_conflict"}}, "CONCURRENCY_CONFLICT", "work"),
        ({"envelope": {"failure_code": "novel", "error_class": "business"}}, "BUSINESS_RULE_ERROR", "work"),
        ({"envelope": {"failure_code": "novel", "error_class": "unknown"}}, "TIMEOUT_UNKNOWN", "environment"),
        ({"kind": "compensation_failed", "envelope": {"failure_code": "novel"}}, "COMPENSATION_FAILURE", "work"),
        ({"kind": "state_drift"}, "STATE_DRIFT", "work"),
        ({"failure_class": "nonsense", "kind": "conflict"}, "CONCURRENCY_CONFLICT", "work"),
    ],
)
def test_the_class_tells_poison_work_from_a_failing_environment(
    options: dict[str, object], expected: str, origin: str
) -> None:
    """Requirements: Q3"""
    row = take(None, reported(**options))  # type: ignore[arg-type]
    assert (row.failure_class, row.envelope["origin"]) == (expected, origin)


def test_exceptions_of_one_outage_share_their_cause() -> None:
    rows = [take(None, reported(str(number), envelope={"failure_code": "unavailable"})) for number in range(3)]
    assert {row.envelope["cause"] for row in rows} == {"unavailable"}


def test_a_quarantined_message_is_an_exception_with_owner_and_deadline() -> None:
    """Requirements: M3, Q4"""
    row = lifecycle.quarantined(None, quarantine(), now=at(1), duty=DUTY)
    assert (row.kind, row.owner, row.deadline_at) == ("quarantined_message", "operators", at(600))
    assert row.envelope["message_id"] == "msg_1"
    assert row.envelope["failure_reason"] == "ValidationError: fence is missing"
    assert lifecycle.quarantined(row, quarantine(), now=at(9), duty=DUTY) is row


def test_a_closed_obligation_walks_to_the_end_with_resolution_and_actor() -> None:
    row = take(take(None, reported()), closed(resolution="observed_healthy"), 60)
    assert (row.status, row.lifecycle, row.closed_at) == ("closed", Stage.CLOSED, at(50))
    assert (row.resolution_type, row.resolved_by) == ("observed_healthy", "orchestrator")
    assert [entry["to"] for entry in row.trail] == [
        "found",
        "classified",
        "assigned",
        "repaired",
        "verified",
        "closed",
    ]
    assert all(entry["actor"] and entry["at"] for entry in row.trail)


@pytest.mark.parametrize("resolution", ["operation_retry_pending", "operation_failed"])
def test_a_doubt_that_was_settled_is_repaired_but_a_dead_letter_that_is_retried_is_not(resolution: str) -> None:
    doubt = take(
        take(None, reported(kind="unknown_outcome")), closed(kind="unknown_outcome", resolution=resolution), 60
    )
    assert "verified" in [entry["to"] for entry in doubt.trail]
    letter = take(take(None, reported()), closed(resolution=resolution), 60)
    assert (letter.status, letter.resolution_type) == ("closed", resolution)
    assert "verified" not in [entry["to"] for entry in letter.trail]


@pytest.mark.parametrize("resolution", ["superseded", "operation_cancelled", "something new"])
def test_a_cause_that_went_away_closes_without_pretending_that_something_was_repaired(resolution: str) -> None:
    row = take(take(None, reported()), closed(resolution=resolution), 60)
    assert [entry["to"] for entry in row.trail] == ["found", "classified", "assigned", "closed"]
    assert row.resolution_type == resolution


@pytest.mark.parametrize("resolution", ["operation_success", "superseded"])
def test_reports_in_any_order_and_any_number_end_the_same(resolution: str) -> None:
    reports = [
        reported(version=1),
        reported(version=2, envelope={"failure_code": "unavailable"}),
        closed(resolution=resolution, version=3, envelope={"failure_code": "unavailable"}),
    ]
    ends = set()
    for order in permutations([*reports, *reports]):
        row: ExceptionRow | None = None
        for event in order:
            row = take(row, event)
        assert row is not None
        ends.add(row.evolve(trail=[]).model_dump_json())
        assert row.trail[-1]["to"] == "closed"
    assert len(ends) == 1


def test_a_closed_exception_whose_obligation_opens_again_starts_over_visibly() -> None:
    row = take(take(take(None, reported()), closed()), reported(version=3, deadline_seconds=9000), 60)
    assert (row.status, row.lifecycle, row.closed_at, row.resolution_type) == ("open", Stage.ASSIGNED, None, None)
    assert row.deadline_at == at(9000)
    assert "reopen" in [entry["turn"] for entry in row.trail]


def test_a_deadline_that_passes_moves_the_exception_to_the_escalation_owner_and_is_recorded() -> None:
    """Requirements: Q4"""
    row = take(None, reported())
    assert lifecycle.overdue(row, now=at(599), duty=DUTY) is row
    late = lifecycle.overdue(row, now=at(600), duty=DUTY)
    assert (late.owner, late.escalations_count, late.deadline_at) == ("duty-manager", 1, at(1200))
    assert late.first_deadline_at == at(600)
    assert late.trail[-1] == {
        "turn": "escalate",
        "to": "assigned",
        "at": rfc3339(at(600)),
        "actor": "deadline",
        "from": "operators",
        "to_owner": "duty-manager",
        "missed": rfc3339(at(600)),
    }
    later = lifecycle.overdue(late, now=at(1200), duty=DUTY)
    assert (later.escalations_count, later.deadline_at) == (2, at(1200 + 1200))


def test_a_closed_exception_is_never_escalated() -> None:
    row = take(take(None, reported()), closed())
    assert lifecycle.overdue(row, now=at(10**6), duty=DUTY) is row


def test_a_later_report_does_not_give_an_escalated_exception_back() -> None:
    late = lifecycle.overdue(take(None, reported()), now=at(600), duty=DUTY)
    again = take(late, reported(version=2), 700)
    assert (again.owner, again.deadline_at) == ("duty-manager", at(1200))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.integers(1, 9), st.sampled_from(["open", "operation_success", "superseded"])),
        st.tuples(st.just("overdue"), st.integers(0, 5000), st.just("")),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(events=EVENTS)
def test_whatever_is_reported_nothing_is_without_owner_or_deadline_and_nothing_leaves_silently(
    events: list[tuple[str, int, str]],
) -> None:
    """Requirements: Q4"""
    row, now = take(None, reported()), 0.0
    for kind, number, what in events:
        now += 1
        before = row
        if kind == "overdue":
            now += number
            row = lifecycle.overdue(row, now=at(now), duty=DUTY)
        elif what == "open":
            row = take(row, reported(version=number), now)
        else:
            row = take(row, closed(resolution=what, version=number), now)
        assert row.owner
        assert row.deadline_at is not None
        assert (row.status == "open") == (row.lifecycle is not Stage.CLOSED)
        assert (row.status == "open") == (row.resolved_by is None) == (row.resolution_type is None)
        if row.lifecycle is not before.lifecycle:
            assert row.trail[-1]["to"] == row.lifecycle.value
            assert len(row.trail) > len(before.trail)
        if row.status == "open" and kind == "overdue":
            assert row.deadline_at > at(now)
