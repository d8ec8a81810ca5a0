"""Ports: what the loop needs from the outside. Production gives it PostgreSQL and NATS, the simulation a fake world.

Nothing behind these ports may be awaited except through them: that is what lets one seed drive every interleaving.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.shape import record


@record
class Moment:
    """The time of a batch, read once with its claim: business time for deadlines and waits, real time for leases."""

    business: datetime
    real: datetime
    asked_at_seconds: float | None = None
    """This process's monotonic clock before the time was asked for. Whoever counts on from `real` counts from here: a
    process that was paused in between must not take the pause as time that it still has."""
    presumed: bool = False
    """True where nobody was asked: the time is counted on from what the database said a moment ago, and stored rows are
    taken to be as this process knows them. The save checks that; where it is not so, the batch runs again, and asks."""
    repeated: bool = False
    """True where the same batch was tried before and not kept. Who presumed something about stored rows, for the save
    to check, looks at them now."""


class StoreBusy(Exception):
    """The transaction did not happen for a passing reason (deadlock, serialization, lost session, database down).

    The loop repeats the whole transaction; it never counts as a delivery.
    """


class VersionConflict(StoreBusy):
    """Another replica moved the same row first: the loser reloads and decides again."""


class Transaction(Protocol):
    """One local transaction of a service, as the loop sees it. Services extend it with their own loads and saves."""

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        """Put ids into the inbox; answer the moment and the ids that are new. With no ids: only the moment."""
        ...

    def presume(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]] | None:
        """The same without asking: all ids are taken for new, which the save checks. None where the time is not known.

        Where an id is not new, the transaction ends with VersionConflict.
        """
        ...

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        """Put durable messages into the outbox of this transaction."""
        ...

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        """Keep a message that cannot be processed, with its bytes and reason."""
        ...

    async def count_failure(self, consumer: str, message_id: str) -> int:
        """Count a failure of one message alone; answers how many there were."""
        ...


T_co = TypeVar("T_co", bound=Transaction, covariant=True)
T_contra = TypeVar("T_contra", bound=Transaction, contravariant=True)


class Store(Protocol[T_co]):
    """Opens transactions. Leaving the block normally commits; StoreBusy tells that nothing was kept."""

    def transaction(self) -> AbstractAsyncContextManager[T_co]:
        """A new transaction."""
        ...


class Delivery(Protocol):
    """One message as delivered."""

    @property
    def message(self) -> Message:
        """The message."""
        ...

    async def ack(self) -> None:
        """Settle it. A late ack of an expired delivery harms nothing: fencing is in the database."""
        ...

    async def nak(self, delay_seconds: float) -> None:
        """Hand it back, to come again after a short delay."""
        ...

    async def term(self) -> None:
        """Take it out of delivery for good (only after quarantine is committed)."""
        ...


class Source(Protocol):
    """Where batches come from: a durable consumer, due rows, or finished attempts."""

    @property
    def name(self) -> str:
        """Consumer name: the inbox's namespace and the prefix of crash points."""
        ...

    async def fetch(self, limit: int) -> Sequence[Delivery]:
        """The next batch; waits until there is one. Empty after a bounded wait."""
        ...


class Publisher(Protocol):
    """Sends what was committed."""

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        """Publish with confirmation and remember which were confirmed; never raises for a broker that is away.

        What is not confirmed stays in the outbox and is sent by the relay.
        """
        ...


class Handler(Protocol[T_contra]):
    """A service's reaction to messages: load, decide (pure), save; the loop commits, publishes and acks."""

    @property
    def inbox(self) -> bool:
        """True where duplicates are kept out by the inbox, False where versions do it."""
        ...

    async def handle(self, tx: T_contra, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """React to messages inside the transaction; answers what is to be sent."""
        ...

    async def settled(self, messages: Sequence[Message]) -> None:
        """After commit, publish and ack: act (an adapter sends here). A crash before it is recovered from the store."""
        ...


class Foreseeing(ABC):
    """A handler that says before the claim what it will ask the store for, so that one round trip serves both.

    It is a saving and nothing else: whoever asks for something that was not foreseen gets it all the same.
    """

    @abstractmethod
    def foresee(self, tx: Any, messages: Sequence[Message]) -> bool:
        """Tell the transaction. Unreadable messages are passed over: `handle` deals with them.

        True where these messages need no answer at all: what they presume of the store, the save checks (ADR 0037).
        """


class CrashPoints(Protocol):
    """Named points at which a test may kill the process."""

    def reach(self, point: str) -> None:
        """Pass a point, or die there."""
        ...


class Watch(Protocol):
    """Looks on where work is traced; a loop without one does nothing for it."""

    def now(self) -> int:
        """The present instant, for nothing but this watch."""
        ...

    def processed(
        self, messages: Sequence[Message], begun: int, committed: int, error: BaseException | None = None
    ) -> None:
        """Messages from delivery to ack. `committed` is 0 where nothing was."""
        ...

    def sent(self, messages: Sequence[Message], begun: int, committed: int) -> None:
        """Messages that time, not a message, gave rise to."""
        ...


class Schedule(Protocol):
    """Waiting between repetitions."""

    async def pause(self, seconds: float) -> None:
        """Wait real time."""
        ...
