"""Messages between services. Each event carries whole state with a version, so that order does not matter.

Who sends and who receives what stands in `contracts.topology`.
"""

from typing import Any

from pydantic import Field

from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import EffectClass, FindVerdict, Phase, RiskLevel
from trueup_common.contracts.task import ExecuteTask, Operation, PayloadRef, ProbeElement, Target


class Mandate(ForwardContract):
    """What acceptance turns a capability into: the authority under which a case runs on after the token expired."""

    mandate_id: str
    tenant: str
    subject: str
    decision_id: str
    capability_id: str
    command_types: tuple[str, ...]
    system: str
    resource: str
    effect_class_max: EffectClass
    effects_max: int = 1
    document_sha256: str | None = None
    approval_id: str | None = None
    risk: RiskLevel = RiskLevel.LOW
    policy_sha256: str
    expires_at: Instant
    agent_version: str | None = None
    """What the agent called itself when it was decided: failures of one version are one cause (requirement D4)."""


class StartCase(ForwardContract):
    """gateway → orchestrator: an accepted command (`trueup.cmd.<tenant>`). Message id = workflow id."""

    workflow_id: str
    saga_id: str
    command_id: str
    tenant: str
    definition: str = "command"
    mandate: Mandate
    command_type: str
    declaration_sha256: str
    target: Target
    payload: Any
    payload_sha256: str
    request_fingerprint: str
    idempotency_key: str
    deadline_at: Instant
    correlation_id: str | None = None
    trace_id: str | None = None
    accepted_at: Instant
    payload_ref: PayloadRef | None = None
    grant: str = ""
    grant_expires_at: Instant | None = None
    supersedes: str | None = None
    """The ended command whose place this one takes; a business identity that the other holds passes on."""


class StartWorkflow(ForwardContract):
    """gateway → orchestrator: an accepted start of a workflow (`trueup.cmd.<tenant>`). Message id = workflow id.

    `document` is the registered document in full, so that no service has to wait for another to know it; its identity
    is `document_sha256`. `declarations` pins every command type that it can need, compensations included.
    """

    workflow_id: str
    saga_id: str
    tenant: str
    definition: str
    version: int
    document_sha256: str
    document: dict[str, Any]
    declarations: dict[str, str]
    mandate: Mandate
    input: Any
    input_sha256: str
    start_key: str
    request_fingerprint: str
    purpose: str | None = None
    source_version: str | None = None
    stage: str = "live"
    on_terminal: str = "return"
    actions_max: int = 20
    parent_id: str | None = None
    revision: int = 1
    deadline_at: Instant
    correlation_id: str | None = None
    trace_id: str | None = None
    accepted_at: Instant


class OperatorCommand(ForwardContract):
    """gateway → whoever performs it: an act of a person or a repair, admitted under a decision of its own.

    Subject `trueup.evt.gateway.operator.<tenant>`, message id = `operator_command_id`. `performer` is the one service
    that acts and tells the end; it asks the table of `contracts.operators` again, for the state may have moved. Other
    services may listen. `deadline_at` is the new deadline of what is tried again, `mandate_expires_at` until when its
    authority was renewed. `document` is the corrected version that a case shall go on by; `seen` are effects of which
    every element was just observed to be as it should be. `obligation_id` is what the exception stands for at whoever
    reported it: where a person ends an exception that no case can end, whoever owes it closes it as well.
    """

    operator_command_id: str
    tenant: str
    action: str
    performer: str
    target_kind: str
    target_id: str
    workflow_id: str | None = None
    command_id: str | None = None
    exception_id: str | None = None
    exception_kind: str | None = None
    obligation_id: str | None = None
    repair_id: str | None = None
    element: dict[str, str] | None = None
    """(system, resource, element) of a drift."""
    actor: str
    reason: str
    evidence: list[Any] = Field(default_factory=list)
    params: dict[str, Any] = Field(default_factory=dict)
    decision_id: str
    deadline_at: Instant | None = None
    mandate_expires_at: Instant | None = None
    document: dict[str, Any] | None = None
    document_sha256: str | None = None
    seen: list[str] = Field(default_factory=list)
    at: Instant


class OperatorCommandEnded(ForwardContract):
    """Whoever performed it → gateway: how an operator command ended: DONE or REFUSED, with what is allowed instead.

    Subject `trueup.evt.<service>.operator-ended.<tenant>`, message id = `<operator_command_id>:ended`. Of an act that
    takes its time (a redrive, a cancel) this is the end of what it set in motion, and `result` says which.
    """

    operator_command_id: str
    tenant: str
    state: str
    detail: str | None = None
    allowed_actions: tuple[str, ...] = ()
    result: dict[str, Any] = Field(default_factory=dict)
    ended_by: str
    at: Instant


class SignalReceived(ForwardContract):
    """gateway → orchestrator: an event for a case, accepted once by (workflow, event id).

    Subject `trueup.evt.gateway.signal.<tenant>`, message id = `<workflow_id>:signal:<event_id>`.
    """

    event_id: str
    workflow_id: str
    tenant: str
    type: str
    data: Any = None
    actor: str
    occurred_at: Instant | None = None
    received_at: Instant


class SignalDisposed(ForwardContract):
    """orchestrator → gateway: what became of a signal: accepted, duplicate, held or late.

    Subject `trueup.evt.orchestrator.signal.<tenant>`. A held one is disposed again once its wait takes it; `version`
    orders the two.
    """

    event_id: str
    workflow_id: str
    tenant: str
    disposition: str
    reason: str | None = None
    version: int = 1
    at: Instant


class ApprovalAsked(ForwardContract):
    """orchestrator → gateway: open, expire or withdraw the approval of one step (`action`).

    Subject `trueup.evt.orchestrator.approval.<tenant>`. The gateway's row arbitrates: an approval that is decided
    already answers with its decision. `content_sha256` is what exactly is approved: the one bound value where that is
    a SHA-256 itself, else the digest of the bound values. `summary` is shown to the person.
    """

    approval_id: str
    workflow_id: str
    saga_id: str
    tenant: str
    step_id: str
    action: str
    scope: str
    content_sha256: str
    binds: list[Any] = Field(default_factory=list)
    summary: dict[str, Any] = Field(default_factory=dict)
    requested_by: str
    owner: str
    backup_owner: str | None = None
    definition: str
    version: int
    document_sha256: str
    state_version: int
    asked_at: Instant
    expires_at: Instant


class ApprovalDecided(ForwardContract):
    """gateway → orchestrator: how an approval ended: approved, rejected, expired or withdrawn.

    Subject `trueup.evt.gateway.approval.<tenant>`, message id = `<approval_id>:<outcome>`.
    """

    approval_id: str
    workflow_id: str
    tenant: str
    step_id: str
    outcome: str
    reviewer: str | None = None
    reason: str | None = None
    content_sha256: str
    decision_id: str | None = None
    """The authorization decision that admitted the reviewer (requirement L10)."""
    decided_at: Instant


class GrantRequest(ForwardContract):
    """orchestrator → gateway worker: mint a grant for this task and publish it (`trueup.grant.request.<tenant>`).

    A compensation names the command type that it undoes: only the declared compensation of a type that the mandate
    covers is granted. `approval_id` names the approval that a pivot rests on. What the mandate says is in its row.
    """

    mandate_id: str
    task: ExecuteTask
    definition: str = "command"
    version: int = 1
    document_sha256: str | None = None
    approval_id: str | None = None
    compensation: bool = False
    compensates_type: str | None = None


class GrantRefused(ForwardContract):
    """gateway → orchestrator: no grant for this attempt. `check` is the check that failed.

    `transient=True` (frozen, stale): the operation stays queued and is proposed again later.
    """

    command_id: str
    workflow_id: str
    tenant: str
    fence: int
    check: str
    detail: str
    transient: bool = False


class CaseChanged(ForwardContract):
    """orchestrator → gateway: the whole case as it stands, with the history since the last durable event."""

    instance: InstanceRow
    operations: tuple[JournalRow, ...]
    obligations: tuple[ObligationRow, ...] = ()
    history: tuple[HistoryEvent, ...] = ()


class CaseAnswered(ForwardContract):
    """orchestrator → one gateway replica over core NATS: the terminal row, for a client that waits."""

    instance: InstanceRow
    operation: JournalRow


class SettleRequested(ForwardContract):
    """orchestrator → reconciler: this operation's outcome is unknown; find out. Version = the operation's fence."""

    operation: Operation
    fence: int
    reason: str
    late_until: Instant | None = None
    requested_at: Instant
    deadline_at: Instant


class Settlement(ForwardContract):
    """reconciler → orchestrator: where the settlement stands. `finding` is set where it is finished."""

    settlement_id: str
    command_id: str
    workflow_id: str
    tenant: str
    started: bool
    finished: bool
    fence: int
    verdict: FindVerdict | None = None
    finding: Finding | None = None
    finds_count: int = 0
    at: Instant


class RepairOffer(ForwardContract):
    """The command that would bring one element back, filled in from its declaration (`declaration.Repair`)."""

    command_type: str
    resource: str
    payload: dict[str, Any]
    mends: tuple[str, ...] = ()
    binds: dict[str, str] = Field(default_factory=dict)
    """Payload members that come from the observation of the drift."""
    verification: str = ""


class EstablishedElement(ForwardContract):
    """One desired element, filled in."""

    element: str
    resource: str
    desired: Any
    recorded: Any = None
    normaliser: str
    window_seconds: float
    probe: ProbeElement
    verified: bool
    """True where the receipt's own read-back already equals the desired value."""
    observation: Observation | None = None
    repair: RepairOffer | None = None
    """None where only a person can bring it back."""
    downstream_of: tuple[str, ...] = ()
    """Elements of the same business object that come first (`declaration.Establishes`)."""


class Established(ForwardContract):
    """orchestrator → reconciler: what a succeeded operation established. Ordered by (revision, sequence)."""

    command_id: str
    workflow_id: str
    tenant: str
    system: str
    command_type: str
    declaration_sha256: str
    revision: int
    sequence: int
    elements: tuple[EstablishedElement, ...]
    established_at: Instant
    saga_id: str = ""
    step_id: str | None = None
    decision_id: str | None = None
    capability_id: str | None = None
    payload_sha256: str | None = None
    external_status: str | None = None
    attempt_count: int = 0
    trace_id: str | None = None
    object_type: str | None = None
    object_id: str | None = None
    """The business object that the case is about: its state vector is all elements of it."""
    supersedes: str | None = None
    """The command whose place this operation took: drift of it stays open until it was observed to be over."""


class Retired(ForwardContract):
    """orchestrator → reconciler: what this operation established is no longer desired, because it is being undone.

    Same subject as Established. Where both name the same (revision, sequence), retirement wins; what the compensation
    itself establishes has a higher sequence and comes after.
    """

    command_id: str
    workflow_id: str
    tenant: str
    system: str
    revision: int
    sequence: int
    retired_by: str
    elements: tuple[tuple[str, str], ...]
    """(resource, element) of each."""
    at: Instant


class ElementChanged(ForwardContract):
    """reconciler → gateway: one element as it stands. Version orders changes of the same element."""

    tenant: str
    system: str
    resource: str
    element: str
    command_id: str
    workflow_id: str
    version: int
    desired: Any
    recorded: Any = None
    observed: Any = None
    verdict: str | None = None
    phase: Phase
    reason: str | None = None
    observed_at: Instant | None = None
    source: str | None = None
    observed_version: str | None = None
    next_visit_at: Instant | None = None
    object_type: str | None = None
    object_id: str | None = None
    retired: bool = False
    """True where nothing is desired of it any more: it left the state vector."""


class ElementVerified(ForwardContract):
    """reconciler → orchestrator: what is owed for an element is paid, or a newer operation took it over."""

    command_id: str
    workflow_id: str
    tenant: str
    system: str
    resource: str
    element: str
    phase: Phase
    superseded_by: str | None = None
    observation: Observation | None = None
    at: Instant


class ExceptionReported(ForwardContract):
    """Any service → planner: an obligation that is an exception, opened or closed. The planner owns it from here."""

    reported_by: str
    obligation: ObligationRow
    command_type: str | None = None
    target_system: str | None = None
    target_resource: str | None = None
    trace_id: str | None = None


class MessageQuarantined(ForwardContract):
    """Any service → planner: a message that cannot be processed, kept with its bytes and reason."""

    quarantine_id: str
    tenant: str
    service: str
    consumer: str
    subject: str
    message_id: str
    message_type: str
    reason: str
    sha256: str
    size_bytes: int
    workflow_id: str | None = None
    at: Instant


class ExceptionChanged(ForwardContract):
    """planner → gateway: one exception as operators see it."""

    exception_id: str
    tenant: str
    kind: str
    status: str
    lifecycle: str
    failure_class: str
    owner: str
    deadline_at: Instant
    opened_at: Instant
    first_deadline_at: Instant | None = None
    """What its service level is measured by; `deadline_at` moves with each escalation."""
    closed_at: Instant | None = None
    resolution_type: str | None = None
    resolved_by: str | None = None
    workflow_id: str | None = None
    saga_id: str | None = None
    command_id: str | None = None
    envelope: dict[str, Any] = Field(default_factory=dict)
    allowed_actions: tuple[str, ...] = ()
    trace_id: str | None = None
    repair_id: str | None = None
    """Its repair: the one in flight, else the last one."""
    repair_status: str | None = None
    incident_id: str | None = None
    version: int


class RepairChanged(ForwardContract):
    """planner → gateway, reconciler: one planned repair as it stands (requirement Q5). Version orders its changes."""

    repair_id: str
    tenant: str
    exception_id: str
    subject_key: str
    number: int
    status: str
    source_command: str | None = None
    source_workflow: str | None = None
    source_saga: str | None = None
    drift: dict[str, Any] | None = None
    """{element, system, resource, desired, observed, observed_at} where an element is repaired."""
    root_cause: str
    repair_action: str
    risk_level: str
    required_capability: dict[str, Any] = Field(default_factory=dict)
    approval_required: bool
    verification_plan: str
    rollback_or_compensation: str
    explanation: str = ""
    playbook: str
    playbook_version: int
    owner: str
    planned_by: str
    decision_id: str | None = None
    approval_id: str | None = None
    command_id: str | None = None
    """The repair command, where one was accepted."""
    operator_command_id: str | None = None
    incident_id: str | None = None
    error_code: str | None = None
    error_detail: str | None = None
    due_at: Instant | None = None
    """When the planner goes on with it by itself; empty where it waits for a person or for the end of an incident."""
    created_at: Instant
    executed_at: Instant | None = None
    ended_at: Instant | None = None
    trail: list[dict[str, Any]] = Field(default_factory=list)
    trace_id: str | None = None
    version: int


class IncidentChanged(ForwardContract):
    """planner → gateway: many exceptions of one cause, as one incident. Version orders its changes."""

    incident_id: str
    tenant: str
    status: str
    cause: dict[str, Any]
    """{by, value, system, failure_class}: what the exceptions share."""
    owner: str
    exceptions_count: int
    exceptions: list[str] = Field(default_factory=list)
    blast_radius: dict[str, Any] = Field(default_factory=dict)
    held_count: int = 0
    first_at: Instant
    last_at: Instant
    opened_at: Instant
    closed_at: Instant | None = None
    next_probe_at: Instant | None = None
    trail: list[dict[str, Any]] = Field(default_factory=list)
    version: int


class GovernanceBeat(ForwardContract):
    """gateway → everyone over core NATS each second: epoch and digest of the active set of revocations and freezes."""

    epoch: int
    digest: str
    policy_sha256: str
    at: Instant
