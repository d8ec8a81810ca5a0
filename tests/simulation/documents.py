"""Random workflow documents: sensible ones and thrown-together ones; only what passes the linter runs.

A document is known by its number: the same number is always the same document, linted once per process.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any, Final

from tests.simulation.declarations import BY_TYPE
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.lint import Fault, faults

NUMBERS: Final = 240
"""How many different documents seeds choose from."""
EVENTS: Final = ("reply.came", "file.ready", "slot.free")
INPUT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "shared": {"type": "string"},
        "text": {"type": "string"},
        "sha": {"type": "string"},
        "flag": {"type": "boolean"},
    },
    "required": ["id", "shared", "text", "sha", "flag"],
}
OUTCOMES: Final = {
    "command": ("failed", "conflict", "exhausted"),
    "approval": ("rejected", "timeout"),
    "wait": ("timeout",),
    "check": ("failed",),
}
REACTIONS: Final = ("compensate", "cancel", "takeover", "safe_stop", "continue")
BEFORE: Final = ("alpha.make_page", "alpha.make_draft", "alpha.edit", "beta.reserve", "beta.look")
AFTER: Final = ("beta.notify", "alpha.put_note", "beta.look", "beta.charge")
PIVOTS: Final = ("alpha.release", "alpha.release", "alpha.publish", "beta.send_mail")


def _command(rng: random.Random, name: str, command_type: str) -> dict[str, Any]:
    step: dict[str, Any] = {"id": name, "command": command_type, "with": {"text": "${input.text}", "of": name}}
    if command_type == "alpha.release":
        step["with"]["content_sha256"] = "${input.sha}"
    elif command_type == "alpha.edit":
        step["with"]["page"] = "${input.shared}"
    scope = "shared" if rng.random() < 0.2 else "id"
    step["key"] = f"{command_type}:{name}:${{input.{scope}}}"
    if rng.random() < 0.15:  # the same effect wanted by several steps, perhaps
        step["key"] = f"{command_type}:${{input.{scope}}}"
        if rng.random() < 0.7:
            del step["with"]["of"]
    if scope == "shared":
        step["resource"] = "thing/${input.shared}"
    if rng.random() < 0.15:
        step["retry"] = {"attempts_max": rng.randint(1, 3)}
    if rng.random() < 0.1:
        step["timeout"] = rng.choice(["PT30S", "PT5M"])
    return step


def _check(rng: random.Random, name: str) -> dict[str, Any]:
    return {"id": name, "check": [rng.choice(["input.id != ''", "input.id != ''", "input.flag"])]}


def _wait(rng: random.Random, name: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"event": rng.choice(EVENTS), "timeout": rng.choice(["PT2M", "PT10M"]), "owner": "shift"}
    rule["data"] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    if rng.random() < 0.4:
        rule["match"] = "event.ok"
    return {"id": name, "wait": rule}


def _approval(rng: random.Random, name: str) -> dict[str, Any]:
    rule = {"scope": "content:publish", "binds": ["${input.sha}"], "timeout": rng.choice(["PT5M", "PT20M"])}
    return {"id": name, "approval": {**rule, "owner": "editors"}}


def _any(rng: random.Random, name: str, commands: tuple[str, ...]) -> dict[str, Any]:
    kind = rng.choice(["command"] * 6 + ["check", "wait", "approval"])
    if kind == "command":
        return _command(rng, name, rng.choice(commands))
    return {"check": _check, "wait": _wait, "approval": _approval}[kind](rng, name)


def _kind(step: dict[str, Any]) -> str:
    return next(kind for kind in OUTCOMES if kind in step)


def _turns(rng: random.Random, step: dict[str, Any]) -> None:
    """What follows a bad end, and whether the step is wanted at all."""
    for outcome in OUTCOMES[_kind(step)]:
        if rng.random() < 0.25:
            step.setdefault("on", {})[outcome] = rng.choice(REACTIONS)
    if rng.random() < 0.08:
        step["when"] = "input.flag"


def _needs(rng: random.Random, step: dict[str, Any], before: list[str]) -> None:
    if before and rng.random() < 0.45:
        step["needs"] = rng.sample(before, k=rng.randint(0, min(2, len(before))))


def composed(rng: random.Random, *, pivotal: bool = False) -> list[dict[str, Any]]:
    """What can be undone first, then perhaps (`pivotal`: surely) a pivot that needs all of it, then what goes on."""
    steps: list[dict[str, Any]] = []
    for number in range(rng.randint(1, 2 if pivotal else 4)):
        step = _any(rng, f"s{number}", BEFORE)
        _needs(rng, step, [item["id"] for item in steps])
        _turns(rng, step)
        steps.append(step)
    if rng.random() < 0.15:
        steps += _asking_again(rng, len(steps))
    if pivotal or rng.random() < 0.75:
        pivot = rng.choice(PIVOTS)
        if pivot == "alpha.release":
            steps.append({**_approval(rng, "approve"), "needs": [item["id"] for item in steps]})
        steps.append({**_command(rng, "pivot", pivot), "needs": [item["id"] for item in steps]})
        if rng.random() < (0.7 if pivotal else 0.4):
            steps.append(_beside(rng, steps[-1]))
        for number in range(rng.randint(1 if pivotal else 0, 3)):
            step = {**_any(rng, f"after{number}", AFTER), "needs": ["pivot"]}
            _turns(rng, step)
            steps.append(step)
    return steps


def _beside(rng: random.Random, pivot: dict[str, Any]) -> dict[str, Any]:
    """A step that runs beside the pivot; whatever becomes of it, nothing is undone for it."""
    step = {**_command(rng, "beside", rng.choice(("beta.notify", "beta.reserve"))), "needs": list(pivot["needs"])}
    if step["command"] == "beta.notify":  # cannot be taken back, so the pivot must not turn the case either
        pivot["on"] = {"failed": "takeover", "exhausted": "takeover"}
    if rng.random() < 0.6:
        step["retry"] = {"attempts_max": 1}
    return step


def _asking_again(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """A rejection that leads back to a wait, until a person approves."""
    wait, approval = _wait(rng, f"s{number}"), _approval(rng, f"s{number + 1}")
    approval["on"] = {"rejected": {"goto": wait["id"]}}
    return [wait, approval]


def thrown(rng: random.Random) -> list[dict[str, Any]]:
    """Any steps in any order."""
    steps: list[dict[str, Any]] = []
    for number in range(rng.randint(2, 6)):
        step = _any(rng, f"s{number}", (*BEFORE, *AFTER, *PIVOTS))
        _needs(rng, step, [item["id"] for item in steps])
        _turns(rng, step)
        steps.append(step)
    return steps


def document_of(rng: random.Random, name: str, steps: list[dict[str, Any]]) -> WorkflowDocument:
    """A document about one article."""
    rule: dict[str, Any] = {"type": "article", "id": "${input.id}", "concurrency": rng.choice(["queue", "refuse"])}
    if rule["concurrency"] == "queue":
        rule["queue_timeout"] = rng.choice(["PT3M", "PT30M"])
    locks = ["shared:${input.shared}"] if rng.random() < 0.2 else []
    lifetime = rng.choice(["PT45M", "PT6H"])
    fields = {"name": name, "version": 1, "object": rule, "locks": locks, "lifetime": lifetime, "input": INPUT}
    return WorkflowDocument.model_validate({**fields, "steps": steps})


def faults_of(document: WorkflowDocument) -> list[Fault]:
    """What the linter says."""
    return faults(document, BY_TYPE)


@lru_cache(maxsize=2 * NUMBERS)
def legal(number: int, *, pivotal: bool = False) -> WorkflowDocument:
    """A document that passes the linter."""
    name = f"{'pivotal' if pivotal else 'flow'}-{number}"
    rng = random.Random(f"document {name}")
    while True:
        steps = composed(rng, pivotal=pivotal) if pivotal or number % 3 else thrown(rng)
        document = document_of(rng, name, steps)
        has_effect = any(step.command is not None for step in document.steps)
        if has_effect and not faults_of(document):
            return document
