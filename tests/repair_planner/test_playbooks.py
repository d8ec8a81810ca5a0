"""Playbooks: the shipped set is sound, and a set that would leave an exception without a repair is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trueup_common.contracts.operators import REPAIRERS
from trueup_common.contracts.states import ExceptionKind, FailureClass, RiskLevel
from trueup_repair_planner import playbooks
from trueup_repair_planner.core.playbook import (
    SETTLE_THEMSELVES,
    Action,
    Playbooks,
    PlaybooksInvalid,
    facts_of,
    read_playbook,
    read_playbooks,
    samples,
)

SHIPPED = read_playbooks(playbooks.texts())
DOCUMENT = """
name: everything
version: 1
order: 1
when: 'true'
action: REPAIR
risk: medium
approval: person
verification: a person saw it
rollback: none
explanation: the last resort
"""


def chosen(kind: str, failure: str, **envelope: Any) -> str:
    return SHIPPED.choose(facts_of(kind, failure, envelope, 0)).name


def test_every_class_of_every_kind_has_a_playbook_and_each_playbook_is_taken() -> None:
    """Requirements: Q5"""
    taken = {SHIPPED.choose(facts).name for facts in samples()}
    assert taken == {item.name for item in SHIPPED.all}
    assert {(facts["exception.kind"], facts["exception.failure_class"]) for facts in samples()} == {
        (kind.value, failure.value) for kind in ExceptionKind for failure in FailureClass
    }


def test_nothing_but_what_settles_itself_is_left_without_a_repair() -> None:
    """Requirements: S4, Q5"""
    for facts in samples():
        playbook = SHIPPED.choose(facts)
        elsewhere = facts["exception.kind"] in SETTLE_THEMSELVES or facts["exception.undoing"]
        assert (playbook.action is Action.NONE) == elsewhere, f"{facts['exception.kind']} {playbook.name}"
        if facts["exception.kind"] == "compensation_failed":
            assert playbook.action in (Action.REDRIVE, Action.REPAIR, Action.ESCALATE)


def test_only_low_and_medium_risk_runs_by_itself() -> None:
    """Requirements: Q5"""
    by_itself = [item for item in SHIPPED.all if item.approval == "auto" and item.action is not Action.ESCALATE]
    assert {item.risk for item in by_itself} <= {RiskLevel.LOW, RiskLevel.MEDIUM}
    with pytest.raises(PlaybooksInvalid, match="of high risk waits for a person"):
        Playbooks([read_playbook(DOCUMENT, "x").evolve(risk=RiskLevel.HIGH, approval="auto")])


def test_the_route_of_the_reconciler_decides_about_drift() -> None:
    """Requirements: R2, Q5"""
    offer = {"command_type": "monitoring.register_check", "resource": "r", "payload": {}}
    assert chosen("state_drift", "RESOURCE_MISSING", route="AUTO_REPAIR", repair=offer) == "drift-automatic"
    assert chosen("state_drift", "STATE_DRIFT", route="RETRYABLE", repair=offer) == "drift-retryable"
    for envelope in ({"route": "MANUAL", "repair": offer}, {"route": "AUTO_REPAIR"}, {}):
        assert chosen("state_drift", "STATE_DRIFT", **envelope) == "drift-of-a-person"


def test_poison_is_not_redriven_by_itself_and_the_environment_is() -> None:
    """Requirements: Q3, Q5"""
    assert chosen("dead_letter", "DEPENDENCY_ERROR", origin="environment") == "dead-letter-by-environment"
    assert chosen("dead_letter", "DATA_ERROR", origin="work") == "dead-letter"
    assert chosen("failed", "AUTH_ERROR", origin="environment") == "credential-refused"
    assert chosen("failed", "SCHEMA_ERROR") == "failed"
    assert chosen("compensation_failed", "COMPENSATION_FAILURE", failure_code="unavailable") == (
        "compensation-failed-by-environment"
    )
    assert chosen("compensation_failed", "COMPENSATION_FAILURE", failure_code="forbidden") == "compensation-failed"
    assert chosen("dead_letter", "DATA_ERROR", failure_code="effects_duplicated") == "effects-duplicated"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("when: 'exception.kind == 1'", "no matching overload"),
        ("when: 'exception.kind'", "either true or false"),
        ("when: 'exception.colour == \"red\"'", "no fact exception.colour"),
        ("when: 'has(exception.kind)'", "has() is not needed"),
        ("when: 'timestamp(now) > x'", "undeclared reference"),
        ("action: RUN_ANY_TOOL", "Input should be"),
        ("attempts_max: 1000", "less than or equal to 20"),
        ("shell: rm", "Extra inputs are not permitted"),
        ("order: 0", "greater than or equal to 1"),
    ],
)
def test_a_playbook_that_could_mean_something_else_is_refused(change: str, fault: str) -> None:
    """Requirements: Q5"""
    key = change.partition(":")[0]
    kept = [line for line in DOCUMENT.strip().splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(PlaybooksInvalid) as refused:
        read_playbooks({"one.yaml": "\n".join([*kept, change])})
    assert fault in str(refused.value)


def test_what_the_planners_identity_may_not_ask_for_runs_by_no_playbook() -> None:
    """A repair of work is a person's operator command; of drift it is a command of its own, where one is declared.

    Requirements: G7, Q5
    """
    everything = read_playbook(DOCUMENT, "everything")
    with pytest.raises(PlaybooksInvalid, match=r"REPAIR of dead_letter of class .* is not the planner's to ask for"):
        Playbooks([everything.evolve(approval="auto")])
    with pytest.raises(PlaybooksInvalid, match=r"REPAIR of state_drift of class .* is not the planner's to ask for"):
        Playbooks(
            [
                everything.evolve(name="drift", approval="auto", when='exception.kind == "state_drift"'),
                everything.evolve(order=2),
            ]
        )
    allowed = everything.evolve(name="drift", approval="auto", when="drift.repairable")
    assert Playbooks([allowed, everything.evolve(order=2)]).all
    assert {Action(action.value) for action in REPAIRERS} <= set(Action)


def test_a_set_with_a_gap_or_a_dead_or_doubled_playbook_is_refused() -> None:
    """Requirements: Q5"""
    everything = read_playbook(DOCUMENT, "everything")
    narrow = everything.evolve(name="narrow", when='exception.kind != "dead_letter"')
    with pytest.raises(PlaybooksInvalid, match="no playbook for dead_letter"):
        Playbooks([narrow])
    with pytest.raises(PlaybooksInvalid, match="dead-one: never taken"):
        Playbooks([everything, everything.evolve(name="dead-one", order=2)])
    with pytest.raises(PlaybooksInvalid, match="name everything is used twice"):
        Playbooks([everything, everything.evolve(order=2)])
    idle = everything.evolve(name="idle", action=Action.NONE)
    with pytest.raises(PlaybooksInvalid, match=r"compensation_failed of class .* would be left without a repair"):
        Playbooks([idle])
