"""What may safely be done now, wherever something is shown: the table of allowed actions over the read model."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import TargetKind, allowed
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus, OperationState
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.core.operators import Target, facts_of, facts_of_command, mandate_of
from trueup_gateway.core.view_records import CaseView, ExceptionView

_PERSONS: Final = frozenset(
    {
        OperationState.FAILED,
        OperationState.CONFLICT,
        OperationState.DEAD_LETTERED,
        OperationState.NEEDS_REVIEW,
    }
)
_SINGLE: Final = "command"


def _named(gateway: Gateway, target: Target) -> list[str]:
    declaration = gateway.catalog.declaration(target.row.declaration_sha256) if target.row is not None else None
    return [action.value for action in allowed(TargetKind(target.kind), facts_of(target, declaration))]


async def allowed_on_exceptions(gateway: Gateway, views: Sequence[ExceptionView]) -> dict[str, list[str]]:
    """By exception. Three reads for a whole page."""
    is_open = [view for view in views if view.status == "open"]
    cases, commands = await gateway.reads.grounds(
        [view.workflow_id for view in is_open if view.workflow_id is not None],
        [view.command_id for view in is_open if view.command_id is not None],
    )
    revoked = await gateway.reads.revoked_mandates([mandate_of(name) for name in cases])
    found: dict[str, list[str]] = {}
    for view in is_open:
        command = commands.get(view.command_id or "")
        target = Target(
            "exception",
            view.exception_id,
            view.tenant,
            cases.get(view.workflow_id or ""),
            command.row if command is not None else None,
            view,
            mandate_of(view.workflow_id or "") in revoked,
        )
        found[view.exception_id] = _named(gateway, target)
    return found


def allowed_as_listed(gateway: Gateway, view: CaseView, operations: Sequence[JournalRow]) -> list[str]:
    """Of a case in a list: as far as it is known without looking at its authority."""
    row = operations[0] if view.definition == _SINGLE and operations else None
    return _named(gateway, Target("workflow", view.workflow_id, view.tenant, view, row))


async def allowed_on_case(gateway: Gateway, view: CaseView, operations: Sequence[JournalRow]) -> list[str]:
    """Of a case that is open, or was stopped."""
    status = InstanceStatus(view.status)
    if status in INSTANCE_TERMINAL and status is not InstanceStatus.SAFE_STOPPED:
        return []
    row = operations[0] if view.definition == _SINGLE and operations else None
    persons = status is InstanceStatus.HUMAN_TAKEOVER
    revoked = bool(await gateway.reads.revoked_mandates([mandate_of(view.workflow_id)])) if persons else False
    return _named(gateway, Target("workflow", view.workflow_id, view.tenant, view, row, None, revoked))


async def allowed_on_command(gateway: Gateway, row: Mapping[str, Any]) -> list[str]:
    """Of a command. Only what is in a person's hands needs a look at its case."""
    if row["state"] not in _PERSONS:
        if row["step_id"] != _SINGLE:
            return []
        return [
            action.value
            for action in allowed(TargetKind.COMMAND, facts_of_command(JournalRow.model_validate(row)))
            if action not in ("SETTLE", "MARK_RESOLVED")
        ]
    cases, _ = await gateway.reads.grounds([row["workflow_id"]], [])
    revoked = await gateway.reads.revoked_mandates([row["mandate_id"]])
    journal = JournalRow.model_validate(row)
    case = cases.get(row["workflow_id"])
    return _named(gateway, Target("command", journal.command_id, journal.tenant, case, journal, None, bool(revoked)))
