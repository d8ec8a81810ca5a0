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
    """One act of somebody entitled: who, what, on what, why, the decision that admitted it, and how it ended.

    `holds_command` and `holds_exception` are what it is at work on alone until it has ended.
    """

    operator_command_id: str
    tenant: str
    action: str
    target_kind: str
    target_id: str
    workflow_id: str | None = None
    command_id: str | None = None
    exception_id: str | None = None
    performer: str = "orchestrator"
    state: str = "ACCEPTED"
    detail: str | None = None
    allowed_actions: list[str] = Field(default_factory=list)
    result: dict[str, Any] = Field(default_factory=dict)
    ended_at: Instant | None = None
    holds_command: str | None = None
    holds_exception: str | None = None
    batch_id: str | None = None
    actor: str
    reason: str
    evidence: list[Any] = Field(default_factory=list)
    params: dict[str, Any] = Field(default_factory=dict)
    decision_id: str
    status_before: str
    created_at: Instant


class OperatorBatchRow(ForwardContract):
    """One action on many exceptions: a frozen selection, worked off at a rate by whichever worker is alive.

    `created_by` made the selection. `actor` started it last, at `started_at`, with `roles` and `scopes`: every item is
    admitted again as an act of that person. `next_at` (real time) is when the next item may be taken. `trail` says who
    turned it, when, why, and under which decision.
    """

    batch_id: str
    tenant: str
    action: str
    filter: dict[str, Any] = Field(default_factory=dict)
    params: dict[str, Any] = Field(default_factory=dict)
    evidence: list[Any] = Field(default_factory=list)
    reason: str
    created_by: str
    actor: str
    roles: list[str] = Field(default_factory=list)
    scopes: list[str] = Field(default_factory=list)
    decision_id: str
    rate_per_second: float
    state: str
    total: int
    created_at: Instant
    started_at: Instant | None = None
    ended_at: Instant | None = None
    next_at: Instant | None = None
    trail: list[dict[str, Any]] = Field(default_factory=list)


class OperatorBatchItemRow(ForwardContract):
    """One item of a batch: what became of it, and why."""

    batch_id: str
    position: int
    tenant: str
    exception_id: str
    workflow_id: str | None = None
    command_id: str | None = None
    state: str = "PENDING"
    reason: str | None = None
    operator_command_id: str | None = None
    ended_at: Instant | None = None


class LegalHoldRow(ForwardContract):
    """One legal hold on a case: nothing of it is deleted until somebody lifts it. Both acts have a decision."""

    hold_id: str
    tenant: str
    workflow_id: str
    reason: str
    decision_id: str
    placed_by: str
    placed_at: Instant
    lifted_at: Instant | None = None
    lifted_by: str | None = None
    lift_reason: str | None = None
    lift_decision_id: str | None = None
