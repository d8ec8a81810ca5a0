"""An exception and its repair end together and in the same way, whichever word of their end comes first.

Everything here runs on the planner's desk, which is pure: messages in, rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
from tests.repair_planner.builders import TENANT, at, closed, moment, reported

from trueup_common.contracts.events import OperatorCommandEnded
from trueup_common.contracts.states import ANSWERED, InstanceStatus, OperationState
from trueup_repair_planner.core import course, lifecycle
from trueup_repair_planner.core.incident import IncidentRow
from trueup_repair_planner.core.incident import Status as IncidentStatus
from trueup_repair_planner.core.lifecycle import ExceptionRow, Stage
from trueup_repair_planner.core.plan import tried
from trueup_repair_planner.core.probe import Standing, turn
from trueup_repair_planner.core.repair import SENT, RepairRow, Status, Step, advance
from trueup_repair_planner.core.resolutions import ENDED_OTHERWISE, GOES_ON, VERIFIED_BY
from trueup_repair_planner.desk import Desk
from trueup_repair_planner.handler import rules_of

RULES = rules_of()
DEPENDENCY = {"kind": "dead_letter", "failure_class": "DEPENDENCY_ERROR", "deadline_seconds": 36000}
Message = Callable[[Desk], None]


def sent(action: str = "REDRIVE", **options: Any) -> tuple[ExceptionRow, RepairRow]:
    """An exception whose repair the gateway has accepted."""
    desk = Desk(moment(0), RULES)
    desk.report(reported(**{**DEPENDENCY, **options}), None)
    (row,), (repair,) = desk.exceptions.values(), desk.repairs.values()
    begun = advance(repair, Step.BEGIN, at(60), "planner", repair_action=action)
    return course.sent(row, begun, at(61), "planner", operator_command_id="opc_1", verify_until=at(1260))


def take(rows: tuple[ExceptionRow, RepairRow], messages: Sequence[Message]) -> Desk:
    """The desk after these messages, one transaction each."""
    desk = Desk(moment(70), RULES)
    desk.load([rows[0]], [rows[1]])
    for message in messages:
        message(desk)
    return desk


def report(event: Any) -> Message:
    return lambda desk: desk.report(event, None)


def ended(state: str) -> Message:
    told = OperatorCommandEnded(
        operator_command_id="opc_1",
        tenant=TENANT,
        state="DONE",
        result={"state": state},
        ended_by="orchestrator",
        at=at(70),
    )
    return lambda desk: desk.operator_ended(told)


def another(kind: str, failure_class: str) -> Message:
    """The same work is in trouble again, as another exception."""
    event = reported("2", kind=kind, failure_class=failure_class, deadline_seconds=36000)
    mine = {"command_id": "cmd_1", "workflow_id": "wf_1"}
    return report(event.evolve(obligation=event.obligation.evolve(**mine)))


@pytest.mark.parametrize("state", ["FAILED", "CONFLICT", "NEEDS_REVIEW", "DEAD_LETTERED"])
def test_work_that_ends_badly_again_has_had_its_repair_whichever_word_comes_first(state: str) -> None:
    """Verification decides, not the 200: what was sent to mend it did not hold, and counts as a try.

    Else work that dies in turn as a dead letter and as a failure would be redriven for ever.

    Requirements: Q7, Q8, R9
    """
    words = [
        report(closed(resolution=f"operation_{state.lower()}", **DEPENDENCY)),
        ended(state),
        another("failed", "AUTH_ERROR"),
    ]
    for order in permutations(words):
        desk = take(sent(), order)
        first, second = desk.exceptions.values()
        mine = [repair for repair in desk.repairs.values() if repair.exception_id == first.exception_id]
        assert (first.status, first.lifecycle, first.resolution_type) == (
            "closed",
            Stage.CLOSED,
            f"operation_{state.lower()}",
        )
        assert "verified" not in [entry["to"] for entry in first.trail]
        assert mine[0].status is Status.FAILED and mine[0].error_code
        assert all(not repair.in_flight for repair in mine)
        assert (second.status, second.owner) == ("open", "operators")
        (following,) = [repair for repair in desk.repairs.values() if repair.exception_id == second.exception_id]
        assert (following.status, following.number) == (Status.PLANNED, 2)


def test_work_that_dies_in_turn_as_this_and_as_that_reaches_a_person() -> None:
    """Dead letter, failure, dead letter, ...: each try is counted, and after the last one a person has it.

    Requirements: R9, Q4
    """
    kinds = [("failed", "AUTH_ERROR"), ("dead_letter", "AUTH_ERROR")]
    desk = Desk(moment(0), RULES)
    desk.report(reported("0", kind="dead_letter", failure_class="AUTH_ERROR", deadline_seconds=10**7), None)
    rows = desk.exceptions
    tries = 0
    for number in range(1, 20):
        (row,) = [row for row in desk.exceptions.values() if row.status == "open"]
        repair = next(item for item in desk.repairs.values() if item.repair_id == row.repair_id)
        if repair.status is Status.ESCALATED:
            break
        tries += 1
        begun = advance(repair, Step.BEGIN, at(number), "planner")
        moved = course.sent(row, begun, at(number), "planner", operator_command_id=f"opc_{number}")
        desk.put(*moved)
        kind, failure = kinds[number % 2]
        resolution = "operation_failed" if kind == "failed" else "operation_dead_lettered"
        before = {"command_id": "cmd_0", "workflow_id": "wf_0"}
        over = closed(row.obligation_id.removeprefix("obl_"), resolution, kind=row.kind)
        desk.report(over.evolve(obligation=over.obligation.evolve(**before)), None)
        event = reported(str(number), kind=kind, failure_class=failure, deadline_seconds=10**7)
        desk.report(event.evolve(obligation=event.obligation.evolve(**before)), None)
    assert tries == 6, [repair.status for repair in desk.repairs.values()]
    assert tried(desk.repairs.values()) == 7
    assert [row.owner for row in rows.values() if row.status == "open"] == ["duty-manager"]


@pytest.mark.parametrize("resolution", sorted(GOES_ON))
def test_what_goes_on_again_closes_nothing_until_it_was_seen_where_it_got(resolution: str) -> None:
    """A redrive was accepted: no dead letter any more, and not yet what was wanted. It stays open, and owned.

    Requirements: Q7, Q8
    """
    over = report(closed(resolution=resolution, **DEPENDENCY))
    desk = take(sent(), [over])
    (row,), (repair,) = desk.exceptions.values(), desk.repairs.values()
    assert (row.status, row.lifecycle, row.left_as, row.owner) == ("open", Stage.REPAIRED, resolution, "operators")
    assert (repair.status, repair.verify_until) == (Status.VERIFYING, at(1260))

    well = take((row, repair), [ended("SUCCESS")])
    assert well.exceptions[row.exception_id].resolution_type == "operation_success"
    assert well.repairs[repair.repair_id].status is Status.DONE

    late = Desk(moment(1261), RULES)
    late.load([row], [repair])
    late.fail(row, repair, course.UNVERIFIED)
    (row,), (repair, *_) = late.exceptions.values(), late.repairs.values()
    assert (row.status, row.resolution_type, repair.status) == ("closed", resolution, Status.FAILED)
    assert "verified" not in [entry["to"] for entry in row.trail]


def undone(status: str) -> Message:
    told = OperatorCommandEnded(
        operator_command_id="opc_1",
        tenant=TENANT,
        state="DONE",
        result={"status": status},
        ended_by="orchestrator",
        at=at(80),
    )
    return lambda desk: desk.operator_ended(told)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_a_person_decides_to_undo_is_over_when_nothing_of_it_stands_any_more(order: tuple[int, int]) -> None:
    """COMPENSATE: the exception closes with its case, the repair held, and who decided is who resolved it.

    Requirements: Q7, Q8
    """
    words = [report(closed(resolution="case_compensating", **DEPENDENCY)), undone("COMPENSATED")]
    row, repair = sent("COMPENSATE")
    repair = repair.evolve(planned_by="operator:olga")
    row = row.evolve(trail=[*row.trail[:-1], {**row.trail[-1], "actor": "operator:olga"}])
    desk = take((row, repair), [words[number] for number in order])
    (row,), (repair,) = desk.exceptions.values(), desk.repairs.values()
    assert (row.status, row.lifecycle, row.resolution_type) == ("closed", Stage.CLOSED, "undone")
    assert (row.resolved_by, row.trail[-2]["to"]) == ("operator:olga", "verified")
    assert repair.status is Status.DONE


def test_an_undoing_that_ends_with_a_person_held_nothing() -> None:
    """Its exception is over as what it has become; the new one has an owner. Requirements: Q7, S4"""
    left = report(closed(resolution="case_compensating", **DEPENDENCY))
    desk = take(sent("COMPENSATE"), [left, undone("HUMAN_TAKEOVER")])
    (row,), (repair, *_) = desk.exceptions.values(), desk.repairs.values()
    assert (row.status, row.resolution_type, row.trail[-1]["turn"]) == ("closed", "case_compensating", "withdraw")
    assert (repair.status, repair.error_code) == (Status.FAILED, "human_takeover")


@pytest.mark.parametrize("resolution", ["superseded", "retired", "accepted", "operation_cancelled", "case_resolved"])
def test_what_is_not_wanted_any_more_is_over_at_once_and_was_no_try(resolution: str) -> None:
    """No repair will tell more of it: it is withdrawn with its repair, by name, and nobody calls it verified.

    Requirements: Q8
    """
    desk = take(sent(), [report(closed(resolution=resolution, **DEPENDENCY))])
    (row,), (repair,) = desk.exceptions.values(), desk.repairs.values()
    assert (row.status, row.resolution_type, row.trail[-1]["turn"]) == ("closed", resolution, "withdraw")
    assert (repair.status, repair.trail[-1]["resolution_type"]) == (Status.WITHDRAWN, resolution)
    assert tried([repair]) == 0


@pytest.mark.parametrize("resolution", sorted(VERIFIED_BY))
def test_what_was_seen_to_hold_is_verified_together_with_its_repair(resolution: str) -> None:
    """Requirements: Q7, Q8"""
    desk = take(sent(), [report(closed(resolution=resolution, **DEPENDENCY))])
    (row,), (repair,) = desk.exceptions.values(), desk.repairs.values()
    assert [entry["to"] for entry in row.trail][-3:] == ["repaired", "verified", "closed"]
    assert repair.status is Status.DONE


def test_a_look_that_told_what_happened_is_done_whichever_word_comes_first() -> None:
    """Requirements: Q7, Q8"""
    over = report(closed(resolution="operation_failed", kind="needs_review"))
    for order in permutations([over, ended("FAILED")]):
        rows = sent("RECONCILE", kind="needs_review", failure_class="TIMEOUT_UNKNOWN")
        desk = take(rows, order)
        assert desk.exceptions[rows[0].exception_id].status == "closed"
        assert desk.repairs[rows[1].repair_id].status is Status.DONE


def test_every_end_of_an_operation_and_of_a_case_is_one_of_the_kinds() -> None:
    """A state that is new has to be sorted: it goes on, it holds, it ended badly, or it is not wanted any more.

    Requirements: Q8
    """
    ends = {f"operation_{state.value.lower()}" for state in OperationState}
    assert {f"operation_{state.value.lower()}" for state in ANSWERED} == ends - GOES_ON
    assert ends - GOES_ON - VERIFIED_BY - ENDED_OTHERWISE == {"operation_cancelled"}
    going = {f"case_{status.value.lower()}" for status in InstanceStatus} & GOES_ON
    assert going == {"case_running", "case_waiting", "case_paused", "case_cancel_pending", "case_compensating",
                     "case_verifying"}  # fmt: skip
    assert not GOES_ON & (VERIFIED_BY | ENDED_OTHERWISE)


@pytest.mark.parametrize("status", sorted(SENT))
def test_a_repair_of_which_nobody_heard_whether_it_was_sent_counts_as_a_try_too(status: Status) -> None:
    """Requirements: R9"""
    row, repair = sent()
    row, repair = course.mirror(row, repair.evolve(status=status)), repair.evolve(status=status)
    desk = take((row, repair), [report(closed(resolution="operation_failed", **DEPENDENCY))])
    assert desk.repairs[repair.repair_id].status is Status.FAILED


def test_what_is_new_on_the_desk_is_not_replaced_by_what_another_replica_stored_meanwhile() -> None:
    """The desk has folded more than was stored when an incident reaches back for its members: saving has to tell.

    Requirements: L5, Q8
    """
    desk = Desk(moment(10), RULES)
    desk.report(reported(**DEPENDENCY), None)
    desk.report(closed(resolution="operation_success", **DEPENDENCY), None)
    (folded,) = desk.exceptions.values()
    stored = lifecycle.report(None, reported(**DEPENDENCY), now=at(0), duty=RULES.duty).evolve(version=1)
    desk.load([stored])
    assert desk.exceptions[folded.exception_id] is folded
    new, moved = desk.changes().exceptions
    assert [row.status for row in new] == ["closed"] and not moved


def test_an_incident_is_not_over_while_it_holds_a_repair() -> None:
    """Its exceptions may be counted with another cause by now: what it holds nobody else lets go.

    Requirements: D4, Q8
    """
    opened = IncidentRow(
        incident_id="inc_1",
        tenant=TENANT,
        cause_key="system:wordpress:wordpress:DEPENDENCY_ERROR",
        cause={},
        number=1,
        status=IncidentStatus.OPEN,
        owner="duty-manager",
        first_at=at(0),
        last_at=at(0),
        opened_at=at(0),
        due_at=at(30),
    )
    held = sent()[1].evolve(status=Status.PLANNED, held=True, incident_id="inc_1", due_at=None)
    standing = Standing(open_count=0, held_count=1, flying_count=0, held=[held], probe=None)
    moved, released = turn(opened, standing, at(30), RULES.alarm)
    assert (moved.status, moved.probe_repair_id) == (IncidentStatus.PROBING, held.repair_id)
    assert [(row.held, row.due_at) for row in released] == [(False, at(30))]
    over, _ = turn(opened, Standing(0, 0, 0, held=[], probe=None), at(30), RULES.alarm)
    assert over.status is IncidentStatus.CLOSED
