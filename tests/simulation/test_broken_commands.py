"""Rules of single commands broken by hand: some schedule finds each of them, so the invariants are not idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.broken import Break, first_bite, resend_what_was_sent
from tests.simulation.memory import MemoryTransaction
from trueup_adapters import handler as adapter_handler
from trueup_adapters.core import effect, fold
from trueup_adapters.core.effect import Action
from trueup_common.contracts.observation import Finding
from trueup_common.runtime.host import Loop
from trueup_common.runtime.ports import Delivery
from trueup_common.runtime.timers import Relay
from trueup_orchestrator.core import receipts
from trueup_orchestrator.core.operation import Trigger
from trueup_reconciler.core import settle

BITES_WITHIN = 300
"""How many seeds a broken variant may survive."""


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


def _let_two_write_one_object(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adapter_handler, "_object", lambda task, declaration: None)


BROKEN: dict[str, tuple[Break, str | None, int]] = {
    "resend_what_was_sent": (resend_what_was_sent, None, 7),
    "drop_the_fence_check": (_drop_the_fence_check, "orphan", 0),
    "missing_without_proof": (_missing_without_proof, "blind", 2),
    "missing_too_early": (_missing_too_early, "late", 0),
    "trust_an_old_look": (_trust_an_old_look, "late", 0),
    "ack_before_commit": (_ack_before_commit, "crashes", 0),
    "ignore_the_inbox": (_ignore_the_inbox, "echo", 0),
    "send_before_the_commit": (_send_before_the_commit, None, 1),
    "never_relay": (_never_relay, None, 0),
    "repeat_what_is_unknown": (_repeat_what_is_unknown, None, 17),
    "let_two_write_one_object": (_let_two_write_one_object, "writers", 4),
}
"""What is broken, the misfortunes that this rule exists for (None: any), and the seed to look at first."""


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule that is broken by hand is found by some schedule, so the invariants are not idle.

    Requirements: P1
    """
    breaking, theme, likely = BROKEN[name]
    breaking(monkeypatch)
    assert first_bite(BITES_WITHIN, theme, likely, sagas=False), f"{name} survived {BITES_WITHIN} seeds"
