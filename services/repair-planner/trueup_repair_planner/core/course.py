"""The common course of an exception and its repair: what moves one moves the other, and neither ends unseen.

An accepted command makes an exception REPAIRED, never more; only what was seen afterwards verifies it or takes it back.
"""

from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.operators import OperatorAction
from trueup_repair_planner.core import lifecycle
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow, Stage, Turn
from trueup_repair_planner.core.plan import PLANNER
from trueup_repair_planner.core.repair import SENT, RepairRow, Status, Step, advance
from trueup_repair_planner.core.resolutions import ENDED_OTHERWISE, VERIFIED_BY, mended

Pair = tuple[ExceptionRow, RepairRow]

UNVERIFIED: Final = "not_verified_in_time"


def mirror(row: ExceptionRow, repair: RepairRow) -> ExceptionRow:
    """The exception shows its repair."""
    if (row.repair_id, row.repair_status) == (repair.repair_id, repair.status.value):
        return row
    another = repair.repair_id != row.repair_id
    shown: ExceptionRow = row.evolve(
        repair_id=repair.repair_id,
        repairs_count=row.repairs_count + another,
        repair_status=repair.status.value,
        incident_id=row.incident_id or repair.incident_id,
    )
    return shown


def planned(row: ExceptionRow, repair: RepairRow, *, now: datetime, duty: Duty) -> Pair:
    """A repair was planned, or it was found that a person must have it at once."""
    if repair.status is Status.ESCALATED:
        note = {"repair_id": repair.repair_id, "reason": repair.error_code or repair.playbook}
        row = lifecycle.escalate(row, now=now, duty=duty, actor=PLANNER, note=note)
    return mirror(row, repair), repair


def sent(row: ExceptionRow, repair: RepairRow, now: datetime, actor: str, **changes: Any) -> Pair:
    """The gateway accepted the repair: from here on it is verified, whatever was answered."""
    repair = advance(
        repair,
        Step.SEND,
        now,
        actor,
        {key: value for key, value in changes.items() if key.endswith("_id")},
        executed_at=now,
        calls_count=0,
        held=False,
        error_code=None,
        error_detail=None,
        **changes,
    )
    if row.status == "open" and row.lifecycle is Stage.ASSIGNED:
        row = lifecycle.step(row, Turn.REPAIR, now, actor, {"repair_id": repair.repair_id})
    return mirror(row, repair), repair


def verified(row: ExceptionRow, repair: RepairRow, resolution: str, now: datetime, verifier: str) -> Pair:
    """What was wanted was seen to be true after the repair; or what it was to find out is known.

    The exception ends with its obligation: where that is still open, only its own end closes it.
    """
    repair = advance(repair, Step.VERIFY, now, verifier, {"resolution_type": resolution})
    if row.status == "open" and row.lifecycle is Stage.REPAIRED:
        if row.left_as is not None:
            row = lifecycle.finish(row, resolution, repair.planned_by, verifier, now)
        elif resolution not in VERIFIED_BY:
            row = lifecycle.step(row, Turn.REFUTE, now, verifier, {"repair_id": repair.repair_id})
    return mirror(row, repair), repair


def failed(row: ExceptionRow, repair: RepairRow, code: str, detail: str | None, now: datetime) -> Pair:
    """The repair was refused or did not hold. The exception is open again, or has become another one meanwhile."""
    move, note = _not_held(repair), {"error_code": code}
    repair = advance(repair, move, now, PLANNER, note, error_code=code, error_detail=detail)
    if row.status == "open" and row.lifecycle is Stage.REPAIRED:
        if row.left_as is not None:
            row = lifecycle.finish(row, row.left_as, PLANNER, PLANNER, now)
        else:
            row = lifecycle.step(row, Turn.REFUTE, now, PLANNER, {"repair_id": repair.repair_id, "error_code": code})
    return mirror(row, repair), repair


def closed(row: ExceptionRow, repair: RepairRow, now: datetime) -> Pair:
    """The exception ended by itself: a repair that was sent is over with it, one that was not is not needed.

    Work that ended badly again has had its repair: it counts as a try, whichever word of it comes first.
    """
    why = row.resolution_type
    note = {"resolution_type": why}
    if repair.status in SENT and (mended(row.kind, why) or _found_out(repair, why)):
        repair = advance(repair, Step.VERIFY, now, row.resolved_by or PLANNER, note)
    elif repair.status in SENT and why in ENDED_OTHERWISE:
        move, code = _not_held(repair), str(why).removeprefix("operation_")
        repair = advance(repair, move, now, PLANNER, {**note, "error_code": code}, error_code=code)
    elif repair.in_flight:
        repair = advance(repair, Step.WITHDRAW, now, PLANNER, note)
    return mirror(row, repair), repair


def _found_out(repair: RepairRow, resolution: str | None) -> bool:
    """True where only a look was asked for and it told what happened, whatever that is."""
    looked = repair.repair_action == OperatorAction.RECONCILE
    return looked and resolution in ENDED_OTHERWISE - {"operation_needs_review"}


def _not_held(repair: RepairRow) -> Step:
    return Step.MISS if repair.status is Status.VERIFYING else Step.REFUSE
