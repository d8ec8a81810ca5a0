"""Acts in hand: an operator command that takes its time stays with its operation or case until what it began has ended.

While one is at work on an operation, attempts are sent on its decision and the exception it is about stays open: it is
closed by how the operation ends, never by having been acted upon.
"""

from typing import Any, Final

from trueup_common.contracts.events import OperatorCommand, OperatorCommandEnded
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import ENDED, IN_HAND, SENDS, CommandState, OperatorAction, is_unverified
from trueup_common.contracts.states import ANSWERED, INSTANCE_TERMINAL, InstanceStatus
from trueup_common.contracts.topology import event_subject
from trueup_common.contracts.workflow import Direction
from trueup_orchestrator.core.fold import SOURCE, Fold

_OVER: Final = INSTANCE_TERMINAL | {InstanceStatus.HUMAN_TAKEOVER}


def in_hand(row: JournalRow) -> bool:
    """True while an operator command is at work on an operation."""
    return row.operator_status == IN_HAND


def decided_by(row: JournalRow) -> str | None:
    """The operator command on whose decision the next attempt is sent, if any."""
    return row.operator_command_id if in_hand(row) and row.operator_action in SENDS else None


def take_in_hand(fold: Fold, asked: OperatorCommand, action: OperatorAction) -> None:
    """Let a command be at work on the operation in focus; one that was there before is overtaken."""
    row = fold.operation
    if in_hand(row) and row.operator_command_id is not None:
        tell_end(fold, row.operator_command_id, result={"overtaken_by": asked.operator_command_id})
    fold.set(
        operator_action=action.value,
        operator_status=IN_HAND,
        operator_command_id=asked.operator_command_id,
        repair_id=asked.repair_id or row.repair_id,
    )


def done_by(fold: Fold, asked: OperatorCommand) -> None:
    """A command had its whole effect on the operation in focus within this commit."""
    fold.acted_by[fold.focus] = asked.actor
    fold.set(operator_action=asked.action, operator_status=ENDED, operator_command_id=asked.operator_command_id)


def tell_end(
    fold: Fold,
    operator_command_id: str,
    state: CommandState = CommandState.DONE,
    *,
    detail: str | None = None,
    allowed: tuple[OperatorAction, ...] = (),
    result: dict[str, Any] | None = None,
) -> None:
    """Tell the gateway how an operator command ended."""
    fold.send(
        OperatorCommandEnded(
            operator_command_id=operator_command_id,
            tenant=fold.instance.tenant,
            state=state.value,
            detail=detail,
            allowed_actions=tuple(action.value for action in allowed),
            result=result or {},
            ended_by=SOURCE,
            at=fold.moment.business,
        ),
        message_id=f"{operator_command_id}:ended",
        subject=event_subject(SOURCE, "operator-ended", fold.instance.tenant),
    )


def end_acts(fold: Fold) -> None:
    """What the commands in hand set in motion may have ended with this commit."""
    for row in list(fold.operations.values()):
        if in_hand(row) and row.state in ANSWERED and row.operator_command_id is not None:
            fold.at(row.command_id).set(operator_status=ENDED)
            tell_end(
                fold,
                row.operator_command_id,
                detail=row.error_detail,
                result={"command_id": row.command_id, "state": row.state.value, "error_code": row.error_code},
            )


def end_ways_back(fold: Fold) -> None:
    """A cancel or an undoing has ended once the case is over, or in a person's hands.

    Also where all is undone, and what is still owed was not observed in time.
    """
    for entry in ("cancel", "turned"):
        asked = getattr(fold.instance, entry) or {}
        if asked.get("ended", entry == "turned") or not asked.get("operator_command_id"):
            continue
        status = fold.instance.status
        left = _unobserved(fold) if status not in _OVER else []
        if status in _OVER or left:
            fold.instance = fold.instance.evolve(**{entry: {**asked, "ended": True}})
            result = {"status": status.value, **({"unverified": left} if left else {})}
            tell_end(fold, asked["operator_command_id"], result=result)


def end_hand_back(fold: Fold) -> None:
    """A case that was given back goes on, or is a person's again at once: whoever gave it back hears which, and why."""
    instance = fold.instance
    turned = (instance.turned or {}) if instance.direction != Direction.FORWARD else {}
    why = " ".join(str(turned[name]) for name in ("reason", "detail") if turned.get(name))
    at_once = instance.status is InstanceStatus.HUMAN_TAKEOVER
    detail = f"the case is a person's again at once: {why}" if at_once else None
    result = {"direction": instance.direction, "status": instance.status.value}
    for name in fold.handed_back:
        tell_end(fold, name, detail=detail, result=result)


def _unobserved(fold: Fold) -> list[str]:
    """What a case in which nothing goes on any more still owes at its deadline: a person has it by then."""
    overdue = fold.unverified or is_unverified(fold.obligations.values())
    if not overdue or not all(row.state in ANSWERED for row in fold.operations.values()):
        return []
    return [str(item["element"]) for item in fold.instance.owed]


def overtake(fold: Fold, asked: OperatorCommand) -> None:
    """A cancel that only made the case a person's gives way to what somebody asks for in the same commit: who cancelled
    hears so. Once it is committed, it has ended."""
    before = fold.instance.cancel or {}
    if before and not before.get("ended"):
        tell_end(fold, before["operator_command_id"], result={"overtaken_by": asked.operator_command_id})
