"""What the planner and operators say of elements, through the handler: told once, looked at now, answered."""

from __future__ import annotations

from typing import Any

from tests.reconciler.builders import at, established, message, offer, seen
from tests.reconciler.memory import MemoryStore
from tests.reconciler.test_handler import answer_of, deliver, tick, told

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import (
    ElementVerified,
    ExceptionReported,
    OperatorCommand,
    OperatorCommandEnded,
    RepairChanged,
)
from trueup_common.contracts.states import Phase, ProbeVerdict
from trueup_common.contracts.task import ProbeTask
from trueup_reconciler.core.repairs import LOOKS_MAX
from trueup_repair_planner.core.lifecycle import exception_id

PLACE = {"system": "wordpress", "resource": "post/1", "element": "wordpress.status"}


def repair(obligation_id: str, status: str, *, version: int = 1, **changes: Any) -> RepairChanged:
    return RepairChanged(
        repair_id="rep_1",
        tenant="acme",
        exception_id=exception_id(obligation_id),
        subject_key="wordpress:post/1:wordpress.status",
        number=1,
        status=status,
        drift=dict(PLACE),
        root_cause="STATE_DRIFT",
        repair_action="REPAIR",
        risk_level="low",
        approval_required=False,
        verification_plan="look",
        rollback_or_compensation="none",
        playbook="drift-automatic",
        playbook_version=1,
        owner="operators",
        planned_by="planner",
        created_at=at(0),
        version=version,
    ).evolve(**changes)


def operator_command(action: str, *, performer: str = "reconciler", **changes: Any) -> OperatorCommand:
    return OperatorCommand(
        operator_command_id="opc_1",
        tenant="acme",
        action=action,
        performer=performer,
        target_kind="exception",
        target_id="exc_1",
        exception_kind="state_drift",
        element=dict(PLACE),
        actor="operator:olga",
        reason="I want to know",
        decision_id="dec_9",
        at=at(0),
    ).evolve(**changes)


async def trashed(store: MemoryStore) -> str:
    """A healthy post that an outsider trashed: the obligation of its drift."""
    event = established(verified=True, observation=seen("publish"), repair=offer())
    await deliver(store, message(event, "m1"))
    await tick(store, 60)
    (probe,) = told(store, ProbeTask)
    await deliver(store, message(answer_of(probe, "trash", seconds=61), "m2"), seconds=61)
    (opened,) = told(store, ExceptionReported)
    assert opened.obligation.envelope["route"] == "AUTO_REPAIR"
    return opened.obligation.obligation_id


async def test_a_repair_from_its_plan_to_its_verification() -> None:
    """The planner plans, the repair succeeds, the next look verifies: one exception, closed as observed healthy.

    Requirements: R2, R6, Q7
    """
    store = MemoryStore()
    obligation = await trashed(store)
    await deliver(store, message(repair(obligation, "EXECUTING"), "r1"), seconds=70)
    assert [row.stage for row in store.element.values()] == ["REPAIR_QUEUE"]
    done = established("r1", sequence=9, supersedes="cmd_1", repair=offer(), seconds=75)
    await deliver(store, message(done, "m3"), seconds=75)
    assert [row.stage for row in store.element.values()] == ["VERIFY"]
    probe = told(store, ProbeTask)[-1]
    assert len(told(store, ProbeTask)) == 2, "it is looked at in the commit that hears of the repair"
    await deliver(store, message(answer_of(probe, seconds=76), "m4"), seconds=76)
    reports = told(store, ExceptionReported)
    assert [(item.obligation.status, item.obligation.resolution_type) for item in reports] == [
        ("open", None),
        ("closed", "observed_healthy"),
    ]
    assert {(paid.command_id, paid.phase) for paid in told(store, ElementVerified)} == {("cmd_r1", Phase.HEALTHY)}
    (row,) = store.element.values()
    assert (row.stage, row.command_id, row.workflow_id) == ("HEALTHY", "cmd_1", "wf_1")


async def test_the_planners_done_is_a_reason_to_look_now_and_no_verification() -> None:
    """Requirements: R6, Q7"""
    store = MemoryStore()
    obligation = await trashed(store)
    await deliver(store, message(repair(obligation, "DONE"), "r1"), seconds=70)
    assert len(told(store, ProbeTask)) == 2
    assert [row.status for row in store.obligation.values()] == ["open"]


async def test_a_failed_repair_is_told_again_with_its_new_route_and_higher_version() -> None:
    """Requirements: R2, R9"""
    store = MemoryStore()
    obligation = await trashed(store)
    failed = message(repair(obligation, "FAILED", version=3), "r1")
    await deliver(store, failed, failed, seconds=70)
    reports = told(store, ExceptionReported)
    assert [(item.obligation.version, item.obligation.envelope["route"]) for item in reports] == [
        (1, "AUTO_REPAIR"),
        (2, "RETRYABLE"),
    ]
    assert reports[1].obligation.envelope["repairs_count"] == 1
    assert reports[1].obligation.obligation_id == obligation
    assert [row.version for row in store.obligation.values()] == [2]


async def test_a_word_about_another_exception_moves_nothing() -> None:
    store = MemoryStore()
    await trashed(store)
    await deliver(store, message(repair("obl_other", "FAILED"), "r1"), seconds=70)
    assert [row.stage for row in store.element.values()] == ["AUTO_REPAIR"]


async def test_an_operator_who_wants_it_looked_at_hears_what_was_seen() -> None:
    """Requirements: O3, R6. Due now, whatever the schedule says; the command ends with the next observation."""
    store = MemoryStore()
    await deliver(store, message(established(verified=True, observation=seen("publish")), "m1"))
    assert told(store, ProbeTask) == []
    asked = message(operator_command("RECONCILE"), "opc_1")
    await deliver(store, asked, asked, seconds=5)
    (probe,) = told(store, ProbeTask)
    assert told(store, OperatorCommandEnded) == []
    await deliver(store, message(answer_of(probe, "trash", seconds=6), "m2"), seconds=6)
    (ended,) = told(store, OperatorCommandEnded)
    assert (ended.operator_command_id, ended.state, ended.result["phase"], ended.result["observed"]) == (
        "opc_1", "DONE", "DRIFT", "trash",
    )  # fmt: skip
    (sent,) = [item.message for item in store.outbox if item.message.type == "OperatorCommandEnded"]
    assert (sent.id, sent.subject) == ("opc_1:ended", "trueup.evt.reconciler.operator-ended.acme")


async def test_not_knowing_ends_an_operators_look_too() -> None:
    """Requirements: O3, E4. "It cannot be seen" is an answer."""
    store = MemoryStore()
    await deliver(store, message(established(verified=True, observation=seen("publish")), "m1"))
    await deliver(store, message(operator_command("RECONCILE"), "opc_1"), seconds=5)
    (probe,) = told(store, ProbeTask)
    await deliver(store, message(answer_of(probe, seconds=6, verdict=ProbeVerdict.UNKNOWN), "m2"), seconds=6)
    (ended,) = told(store, OperatorCommandEnded)
    assert (ended.state, ended.result["phase"]) == ("DONE", "UNKNOWN")


async def test_an_element_of_which_nothing_is_desired_is_not_looked_at() -> None:
    """Requirements: O3"""
    store = MemoryStore()
    await deliver(store, message(operator_command("RECONCILE"), "opc_1"))
    await deliver(store, message(operator_command("RECONCILE", element=None), "opc_2"))
    assert {item.state for item in told(store, OperatorCommandEnded)} == {"REFUSED"}


async def test_what_another_service_performs_is_not_ended_here() -> None:
    """Requirements: O3"""
    store = MemoryStore()
    await trashed(store)
    await deliver(store, message(operator_command("REPAIR", performer="repair-planner"), "opc_1"), seconds=70)
    await deliver(store, message(operator_command("RECONCILE", performer="orchestrator"), "opc_2"), seconds=70)
    assert told(store, OperatorCommandEnded) == []


async def test_a_person_lets_go_of_what_has_drifted_for_good() -> None:
    """The difference is meant, or nothing can bring the element back: nothing is desired of it from then on.

    The exception ends with who decided, what was owed is owed no longer, nobody looks again, and a repetition, or one
    about an element that has not drifted, is refused.
    Requirements: Q8, O3
    """
    store = MemoryStore()
    obligation = await trashed(store)
    asked = message(operator_command("MARK_RESOLVED", params={"disposition": []}), "opc_1")
    await deliver(store, asked, seconds=70)
    (ended,) = told(store, OperatorCommandEnded)
    assert (ended.state, ended.result) == ("DONE", {"resolution_type": "marked_resolved"})
    closed = told(store, ExceptionReported)[-1].obligation
    assert (closed.obligation_id, closed.status, closed.resolution_type) == (obligation, "closed", "marked_resolved")
    assert closed.envelope["resolved_by"] == "operator:olga"
    (row,) = store.element.values()
    assert (row.stage, row.retired_by, row.next_visit_at, row.obligation_id) == ("RETIRED", "opc_1", None, None)
    await tick(store, 100_000)
    assert len(told(store, ProbeTask)) == 1
    await deliver(store, message(operator_command("MARK_RESOLVED", operator_command_id="opc_2"), "opc_2"), seconds=71)
    assert [item.state for item in told(store, OperatorCommandEnded)] == ["DONE", "REFUSED"]


async def test_what_a_case_still_owes_is_not_owed_after_a_person_let_it_go() -> None:
    """Requirements: Q8, L15. The case hears who took it over: it does not wait for a look that nobody makes."""
    store = MemoryStore()
    await deliver(store, message(established(), "m1"))
    (probe,) = told(store, ProbeTask)
    await deliver(store, message(answer_of(probe, "trash", seconds=1), "m2"), seconds=1)
    assert told(store, ElementVerified) == []
    await deliver(store, message(operator_command("MARK_RESOLVED"), "opc_1"), seconds=2)
    (paid,) = told(store, ElementVerified)
    assert (paid.command_id, paid.superseded_by, paid.phase) == ("cmd_1", "opc_1", Phase.DRIFT)


def repaired() -> Message:
    """A repair that succeeded, and whose own read-back found the element as it should be."""
    looked = seen("publish", seconds=75)
    done = established("r1", sequence=9, supersedes="cmd_1", seconds=75, verified=True, observation=looked)
    return message(done, "m9")


async def test_a_batch_that_says_much_of_one_drift_moves_it_by_one_version_and_tells_it_once() -> None:
    """Else the second word of the batch would contradict the first for ever, and nothing behind it would be heard.

    Requirements: M2, Q8
    """
    store = MemoryStore()
    obligation = await trashed(store)
    fresh = message(operator_command("REPAIR", performer="repair-planner"), "opc_1")
    again = message(operator_command("REPAIR", performer="repair-planner", operator_command_id="opc_2"), "opc_2")
    await deliver(store, fresh, message(repair(obligation, "FAILED"), "r1"), again, seconds=70)
    reports = [item.obligation for item in told(store, ExceptionReported)]
    assert [(item.version, item.status) for item in reports] == [(1, "open"), (2, "open")]
    assert reports[-1].envelope["repairs_count"] == 0, "what was said last holds"
    await deliver(store, message(repair(obligation, "FAILED", version=2), "r2"), repaired(), seconds=75)
    (row,) = store.obligation.values()
    assert (row.version, row.status, row.resolution_type) == (3, "closed", "observed_healthy")
    assert [item.obligation.version for item in told(store, ExceptionReported)] == [1, 2, 3]


async def test_a_drift_that_opens_and_is_spoken_of_in_one_batch_is_told_as_it_stands() -> None:
    """Requirements: M2, Q8"""
    store = MemoryStore()
    await deliver(store, message(established(verified=True, observation=seen("publish"), repair=offer()), "m1"))
    await tick(store, 60)
    (probe,) = told(store, ProbeTask)
    spoken = message(operator_command("REPAIR", performer="repair-planner"), "opc_1")
    await deliver(store, message(answer_of(probe, "trash", seconds=61), "m2"), spoken, seconds=61)
    assert [item.obligation.version for item in told(store, ExceptionReported)] == [1]
    assert [row.version for row in store.obligation.values()] == [1]


async def test_a_look_that_somebody_waits_for_ends_with_the_read_back_of_a_repair() -> None:
    """The repair's own observation leaves nothing to look for: whoever asked hears it. Requirements: O3, R6"""
    store = MemoryStore()
    await trashed(store)
    await deliver(store, message(operator_command("RECONCILE"), "opc_1"), repaired(), seconds=75)
    (ended,) = told(store, OperatorCommandEnded)
    assert (ended.operator_command_id, ended.state, ended.result["phase"]) == ("opc_1", "DONE", "HEALTHY")


async def test_a_look_that_somebody_waits_for_ends_with_the_read_back_of_a_newer_owner() -> None:
    """Requirements: O3, R6"""
    store = MemoryStore()
    await trashed(store)
    newer = established("2", sequence=9, verified=True, observation=seen("publish", seconds=75), seconds=75)
    await deliver(store, message(operator_command("RECONCILE"), "opc_1"), message(newer, "m9"), seconds=75)
    (ended,) = told(store, OperatorCommandEnded)
    assert (ended.state, ended.result["phase"]) == ("DONE", "HEALTHY")


async def test_nobody_who_wants_a_look_is_forgotten_among_many() -> None:
    """Requirements: O3. There is room for so many; who was first hears what is known, the others what is seen."""
    store = MemoryStore()
    await deliver(store, message(established(verified=True, observation=seen("publish")), "m1"))
    many = [
        message(operator_command("RECONCILE", operator_command_id=f"opc_{number}"), f"opc_{number}")
        for number in range(LOOKS_MAX + 2)
    ]
    await deliver(store, *many, seconds=5)
    assert [item.operator_command_id for item in told(store, OperatorCommandEnded)] == ["opc_0", "opc_1"]
    (probe,) = told(store, ProbeTask)
    await deliver(store, message(answer_of(probe, "trash", seconds=6), "m2"), seconds=6)
    assert {item.operator_command_id for item in told(store, OperatorCommandEnded)} == {item.id for item in many}
