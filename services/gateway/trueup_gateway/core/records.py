"""What the gateway keeps: one contract per table, so that a column is written down once. Times are business time."""

from typing import Any

from pydantic import Field

from trueup_common.contracts.governance import FreezeScope
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import EffectClass, RiskLevel


class DecisionRow(ForwardContract):
    """A decision with its whole trace: who asked for what, on which evidence, at which risk, and what policy said."""

    decision_id: str
    tenant: str
    subject: str
    roles: list[str]
    agent_version: str | None = None
    command_types: list[str]
    system: str
    resource: str
    purpose: str
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    payload_sha256: str | None = None
    expected_version: str | None = None
    declarations: dict[str, str]
    """The declaration (by hash) that each command type was judged by."""
    effect_class_max: EffectClass
    outcome: str
    risk_score: int
    risk_level: RiskLevel
    risk_factors: list[dict[str, Any]]
    policy_version: int
    policy_sha256: str
    determining_policies: list[str]
    policy_errors: list[str] = Field(default_factory=list)
    obligations: list[dict[str, Any]] = Field(default_factory=list)
    approval_id: str | None = None
    trace_id: str | None = None
    created_at: Instant
    expires_at: Instant
    revoked_at: Instant | None = None
    revoked_by: str | None = None
    revocation_reason: str | None = None


class CapabilityRow(ForwardContract):
    """A capability: the authority for its uses, its revocation and its bounds. `capability_id` is the token's jti."""

    capability_id: str
    tenant: str
    decision_id: str
    subject: str
    command_types: list[str]
    system: str
    resource: str
    payload_sha256: str | None = None
    expected_version: str | None = None
    max_uses: int
    uses_left: int
    created_at: Instant
    expires_at: Instant
    revoked_at: Instant | None = None
    revoked_by: str | None = None
    revocation_reason: str | None = None


class MandateRow(ForwardContract):
    """A mandate as kept: bound to one case and, for a single command, to one operation and one payload."""

    mandate_id: str
    tenant: str
    subject: str
    decision_id: str
    capability_id: str
    command_types: list[str]
    system: str
    resource: str
    effect_class_max: EffectClass
    effects_max: int
    document_sha256: str | None = None
    approval_id: str | None = None
    risk: RiskLevel
    policy_sha256: str
    expires_at: Instant
    workflow_id: str
    command_id: str | None = None
    payload_sha256: str | None = None
    created_at: Instant
    revoked_at: Instant | None = None


class EdgeRow(ForwardContract):
    """One business key of a tenant and what it stands for. `identity` is empty again once it is free."""

    tenant: str
    key: str
    fingerprint: str
    identity: str | None = None
    command_id: str
    workflow_id: str
    saga_id: str
    capability_id: str
    created_at: Instant
    expires_at: Instant


class CallRow(ForwardContract):
    """One changing call under an Idempotency-Key (freezes, policies) and the answer that a repetition gets."""

    tenant: str
    key: str
    fingerprint: str
    status: int
    body: dict[str, Any]
    created_at: Instant


class FreezeRow(ForwardContract):
    """A freeze: what it holds back and until when."""

    freeze_id: str
    tenant: str
    scope: FreezeScope
    reason: str
    created_by: str
    created_at: Instant
    expires_at: Instant | None = None
    lifted_at: Instant | None = None
    lifted_by: str | None = None
    epoch: int


class RevocationRow(ForwardContract):
    """A revocation that every service must know until nothing it concerns can run any more (`expires_at`)."""

    kind: str
    id: str
    tenant: str
    reason: str
    revoked_by: str
    revoked_at: Instant
    expires_at: Instant
    epoch: int


class PolicyRow(ForwardContract):
    """One version of the policy set. The highest version is in force."""

    version: int
    sha256: str
    text: str
    reason: str
    created_by: str
    created_at: Instant
    epoch: int


class ReceivedRow(ForwardContract):
    """A command that nobody but the gateway has seen yet: the views of it and of its case until the first event comes.

    `row` is its journal row without the columns that are still empty.
    """

    command_id: str
    tenant: str
    subject: str
    workflow_id: str
    command_type: str
    system: str
    resource: str
    created_at: Instant
    deadline_at: Instant
    row: dict[str, Any]


class CommandView(ForwardContract):
    """The read model of one operation: its journal row as it stood at `state_version`."""

    command_id: str
    tenant: str
    subject: str
    workflow_id: str
    command_type: str
    system: str
    state: str
    state_version: int
    created_at: Instant
    row: JournalRow


class CaseView(ForwardContract):
    """The read model of one case."""

    workflow_id: str
    tenant: str
    subject: str
    definition: str
    object_type: str
    object_id: str
    status: str
    state_version: int
    owner: str | None = None
    deadline_at: Instant
    created_at: Instant
    closed_at: Instant | None = None
    instance: InstanceRow
    obligations: list[ObligationRow] = Field(default_factory=list)


class HistoryView(ForwardContract):
    """One event of a case's history."""

    workflow_id: str
    tenant: str
    seq: int
    event: HistoryEvent


class ElementView(ForwardContract):
    """The read model of one state element as one case established it."""

    workflow_id: str
    system: str
    resource: str
    element: str
    tenant: str
    command_id: str
    version: int
    desired: Any = None
    recorded: Any = None
    observed: Any = None
    verdict: str | None = None
    phase: str
    reason: str | None = None
    observed_at: Instant | None = None
    source: str | None = None
    observed_version: str | None = None
    next_visit_at: Instant | None = None


class ExceptionView(ForwardContract):
    """The read model of one exception."""

    exception_id: str
    tenant: str
    kind: str
    status: str
    lifecycle: str
    failure_class: str
    owner: str
    deadline_at: Instant
    opened_at: Instant
    closed_at: Instant | None = None
    resolution_type: str | None = None
    resolved_by: str | None = None
    workflow_id: str | None = None
    saga_id: str | None = None
    command_id: str | None = None
    envelope: dict[str, Any] = Field(default_factory=dict)
    allowed_actions: list[str] = Field(default_factory=list)
    trace_id: str | None = None
    version: int
