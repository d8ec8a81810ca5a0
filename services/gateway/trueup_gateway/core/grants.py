"""Minting a grant for a proposed attempt: every boundary revalidates mandate, decision, capability, policy and freezes.

The message only proposes; the rows decide. Compensation is its own policy action: it runs on after a revocation and is
stopped only by a freeze that names it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import GrantRequest
from trueup_common.contracts.grant import ISSUER, GrantClaims, audience
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.states import EFFECT_CLASS_RANK
from trueup_gateway.core.capability import covers
from trueup_gateway.core.policy import COMPENSATE, EXECUTE, Answer, Question
from trueup_gateway.core.records import DecisionRow, MandateRow

GRANT_SLACK_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say about one proposed attempt. `freeze` names the freeze that holds it back, if any."""

    mandate: MandateRow | None
    decision: DecisionRow | None
    capability_revoked: bool
    declaration: CommandDeclaration | None
    freeze: str | None
    has_key: bool
    policy_sha256: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No grant. `transient`: the same attempt may be proposed again later."""

    check: str
    detail: str
    transient: bool = False


def mint(
    request: GrantRequest, facts: Facts, *, now: datetime, real: datetime, ask: Callable[[Question], Answer]
) -> GrantClaims | Refusal:
    """The claims of a grant for exactly this attempt, or the check that fails. `now` is business, `real` real time."""
    refusal = _transient(request, facts, real) or _authority(request, facts, now) or _policy(request, facts, ask)
    if refusal is not None:
        return refusal
    assert facts.mandate is not None
    task, mandate = request.task, facts.mandate
    operation = task.operation
    return GrantClaims(
        iss=ISSUER,
        aud=audience(operation.target.system),
        sub=mandate.subject,
        tenant=operation.tenant,
        op=operation.command_id,
        fence=task.fence,
        command_type=operation.command_type,
        resource=operation.target.resource,
        payload_sha256=operation.payload_sha256,
        expected_version=operation.target.expected_version,
        declaration_sha256=operation.declaration_sha256,
        decision=mandate.decision_id,
        mandate=mandate.mandate_id,
        capability=mandate.capability_id,
        policy=facts.policy_sha256,
        approval=request.approval_id or mandate.approval_id,
        epoch=facts.epoch,
        compensation=request.compensation,
        iat=int(real.timestamp()),
        exp=int(task.lease_expires_at.timestamp()) + GRANT_SLACK_SECONDS,
        jti=derived_id("grt", operation.command_id, task.fence),
    )


def _transient(request: GrantRequest, facts: Facts, real: datetime) -> Refusal | None:
    if facts.freeze is not None:
        return Refusal("frozen", f"A freeze ({facts.freeze}) holds this back.", transient=True)
    if request.task.start_by <= real:
        return Refusal("time", "The attempt's start window had passed when its grant was due.", transient=True)
    if not facts.has_key:
        return Refusal("audience", "No grant key exists for this system.", transient=True)
    if facts.declaration is None:
        return Refusal("declaration", "The catalog does not hold this declaration (yet).", transient=True)
    return None


def _authority(request: GrantRequest, facts: Facts, now: datetime) -> Refusal | None:
    mandate, decision, operation = facts.mandate, facts.decision, request.task.operation
    if mandate is None or mandate.tenant != operation.tenant or mandate.workflow_id != operation.workflow_id:
        return Refusal("mandate", "No such mandate for this case.")
    if decision is None:
        return Refusal("decision", "The mandate's decision does not exist.")
    if not request.compensation:
        if mandate.revoked_at is not None or decision.revoked_at is not None or facts.capability_revoked:
            return Refusal("revoked", "The authority behind this case was revoked.")
        if mandate.expires_at <= now:
            return Refusal("mandate", "The mandate has expired.")
        if mandate.command_id is not None and mandate.command_id != operation.command_id:
            return Refusal("operation", "The mandate is for another operation.")
        if operation.command_type not in mandate.command_types:
            return Refusal("command_type", "The mandate does not cover this command type.")
        if not covers(mandate.resource, operation.target.resource):
            return Refusal("resource", "The mandate does not cover this resource.")
        if mandate.payload_sha256 is not None and mandate.payload_sha256 != operation.payload_sha256:
            return Refusal("payload_hash", "The mandate is bound to another payload.")
    if mandate.system != operation.target.system:
        return Refusal("resource", "The mandate is for another system.")
    return None


def _policy(request: GrantRequest, facts: Facts, ask: Callable[[Question], Answer]) -> Refusal | None:
    mandate, decision, declaration = facts.mandate, facts.decision, facts.declaration
    assert mandate is not None and decision is not None and declaration is not None
    if declaration.type != request.task.operation.command_type:
        return Refusal("declaration", "The declaration is of another command type.")
    if (
        not request.compensation
        and EFFECT_CLASS_RANK[declaration.effect_class] > EFFECT_CLASS_RANK[mandate.effect_class_max]
    ):
        return Refusal("policy", "The effect class is graver than the mandate permits.")
    answer = ask(
        question_of(
            decision,
            declaration,
            resource=request.task.operation.target.resource,
            approved=mandate.approval_id is not None,
            action=COMPENSATE if request.compensation else EXECUTE,
        )
    )
    if not answer.allowed or answer.errors:
        return Refusal("policy", "The policy in force does not permit this.")
    return None


def question_of(
    decision: DecisionRow, declaration: CommandDeclaration, *, resource: str, approved: bool, action: str = EXECUTE
) -> Question:
    """The question that re-evaluates a recorded decision for one command type, with the risk as recorded."""
    return Question(
        subject=decision.subject,
        tenant=decision.tenant,
        roles=tuple(decision.roles),
        action=action,
        command_type=declaration.type,
        effect_class=declaration.effect_class,
        target_tenant=decision.tenant,
        system=declaration.system,
        resource=resource,
        risk_score=decision.risk_score,
        risk_level=decision.risk_level,
        approved=approved,
    )
