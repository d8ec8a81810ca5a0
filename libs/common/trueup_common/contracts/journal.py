"""The execution journal: one row per operation, the control ledger (requirement X3), and the case it belongs to."""

from typing import Any

from pydantic import Field

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import (
    CompensationState,
    EffectClass,
    ErrorClass,
    InstanceStatus,
    OperationState,
    RiskLevel,
)
from trueup_common.contracts.task import PayloadRef


class JournalRow(ForwardContract):
    """All that is known of one operation. Column names are those of requirement X3.

    `wake_at` (business time) and `lease_expires_at` (real time) are when the orchestrator looks at the row by itself.
    """

    command_id: str
    tenant: str
    workflow_id: str
    saga_id: str
    step_id: str
    generation: int = 1
    state_version: int = 1
    execution_id: str
    supersedes: str | None = None
    decision_id: str
    capability_id: str | None = None
    mandate_id: str
    command_type: str
    declaration_sha256: str
    effect_class: EffectClass
    risk: RiskLevel = RiskLevel.LOW
    target_system: str
    target_resource: str
    expected_version: str | None = None
    payload: Any = None
    payload_sha256: str
    payload_ref: PayloadRef | None = None
    idempotency_key: str
    identity: str | None = None
    request_fingerprint: str
    state: OperationState
    desired_state: dict[str, Any] | None = None
    recorded_state: dict[str, Any] | None = None
    observed_state: dict[str, Any] | None = None
    attempt_count: int = 0
    backoff_count: int = 0
    attempts: list[dict[str, Any]] = Field(default_factory=list)
    lease_owner: str | None = None
    lease_acquired_at: Instant | None = None
    lease_expires_at: Instant | None = None
    heartbeat_at: Instant | None = None
    start_by: Instant | None = None
    fence: int = 0
    proposed: bool = False
    """True while the task waits for its grant at the gateway's worker."""
    dispatch_sequence: int = 0
    external_resource_id: str | None = None
    external_version: str | None = None
    result_reference: str | None = None
    receipt: dict[str, Any] | None = None
    error_class: ErrorClass | None = None
    error_code: str | None = None
    error_detail: str | None = None
    last_external_status: str | None = None
    created_at: Instant
    started_at: Instant | None = None
    last_attempt_at: Instant | None = None
    last_transition_at: Instant
    completed_at: Instant | None = None
    next_retry_at: Instant | None = None
    deadline_at: Instant
    wake_at: Instant | None = None
    cancel_requested: bool = False
    compensates: str | None = None
    """The succeeded operation that this one undoes; None for a step's own operation."""
    approval_id: str | None = None
    """The approval that this effect rests on; the grant is refused where it does not cover the payload."""
    compensation_command: str | None = None
    compensation_state: CompensationState = CompensationState.NONE
    last_reconciled_at: Instant | None = None
    reconciliation_status: str | None = None
    reconciliation_result: str | None = None
    drift_type: str | None = None
    dead_lettered_at: Instant | None = None
    dead_letter_reason: str | None = None
    repair_id: str | None = None
    repair_status: str | None = None
    repair_owner: str | None = None
    operator_status: str | None = None
    operator_action: str | None = None
    operator_command_id: str | None = None
    """The latest operator command on this operation; while it is at work, attempts are sent on its decision."""
    attempts_before: int = 0
    """Attempts that were sent before an operator gave a new budget."""
    human_review_required: bool = False
    resolved_at: Instant | None = None
    resolution_type: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    traceparent: str | None = None
    reply_to: str | None = None


class InstanceRow(ForwardContract):
    """One case. A single command is a case with the definition `command`."""

    workflow_id: str
    saga_id: str
    tenant: str
    definition: str
    version: int = 1
    sha256: str
    status: InstanceStatus
    state_version: int = 1
    pivot: str = "no"
    stage: str = "live"
    object_type: str
    object_id: str
    subject: str
    mandate: dict[str, Any]
    owed: list[dict[str, Any]] = Field(default_factory=list)
    """Elements whose verification is still owed: {command_id, system, resource, element}."""
    input: Any = None
    input_sha256: str | None = None
    start_key: str | None = None
    request_fingerprint: str | None = None
    purpose: str | None = None
    source_version: str | None = None
    on_terminal: str = "return"
    actions_max: int = 1
    declarations: dict[str, str] = Field(default_factory=dict)
    """Command type → declaration hash, for every type the document names and every compensation of them: pinned."""
    steps: list[dict[str, Any]] = Field(default_factory=list)
    """`StepState` of each step, in the document's order; empty for a single command."""
    operations: list[str] = Field(default_factory=list)
    """Every operation of a workflow, compensations included, in the order of their beginning."""
    held: list[dict[str, Any]] = Field(default_factory=list)
    """Signals that came before their wait, bounded, with owner and deadline."""
    signals: list[dict[str, Any]] = Field(default_factory=list)
    """What became of the latest signals: {event_id, disposition}; a duplicate gets the same answer."""
    locks: list[str] = Field(default_factory=list)
    """Semantic locks that the case takes, sorted."""
    locked: bool = True
    """False while the case queues for its locks."""
    direction: str = "forward"
    """`Direction`: which way the case moves; everything but forward starts no new step."""
    turned: dict[str, Any] | None = None
    """Why the case left its way forward: {reason, step_id, at}."""
    cancel: dict[str, Any] | None = None
    paused: dict[str, Any] | None = None
    mandate_until: Instant | None = None
    """Until when an operator's decision renewed the mandate; None where its own lifetime counts."""
    wait: dict[str, Any] | None = None
    """What the case waits for: {reason, expects, step_id, owner, backup_owner, deadline, next_wake_at}."""
    wake_at: Instant | None = None
    """When the orchestrator looks at the case by itself (business time)."""
    history_seq: int = 0
    history_hash: str = "0" * 64
    published_seq: int = 0
    spent: dict[str, Any] = Field(default_factory=dict)
    """What the case has cost so far (`contracts.spending`)."""
    parent_id: str | None = None
    revision: int = 1
    created_at: Instant
    deadline_at: Instant
    closed_at: Instant | None = None
    resolution_type: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    traceparent: str | None = None
    """Of a workflow's start; the operation of a single command carries its own."""


class ObligationRow(ForwardContract):
    """Something owed, with an owner and a deadline from its first second. `kind` is an ExceptionKind."""

    obligation_id: str
    tenant: str
    workflow_id: str
    saga_id: str
    command_id: str | None = None
    kind: str
    status: str = "open"
    failure_class: str | None = None
    owner: str
    opened_at: Instant
    deadline_at: Instant
    closed_at: Instant | None = None
    resolution_type: str | None = None
    version: int = 1
    envelope: dict[str, Any] = Field(default_factory=dict)


class HistoryEvent(ForwardContract):
    """One fact of a case, chained by hash (`contracts.history`)."""

    workflow_id: str
    tenant: str
    seq: int
    event_id: str
    type: str
    schema_version: int = 1
    occurred_at: Instant
    recorded_at: Instant
    actor: str
    payload: dict[str, Any]
    payload_sha256: str
    causation_id: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    prev_hash: str
    hash: str
