"""What people do with a workflow: taken over at once, handed back on purpose, undone, resumed, closed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.orchestrator.cases import At
from tests.orchestrator.sagas import Run, approval, document, effect, make

from trueup_common.contracts.states import (
    CompensationState,
    ErrorClass,
    FindVerdict,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.workflow import Direction, StepPhase

S = OperationState

FLOW = document(
    make("draft"), approval(), effect("publish", "site.publish", needs=["approve"]), effect("purge", "site.purge")
)
TAKES_OVER = document(
    make("first"),
    make("second", on={"failed": "takeover", "exhausted": "takeover"}),
    effect("publish", "site.publish"),
)


def stuck() -> Run:
    """A case in a person's hands: its second step failed before the pivot."""
    run = Run(TAKES_OVER).succeed("first").fail("second")
    assert (run.status, run.direction) == (InstanceStatus.HUMAN_TAKEOVER, Direction.PERSON)
    return run


def test_a_case_that_is_taken_over_sends_nothing_new_and_comes_back_on_purpose() -> None:
    """Automation stops at once; it goes on only when it is handed back, with new time, and what was withdrawn is asked
    anew.

    Requirements: L14, P3
    """
    run = Run(FLOW).succeed("draft")
    first = run.step("approve")["approval_id"]
    run.control("TAKE_OVER")
    assert (run.status, run.step("approve")["phase"]) == (InstanceStatus.HUMAN_TAKEOVER, StepPhase.WITHDRAWN)
    assert run.ended["opc_1"].state == "DONE" and run.kinds == ["needs_review"]
    deadline = run.case.instance.deadline_at
    run.tick(3600).decide_late(first)
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and not run.has("publish")
    run.control("HAND_BACK", deadline_at=At(deadline).later(60).business)
    assert (run.status, run.direction) == (InstanceStatus.WAITING, Direction.FORWARD)
    assert run.case.instance.deadline_at > deadline and run.kinds == []
    assert run.step("approve")["approval_id"] != first
    run.decide("approve", "approved").succeed("publish").succeed("purge")
    assert run.status is InstanceStatus.CLOSED
    assert [name for name in run.events if name in ("CaseTakenOver", "CaseHandedBack")] == [
        "CaseTakenOver",
        "CaseHandedBack",
    ]


def test_what_is_out_when_a_case_is_taken_over_settles_and_stays() -> None:
    """An effect in flight lands; handed back, the case goes on from it.

    Requirements: L14
    """
    run = Run(FLOW).control("TAKE_OVER")
    assert run.row("draft").cancel_requested
    run.control("HAND_BACK")
    assert not run.row("draft").cancel_requested
    run.succeed("draft")
    assert run.step("approve")["phase"] == StepPhase.WAITING


def test_a_redriven_step_brings_its_case_forward_again() -> None:
    """Requirements: O3, L14"""
    run = stuck()
    run.operate("second", "REDRIVE")
    assert run.direction == Direction.FORWARD and run.row("second").state is S.OUTCOME_UNKNOWN
    assert run.kinds == ["failed"], "the exception stays until it is true"
    run.settle("second", FindVerdict.MISSING).tick(10)
    assert run.requests[run.row("second").command_id].task.decided_by == "opc_1"
    run.succeed("second").succeed("publish")
    assert run.status is InstanceStatus.CLOSED and run.kinds == []
    assert run.ended["opc_1"].result["state"] == "SUCCESS"


@pytest.mark.parametrize(
    ("first", "then", "ends"),
    [
        ("PAUSE", ("PAUSE", "RESUME"), ("DONE", "REFUSED", "DONE")),
        ("TAKE_OVER", ("TAKE_OVER", "HAND_BACK", "HAND_BACK"), ("DONE", "REFUSED", "DONE", "REFUSED")),
        ("TAKE_OVER", ("COMPENSATE", "COMPENSATE"), ("DONE", "REFUSED")),
        ("TAKE_OVER", ("RESUME", "PAUSE"), ("DONE", "DONE", "DONE")),
        ("PAUSE", ("TAKE_OVER", "RESUME"), ("DONE", "DONE", "DONE")),
    ],
)
def test_an_act_is_judged_by_what_the_acts_before_it_did(first: str, then: tuple[str, ...], ends: tuple[str]) -> None:
    """Also where all of them come in one commit: what is refused does not depend on how messages were gathered.

    Requirements: L14, O3, I5
    """
    together, apart = Run(FLOW).succeed("draft"), Run(FLOW).succeed("draft")
    together.act(None, first, beside=then)
    apart.control(first)
    for action in then:
        apart.control(action)
    assert tuple(together.ended[name].state for name in sorted(together.ended)) == ends
    assert tuple(apart.ended[name].state for name in sorted(apart.ended)) == ends
    assert (together.status, together.direction) == (apart.status, apart.direction)


def published() -> Run:
    """A case after its pivot, with a step on its way."""
    return (
        Run(document(make("draft"), effect("publish", "site.publish"), effect("purge", "site.purge")))
        .succeed("draft")
        .succeed("publish")
    )


@pytest.mark.parametrize("then", ["CANCEL", "COMPENSATE", "HAND_BACK", "RESUME", "TAKE_OVER", "MARK_RESOLVED"])
@pytest.mark.parametrize("first", ["CANCEL", "COMPENSATE"])
def test_a_case_that_was_sent_backwards_is_nobody_elses_any_more(first: str, then: str) -> None:
    """It was in a person's hands, and two people act at once: the second is refused, in one commit as in two, and the
    first hears how it ended.

    Requirements: L12, L14, O3, I5
    """
    ways = []
    for run in (stuck().control(first, beside=(then,)), stuck().control(first).control(then)):
        assert run.ended["opc_2"].state == "REFUSED" and "opc_1" not in run.ended
        run.succeed("first:undo")
        assert (run.ended["opc_1"].state, run.ended["opc_1"].result["status"]) == ("DONE", run.status.value)
        ways.append(run.status)
    end = InstanceStatus.CANCELLED if first == "CANCEL" else InstanceStatus.COMPENSATED
    assert ways == [end, end]


@pytest.mark.parametrize("then", ["HAND_BACK", "RESUME"])
def test_a_cancel_that_only_made_a_case_a_persons_is_overtaken(then: str) -> None:
    """After the pivot nothing is undone. Who cancelled hears how it stands, or who took it from there at once.

    Requirements: L12, L14, S3
    """
    apart = published().control("CANCEL")
    assert (apart.ended["opc_1"].state, apart.ended["opc_1"].result) == ("DONE", {"status": "HUMAN_TAKEOVER"})
    apart.control(then)
    together = published().control("CANCEL", beside=(then,))
    assert (together.ended["opc_1"].state, together.ended["opc_1"].result) == ("DONE", {"overtaken_by": "opc_2"})
    for run in (apart, together):
        assert run.ended["opc_2"].state == "DONE" and run.direction == Direction.FORWARD
        assert run.succeed("purge").status is InstanceStatus.CLOSED


@pytest.mark.parametrize("then", ["CANCEL", "COMPENSATE"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_finding_that_the_pivot_happened_is_heard_before_the_next_act(then: str, *, at_once: bool) -> None:
    """A dead letter turns out to be there: who wants to take the case back at that moment is refused, not told done.

    Requirements: S3, E3, L14
    """
    run = Run(document(make("draft"), effect("publish", "site.publish", on={"exhausted": "takeover"})))
    run.succeed("draft")
    for _ in range(3):
        run.tick(10)
        if run.row("publish").proposed or run.row("publish").state is S.DISPATCHING:
            run.fail("publish", ErrorClass.TRANSIENT, "unavailable")
    assert (run.row("publish").state, run.direction) == (S.DEAD_LETTERED, Direction.PERSON)
    found = {"finding": "EXISTS", "receipt": {"ref": "7"}, "external_resource_id": "7"}
    run.act(run.row("publish").command_id, "SETTLE", params=found, then=(then,) if at_once else ())
    if not at_once:
        run.control(then)
    assert {name: end.state for name, end in run.ended.items()} == {"opc_1": "DONE", "opc_2": "REFUSED"}
    assert run.case.instance.cancel is None and "CompensationAsked" not in run.events


def test_a_case_that_comes_back_to_a_person_at_once_says_so_and_why() -> None:
    """Whoever hands it back hears where it stands then. Requirements: L14, O3"""
    run = Run(FLOW).succeed("draft").control("TAKE_OVER").control("HAND_BACK")
    assert run.ended["opc_2"].result == {"direction": "forward", "status": "WAITING"} and not run.ended["opc_2"].detail
    run = Run(FLOW).succeed("draft").control("TAKE_OVER")
    run.case = replace(run.case, instance=run.case.instance.evolve(actions_max=1))
    run.control("HAND_BACK").decide("approve", "approved")
    assert run.case.instance.turned is not None and "max_actions says: 1" in run.case.instance.turned["detail"]
    run.control("HAND_BACK")
    end = run.ended["opc_3"]
    assert (end.state, end.result["status"]) == ("DONE", "HUMAN_TAKEOVER")
    assert end.detail == f"the case is a person's again at once: actions_exhausted {run.case.instance.turned['detail']}"


def test_another_bad_end_stays_with_the_person() -> None:
    """Of two failed steps one is redriven: the other turns the case no more, and owes a person at its end.

    Requirements: O3, L14
    """
    both = document(
        make("one", needs=[], on={"failed": "takeover"}),
        make("two", needs=[], on={"failed": "takeover"}),
        make("after", needs=["one"]),
    )
    run = Run(both).fail("one")
    run.fail("two")
    run.operate("one", "REDRIVE").settle("one", FindVerdict.CONFIRMED).succeed("after")
    assert (run.direction, run.status) == (Direction.FORWARD, InstanceStatus.HUMAN_TAKEOVER)
    run.operate("two", "REDRIVE").settle("two", FindVerdict.CONFIRMED)
    assert run.status is InstanceStatus.CLOSED


def test_a_redriven_step_that_fails_again_is_a_persons_again() -> None:
    """Requirements: L14"""
    run = stuck().operate("second", "REDRIVE")
    run.settle("second", FindVerdict.MISSING).tick(10).fail("second")
    assert (run.status, run.direction) == (InstanceStatus.HUMAN_TAKEOVER, Direction.PERSON)
    assert run.ended["opc_1"].result["state"] == "FAILED" and "failed" in run.kinds


def test_a_person_may_decide_to_undo() -> None:
    """COMPENSATE turns a case that stands before its pivot backwards, and has ended when nothing of it stands any more.

    Requirements: O3, S3, Q7
    """
    run = stuck().control("COMPENSATE")
    assert not run.ended and run.status is InstanceStatus.COMPENSATING
    run.succeed("first:undo")
    assert run.status is InstanceStatus.COMPENSATED and not run.world.standing.total()
    assert (run.ended["opc_1"].state, run.ended["opc_1"].result) == ("DONE", {"status": "COMPENSATED"})
    run.control("COMPENSATE")
    assert run.ended["opc_2"].state == "REFUSED"


def test_nothing_is_undone_after_the_pivot_whoever_asks() -> None:
    """Requirements: S3, O3"""
    run = Run(FLOW).succeed("draft").decide("approve", "approved").succeed("publish").fail("purge")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    run.control("COMPENSATE")
    assert run.ended["opc_1"].state == "REFUSED" and "COMPENSATE" not in run.ended["opc_1"].allowed_actions
    run.operate("purge", "REDRIVE").settle("purge", FindVerdict.MISSING).tick(10).succeed("purge")
    assert run.status is InstanceStatus.CLOSED


@pytest.mark.parametrize("action", ["COMPENSATE", "REDRIVE", "REPAIR"])
def test_a_failed_compensation_is_tried_again(action: str) -> None:
    """It is looked at, sent again on the decision, and the undoing goes on.

    Requirements: S4, O3
    """
    run = stuck().control("COMPENSATE").fail("first:undo")
    assert run.kinds == ["compensation_failed", "failed"]
    assert run.ended["opc_1"].result == {"status": "HUMAN_TAKEOVER"}
    run.operate("first:undo", action)
    run.settle("first:undo", FindVerdict.MISSING).tick(10)
    assert run.requests[run.row("first:undo").command_id].task.decided_by == "opc_2"
    run.succeed("first:undo")
    assert run.status is InstanceStatus.COMPENSATED and run.kinds == []
    assert run.row("first").compensation_state is CompensationState.COMPENSATED


def test_a_compensation_that_was_done_by_hand_is_settled() -> None:
    """Requirements: E3, S4"""
    run = stuck().control("COMPENSATE").fail("first:undo")
    run.world.apply(run.row("first:undo"))
    run.operate("first:undo", "SETTLE", params={"finding": "EXISTS", "receipt": {"ref": "x"}})
    assert run.status is InstanceStatus.COMPENSATED and run.kinds == []
    (settled,) = [item for item in run.obligations.values() if item.kind == "compensation_failed"]
    assert settled.envelope["resolved_by"] == "operator:bob"


def test_a_case_resumes_from_a_step_and_keeps_what_stands() -> None:
    """From the chosen step on everything runs again but the effects that stand; the new operation says what it follows.

    Requirements: O7, O6
    """
    run = stuck()
    failed = run.row("second").command_id
    run.control("RESUME", params={"from_step": "first"})
    result = run.ended["opc_1"].result
    assert (result["again"], result["kept"]) == (["second", "publish"], ["first"])
    assert run.row("second").command_id != failed and run.row("second").supersedes == failed
    assert run.row("second").generation == 2 and run.kinds == []
    run.succeed("second").succeed("publish")
    assert run.status is InstanceStatus.CLOSED
    assert [row.step_id for row in run.case.operations].count("first") == 1
    assert all(count <= 1 for count in run.world.standing.values())


def test_resuming_from_a_conflict_ends_although_nothing_was_redriven() -> None:
    """The step begins anew under another operation: what ended in the conflict is settled, and nobody waits for it.

    Requirements: O3, O7
    """
    run = Run(TAKES_OVER).succeed("first").fail("second", ErrorClass.BUSINESS, "version_conflict")
    assert run.row("second").state is S.CONFLICT
    conflict = run.row("second").command_id
    run.control("RESUME", params={"from_step": "second"})
    assert run.ended["opc_1"].state == "DONE" and run.ended["opc_1"].result["again"] == ["second", "publish"]
    assert run.row("second").command_id != conflict
    run.succeed("second").succeed("publish")
    assert run.status is InstanceStatus.CLOSED


def test_a_step_is_not_redriven_while_what_it_needs_runs_again() -> None:
    """An approval that expired is asked anew; what needs it and may have happened stays where it is until then.

    Requirements: O7
    """
    flow = document(
        {**approval(), "on": {"timeout": "continue"}, "needs": []},
        effect("publish", "site.publish", needs=["approve"], on={"exhausted": "takeover"}),
    )
    run = Run(flow).decide("approve", "expired")
    for _ in range(3):
        run.tick(10)
        if run.row("publish").proposed or run.row("publish").state is S.DISPATCHING:
            run.fail("publish", ErrorClass.TRANSIENT, "unavailable")
    assert run.row("publish").state is S.DEAD_LETTERED
    run.control("RESUME", params={"from_step": "approve"})
    assert run.ended["opc_1"].result["again"] == ["approve"]
    assert run.step("approve")["phase"] == StepPhase.WAITING
    run.operate("publish", "REDRIVE")
    assert run.ended["opc_2"].state == "REFUSED" and "REDRIVE" not in run.ended["opc_2"].allowed_actions
    run.decide("approve", "approved").operate("publish", "REDRIVE").settle("publish", FindVerdict.CONFIRMED)
    assert run.status is InstanceStatus.CLOSED


def test_what_began_anew_is_not_redriven_beside_it() -> None:
    """A redrive that was asked before the case resumed comes too late: a later operation speaks for the step.

    Requirements: O6, I5
    """
    run = stuck()
    failed = run.row("second").command_id
    run.control("RESUME", params={"from_step": "second"})
    run.act(failed, "REDRIVE")
    assert run.ended["opc_2"].state == "REFUSED" and run.ended["opc_2"].allowed_actions == ()
    run.succeed("second").succeed("publish")
    assert run.status is InstanceStatus.CLOSED


def test_resuming_looks_at_what_may_have_happened_before_it_runs_again() -> None:
    """A dead letter among the steps that run again is redriven: its effect may be there.

    Requirements: O7, Q6
    """
    run = Run(TAKES_OVER).succeed("first")
    for _ in range(3):
        run.tick(10)
        if run.row("second").proposed or run.row("second").state is S.DISPATCHING:
            run.fail("second", ErrorClass.TRANSIENT, "unavailable")
    assert run.row("second").state is S.DEAD_LETTERED
    dead = run.row("second").command_id
    run.control("RESUME", params={"from_step": "second"})
    assert run.row("second").command_id == dead and run.row("second").state is S.OUTCOME_UNKNOWN
    run.settle("second", FindVerdict.CONFIRMED).succeed("publish")
    assert run.status is InstanceStatus.CLOSED and run.ended["opc_1"].state == "DONE"


def test_an_approval_that_was_refused_is_asked_again_from_its_step() -> None:
    """Requirements: O7"""
    flow = document(
        make("draft"), approval(on={"rejected": "takeover"}), effect("publish", "site.publish", needs=["approve"])
    )
    run = Run(flow).succeed("draft").decide("approve", "rejected")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    first = run.step("approve")["approval_id"]
    run.control("RESUME", params={"from_step": "approve"})
    assert run.status is InstanceStatus.WAITING and run.step("approve")["approval_id"] != first
    run.decide("approve", "approved").succeed("publish")
    assert run.status is InstanceStatus.CLOSED


def test_a_person_closes_a_case_and_nothing_of_it_is_owed() -> None:
    """Resolved is an end: nothing goes on, nothing is owed, no act fits any more.

    Requirements: O3, L14, P3
    """
    run = stuck()
    said = [{"effect": run.row("first").command_id, "became": "kept by the editor"}]
    run.control("MARK_RESOLVED", params={"disposition": said})
    assert run.status is InstanceStatus.RESOLVED and run.kinds == [] and run.case.instance.resolution_type == "resolved"
    run.control("HAND_BACK").control("CANCEL")
    assert {run.ended["opc_2"].state, run.ended["opc_3"].state} == {"REFUSED"}


def test_nobody_closes_a_case_of_which_something_is_still_out() -> None:
    """What is out may land after all: only then it is known what there is to speak about.

    Requirements: L14, L15, Q8
    """
    run = Run(FLOW).control("TAKE_OVER")
    draft = {"effect": run.row("draft").command_id, "became": "removed by hand"}
    said = {"disposition": [draft]}
    run.control("MARK_RESOLVED", params=said)
    assert run.ended["opc_2"].state == "REFUSED" and "MARK_RESOLVED" not in run.ended["opc_2"].allowed_actions
    run.succeed("draft").control("MARK_RESOLVED", params=said)
    assert run.status is InstanceStatus.RESOLVED and run.case.instance.owed == []


def test_closing_a_case_speaks_of_every_effect_that_stands_and_of_no_other() -> None:
    """What the gateway was told may be old: an effect that landed since is not passed over in silence.

    Requirements: O3, E3
    """
    run = stuck()
    first, second = run.row("first").command_id, run.row("second").command_id
    wrong = ([], [second], [first, second], [first, first], [first, "the post"])
    for number, names in enumerate(wrong, 1):
        run.control("MARK_RESOLVED", params={"disposition": [{"effect": name, "became": "kept"} for name in names]})
        assert run.ended[f"opc_{number}"].state == "REFUSED", names
        assert "MARK_RESOLVED" in run.ended[f"opc_{number}"].allowed_actions
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    run.control("MARK_RESOLVED", seen=[first])
    assert run.status is InstanceStatus.RESOLVED, "every element of it was just observed to be right"


CORRECTED = document(
    make("first"),
    {"id": "spelling", "check": ["input.id != ''"]},
    approval(needs=["spelling"]),
    make("second", needs=["approve"], **{"with": {"of": "second", "id": "${input.id}", "text": "corrected"}}),
    effect("publish", "site.publish"),
    version=2,
)


def test_a_failed_case_goes_on_by_a_corrected_version() -> None:
    """What is done is kept under its own operation, what the version adds runs, what failed begins anew by it; the
    history says from which document to which.

    Requirements: O7, L13
    """
    run = stuck()
    old, done, failed = run.workflow.document, run.row("first").command_id, run.row("second").command_id
    run.control("RESUME", corrected=CORRECTED, params={"from_step": "second", "version": 2})
    assert run.ended["opc_1"].result["again"] == ["spelling", "approve", "second", "publish"]
    assert run.ended["opc_1"].result["kept"] == ["first"]
    assert (run.case.instance.version, run.case.instance.sha256) == (2, CORRECTED.sha256)
    moved = next(event for event in run.history if event.type == "CaseMigrated")
    assert (moved.payload["from_sha256"], moved.payload["to_sha256"]) == (old.sha256, CORRECTED.sha256)
    assert (moved.payload["from_version"], moved.payload["to_version"]) == (1, 2) and moved.actor == "operator:bob"
    assert run.step("spelling")["phase"] == StepPhase.DONE and run.step("approve")["phase"] == StepPhase.WAITING
    run.decide("approve", "approved").succeed("second")
    newer = run.row("second")
    assert newer.supersedes == failed and newer.payload["text"] == "corrected"
    run.succeed("publish")
    assert run.status is InstanceStatus.CLOSED and run.row("first").command_id == done


def test_a_version_that_does_not_fit_by_now_changes_nothing() -> None:
    """Asked again by the orchestrator, of what is true now: refused by the name of the step, and the case stays.

    Requirements: O7
    """
    run = stuck()
    gone = document(make("second"), effect("publish", "site.publish"), version=2)
    other = document(effect("first", "site.publish"), make("second"), version=2, pivots_reason="a test of two")
    for number, (wrong, why) in enumerate(((gone, "first began already"), (other, "first is done as site.make")), 1):
        run.control("RESUME", corrected=wrong, params={"from_step": "second", "version": 2})
        end = run.ended[f"opc_{number}"]
        assert end.state == "REFUSED" and why in str(end.detail), end
    assert run.case.instance.version == 1 and run.direction == Direction.PERSON
    assert "CaseMigrated" not in run.events
    run.control("RESUME", params={"from_step": "second"}).succeed("second").succeed("publish")
    assert run.status is InstanceStatus.CLOSED


def test_an_undoing_names_the_person_who_decided_it() -> None:
    """A compensation that a person asked for fails: its exception says whose decision it was, its journal what was
    asked for.

    Requirements: O3, G7
    """
    run = stuck().control("COMPENSATE").fail("first:undo")
    (owed,) = [row for row in run.case.obligations if row.kind == "compensation_failed"]
    assert owed.envelope["asked_by"] == "operator:bob"
    run.operate("first:undo", "COMPENSATE")
    assert run.row("first:undo").operator_action == "COMPENSATE"


def test_a_case_of_doubtful_authority_is_stopped_safely() -> None:
    """Stopped: nothing new is sent, what is out settles, and it ends with an owner; a person closes it.

    Requirements: L19, L14
    """
    run = Run(FLOW).control("TAKE_OVER", params={"stop": True})
    assert run.direction == Direction.STOP and run.status is InstanceStatus.HUMAN_TAKEOVER
    run.succeed("draft")
    assert run.status is InstanceStatus.SAFE_STOPPED and run.kinds == ["needs_review"]
    assert all(row.owner for row in run.case.obligations) and not run.has("publish")
    run.control("HAND_BACK")
    assert run.ended["opc_2"].allowed_actions == ("MARK_RESOLVED",)
    said = [{"effect": run.row("draft").command_id, "became": "deleted"}]
    run.control("MARK_RESOLVED", params={"disposition": said})
    assert run.status is InstanceStatus.SAFE_STOPPED and run.kinds == []


def test_a_pause_and_its_end_are_told_at_once() -> None:
    """Requirements: S5"""
    run = Run(FLOW).control("PAUSE")
    assert run.ended["opc_1"].state == "DONE"
    run.succeed("draft")
    assert run.status is InstanceStatus.PAUSED
    run.control("PAUSE")
    assert run.ended["opc_2"].state == "REFUSED"
    assert run.ended["opc_2"].allowed_actions == ("RESUME", "CANCEL", "TAKE_OVER")
    run.control("RESUME")
    assert run.ended["opc_3"].state == "DONE" and run.status is InstanceStatus.WAITING


def test_a_cancelled_case_that_a_person_closes_is_resolved_and_not_said_to_be_undone() -> None:
    """Its undoing came to a conflict, and somebody said what became of the effect: that is no undoing of ours.

    Requirements: S4, L14, Q8
    """
    run = Run(FLOW).succeed("draft").control("CANCEL")
    run.fail("draft:undo", ErrorClass.BUSINESS, "version_conflict")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER and run.row("draft:undo").state is S.CONFLICT
    draft = {"effect": run.row("draft").command_id, "became": "kept, on purpose"}
    run.control("MARK_RESOLVED", params={"disposition": [draft]})
    assert run.status is InstanceStatus.RESOLVED and run.kinds == []
    assert run.row("draft").compensation_state is not CompensationState.COMPENSATED
    assert "EffectUndone" not in run.events


def test_of_two_cancels_at_once_each_hears_how_it_ended() -> None:
    """Two people press at the same moment: the case is cancelled once, and neither waits for ever.

    Requirements: I5, L12
    """
    run = Run(FLOW).control("CANCEL", beside=["CANCEL"])
    assert run.ended["opc_2"].state == "REFUSED" and "opc_1" not in run.ended
    run.succeed("draft").succeed("draft:undo")
    assert run.status is InstanceStatus.CANCELLED and run.ended["opc_1"].result == {"status": "CANCELLED"}


def test_a_cancel_ends_when_everything_is_undone() -> None:
    """Requirements: L12"""
    run = Run(FLOW).succeed("draft").control("CANCEL")
    assert "opc_1" not in run.ended
    run.succeed("draft:undo")
    assert run.status is InstanceStatus.CANCELLED
    assert run.ended["opc_1"].result == {"status": "CANCELLED"}
