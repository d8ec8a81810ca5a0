"""Repairs of drift: offered, bounded, verified by looking, and given to a person where they do not hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconciler.builders import at, established, offer, seen

from trueup_common.contracts.events import Established, RepairChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import Phase, ProbeVerdict
from trueup_reconciler.core import drift, repairs, visit
from trueup_reconciler.core.budget import Budget
from trueup_reconciler.core.drift import Terms
from trueup_reconciler.core.element import ElementRow, Stage
from trueup_reconciler.core.retire import retire
from trueup_reconciler.core.turned import Care, Turned

BUDGET = Budget(repairs_max=3, delays_seconds=(0.0, 60.0, 600.0), holds_seconds=3600.0, fights_max=2)
TERMS = Terms(care=Care(owner="operators", sla_seconds=600), budget=BUDGET)
GONE = seen(verdict=ProbeVerdict.MISSING)


def take(row: ElementRow | None, event: Established, seconds: float = 0) -> Turned:
    return drift.establish(row, event, event.elements[0], now=at(seconds))


def look(row: ElementRow, observation: Observation, seconds: float) -> Turned:
    (due,) = visit.plan([row.evolve(next_visit_at=at(seconds))], {}, visit.Pace(), at(seconds)).elements
    return drift.observe(due, observation, now=at(seconds), terms=TERMS)


def drifted(observation: Observation, *, seconds: float = 100, **options: Any) -> Turned:
    """An element that was healthy and is not any more."""
    row = look(take(None, established(repair=offer(**options))).row, seen("publish"), 1).row
    return look(row, observation, seconds)


def mended(row: ElementRow, number: int, seconds: float, *, verified: bool = False) -> Turned:
    """The repair command of this number succeeded."""
    event = established(
        f"r{number}",
        sequence=10 + number,
        repair=offer(),
        supersedes=row.repaired_by or row.command_id,
        verified=verified,
        observation=seen("publish", seconds=seconds) if verified else None,
        seconds=seconds,
    )
    return take(row, event, seconds)


def word(row: ElementRow, status: str, *, version: int = 1, repair: str = "rep_1", **fields: Any) -> RepairChanged:
    """What the planner says of the repair of an element's open drift."""
    assert row.obligation_id is not None
    return RepairChanged.model_construct(
        repair_id=repair,
        tenant=row.tenant,
        exception_id=derived_id("exc", row.obligation_id),
        status=status,
        version=version,
        command_id=fields.get("command_id"),
        drift={"system": row.system, "resource": row.resource, "element": row.element},
    )


def envelope_of(turned: Turned) -> dict[str, Any]:
    assert turned.opened is not None
    return turned.opened.envelope


# --- what is offered --------------------------------------------------------------------------------------------------


def test_a_drift_offers_the_command_that_brings_back_this_element_alone() -> None:
    """Requirements: R2, R3, R5. It names what it takes the place of, and binds the version that was seen."""
    turned = drifted(seen("draft", seconds=100))
    assert turned.row.stage is Stage.AUTO_REPAIR
    told = envelope_of(turned)
    assert told["repair"] == {
        "command_type": "wordpress.publish_post",
        "resource": "post",
        "payload": {"post_id": 1, "expected_modified_gmt": "v1"},
        "supersedes": "cmd_1",
        "verification": "the post is public again",
    }
    assert (told["route"], told["element"], told["desired"], told["observed"]) == (
        "AUTO_REPAIR", "wordpress.status", "publish", "draft",
    )  # fmt: skip
    assert (told["observed_at"], told["repairs_count"], told["human_review_required"]) == (
        rfc3339(at(100)), 0, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("repair", "observation"),
    [(None, seen("draft")), (offer(mends=("different",)), GONE), (offer(mends=("missing",)), seen("draft"))],
)
def test_what_no_command_can_bring_back_is_a_persons(repair: Any, observation: Observation) -> None:
    """Requirements: R2. Without a repair, or with one that does not mend this kind of difference."""
    row = look(take(None, established(repair=repair)).row, seen("publish"), 1).row
    turned = look(row, observation, 100)
    assert turned.row.stage is Stage.MANUAL
    told = envelope_of(turned)
    assert (told["route"], told["repair"], told["human_review_required"]) == ("MANUAL", None, True)


def test_a_later_look_tells_what_became_of_the_drift_and_not_that_it_is_still_there() -> None:
    """Requirements: R5. A repair that waits for its approval is offered against the newest observation."""
    turned = drifted(seen("draft", seconds=100))
    again = look(turned.row, seen("draft", seconds=160), 160)
    assert (again.restated, again.opened) == (None, None)
    assert again.row.stage is Stage.AUTO_REPAIR
    other = look(again.row, seen("private", seconds=220).evolve(version="v2"), 220)
    assert other.opened is None
    assert other.restated is not None
    assert other.restated[0] == turned.row.obligation_id
    facts = other.restated[1]
    assert (facts["observed"], facts["repair"]["payload"]["expected_modified_gmt"]) == ("private", "v2")


# --- a repair and its verification ------------------------------------------------------------------------------------


def test_a_repair_that_succeeded_is_verified_by_looking_and_by_nothing_else() -> None:
    """REPAIR_QUEUE → VERIFY → HEALTHY. The element stays the operation's that established it; both cases are paid.

    Requirements: R2, R3, Q7
    """
    row = drifted(seen("draft")).row
    queued = repairs.heard(row, word(row, "EXECUTING"), now=at(110), budget=BUDGET).row
    assert queued.stage is Stage.REPAIR_QUEUE
    done = repairs.heard(queued, word(row, "DONE", version=2), now=at(115), budget=BUDGET)
    assert (done.row.phase, done.row.obligation_id, done.closed) == (Phase.DRIFT, row.obligation_id, None)
    assert done.row.next_visit_at == at(115)
    turned = mended(queued, 1, 120)
    assert (turned.row.stage, turned.row.phase, turned.closed) == (Stage.VERIFY, Phase.DRIFT, None)
    assert (turned.row.command_id, turned.row.workflow_id) == ("cmd_1", "wf_1")
    assert (turned.row.next_visit_at, turned.displaced, turned.paid) == (at(120), None, ())
    healed = look(turned.row, seen("publish"), 121)
    assert healed.row.stage is Stage.HEALTHY
    assert healed.closed == (row.obligation_id, "observed_healthy")
    assert [(paid.command_id, paid.phase) for paid in healed.paid] == [("cmd_r1", Phase.HEALTHY)]


def test_a_read_back_of_the_repair_itself_is_an_observation() -> None:
    """Requirements: R2, E3"""
    row = drifted(seen("draft")).row
    turned = mended(row, 1, 120, verified=True)
    assert turned.row.stage is Stage.HEALTHY
    assert turned.closed == (row.obligation_id, "observed_healthy")
    assert not turned.row.repair_owed


def test_what_was_asked_before_the_repair_says_nothing_about_it() -> None:
    """Requirements: R5. The probe was sent before the effect; its answer is not taken for its verification."""
    row = drifted(seen("draft")).row
    (asked,) = visit.plan([row.evolve(next_visit_at=at(119))], {}, visit.Pace(), at(119)).elements
    assert asked.visit_id is not None
    assert mended(asked, 1, 120).row.visit_id is None
    assert repairs.heard(asked, word(row, "DONE"), now=at(120), budget=BUDGET).row.visit_id is None


def test_a_repair_whose_effect_was_seen_before_word_of_it_came_is_a_repair_still() -> None:
    """Requirements: R3, R9. The drift is closed by then; the element stays where it was, and the repair counts."""
    row = look(drifted(seen("draft")).row, seen("publish"), 119).row
    assert (row.stage, row.obligation_id) == (Stage.HEALTHY, None)
    turned = mended(row, 1, 120)
    assert (turned.row.command_id, turned.row.stage, turned.row.repairs_count) == ("cmd_1", Stage.VERIFY, 1)
    edited = take(row, established("other", desired="private", sequence=20, supersedes="cmd_1"), 121)
    assert edited.row.command_id == "cmd_other", "another end than before is no repair"


def test_the_repair_of_a_superseded_operation_is_known_by_what_it_supersedes() -> None:
    """Requirements: R1, R3. An operation that supersedes nothing, or something else, owns the element by its rank."""
    row = drifted(seen("draft")).row
    plain = take(row, established("other", sequence=20, repair=offer()), 120)
    assert (plain.row.command_id, plain.closed) == ("cmd_other", (row.obligation_id, "superseded"))
    foreign = take(row, established("other", sequence=20, supersedes="cmd_elsewhere"), 120)
    assert foreign.row.command_id == "cmd_other"


def test_a_second_repair_takes_the_place_of_the_first() -> None:
    """Requirements: R9, O6"""
    row = mended(drifted(seen("draft")).row, 1, 120, verified=True).row
    again = look(row, seen("draft", seconds=200), 200)
    assert envelope_of(again)["repair"]["supersedes"] == "cmd_r1"
    twice = mended(again.row, 2, 300)
    assert (twice.row.command_id, twice.row.repaired_by) == ("cmd_1", "cmd_r2")
    assert not mended(twice.row.evolve(repaired_by="cmd_r2"), 2, 301).changed, "the same message again"


def test_an_element_that_was_repaired_can_still_be_undone() -> None:
    """Requirements: S4, R3. Undoing the operation retires it, and its repair's case is owed nothing any more."""
    made = established(repair=offer())
    row = mended(drifted(seen("draft")).row, 1, 120).row
    from tests.reconciler.test_drift import retired

    gone = retire(row, retired(made), "post/1", "wordpress.status")
    assert (gone.row.stage, gone.row.next_visit_at) == (Stage.RETIRED, None)
    assert gone.closed == (row.obligation_id, "retired")
    assert [(paid.command_id, paid.superseded_by) for paid in gone.paid] == [("cmd_r1", "cmd_1")]


# --- the budget -------------------------------------------------------------------------------------------------------


def test_a_repair_that_does_not_hold_waits_longer_each_time_and_then_is_a_persons() -> None:
    """A target that shows another value each time: three repairs, farther and farther apart, and no fourth.

    Requirements: R9, R2
    """
    turned, waits, now = drifted(seen("value-0", seconds=100)), [], 100.0
    routes = [envelope_of(turned)["route"]]
    for number in range(1, 4):
        now += 20
        row = mended(turned.row, number, now).row
        now += 1
        turned = look(row, seen(f"value-{number}"), now)
        assert turned.opened is None, "it is one exception all the time"
        assert turned.restated is not None
        facts = turned.restated[1]
        routes.append(facts["route"])
        assert facts["repairs_count"] == number
        assert facts["held"] is False
        if facts["repair_not_before"] is not None:
            waits.append(facts["repair_not_before"])
            assert facts["repair_not_before"] == rfc3339(at(now - 1 + BUDGET.delays_seconds[number]))
    assert routes == ["AUTO_REPAIR", "RETRYABLE", "RETRYABLE", "ESCALATED"]
    assert len(waits) == 2
    assert (turned.row.stage, turned.row.automatic, turned.row.escalated_code) == (
        Stage.ESCALATED, False, "repairs_exhausted",
    )  # fmt: skip


def test_two_owners_of_one_value_are_told_from_a_target_that_fails() -> None:
    """Somebody puts the same other value back after every repair: a person hears of it before the budget is spent.

    Requirements: R9
    """
    turned, now = drifted(seen("draft", seconds=100)), 100.0
    for number in (1, 2):
        row = mended(turned.row, number, now + 10, verified=True).row
        now += 500
        turned = look(row, seen("draft"), now)
    told = envelope_of(turned)
    assert (told["route"], told["failure_code"], told["human_review_required"]) == ("ESCALATED", "owners_fight", True)
    assert turned.row.repairs_count == 2
    back = look(turned.row, seen("publish"), now + 50).row
    later = look(back, seen("draft"), now + 50 + 10 * BUDGET.holds_seconds)
    assert envelope_of(later)["route"] == "ESCALATED", "only a person lets it be repaired by itself again"


def test_what_held_for_long_starts_over() -> None:
    """Requirements: R9"""
    row = mended(drifted(seen("draft")).row, 1, 120, verified=True).row
    row = look(row, seen("publish"), 200).row
    soon = look(row, seen("draft"), 300)
    assert (envelope_of(soon)["route"], soon.row.repairs_count) == ("RETRYABLE", 1)
    late = look(row, seen("draft"), 120 + BUDGET.holds_seconds)
    assert (envelope_of(late)["route"], late.row.repairs_count, late.row.fights_count) == ("AUTO_REPAIR", 0, 0)


def test_a_repair_that_is_refused_counts_like_one_that_did_not_hold() -> None:
    """Requirements: R9, R2. Each word of the planner counts once, whatever is delivered twice or late."""
    row = drifted(seen("draft")).row
    row = repairs.heard(row, word(row, "EXECUTING"), now=at(110), budget=BUDGET).row
    turned = repairs.heard(row, word(row, "FAILED", version=2), now=at(120), budget=BUDGET)
    assert (turned.row.stage, turned.row.repairs_count) == (Stage.RETRYABLE, 1)
    assert turned.restated is not None
    assert turned.restated[1]["route"] == "RETRYABLE"
    assert turned.row.next_visit_at == at(120)
    for late in (word(row, "FAILED", version=2), word(row, "EXECUTING", version=1)):
        assert not repairs.heard(turned.row, late, now=at(130), budget=BUDGET).changed
    now, row = 130.0, turned.row
    for number in (2, 3):
        row = repairs.heard(row, word(row, "FAILED", repair=f"rep_{number}"), now=at(now), budget=BUDGET).row
    assert (row.stage, row.automatic) == (Stage.ESCALATED, False)


def test_what_the_planner_gives_to_a_person_is_told_once() -> None:
    """Planner and reconciler hear each other: neither may answer the other's answer for ever.

    Requirements: R9, Q8
    """
    row = drifted(seen("draft")).row
    turned = repairs.heard(row, word(row, "ESCALATED"), now=at(110), budget=BUDGET)
    assert (turned.row.stage, turned.row.automatic, turned.row.repairs_count) == (Stage.ESCALATED, False, 0)
    assert turned.restated is not None
    assert turned.restated[1]["route"] == "ESCALATED"
    for number, status in enumerate(("ESCALATED", "FAILED", "ESCALATED"), 2):
        again = repairs.heard(turned.row, word(row, status, repair=f"rep_{number}"), now=at(120), budget=BUDGET)
        assert again.restated is None
        assert again.row.next_visit_at == turned.row.next_visit_at
    assert look(again.row, seen("draft"), 200).row.stage is Stage.ESCALATED


def test_a_repair_that_fails_while_the_element_is_looked_at_counts_as_well() -> None:
    """Requirements: R9. Whatever stage the word meets: the next comparison routes by what was counted."""
    row = drifted(seen("draft")).row
    (asked,) = visit.plan([row.evolve(next_visit_at=at(109))], {}, visit.Pace(), at(109)).elements
    assert asked.stage is Stage.OBSERVING
    for number in (1, 2, 3):
        asked = repairs.heard(asked, word(row, "FAILED", repair=f"rep_{number}"), now=at(110), budget=BUDGET).row
    assert (asked.stage, asked.repairs_count, asked.automatic) == (Stage.OBSERVING, 3, False)
    assert look(asked, seen("draft"), 120).row.stage is Stage.ESCALATED


def test_one_repair_is_counted_once_though_it_succeeded_and_then_was_found_not_to_hold() -> None:
    """Requirements: R9"""
    row = mended(drifted(seen("draft")).row, 1, 120).row
    row = look(row, seen("private"), 130).row
    assert row.repairs_count == 1
    heard = repairs.heard(row, word(row, "FAILED", command_id="cmd_r1"), now=at(140), budget=BUDGET).row
    assert heard.repairs_count == 1


def test_a_word_about_an_earlier_drift_moves_nothing() -> None:
    row = drifted(seen("draft")).row
    old = word(row, "FAILED")
    healed = look(row, seen("publish"), 200).row
    assert not repairs.heard(healed, old, now=at(201), budget=BUDGET).changed
    anew = look(healed, seen("draft"), 300).row
    assert not repairs.heard(anew, old, now=at(301), budget=BUDGET).changed


def test_a_persons_word_gives_a_fresh_budget() -> None:
    """Requirements: R9, O3"""
    row = drifted(seen("draft")).row
    for number in (1, 2, 3):
        row = repairs.heard(row, word(row, "FAILED", repair=f"rep_{number}"), now=at(120), budget=BUDGET).row
    assert row.stage is Stage.ESCALATED
    turned = repairs.allowed_again(row, at(200), BUDGET)
    assert (turned.row.stage, turned.row.automatic, turned.row.repairs_count) == (Stage.AUTO_REPAIR, True, 0)
    assert turned.restated is not None
    assert (turned.restated[1]["route"], turned.restated[1]["human_review_required"]) == ("AUTO_REPAIR", False)


@pytest.mark.parametrize("said", ["a person allows it again", "ESCALATED", "FAILED"])
def test_a_look_under_way_ends_with_the_verification_that_it_was_for(said: str) -> None:
    """Requirements: R2, R9. Its late answer finds no stage that could take it, so the element is looked at anew."""
    row = mended(drifted(seen("draft")).row, 1, 110).row
    row = repairs.heard(row, word(row, "VERIFYING"), now=at(111), budget=BUDGET).row
    (asked,) = visit.plan([row.evolve(next_visit_at=at(112))], {}, visit.Pace(), at(112)).elements
    assert (asked.stage, asked.visit_id is None) == (Stage.VERIFY, False)
    if said in ("ESCALATED", "FAILED"):
        told = word(asked, said, version=2)
        after = repairs.heard(asked, told, now=at(113), budget=BUDGET).row
    else:
        after = repairs.allowed_again(asked, at(113), BUDGET).row
    assert after.stage is not Stage.VERIFY
    assert (after.visit_id, after.next_visit_at) == (None, at(113))
    assert look(after, seen("publish"), 113).row.stage is Stage.HEALTHY


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.tuples(st.sampled_from(["publish", "draft", "private", "gone"]), st.floats(1, 2000)), min_size=1, max_size=60
    )
)
def test_whatever_an_outsider_does_the_repairs_by_itself_are_bounded(values: list[tuple[str, float]]) -> None:
    """In any stretch in which nothing held, no more repairs begin by themselves than the budget has.

    Requirements: R9
    """
    row, now, number, by_itself = take(None, established(repair=offer())).row, 0.0, 0, 0
    for value, gap in values:
        now += gap
        turned = look(row, GONE if value == "gone" else seen(value), now)
        row = turned.row
        assert row.repairs_count <= BUDGET.repairs_max
        if row.repairs_count == 0:
            by_itself = 0
        if row.stage in (Stage.AUTO_REPAIR, Stage.RETRYABLE):
            number, by_itself = number + 1, by_itself + 1
            row = mended(row, number, now).row
            assert by_itself <= BUDGET.repairs_max
        if row.stage is Stage.ESCALATED:
            assert not row.automatic
