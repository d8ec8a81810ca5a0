"""Tables of the gateway: authority (decisions, capabilities, mandates), the edge, governance, and the read model."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Index, MetaData, Table, text

from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_gateway.core.artifact import ArtifactRow, ArtifactUseRow
from trueup_gateway.core.person_records import ApprovalRow, AuthorizationRow, OperatorCommandRow, SignalRow
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    DecisionRow,
    DefinitionRow,
    EdgeRow,
    EffectCountRow,
    FreezeRow,
    MandateRow,
    PolicyRow,
    RevocationRow,
)
from trueup_gateway.core.view_records import CaseView, CommandView, ElementView, ExceptionView, HistoryView, ReceivedRow

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
EFFECT = contract_table(EffectCountRow, "effect", METADATA, key=("mandate_id", "command_id"))
DEFINITION = contract_table(DefinitionRow, "definition", METADATA, key=("tenant", "name", "version"))
EDGE = contract_table(
    EdgeRow,
    "edge",
    METADATA,
    key=("tenant", "key"),
    indexes=(Index("edge_identity", "tenant", "identity", unique=True, postgresql_where=text("identity IS NOT NULL")),),
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
        Index("case_view_status", "tenant", "status", "created_at", "workflow_id"),
        Index("case_view_object", "tenant", "object_id", "created_at"),
        Index("case_view_definition", "tenant", "definition", "status"),
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
    ),
)
AUTHORIZATION = contract_table(AuthorizationRow, "authorization_decision", METADATA, key=("decision_id",))
SIGNAL = contract_table(SignalRow, "signal", METADATA, key=("workflow_id", "event_id"))
OPERATOR_COMMAND = contract_table(
    OperatorCommandRow,
    "operator_command",
    METADATA,
    key=("operator_command_id",),
    indexes=(Index("operator_command_target", "target_id"),),
)

ARTIFACT = contract_table(ArtifactRow, "artifact", METADATA, key=("artifact_id",))
ARTIFACT_USE = contract_table(ArtifactUseRow, "artifact_use", METADATA, key=("artifact_id", "command_id"))

mail_tables(METADATA)
