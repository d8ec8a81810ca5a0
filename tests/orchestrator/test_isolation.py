"""One case that cannot be decided never keeps time from coming to all others, and it gets an owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.ports import Moment
from trueup_common.runtime.timers import DueLoop
from trueup_orchestrator.isolation import ALONE_TICKS, LEFT_OUT, Isolation

T0 = datetime(2026, 3, 1, tzinfo=UTC)


class FakeTx:
    """Due cases in memory; one of them cannot be decided."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.done: list[str] = []

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        return Moment(self.store.now, self.store.now), frozenset()

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        """Nothing is sent."""


class FakeStore:
    """A store whose commit takes decided cases off the due list."""

    def __init__(self, due: list[str]) -> None:
        self.now = T0
        self.due = due
        self.owned: list[Message] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        tx = FakeTx(self)
        yield tx
        self.due = [case for case in self.due if case not in tx.done]


class NoCrash:
    def reach(self, point: str) -> None:
        """Go on."""


async def test_all_others_are_decided_while_one_fails() -> None:
    """The poison case is tried alone, left out, quarantined once, and tried again later. Requirements: M3"""
    store, isolation = FakeStore(["a", "b", "poison", "c", "d"]), Isolation(200)
    tried: list[str] = []

    async def tick(tx: FakeTx, moment: Moment) -> Sequence[Outgoing]:
        store.owned += [message for message, _ in isolation.owed("orchestrator-due", moment.real)]
        limit = isolation.limit(moment.real)
        chosen = [case for case in store.due if case not in isolation.left_out][:limit]
        isolation.taken((case, "acme") for case in chosen)
        for case in chosen:
            tried.append(case)
            if case == "poison":
                raise ValueError("too large")
            tx.done.append(case)
        return ()

    loop: DueLoop[Any] = DueLoop(
        name="orchestrator-due",
        store=store,  # type: ignore[arg-type]
        tick=tick,
        publisher=None,  # type: ignore[arg-type]
        crash=NoCrash(),
        interval_seconds=0.001,
        failed=isolation.failed,
    )
    running = asyncio.create_task(loop.run())

    async def until(fits: Any) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not fits():
                await asyncio.sleep(0.001)

    await until(lambda: store.due == ["poison"] and store.owned)
    assert tried.count("poison") == 2, "once among all, once alone"
    store.due.append("late")
    await until(lambda: store.due == ["poison"])
    assert len(store.owned) == 1 and store.owned[0].tenant == "acme" and b"poison" in store.owned[0].data
    store.now += LEFT_OUT + timedelta(seconds=1)
    await until(lambda: tried.count("poison") > 2)
    loop.stopping = True
    await running
    assert loop.failures_count >= 3


def test_after_a_while_everything_is_taken_together_again() -> None:
    """Isolation costs only as long as there is a reason for it."""
    isolation = Isolation(200)
    isolation.limit(T0)
    isolation.taken([("a", "acme"), ("b", "acme")])
    isolation.failed(ValueError("x"))
    assert [isolation.limit(T0) for _ in range(ALONE_TICKS + 1)] == [1] * ALONE_TICKS + [200]
    assert isolation.left_out == []
