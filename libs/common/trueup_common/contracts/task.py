"""Tasks to adapters and what comes back: execute → receipt, find → verdict, probe → observation."""

from typing import Any

from pydantic import Field

from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import ErrorClass, ReceiptStatus


class Target(ForwardContract):
    """What a command acts on. `expected_version` is None where the caller does not bind one."""

    system: str
    resource: str
    expected_version: str | None = None


class PayloadRef(ForwardContract):
    """A payload kept as an artifact: its JSON bytes by id and hash. The adapter fetches it and checks both hashes."""

    artifact_id: str
    sha256: str
    """Of the artifact's bytes; `payload_sha256` of the operation is that of the JSON value's canonical form."""
    size: int = Field(ge=0)


class Operation(ForwardContract):
    """The unchanging part of one operation, the same in every task about it."""

    command_id: str
    workflow_id: str
    tenant: str
    command_type: str
    declaration_sha256: str
    target: Target
    payload: Any
    payload_sha256: str
    idempotency_key: str
    correlation_id: str | None = None
    payload_ref: PayloadRef | None = None
    """Where the payload is kept as an artifact; `payload` then holds only what the declaration points at."""


class ExecuteTask(ForwardContract):
    """Perform the effect once. Message id = attempt id. Times are real time."""

    operation: Operation
    fence: int = Field(ge=1)
    attempt_id: str
    start_by: Instant
    lease_expires_at: Instant
    deadline_at: Instant | None = None
    grant: str = ""
    decided_by: str | None = None
    """The operator command or repair that allows sending after a permanent rejection."""
    min_epoch: int = 0


class FindTask(ForwardContract):
    """Look for the effect; raises the fence so that no older attempt can send later."""

    operation: Operation
    fence: int = Field(ge=1)
    find_id: str
    settlement_id: str


class ProbeElement(ForwardContract):
    """One element to read."""

    element: str
    kind: str
    params: dict[str, Any]


class ProbeTask(ForwardContract):
    """Read elements of one resource; read-only credentials where the system has them."""

    visit_id: str
    tenant: str
    system: str
    resource: str
    command_id: str
    elements: tuple[ProbeElement, ...]


class Receipt(ForwardContract):
    """What became of one attempt. `external_status` is the target's own status (for example the HTTP status).

    `observations` come from an independent read-back after the write; `sent_at` is None where nothing was sent.
    """

    command_id: str
    workflow_id: str
    tenant: str
    system: str
    command_type: str
    attempt_id: str
    fence: int
    status: ReceiptStatus
    error_class: ErrorClass | None = None
    error_code: str | None = None
    error_detail: str | None = None
    external_status: str | None = None
    external_resource_id: str | None = None
    external_version: str | None = None
    retry_after_seconds: float | None = None
    result: dict[str, Any] | None = None
    observations: tuple[Observation, ...] = ()
    started_at: Instant | None = None
    sent_at: Instant | None = None
    ended_at: Instant
    found: bool = False
    """True where this receipt comes from a look-up, not from the answer of the attempt itself."""
    late_until: Instant | None = None
    """For UNKNOWN: until when the target may still act (send_by + timeout + late window)."""
    worker: str | None = None
    """The worker that sent the attempt: `<process>#<incarnation>`."""


class Found(ForwardContract):
    """The answer to a find task. `fence` is the highest fence the ledger now holds."""

    find_id: str
    settlement_id: str
    command_id: str
    workflow_id: str
    tenant: str
    system: str
    fence: int
    finding: Finding
    ledger_status: str
    provable_at: Instant | None = None
    """When absence can be proved at the earliest; set where it is too early now."""
    found_at: Instant


class Observed(ForwardContract):
    """The answer to a probe task."""

    visit_id: str
    tenant: str
    system: str
    resource: str
    command_id: str
    observations: tuple[Observation, ...]
    observed_at: Instant


class Beat(ForwardContract):
    """One message per worker and period over core NATS: slots, and the attempts that need their lease renewed."""

    worker: str
    system: str
    slots: dict[str, int]
    """Free and used slots together, by tenant."""
    running: tuple["RunningAttempt", ...] = ()
    at: Instant


class RunningAttempt(ForwardContract):
    """One long attempt. `progress` only grows; a beat without progress past the threshold raises an alarm."""

    command_id: str
    tenant: str
    fence: int
    progress: int = 0


Beat.model_rebuild()
