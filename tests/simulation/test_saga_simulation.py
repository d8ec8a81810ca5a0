"""The other half of the suite's seeds: random sound documents through every misfortune."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.documents import composed, document_of, faults_of, legal, thrown
from tests.simulation.fixed import WORKFLOWS, hunt, missing, run_shares
from tests.simulation.report import all_covered
from tests.simulation.run import run_seed
from tests.simulation.verdict import P3
from trueup_common.contracts.states import InstanceStatus


def test_every_workflow_ends_well_or_in_a_persons_hands() -> None:
    """The other half of the 300 seeds: random sound documents, people who cancel, pause, approve late or never.

    Every transition that needs a workflow is taken, none that nothing can.

    Requirements: S1, S3, S4, S5, X6, X7, P1, P3
    """
    summary = run_shares(WORKFLOWS, sagas=True)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    ends = summary.coverage["ends"]
    for end in (InstanceStatus.CLOSED, InstanceStatus.COMPENSATED, InstanceStatus.CANCELLED):
        assert ends[end.value] > 5, ends
    assert ends[InstanceStatus.HUMAN_TAKEOVER.value] > 5, ends
    assert summary.injected["a callback twice in one batch"]
    assert [phrase for phrase in P3 if summary.checks[phrase] < summary.seeds] == []
    hunt(summary, sagas=True)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    assert missing(summary, sagas=True) == {}
    assert [item.stale for item in all_covered(summary) if item.stale] == []


def test_a_workflow_replays_exactly() -> None:
    """The same seed gives the same trace, with people and workflows in it.

    Requirements: P1
    """
    for seed in range(3):
        first, second = run_seed(seed, sagas=True), run_seed(seed, sagas=True)
        assert first.trace == second.trace
        assert first.trace_hash == second.trace_hash


MUTATIONS: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "undo-after-pivot": lambda steps: steps[-1].update(on={"failed": "compensate"}),
    "effect-order": lambda steps: steps.append(
        {"id": "late", "approval": {"scope": "a:b", "binds": ["${input.sha}"], "timeout": "PT5M", "owner": "o"}}
    ),
    "two-pivots": lambda steps: steps.append({**steps[1], "id": "again", "key": "again:${input.id}", "needs": ["p"]}),
    "cycle": lambda steps: steps[0].update(needs=["p"]),
    "unknown-step": lambda steps: steps[1].update(needs=["nowhere"]),
    "unknown-command": lambda steps: steps[0].update(command="alpha.nonsense"),
    "duplicate-step": lambda steps: steps[2].update(id="p"),
    "constant-key": lambda steps: steps[0].update(key="always-the-same"),
    "reads-ahead": lambda steps: steps[0]["with"].update(of="${steps.p.id}"),
    "cannot-be-undone": lambda steps: steps[0].update(command="alpha.put_note"),
    "outcome": lambda steps: steps[0].update(on={"timeout": "takeover"}),
    "loosens": lambda steps: steps[0].update(retry={"attempts_max": 50}),
}
"""What makes an order of steps unsound, by the rule that says so."""


def _sound() -> list[dict[str, Any]]:
    def step(name: str, command: str) -> dict[str, Any]:
        return {"id": name, "command": command, "with": {"text": "${input.text}"}, "key": f"{name}:${{input.id}}"}

    return [step("m", "alpha.make_page"), step("p", "alpha.publish"), step("n", "beta.notify")]


@pytest.mark.parametrize("rule", sorted(MUTATIONS))
def test_an_unsound_document_is_refused(rule: str) -> None:
    """What would be unsafe to run never becomes a case.

    Requirements: S2
    """
    rng = random.Random(1)
    assert not faults_of(document_of(rng, "flow", _sound()))
    steps = _sound()
    MUTATIONS[rule](steps)
    assert rule in {fault.rule for fault in faults_of(document_of(rng, "flow", steps))}


def test_steps_in_any_order_are_refused_or_sound() -> None:
    """The linter tells apart what was thrown together; what passes is what the simulation runs.

    Requirements: S2
    """
    refused = passed = 0
    for number in range(150):
        rng = random.Random(f"any {number}")
        steps = (thrown, composed)[number % 2](rng)
        rng.shuffle(steps)
        found = faults_of(document_of(rng, "flow", steps))
        refused, passed = refused + bool(found), passed + (not found)
    assert refused > 30 and passed > 10, (refused, passed)
    assert all(not faults_of(legal(number)) for number in range(20))
