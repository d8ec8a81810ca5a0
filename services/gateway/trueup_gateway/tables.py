"""Tables of the gateway: authority (decisions, capabilities, mandates), the edge, governance, and the read model."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Index, MetaData, Table, Text, text
from sqlalchemy.dialects.postgresql import TIMESTAMP

from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_gateway.core.anomalies import AnomalyRow
from trueup_gateway.core.artifact import ArtifactRow, ArtifactUseRow
from trueup_gateway.core.number_records import CohortRow, CounterRow, SightingRow
from trueup_gateway.core.person_records import (
    ApprovalRow,
    AuthorizationRow,
    LegalHoldRow,
    OperatorBatchItemRow,
    OperatorBatchRow,
    OperatorCommandRow,
    SignalRow,
)
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    DecisionRow,
    DefinitionRow,
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

METADATA = MetaData(schema="gateway")

DECISION = contract_table(
    DecisionRow,
    "decision",
    METADATA,
    key=("decision_id",),
    indexes=(Index("decision_tenant_created_at", "tenant", "created_at"),),
)
CAPABILITY = contract_table(
    CapabilityRow,
    "capability",
    METADATA,
    key=("capability_id",),
    indexes=(Index("capability_decision_id", "decision_id"),),
)
MANDATE = contract_table(MandateRow, "mandate", METADATA, key=("mandate_id",))
EFFECT = contract_table(EffectCountRow, "effect", METADATA, key=("mandate_id", "number"))
DEFINITION = contract_table(DefinitionRow, "definition", METADATA, key=("tenant", "name", "version"))
EDGE = contract_table(
    EdgeRow,
    "edge",
    METADATA,
    key=("tenant", "key"),
    indexes=(Index("edge_identity", "tenant", "identity", unique=True, postgresql_where=text("identity IS NOT NULL")),),
)
LINEAGE = contract_table(
    LineageRow,
    "lineage",
    METADATA,
    key=("command_id",),
    indexes=(Index("lineage_supersedes", "supersedes", "created_at"),),
)
CALL = contract_table(CallRow, "call", METADATA, key=("tenant", "key"))

FREEZE = contract_table(
    FreezeRow,
    "freeze",
    METADATA,
    key=("freeze_id",),
    indexes=(Index("freeze_active", "tenant", postgresql_where=text("lifted_at IS NULL")),),
)
REVOCATION = contract_table(
    RevocationRow,
    "revocation",
    METADATA,
    key=("kind", "id"),
    indexes=(Index("revocation_expires_at", "expires_at"),),
)
POLICY = contract_table(PolicyRow, "policy", METADATA, key=("version",))
GOVERNANCE = Table(
    "governance",
    METADATA,
    Column("one", Boolean, primary_key=True, server_default=text("true")),
    Column("epoch", BigInteger, nullable=False),
    CheckConstraint("one", name="governance_one"),
)

RECEIVED = contract_table(
    ReceivedRow,
    "received",
    METADATA,
    key=("command_id",),
    indexes=(
        Index("received_workflow_id", "workflow_id"),
        Index("received_tenant", "tenant", "created_at", "command_id"),
    ),
)
COMMAND_VIEW = contract_table(
    CommandView,
    "command_view",
    METADATA,
    key=("command_id",),
    indexes=(
        Index("command_view_tenant", "tenant", "created_at", "command_id"),
        Index("command_view_subject", "tenant", "subject", "created_at"),
        Index("command_view_workflow_id", "workflow_id"),
    ),
)
CASE_VIEW = contract_table(
    CaseView,
    "case_view",
    METADATA,
    key=("workflow_id",),
    indexes=(
        Index("case_view_tenant", "tenant", "created_at", "workflow_id"),
        Index(
            "case_view_status",
            "tenant",
            "status",
            "created_at",
            "workflow_id",
            postgresql_where=text("status <> 'CLOSED'"),
        ),
        Index("case_view_object", "tenant", "object_id", "created_at"),
        Index(
            "case_view_definition",
            "tenant",
            "definition",
            "created_at",
            "workflow_id",
            postgresql_where=text("closed_at IS NULL"),
        ),
        Index("case_view_owner", "tenant", "owner", postgresql_where=text("owner IS NOT NULL")),
    ),
)
HISTORY_VIEW = contract_table(HistoryView, "history_view", METADATA, key=("workflow_id", "seq"))
ELEMENT_VIEW = contract_table(
    ElementView,
    "element_view",
    METADATA,
    key=("workflow_id", "system", "resource", "element"),
    indexes=(
        Index("element_view_element", "tenant", "system", "resource", "element", "version"),
        Index("element_view_drift", "tenant", postgresql_where=text("phase = 'DRIFT'")),
    ),
)
EXCEPTION_VIEW = contract_table(
    ExceptionView,
    "exception_view",
    METADATA,
    key=("exception_id",),
    indexes=(
        Index("exception_view_tenant", "tenant", "opened_at", "exception_id"),
        Index("exception_view_open", "tenant", "kind", postgresql_where=text("status = 'open'")),
        Index("exception_view_command", "command_id", "tenant", postgresql_where=text("command_id IS NOT NULL")),
        Index("exception_view_workflow", "workflow_id", "tenant", postgresql_where=text("workflow_id IS NOT NULL")),
    ),
)
REPAIR_VIEW = contract_table(
    RepairView,
    "repair_view",
    METADATA,
    key=("repair_id",),
    indexes=(
        Index("repair_view_tenant", "tenant", "created_at", "repair_id"),
        Index("repair_view_exception", "exception_id"),
        Index("repair_view_in_flight", "tenant", "status", postgresql_where=text("ended_at IS NULL")),
    ),
)
INCIDENT_VIEW = contract_table(
    IncidentView,
    "incident_view",
    METADATA,
    key=("incident_id",),
    indexes=(
        Index("incident_view_tenant", "tenant", "opened_at", "incident_id"),
        Index("incident_view_open", "tenant", postgresql_where=text("closed_at IS NULL")),
    ),
)

APPROVAL = contract_table(
    ApprovalRow,
    "approval",
    METADATA,
    key=("approval_id",),
    indexes=(
        Index("approval_tenant", "tenant", "asked_at", "approval_id"),
        Index("approval_pending", "tenant", "expires_at", postgresql_where=text("status = 'pending'")),
        Index("approval_step", "workflow_id", "step_id", unique=True, postgresql_where=text("status = 'pending'")),
        Index("approval_workflow_id", "workflow_id"),
        Index("approval_decided", "decided_at", postgresql_where=text("decided_at IS NOT NULL")),
    ),
)
AUTHORIZATION = contract_table(AuthorizationRow, "authorization_decision", METADATA, key=("decision_id",))
SIGNAL = contract_table(SignalRow, "signal", METADATA, key=("workflow_id", "event_id"))
OPERATOR_COMMAND = contract_table(
    OperatorCommandRow,
    "operator_command",
    METADATA,
    key=("operator_command_id",),
    indexes=(
        Index("operator_command_target", "target_id"),
        Index("operator_command_workflow", "workflow_id"),
        Index("operator_command_command", "command_id"),
        Index("operator_command_exception", "exception_id"),
        Index("operator_command_tenant", "tenant", "created_at", "operator_command_id"),
        Index(
            "operator_command_holds_command",
            "tenant",
            "holds_command",
            unique=True,
            postgresql_where=text("state = 'ACCEPTED' AND holds_command IS NOT NULL"),
        ),
        Index(
            "operator_command_holds_exception",
            "tenant",
            "holds_exception",
            unique=True,
            postgresql_where=text("state = 'ACCEPTED' AND holds_exception IS NOT NULL"),
        ),
    ),
)

OPERATOR_BATCH = contract_table(
    OperatorBatchRow,
    "operator_batch",
    METADATA,
    key=("batch_id",),
    indexes=(
        Index("operator_batch_tenant", "tenant", "created_at", "batch_id"),
        Index("operator_batch_at_work", "state", postgresql_where=text("ended_at IS NULL")),
    ),
)
OPERATOR_BATCH_ITEM = contract_table(
    OperatorBatchItemRow,
    "operator_batch_item",
    METADATA,
    key=("batch_id", "position"),
    indexes=(Index("operator_batch_item_state", "batch_id", "state", "position"),),
)

LEGAL_HOLD = contract_table(
    LegalHoldRow,
    "legal_hold",
    METADATA,
    key=("hold_id",),
    indexes=(
        Index("legal_hold_active", "tenant", "workflow_id", unique=True, postgresql_where=text("lifted_at IS NULL")),
    ),
)

ARTIFACT = contract_table(ArtifactRow, "artifact", METADATA, key=("artifact_id",))
ARTIFACT_USE = contract_table(ArtifactUseRow, "artifact_use", METADATA, key=("artifact_id", "command_id"))

COHORT = contract_table(
    CohortRow,
    "cohort",
    METADATA,
    key=("tenant", "subject", "began_at"),
    indexes=(Index("cohort_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),),
)
COHORT_MARK = Table(
    "cohort_mark",
    METADATA,
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("began_at", TIMESTAMP(timezone=True), nullable=False),
)
"""Cohorts that changed, one row per change: no key, so that nobody waits for anybody."""
COHORT_REVISION = Table(
    "cohort_revision",
    METADATA,
    Column("one", Boolean, primary_key=True, server_default=text("true")),
    Column("revision", Text, nullable=False),
    CheckConstraint("one", name="cohort_revision_one"),
)
CONSOLE_SESSION = Table(
    "console_session",
    METADATA,
    Column("session_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("opened_at", TIMESTAMP(timezone=True), nullable=False),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
    Index("console_session_person", "tenant", "subject", "opened_at"),
    Index("console_session_expires_at", "expires_at"),
)
"""Who is logged in to the console: a cookie whose session does not stand here is nobody's."""
COUNTER = contract_table(CounterRow, "counter", METADATA, key=("tenant", "grain", "at"))
SIGHTING = contract_table(
    SightingRow,
    "sighting",
    METADATA,
    key=("tenant", "kind", "actor", "at", "name"),
    indexes=(Index("sighting_at", "at"),),
)
ANOMALY = contract_table(AnomalyRow, "anomaly", METADATA, key=("tenant", "rule", "actor"))

mail_tables(METADATA)
