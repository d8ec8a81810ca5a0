"""Views: from events of other services to rows that are read. Whole state with a version; older ones are ignored."""

from collections.abc import Iterable, Sequence

from trueup_common.contracts.events import CaseChanged, ElementChanged, ExceptionChanged
from trueup_common.contracts.journal import InstanceRow, JournalRow, ObligationRow
from trueup_gateway.core.acceptance import is_free
from trueup_gateway.core.view_records import CaseView, CommandView, ElementView, ExceptionView, HistoryView

FreedKey = tuple[str, str, str]
"""(tenant, idempotency key, command) of an edge that gives up its business identity."""


def command_views(changes: Iterable[CaseChanged]) -> list[CommandView]:
    """The newest view of each operation in a batch of events."""
    newest: dict[str, CommandView] = {}
    for change in changes:
        for row in change.operations:
            known = newest.get(row.command_id)
            if known is None or known.state_version < row.state_version:
                newest[row.command_id] = _command_view(row, change.instance.subject)
    return list(newest.values())


def _command_view(row: JournalRow, subject: str) -> CommandView:
    return CommandView.trusted(
        command_id=row.command_id,
        tenant=row.tenant,
        subject=subject,
        workflow_id=row.workflow_id,
        command_type=row.command_type,
        system=row.target_system,
        state=row.state.value,
        state_version=row.state_version,
        created_at=row.created_at,
        row=row,
    )


def case_views(changes: Iterable[CaseChanged]) -> list[CaseView]:
    """The newest view of each case in a batch of events."""
    newest: dict[str, CaseView] = {}
    for change in changes:
        instance = change.instance
        known = newest.get(instance.workflow_id)
        if known is None or known.state_version < instance.state_version:
            newest[instance.workflow_id] = case_view(instance, change.obligations)
    return list(newest.values())


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
        owner=next((item.owner for item in obligations if item.status == "open"), None),
        deadline_at=instance.deadline_at,
        created_at=instance.created_at,
        closed_at=instance.closed_at,
        instance=instance,
        obligations=list(obligations),
    )


def history_views(changes: Iterable[CaseChanged]) -> list[HistoryView]:
    """All history events of a batch, each once."""
    found = {
        (event.workflow_id, event.seq): HistoryView.trusted(
            workflow_id=event.workflow_id, tenant=event.tenant, seq=event.seq, event=event
        )
        for change in changes
        for event in change.history
    }
    return list(found.values())


def freed(changes: Iterable[CaseChanged]) -> list[FreedKey]:
    """Keys whose business identity is free again: the orchestrator, which owns it, let go of it."""
    return sorted(
        {
            (row.tenant, row.idempotency_key, row.command_id)
            for change in changes
            for row in change.operations
            if row.identity is None and row.state_version > 0 and is_free(row.state, row.compensation_state)
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
