"""What the planner and people say of an element's repair: planned, failed, done, or to be tried afresh.

Nothing here makes an element healthy: a repair that is done is a reason to look, now.
"""

from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.events import RepairChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import rfc3339
from trueup_reconciler.core.budget import IN_FLIGHT, TURN, Budget, Route, Way, kind_of_row, route
from trueup_reconciler.core.element import TABLE, ElementRow, Turn, turn
from trueup_reconciler.core.order import soon
from trueup_reconciler.core.turned import Turned

LOOKS_MAX: Final = 20


def heard(row: ElementRow, event: RepairChanged, *, now: datetime, budget: Budget) -> Turned:
    """Take in where the repair of this element stands. An older word than the newest one changes nothing."""
    if row.obligation_id is None or event.exception_id != derived_id("exc", row.obligation_id):
        return Turned(row, changed=False)  # it is about an earlier drift
    if event.repair_id == row.repair_id and event.version <= row.repair_version:
        return Turned(row, changed=False)
    known = row.evolve(repair_id=event.repair_id, repair_status=event.status, repair_version=event.version)
    if event.status == "ESCALATED":
        return _escalated(known, now)
    if event.status == "FAILED":
        return _failed(known, event, now, budget)
    if event.status in IN_FLIGHT:
        known = _turned(known, Turn.REPAIR_PLANNED)
    if event.status in ("VERIFYING", "DONE"):
        known = soon(known, now)
    return Turned(known)


def _failed(row: ElementRow, event: RepairChanged, now: datetime, budget: Budget) -> Turned:
    """The repair was refused or did not hold. One that succeeded first was counted then."""
    if not row.automatic:
        return Turned(row)
    was_counted = event.command_id is not None and event.command_id == row.repaired_by
    tried = row if was_counted else row.evolve(repairs_count=row.repairs_count + 1, tried_at=now)
    way = route(tried, kind_of_row(row), now=now, budget=budget)
    turned = _routed(tried, way, now)
    if way.way is Way.ESCALATED:
        turned = turned.evolve(automatic=False, escalated_code=way.code)
    return Turned(soon(turned, now), restated=_restated(turned, way))


def _escalated(row: ElementRow, now: datetime) -> Turned:
    """The planner gave it to a person, for reasons of its own. Told once, or each would answer the other for ever."""
    if not row.automatic:
        return Turned(row)
    way = Route(Way.ESCALATED, code="repairs_exhausted")
    given = _routed(row.evolve(automatic=False, escalated_code=way.code), way, now)
    return Turned(given, restated=_restated(given, way))


def asked(row: ElementRow, look: dict[str, str], now: datetime) -> Turned:
    """Somebody wants it looked at: now, and hears what was seen. Whom there is no room for hears what is known."""
    others = [one for one in row.looks if one["operator_command_id"] != look["operator_command_id"]]
    looks = [*others, look]
    return Turned(soon(row.evolve(looks=looks[-LOOKS_MAX:]), now), looked=tuple(looks[:-LOOKS_MAX]))


def allowed_again(row: ElementRow, now: datetime, budget: Budget) -> Turned:
    """A person wants it repaired: whatever was tried before, it gets a fresh budget."""
    if row.obligation_id is None:
        return Turned(row, changed=False)
    fresh = row.evolve(
        automatic=True, escalated_code=None, repairs_count=0, fights_count=0, foreign_sha256=None, tried_at=None
    )
    way = route(fresh, kind_of_row(row), now=now, budget=budget)
    turned = _routed(fresh, way, now)
    if turned.repair_status in IN_FLIGHT:
        turned = _turned(turned, Turn.REPAIR_PLANNED)
    return Turned(turned, restated=_restated(turned, way))


def _restated(row: ElementRow, way: Route) -> tuple[str, dict[str, Any]] | None:
    """What changes in the open exception where no observation is new."""
    if row.obligation_id is None:
        return None
    facts = {
        "failure_code": way.code,
        "route": way.way.value,
        "human_review_required": way.way in (Way.MANUAL, Way.ESCALATED),
        "repair_not_before": rfc3339(way.not_before) if way.not_before is not None else None,
        "repairs_count": row.repairs_count,
        "held": row.repairs_count == 0,
    }
    return row.obligation_id, facts


def _turned(row: ElementRow, move: Turn) -> ElementRow:
    """The turn where the stage has it; an element that is being looked at finds its stage by the comparison."""
    return turn(row, move) if (row.stage, move) in TABLE else row


def _routed(row: ElementRow, way: Route, now: datetime) -> ElementRow:
    """On its new way; an element that is being looked at finds it by the comparison, from the same facts. A look that
    was to verify a repair ends with the verification: its answer would find no stage, so another one is asked."""
    if (row.stage, Turn.REPAIR_FAILED) not in TABLE:
        return row
    turned = turn(row, Turn.REPAIR_FAILED, TURN[way.way])
    return soon(turned, now) if turned.visit_id is not None else turned
