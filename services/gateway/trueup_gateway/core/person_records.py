"""What the gateway keeps of people's acts: approvals, authorization decisions, signals, operator commands.

Times are business time.
"""

from typing import Any

from pydantic import Field

from trueup_common.contracts.shape import ForwardContract, Instant


class ApprovalRow(ForwardContract):
    """One question to a person. The row arbitrates: its status leaves `pending` once, in one statement.

    `kind` is `workflow` (a step of a case asks) or `decision` (an intent needs approval before anything starts).
    `decision_id` is the authorization decision that admitted the reviewer; `subject_decision_id` the decision that a
    `decision` approval makes usable.
    """

    approval_id: str
    tenant: str
    kind: str
    workflow_id: str | None = None
    saga_id: str | None = None
    step_id: str | None = None
    subject_decision_id: str | None = None
    scope: str
    content_sha256: str
    binds: list[Any] = Field(default_factory=list)
    summary: dict[str, Any] = Field(default_factory=dict)
    nonce: str
    requested_by: str
    owner: str
    backup_owner: str | None = None
    definition: str | None = None
    version: int | None = None
    document_sha256: str | None = None
    state_version: int = 0
    status: str
    asked_at: Instant
    expires_at: Instant
    reviewer: str | None = None
    reason: str | None = None
    decision: str | None = None
    decision_id: str | None = None
    decided_at: Instant | None = None
    superseded_by: str | None = None


class AuthorizationRow(ForwardContract):
    """An authorization decision about one act of a person (approve, operate), kept with what it rested on."""

    decision_id: str
    tenant: str
    action: str
    subject: str
    roles: list[str]
    scopes: list[str]
    resource: str
    detail: dict[str, Any] = Field(default_factory=dict)
    outcome: str
    policy_version: int
    policy_sha256: str
    determining_policies: list[str]
    policy_errors: list[str] = Field(default_factory=list)
    trace_id: str | None = None
    created_at: Instant


class SignalRow(ForwardContract):
    """One event for a case under its own id, and what became of it (`pending` until the orchestrator tells)."""

    workflow_id: str
    event_id: str
    tenant: str
    fingerprint: str
    type: str
    actor: str
    disposition: str
    reason: str | None = None
    version: int = 0
    occurred_at: Instant | None = None
    received_at: Instant
    disposed_at: Instant | None = None


class OperatorCommandRow(ForwardContract):
    """One act of somebody entitled on a case: who, what, why, and the decision that admitted it."""

    operator_command_id: str
    tenant: str
    action: str
    target_kind: str
    target_id: str
    actor: str
    reason: str
    evidence: list[Any] = Field(default_factory=list)
    params: dict[str, Any] = Field(default_factory=dict)
    decision_id: str
    status_before: str
    created_at: Instant
