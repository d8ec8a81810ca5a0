"""The ways a case may go, one by one: forward, backward before the pivot, forward after it, to a person."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.orchestrator.sagas import DECLARATIONS, SEEN_GONE, Run, World, approval, command, document, effect, make

from trueup_common.contracts.declaration import Mapping
from trueup_common.contracts.events import ApprovalDecided, CaseChanged
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import (
    EffectClass,
    ErrorClass,
    FindVerdict,
    InstanceStatus,
    OperationState,
    ReceiptStatus,
)
from trueup_common.contracts.task import RunningAttempt
from trueup_orchestrator.core.decide import Beaten

FLAGSHIP = document(
    make("archive"),
    make("draft"),
    {"id": "validate", "check": [{"that": "steps.draft.ref != ''", "says": "the draft has no reference"}]},
    approval(),
    effect("publish", "site.publish"),
    effect("purge", "site.purge", needs=["publish"], on={"failed": "continue", "exhausted": "continue"}),
    effect("monitor", "site.show", needs=["publish"]),
    make("record", needs=["purge", "monitor"]),
)


def published(run: Run) -> Run:
    """Up to and including the pivot."""
    run.succeed("archive").succeed("draft").decide("approve", "approved")
    return run.succeed("publish")


def test_the_whole_way() -> None:
    """Steps run in order, branches side by side, and the case closes when what it owes is observed.

    Requirements: S1, S5
    """
    run = Run(FLAGSHIP)
    assert run.status is InstanceStatus.RUNNING and run.has("archive") and not run.has("draft")
    run.succeed("archive").succeed("draft")
    assert run.status is InstanceStatus.WAITING and run.case.instance.wait["reason"] == "approval"
    run.decide("approve", "approved")
    assert run.row("publish").approval_id == run.step("approve")["approval_id"]
    assert run.requests[run.row("publish").command_id].approval_id == run.row("publish").approval_id
    assert run.case.instance.pivot == "unknown"
    run.succeed("publish")
    assert run.case.instance.pivot == "passed"
    assert run.has("purge") and run.has("monitor") and not run.has("record")
    run.succeed("purge").succeed("monitor").succeed("record")
    assert run.status is InstanceStatus.VERIFYING
    run.verified("monitor")
    assert run.status is InstanceStatus.CLOSED and run.kinds == []
    assert sum(run.world.standing.values()) == 6


def test_failure_before_the_pivot_undoes_in_reverse() -> None:
    """A permanent failure before the pivot compensates every succeeded step in reverse order.

    Requirements: S1, S3, S4
    """
    run = Run(FLAGSHIP)
    run.succeed("archive").succeed("draft").decide("approve", "rejected")
    assert run.direction == "backward" and run.has("draft:undo") and not run.has("archive:undo")
    assert run.requests[run.row("draft:undo").command_id].compensation
    assert run.requests[run.row("draft:undo").command_id].compensates_type == "site.make"
    assert run.row("draft").compensation_state == "COMPENSATION_PENDING"
    run.succeed("draft:undo")
    assert run.row("draft").compensation_state == "COMPENSATED"
    run.succeed("archive:undo")
    assert run.status is InstanceStatus.COMPENSATED and sum(run.world.standing.values()) == 0


def test_a_clock_that_is_set_back_does_not_turn_the_order_of_undoing() -> None:
    """Sequences come from a clock; within one case a later dispatch stays the later one, whatever the clock says.

    Requirements: S4
    """
    run = Run(FLAGSHIP)
    run.sequence = -1000
    run.succeed("archive").succeed("draft").decide("approve", "rejected")
    assert run.row("draft").dispatch_sequence > run.row("archive").dispatch_sequence
    assert run.has("draft:undo") and not run.has("archive:undo")


def test_failure_after_the_pivot_goes_forward() -> None:
    """Nothing is undone after the pivot: the failed step is a person's, the rest is done.

    Requirements: S3
    """
    run = published(Run(FLAGSHIP)).fail("purge")
    assert run.direction == "forward" and run.kinds == ["failed"]
    run.succeed("monitor").verified("monitor").succeed("record")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["failed"]
    assert not any(row.compensates for row in run.case.operations)


def test_nothing_runs_backward_beside_an_unknown() -> None:
    """A branch that fails while another is unknown waits for the verdict before anything is undone.

    Requirements: S3
    """
    run = Run(document(make("a"), make("b", needs=["a"]), make("c", needs=["a"])))
    run.succeed("a").doubt("b", landed=True).fail("c")
    assert run.direction == "backward" and not run.has("a:undo") and not run.has("b:undo")
    run.settle("b", FindVerdict.CONFIRMED)
    assert run.has("b:undo") and not run.has("a:undo")
    run.succeed("b:undo").succeed("a:undo")
    assert run.status is InstanceStatus.COMPENSATED and sum(run.world.standing.values()) == 0


@pytest.mark.parametrize("landed", [True, False])
def test_cancel_while_publish_is_in_flight(landed: bool) -> None:
    """A cancel waits for the pivot's verdict: landed, a person takes over; absent, everything is undone.

    Requirements: L12, S5
    """
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").decide("approve", "approved").control("cancel")
    assert run.status is InstanceStatus.CANCEL_PENDING
    if landed:
        run.succeed("publish")
        assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["needs_review"]
        assert not any(row.compensates for row in run.case.operations)
        assert not run.has("purge")
    else:
        run.doubt("publish", landed=False).settle("publish", FindVerdict.MISSING)
        assert run.row("publish").state == "CANCELLED"
        run.succeed("draft:undo").succeed("archive:undo")
        assert run.status is InstanceStatus.CANCELLED and sum(run.world.standing.values()) == 0


def test_cancel_before_anything_is_out() -> None:
    """Unsent work is fenced, what waits is withdrawn, the case ends cancelled. Requirements: L12"""
    run = Run(FLAGSHIP).refuse("archive", "frozen", transient=True).control("cancel")
    assert run.status is InstanceStatus.CANCELLED and run.kinds == []
    waiting = Run(FLAGSHIP).succeed("archive").succeed("draft").control("cancel")
    assert waiting.step("approve")["phase"] == "WITHDRAWN"
    assert [asked.action for asked in waiting.sent if type(asked).__name__ == "ApprovalAsked"] == ["open", "withdraw"]
    waiting.succeed("draft:undo").succeed("archive:undo")
    assert waiting.status is InstanceStatus.CANCELLED


def test_failed_compensation_is_owned() -> None:
    """A compensation that fails for good becomes an exception of its own and stops the way back.

    Requirements: S4
    """
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").decide("approve", "rejected").fail("draft:undo")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["compensation_failed"]
    assert run.row("draft").compensation_state == "COMPENSATION_FAILED" and not run.has("archive:undo")
    assert run.case.obligations[0].failure_class == "COMPENSATION_FAILURE"


def test_unknown_compensation_is_owned() -> None:
    """A compensation whose outcome nobody knows is an exception until it is settled. Requirements: S4"""
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").decide("approve", "rejected")
    run.doubt("draft:undo", landed=True)
    assert run.kinds == ["unknown_outcome"] and run.row("draft").compensation_state == "COMPENSATION_UNKNOWN"
    run.settle("draft:undo", FindVerdict.CONFIRMED).succeed("archive:undo")
    assert run.status is InstanceStatus.COMPENSATED and run.kinds == []


def test_failed_check_goes_to_a_person() -> None:
    """A failed validation never goes on to publish: a person owns it, with everything that is wrong.

    Requirements: S7
    """
    wrong = {"id": "validate", "check": ["steps.a.ref == 'x'", {"that": "input.id == '8'", "says": "another article"}]}
    run = Run(document(make("a"), wrong, effect("publish", "site.publish"))).succeed("a")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["needs_review"]
    assert "another article" in run.step("validate")["reason"] and len(run.step("validate")["output"]["failed"]) == 2
    assert not run.has("publish")


def test_a_conflict_is_a_persons_and_nothing_is_overwritten() -> None:
    """A foreign object in the way ends in CONFLICT, owned by a person. Requirements: X7"""
    run = Run(FLAGSHIP).succeed("archive").fail("draft", ErrorClass.BUSINESS, "foreign_object")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["conflict"]


def test_approval_against_its_timer() -> None:
    """The timer only asks the row to expire; the row's word decides, and what comes late changes nothing.

    Requirements: L7, L8
    """
    run = Run(FLAGSHIP).succeed("archive").succeed("draft")
    run.tick(2 * 86400 + 1)
    assert run.step("approve")["phase"] == "WAITING"  # asked, not expired
    assert [asked.action for asked in run.sent if type(asked).__name__ == "ApprovalAsked"] == ["open", "expire"]
    approved = run.decide("approve", "approved")
    assert approved.has("publish")
    late = run.decide("approve", "expired")
    assert late.events[-1] == "LateApprovalReceived" and late.has("publish")
    expired = Run(FLAGSHIP).succeed("archive").succeed("draft").tick(2 * 86400 + 1).decide("approve", "expired")
    assert expired.status is InstanceStatus.HUMAN_TAKEOVER and expired.kinds == ["needs_review"]
    assert not expired.has("publish")


def test_approval_of_other_content_moves_nothing() -> None:
    """A decision about another content hash is noted and changes nothing. Requirements: S6"""
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").decide("approve", "approved", content="0" * 64)
    assert run.status is InstanceStatus.WAITING and not run.has("publish")


WAITS = document(
    make("a"),
    {
        "id": "measured",
        "wait": {"event": "measurement", "match": "event.ok == true", "timeout": "PT8H", "owner": "shift"},
    },
    make("b"),
)


def test_wait_takes_its_event() -> None:
    """An event that fits ends the wait, one that does not is held, a late one changes nothing.

    Requirements: L7, L8
    """
    run = Run(WAITS).succeed("a")
    assert run.status is InstanceStatus.WAITING and run.case.instance.wait["owner"] == "shift"
    run.signal("measurement", {"ok": False}, "e0")
    assert run.case.instance.signals[-1]["disposition"] == "held" and not run.has("b")
    run.signal("measurement", {"ok": True}, "e1")
    assert run.has("b") and run.step("measured")["output"]["event_id"] == "e1"
    run.signal("measurement", {"ok": True}, "e2")
    assert run.case.instance.signals[-1] == {"event_id": "e2", "disposition": "late", "version": 1}


def test_early_event_is_held_for_its_wait() -> None:
    """An event before its wait is held and taken when the wait opens; a duplicate changes nothing. Requirements: L9"""
    run = Run(WAITS).signal("measurement", {"ok": True}, "e1").signal("measurement", {"ok": True}, "e1")
    assert [item["disposition"] for item in run.case.instance.signals] == ["held"]
    run.succeed("a")
    assert run.has("b") and run.case.instance.signals[-1]["disposition"] == "accepted"
    assert run.case.instance.held == []


def test_wait_times_out() -> None:
    """Nobody answered in time: the case is a person's by default. Requirements: L7"""
    run = Run(WAITS).succeed("a").tick(8 * 3600 + 1)
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["needs_review"]
    assert run.signal("measurement", {"ok": True}, "e9").case.instance.signals[-1]["disposition"] == "late"


def test_pause_and_resume() -> None:
    """A paused case sends nothing new; what is out settles; resumed, it goes on where it was. Requirements: S5"""
    run = Run(FLAGSHIP).control("pause").succeed("archive")
    assert run.status is InstanceStatus.PAUSED and not run.has("draft")
    run.control("resume")
    assert run.status is InstanceStatus.RUNNING and run.has("draft")
    again = Run(FLAGSHIP).control("pause").fail("archive", ErrorClass.TRANSIENT, "unavailable").tick(10)
    assert again.row("archive").state == "QUEUED" and len(again.sent) == 1
    assert again.control("resume").row("archive").proposed


def test_two_cases_about_one_object() -> None:
    """The second case about an object is refused while the first is open; nothing of it happens. Requirements: X7"""
    run = Run(FLAGSHIP, number=2, locks={"object:article:7": "wf_other"})
    assert run.status is InstanceStatus.CANCELLED and run.case.instance.resolution_type == "object_in_use"
    assert run.case.operations == ()


def test_a_case_may_queue_for_its_object() -> None:
    """With `queue` the second case waits with an owner and a deadline, then runs. Requirements: X7, L7"""
    doc = document(make("a"), object={"type": "article", "id": "${input.id}", "concurrency": "queue"})
    run = Run(doc, number=2, locks={"object:article:7": "wf_other"})
    assert run.status is InstanceStatus.WAITING and run.case.instance.wait["reason"] == "lock"
    run.locks.clear()
    run.tick(60)
    assert run.status is InstanceStatus.RUNNING and run.has("a")
    starved = Run(doc, number=3, locks={"object:article:7": "wf_other"}).tick(86400)
    assert starved.status is InstanceStatus.CANCELLED


def test_second_case_attaches_and_never_undoes() -> None:
    """A step whose key stands for the same effect attaches to it; the attached case never undoes it.

    Requirements: I2, S1
    """
    world = World()
    first = Run(document(make("a")), world=world).succeed("a")
    assert first.status is InstanceStatus.CLOSED
    doc = document(make("a"), approval())
    second = Run(doc, world=world, number=2)
    assert second.step("a")["attached"] and second.step("a")["command_id"] == first.row("a").command_id
    assert second.status is InstanceStatus.WAITING and second.case.operations == ()
    second.decide("approve", "rejected")
    assert second.status is InstanceStatus.COMPENSATED
    assert world.standing[first.row("a").command_id] == 1


def test_an_effect_on_its_way_out_is_not_relied_on() -> None:
    """Who needs an effect that another case is just undoing waits for that, and then causes one of its own.

    Requirements: I2, S1
    """
    world = World()
    first = Run(document(make("a"), approval()), world=world).succeed("a").decide("approve", "rejected")
    second = Run(document(make("a")), world=world, number=2)
    assert second.status is InstanceStatus.RUNNING and second.step("a")["attached"]
    assert second.tick(6).status is InstanceStatus.RUNNING
    first.succeed("a:undo")
    second.tick(6)
    assert second.row("a").generation == 2
    assert second.succeed("a").status is InstanceStatus.CLOSED
    assert world.standing[second.row("a").command_id] == 1


def test_an_effect_that_is_taken_from_under_a_case_is_a_persons() -> None:
    """Another case undoes what this one had attached to: it never goes on as if the effect were there.

    Requirements: S1, X7
    """
    world = World()
    first = Run(document(make("a"), approval()), world=world).succeed("a")
    second = Run(document(make("a"), approval()), world=world, number=2)
    assert second.status is InstanceStatus.WAITING and second.step("a")["attached"]
    first.decide("approve", "rejected").succeed("a:undo")
    second.decide("approve", "approved")
    assert second.status is InstanceStatus.HUMAN_TAKEOVER and second.kinds
    assert second.case.instance.turned["reason"] == "attached_effect_undone"


def test_key_of_another_effect_is_a_conflict() -> None:
    """The same key for another payload is refused. Requirements: I2"""
    world = World()
    Run(document(make("a")), world=world).succeed("a")
    other = document({**make("a"), "with": {"of": "something else"}})
    run = Run(other, world=world, number=2)
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.row("a").error_code == "identity_in_use"


def test_redone_after_undoing_is_a_new_generation() -> None:
    """Compensation ends a generation: the same key may be used again, as generation 2. Requirements: I2"""
    world = World()
    first = Run(document(make("a"), approval()), world=world).succeed("a").decide("approve", "rejected")
    first.succeed("a:undo")
    second = Run(document(make("a"), approval()), world=world, number=2)
    assert second.row("a").generation == 2 and second.row("a").command_id != first.row("a").command_id


def test_too_many_actions() -> None:
    """The mandate's number of effects is a limit. Requirements: L3"""
    run = Run(document(make("a"), make("b")), actions_max=1).succeed("a")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and not run.has("b")
    assert run.case.instance.turned["reason"] == "actions_exhausted"


def test_lifetime_ends_in_a_persons_hands() -> None:
    """A case that outlives its lifetime is handed over, never lost. Requirements: L7"""
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").tick(7 * 86400 + 1)
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds


def test_reactions_of_the_document() -> None:
    """What the document says of a bad end is done. Requirements: S5"""
    stop = Run(document(make("a"), make("b", on={"failed": "safe_stop"}))).succeed("a").fail("b")
    assert stop.status is InstanceStatus.SAFE_STOPPED and stop.kinds
    take = Run(document(make("a"), make("b", on={"failed": "takeover"}))).succeed("a").fail("b")
    assert take.status is InstanceStatus.HUMAN_TAKEOVER and not take.has("a:undo")
    cancel = Run(document(make("a"), make("b", on={"failed": "cancel"}))).succeed("a").fail("b").succeed("a:undo")
    assert cancel.status is InstanceStatus.CANCELLED
    skip = Run(document(make("a", on={"failed": {"goto": "c"}}), make("b"), make("c", needs=["a"]))).fail("a")
    assert skip.step("a")["phase"] == "SKIPPED" and skip.has("c")


def test_guard_skips_a_step() -> None:
    """A step whose guard is false is skipped, and what needs it goes on. Requirements: S5"""
    run = Run(document(make("a", when="input.id == '8'"), make("b")))
    assert run.step("a")["phase"] == "SKIPPED" and run.has("b")


def test_transient_failures_retry_and_exhaust() -> None:
    """Transient failures retry within the budget; exhausted, the step is a person's. Requirements: S5"""
    run = Run(document(make("a"), make("b"))).succeed("a")
    for _ in range(2):
        run.fail("b", ErrorClass.TRANSIENT, "unavailable").tick(30)
    run.fail("b", ErrorClass.TRANSIENT, "unavailable")
    assert run.row("b").state == "DEAD_LETTERED"
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["dead_letter"]


def test_cancel_of_a_case_in_a_persons_hands() -> None:
    """A case that waits for a person can still be cancelled, and is then undone. Requirements: L12"""
    wrong = {"id": "validate", "check": ["input.id == '8'"]}
    run = Run(document(make("a"), wrong)).succeed("a")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    run.control("cancel").succeed("a:undo")
    assert run.status is InstanceStatus.CANCELLED and run.kinds == []


def test_a_payload_that_does_not_fit_is_never_sent() -> None:
    """What the expressions made of a payload is checked before anything is sent: before the pivot, all is undone.

    Requirements: X8, S3
    """
    strict = command("strict", EffectClass.RETRYABLE, payload_schema={"type": "object", "required": ["count"]})
    doc = document(make("a"), effect("b", "site.strict"))
    run = Run(doc, declarations={**DECLARATIONS, strict.type: strict}).succeed("a")
    assert not run.has("b") and "does not fit" in run.step("b")["reason"]
    run.succeed("a:undo")
    assert run.status is InstanceStatus.COMPENSATED


def test_an_accepted_bad_end_without_an_effect_is_no_exception() -> None:
    """Where the document goes on past a check, a wait or an approval, nothing is missing outside: the case closes.

    Requirements: S5
    """
    doubtful = {"id": "look", "check": ["input.id == '8'"], "on": {"failed": "continue"}}
    run = Run(document(doubtful, make("a"))).succeed("a")
    assert run.status is InstanceStatus.CLOSED and run.kinds == [] and run.step("look")["phase"] == "FAILED"


def test_nobody_is_woken_again_and_again() -> None:
    """A wake-up that passed is never left standing: each look either moves on or sets the next one. Requirements: L7"""
    queue = document(
        make("a"),
        object={"type": "article", "id": "${input.id}", "concurrency": "queue", "queue_timeout": "P30D"},
        lifetime="P1D",
    )
    outlived = Run(queue, number=2, locks={"object:article:7": "wf_other"}).tick(86400 + 1)
    waiting = Run(WAITS).succeed("a").tick(8 * 3600 + 1)
    asked = Run(FLAGSHIP).succeed("archive").succeed("draft").tick(2 * 86400 + 1)
    for run in (outlived, waiting, asked):
        wake = run.case.instance.wake_at
        assert wake is None or wake > run.at.business
        assert run.case.instance.deadline_at > run.at.business


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (effect("late", "site.make", **{"with": {"text": "${input.text}" * 3}}), "bytes"),
        (effect("late", "site.make", key="${input.text}"), "characters"),
        (effect("late", "site.make", resource="${input.text}"), "characters"),
        (effect("late", "site.make", **{"with": {"text": '${"\\u0000" + input.id}'}}), "NUL"),
        (approval("late", rule={"shows": {"text": "${input.text}"}}), "bytes"),
    ],
)
def test_what_no_message_can_hold_fails_its_step(step: dict[str, Any], reason: str) -> None:
    """Much made out of little ends the step before anything is tried; the case is a person's, and nothing hangs.

    Requirements: S1, L7
    """
    wait = {"id": "word", "wait": {"event": "go", "timeout": "PT5S", "owner": "editors"}, "on": {"timeout": "continue"}}
    data = {"id": "7", "text": "x" * 100_000}
    run = Run(document(wait, {**step, "on": {}}, input={"type": "object", "properties": {}}), data=data)
    run.tick(6)
    assert reason in run.step("late")["reason"]
    assert run.status is not InstanceStatus.RUNNING and not run.has("late") and run.direction != "forward"


def test_what_is_held_and_read_stays_here() -> None:
    """Data of events that are held or were taken is not told along with the case: together they fit no message."""
    rule = {"timeout": "PT5M", "owner": "editors"}
    steps = [{"id": f"w{n}", "wait": {"event": name, **rule}} for n, name in enumerate(("go", "stay", "go"))]
    run = Run(document(*steps))
    for number in range(10):
        run.signal("go", {"text": "x" * 60_000}, f"e{number}")
    assert run.case.instance.held and run.case.instance.steps[0]["output"]["data"]
    assert max(len(message) for message in run.told) < 50_000


def test_a_long_lock_is_one_lock_nevertheless() -> None:
    """A declared lock may be as long as its input: the row holds its hash, and two such cases exclude each other."""
    run = Run(document(make("draft"), locks=["${input.text}"]), data={"id": "7", "text": "x" * 100_000})
    lock = next(item for item in run.case.instance.locks if item.startswith("declared:"))
    assert len(lock) < 100
    other = Run(
        document(make("draft"), locks=["${input.text}"]),
        data={"id": "8", "text": "x" * 100_000},
        locks={lock: "wf_other"},
        number=2,
    )
    assert other.status is InstanceStatus.CANCELLED and other.case.instance.resolution_type == "object_in_use"


def test_a_pause_has_an_owner() -> None:
    """A paused case waits for somebody, also where no step waits for anything. Requirements: L7"""
    run = Run(document(make("a"), make("b"))).control("pause").succeed("a")
    assert run.status is InstanceStatus.PAUSED and not run.has("b")
    wait = run.case.instance.wait
    assert wait is not None and (wait["reason"], wait["expects"]) == ("paused", "resume")
    assert wait["owner"] and wait["deadline"]
    assert run.control("resume").has("b") and run.case.instance.wait is None


WORD = {"event": "go", "timeout": "PT5M", "owner": "editors"}


def test_an_event_is_taken_only_with_data_as_declared() -> None:
    """What later steps read of an event is what the document says that it is: another event is held, not taken.

    Requirements: L8
    """
    schema = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}
    run = Run(document({"id": "w", "wait": {**WORD, "match": "event.number > 3", "data": schema}}))
    for number, data in enumerate(({"number": 4.5}, {"number": "9"}, None, [9])):
        run.signal("go", data, f"bad{number}")
    assert run.step("w")["phase"] == "WAITING" and len(run.case.instance.held) == 4
    assert run.signal("go", {"number": 4}, "good").step("w")["output"]["data"] == {"number": 4}


def test_who_sends_an_event_that_no_step_takes_hears_why() -> None:
    """Held because of its data, held because of the condition, held because it is early, late because nothing is named
    so: four different things, and only the sender can put them right.

    Requirements: L8, L9
    """
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    first = {"id": "reply", "wait": {**WORD, "match": "event.id == 'a'", "data": schema}}
    second = {"id": "later", "needs": ["reply"], "wait": {**WORD, "event": "stop"}}
    run = Run(document(first, second))
    run.signal("go", {}, "no-id").signal("go", {"id": "b"}, "other")
    run.signal("stop", None, "soon").signal("gone", 1, "odd")
    notes = [item for item in run.history if "Signal" in item.type]
    told = {item.payload["event_id"]: (item.type, item.payload["reason"]) for item in notes}
    assert told == {
        "no-id": ("SignalHeld", 'held for reply: the data does not fit: /data: "id" is a required property'),
        "other": ("SignalHeld", "held for reply: match is false"),
        "soon": ("SignalHeld", "held for later: it does not wait yet"),
        "odd": ("LateSignalReceived", "no step waits for gone; this document waits for go, stop"),
    }


def test_what_is_still_held_at_the_end_is_late() -> None:
    """An event that was held for a wait that never took it is disposed of when the case ends. Requirements: L8"""
    run = Run(document({"id": "w", "wait": {**WORD, "match": "event.number > 3"}}))
    run.signal("go", {"number": 1}, "early").signal("go", {"number": 9}, "good")
    assert run.status is InstanceStatus.CLOSED and not run.case.instance.held
    assert {item["event_id"]: item["disposition"] for item in run.case.instance.signals} == {
        "early": "late",
        "good": "accepted",
    }


def test_a_case_on_its_way_back_stops_where_the_pivot_stands_after_all() -> None:
    """Even a case that had already turned back undoes nothing once the pivot is known to stand. Requirements: S3"""
    run = published(Run(FLAGSHIP))
    turned = run.case.instance.evolve(direction="backward", turned={"reason": "late_news", "step_id": "publish"})
    run.case = replace(run.case, instance=turned)
    run.tick()
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds
    assert not any(row.compensates for row in run.case.operations)


def test_who_decides_on_stale_operations_loses_the_race() -> None:
    """Whatever changes an operation moves the case, so that two replicas never decide on each other's stale rows.

    Requirements: L5
    """
    run = Run(document(make("a")))
    row = run.row("a")

    def beat(progress: int) -> Beaten:
        attempt = RunningAttempt(command_id=row.command_id, tenant="acme", fence=row.fence, progress=progress)
        return Beaten(attempt, "adapters#1", run.at.real)

    run.hear(beat(1), row.command_id).wait(8)
    before = run.case.instance.state_version, len(run.history), run.row("a").lease_expires_at
    run.wait(24).hear(beat(1), row.command_id)
    assert len(run.history) == before[1] and run.row("a").lease_expires_at != before[2], "only the lease moved"
    assert run.case.instance.state_version == before[0] + 1


def test_what_a_person_must_find_out_keeps_the_way_back_closed() -> None:
    """Cancelled while nobody knows what became of one step: nothing is undone beside it.

    Requirements: S3
    """
    run = Run(document(make("a"), make("b", needs=["a"]), make("c", needs=["b"])))
    run.succeed("a").doubt("b", landed=True).settle("b", FindVerdict.UNKNOWN)
    assert run.row("b").state == "NEEDS_REVIEW" and run.status is InstanceStatus.HUMAN_TAKEOVER
    run.control("cancel")
    assert run.direction == "backward" and not run.has("a:undo") and not run.has("b:undo")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.kinds == ["needs_review"]


def test_what_was_there_before_is_not_undone() -> None:
    """A compensation that holds only for what this operation created leaves everything else alone.

    Requirements: S4
    """
    only = Mapping(
        command_type="site.unmake",
        payload={"ref": ValueFrom(pointer="/receipt/ref")},
        only_if=ValueFrom(pointer="/receipt/created"),
    )
    declarations = {**DECLARATIONS, "site.make": command("make", EffectClass.COMPENSABLE, compensation=only)}
    for created, undone in ((None, False), (False, False), (True, True)):
        run = Run(document(make("a"), approval()), declarations=declarations)
        said = run.receipt(run.row("a"), ReceiptStatus.CONFIRMED)
        run.world.apply(run.row("a"))
        run.hear(said.evolve(result={"ref": "r", **({} if created is None else {"created": created})}))
        run.decide("approve", "rejected")
        assert run.has("a:undo") is undone
        if not undone:
            assert run.status is InstanceStatus.COMPENSATED and run.row("a").compensation_state == "NONE"


def test_an_answer_to_an_earlier_question_moves_nothing() -> None:
    """Only the approval that the step waits for now decides it, also where the content is the same.

    Requirements: S6
    """
    run = Run(FLAGSHIP).succeed("archive").succeed("draft")
    state = run.step("approve")
    run.tell(
        ApprovalDecided(
            approval_id="apr_of_an_earlier_round",
            workflow_id=run.case.instance.workflow_id,
            tenant="acme",
            step_id="approve",
            outcome="approved",
            reviewer="operator:ann",
            content_sha256=state["content_sha256"],
            decision_id="dec_1",
            decided_at=run.at.business,
        )
    )
    assert run.events[-1] == "LateApprovalReceived"
    assert run.status is InstanceStatus.WAITING and not run.has("publish")


def test_the_last_that_happens_by_itself_is_told_durably() -> None:
    """All is undone and only to be observed still: nothing ahead would bring along what was told in passing and lost.

    Requirements: M1
    """
    run = Run(document(make("a"), make("b"), approval()), declarations=SEEN_GONE)
    run.succeed("a").succeed("b").decide("approve", "rejected").succeed("b:undo").succeed("a:undo")
    instance = run.case.instance
    assert instance.status is InstanceStatus.COMPENSATING and len(instance.owed) == 2
    assert instance.published_seq == instance.history_seq


def test_what_is_durable_tells_all_that_happened_since() -> None:
    """Progress may have been lost on the way: the end names every operation and every event, not only the last.

    Requirements: M1
    """
    run = Run(document(make("a"), make("b"), make("c")))
    run.succeed("a").succeed("b")
    assert run.case.instance.published_seq < run.case.instance.history_seq
    run.succeed("c")
    told = CaseChanged.model_validate_json(run.told[-1])
    assert told.instance.published_seq == told.instance.history_seq
    assert {row.step_id for row in told.operations} == {"a", "b", "c"}
    assert [event.seq for event in told.history] == list(range(1, told.instance.history_seq + 1))


def test_a_failed_attempt_of_a_running_workflow_is_told_durably() -> None:
    """Its retry may be hours away: nothing would bring along what was told in passing and lost.

    Requirements: M1
    """
    run = Run(document(make("a"), make("b")))
    run.succeed("a")
    assert run.case.instance.published_seq < run.case.instance.history_seq
    run.fail("b", ErrorClass.TRANSIENT, "unavailable")
    assert (run.row("b").state, run.case.instance.status) == (OperationState.RETRY_PENDING, InstanceStatus.RUNNING)
    assert run.case.instance.published_seq == run.case.instance.history_seq
