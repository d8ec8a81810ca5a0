"""One loop of one service on the real database and the real broker, with a handler that only notes what it hears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.topology import CONSUMERS, event_subject
from trueup_common.runtime.clock import RealSchedule, real_now
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.host import Loop
from trueup_common.runtime.mail import MailTransaction
from trueup_common.runtime.ports import Moment

EVENTS_CONSUMER = next(consumer for consumer in CONSUMERS if consumer.durable == "orchestrator-events")
SERVICE = "orchestrator"


class NotingTransaction(MailTransaction):
    """The orchestrator's mail, and one write of its own."""

    service = SERVICE

    async def note(self, text: str) -> None:
        await self.connection.execute("INSERT INTO note (text) VALUES ($1)", text)


Before = Callable[[NotingTransaction, Message], Awaitable[None]]


@dataclass
class NotingHandler:
    """Notes each message; `before` may do something with the transaction first, or refuse."""

    before: Before | None = None
    inbox: bool = True
    heard: list[str] = field(default_factory=list)

    async def handle(self, tx: NotingTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        for message in messages:
            if self.before is not None:
                await self.before(tx, message)
            await tx.note(message.id)
        return []

    async def settled(self, messages: Sequence[Message]) -> None:
        self.heard += [message.id for message in messages]


class Silent:
    """A publisher for a loop that has nothing to say."""

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        assert not outgoing


class Named:
    """A source that is only a name."""

    name = EVENTS_CONSUMER.durable

    async def fetch(self, limit: int) -> Sequence[Any]:
        return []


class ListDelivery:
    """A delivery whose fate can be read off."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.fate = ""

    async def ack(self) -> None:
        self.fate = "ack"

    async def nak(self, delay_seconds: float) -> None:
        self.fate = "nak"

    async def term(self) -> None:
        self.fate = "term"


def event(message_id: str, tenant: str = "acme", data: bytes = b"{}") -> Message:
    """An event of the gateway that the orchestrator's consumer takes."""
    return Message(
        id=message_id,
        type="Noted",
        subject=event_subject("gateway", "approval", tenant),
        tenant=tenant,
        source="gateway",
        time=real_now(),
        data=data,
    )


def make_loop(database: Database, handler: NotingHandler, source: Any = None) -> Loop[NotingTransaction]:
    """The one loop over this handler."""
    return Loop(
        source=source or Named(),
        store=SqlStore(database, NotingTransaction),
        handler=handler,
        publisher=Silent(),
        crash=RealCrashPoints(),
        schedule=RealSchedule(),
    )


async def values(database: Database, query: str) -> list[Any]:
    """The first column of a query."""
    async with database.connection() as connection:
        return [record[0] for record in await connection.fetch(query)]
