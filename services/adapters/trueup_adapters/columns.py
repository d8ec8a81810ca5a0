"""What statements and tables say alike of columns, apart from the tables, which only migrations need (ADR 0038)."""

from typing import Final

EFFECT_FIXED: Final = frozenset(
    "tenant system workflow_id command_type idempotency_key payload_sha256 operation created_at".split()
)
"""Columns that no update writes."""
