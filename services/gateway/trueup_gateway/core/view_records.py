"""The read model: one contract per table. What other services told, at the version they told it."""

from typing import Any

from pydantic import Field

from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.shape import ForwardContract, Instant


class ReceivedRow(ForwardContract):
    """A command that nobody but the gateway has seen yet: the views of it and of its case until the first event comes.

    `row` is its journal row without the columns that are still empty.
    """

    command_id: str
    tenant: str
    subject: str
    workflow_id: str
    command_type: str
    system: str
    resource: str
    created_at: Instant
    deadline_at: Instant
    row: dict[str, Any]


class CommandView(ForwardContract):
    """The read model of one operation: its journal row as it stood at `state_version`."""

    command_id: str
    tenant: str
    subject: str
    workflow_id: str
    command_type: str
    system: str
    state: str
    state_version: int
    created_at: Instant
    row: JournalRow
    completed_at: Instant | None = None
    undoing: bool = False
    """True for a compensation."""


class CaseView(ForwardContract):
    """The read model of one case."""

    workflow_id: str
    tenant: str
    subject: str
    definition: str
    object_type: str
    object_id: str
    status: str
    state_version: int
    owner: str | None = None
    deadline_at: Instant
    created_at: Instant
    closed_at: Instant | None = None
    instance: InstanceRow
    obligations: list[ObligationRow] = Field(default_factory=list)
    risk: str | None = None
    """Of its mandate."""
    transitions: int = 0
    """This and what follows: what the case has spent (`contracts.spending`), for sums over many cases."""
    stored_bytes: int = 0
    attempts: int = 0
    model_tokens: int = 0
    worker_seconds: float = 0.0
    person_seconds: float = 0.0
    timers_fired: int = 0
    timer_late_seconds: float = 0.0


class HistoryView(ForwardContract):
    """One event of a case's history."""

    workflow_id: str
    tenant: str
    seq: int
    event: HistoryEvent


class ElementView(ForwardContract):
    """The read model of one state element as one case established it."""

    workflow_id: str
    system: str
    resource: str
    element: str
    tenant: str
    command_id: str
    version: int
    desired: Any = None
    recorded: Any = None
    observed: Any = None
    verdict: str | None = None
    phase: str
    reason: str | None = None
    observed_at: Instant | None = None
    source: str | None = None
    observed_version: str | None = None
    next_visit_at: Instant | None = None
    retired: bool = False
    """True where nothing is desired of it any more: it left the state vector."""


class ExceptionView(ForwardContract):
    """The read model of one exception."""

    exception_id: str
    tenant: str
    kind: str
    status: str
    lifecycle: str
    failure_class: str
    owner: str
    deadline_at: Instant
    opened_at: Instant
    first_deadline_at: Instant | None = None
    closed_at: Instant | None = None
    resolution_type: str | None = None
    resolved_by: str | None = None
    workflow_id: str | None = None
    saga_id: str | None = None
    command_id: str | None = None
    envelope: dict[str, Any] = Field(default_factory=dict)
    allowed_actions: list[str] = Field(default_factory=list)
    trace_id: str | None = None
    repair_id: str | None = None
    repair_status: str | None = None
    incident_id: str | None = None
    version: int


class RepairView(ForwardContract):
    """The read model of one repair: what lists choose by, and the whole as the planner told it."""

    repair_id: str
    tenant: str
    exception_id: str
    status: str
    repair_action: str
    source_workflow: str | None = None
    incident_id: str | None = None
    created_at: Instant
    ended_at: Instant | None = None
    version: int
    row: dict[str, Any]


class IncidentView(ForwardContract):
    """The read model of one incident, in the same way."""

    incident_id: str
    tenant: str
    status: str
    opened_at: Instant
    closed_at: Instant | None = None
    version: int
    row: dict[str, Any]
