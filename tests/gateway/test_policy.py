"""The policy engine fails closed, and the default policy says what the contract says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.edge import DRAFT, POST, PUBLISH

from trueup_common.contracts.states import EffectClass, RiskLevel
from trueup_gateway.core.policy import Act, Answer, Question, judge
from trueup_gateway.policy import PolicyInvalid, PolicySet

ASKED = Question(
    subject="agent:publisher",
    tenant="acme",
    roles=("agent",),
    action="execute",
    command_type="wordpress.create_draft",
    effect_class=EffectClass.COMPENSABLE,
    target_tenant="acme",
    system="wordpress",
    resource="post/*",
    risk_score=20,
    risk_level=RiskLevel.LOW,
)
DEFAULT = PolicySet.default()
REVIEW = (("kind", "workflow"), ("scope", "content:publish"), ("covered", True), ("person", True))
PERMIT = '@id("all") permit (principal, action, resource);'


@pytest.mark.parametrize("effect_class", list(EffectClass))
@pytest.mark.parametrize("level", list(RiskLevel))
def test_the_default_policy_is_the_documented_one(effect_class: EffectClass, level: RiskLevel) -> None:
    """READ, COMPENSABLE and RETRYABLE pass at low or medium risk; everything else needs an approval.

    Requirements: G2
    """
    asked = replace(ASKED, effect_class=effect_class, risk_level=level)
    moderate = effect_class in ("READ", "COMPENSABLE", "RETRYABLE") and level in ("low", "medium")
    assert DEFAULT.ask(asked).allowed is moderate
    assert DEFAULT.ask(replace(asked, approved=True)).allowed is True


@pytest.mark.parametrize("roles", [(), ("wizard",), ("viewer",), ("operator",), ("approver",), ("admin",), ("Agent",)])
def test_other_roles_are_denied(roles: tuple[str, ...]) -> None:
    """An unknown role is denied, and so is every role that does not act; an approval does not help.

    Requirements: G2
    """
    asked = replace(ASKED, roles=roles)
    assert judge(asked, (DRAFT,), DEFAULT.ask).outcome == "denied"


def test_outcomes_take_the_strictest_of_all_types() -> None:
    """One pivot among harmless types makes the whole intent need an approval.

    Requirements: G2
    """
    assert judge(ASKED, (DRAFT, POST), DEFAULT.ask).outcome == "approved"
    found = judge(ASKED, (DRAFT, PUBLISH), DEFAULT.ask)
    assert found.outcome == "approval_required" and found.obligations
    assert set(found.policies) == {"agents-act-at-moderate-risk", "agents-act-once-approved"}


def test_tenants_stay_apart() -> None:
    """Another tenant's target is denied with the policy that says so.

    Requirements: T1
    """
    answer = DEFAULT.ask(replace(ASKED, target_tenant="globex"))
    assert answer == Answer(False, ("tenants-stay-apart",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "without policies"),
        ("permit (principal, action, resource)", "not Cedar"),
        ("permit (principal, action, resource);", "@id"),
        ('@id("") permit (principal, action, resource);', "@id"),
        (PERMIT + PERMIT, "twice"),
        (PERMIT + '@id("f") forbid (principal, action, resource) when { context.nonsense };', "nonsense"),
        (PERMIT + '@id("f") forbid (principal, action, resource) when { context.risk_score == "x" };', ""),
        (PERMIT + '@id("f") forbid (principal, action == Action::"nonsense", resource);', ""),
        ('@id("t") permit (principal == ?principal, action, resource);', "templates"),
        (PERMIT + "x" * 300_000, "too long"),
    ],
)
def test_a_set_that_could_mean_less_than_it_says_is_refused(text: str, reason: str) -> None:
    """Above all a `forbid` on an attribute that does not exist, which would silently not apply.

    Requirements: G2, G6
    """
    with pytest.raises(PolicyInvalid) as caught:
        PolicySet(text)
    assert reason in str(caught.value)


def test_an_error_while_evaluating_denies_although_a_policy_permits() -> None:
    """A forbid that fails (here by overflow) is skipped by the engine, whose answer is then Allow: we deny.

    Requirements: G2
    """
    overflow = '@id("f") forbid (principal, action, resource) when { context.risk_score * 9223372036854775807 > 0 };'
    answer = PolicySet(PERMIT + overflow).ask(ASKED)
    assert answer.errors and answer.allowed is False
    assert judge(ASKED, (DRAFT,), PolicySet(PERMIT + overflow).ask).outcome == "denied"
    assert PolicySet(PERMIT).ask(ASKED) == Answer(True, ("all",))


def test_an_engine_that_cannot_answer_denies() -> None:
    """A question that does not fit the schema (here an action that it does not know) is no permission.

    Requirements: G2
    """
    answer = PolicySet(PERMIT).ask(replace(ASKED, action="nonsense"))
    assert answer.allowed is False and answer.errors


def test_no_policy_set_takes_the_guards_away() -> None:
    """Whatever a set permits: tenants stay apart, and nobody approves what he asked for. Requirements: T1, S6, G2"""
    everything = PolicySet(PERMIT)
    assert everything.ids == ("all",)
    assert everything.ask(ASKED).allowed
    assert everything.ask(replace(ASKED, target_tenant="globex")) == Answer(False, ("tenants-stay-apart",))
    approving = Act(
        subject="operator:ed",
        tenant="acme",
        roles=("approver",),
        action="approve",
        target_tenant="acme",
        system="",
        resource="apr_1",
        facts=(*REVIEW, ("own", True)),
    )
    assert everything.ask(approving) == Answer(False, ("nobody-approves-their-own-request",))
    assert everything.ask(replace(approving, facts=(*REVIEW, ("own", False)))).allowed
