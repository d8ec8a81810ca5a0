"""What a case takes back itself gets no repair beside it; the moment that it does not, the planner has it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.repair_planner.builders import TENANT, at, closed, moment, reported

from trueup_common.contracts.events import ExceptionReported, OperatorCommand
from trueup_common.contracts.operators import UNDOING
from trueup_common.contracts.states import FailureClass
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow, Stage
from trueup_repair_planner.core.repair import RepairRow, Status
from trueup_repair_planner.desk import Desk
from trueup_repair_planner.handler import rules_of

RULES = rules_of(Duty(owner="operators", escalation_owner="duty-manager", sla_seconds=600))
SCHEMA = FailureClass.SCHEMA_ERROR.value
LEFT = {"kind": "failed", "failure_class": SCHEMA, "envelope": {UNDOING: True, "agent": "agent:a"}}
GIVEN_BACK = {"kind": "failed", "failure_class": SCHEMA, "envelope": {"agent": "agent:a"}}


def left(name: str = "1", **changes: Any) -> ExceptionReported:
    return reported(name, **{**LEFT, **changes})


def given_back(name: str = "1", **changes: Any) -> ExceptionReported:
    return reported(name, **{**GIVEN_BACK, "version": 2, **changes})


def only(desk: Desk) -> tuple[ExceptionRow, list[RepairRow]]:
    (row,) = desk.exceptions.values()
    return row, list(desk.repairs.values())


def asked(action: str, row: ExceptionRow) -> OperatorCommand:
    return OperatorCommand(
        operator_command_id="opc_1",
        tenant=TENANT,
        action=action,
        target_kind="exception",
        target_id=row.exception_id,
        exception_id=row.exception_id,
        performer="repair-planner",
        actor="operator:ann",
        reason="it takes too long",
        decision_id="dec_1",
        at=at(60),
    )


def test_what_its_case_takes_back_is_owned_and_gets_no_repair() -> None:
    """Not one row and not one message beside the exception itself, from its first second to its end.

    Requirements: Q4, Q8
    """
    desk = Desk(moment(0), RULES)
    desk.report(left(), None)
    row, repairs = only(desk)
    assert (row.status, row.lifecycle, repairs) == ("open", Stage.ASSIGNED, [])
    assert row.owner == "operators" and row.deadline_at == row.first_deadline_at == at(600)
    desk.report(closed(resolution="case_compensated", **LEFT), None)
    row, repairs = only(desk)
    assert (row.status, row.resolution_type, repairs) == ("closed", "case_compensated", [])
    said = [item.message.type for item in desk.outgoing(desk.changes())]
    assert said == ["ExceptionChanged"]


def test_what_is_given_back_is_planned_for_at_once() -> None:
    """Stuck, taken over, not observed: the report without the mark is enough, whichever one comes first.

    Requirements: Q5, Q8
    """
    for reports in ((left(), given_back()), (given_back(), left()), (given_back(),)):
        desk = Desk(moment(0), RULES)
        for event in reports:
            desk.report(event, None)
        row, (repair,) = only(desk)
        assert (repair.status, repair.playbook, repair.repair_action) == (Status.PLANNED, "failed", "REDRIVE")
        assert (row.repair_id, row.repair_status) == (repair.repair_id, "PLANNED")


@pytest.mark.parametrize("reports", [(left(), given_back()), (given_back(), left())])
def test_what_was_planned_for_once_stays_so(reports: tuple[ExceptionReported, ...]) -> None:
    """Another report of the same plans nothing twice. Requirements: Q5, O6"""
    desk = Desk(moment(0), RULES)
    for event in (*reports, given_back(version=3)):
        desk.report(event, None)
    assert len(only(desk)[1]) == 1


def test_a_person_who_escalates_has_it_planned_for() -> None:
    """Requirements: O3, Q5"""
    desk = Desk(moment(60), RULES)
    desk.report(left(), None)
    desk.operate(asked("ESCALATE", only(desk)[0]))
    row, (repair,) = only(desk)
    assert (row.owner, row.escalations_count, row.repair_id) == ("duty-manager", 1, repair.repair_id)
    assert (repair.status, repair.playbook) == (Status.PLANNED, "failed")
    desk.operate(asked("ESCALATE", row))
    assert len(only(desk)[1]) == 1


def test_it_counts_for_an_incident_as_any_other() -> None:
    """Many cases that are refused alike are one trouble, whoever takes back what they caused. Requirements: D4"""
    desk = Desk(moment(0), RULES)
    for number in range(6):
        desk.report(left(str(number)), None)
    for name in desk.opened:
        desk.hold(name)
    assert desk.opened and all(row.incident_id for row in desk.exceptions.values()) and not desk.repairs
    late = next(iter(desk.exceptions.values()))
    desk.report(given_back("0"), None)
    (repair,) = desk.repairs.values()
    assert repair.exception_id == late.exception_id and repair.incident_id is not None
