"""The order of the one loop, of ticks and of the relay, on ports that write down what happens to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.host import CONFLICTS_MAX, FAILURES_MAX, Loop
from trueup_common.runtime.ports import Foreseeing, Moment, StoreBusy, VersionConflict
from trueup_common.runtime.timers import DueLoop, Relay

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def message(message_id: str) -> Message:
    return Message(
        id=message_id,
        type="Noted",
        subject="trueup.evt.gateway.noted.acme",
        tenant="acme",
        source="gateway",
        time=NOW,
        data=b"{}",
    )


@dataclass
class Notebook:
    """A store, its transactions, a publisher and a handler; `log` is what happened, in order."""

    name: str = "noted"
    inbox: bool = True
    log: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    poison: frozenset[str] = frozenset()
    contradictory: frozenset[str] = frozenset()
    busy_left: int = 0
    unsent_ids: list[str] = field(default_factory=list)
    confirms: bool = True
    confirmed: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    connected: bool = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Notebook]:
        before = set(self.known), dict(self.failures), list(self.kept), list(self.marked)
        try:
            yield self
            if self.busy_left:
                self.busy_left -= 1
                raise StoreBusy("asked to")
        except BaseException:
            self.known, self.failures, self.kept, self.marked = before
            self.log.append("rollback")
            raise
        self.log.append("commit")

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        fresh = frozenset(message_ids) - self.known
        self.known |= fresh
        return Moment(business=NOW, real=NOW), fresh

    def presume(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]] | None:
        self.log.append("presume")
        return Moment(business=NOW, real=NOW, presumed=True), frozenset(message_ids)

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        self.log.append(f"post {' '.join(item.message.id for item in outgoing)}")

    async def count_failure(self, consumer: str, message_id: str) -> int:
        self.failures[message_id] = self.failures.get(message_id, 0) + 1
        return self.failures[message_id]

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        self.kept.append(message.id)

    async def unsent(self, older_than_seconds: float, limit: int) -> list[Message]:
        return [message(message_id) for message_id in self.unsent_ids]

    async def mark_sent(self, message_ids: Sequence[str]) -> None:
        self.marked += message_ids

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        ids = [item.message.id for item in outgoing]
        self.log.append(f"publish {' '.join(ids)}")
        self.confirmed += ids if self.confirms else ids[:1]

    def take_confirmed(self) -> list[str]:
        taken, self.confirmed = self.confirmed, []
        return taken

    async def fetch(self, limit: int) -> Sequence[Noted]:
        return []

    async def handle(self, tx: Notebook, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        for item in messages:
            if item.id in self.poison:
                raise ZeroDivisionError(item.id)
        if self.contradictory and self.contradictory <= {item.id for item in messages}:
            raise VersionConflict("moved first")
        self.log.append(f"handle {' '.join(item.id for item in messages)}")
        return [Outgoing(message(f"{item.id}-answer")) for item in messages]

    async def settled(self, messages: Sequence[Message]) -> None:
        self.log.append(f"act {' '.join(item.id for item in messages)}")

    def reach(self, point: str) -> None:
        """No crash here."""

    async def pause(self, seconds: float) -> None:
        self.log.append("pause")

    def loop(self) -> Loop[Notebook]:
        return Loop(source=self, store=self, handler=self, publisher=self, crash=self, schedule=self)

    def deliver(self, *ids: str) -> list[Noted]:
        return [Noted(message(message_id), self) for message_id in ids]


@dataclass
class Noted:
    """A delivery that writes down its fate."""

    message: Message
    book: Notebook

    async def ack(self) -> None:
        self.book.log.append(f"ack {self.message.id}")

    async def nak(self, delay_seconds: float) -> None:
        self.book.log.append(f"nak {self.message.id}")

    async def term(self) -> None:
        self.book.log.append(f"term {self.message.id}")


async def test_commit_publish_ack_then_act() -> None:
    """State and outgoing messages commit first, then they are published, then the delivery is acked, then one acts.

    Requirements: M1
    """
    book = Notebook()
    await book.loop().process(book.deliver("a", "b"))
    assert book.log == [
        "handle a b",
        "post a-answer b-answer",
        "commit",
        "publish a-answer b-answer",
        "ack a",
        "ack b",
        "act a b",
    ]


async def test_what_the_inbox_knows_is_only_acked() -> None:
    """A duplicate, in one batch or after a redelivery, is handled once and settled each time.

    Requirements: M1, I1
    """
    book = Notebook()
    loop = book.loop()
    await loop.process(book.deliver("a", "a", "b"))
    assert [line for line in book.log if line.startswith("handle")] == ["handle a b"]
    book.log.clear()
    await loop.process(book.deliver("a", "c"))
    assert [line for line in book.log if line.startswith(("handle", "ack"))] == ["handle c", "ack a", "ack c"]


async def test_a_busy_store_is_repeated_and_counts_no_failure() -> None:
    """The whole transaction runs again until it commits; nothing is published or settled before that.

    Requirements: M2
    """
    book = Notebook(busy_left=2)
    await book.loop().process(book.deliver("a"))
    assert [line for line in book.log if line.startswith(("rollback", "commit", "publish", "ack", "nak", "term"))] == [
        "rollback",
        "rollback",
        "commit",
        "publish a-answer",
        "ack a",
    ]
    assert book.failures == {} and book.kept == []


async def test_poison_fails_alone_and_is_kept_at_the_limit() -> None:
    """Its neighbours are handled at once; it is handed back, counted, and at the limit kept and never delivered again.

    Requirements: M3
    """
    book = Notebook(poison=frozenset({"bad"}))
    loop = book.loop()
    await loop.process(book.deliver("a", "bad", "b"))
    assert [line for line in book.log if line.startswith(("ack", "nak", "term"))] == ["ack a", "nak bad", "ack b"]
    for _ in range(FAILURES_MAX - 1):
        await loop.process(book.deliver("bad"))
    assert book.log[-1] == "term bad" and book.kept == ["bad"]
    assert book.failures == {"bad": FAILURES_MAX}


class Presuming(Foreseeing):
    """A handler that presumes, and is right or not."""

    inbox = True

    def __init__(self, book: Notebook, *, right: bool) -> None:
        self.book = book
        self.right = right

    def foresee(self, tx: Notebook, messages: Sequence[Message]) -> bool:
        return True

    async def handle(self, tx: Notebook, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        if moment.presumed and not self.right:
            raise VersionConflict("it stands otherwise")
        assert moment.repeated is not self.right
        return await self.book.handle(tx, moment, messages)

    async def settled(self, messages: Sequence[Message]) -> None:
        await self.book.settled(messages)


@pytest.mark.parametrize("right", [True, False])
async def test_who_presumed_wrongly_asks_at_once(*, right: bool) -> None:
    """What is presumed needs no claim. Where it is not so, the batch runs again, with one, without a pause, and a store
    that said so is not called busy.

    Requirements: M2, B3
    """
    book = Notebook()
    loop = book.loop()
    loop.handler = Presuming(book, right=right)
    await loop.process(book.deliver("a"))
    again = [] if right else ["rollback"]
    assert book.log == [
        "presume", *again, "handle a", "post a-answer", "commit", "publish a-answer", "ack a", "act a"
    ]  # fmt: skip
    assert (loop.statistics.presumptions_count, loop.statistics.busy_count) == (0 if right else 1, 0)


async def test_a_batch_that_loses_every_race_is_taken_apart() -> None:
    """What one batch cannot say at once holds up nothing behind it: its messages run one by one; one that loses alone
    as often is counted like any that fails.

    Requirements: M2, M3
    """
    book = Notebook(contradictory=frozenset({"a", "b"}))
    loop = book.loop()
    await loop.process(book.deliver("a", "b", "c"))
    assert [line for line in book.log if line.startswith("ack")] == ["ack a", "ack b", "ack c"]
    assert book.log.count("pause") == CONFLICTS_MAX - 1 and book.failures == {}
    alone = Notebook(contradictory=frozenset({"a"}))
    await alone.loop().process(alone.deliver("a"))
    assert alone.log[-1] == "nak a" and alone.failures == {"a": 1}


async def test_a_tick_commits_then_publishes() -> None:
    """What time brings keeps the order of the loop; a tick whose commit fails publishes nothing.

    Requirements: M1
    """
    book = Notebook()

    async def tick(tx: Notebook, moment: Moment) -> Sequence[Outgoing]:
        return [Outgoing(message("due"))]

    loop = DueLoop(name="due", store=book, tick=tick, publisher=book, crash=book)
    assert await loop.once() == 1
    assert book.log == ["post due", "commit", "publish due"]
    book.log.clear()
    book.busy_left = 1
    try:
        await loop.once()
    except StoreBusy:
        book.log.append("busy")
    assert book.log == ["post due", "rollback", "busy"]


async def test_the_relay_marks_only_what_the_broker_confirmed() -> None:
    """Published without a confirmation, a message stays in the outbox and is sent again.

    Requirements: M1, M2
    """
    book = Notebook(unsent_ids=["x", "y"], confirms=False)
    relay = Relay(book, book, book)  # type: ignore[arg-type]
    await relay._send_unsent()
    assert book.log == ["publish x y", "commit"] and book.marked == ["x"]


async def test_a_busy_store_leaves_the_marks_for_later() -> None:
    """What the broker confirmed and no transaction could mark is marked by the next one, not forgotten.

    Requirements: M2
    """
    book = Notebook(confirmed=["x"], busy_left=1)
    relay = Relay(book, book, book)  # type: ignore[arg-type]
    relay._ticks = 2
    await relay.once()
    assert book.marked == [] and book.confirmed == ["x"]
    await relay.once()
    assert book.marked == ["x"]
