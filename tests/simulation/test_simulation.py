"""The simulation in the test suite: many seeds hold, a seed replays exactly, and broken variants are caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.memory import MemoryTransaction
from tests.simulation.run import run_seed, run_seeds
from trueup_adapters import handler as adapter_handler
from trueup_adapters.core import effect, fold
from trueup_adapters.core.effect import Action, Asked, Standing
from trueup_common.contracts.observation import Finding
from trueup_common.runtime.host import Loop
from trueup_common.runtime.ports import Delivery
from trueup_common.runtime.timers import Relay
from trueup_orchestrator.core import receipts
from trueup_orchestrator.core.operation import Trigger
from trueup_reconciler.core import settle

SEEDS = 100
BITES_WITHIN = 300
"""How many seeds a broken variant may survive."""


def test_every_seed_holds_the_invariants_and_comes_to_rest() -> None:
    """A hundred schedules of drops, duplicates, delays, crashes, pauses, outages and clock jumps over the whole plane.

    Requirements: P1, P3, I1, X4, M1
    """
    summary = run_seeds(0, SEEDS)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    assert summary.ends["SUCCESS"] > SEEDS
    assert summary.checks["transmitted"] > SEEDS


def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same trace, step by step; another seed another one.

    Requirements: P1
    """
    for seed in range(5):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace_hash == second.trace_hash
        assert first.trace == second.trace
    assert run_seed(0).trace_hash != run_seed(1).trace_hash


Break = Callable[[pytest.MonkeyPatch], None]


def resend_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    table = dict(effect.TABLE)
    for standing in (Standing.SENT, Standing.UNKNOWN):
        table[standing, Asked.NEWER] = table[standing, Asked.SAME] = Action.SEND
    patch.setattr(effect, "TABLE", table)


def _drop_the_fence_check(patch: pytest.MonkeyPatch) -> None:
    def decide(row: Any, fence: int, **more: Any) -> Action:
        return effect.decide(row, fence if row is None else max(fence, row.fence + 1), **more)

    patch.setattr(adapter_handler, "decide", decide)


def _missing_without_proof(patch: pytest.MonkeyPatch) -> None:
    def believed(row: Any, answer: Any) -> Finding:
        finding: Finding = answer.finding
        return finding

    def judged(row: Any, look: Any, finding: Finding, declaration: Any, now: Any) -> Finding:
        return finding

    patch.setattr(settle, "judge", believed)
    patch.setattr(fold, "judge", judged)


def _missing_too_early(patch: pytest.MonkeyPatch) -> None:
    real = fold.judge

    def early(row: Any, look: Any, finding: Finding, declaration: Any, now: Any) -> Finding:
        return real(row.evolve(late_until=None), look, finding, declaration, now)

    patch.setattr(fold, "judge", early)
    judge = settle.judge

    def hasty(row: Any, answer: Any) -> Finding:
        return judge(row.evolve(late_until=None), answer.evolve(provable_at=None))

    patch.setattr(settle, "judge", hasty)


def _trust_an_old_look(patch: pytest.MonkeyPatch) -> None:
    real = fold.judge

    def late(row: Any, look: Any, finding: Finding, declaration: Any, now: Any) -> Finding:
        return real(row, replace(look, begun_at=now), finding, declaration, now)

    patch.setattr(fold, "judge", late)


def _ack_before_commit(patch: pytest.MonkeyPatch) -> None:
    process = Loop.process

    async def eager(self: Loop[Any], batch: Sequence[Delivery]) -> None:
        for delivery in batch:
            await delivery.ack()
        await process(self, batch)

    patch.setattr(Loop, "process", eager)


def _ignore_the_inbox(patch: pytest.MonkeyPatch) -> None:
    claim = MemoryTransaction.claim

    async def forgetful(self: MemoryTransaction, consumer: str, message_ids: Sequence[str]) -> Any:
        moment, _ = await claim(self, consumer, [])
        return moment, frozenset(message_ids)

    patch.setattr(MemoryTransaction, "claim", forgetful)


def _send_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    handle = adapter_handler.TaskHandler.handle

    async def hasty(self: Any, tx: Any, moment: Any, messages: Any) -> Any:
        outgoing = await handle(self, tx, moment, messages)
        await self.settled(messages)
        return outgoing

    patch.setattr(adapter_handler.TaskHandler, "handle", hasty)


def _never_relay(patch: pytest.MonkeyPatch) -> None:
    async def idle(self: Relay) -> None:
        self._ticks += 1

    patch.setattr(Relay, "once", idle)


def _repeat_what_is_unknown(patch: pytest.MonkeyPatch) -> None:
    def repeat(fold_: Any, receipt: Any, declaration: Any, code: str, detail: str) -> None:
        if fold_.knows(Trigger.REJECT_TRANSIENT):
            fold_.fail(Trigger.REJECT_TRANSIENT, None, code, detail)
            receipts.schedule(fold_, declaration)

    patch.setattr(receipts, "leave_unknown", repeat)


BROKEN: dict[str, tuple[Break, str | None]] = {
    "resend_what_was_sent": (resend_what_was_sent, None),
    "drop_the_fence_check": (_drop_the_fence_check, "orphan"),
    "missing_without_proof": (_missing_without_proof, "blind"),
    "missing_too_early": (_missing_too_early, "late"),
    "trust_an_old_look": (_trust_an_old_look, "late"),
    "ack_before_commit": (_ack_before_commit, "crashes"),
    "ignore_the_inbox": (_ignore_the_inbox, "echo"),
    "send_before_the_commit": (_send_before_the_commit, None),
    "never_relay": (_never_relay, None),
    "repeat_what_is_unknown": (_repeat_what_is_unknown, None),
}
"""What is broken, and the misfortunes that this rule exists for (None: any)."""


def first_bite(first: int, most: int, theme: str | None) -> tuple[int, str] | None:
    """The first seed that a variant does not survive."""
    for seed in range(first, first + most):
        result = run_seed(seed, theme, sagas=False)
        if result.violation is not None:
            return seed, result.violation
    return None


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule that is broken by hand is found by some schedule, so the invariants are not idle.

    Requirements: P1
    """
    breaking, theme = BROKEN[name]
    breaking(monkeypatch)
    found = first_bite(0, BITES_WITHIN, theme)
    assert found is not None, f"{name} survived {BITES_WITHIN} seeds"
