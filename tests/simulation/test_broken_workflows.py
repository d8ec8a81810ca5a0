"""Rules of workflows broken by hand: some schedule finds each of them, so the invariants are not idle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.broken import Break, first_bite, resend_what_was_sent
from trueup_common.contracts.states import InstanceStatus
from trueup_common.contracts.workflow import StepOutcome, StepPhase
from trueup_orchestrator import desk
from trueup_orchestrator.core import decide, obligations, saga, status, steps, undo, waits
from trueup_orchestrator.core.recovery import Pivot

BITES_WITHIN = 150
"""How many seeds a broken variant may survive."""


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


BROKEN: dict[str, tuple[Break, str | None, int]] = {
    "compensate_after_the_pivot": (_compensate_after_the_pivot, "undo", 4),
    "undo_beside_the_unknown": (_undo_beside_the_unknown, "blind", 23),
    "undo_in_the_order_of_doing": (_undo_in_the_order_of_doing, "undo", 0),
    "undo_what_was_there_before": (_undo_what_was_there_before, "undo", 90),
    "ignore_the_approved_hash": (_ignore_the_approved_hash, "impatient", 4),
    "count_an_expired_approval": (_count_an_expired_approval, None, 17),
    "cancel_without_a_fence": (_cancel_without_a_fence, "refusals", 5),
    "lose_an_early_event": (_lose_an_early_event, None, 5),
    "release_locks_early": (_release_locks_early, None, 6),
    "go_on_while_paused": (_go_on_while_paused, None, 44),
    "end_while_something_is_out": (_end_while_something_is_out, None, 1),
    "owe_nothing_for_a_case": (_owe_nothing_for_a_case, None, 1),
    "go_on_after_a_rejection": (_go_on_after_a_rejection, None, 0),
    "forget_what_is_waited_for": (_forget_what_is_waited_for, None, 0),
    "name_no_approval": (_name_no_approval, None, 46),
    "forget_the_budget": (_forget_the_budget, None, 15),
    "resend_what_was_sent": (resend_what_was_sent, "orphan", 33),
}
"""What is broken, the misfortunes that this rule exists for (None: any), and the seed to look at first."""


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule of workflows that is broken by hand is found by some schedule, so the invariants are not idle.

    Requirements: P1
    """
    breaking, theme, likely = BROKEN[name]
    breaking(monkeypatch)
    assert first_bite(BITES_WITHIN, theme, likely, sagas=True), f"{name} survived {BITES_WITHIN} seeds"
