"""What the gateway keeps: one contract per table, so that a column is written down once. Times are business time."""

from typing import Any

from pydantic import Field

from trueup_common.contracts.governance import FREEZE, FreezeScope
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
    workflow: str | None = None
    """The workflow that may be started; `definition_version` and `document_sha256` say which document was judged."""
    definition_version: int | None = None
    document_sha256: str | None = None
    system: str
    resource: str
    purpose: str
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    payload_sha256: str | None = None
    expected_version: str | None = None
    supersedes: str | None = None
    """The command that what is decided here takes the place of, and only of that one."""
    repair: bool = False
    """True where policy was asked about a repair: what an open exception offers, exactly. Naming an ended command in
    `supersedes` alone makes nothing a repair, neither here nor when the decision is evaluated again."""
    declarations: dict[str, str]
    """The declaration (by hash) that each command type was judged by."""
    effect_class_max: EffectClass
    outcome: str
    risk_score: int
    risk_level: RiskLevel
    risk_factors: list[dict[str, Any]]
    risks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Of a workflow: each command type's own risk, by which policy judges it."""
    policy_version: int
    policy_sha256: str
    determining_policies: list[str]
    policy_errors: list[str] = Field(default_factory=list)
    obligations: list[dict[str, Any]] = Field(default_factory=list)
    approval_id: str | None = None
    approved_at: Instant | None = None
    """When a person approved an intent that needed it (`approval_id`)."""
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
    workflow: str | None = None
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
    """A mandate as kept: bound to one case and, for a single command, to one operation and one payload.

    For a workflow `declarations` pins every command type, compensations included, and `within_resource` restricts what
    its effects on the system `within_system` may touch.
    """

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
    documents: list[str] = Field(default_factory=list)
    """Corrected versions of its document (by hash) that an operator's decision let the case go on by."""
    approval_id: str | None = None
    risk: RiskLevel
    policy_sha256: str
    expires_at: Instant
    workflow_id: str
    command_id: str | None = None
    payload_sha256: str | None = None
    expected_version: str | None = None
    definition: str = "command"
    version: int = 1
    declarations: dict[str, str] = Field(default_factory=dict)
    within_system: str | None = None
    within_resource: str | None = None
    created_at: Instant
    revoked_at: Instant | None = None
    renewed_by: str | None = None
    """The operator command whose decision last made it live longer."""
    agent_version: str | None = None


class EffectCountRow(ForwardContract):
    """One operation that counts as an effect of a mandate: it was granted at least once.

    `number` counts the effects of a mandate from 1, so that two that are counted at once cannot be one over.
    """

    mandate_id: str
    number: int
    command_id: str
    first_at: Instant


class DefinitionRow(ForwardContract):
    """One version of a tenant's own workflow document, or that the tenant retired a built-in one (`built_in`)."""

    tenant: str
    name: str
    version: int
    sha256: str
    document: dict[str, Any]
    text: str
    built_in: bool = False
    created_by: str
    created_at: Instant
    retired_at: Instant | None = None
    retired_by: str | None = None
    retirement_reason: str | None = None


class EdgeRow(ForwardContract):
    """One business key of a tenant and what it stands for. `identity` is empty again once it is free.

    `command_id` is empty where the key started a workflow; a revision of it takes the key over.
    """

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


class LineageRow(ForwardContract):
    """That a command was accepted in the place of an older one."""

    command_id: str
    tenant: str
    supersedes: str
    created_at: Instant


class CallRow(ForwardContract):
    """One changing call under an Idempotency-Key (freezes, policies) and the answer that a repetition gets."""

    tenant: str
    key: str
    fingerprint: str
    status: int
    body: dict[str, Any]
    created_at: Instant


class FreezeRow(ForwardContract):
    """A freeze: what it holds back and until when; of the kind `break_glass`, what goes through every freeze."""

    freeze_id: str
    kind: str = FREEZE
    decision_id: str | None = None
    """The authorization decision that admitted whoever broke the glass."""
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
