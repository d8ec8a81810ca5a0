"""The flagship's steps in any order and with any answers: refused, or safe in every execution.

Safe is worked out here by walking through all executions, without any of the linter's code: nothing that cannot be
taken back has happened when going backwards is demanded, nothing stays behind then, and no step reads what is not
there.
"""

import re
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EffectClass
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.lint import faults
from trueup_common.documents.text import parsed
from trueup_common.runtime.bootstrap import installed_adapters
from trueup_orchestrator.workflows import texts

TEXT = texts()["seo-article-publish.v1.yaml"]
FLAGSHIP: dict[str, Any] = parsed(TEXT)[0]
STEPS: dict[str, dict[str, Any]] = {step["id"]: step for step in FLAGSHIP["steps"]}
DECLARATIONS: dict[str, CommandDeclaration] = {
    item.type: item for adapter in installed_adapters().values() for item in adapter.declarations
}
OUTCOMES = {
    "command": ("failed", "conflict", "exhausted"),
    "approval": ("rejected", "timeout"),
    "check": ("failed",),
    "wait": ("timeout",),
}
DEFAULT = {("command", "failed"): "compensate", ("approval", "rejected"): "compensate"}
ANSWERS = ("compensate", "cancel", "takeover", "safe_stop", "continue")


def kind_of(step: dict[str, Any]) -> str:
    return next(kind for kind in OUTCOMES if kind in step)


def needed(steps: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    before: set[str] = set()
    for step in steps:
        found[step["id"]] = set(step["needs"]) if "needs" in step else before
        before = {step["id"]}
    return found


def reads(step: dict[str, Any]) -> set[str]:
    """The steps whose outputs the step cannot do without."""
    text = yaml.dump({key: value for key, value in step.items() if key not in ("needs", "on")})
    return set(re.findall(r"(?<!\?)\bsteps\.(\w+)", text))


def harms(steps: list[dict[str, Any]]) -> list[str]:
    """What can go wrong in some execution. Ended = done well, or left behind by `continue`."""
    needs, by_id = needed(steps), {step["id"]: step for step in steps}
    effect = {name: DECLARATIONS[step["command"]] for name, step in by_id.items() if "command" in step}
    fixed = {
        name for name, item in effect.items() if item.effect_class in (EffectClass.PIVOT, EffectClass.IRREVERSIBLE)
    }
    stays = {
        name for name, item in effect.items() if item.effect_class is EffectClass.RETRYABLE and not item.compensation
    }
    found: list[str] = []
    ahead: list[tuple[frozenset[str], frozenset[str]]] = [(frozenset(), frozenset())]
    seen = set(ahead)
    while ahead:
        done, left = ahead.pop()
        for name, step in by_id.items():
            if name in done | left or not needs[name] <= done | left:
                continue
            if reads(step) - done:
                found.append(f"{name} reads {reads(step) - done}, which is not there")
            after = [(done | {name}, left)]
            kind = kind_of(step)
            for outcome in OUTCOMES[kind]:
                said = step.get("on", {}).get(outcome)
                answer = said or DEFAULT.get((kind, outcome), "takeover")
                if answer == "continue":
                    after.append((done, left | {name}))
                if answer not in ("compensate", "cancel"):
                    continue
                declaration = effect.get(name)
                forward = declaration is not None and said is None and declaration.forward_recovery != "person"
                if done & fixed and not forward:
                    found.append(f"{name} {outcome} demands {answer} after {done & fixed}")
                carried = declaration is not None and declaration.effect_class is EffectClass.RETRYABLE and said is None
                if not done & fixed and done & stays and not carried:
                    found.append(f"{name} {outcome} demands {answer}, and {done & stays} stays behind")
            for state in after:
                if state not in seen:
                    seen.add(state)
                    ahead.append(state)
    return found


def refused(steps: list[dict[str, Any]]) -> list[str]:
    document = WorkflowDocument.model_validate({**FLAGSHIP, "steps": steps})
    return [str(fault) for fault in faults(document, DECLARATIONS)]


FREE: dict[str, dict[str, Any]] = {
    "approve": {"approval": {**STEPS["approve"]["approval"], "binds": ["${input.title}"], "shows": {}}},
    "publish": {"with": {"post_id": 7, "content_sha256": "${sha256(input.content)}"}},
    "purge": {"with": {"zone_id": "0" * 32, "urls": ["https://a.example/"]}},
    "monitor": {"with": {**STEPS["monitor"]["with"], "url": "https://a.example/"}},
    "record": {"with": {"business_key": "${input.article_id}", "record": {}}},
    "inspect": {"with": {"post_id": 7}},
    "validate": {"check": ["input.title != ''"]},
}
"""Steps whose values hold nothing of the others, so that nothing but the rules of S2 keeps them in their place."""


@st.composite
def orders(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The steps in another order, with other needs and other answers; often near to the flagship, sometimes far."""
    names = list(STEPS)
    if draw(st.booleans()):
        names = draw(st.permutations(names))
    else:
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(names) - 1))
            names.insert(draw(st.integers(0, len(names) - 1)), names.pop(at))
    names = names[: draw(st.integers(2, len(names)))]
    free = draw(st.booleans())
    steps = []
    for index, name in enumerate(names):
        step = {**STEPS[name], **(FREE.get(name, {}) if free or draw(st.integers(0, 3)) == 0 else {})}
        if draw(st.booleans()) and index:
            step["needs"] = draw(st.lists(st.sampled_from(names[:index]), unique=True, max_size=3))
        elif draw(st.booleans()) or not set(step.get("needs", ())) <= set(names):
            step.pop("needs", None)
        if draw(st.integers(0, 3)) == 0:
            step.pop("on", None)
        if draw(st.integers(0, 3)) == 0:
            outcome = draw(st.sampled_from(OUTCOMES[kind_of(step)]))
            step["on"] = {**step.get("on", {}), outcome: draw(st.sampled_from(ANSWERS))}
        steps.append(step)
    return steps


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(orders())
def test_any_order_is_refused_or_safe(steps: list[dict[str, Any]]) -> None:
    """Whatever the linter lets through cannot do harm in any execution.

    Requirements: S2
    """
    if not refused(steps):
        assert harms(steps) == []


def test_both_verdicts_occur() -> None:
    """The walk finds harm where harm is, and the flagship and its harmless neighbours are let through.

    Requirements: S2
    """
    flagship = list(STEPS.values())
    assert refused(flagship) == []
    assert harms(flagship) == []
    others = ("draft", "archive", "inspect", "validate", "approve", "publish", "monitor", "purge", "record")
    swapped = [STEPS[name] for name in others]
    swapped[6] = {**swapped[6], "needs": ["publish"]}
    assert refused(swapped) == []
    assert harms(swapped) == []
    for names in (
        ("archive", "draft", "inspect", "validate", "publish", "approve", "purge", "monitor", "record"),
        ("draft", "inspect", "validate", "approve", "publish", "archive", "purge", "monitor", "record"),
    ):
        steps = [STEPS[name] for name in names]
        assert refused(steps)
        assert harms(steps)
    early = [{**STEPS["purge"], "with": {"zone_id": "0" * 32, "urls": ["https://a.example/"]}}, *flagship[:6]]
    assert any("cannot-be-undone" in fault for fault in refused(early))
    assert any("stays behind" in harm for harm in harms(early))


def test_the_linter_refuses_little_that_is_safe() -> None:
    """Of all ways to swap two neighbours of the flagship, those that the linter refuses are those that do harm.

    Requirements: S2
    """
    names = list(STEPS)
    verdicts: dict[str, tuple[bool, bool]] = {}
    for index in range(len(names) - 1):
        order = [*names]
        order[index], order[index + 1] = order[index + 1], order[index]
        steps = [STEPS[name] for name in order]
        verdicts[f"{order[index]} first"] = (bool(refused(steps)), bool(harms(steps)))
    harmless = {swap for swap, (_, is_harmful) in verdicts.items() if not is_harmful}
    assert harmless == {"draft first", "approve first", "monitor first", "record first"}
    assert harmless == {swap for swap, (is_refused, _) in verdicts.items() if not is_refused}, verdicts
