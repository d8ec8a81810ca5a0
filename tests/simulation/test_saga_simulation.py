"""Workflows in the simulation: random sound documents through every misfortune, and broken variants that are caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.documents import composed, document_of, faults_of, legal, thrown
from tests.simulation.run import run_seed, run_seeds
from tests.simulation.test_simulation import Break, resend_what_was_sent
from trueup_common.contracts.states import InstanceStatus
from trueup_common.contracts.workflow import StepOutcome, StepPhase
from trueup_orchestrator import desk
from trueup_orchestrator.core import decide, obligations, saga, status, steps, undo, waits
from trueup_orchestrator.core.recovery import Pivot

SEEDS = 80
BITES_WITHIN = 150
"""How many seeds a broken variant may survive."""


def test_every_workflow_ends_well_or_in_a_persons_hands() -> None:
    """Random sound documents, people who cancel, pause, approve late or never, and every misfortune of the plane.

    Requirements: S1, S3, S4, S5, X6, X7, P3
    """
    summary = run_seeds(0, SEEDS, sagas=True)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    ends = summary.coverage["ends"]
    for end in (InstanceStatus.CLOSED, InstanceStatus.COMPENSATED, InstanceStatus.CANCELLED):
        assert ends[end.value] > 5, ends
    assert ends[InstanceStatus.HUMAN_TAKEOVER.value] > 5, ends


def test_a_workflow_replays_exactly() -> None:
    """The same seed gives the same trace, with people and workflows in it.

    Requirements: P1
    """
    for seed in range(4):
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


def _compensate_after_the_pivot(patch: pytest.MonkeyPatch) -> None:
    for module in (saga, undo):
        patch.setattr(module, "pivot_of_all", lambda rows: Pivot.NO)


def _undo_beside_the_unknown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undo, "blocks_undoing", lambda row: False)


def _undo_in_the_order_of_doing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undo, "sorted", lambda rows, *, key, reverse: sorted(rows, key=key), raising=False)


def _undo_what_was_there_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undo, "take", lambda known, source: True)


def _ignore_the_approved_hash(patch: pytest.MonkeyPatch) -> None:
    real = waits.fold_approval

    def trusting(fold: Any, decided: Any, cause: str | None) -> None:
        state = fold.steps.get(decided.step_id)
        real(fold, decided.evolve(content_sha256=state.content_sha256 if state else ""), cause)

    patch.setattr(decide, "fold_approval", trusting)


def _count_an_expired_approval(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(waits._PHASE_OF_DECISION, "expired", (StepPhase.DONE, None))


def _cancel_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saga, "fence", lambda fold, command_id, reason: None)


def _lose_an_early_event(patch: pytest.MonkeyPatch) -> None:
    real = saga.open_wait

    def deaf(fold: Any, step: Any) -> None:
        held, fold.instance = fold.instance.held, fold.instance.evolve(held=[])
        real(fold, step)
        fold.instance = fold.instance.evolve(held=held)

    patch.setattr(saga, "open_wait", deaf)


def _release_locks_early(patch: pytest.MonkeyPatch) -> None:
    early = {InstanceStatus.COMPENSATING, InstanceStatus.VERIFYING, InstanceStatus.HUMAN_TAKEOVER}
    patch.setattr(desk, "INSTANCE_TERMINAL", desk.INSTANCE_TERMINAL | early)


def _go_on_while_paused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saga, "hold", lambda fold: None)


def _end_while_something_is_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(status, "on_its_way", lambda row: False)


def _owe_nothing_for_a_case(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(obligations, "_of_case", lambda fold, demanded: None)


def _go_on_after_a_rejection(patch: pytest.MonkeyPatch) -> None:
    rejected = (StepPhase.DONE, StepOutcome.REJECTED)
    patch.setitem(waits._PHASE_OF_DECISION, "rejected", rejected)


def _forget_what_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saga, "describe_wait", lambda fold: None)


def _name_no_approval(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "_approval_of", lambda fold, step_id: None)


def _forget_the_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saga, "actions_left", lambda fold, *, beginning: True)


BROKEN: dict[str, tuple[Break, str | None]] = {
    "compensate_after_the_pivot": (_compensate_after_the_pivot, "undo"),
    "undo_beside_the_unknown": (_undo_beside_the_unknown, "blind"),
    "undo_in_the_order_of_doing": (_undo_in_the_order_of_doing, "undo"),
    "undo_what_was_there_before": (_undo_what_was_there_before, "undo"),
    "ignore_the_approved_hash": (_ignore_the_approved_hash, "impatient"),
    "count_an_expired_approval": (_count_an_expired_approval, None),
    "cancel_without_a_fence": (_cancel_without_a_fence, "refusals"),
    "lose_an_early_event": (_lose_an_early_event, None),
    "release_locks_early": (_release_locks_early, None),
    "go_on_while_paused": (_go_on_while_paused, None),
    "end_while_something_is_out": (_end_while_something_is_out, None),
    "owe_nothing_for_a_case": (_owe_nothing_for_a_case, None),
    "go_on_after_a_rejection": (_go_on_after_a_rejection, None),
    "forget_what_is_waited_for": (_forget_what_is_waited_for, None),
    "name_no_approval": (_name_no_approval, None),
    "forget_the_budget": (_forget_the_budget, None),
    "resend_what_was_sent": (resend_what_was_sent, "orphan"),
}
"""What is broken, and the misfortunes that this rule exists for (None: any)."""


def first_bite(most: int, theme: str | None) -> tuple[int, str] | None:
    """The first seed that a variant does not survive."""
    for seed in range(most):
        result = run_seed(seed, theme, sagas=True)
        if result.violation is not None:
            return seed, result.violation
    return None


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule of workflows that is broken by hand is found by some schedule, so the invariants are not idle.

    Requirements: P1
    """
    breaking, theme = BROKEN[name]
    breaking(monkeypatch)
    assert first_bite(BITES_WITHIN, theme) is not None, f"{name} survived {BITES_WITHIN} seeds"
