"""What a person's operator command does to an exception and its repair: one function per action, in one table.

The planner performs what is about duty and about drift; of what others perform it keeps the repair, so that a repair by
hand is one like any other: verified, counted and shown.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from trueup_common.contracts.events import OperatorCommand, OperatorCommandEnded
from trueup_common.contracts.operators import PLANNER as PERFORMER
from trueup_common.contracts.operators import CommandState, OperatorAction
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import InstanceStatus
from trueup_repair_planner.core import course, lifecycle
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow
from trueup_repair_planner.core.plan import PLANNER as PLANNED_BY
from trueup_repair_planner.core.plan import left_to_case
from trueup_repair_planner.core.repair import RepairRow, Status
from trueup_repair_planner.core.resolutions import UNDONE

A = OperatorAction
MARKED: Final = "marked_resolved"
KEPT: Final = frozenset({A.RETRY, A.RECONCILE, A.REDRIVE, A.REPAIR, A.COMPENSATE})
"""Actions performed elsewhere that are repairs."""
GOOD: Final = {"SUCCESS": "operation_success", "RESOLVED": "operation_resolved"}


class Hand(Protocol):
    """What the actions move: the desk."""

    now: datetime

    @property
    def duty(self) -> Duty:
        """Who owns what."""
        ...

    def put(self, row: ExceptionRow, repair: RepairRow | None = None) -> None:
        """Both as they stand now."""
        ...

    def fail(self, row: ExceptionRow, repair: RepairRow, code: str, detail: str | None = None) -> None:
        """A repair did not hold."""
        ...

    def plan(self, row: ExceptionRow) -> None:
        """The next repair of an open exception that has none in flight."""
        ...

    def by_person(self, row: ExceptionRow, action: str, actor: str) -> RepairRow:
        """A repair that a person asks for beyond what was planned."""
        ...

    def end(self, command_id: str, tenant: str, result: dict[str, Any], detail: str | None, state: str = ...) -> None:
        """Tell how an operator command ended."""
        ...


def take(hand: Hand, command: OperatorCommand, row: ExceptionRow | None, repair: RepairRow | None) -> None:
    """Perform an operator command, or take note of it."""
    if command.performer != PERFORMER:
        if row is not None and row.status == "open" and command.action in KEPT:
            _kept(hand, command, row, repair)
        return
    perform = PERFORMED.get(OperatorAction(command.action))
    if row is None or row.tenant != command.tenant or row.status != "open":
        refuse(hand, command, "the exception is not open any more")
    elif perform is None:
        refuse(hand, command, f"{command.action} is not performed here")
    else:
        perform(hand, command, row, repair)


def refuse(hand: Hand, command: OperatorCommand, detail: str) -> None:
    """Nothing was changed."""
    hand.end(command.operator_command_id, command.tenant, {}, detail, CommandState.REFUSED.value)


def done(hand: Hand, command: OperatorCommand, **result: Any) -> None:
    """It is in effect."""
    hand.end(command.operator_command_id, command.tenant, result, None)


def _assign(hand: Hand, command: OperatorCommand, row: ExceptionRow, repair: RepairRow | None) -> None:
    owner = command.params.get("owner")
    if not isinstance(owner, str) or not owner:
        refuse(hand, command, "params.owner names the new owner")
        return
    deadline = command.params.get("deadline")
    due = {"deadline_at": datetime.fromisoformat(deadline)} if deadline else {}
    hand.put(lifecycle.assign(row.evolve(**due), owner, command.actor, hand.now))
    done(hand, command, owner=owner)


def _escalate(hand: Hand, command: OperatorCommand, row: ExceptionRow, repair: RepairRow | None) -> None:
    note = {"reason": command.reason, "operator_command_id": command.operator_command_id}
    duty = replace(hand.duty, escalation_owner=command.params.get("owner") or hand.duty.escalation_owner)
    escalated = lifecycle.escalate(row, now=hand.now, duty=duty, actor=command.actor, note=note)
    hand.put(escalated)
    if left_to_case(row):
        hand.plan(escalated)
    done(hand, command, owner=escalated.owner)


def _mark(hand: Hand, command: OperatorCommand, row: ExceptionRow, repair: RepairRow | None) -> None:
    row = lifecycle.finish(row, MARKED, command.actor, command.actor, hand.now)
    if repair is not None and repair.in_flight:
        row, repair = course.closed(row, repair, hand.now)
    hand.put(row, repair)
    done(hand, command, resolution_type=MARKED)


def _repair(hand: Hand, command: OperatorCommand, row: ExceptionRow, repair: RepairRow | None) -> None:
    """A person lets a planned repair of drift begin: its own decision is still asked for."""
    if repair is None or not repair.in_flight:
        repair = hand.by_person(row, A.REPAIR.value, command.actor)
    if repair.request is None:
        refuse(hand, command, "no command is declared that could bring this element back")
        return
    if repair.status is not Status.PLANNED:
        refuse(hand, command, f"repair {repair.repair_id} is {repair.status.value} already")
        return
    note = {"step": "approve", "to": repair.status.value, "at": rfc3339(hand.now), "actor": command.actor}
    repair = repair.evolve(
        due_at=hand.now,
        held=False,
        operator_command_id=command.operator_command_id,
        trail=[*repair.trail, {**note, "reason": command.reason}],
    )
    hand.put(course.mirror(row, repair), repair)


def _kept(hand: Hand, command: OperatorCommand, row: ExceptionRow, repair: RepairRow | None) -> None:
    """Another service performs it: the repair is under way, and how it ends will be told."""
    if repair is None or not repair.in_flight:
        repair = hand.by_person(row, command.action, command.actor)
    if repair.status not in (Status.PLANNED, Status.EXECUTING):
        return
    if command.actor != PLANNED_BY and command.action != repair.repair_action:
        repair = repair.evolve(planned_by=command.actor)  # a person chose something else than the playbook
    until = hand.now + timedelta(seconds=repair.verify_seconds)
    row, repair = course.sent(
        row,
        repair,
        hand.now,
        command.actor,
        operator_command_id=command.operator_command_id,
        repair_action=command.action,
        verify_until=until,
        due_at=until,
    )
    hand.put(row, repair)


def heard_end(hand: Hand, row: ExceptionRow, repair: RepairRow, ended: OperatorCommandEnded) -> None:
    """What an operation came to after it was redriven, retried or looked for again."""
    state = str(ended.result.get("state") or "")
    status = str(ended.result.get("status") or "") if repair.repair_action == A.COMPENSATE else ""
    if ended.state == CommandState.REFUSED.value:
        hand.fail(row, repair, "refused", ended.detail)
    elif status == InstanceStatus.COMPENSATED:
        hand.put(*course.verified(row, repair, UNDONE, hand.now, ended.ended_by))
    elif status:
        hand.fail(row, repair, status.lower(), ended.detail)
    elif state in GOOD:
        hand.put(*course.verified(row, repair, GOOD[state], hand.now, ended.ended_by))
    elif state and repair.repair_action == A.RECONCILE.value and state != "NEEDS_REVIEW":
        row, repair = course.verified(row, repair, f"operation_{state.lower()}", hand.now, ended.ended_by)
        hand.put(row, repair)
        hand.plan(row)
    elif state:
        hand.fail(row, repair, state.lower(), ended.detail)


def result_of(repair: RepairRow) -> dict[str, Any]:
    """What is told of a repair that a person asked for."""
    return {
        "repair_id": repair.repair_id,
        "state": repair.status.value,
        "command_id": repair.command_id,
        "error_code": repair.error_code,
    }


Perform = Callable[[Hand, OperatorCommand, ExceptionRow, RepairRow | None], None]

PERFORMED: Final[dict[OperatorAction, Perform]] = {
    A.ASSIGN: _assign,
    A.ESCALATE: _escalate,
    A.MARK_RESOLVED: _mark,
    A.REPAIR: _repair,
}
"""What the planner performs itself."""
