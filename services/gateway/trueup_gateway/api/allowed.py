"""What may safely be done now, wherever something is shown: the table of allowed actions over the read model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import TargetKind, allowed
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus, OperationState
from trueup_gateway.api.acts import Ruled
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.core.acceptance import given_up
from trueup_gateway.core.operators import Target, facts_of, facts_of_command, mandate_of
from trueup_gateway.core.view_records import CaseView, ExceptionView

_GOES_ON: Final = frozenset(
    {
        OperationState.RECEIVED,
        OperationState.VALIDATING,
        OperationState.AUTHORIZED,
        OperationState.QUEUED,
        OperationState.DISPATCHING,
        OperationState.RUNNING,
        OperationState.OUTCOME_UNKNOWN,
        OperationState.ORPHAN_SUSPECTED,
        OperationState.RECONCILING,
    }
)
"""What goes on by itself: the most that is possible is the cancel of a single command."""
_OVER: Final = frozenset({OperationState.SUCCESS, OperationState.CANCELLED})
"""What is over, unless its case owes something about it."""
_SINGLE: Final = "command"


def _named(gateway: Gateway, target: Target) -> list[str]:
    declaration = gateway.catalog.declaration(target.row.declaration_sha256) if target.row is not None else None
    return [action.value for action in allowed(TargetKind(target.kind), facts_of(target, declaration))]


def identities_of(gateway: Ruled, rows: Iterable[JournalRow]) -> list[tuple[str, str, str]]:
    """(tenant, business identity, command) of operations that would need theirs again to be sent."""
    named = ((row, given_up(row, gateway.catalog.declaration(row.declaration_sha256))) for row in rows)
    return [(row.tenant, identity, row.command_id) for row, identity in named if identity is not None]


async def allowed_on_exceptions(gateway: Gateway, views: Sequence[ExceptionView]) -> dict[str, list[str]]:
    """By exception. Four reads for a whole page."""
    is_open = [view for view in views if view.status == "open"]
    cases, commands = await gateway.reads.grounds(
        [view.workflow_id for view in is_open if view.workflow_id is not None],
        [view.command_id for view in is_open if view.command_id is not None],
    )
    revoked = await gateway.reads.revoked_mandates([mandate_of(name) for name in cases])
    replaced = await gateway.reads.replaced(identities_of(gateway, (view.row for view in commands.values())))
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
            view.command_id in replaced,
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
    replaced = row is not None and bool(await gateway.reads.replaced(identities_of(gateway, [row])))
    return _named(gateway, Target("workflow", view.workflow_id, view.tenant, view, row, None, revoked, replaced))


async def allowed_on_command(gateway: Gateway, row: Mapping[str, Any], *, owes: bool) -> list[str]:
    """Of a command, as the table says. Its case is looked at only where that can matter: `owes` says that the case has
    obligations."""
    state = OperationState(row["state"])
    if state is OperationState.RESOLVED or (state in _OVER and not owes):
        return []
    if state in _GOES_ON:
        if row["step_id"] != _SINGLE:
            return []
        facts = facts_of_command(JournalRow.model_validate(row))
        return [action.value for action in allowed(TargetKind.COMMAND, facts)]
    cases, _ = await gateway.reads.grounds([row["workflow_id"]], [])
    revoked = await gateway.reads.revoked_mandates([row["mandate_id"]])
    journal = JournalRow.model_validate(row)
    case = cases.get(row["workflow_id"])
    replaced = bool(await gateway.reads.replaced(identities_of(gateway, [journal])))
    target = Target("command", journal.command_id, journal.tenant, case, journal, None, bool(revoked), replaced)
    return _named(gateway, target)
