"""Planning: every field of a repair, growing delays, and a budget, counted by the work, that ends with a person."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.repair_planner.builders import T0, at, reported

from trueup_common.contracts.events import RepairChanged
from trueup_repair_planner import playbooks
from trueup_repair_planner.core import repair as repairs
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow, report
from trueup_repair_planner.core.plan import BUDGET_SPENT, plan, subject_of, subject_of_row, tried
from trueup_repair_planner.core.playbook import read_playbooks
from trueup_repair_planner.core.repair import IN_FLIGHT, TABLE, IllegalStep, RepairRow, Status, Step, advance

BOOKS = read_playbooks(playbooks.texts())
OFFER = {
    "command_type": "monitoring.register_check",
    "resource": "check/home",
    "payload": {"name": "home", "url": "https://example.org/"},
}


def exception(name: str = "1", **wanted: Any) -> ExceptionRow:
    return report(None, reported(name, **wanted), now=T0, duty=Duty())


def drifted(name: str = "1", **envelope: Any) -> ExceptionRow:
    told = {
        "element": "monitoring.registered",
        "desired": True,
        "observed": None,
        "observed_at": T0.isoformat(),
        "route": "AUTO_REPAIR",
        "repair": OFFER,
        **envelope,
    }
    return exception(name, kind="state_drift", failure_class="RESOURCE_MISSING", envelope=told)


def planned(row: ExceptionRow, *history: RepairRow, seconds: float = 0) -> RepairRow:
    found = plan(row, history, BOOKS, now=at(seconds)).repair
    assert found is not None
    return found


def failed(row: RepairRow, seconds: float = 0) -> RepairRow:
    executing = advance(row, Step.BEGIN, at(seconds), "planner")
    return advance(executing, Step.REFUSE, at(seconds), "planner")


def done(row: RepairRow, seconds: float = 0) -> RepairRow:
    return advance(advance(row, Step.BEGIN, at(seconds), "planner"), Step.VERIFY, at(seconds), "reconciler")


def test_a_repair_of_drift_has_every_field_and_repairs_the_missing_element_alone() -> None:
    """Requirements: Q5, R3"""
    repair = planned(drifted())
    assert repair.request == {
        "command_type": "monitoring.register_check",
        "system": "monitoring",
        "resource": "check/home",
        "payload": OFFER["payload"],
        "supersedes": "cmd_1",
    }
    assert repair.required_capability == {
        "command_type": "monitoring.register_check",
        "system": "monitoring",
        "resource": "check/home",
    }
    assert (repair.status, repair.due_at, repair.approval_required) == (Status.PLANNED, T0, False)
    assert {item["kind"] for item in repair.evidence} == {"exception", "observation"}
    told = repairs.told(repair).model_dump()
    q5 = (
        "repair_id source_command source_saga drift root_cause repair_action risk_level required_capability "
        "approval_required verification_plan rollback_or_compensation"
    ).split()
    assert [name for name in q5 if told[name] in (None, "", {})] == []
    assert set(RepairChanged.model_fields) == set(told)


def test_what_needs_a_person_waits_without_a_time() -> None:
    """Requirements: Q1, Q5"""
    for row in (
        exception(kind="compensation_failed", envelope={"failure_code": "forbidden"}),
        exception(kind="failed", failure_class="DATA_ERROR"),
        drifted(route="MANUAL"),
    ):
        repair = planned(row)
        assert (repair.status, repair.due_at, repair.approval_required) == (Status.PLANNED, None, True)


def test_what_is_settled_elsewhere_gets_no_repair() -> None:
    assert plan(exception(kind="unknown_outcome"), [], BOOKS, now=T0).repair is None


def test_each_try_waits_twice_as_long_and_after_the_last_a_person_gets_it() -> None:
    """Requirements: Q5, R9, Q4"""
    row = exception(failure_class="DEPENDENCY_ERROR", envelope={"failure_code": "attempts_exhausted"})
    history: list[RepairRow] = []
    delays = []
    for number in range(1, 6):
        repair = planned(row, *history, seconds=number)
        assert repair.number == number
        if repair.status is Status.ESCALATED:
            break
        assert repair.due_at is not None
        delays.append(repair.due_at - at(number))
        history.append(failed(repair, number))
    assert delays == [timedelta(seconds=60 * 2**number) for number in range(4)]
    assert (repair.number, repair.status, repair.error_code) == (5, Status.ESCALATED, BUDGET_SPENT)
    assert repair.due_at is None and repair.ended_at == at(5)


def test_a_repair_that_held_gives_the_whole_budget_back() -> None:
    """Requirements: R9"""
    row = exception(failure_class="DEPENDENCY_ERROR")
    first = failed(planned(row))
    second = done(planned(row, first, seconds=1), 2)
    assert tried([first]) == 1 and tried([first, second]) == 0
    assert planned(row, first, second, seconds=3).number == 1


def test_tries_are_counted_by_the_work_not_by_the_exception() -> None:
    """Requirements: R9, Q5"""
    first = exception("1", failure_class="DEPENDENCY_ERROR")
    again = exception("2", failure_class="DEPENDENCY_ERROR").evolve(command_id="cmd_1")
    assert first.exception_id != again.exception_id
    assert subject_of_row(first) == subject_of_row(again) == "cmd_1"
    repair = planned(again, failed(planned(first)))
    assert repair.number == 2 and repair.due_at == T0 + timedelta(seconds=120)
    assert subject_of(reported("1")) == "cmd_1"
    assert subject_of_row(drifted()) == "wordpress:site:monitoring.registered"


def test_the_same_repair_has_the_same_id_and_every_next_another() -> None:
    row = exception(failure_class="DEPENDENCY_ERROR")
    one = planned(row)
    assert one.repair_id == planned(row, seconds=9).repair_id
    assert one.repair_id != planned(row.evolve(repairs_count=1), failed(one)).repair_id


def test_only_a_verification_makes_done_and_only_ends_are_not_in_flight() -> None:
    """Requirements: Q7"""
    assert {step for (_, step), to in TABLE.items() if to is Status.DONE} == {Step.VERIFY}
    assert {status for (status, step), _ in TABLE.items() if step is Step.VERIFY} == {
        Status.EXECUTING,
        Status.VERIFYING,
    }
    ends = set(Status) - IN_FLIGHT
    assert {status for status, _ in TABLE} & ends == {Status.FAILED}
    assert ends <= set(TABLE.values())


def test_what_the_table_does_not_have_cannot_happen() -> None:
    repair = planned(drifted())
    for move in set(Step) - {step for status, step in TABLE if status is Status.PLANNED}:
        with pytest.raises(IllegalStep):
            advance(repair, move, T0, "x")
