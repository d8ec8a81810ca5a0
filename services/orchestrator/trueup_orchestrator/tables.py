"""The orchestrator's tables: cases, the journal, what is owed, and history. Columns follow from the contracts."""

from sqlalchemy import Boolean, Column, Computed, Index, MetaData, text
from sqlalchemy.dialects.postgresql import TIMESTAMP

from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_orchestrator.core.invariants import BreachRow
from trueup_orchestrator.core.records import DocumentRow, LockRow

METADATA = MetaData(schema="orchestrator")

READY = "state = 'QUEUED' AND lease_expires_at IS NULL AND next_retry_at IS NULL"
"""A queued operation that waits for nothing but its window."""

HOLDS_KEY = "error_code IS DISTINCT FROM 'identity_in_use'"
"""An operation that was refused because another one holds the key does not hold it too."""

HAS_DEADLINE = "closed_at IS NULL AND (status = 'VERIFYING' OR definition <> 'command')"
"""An open case whose own deadline is watched. A single command has its deadline with its operation."""

ENDED_CASE_LIVES = "closed_at IS NOT NULL AND wake_at IS NOT NULL"
"""A case that is over and would wake up: there is none."""

WATCHED_UNTIL = f"CASE WHEN {HAS_DEADLINE} THEN deadline_at END"
"""What indexes of cases ask is a column of its own: they do not change with every step of a case (ADR 0027)."""

ENDED_LIVES = "state IN ('SUCCESS', 'CANCELLED', 'RESOLVED') AND (wake_at IS NOT NULL OR lease_expires_at IS NOT NULL)"
"""An operation that is settled and still has a timer or a lease: there is none."""

UNKNOWN_OPEN = "status = 'open' AND kind = 'unknown_outcome'"

INSTANCE_FIXED = frozenset(
    "saga_id tenant definition version sha256 object_type object_id subject mandate parent_id revision created_at "
    "correlation_id trace_id traceparent input input_sha256 request_fingerprint purpose source_version "
    "on_terminal actions_max declarations locks stage start_key".split()
)
OPERATION_FIXED = frozenset(
    "tenant workflow_id saga_id step_id generation execution_id supersedes decision_id capability_id mandate_id "
    "command_type declaration_sha256 effect_class risk target_system target_resource expected_version payload "
    "payload_sha256 payload_ref idempotency_key request_fingerprint created_at correlation_id trace_id "
    "traceparent reply_to compensation_command compensates approval_id".split()
)
"""Columns that no update writes."""

INSTANCE = contract_table(
    InstanceRow,
    "instance",
    METADATA,
    key=("workflow_id",),
    indexes=(
        Index("instance_watched", "watched_until", postgresql_where=text("watched_until IS NOT NULL")),
        Index("instance_wake", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
        Index("instance_ended_lives", "workflow_id", postgresql_where=text("lives_on")),
        Index(
            "instance_start_key",
            "tenant",
            "start_key",
            "revision",
            unique=True,
            postgresql_where=text("start_key IS NOT NULL"),
        ),
    ),
    extra=(
        Column("watched_until", TIMESTAMP(timezone=True), Computed(WATCHED_UNTIL, persisted=True)),
        Column("lives_on", Boolean, Computed(ENDED_CASE_LIVES, persisted=True)),
    ),
    fixed=INSTANCE_FIXED,
)

OPERATION = contract_table(
    JournalRow,
    "operation",
    METADATA,
    key=("command_id",),
    indexes=(
        Index(
            "operation_key",
            "tenant",
            "idempotency_key",
            "generation",
            unique=True,
            postgresql_where=text(HOLDS_KEY),
        ),
        Index(
            "operation_identity",
            "tenant",
            "command_type",
            "identity",
            unique=True,
            postgresql_where=text("identity IS NOT NULL"),
        ),
        Index("operation_wake", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
        Index(
            "operation_lease",
            "tenant",
            "target_system",
            "lease_expires_at",
            postgresql_where=text("lease_expires_at IS NOT NULL"),
        ),
        Index("operation_ended_lives", "command_id", postgresql_where=text(ENDED_LIVES)),
        Index("operation_ready", "tenant", "target_system", "created_at", postgresql_where=text(READY)),
    ),
    fixed=OPERATION_FIXED,
)

OBLIGATION = contract_table(
    ObligationRow,
    "obligation",
    METADATA,
    key=("obligation_id",),
    indexes=(
        Index("obligation_open", "workflow_id", postgresql_where=text("status = 'open'")),
        Index("obligation_deadline", "deadline_at", postgresql_where=text("status = 'open'")),
        Index("obligation_unknown", "deadline_at", postgresql_where=text(UNKNOWN_OPEN)),
    ),
)

HISTORY = contract_table(HistoryEvent, "history", METADATA, key=("workflow_id", "seq"))

LOCK = contract_table(
    LockRow,
    "lock",
    METADATA,
    key=("tenant", "key", "workflow_id"),
    indexes=(
        Index("lock_holder", "tenant", "key", unique=True, postgresql_where=text("held")),
        Index("lock_case", "workflow_id"),
    ),
)

DOCUMENT = contract_table(DocumentRow, "document", METADATA, key=("sha256",))

BREACH = contract_table(BreachRow, "breach", METADATA, key=("breach_id",))

mail_tables(METADATA)
