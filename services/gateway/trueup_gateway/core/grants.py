"""Minting a grant for a proposed attempt: every boundary revalidates mandate, decision, capability, policy and freezes.

The message only proposes; the rows decide. Compensation is its own policy action: it runs on after a revocation and is
stopped only by a freeze that names it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration, is_about, object_of
from trueup_common.contracts.events import GrantRequest
from trueup_common.contracts.grant import ISSUER, GrantClaims, audience
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.resource import covers
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import EFFECT_CLASS_RANK, EffectClass, RiskLevel
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.policy import COMPENSATE, EXECUTE, Answer, Question
from trueup_gateway.core.records import DecisionRow, MandateRow

GRANT_SLACK_SECONDS: Final = 5
EVERYTHING: Final = "*"
CONTENT: Final = "content_sha256"
"""The payload member that says which content an effect is about."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@record
class Facts:
    """What the rows say about one proposed attempt.

    `undoes` is the pinned declaration of the type that a compensation undoes; `effects` are the operations that count
    as effects of the mandate already; `approval` is the row that the request names; `freeze` the freeze that holds it
    back, if any.
    """

    mandate: MandateRow | None
    decision: DecisionRow | None
    capability_revoked: bool
    declaration: CommandDeclaration | None
    freeze: str | None
    has_key: bool
    policy_sha256: str
    epoch: int
    undoes: CommandDeclaration | None = None
    effects: frozenset[str] = frozenset()
    approval: ApprovalRow | None = None


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
    if mandate.document_sha256 is not None and request.document_sha256 not in (
        mandate.document_sha256,
        *mandate.documents,
    ):
        return Refusal("document", "The mandate is for another document.")
    if request.compensation:
        return _undoing(request, facts, mandate)
    return _going_on(request, facts, mandate, decision, now)


def _going_on(
    request: GrantRequest, facts: Facts, mandate: MandateRow, decision: DecisionRow, now: datetime
) -> Refusal | None:
    """Whether the mandate still stands and covers this effect."""
    operation = request.task.operation
    target = operation.target
    if mandate.revoked_at is not None or decision.revoked_at is not None or facts.capability_revoked:
        return Refusal("revoked", "The authority behind this case was revoked.")
    if mandate.expires_at <= now:
        return Refusal("mandate", "The mandate has expired.")
    if mandate.command_id is not None and mandate.command_id != operation.command_id:
        return Refusal("operation", "The mandate is for another operation.")
    if operation.command_type not in mandate.command_types:
        return Refusal("command_type", "The mandate does not cover this command type.")
    if mandate.system not in (EVERYTHING, target.system):
        return Refusal("resource", "The mandate is for another system.")
    if not covers(mandate.resource, target.resource):
        return Refusal("resource", "The mandate does not cover this resource.")
    within = mandate.within_resource if mandate.within_system == target.system else None
    if within is not None and not covers(within, target.resource):
        return Refusal("resource", "The decision does not cover this resource.")
    if mandate.payload_sha256 is not None and mandate.payload_sha256 != operation.payload_sha256:
        return Refusal("payload_hash", "The mandate is bound to another payload.")
    if mandate.command_id is not None and mandate.expected_version != target.expected_version:
        return Refusal("resource_version", "The mandate is bound to another version of the target.")
    if counts(request, facts) and len(facts.effects) >= mandate.effects_max:
        return Refusal("uses", "The mandate's number of effects is used up.")
    return None


def _undoing(request: GrantRequest, facts: Facts, mandate: MandateRow) -> Refusal | None:
    """Whether this is the declared compensation of what the mandate let happen; it outlives the mandate itself."""
    operation = request.task.operation
    undone = request.compensates_type
    if undone is None or undone not in mandate.command_types:
        return Refusal("command_type", "The mandate does not cover what this would undo.")
    if facts.undoes is None:
        return Refusal("declaration", "The catalog does not hold the declaration of what this undoes (yet).", True)
    if facts.undoes.type != undone or facts.undoes.compensation is None:
        return Refusal("command_type", "Nothing is declared to undo this command type.")
    if facts.undoes.compensation.command_type != operation.command_type:
        return Refusal("command_type", "This is not the declared compensation of what it would undo.")
    if mandate.system not in (EVERYTHING, operation.target.system):
        return Refusal("resource", "The mandate is for another system.")
    return None


def counts(request: GrantRequest, facts: Facts) -> bool:
    """True where a grant of this attempt would be one more effect of a workflow's mandate."""
    return (
        facts.mandate is not None
        and facts.mandate.command_id is None
        and not request.compensation
        and (facts.declaration is None or facts.declaration.effect_class is not EffectClass.READ)
        and request.task.operation.command_id not in facts.effects
    )


def _policy(request: GrantRequest, facts: Facts, ask: Callable[[Question], Answer]) -> Refusal | None:
    mandate, decision, declaration = facts.mandate, facts.decision, facts.declaration
    assert mandate is not None and decision is not None and declaration is not None
    operation = request.task.operation
    if declaration.type != operation.command_type or declaration.system != operation.target.system:
        return Refusal("declaration", "The declaration is of another command type or system.")
    if not is_about(declaration, operation.payload, operation.target.resource):
        return Refusal("resource", "The payload names another object than the target.")
    pinned = mandate.declarations.get(operation.command_type)
    if mandate.document_sha256 is not None and pinned != declaration.sha256:
        return Refusal("declaration", "The case is pinned to another declaration of this command type.")
    if (
        not request.compensation
        and EFFECT_CLASS_RANK[declaration.effect_class] > EFFECT_CLASS_RANK[mandate.effect_class_max]
    ):
        return Refusal("policy", "The effect class is graver than the mandate permits.")
    question = question_of(
        decision,
        declaration,
        resource=object_of(declaration, operation.payload) or operation.target.resource,
        approved=mandate.approval_id is not None,
        action=COMPENSATE if request.compensation else EXECUTE,
    )
    return _asked(request, facts, question, ask)


def _asked(
    request: GrantRequest, facts: Facts, question: Question, ask: Callable[[Question], Answer]
) -> Refusal | None:
    """Policy as it is in force now. What needs a person's approval has it only by a row that covers this content."""
    named = request.approval_id is not None and not request.compensation
    unapproved = (
        _approval(request, facts) if named else Refusal("approval", "This needs an approval, and none is named.")
    )
    if named and unapproved is not None:
        return unapproved
    if _permits(ask(question)):
        return None
    if request.compensation or question.approved or not _permits(ask(replace(question, approved=True))):
        return Refusal("policy", "The policy in force does not permit this.")
    return unapproved


def _permits(answer: Answer) -> bool:
    return answer.allowed and not answer.errors


def _approval(request: GrantRequest, facts: Facts) -> Refusal | None:
    """Why the approval that a request names does not cover it; None where it does."""
    row, operation = facts.approval, request.task.operation
    if row is None or row.approval_id != request.approval_id:
        return Refusal("approval", "There is no such approval.")
    if row.tenant != operation.tenant or row.workflow_id != operation.workflow_id or row.kind != "workflow":
        return Refusal("approval", "The approval belongs to another case.")
    if row.status != "approved":
        return Refusal("approval", f"The approval is {row.status}.")
    if row.document_sha256 is not None and row.document_sha256 != request.document_sha256:
        return Refusal("approval", "The approval was given for another document.")
    payload = operation.payload
    sent = payload.get(CONTENT) if isinstance(payload, dict) else None
    hashes = [item for item in row.binds if isinstance(item, str) and _SHA256.fullmatch(item)]
    if sent is not None and hashes and sent not in hashes:
        return Refusal("approval", "The approval was given for another content.")
    if digest(payload) != operation.payload_sha256:
        return Refusal("payload_hash", "The payload is not what its hash says.")
    return None


def question_of(
    decision: DecisionRow, declaration: CommandDeclaration, *, resource: str, approved: bool, action: str = EXECUTE
) -> Question:
    """The question that re-evaluates a recorded decision for one command type, with the risk as recorded."""
    risk = decision.risks.get(declaration.type)
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
        risk_score=risk["score"] if risk else decision.risk_score,
        risk_level=RiskLevel(risk["level"]) if risk else decision.risk_level,
        approved=approved,
        repair=decision.repair,
    )
