"""What statements and indexes say alike of columns.

Apart from the tables: only migrations need those, and a service at work loads no SQLAlchemy (ADR 0038).
"""

from typing import Final

READY: Final = "state = 'QUEUED' AND lease_expires_at IS NULL AND next_retry_at IS NULL"
"""A queued operation that waits for nothing but its window."""

HOLDS_KEY: Final = "error_code IS DISTINCT FROM 'identity_in_use'"
"""An operation that was refused because another one holds the key does not hold it too."""

HAS_DEADLINE: Final = "closed_at IS NULL AND (status = 'VERIFYING' OR definition <> 'command')"
"""An open case whose own deadline is watched. A single command has its deadline with its operation."""

ENDED_CASE_LIVES: Final = "closed_at IS NOT NULL AND wake_at IS NOT NULL"
"""A case that is over and would wake up: there is none."""

WATCHED_UNTIL: Final = f"CASE WHEN {HAS_DEADLINE} THEN deadline_at END"
"""What indexes of cases ask is a column of its own: they do not change with every step of a case (ADR 0027)."""

ENDED_LIVES: Final = (
    "state IN ('SUCCESS', 'CANCELLED', 'RESOLVED') AND (wake_at IS NOT NULL OR lease_expires_at IS NOT NULL)"
)
"""An operation that is settled and still has a timer or a lease: there is none."""

UNKNOWN_OPEN: Final = "status = 'open' AND kind = 'unknown_outcome'"

INSTANCE_FIXED: Final = frozenset(
    "saga_id tenant definition version sha256 object_type object_id subject mandate parent_id revision created_at "
    "correlation_id trace_id traceparent input input_sha256 request_fingerprint purpose source_version "
    "on_terminal actions_max declarations locks stage start_key".split()
)
OPERATION_FIXED: Final = frozenset(
    "tenant workflow_id saga_id step_id generation execution_id supersedes decision_id capability_id mandate_id "
    "command_type declaration_sha256 effect_class risk target_system target_resource expected_version payload "
    "payload_sha256 payload_ref idempotency_key request_fingerprint created_at correlation_id trace_id "
    "traceparent reply_to compensation_command compensates approval_id".split()
)
"""Columns that no update writes."""
