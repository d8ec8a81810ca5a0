"""Telling a case: what the gateway shows of it, durably or as progress, and the answer to whoever waits."""

from collections.abc import Sequence
from typing import Any, Final

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import CaseAnswered, CaseChanged
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.operators import UNDOING
from trueup_common.contracts.shape import fragment, json_bytes, written
from trueup_common.contracts.states import ANSWERED, CompensationState, InstanceStatus, OperationState
from trueup_common.contracts.topology import event_subject
from trueup_orchestrator.core.acts import in_hand
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.operation import IN_FLIGHT
from trueup_orchestrator.core.status import on_its_way

PROGRESS_DELAY_SECONDS: Final = 1.0
WORKFLOW_PROGRESS_DELAY_SECONDS: Final = 2.0
"""A workflow moves on with each step, and each telling of it is as long as the whole case."""
TOLD_BYTES_MAX: Final = 600_000
_UNDONE_BADLY: Final = (CompensationState.COMPENSATION_FAILED, CompensationState.COMPENSATION_UNKNOWN)


def is_durable(fold: Fold, touched: Sequence[JournalRow], owing: Sequence[ObligationRow]) -> bool:
    """Progress of healthy running may be lost; whatever settles, fails or begins to wait is told durably.

    Lost progress of a workflow comes with its next commit: while it runs, each has a lease, a retry or a wait ahead.
    So has one that undoes. `owing` are the obligations that moved: a failure that is left to its case was reported
    durably by itself, and the case ends it.
    """
    status, left = fold.instance.status, {item.command_id for item in owing if _left_to_case(item)}
    if len(left) != len(owing) or (status is not InstanceStatus.RUNNING and not _goes_on_undoing(fold, bool(left))):
        return True
    rows = touched if fold.workflow is not None else fold.operations.values()
    return not all(row.command_id in left or _is_healthy(row, workflow=fold.workflow is not None) for row in rows)


def _left_to_case(item: ObligationRow) -> bool:
    return item.status == "open" and bool(item.envelope.get(UNDOING))


def _goes_on_undoing(fold: Fold, turns: bool) -> bool:
    """True for a workflow that undoes, has done so before or just turns because something failed, and has more of it
    ahead than to be observed."""
    before = fold.before.instance.status
    undoing = before is InstanceStatus.COMPENSATING or (turns and before is InstanceStatus.RUNNING)
    undoing = undoing and fold.instance.status is InstanceStatus.COMPENSATING
    return undoing and any(map(on_its_way, fold.operations.values()))


def _is_healthy(row: JournalRow, *, workflow: bool) -> bool:
    if in_hand(row):
        return False  # somebody watches it
    if row.state in IN_FLIGHT:
        return True
    if row.state is OperationState.QUEUED:
        return row.next_retry_at is None
    return workflow and row.state is OperationState.SUCCESS and row.compensation_state not in _UNDONE_BADLY


def _told(row: InstanceRow | JournalRow) -> dict[str, Any]:
    """A row without its empty columns: most are, and the contract fills them in again."""
    return {name: value for name, value in row.__dict__.items() if value is not None}


def _told_case(instance: InstanceRow) -> dict[str, Any]:
    """An instance as told: its input, and what its waits and approvals hold, stay here. Nobody else needs them, and
    together they may be too large for a message."""
    told = _told(instance)
    told.pop("input", None)
    told["steps"] = [{name: value for name, value in step.items() if name != "output"} for step in instance.steps]
    told["held"] = [{**item, "data": None} for item in instance.held]
    told["mandate"] = {"risk": instance.mandate.get("risk")}  # of what a case may do the gateway has rows of its own
    told["declarations"] = {}
    return told


def tell(fold: Fold, moved: Sequence[JournalRow], events: Sequence[HistoryEvent], history: bytes | None) -> None:
    """The case to the gateway with what changed, and the answer to the replica whose client waits.

    `history` are the events as JSON, where all this is told durably.
    """
    instance = fold.instance
    if history is not None:
        case = written(_told_case(instance))
        operations = [(row, json_bytes(_told(row))) for row in moved]
        for index, part in enumerate(_portions(operations, len(history))):
            message = _changed(fold, case, part, b"[]" if index else history, f":{index}" if index else "")
            fold.outgoing.append(Outgoing(message, coalesce=instance.workflow_id))
        _answer(fold, case, operations)
        return

    def late() -> Message:
        told = json_bytes(events)
        part = _portions([(row, json_bytes(_told(row))) for row in moved], len(told))[0]
        return _changed(fold, written(_told_case(instance)), part, told, "")  # the rest comes with what is durable

    delay = PROGRESS_DELAY_SECONDS if fold.workflow is None else WORKFLOW_PROGRESS_DELAY_SECONDS
    fold.outgoing.append(Outgoing(late, durable=False, delay_seconds=delay, coalesce=instance.workflow_id))


def _changed(
    fold: Fold,
    case: Any,
    operations: Sequence[tuple[JournalRow, bytes]],
    history: bytes,
    suffix: str,
) -> Message:
    body = {
        "instance": case,
        "operations": [fragment(data) for _, data in operations],
        "obligations": written(list(fold.obligations.values())),
        "history": fragment(history),
    }
    return fold.envelope(
        body,
        f"{fold.instance.workflow_id}:{fold.instance.state_version}{suffix}",
        event_subject(SOURCE, "case", fold.instance.tenant),
        CaseChanged.__name__,
    )


def _answer(fold: Fold, case: Any, operations: Sequence[tuple[JournalRow, bytes]]) -> None:
    for row, data in operations:
        stored = fold.known.get(row.command_id)
        newly = row.state in ANSWERED and (stored is None or stored.state not in ANSWERED)
        if newly and row.reply_to is not None:
            message = fold.envelope(
                {"instance": case, "operation": fragment(data)},
                f"{row.command_id}:{row.state_version}:answered",
                row.reply_to,
                CaseAnswered.__name__,
            )
            fold.outgoing.append(Outgoing(message, durable=False, core=True))


def _portions(operations: list[tuple[JournalRow, bytes]], beside: int) -> list[list[tuple[JournalRow, bytes]]]:
    """Operations in portions that fit into one message each, the first beside so many bytes of history.

    One empty portion where there is none. A case of as many steps as it may have, undone, has a third of a megabyte
    of history.
    """
    portions: list[list[tuple[JournalRow, bytes]]] = [[]]
    size = beside
    for item in operations:
        if portions[-1] and size + len(item[1]) > TOLD_BYTES_MAX:
            portions.append([])
            size = 0
        portions[-1].append(item)
        size += len(item[1])
    return portions


def of_interest(fold: Fold, touched: Sequence[JournalRow]) -> tuple[JournalRow, ...]:
    """The operation of a single command; of a workflow those that changed since anything durable was told."""
    if fold.workflow is None:
        return tuple(fold.operations.values())
    names = {row.command_id for row in touched}
    names.update(event.payload.get("command_id", "") for event in fold.before.unpublished)
    return tuple(row for key, row in fold.operations.items() if key in names)
