"""Access to the gateway's tables, and the sources that its reads share. Every read names its tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.runtime.rows import Rows
from trueup_gateway import tables
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

DECISIONS: Final = Rows(tables.DECISION, DecisionRow, key=("decision_id",))
CAPABILITIES: Final = Rows(tables.CAPABILITY, CapabilityRow, key=("capability_id",))
EFFECTS: Final = Rows(tables.EFFECT, EffectCountRow, key=("mandate_id", "number"))
MANDATES: Final = Rows(tables.MANDATE, MandateRow, key=("mandate_id",))
EDGES: Final = Rows(tables.EDGE, EdgeRow, key=("tenant", "key"))
LINEAGE: Final = Rows(tables.LINEAGE, LineageRow, key=("command_id",))
CALLS: Final = Rows(tables.CALL, CallRow, key=("tenant", "key"))
FREEZES: Final = Rows(tables.FREEZE, FreezeRow, key=("freeze_id",))
REVOCATIONS: Final = Rows(tables.REVOCATION, RevocationRow, key=("kind", "id"))
POLICIES: Final = Rows(tables.POLICY, PolicyRow, key=("version",))
RECEIVED: Final = Rows(tables.RECEIVED, ReceivedRow, key=("command_id",))
COMMANDS: Final = Rows(tables.COMMAND_VIEW, CommandView, key=("command_id",), version="state_version")
CASES: Final = Rows(tables.CASE_VIEW, CaseView, key=("workflow_id",), version="state_version")
HISTORY: Final = Rows(tables.HISTORY_VIEW, HistoryView, key=("workflow_id", "seq"))
ELEMENTS: Final = Rows(
    tables.ELEMENT_VIEW, ElementView, key=("workflow_id", "system", "resource", "element"), version="version"
)
EXCEPTIONS: Final = Rows(tables.EXCEPTION_VIEW, ExceptionView, key=("exception_id",), version="version")
REPAIRS: Final = Rows(tables.REPAIR_VIEW, RepairView, key=("repair_id",), version="version")
INCIDENTS: Final = Rows(tables.INCIDENT_VIEW, IncidentView, key=("incident_id",), version="version")

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


def json_document(rows: Sequence[Any]) -> str:
    return json_bytes(rows).decode()
