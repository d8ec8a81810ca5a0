"""Views: from events of other services to rows that are read. Whole state with a version; older ones are ignored.

What a CaseChanged tells goes into the views as it came, without becoming models in between: only what the views
themselves rest on is looked at (ADR 0010). Rows are read back through the contracts.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trueup_common.contracts.events import ElementChanged, ExceptionChanged, IncidentChanged, RepairChanged
from trueup_common.contracts.journal import InstanceRow, ObligationRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.spending import measures_of
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState
from trueup_gateway.core.acceptance import is_free
from trueup_gateway.core.view_records import (
    CaseView,
    CommandView,
    ElementView,
    ExceptionView,
    HistoryView,
    IncidentView,
    RepairView,
)

FreedKey = tuple[str, str, str]
"""(tenant, idempotency key, command) of an edge that gives up its business identity."""


Fields = dict[str, Any]
"""An object as JSON has it."""

_INSTANCE: Final = ("workflow_id", "tenant", "subject", "definition", "object_type", "object_id")
_OPERATION: Final = ("command_id", "tenant", "workflow_id", "command_type", "target_system", "idempotency_key")
_OBLIGATION: Final = ("obligation_id", "owner", "status")
_EVENT: Final = ("workflow_id", "tenant", "type", "hash")
_NOTHING: Final[Fields] = {}
_STATUSES: Final = frozenset(status.value for status in InstanceStatus)
_STATES: Final = {state.value: state for state in OperationState}
_COMPENSATIONS: Final = {state.value: state for state in CompensationState}


@record
class CaseTold:
    """A CaseChanged as it came."""

    instance: Fields
    operations: Sequence[Fields]
    obligations: Sequence[Fields]
    history: Sequence[Fields]


def read_case(body: Any) -> CaseTold:
    """Look at what views rest on. Raises ValueError where it is not what the contract says."""
    try:
        told = CaseTold(body["instance"], body["operations"], body.get("obligations", ()), body.get("history", ()))
        instance = told.instance
        _check(instance, _INSTANCE, "state_version", ("created_at", "deadline_at"))
        if instance["status"] not in _STATUSES:
            raise ValueError(f"a case cannot be {instance['status']}")
        for row in told.operations:
            _check(row, _OPERATION, "state_version", ("created_at",))
            if row["state"] not in _STATES or row.get("compensation_state", "NONE") not in _COMPENSATIONS:
                raise ValueError(f"an operation cannot be {row['state']}")
        for item in told.obligations:
            _check(item, _OBLIGATION, "version", ("deadline_at",))
        for event in told.history:
            _check(event, _EVENT, "seq", ("recorded_at",))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error
    return told


def _check(fields: Fields, texts: Sequence[str], number: str, instants: Sequence[str]) -> None:
    for name in texts:
        if type(fields[name]) is not str:
            raise ValueError(f"{name} is not a text")
    if type(fields[number]) is not int:
        raise ValueError(f"{number} is not a number")
    for name in instants:
        value = fields[name]
        if type(value) is not str or value[-1:] != "Z":
            raise ValueError(f"{name} is not an instant")


def command_views(changes: Iterable[CaseTold]) -> list[CommandView]:
    """The newest view of each operation in a batch of events."""
    newest: dict[str, CommandView] = {}
    for change in changes:
        for row in change.operations:
            known = newest.get(row["command_id"])
            if known is None or known.state_version < row["state_version"]:
                newest[row["command_id"]] = _command_view(row, change.instance["subject"])
    return list(newest.values())


def _command_view(row: Fields, subject: str) -> CommandView:
    return CommandView.trusted(
        command_id=row["command_id"],
        tenant=row["tenant"],
        subject=subject,
        workflow_id=row["workflow_id"],
        command_type=row["command_type"],
        system=row["target_system"],
        state=row["state"],
        state_version=row["state_version"],
        created_at=row["created_at"],
        row=row,
        completed_at=row.get("completed_at"),
        undoing=row.get("compensates") is not None,
    )


def case_views(changes: Iterable[CaseTold]) -> list[CaseView]:
    """The newest view of each case in a batch of events."""
    newest: dict[str, CaseTold] = {}
    for change in changes:
        name = change.instance["workflow_id"]
        known = newest.get(name)
        if known is None or known.instance["state_version"] < change.instance["state_version"]:
            newest[name] = change
    return [_case_view(change.instance, change.obligations) for change in newest.values()]


def _case_view(instance: Fields, obligations: Sequence[Fields]) -> CaseView:
    return CaseView.trusted(
        workflow_id=instance["workflow_id"],
        tenant=instance["tenant"],
        subject=instance["subject"],
        definition=instance["definition"],
        object_type=instance["object_type"],
        object_id=instance["object_id"],
        status=instance["status"],
        state_version=instance["state_version"],
        owner=_owner_of((item["owner"] for item in obligations if item["status"] == "open"), instance.get("wait")),
        deadline_at=instance["deadline_at"],
        created_at=instance["created_at"],
        closed_at=instance.get("closed_at"),
        instance=instance,
        obligations=obligations,
        risk=_risk_of(instance.get("mandate")),
        **measures_of(instance.get("spent") or _NOTHING, instance.get("history_seq", 0)),
    )


def _owner_of(owing: Iterable[str], wait: Any) -> Any:
    """Whose turn it is: who owns what the case owes, else who owns what it waits for."""
    return next(iter(owing), None) or (wait.get("owner") if isinstance(wait, dict) else None)


def _risk_of(mandate: Any) -> Any:
    return mandate.get("risk") if isinstance(mandate, dict) else None


def case_view(instance: InstanceRow, obligations: Sequence[ObligationRow]) -> CaseView:
    """The view of a case as it stands."""
    return CaseView.trusted(
        workflow_id=instance.workflow_id,
        tenant=instance.tenant,
        subject=instance.subject,
        definition=instance.definition,
        object_type=instance.object_type,
        object_id=instance.object_id,
        status=instance.status.value,
        state_version=instance.state_version,
        owner=_owner_of((item.owner for item in obligations if item.status == "open"), instance.wait),
        deadline_at=instance.deadline_at,
        created_at=instance.created_at,
        closed_at=instance.closed_at,
        instance=instance,
        obligations=list(obligations),
        risk=_risk_of(instance.mandate),
        **measures_of(instance.spent, instance.history_seq),
    )


def history_views(changes: Iterable[CaseTold]) -> list[HistoryView]:
    """All history events of a batch, each once."""
    found = {
        (event["workflow_id"], event["seq"]): HistoryView.trusted(
            workflow_id=event["workflow_id"], tenant=event["tenant"], seq=event["seq"], event=event
        )
        for change in changes
        for event in change.history
    }
    return list(found.values())


def freed(changes: Iterable[CaseTold]) -> list[FreedKey]:
    """Keys whose business identity is free again: the orchestrator, which owns it, let go of it."""
    return sorted(
        {
            (row["tenant"], row["idempotency_key"], row["command_id"])
            for change in changes
            for row in change.operations
            if row.get("identity") is None
            and row["state_version"] > 0
            and is_free(_STATES[row["state"]], _COMPENSATIONS[row.get("compensation_state", "NONE")])
        }
    )


def element_views(changes: Iterable[ElementChanged]) -> list[ElementView]:
    """The newest view of each element in a batch of events."""
    newest: dict[tuple[str, str, str, str], ElementView] = {}
    for change in changes:
        key = (change.workflow_id, change.system, change.resource, change.element)
        known = newest.get(key)
        if known is None or known.version < change.version:
            newest[key] = ElementView.model_validate(change.model_dump())
    return list(newest.values())


def exception_views(changes: Iterable[ExceptionChanged]) -> list[ExceptionView]:
    """The newest view of each exception in a batch of events."""
    newest: dict[str, ExceptionView] = {}
    for change in changes:
        known = newest.get(change.exception_id)
        if known is None or known.version < change.version:
            newest[change.exception_id] = ExceptionView.model_validate(change.model_dump())
    return list(newest.values())


def repair_views(changes: Iterable[RepairChanged]) -> list[RepairView]:
    """The newest view of each repair in a batch of events."""
    newest: dict[str, RepairChanged] = {}
    for change in changes:
        known = newest.get(change.repair_id)
        if known is None or known.version < change.version:
            newest[change.repair_id] = change
    return [
        RepairView(
            repair_id=change.repair_id,
            tenant=change.tenant,
            exception_id=change.exception_id,
            status=change.status,
            repair_action=change.repair_action,
            source_workflow=change.source_workflow,
            incident_id=change.incident_id,
            created_at=change.created_at,
            ended_at=change.ended_at,
            version=change.version,
            row=change.model_dump(mode="json", exclude={"tenant"}),
        )
        for change in newest.values()
    ]


def incident_views(changes: Iterable[IncidentChanged]) -> list[IncidentView]:
    """The newest view of each incident in a batch of events."""
    newest: dict[str, IncidentChanged] = {}
    for change in changes:
        known = newest.get(change.incident_id)
        if known is None or known.version < change.version:
            newest[change.incident_id] = change
    return [
        IncidentView(
            incident_id=change.incident_id,
            tenant=change.tenant,
            status=change.status,
            opened_at=change.opened_at,
            closed_at=change.closed_at,
            version=change.version,
            row=change.model_dump(mode="json", exclude={"tenant"}),
        )
        for change in newest.values()
    ]
