"""What policy is asked and how its answers become an outcome. The engine behind it is a port; a doubt is a denial.

Two questions make three outcomes: permitted as it is → approved; permitted only once a person approved → approval
required; else denied. Of several command types the strictest outcome counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import EffectClass, RiskLevel

EXECUTE: Final = "execute"
COMPENSATE: Final = "compensate"

APPROVED: Final = "approved"
APPROVAL_REQUIRED: Final = "approval_required"
DENIED: Final = "denied"
STRICTNESS: Final = (APPROVED, APPROVAL_REQUIRED, DENIED)


@record
class Question:
    """May this subject do this to that target?"""

    subject: str
    tenant: str
    roles: tuple[str, ...]
    action: str
    command_type: str
    effect_class: EffectClass
    target_tenant: str
    system: str
    resource: str
    risk_score: int
    risk_level: RiskLevel
    approved: bool = False
    repair: bool = False
    """In the place of a command that has ended."""


@dataclass(frozen=True, slots=True)
class Act:
    """May this person do this to that object? `facts` are what policy may know of the act (`schema.cedarschema`)."""

    subject: str
    tenant: str
    roles: tuple[str, ...]
    action: str
    target_tenant: str
    system: str
    resource: str
    facts: tuple[tuple[str, str | bool], ...]


@record
class Answer:
    """What the engine said. `policies` are the ids of the policies that determined it."""

    allowed: bool
    policies: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome over all command types of an intent."""

    outcome: str
    policies: tuple[str, ...]
    errors: tuple[str, ...]
    obligations: tuple[dict[str, Any], ...]


def judge(
    question: Question, declarations: Sequence[CommandDeclaration], ask: Callable[[Question], Answer]
) -> Judgement:
    """The outcome of an intent over these command types; `question` gives everything but the type."""
    outcome = APPROVED
    policies: set[str] = set()
    errors: set[str] = set()
    for declaration in declarations:
        each = replace(question, command_type=declaration.type, effect_class=declaration.effect_class)
        found, answer = _one(each, ask)
        outcome = max(outcome, found, key=STRICTNESS.index)
        policies.update(answer.policies)
        errors.update(answer.errors)
    obligations: tuple[dict[str, Any], ...] = ()
    if outcome == APPROVAL_REQUIRED:
        obligations = ({"kind": "approval", "scope": question.system},)
    return Judgement(outcome, tuple(sorted(policies)), tuple(sorted(errors)), obligations)


def judge_workflow(
    question: Question,
    declarations: Sequence[CommandDeclaration],
    ask: Callable[[Question], Answer],
    *,
    risks: Mapping[str, tuple[int, RiskLevel]],
    guarded: Mapping[str, Sequence[dict[str, Any]]],
) -> Judgement:
    """The outcome of starting a workflow: every command type is asked about at its own risk and on its own system.

    `guarded` are the types that need no approval beforehand, because the document itself asks a person right before
    them; what it asks becomes an obligation.
    """
    outcome = APPROVED
    policies: set[str] = set()
    errors: set[str] = set()
    obligations: list[dict[str, Any]] = []
    for declaration in declarations:
        score, level = risks[declaration.type]
        each = replace(
            question,
            command_type=declaration.type,
            effect_class=declaration.effect_class,
            system=declaration.system,
            resource=question.resource if question.system == declaration.system else "*",
            risk_score=score,
            risk_level=level,
        )
        found, answer = _one(each, ask)
        if found == APPROVAL_REQUIRED and declaration.type in guarded:
            obligations += [item for item in guarded[declaration.type] if item not in obligations]
            found = APPROVED
        outcome = max(outcome, found, key=STRICTNESS.index)
        policies.update(answer.policies)
        errors.update(answer.errors)
    if outcome == APPROVAL_REQUIRED:
        obligations.insert(0, {"kind": "approval", "scope": "workflow"})
    return Judgement(outcome, tuple(sorted(policies)), tuple(sorted(errors)), tuple(obligations))


def _one(question: Question, ask: Callable[[Question], Answer]) -> tuple[str, Answer]:
    answer = ask(question)
    if answer.allowed and not answer.errors:
        return APPROVED, answer
    if not question.approved:
        with_approval = ask(replace(question, approved=True))
        if with_approval.allowed and not with_approval.errors and not answer.errors:
            return APPROVAL_REQUIRED, with_approval
    return DENIED, answer
