"""The state vector of a case, as it is answered: what is desired, recorded and observed, element by element."""

from collections.abc import Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState
from trueup_gateway.core.view_records import CaseView, ElementView

_ENDED_BADLY: Final = frozenset(
    {OperationState.FAILED, OperationState.CONFLICT, OperationState.DEAD_LETTERED, OperationState.NEEDS_REVIEW}
)


def element_body(view: ElementView) -> dict[str, Any]:
    """One entry of the state vector."""
    dumped = view.model_dump(mode="json")
    body = {
        name: dumped[name]
        for name in (
            "element",
            "desired",
            "recorded",
            "observed",
            "verdict",
            "phase",
            "observed_at",
            "source",
            "system",
            "resource",
            "command_id",
            "reason",
            "next_visit_at",
        )
    }
    body["version"] = dumped["observed_version"]
    return body


def vector_bodies(
    view: CaseView, operations: Sequence[JournalRow], elements: Sequence[ElementView]
) -> list[dict[str, Any]]:
    """The state vector: what the reconciler told, and of newer operations, until it does, what their receipts say.

    So a case that has just ended shows what its last effect established, not what the effect before it did.
    """
    order = {row.command_id: row.dispatch_sequence for row in operations}
    newest: dict[tuple[str, str, str], tuple[int, dict[str, Any]]] = {}
    for row in sorted(operations, key=lambda row: row.dispatch_sequence):
        for body in receipt_elements(view, row):
            newest[row.target_system, body["resource"], body["element"]] = (row.dispatch_sequence, body)
    for element in elements:
        place = (element.system, element.resource, element.element)
        if place in newest and order.get(element.command_id, newest[place][0]) >= newest[place][0]:
            del newest[place]
    return [
        *(
            element_body(element)
            for element in elements
            if not element.retired and (element.system, element.resource, element.element) not in newest
        ),
        *(body for _, body in newest.values()),
    ]


def receipt_elements(view: CaseView, row: JournalRow) -> list[dict[str, Any]]:
    """What an operation established and nothing undid, as the journal has it; and what one that ended badly did not.

    The business object of an element is the receipt's `resource`, as every declaration names it.
    """
    undone = row.compensation_state is not CompensationState.NONE or row.compensates is not None
    if not row.desired_state or (undone and row.state is not OperationState.SUCCESS):
        return []
    if row.state in _ENDED_BADLY and view.status == InstanceStatus.HUMAN_TAKEOVER:
        return [_missing(row, name, desired) for name, desired in row.desired_state.items()]
    if row.state is not OperationState.SUCCESS or row.compensation_state is not CompensationState.NONE:
        return []
    owed = {(item["command_id"], item["element"]) for item in view.instance.owed}
    recorded, observed = row.recorded_state or {}, row.observed_state or {}
    resource = str((row.receipt or {}).get("resource") or row.target_resource)
    return [
        {
            "element": name,
            "desired": desired,
            "recorded": recorded.get(name),
            "observed": observed.get(name),
            "verdict": "CONFIRMED" if name in observed else "UNKNOWN",
            "phase": "CONVERGING" if (row.command_id, name) in owed else "HEALTHY",
            "observed_at": rfc3339(row.completed_at) if row.completed_at else None,
            "source": "receipt",
            "system": row.target_system,
            "resource": resource,
            "command_id": row.command_id,
            "reason": None,
            "next_visit_at": None,
            "version": row.external_version,
        }
        for name, desired in row.desired_state.items()
    ]


def _missing(row: JournalRow, element: str, desired: Any) -> dict[str, Any]:
    """What is desired and was not brought about, as far as anybody knows."""
    return {
        "element": element,
        "desired": desired,
        "recorded": None,
        "observed": None,
        "verdict": "UNKNOWN",
        "phase": "UNKNOWN",
        "observed_at": None,
        "source": "journal",
        "system": row.target_system,
        "resource": row.target_resource,
        "command_id": row.command_id,
        "reason": row.error_code,
        "next_visit_at": None,
        "version": None,
    }
