"""Elements: whose desired value counts, what an observation makes of it, and what is never concluded without one."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconciler.builders import at, established, seen

from trueup_common.contracts.events import Established, Retired
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import FailureClass, Phase, ProbeVerdict
from trueup_reconciler.core import drift, visit
from trueup_reconciler.core.drift import Terms
from trueup_reconciler.core.element import RESTING, TABLE, ElementRow, IllegalTurn, Stage, Turn, turn
from trueup_reconciler.core.report import close
from trueup_reconciler.core.retire import retire
from trueup_reconciler.core.turned import Care, Turned

TERMS = Terms(care=Care(owner="operators", sla_seconds=600))


def take(row: ElementRow | None, event: Established, seconds: float = 0) -> Turned:
    return drift.establish(row, event, event.elements[0], now=at(seconds))


def asked(row: ElementRow, seconds: float) -> ElementRow:
    (planned,) = visit.plan([row.evolve(next_visit_at=at(seconds))], {}, visit.Pace(), at(seconds)).elements
    return planned


def look(row: ElementRow, observation: Observation, seconds: float) -> Turned:
    return drift.observe(asked(row, seconds), observation, now=at(seconds), terms=TERMS)


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("move", list(Turn))
def test_every_stage_by_every_turn_moves_by_the_table_or_is_refused(stage: Stage, move: Turn) -> None:
    row = take(None, established()).row.evolve(stage=stage)
    if (stage, move) in TABLE:
        assert turn(row, move).stage is TABLE[stage, move]
    else:
        with pytest.raises(IllegalTurn):
            turn(row, move)


def test_an_element_becomes_healthy_only_by_comparing_an_observation() -> None:
    """Requirements: R1, R2. Neither a repair that succeeded nor a person's word makes anything healthy."""
    into_healthy = {key for key, to in TABLE.items() if to is Stage.HEALTHY}
    assert into_healthy == {(Stage.COMPARING, Turn.EQUAL), (Stage.VERIFY, Turn.EQUAL)}
    into_comparing = {move for (_, move), to in TABLE.items() if to is Stage.COMPARING}
    assert into_comparing == {Turn.OBSERVED}
    assert {to for (_, move), to in TABLE.items() if move is Turn.REPAIR_SUCCEEDED} == {Stage.VERIFY}


def test_the_way_of_a_drift_is_the_one_that_is_required() -> None:
    """DRIFT → CLASSIFYING → AUTO_REPAIR, RETRYABLE or MANUAL → REPAIR_QUEUE → VERIFY → HEALTHY, or ESCALATED.

    Requirements: R2
    """
    ways = {
        Turn.MENDABLE: Stage.AUTO_REPAIR,
        Turn.MENDABLE_AGAIN: Stage.RETRYABLE,
        Turn.NEEDS_PERSON: Stage.MANUAL,
        Turn.SPENT: Stage.ESCALATED,
    }
    row = take(None, established()).row.evolve(stage=Stage.COMPARING)
    drifted = turn(row, Turn.DIFFERENT)
    assert drifted.stage is Stage.DRIFT
    for move, stage in ways.items():
        routed = turn(drifted, Turn.CLASSIFY, move)
        assert routed.stage is stage
        queued = turn(routed, Turn.REPAIR_PLANNED)
        assert queued.stage is Stage.REPAIR_QUEUE
        verifying = turn(queued, Turn.REPAIR_SUCCEEDED, Turn.VISIT, Turn.OBSERVED, Turn.UNDECIDED, Turn.VISIT)
        assert verifying.stage is Stage.VERIFY
        assert turn(verifying, Turn.OBSERVED, Turn.EQUAL).stage is Stage.HEALTHY
        assert turn(verifying, Turn.OBSERVED, Turn.DIFFERENT, Turn.CLASSIFY, Turn.SPENT).stage is Stage.ESCALATED


# --- establishing -----------------------------------------------------------------------------------------------------


def test_a_verified_read_back_is_healthy_at_once_and_seen_again_a_minute_later() -> None:
    """Requirements: R1, R8"""
    turned = take(None, established(verified=True, observation=seen("publish")))
    row = turned.row
    assert (row.stage, row.phase, row.owed, turned.paid) == (Stage.HEALTHY, Phase.HEALTHY, False, ())
    assert row.next_visit_at == at(60)


@pytest.mark.parametrize(
    "observation", [None, seen("draft"), seen(verdict=ProbeVerdict.UNKNOWN), seen(verdict=ProbeVerdict.MISSING)]
)
def test_verified_is_not_believed_without_an_observation_that_says_so(observation: Observation | None) -> None:
    """Requirements: R5"""
    row = take(None, established(verified=True, observation=observation)).row
    assert row.phase is not Phase.HEALTHY
    assert row.owed
    assert row.next_visit_at == at(0)


def test_the_higher_revision_then_the_later_dispatch_owns_the_desired_value_in_every_order_of_arrival() -> None:
    """Requirements: R1"""
    events = [
        established("a", desired="draft", revision=1, sequence=2, seconds=3),
        established("b", desired="publish", revision=2, sequence=1, seconds=1),
        established("c", desired="private", revision=1, sequence=9, seconds=9),
    ]
    for order in permutations(events):
        row: ElementRow | None = None
        for event in order:
            row = take(row, event).row
        assert row is not None
        assert (row.command_id, row.desired) == ("cmd_b", "publish")


def test_what_an_older_operation_still_owed_is_taken_over_by_the_newer_one_in_either_order() -> None:
    old, new = established("old", sequence=1), established("new", sequence=2)
    first = take(take(None, old).row, new)
    assert [(paid.command_id, paid.superseded_by) for paid in first.paid] == [("cmd_old", "cmd_new")]
    assert first.row.owed
    second = take(take(None, new).row, old)
    assert [(paid.command_id, paid.superseded_by) for paid in second.paid] == [("cmd_old", "cmd_new")]
    assert second.row.command_id == "cmd_new"


def test_the_same_event_twice_changes_nothing_the_second_time() -> None:
    row = look(take(None, established()).row, seen("publish"), 1).row
    again = take(row, established())
    assert (again.row, again.changed, again.paid) == (row, False, ())


# --- observing --------------------------------------------------------------------------------------------------------


def test_an_equal_observation_pays_what_is_owed_once() -> None:
    """Requirements: R1"""
    first = look(take(None, established()).row, seen("publish"), 1)
    assert [(paid.command_id, paid.phase) for paid in first.paid] == [("cmd_1", Phase.HEALTHY)]
    assert look(first.row, seen("publish"), 61).paid == ()


def test_a_difference_inside_the_window_is_converging_and_after_it_drift() -> None:
    """Requirements: R4"""
    row = take(None, established(window_seconds=30)).row
    early = look(row, seen("draft"), 29)
    assert (early.row.phase, early.opened) == (Phase.CONVERGING, None)
    assert early.row.next_visit_at is not None
    assert early.row.next_visit_at <= at(30)
    late = look(early.row, seen("draft"), 30)
    assert late.row.phase is Phase.DRIFT
    assert late.opened is not None


def test_an_observation_asked_inside_the_window_is_no_drift_even_when_it_is_read_later() -> None:
    """Requirements: R4"""
    row = asked(take(None, established(window_seconds=30)).row, 29)
    assert drift.observe(row, seen("draft"), now=at(45), terms=TERMS).row.phase is Phase.CONVERGING


@pytest.mark.parametrize("before", ["pending", "healthy", "drift"])
@pytest.mark.parametrize(
    "observation", [seen(verdict=ProbeVerdict.UNKNOWN), seen(verdict=ProbeVerdict.MISSING, proof=False)]
)
def test_not_knowing_is_neither_healthy_nor_drift_and_keeps_open_what_is_open(
    before: str, observation: Observation
) -> None:
    """A timeout, or an absence without proof of access.

    Requirements: E4
    """
    row = take(None, established()).row
    if before != "pending":
        row = look(row, seen("publish" if before == "healthy" else "draft"), 1).row
    unknown = look(row, observation, 100)
    assert (unknown.row.phase, unknown.row.verdict) == (Phase.UNKNOWN, "UNKNOWN")
    assert (unknown.opened, unknown.closed, unknown.paid) == (None, None, ())
    assert unknown.row.obligation_id == row.obligation_id
    assert unknown.row.owed == row.owed
    assert unknown.row.observed == row.observed
    assert unknown.row.next_visit_at == at(102)


def test_a_deleted_object_found_later_is_drift_with_owner_deadline_and_the_whole_envelope() -> None:
    """Requirements: R8, Q2"""
    healthy = look(take(None, established()).row, seen("publish"), 1).row
    turned = look(healthy, seen(verdict=ProbeVerdict.MISSING), 3600)
    obligation = turned.opened
    assert obligation is not None
    assert (obligation.kind, obligation.status, obligation.version) == ("state_drift", "open", 1)
    assert (obligation.owner, obligation.deadline_at) == ("operators", at(3600 + 600))
    assert obligation.failure_class == FailureClass.RESOURCE_MISSING.value
    assert obligation.envelope["desired"] == "publish"
    assert obligation.envelope["decision_id"] == "dec_1"
    assert obligation.envelope["saga_id"] == "saga_1"
    assert obligation.envelope["last_known_good_at"] == rfc3339(at(1))


def test_drift_is_reported_once_closed_when_it_is_healthy_again_and_new_when_it_returns() -> None:
    row = take(None, established()).row
    first = look(row, seen("draft"), 1)
    assert first.opened is not None
    same = look(first.row, seen("draft"), 61)
    assert same.opened is None
    healed = look(same.row, seen("publish"), 400)
    assert healed.closed == (first.opened.obligation_id, "observed_healthy")
    closed = close(first.opened, "observed_healthy", at(400))
    assert (closed.status, closed.version, closed.resolution_type) == ("closed", 2, "observed_healthy")
    again = look(healed.row, seen("draft"), 500)
    assert again.opened is not None
    assert again.opened.obligation_id != first.opened.obligation_id


def test_a_newer_operation_closes_the_drift_of_the_older_one_as_superseded() -> None:
    first = look(take(None, established("old")).row, seen("draft"), 1)
    turned = take(first.row, established("new", sequence=2), 5)
    assert first.opened is not None
    assert turned.closed == (first.opened.obligation_id, "superseded")
    assert turned.row.obligation_id is None


def test_a_target_that_rewrites_a_value_in_the_declared_way_has_not_drifted() -> None:
    row = take(None, established(desired="Tom & Jerry")).row.evolve(normaliser="html_text")
    assert look(row, seen("<p>Tom &amp; Jerry</p>\n"), 1).row.phase is Phase.HEALTHY
    assert look(row.evolve(normaliser="exact"), seen("<p>Tom &amp; Jerry</p>\n"), 1).row.phase is Phase.DRIFT


# --- visits -----------------------------------------------------------------------------------------------------------


def test_healthy_objects_are_seen_again_ever_more_rarely_and_a_change_starts_over() -> None:
    """Requirements: R8"""
    row = take(None, established()).row
    now, gaps = 1.0, []
    for _ in range(8):
        row = look(row, seen("publish"), now).row
        assert row.next_visit_at is not None
        gaps.append((row.next_visit_at - at(now)).total_seconds())
        now += gaps[-1]
    assert gaps == [60, 300, 1800, 7200, 43200, 86400, 86400, 86400]
    changed = look(row, seen("draft"), now).row
    assert changed.next_visit_at == at(now + 60)


def test_not_knowing_is_asked_again_with_growing_delay() -> None:
    row, gaps, now = take(None, established()).row, [], 1.0
    for _ in range(8):
        row = look(row, seen(verdict=ProbeVerdict.UNKNOWN), now).row
        assert row.next_visit_at is not None
        gaps.append((row.next_visit_at - at(now)).total_seconds())
        now += gaps[-1]
    assert gaps == [2, 5, 15, 60, 300, 900, 3600, 3600]


def test_a_probe_that_is_not_answered_is_asked_again_under_a_new_id() -> None:
    first = asked(take(None, established()).row, 0)
    second = asked(first, 60)
    assert first.next_visit_at == at(60)
    assert second.visit_id != first.visit_id
    assert second.next_visit_at == at(180)


def test_all_due_elements_of_one_object_make_one_probe() -> None:
    event = established(elements=("wordpress.status", "wordpress.title"))
    rows = [drift.establish(None, event, item, now=at(0)).row for item in event.elements]
    other = take(None, established("2", resource="post/2")).row
    planned = visit.plan([*rows, other], {}, visit.Pace(), at(0))
    assert sorted((probe.resource, len(probe.elements)) for probe in planned.probes) == [("post/1", 2), ("post/2", 1)]
    assert {row.visit_id for row in planned.elements if row.resource == "post/1"} == {
        probe.visit_id for probe in planned.probes if probe.resource == "post/1"
    }


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 60), rate=st.sampled_from([1.0, 4.0, 10.0]), burst=st.integers(1, 10))
def test_visits_of_one_system_keep_the_rate_and_none_is_lost(count: int, rate: float, burst: int) -> None:
    """Only what the rate admits goes out in any stretch of time; everything goes out in the end."""
    pace = visit.Pace(visits_per_second=rate, burst=burst)
    waiting = {f"post/{number}": take(None, established(resource=f"post/{number}")).row for number in range(count)}
    paces: dict[str, visit.PaceRow] = {}
    sent: list[float] = []
    now = 0.0
    while waiting:
        assert now < 10 * count / rate + 10, "visits got stuck"
        due = [row for row in waiting.values() if row.next_visit_at is not None and row.next_visit_at <= at(now)]
        planned = visit.plan(due, paces, pace, at(now))
        paces.update((row.pace_key, row) for row in planned.paces)
        waiting.update((row.resource, row) for row in planned.elements)
        for probe in planned.probes:
            sent.append(now)
            del waiting[probe.resource]
        now += 0.25
    assert len(sent) == count
    for begin in sent:
        inside = sum(begin <= moment < begin + 1 for moment in sent)
        assert inside <= burst + rate + 1


# --- properties -------------------------------------------------------------------------------------------------------

OBSERVATIONS = st.builds(
    seen,
    st.sampled_from(["publish", "draft"]),
    verdict=st.sampled_from(list(ProbeVerdict)),
    proof=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(
    observations=st.lists(st.tuples(OBSERVATIONS, st.floats(0.1, 5000)), max_size=25),
    window=st.sampled_from([0.0, 100.0]),
)
def test_whatever_is_observed_health_needs_an_equal_value_and_an_element_always_has_a_next_visit(
    observations: list[tuple[Observation, float]], window: float
) -> None:
    """Requirements: R1, R4, E4"""
    row, now, open_drift = take(None, established(window_seconds=window)).row, 0.0, False
    for observation, gap in observations:
        now += gap
        turned = look(row, observation, now)
        row = turned.row
        equal = observation.verdict is ProbeVerdict.CONFIRMED and observation.value == "publish"
        decided = observation.verdict is ProbeVerdict.CONFIRMED or (
            observation.verdict is ProbeVerdict.MISSING and observation.proof_of_access
        )
        assert (row.phase is Phase.HEALTHY) == equal
        assert (row.phase is Phase.UNKNOWN) == (not decided)
        if row.phase is Phase.DRIFT:
            assert now >= window
        assert (turned.opened is not None) == (row.phase is Phase.DRIFT and not open_drift)
        open_drift = open_drift or turned.opened is not None
        if turned.closed is not None:
            assert equal
            assert open_drift
            open_drift = False
        assert (row.obligation_id is not None) == open_drift
        assert row.stage in RESTING
        assert row.next_visit_at is not None
        assert row.next_visit_at > at(now) or row.phase is Phase.CONVERGING


# --- retiring ---------------------------------------------------------------------------------------------------------


def retired(event: Established, by: str = "cmd_undo") -> Retired:
    """What `event` established is being undone."""
    item = event.elements[0]
    return Retired(
        command_id=event.command_id,
        workflow_id=event.workflow_id,
        tenant=event.tenant,
        system=event.system,
        revision=event.revision,
        sequence=event.sequence,
        retired_by=by,
        elements=((item.resource, item.element),),
        at=at(5),
    )


def test_what_is_being_undone_is_no_drift() -> None:
    """An undone effect is no longer desired: not visited, its drift closed, nothing owed. Requirements: S4"""
    event = established()
    row = take(None, event).row
    drifted = look(row.evolve(window_until=at(0)), seen("other", at=at(9)), 9).row if row.window_seconds else row
    item = event.elements[0]
    gone = retire(drifted, retired(event), item.resource, item.element)
    assert gone.row.stage is Stage.RETIRED and gone.row.next_visit_at is None and not gone.row.owed
    assert gone.closed == ((drifted.obligation_id, "retired") if drifted.obligation_id else None)
    assert not retire(gone.row, retired(event), item.resource, item.element).changed


@pytest.mark.parametrize("order", list(permutations(["made", "retired", "undone"])))
def test_retiring_in_any_order_ends_the_same(order: tuple[str, ...]) -> None:
    """What an operation established, its retirement and what the undoing established may come in any order.

    Requirements: R1
    """
    made = established().evolve(command_id="cmd_made", sequence=1)
    undone = established().evolve(command_id="cmd_undo", sequence=2)
    item = made.elements[0]
    row: ElementRow | None = None
    for name in (*order, *order):
        if name == "retired":
            row = retire(row, retired(made), item.resource, item.element).row
        else:
            row = take(row, made if name == "made" else undone).row
    assert row is not None and row.command_id == "cmd_undo" and row.retired_by is None


@pytest.mark.parametrize("order", [("made", "retired"), ("retired", "made")])
def test_a_retired_element_never_comes_back_by_itself(order: tuple[str, ...]) -> None:
    """Established that comes after its retirement changes nothing. Requirements: R1"""
    made = established().evolve(command_id="cmd_made", sequence=1)
    item = made.elements[0]
    row: ElementRow | None = None
    for name in order:
        turned = retire(row, retired(made), item.resource, item.element) if name == "retired" else take(row, made)
        row = turned.row
    assert row is not None and row.stage is Stage.RETIRED and row.next_visit_at is None
