"""Access to the gateway's tables, and the sources that its reads share. Every read names its tenant."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.case import DEFINITION, DEFINITION_SHA256
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    DecisionRow,
    EdgeRow,
    EffectCountRow,
    FreezeRow,
    LineageRow,
    MandateRow,
    PolicyRow,
    RevocationRow,
)
from trueup_gateway.core.view_records import (
    CaseView,
    CommandView,
    ElementView,
    ExceptionView,
    HistoryView,
    IncidentView,
    ReceivedRow,
    RepairView,
)

DECISIONS: Final = Rows("gateway.decision", DecisionRow, key=("decision_id",))
CAPABILITIES: Final = Rows("gateway.capability", CapabilityRow, key=("capability_id",))
EFFECTS: Final = Rows("gateway.effect", EffectCountRow, key=("mandate_id", "number"))
MANDATES: Final = Rows("gateway.mandate", MandateRow, key=("mandate_id",))
EDGES: Final = Rows("gateway.edge", EdgeRow, key=("tenant", "key"))
LINEAGE: Final = Rows("gateway.lineage", LineageRow, key=("command_id",))
CALLS: Final = Rows("gateway.call", CallRow, key=("tenant", "key"))
FREEZES: Final = Rows("gateway.freeze", FreezeRow, key=("freeze_id",))
REVOCATIONS: Final = Rows("gateway.revocation", RevocationRow, key=("kind", "id"))
POLICIES: Final = Rows("gateway.policy", PolicyRow, key=("version",))
RECEIVED: Final = Rows("gateway.received", ReceivedRow, key=("command_id",))
COMMANDS: Final = Rows("gateway.command_view", CommandView, key=("command_id",), version="state_version")
CASES: Final = Rows("gateway.case_view", CaseView, key=("workflow_id",), version="state_version")
HISTORY: Final = Rows("gateway.history_view", HistoryView, key=("workflow_id", "seq"))
ELEMENTS: Final = Rows(
    "gateway.element_view", ElementView, key=("workflow_id", "system", "resource", "element"), version="version"
)
EXCEPTIONS: Final = Rows("gateway.exception_view", ExceptionView, key=("exception_id",), version="version")
REPAIRS: Final = Rows("gateway.repair_view", RepairView, key=("repair_id",), version="version")
INCIDENTS: Final = Rows("gateway.incident_view", IncidentView, key=("incident_id",), version="version")

OPEN: Final = [status.value for status in InstanceStatus if status not in INSTANCE_TERMINAL]

COMMANDS_SOURCE: Final = """(
SELECT command_id, tenant, subject, workflow_id, command_type, system, state, state_version, created_at, "row"
FROM gateway.command_view
UNION ALL
SELECT command_id, tenant, subject, workflow_id, command_type, system, 'RECEIVED', 0, created_at, "row"
FROM gateway.received)"""
"""All commands: as projected, and those that nobody but the gateway has seen yet."""

CASES_SOURCE: Final = f"""(
SELECT workflow_id, tenant, subject, definition, object_type, object_id, status, state_version, owner, deadline_at,
  created_at, closed_at, instance, obligations
FROM gateway.case_view
UNION ALL
SELECT workflow_id, tenant, subject, '{DEFINITION}', system, resource, 'RUNNING', 0, NULL, deadline_at,
  created_at, NULL,
  json_build_object('workflow_id', workflow_id, 'saga_id', "row"->'saga_id', 'tenant', tenant, 'subject', subject,
    'definition', '{DEFINITION}', 'sha256', '{DEFINITION_SHA256}', 'status', 'RUNNING', 'state_version', 0,
    'object_type', system, 'object_id', resource, 'mandate', '{{}}'::json, 'created_at', "row"->'created_at',
    'deadline_at', "row"->'deadline_at', 'correlation_id', "row"->'correlation_id', 'trace_id', "row"->'trace_id'),
  '[]'::json
FROM gateway.received)"""
"""All cases, in the same way."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose objects a read may see: a tenant's, or only those of one subject in it."""

    tenant: str
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A place in a list ordered by (time, id) descending, and how many items to read from there."""

    limit: int
    before: tuple[datetime, str] | None = None


def before(page: Page) -> tuple[datetime | None, str | None]:
    return page.before if page.before is not None else (None, None)
