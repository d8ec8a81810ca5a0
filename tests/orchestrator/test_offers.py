"""What the gateway offers, the orchestrator performs; what nobody could observe is ended by a person's word."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tests.orchestrator.cases import BARE, Story, receipt, start_case, verified
from tests.orchestrator.sagas import SEEN_GONE, Run, approval, document, effect, make
from tests.orchestrator.test_operators import dead, doubtful, forbidden

from trueup_common.contracts.operators import (
    UNVERIFIED,
    ExceptionFacts,
    Facts,
    OperatorAction,
    TargetKind,
    allowed,
    performer,
    stands_alone,
)
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    ErrorClass,
    ExceptionKind,
    InstanceStatus,
    OperationState,
    ReceiptStatus,
)
from trueup_gateway.core.operators import Target, effects_of, facts_of
from trueup_gateway.core.projection import case_view
from trueup_gateway.core.view_records import ExceptionView
from trueup_orchestrator.core.decide import Due

A, St, S = OperatorAction, InstanceStatus, OperationState

FLOW = document(make("draft"), approval(), effect("publish", "site.publish"), effect("monitor", "site.show"))
STUCK = document(make("first"), make("second", on={"failed": "takeover"}))


# cases that owe what nobody observed


def flow(*, verifies: bool = False) -> Run:
    run = Run(FLOW).succeed("draft").decide("approve", "approved").succeed("publish").succeed("monitor")
    return run if verifies else run.verified("monitor")


def undoing() -> Run:
    """All is undone, and what the undoing established is still to be observed."""
    run = Run(STUCK, declarations=SEEN_GONE).succeed("first").fail("second").control("COMPENSATE")
    return run.succeed("first:undo")


def late(run: Run) -> Run:
    """Nobody could observe it in time."""
    run.tick((run.case.instance.deadline_at - run.at.business).total_seconds() + 1)
    assert "needs_review" in run.kinds
    return run


def single(*, overdue: bool = False) -> Story:
    story = Story().wait(1)
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, observations=()))
    assert story.case.instance.status is St.VERIFYING
    if overdue:
        story.wait((story.case.instance.deadline_at - story.at.business).total_seconds() + 1).hear(Due())
        assert story.kinds == ["needs_review"] and story.case.obligations[0].envelope["failure_code"] == UNVERIFIED
    return story


def told(*names: str) -> dict[str, Any]:
    return {"disposition": [{"effect": name, "became": "looked at by hand: it holds"} for name in names]}


# what is offered is performed


def stuck() -> Run:
    return Run(STUCK).succeed("first").fail("second")


def landed(story: Story) -> Story:
    """Word of an older attempt: it landed after all, as another object."""
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, fence=0, resource="43"))
    assert "needs_review" in story.kinds
    return story


def landed_late(run: Run, step_id: str) -> Run:
    """The same of a step whose case is over."""
    row = run.row(step_id)
    run.hear(receipt(row, ReceiptStatus.CONFIRMED, fence=0, resource="43"), row.command_id)
    assert "needs_review" in run.kinds and run.case.instance.closed_at is not None
    return run


WORKFLOWS: dict[str, tuple[InstanceStatus, Callable[[], Run]]] = {
    "running": (St.RUNNING, lambda: Run(FLOW)),
    "waiting": (St.WAITING, lambda: Run(FLOW).succeed("draft")),
    "paused": (St.PAUSED, lambda: Run(FLOW).succeed("draft").control("PAUSE")),
    "cancelling": (St.CANCEL_PENDING, lambda: Run(FLOW).control("CANCEL")),
    "undoing": (St.COMPENSATING, lambda: stuck().control("COMPENSATE")),
    "undone, not seen yet": (St.COMPENSATING, undoing),
    "undone, never seen": (St.COMPENSATING, lambda: late(undoing())),
    "stuck": (St.HUMAN_TAKEOVER, stuck),
    "taken over": (St.HUMAN_TAKEOVER, lambda: Run(FLOW).succeed("draft").control("TAKE_OVER")),
    "undoing failed": (St.HUMAN_TAKEOVER, lambda: stuck().control("COMPENSATE").fail("first:undo")),
    "not seen yet": (St.VERIFYING, lambda: flow(verifies=True)),
    "never seen": (St.VERIFYING, lambda: late(flow(verifies=True))),
    "closed": (St.CLOSED, flow),
    "undone": (St.COMPENSATED, lambda: stuck().control("COMPENSATE").succeed("first:undo")),
    "cancelled": (St.CANCELLED, lambda: Run(FLOW).succeed("draft").control("CANCEL").succeed("draft:undo")),
    "stopped": (St.SAFE_STOPPED, lambda: Run(FLOW).succeed("draft").control("TAKE_OVER", params={"stop": True})),
    "resolved": (
        St.RESOLVED,
        lambda: (run := stuck()).control("MARK_RESOLVED", params=told(run.row("first").command_id)),
    ),
}

SINGLES: dict[str, tuple[InstanceStatus, Callable[[], Story]]] = {
    "running": (St.RUNNING, lambda: Story(start_case())),
    "waits for its retry": (
        St.RUNNING,
        lambda: (one := Story(start_case())).hear(
            receipt(one.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable")
        ),
    ),
    "cancelling": (St.CANCEL_PENDING, lambda: Story(start_case()).operate("CANCEL")),
    "failed": (St.HUMAN_TAKEOVER, forbidden),
    "dead": (St.HUMAN_TAKEOVER, dead),
    "doubtful": (St.HUMAN_TAKEOVER, doubtful),
    "not seen yet": (St.VERIFYING, single),
    "never seen": (St.VERIFYING, lambda: single(overdue=True)),
    "closed": (St.CLOSED, lambda: (one := Story(decl=BARE).wait(1)).hear(receipt(one.row, ReceiptStatus.CONFIRMED))),
    "cancelled": (
        St.CANCELLED,
        lambda: (one := Story(start_case()).operate("CANCEL")).hear(
            receipt(one.row, ReceiptStatus.NOT_SENT, ErrorClass.TRANSIENT, "start_by_passed")
        ),
    ),
    "cancelled, and landed after all": (St.CANCELLED, lambda: landed(SINGLES["cancelled"][1]())),
    "closed, and twice in the world": (St.CLOSED, lambda: landed(SINGLES["closed"][1]())),
    "resolved": (
        St.RESOLVED,
        lambda: (one := single(overdue=True)).operate("MARK_RESOLVED", params=told(one.row.command_id)),
    ),
}


def params_of(action: OperatorAction, case: Any, first_step: str = "") -> dict[str, Any]:
    """What the gateway would have let through with the action."""
    if action is A.MARK_RESOLVED:
        return told(*effects_of(case.operations))
    if action is A.RESUME and case.instance.status is not St.PAUSED:
        return {"from_step": first_step}
    return {"finding": "CLOSE", **told(case.operations[0].command_id)} if action is A.SETTLE else {}


def shown(kind: TargetKind, case: Any, row: Any, declaration: Any) -> set[OperatorAction]:
    """What the gateway offers of a case by its view: of the target itself, and of each exception that is open."""
    view = case_view(case.instance, case.obligations)
    facts = facts_of(Target(kind.value, "x", "acme", view, row), declaration)
    offered = set(allowed(kind, facts))
    for item in case.obligations:
        of = case_facts_of(facts, ExceptionKind(item.kind))
        if item.command_id == (row.command_id if row is not None else None) and not stands_alone(of):
            found = set(allowed(TargetKind.EXCEPTION, of)) - {A.REPAIR, A.ASSIGN, A.ESCALATE}
            assert found == offered, "an exception offers what its target does"
            assert {performer(action, ExceptionKind(item.kind)) for action in found} <= {"orchestrator"}
    return offered


def case_facts_of(facts: Facts, kind: ExceptionKind) -> Facts:
    return Facts(facts.case, facts.operation, ExceptionFacts(kind, True))


def test_the_cases_here_stand_in_every_status() -> None:
    """Requirements: O3, Q8"""
    assert {status for status, _ in WORKFLOWS.values()} == set(InstanceStatus)
    # a single command is neither paused, nor waits for a person, nor undone
    never = {St.WAITING, St.PAUSED, St.COMPENSATING, St.COMPENSATED, St.SAFE_STOPPED}
    assert {status for status, _ in SINGLES.values()} == set(InstanceStatus) - never


@pytest.mark.parametrize("name", list(WORKFLOWS))
def test_what_is_offered_of_a_workflow_is_performed_and_nothing_else(name: str) -> None:
    """For every status and every act: offered by the gateway means performed, not offered means refused.

    Requirements: O3, Q8, L14
    """
    status, begin = WORKFLOWS[name]
    run = begin()
    assert run.status is status
    offered = shown(TargetKind.WORKFLOW, run.case, None, None)
    for action in OperatorAction:
        tried = deepcopy(run)
        tried.control(action.value, params=params_of(action, run.case, run.case.instance.steps[0]["id"]))
        end = tried.ended.get(f"opc_{tried.acts}")
        refused = end is not None and end.state == "REFUSED"
        assert refused != (action in offered), (name, action, end)


def exception_of(item: Any, *, reporter: str = "orchestrator", code: str | None = None) -> ExceptionView:
    """An open obligation as the planner shows it."""
    envelope = {**item.envelope, "reported_by": reporter, "obligation_id": item.obligation_id}
    return ExceptionView(
        exception_id="exc_1",
        tenant="acme",
        kind=item.kind,
        status="open",
        lifecycle="assigned",
        failure_class=item.failure_class,
        owner=item.owner,
        deadline_at=item.deadline_at,
        opened_at=item.opened_at,
        command_id=item.command_id,
        envelope=envelope if code is None else {**envelope, "failure_code": code},
        version=1,
    )


@pytest.mark.parametrize("told_of", [True, False])
@pytest.mark.parametrize(
    ("begin", "step"),
    [
        (lambda: landed_late(flow(), "draft"), "draft"),
        (lambda: landed_late(stuck().control("COMPENSATE").succeed("first:undo"), "second"), "second"),
        (lambda: landed_late(Run(FLOW).succeed("draft").control("CANCEL").succeed("draft:undo"), "draft"), "draft"),
    ],
    ids=["twice in the world", "failed, and landed after all", "undone twice"],
)
def test_what_a_case_owes_after_its_end_is_ended_where_it_is_owed(
    begin: Callable[[], Run], step: str, told_of: bool
) -> None:
    """The planner would close its exception and leave the obligation open: so the orchestrator performs it, also where
    the exception is shown before the case, and the exception closes by the obligation.

    Requirements: Q8, O3
    """
    run = begin()
    row = run.row(step)
    owed = [item for item in run.case.obligations if item.command_id == row.command_id]
    view = case_view(run.case.instance, owed if told_of else [])
    for item in owed:
        target = Target("exception", "exc_1", "acme", view, row, exception_of(item))
        facts = facts_of(target, run.workflow.declarations[row.command_type])
        assert not stands_alone(facts) and A.MARK_RESOLVED in allowed(TargetKind.EXCEPTION, facts)
    run.operate(step, "MARK_RESOLVED", params=told(row.command_id))
    assert run.ended[f"opc_{run.acts}"].state == "DONE"
    assert not [item for item in run.case.obligations if item.command_id == row.command_id]


def test_a_dead_letter_of_a_case_that_was_cancelled_is_closed_where_it_is_owed() -> None:
    """The case is over, its letter is not: a person closes it, and exception and obligation end as one.

    Requirements: Q8, O3
    """
    run = Run(STUCK).succeed("first").fail("second", ErrorClass.TRANSIENT, "unavailable")
    while run.row("second").state is not S.DEAD_LETTERED:
        run.tick(3600).fail("second", ErrorClass.TRANSIENT, "unavailable")
    run.control("CANCEL").succeed("first:undo")
    row, view = run.row("second"), case_view(run.case.instance, run.case.obligations)
    assert run.status is St.CANCELLED and run.kinds == ["dead_letter"]
    for told_of in (exception_of(run.case.obligations[0]), None):
        kind = TargetKind.COMMAND if told_of is None else TargetKind.EXCEPTION
        facts = facts_of(Target(kind.value, "x", "acme", view, row, told_of), None)
        assert not stands_alone(facts)
        assert set(allowed(kind, facts)) - {A.ASSIGN, A.ESCALATE} == {A.MARK_RESOLVED}
    run.operate("second", "MARK_RESOLVED", params=told(row.command_id))
    assert run.kinds == [] and run.row("second").state is S.RESOLVED and run.status is St.CANCELLED


@pytest.mark.parametrize(
    ("reporter", "code"), [("orchestrator", "invariant_live_after_end"), ("reconciler", "unmanaged_effect")]
)
def test_what_no_case_owes_is_ended_by_whoever_looked(reporter: str, code: str) -> None:
    """Requirements: Q8, V5, R10"""
    run = flow()
    row, (item, *_) = run.row("draft"), landed_late(flow(), "draft").case.obligations
    shown_as = exception_of(item, reporter=reporter, code=code)
    view = case_view(run.case.instance, [])
    facts = facts_of(Target("exception", "exc_1", "acme", view, row, shown_as), None)
    assert stands_alone(facts) and A.MARK_RESOLVED in allowed(TargetKind.EXCEPTION, facts)


def test_what_is_out_is_the_one_thing_that_the_view_does_not_tell() -> None:
    """The gateway offers to close a case in a person's hands; while something of it is out, the orchestrator refuses.

    Requirements: L15
    """
    run = Run(FLOW).control("TAKE_OVER")
    offered = shown(TargetKind.WORKFLOW, run.case, None, None)
    for action in OperatorAction:
        tried = deepcopy(run)
        tried.control(action.value, params=params_of(action, run.case, "draft"))
        end = tried.ended.get(f"opc_{tried.acts}")
        refused = end is not None and end.state == "REFUSED"
        assert refused != (action in offered - {A.MARK_RESOLVED}), (action, end)


@pytest.mark.parametrize("name", list(SINGLES))
def test_what_is_offered_of_a_single_command_is_performed_and_nothing_else(name: str) -> None:
    """Requirements: O3, Q8"""
    status, begin = SINGLES[name]
    story = begin()
    assert story.case.instance.status is status
    offered = shown(TargetKind.COMMAND, story.case, story.row, story.declaration)
    assert offered == shown(TargetKind.WORKFLOW, story.case, story.row, story.declaration)
    for action in OperatorAction:
        if action is A.REPAIR:
            continue  # of an exception: performed as REDRIVE
        tried = deepcopy(story)
        tried.operate(action.value, params=params_of(action, story.case))
        refused = any(end.state == "REFUSED" for end in tried.ends() if end.operator_command_id == f"opc_{tried.acts}")
        assert refused != (action in offered), (name, action, tried.ends())


# the way out of what nobody could observe


@pytest.mark.parametrize("action", ["MARK_RESOLVED", "SETTLE"])
def test_a_person_settles_what_a_command_owes_and_nobody_can_observe(action: str) -> None:
    """Resolved, never closed; SUCCESS stays; history keeps who said what of which elements. A look that comes after
    all changes nothing.

    Requirements: Q8, O3, L15, P3
    """
    early = single()
    early.operate(action, params={"finding": "CLOSE", **told(early.row.command_id)})
    assert early.ends()[0].state == "REFUSED" and early.case.instance.status is St.VERIFYING
    story = single(overdue=True)
    said = told(story.row.command_id)
    story.operate(action, params={"finding": "CLOSE", **said}, evidence=["seen in the target's audit log"])
    instance = story.case.instance
    assert (instance.status, instance.resolution_type, instance.owed) == (St.RESOLVED, "resolved", [])
    assert story.state is S.SUCCESS and instance.closed_at is not None and story.kinds == []
    assert [row.status for row in story.obligations.values()] == ["closed"]
    (end,) = story.ends()
    assert end.state == "DONE"
    acted = next(event for event in story.history if event.type == "OperatorActed")
    assert acted.payload["disposition"] == said["disposition"] and acted.payload["unobserved"] == ["site.status"]
    assert acted.payload["evidence"] == ["seen in the target's audit log"] and acted.actor == "operator:ops"
    story.hear(verified(story.row))
    assert story.case.instance.status is St.RESOLVED


def test_a_cancel_ends_at_last_when_a_person_has_what_nobody_could_observe() -> None:
    """All is undone, and what the undoing established was not seen by the case's deadline, or has drifted: a person has
    it, and whoever cancelled hears that. What is seen later ends the case as cancelled, and is told once.

    Requirements: L12, Q8
    """
    run = Run(FLOW, declarations=SEEN_GONE).succeed("draft").control("CANCEL").succeed("draft:undo")
    assert run.status is St.COMPENSATING and run.case.instance.owed and "opc_1" not in run.ended
    late(run)
    end = run.ended["opc_1"]
    assert (end.state, end.result) == ("DONE", {"status": "COMPENSATING", "unverified": ["site.gone"]})
    assert run.status is St.COMPENSATING, "the case is not over before it was seen"
    run.verified("draft:undo")
    assert run.status is St.CANCELLED and run.ended["opc_1"] == end


@pytest.mark.parametrize("finding", ["EXISTS", "ABSENT"])
def test_a_finding_never_changes_an_operation_that_is_over(finding: str) -> None:
    """Asked while it was in doubt, heard after it ended: refused, and the case goes on to its way out.

    Requirements: P3, E3
    """
    story = single(overdue=True)
    story.operate("SETTLE", params={"finding": finding, "receipt": {}})
    (end,) = story.ends()
    assert end.state == "REFUSED" and {"SETTLE", "MARK_RESOLVED"} == set(end.allowed_actions)
    assert story.state is S.SUCCESS and story.case.instance.status is St.VERIFYING


@pytest.mark.parametrize("begin", [lambda: flow(verifies=True), undoing], ids=["done", "undone"])
def test_a_person_settles_what_a_workflow_owes_and_nobody_can_observe(begin: Callable[[], Run]) -> None:
    """Forward or undone: every effect that stands is spoken of, and the case ends as resolved.

    Requirements: Q8, O3, L15, P3
    """
    run = begin()
    names, owed = effects_of(run.case.operations), [item["element"] for item in run.case.instance.owed]
    assert owed in (["site.shown"], ["site.gone"])
    run.control("MARK_RESOLVED", params=told(*names))
    assert run.ended[f"opc_{run.acts}"].state == "REFUSED" and run.case.instance.owed, "it may still be observed"
    late(run)
    if names:
        run.control("MARK_RESOLVED", params=told())
        assert run.ended[f"opc_{run.acts}"].state == "REFUSED", "said nothing of what stands"
    run.control("MARK_RESOLVED", params=told(*names), evidence=["seen in the target's audit log"])
    instance = run.case.instance
    assert (instance.status, instance.resolution_type, instance.owed) == (St.RESOLVED, "resolved", [])
    assert run.kinds == [] and run.status in INSTANCE_TERMINAL
    assert run.ended[f"opc_{run.acts}"].state == "DONE"
    resolved = next(event for event in run.history if event.type == "CaseResolved")
    assert resolved.payload["unobserved"] == owed and resolved.payload["evidence"]
