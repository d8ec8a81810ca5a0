"""Every transition table over its full cross product: what it has happens as it says, all else is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.simulation.coverage import TABLES, UNREACHED, cell, cells
from tests.simulation.fixed import COMMANDS, OF_COMMANDS, OF_WORKFLOWS, WORKFLOWS
from trueup_adapters.core import effect
from trueup_common.contracts.states import ErrorClass, OperationState
from trueup_orchestrator.core import operation, recovery
from trueup_reconciler.core import element, settlement
from trueup_repair_planner.core import incident, lifecycle, repair

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Machine(NamedTuple):
    """One table: its rows and columns, how the service moves by it, and how it refuses."""

    rows: type[StrEnum]
    columns: type[StrEnum]
    move: Callable[[Any, Any], Any]
    refusal: type[Exception]


def _ledger(standing: effect.Standing, asked: effect.Asked) -> effect.Action:
    fence = 6 if asked is effect.Asked.NEWER else 5
    return effect.decide(_effect_row(standing), fence, find=asked is effect.Asked.FIND, decided=True)


def _effect_row(standing: effect.Standing) -> Any:
    if standing is effect.Standing.NONE:
        return None
    transient = standing is effect.Standing.REJECTED_TRANSIENT
    status = "REJECTED" if standing.value.startswith("REJECTED") else standing.value
    kind = ErrorClass.TRANSIENT if transient else ErrorClass.PERMANENT
    return effect.EffectRow.model_construct(status=effect.LedgerStatus(status), error_class=kind, fence=5)


def _element(stage: element.Stage, turn: element.Turn) -> element.Stage:
    row = element.ElementRow.model_construct(object_key="a:b:c", element="text", stage=stage)
    return element.turn(row, turn).stage


def _exception(stage: lifecycle.Stage, turn: lifecycle.Turn) -> lifecycle.Stage:
    row = lifecycle.ExceptionRow.model_construct(exception_id="exc", lifecycle=stage, trail=[])
    return lifecycle.step(row, turn, NOW, "test").lifecycle


def _repair(status: repair.Status, step: repair.Step) -> repair.Status:
    row = repair.RepairRow.model_construct(repair_id="rep", status=status, trail=[])
    return repair.advance(row, step, NOW, "test").status


def _incident(status: incident.Status, event: incident.Event) -> incident.Status:
    row = incident.IncidentRow.model_construct(incident_id="inc", status=status, trail=[])
    return incident.advance(row, event, NOW).status


MACHINES: dict[str, Machine] = {
    "operation": Machine(OperationState, operation.Trigger, operation.move, operation.IllegalTransition),
    "ledger": Machine(effect.Standing, effect.Asked, _ledger, KeyError),
    "settlement": Machine(
        settlement.SettlementState, settlement.Heard, lambda row, column: settlement.TABLE[row, column], KeyError
    ),
    "exception": Machine(lifecycle.Stage, lifecycle.Turn, _exception, lifecycle.IllegalTurn),
    "repair": Machine(repair.Status, repair.Step, _repair, repair.IllegalStep),
    "incident": Machine(incident.Status, incident.Event, _incident, incident.IllegalEvent),
    "element": Machine(element.Stage, element.Turn, _element, element.IllegalTurn),
    "recovery": Machine(recovery.Situation, recovery.Pivot, recovery.action, LookupError),
}
ILLEGAL = {
    "operation": 443,
    "ledger": 0,
    "settlement": 0,
    "exception": 40,
    "repair": 54,
    "incident": 21,
    "element": 169,
    "recovery": 2,
}
"""How many pairs each table refuses. A pair that becomes legal, or stops being so, has to be meant."""


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_the_cross_product_is_taken_or_refused(name: str) -> None:
    """Every row of a table with every column: as the table says, or refused.

    Requirements: P1, X2
    """
    machine, table = MACHINES[name], TABLES[name][0].TABLE
    refused = 0
    for pair in product(machine.rows, machine.columns):
        wanted = table.get(pair)
        if wanted is None:
            if pair in ((effect.Standing.NONE, effect.Asked.SAME),):
                continue  # no row, so that no task can be the same again
            refused += 1
            with pytest.raises(machine.refusal):
                machine.move(*pair)
            continue
        if wanted is effect.Action.SEND_IF_DECIDED:
            wanted = effect.Action.SEND
        assert machine.move(*pair) == wanted, cell(pair)
    assert refused == ILLEGAL[name]
    assert set(MACHINES) == set(TABLES)


def test_what_is_listed_exists() -> None:
    """A transition that is excused, or looked for in a theme, is one that its table has; the suite runs 300 seeds.

    Requirements: P1
    """
    for name, row in UNREACHED.items():
        assert row.keys() <= set(cells(name)), name
    everything = {f"{name}: {item}" for name in TABLES for item in cells(name)}
    assert {*OF_WORKFLOWS, *OF_COMMANDS} <= everything
    assert sum(share.count for share in (*COMMANDS, *WORKFLOWS)) == 300
