"""The orchestrator's tables: cases, the journal, what is owed, and history. Columns follow from the contracts."""

from sqlalchemy import Boolean, Column, Computed, Index, MetaData, text
from sqlalchemy.dialects.postgresql import TIMESTAMP

from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_orchestrator.columns import (
    ENDED_CASE_LIVES,
    ENDED_LIVES,
    HOLDS_KEY,
    INSTANCE_FIXED,
    OPERATION_FIXED,
    READY,
    UNKNOWN_OPEN,
    WATCHED_UNTIL,
)
from trueup_orchestrator.core.invariants import BreachRow
from trueup_orchestrator.core.records import DocumentRow, LockRow

METADATA = MetaData(schema="orchestrator")

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
