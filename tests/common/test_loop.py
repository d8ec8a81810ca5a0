"""The one loop against a real database and a real broker: what it promises about commits, duplicates and poison."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import asyncpg
import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer
from tests.servers import Database as PlaneDatabase

from trueup_common.contracts.envelope import Message, Outgoing, headers_of
from trueup_common.contracts.topology import CONSUMERS, event_subject
from trueup_common.runtime import host, timers
from trueup_common.runtime.bus import Bus, BusDelivery, BusPublisher, ConsumerSource
from trueup_common.runtime.clock import RealSchedule, real_now
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.host import FAILURES_MAX, Loop, Unprocessable
from trueup_common.runtime.mail import MailTransaction
from trueup_common.runtime.ports import Moment, StoreBusy, VersionConflict
from trueup_common.runtime.rows import EXPECT
from trueup_common.runtime.tables import mail_tables
from trueup_common.runtime.timers import RELAY_AGE_SECONDS, Relay

CONSUMER = next(consumer for consumer in CONSUMERS if consumer.durable == "orchestrator-events")


class PlannerTransaction(MailTransaction):
    """A service's transaction with one write of its own."""

    service = "orchestrator"

    async def note(self, text: str) -> None:
        await self.connection.execute("INSERT INTO note (text) VALUES ($1)", text)


@dataclass
class NotingHandler:
    """Notes each message and answers it with an event; misbehaves on request."""

    inbox: bool = True
    poison: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    busy_left: int = 0
    slow: frozenset[str] = frozenset()
    """What takes so much of the processor that the database ends the session."""
    spent_seconds: float = 0
    settled_ids: list[str] = field(default_factory=list)

    async def handle(self, tx: PlannerTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        if self.busy_left:
            self.busy_left -= 1
            raise StoreBusy("asked to")
        for message in messages:
            if message.id in self.slow:
                self.spent_seconds += 2 * host.WORK_SECONDS_MAX
                raise StoreBusy("the session stood still for too long")
            if message.id in self.poison:
                raise ZeroDivisionError(message.id)
            if message.id in self.unreadable:
                raise Unprocessable("unreadable")
            await tx.note(message.id)
        return [Outgoing(event(f"{message.id}-answer", "orchestrator", "case")) for message in messages]

    async def settled(self, messages: Sequence[Message]) -> None:
        self.settled_ids += [message.id for message in messages]


@dataclass
class ListDelivery:
    """A delivery whose fate can be read off."""

    message: Message
    fate: str = ""

    async def ack(self) -> None:
        self.fate = "ack"

    async def nak(self, delay_seconds: float) -> None:
        self.fate = "nak"

    async def term(self) -> None:
        self.fate = "term"


def event(message_id: str, service: str = "gateway", kind: str = "grant-refused") -> Message:
    return Message(
        id=message_id,
        type="Noted",
        subject=event_subject(service, kind, "acme"),
        tenant="acme",
        source=service,
        time=real_now(),
        data=b"{}",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


@pytest.fixture
async def database(fresh_database: PlaneDatabase) -> AsyncIterator[Database]:
    metadata = MetaData(schema="orchestrator")
    mail_tables(metadata)
    admin = await asyncpg.connect(fresh_database.admin_url)
    await admin.execute(
        "DROP SCHEMA IF EXISTS orchestrator CASCADE; CREATE SCHEMA orchestrator; CREATE SCHEMA IF NOT EXISTS trueup;"
        "CREATE OR REPLACE FUNCTION trueup.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.now()';"
        f"{EXPECT}"
        "CREATE TABLE orchestrator.note (text text)"
    )
    await admin.close()
    engine = create_async_engine(fresh_database.admin_url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()
    database = await Database.connect(fresh_database.admin_url, schema="orchestrator", size=4)
    yield database
    await database.close()


@pytest.fixture
async def bus(plane_bus: BusServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(plane_bus.url("orchestrator"), service="orchestrator", name="test")
    yield bus
    await bus.close()


class Nowhere:
    """A publisher for a broker that is away: it confirms nothing and does not raise."""

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        return None


class Named:
    """A source that is only a name."""

    name = "orchestrator-events"

    async def fetch(self, limit: int) -> Sequence[ListDelivery]:
        return []


def make_loop(database: Database, handler: NotingHandler) -> Loop[PlannerTransaction]:
    return Loop(
        source=Named(),
        store=SqlStore(database, PlannerTransaction),
        handler=handler,
        publisher=Nowhere(),
        crash=RealCrashPoints(),
        schedule=RealSchedule(),
    )


async def rows(database: Database, query: str) -> list[object]:
    async with database.connection() as connection:
        return [record[0] for record in await connection.fetch(query)]


async def test_effect_history_and_outgoing_commit_together_and_duplicates_do_nothing(database: Database) -> None:
    """A redelivered message, in the same batch or a later one, has no second effect and sends nothing.

    Requirements: M1
    """
    handler = NotingHandler()
    loop = make_loop(database, handler)
    first = [ListDelivery(event("m1")), ListDelivery(event("m1")), ListDelivery(event("m2"))]
    await loop.process(first)
    await loop.process([ListDelivery(event("m1")), ListDelivery(event("m3"))])
    assert await rows(database, "SELECT text FROM note ORDER BY text") == ["m1", "m2", "m3"]
    assert await rows(database, "SELECT message_id FROM outbox ORDER BY id") == ["m1-answer", "m2-answer", "m3-answer"]
    assert [delivery.fate for delivery in first] == ["ack", "ack", "ack"]
    assert loop.statistics.duplicates_count == 2


async def test_one_poison_message_in_a_batch_of_200_is_quarantined_alone(database: Database) -> None:
    """199 neighbours succeed at once; the poison is counted, then kept with its bytes and reason, and announced.

    Requirements: M3
    """
    handler = NotingHandler(poison=frozenset({"m77"}))
    loop = make_loop(database, handler)
    batch = [ListDelivery(event(f"m{number}")) for number in range(200)]
    await loop.process(batch)
    poison = batch[77]
    assert poison.fate == "nak"
    assert {delivery.fate for delivery in batch if delivery is not poison} == {"ack"}
    assert len(await rows(database, "SELECT text FROM note")) == 199
    for _ in range(FAILURES_MAX - 1):
        await loop.process([poison])
    assert poison.fate == "term"
    kept = await rows(database, "SELECT reason FROM quarantine WHERE message_id = 'm77'")
    assert [str(reason).split(" in ")[0] for reason in kept] == ["ZeroDivisionError"]
    announced = await rows(database, "SELECT subject FROM outbox WHERE type = 'MessageQuarantined'")
    assert announced == ["trueup.evt.orchestrator.quarantined.acme"]


async def test_an_unreadable_message_is_quarantined_at_once(database: Database) -> None:
    """Requirements: M3"""
    loop = make_loop(database, NotingHandler(unreadable=frozenset({"m1"})))
    delivery = ListDelivery(event("m1"))
    await loop.process([delivery])
    assert delivery.fate == "term"
    assert len(await rows(database, "SELECT 1 FROM quarantine")) == 1


async def test_a_busy_store_repeats_the_whole_transaction_and_counts_no_failure(database: Database) -> None:
    """Requirements: M2"""
    handler = NotingHandler(busy_left=3)
    loop = make_loop(database, handler)
    delivery = ListDelivery(event("m1"))
    await loop.process([delivery])
    assert delivery.fate == "ack"
    assert loop.statistics.busy_count == 3
    assert await rows(database, "SELECT count(*) FROM delivery_failure") == [0]
    assert await rows(database, "SELECT text FROM note") == ["m1"]


async def test_a_decision_that_takes_the_processor_for_itself_is_isolated_and_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost session is the store's fault, unless the decision itself outlasted it: that would happen again for ever.

    Requirements: M3, E7, T3
    """
    handler = NotingHandler(slow=frozenset({"m1"}))
    monkeypatch.setattr(host, "process_time", lambda: handler.spent_seconds)
    loop = make_loop(database, handler)
    batch = [ListDelivery(event(f"m{number}")) for number in range(3)]
    async with asyncio.timeout(PATIENCE_SECONDS):  # a loop that calls it busy would never end
        await loop.process(batch)
        assert [delivery.fate for delivery in batch] == ["ack", "nak", "ack"]
        for _ in range(FAILURES_MAX - 1):
            await loop.process([batch[1]])
    assert batch[1].fate == "term"
    (reason,) = await rows(database, "SELECT reason FROM quarantine WHERE message_id = 'm1'")
    assert "20 s of the processor" in str(reason)
    assert loop.statistics.busy_count == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_of_two_replicas_with_one_message_one_keeps_what_it_did(database: Database, begun: bool) -> None:
    """Both find the inbox without it; whoever writes second keeps nothing and, asked again, has nothing to do.

    Requirements: M2
    """
    store = SqlStore(database, PlannerTransaction)
    with pytest.raises(VersionConflict, match="inbox"):
        async with store.transaction() as late:
            assert (await late.claim("c", ["m1", "m2"]))[1] == {"m1", "m2"}
            await late.post([Outgoing(event("late"))])
            if begun:
                await late.note("late")
            async with store.transaction() as early:
                assert (await early.claim("c", ["m1"]))[1] == {"m1"}
                await early.post([Outgoing(event("early"))])
                assert not early.connection.begun
    assert await rows(database, "SELECT message_id FROM outbox") == ["early"]
    assert await rows(database, "SELECT text FROM note") == []
    async with store.transaction() as again:
        assert (await again.claim("c", ["m1", "m2"]))[1] == {"m2"}
        assert (await again.claim("other", ["m1"]))[1] == {"m1"}
    assert sorted(await rows(database, "SELECT message_id FROM inbox WHERE consumer = 'c'")) == ["m1", "m2"]


async def test_sessions_that_the_server_kills_are_busy_not_poison(database: Database) -> None:
    """Requirements: M2"""
    store = SqlStore(database, PlannerTransaction)
    with pytest.raises(StoreBusy):
        async with store.transaction() as tx:
            await tx.note("lost")
            pid = await tx.connection.fetchval("SELECT pg_backend_pid()")
            async with database.connection() as other:
                await other.execute("SELECT pg_terminate_backend($1)", pid)
            await tx.note("after")
    assert await rows(database, "SELECT text FROM note") == []
    async with store.transaction() as tx:
        await tx.note("again")
    assert await rows(database, "SELECT text FROM note") == ["again"]


async def test_what_was_committed_but_never_published_reaches_the_stream(database: Database, bus: Bus) -> None:
    """The relay takes what nobody confirmed, and a second relay at the same time sends nothing twice.

    Requirements: M2
    """
    loop = make_loop(database, NotingHandler())
    await loop.process([ListDelivery(event(f"r{number}")) for number in range(5)])
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox_unsent SET created_at = created_at - interval '10 s'")
    store = SqlStore(database, MailTransaction)
    before = (await bus.js.stream_info("EVENTS")).state.messages
    first, second = (Relay(store, BusPublisher(bus), bus) for _ in range(2))
    await asyncio.gather(*(relay.once() for relay in (first, second, first, second)))
    assert (await bus.js.stream_info("EVENTS")).state.messages == before + 5
    assert await rows(database, "SELECT count(*) FROM outbox_unsent") == [0]


async def test_an_emptied_stream_is_filled_again(database: Database, bus: Bus, plane_bus: BusServer) -> None:
    """Requirements: M2"""
    loop = make_loop(database, NotingHandler())
    loop.publisher = BusPublisher(bus)
    await loop.process([ListDelivery(event("e1"))])
    store = SqlStore(database, MailTransaction)
    relay = Relay(store, loop.publisher, bus)
    await relay.once()
    await relay._check_streams()
    assert await rows(database, "SELECT count(*) FROM outbox_unsent") == [0]
    plane_bus.wipe()
    plane_bus.bootstrap()
    await relay._check_streams()
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox_unsent SET created_at = created_at - interval '10 s'")
    await relay._send_unsent()
    assert (await bus.js.stream_info("EVENTS")).state.messages == 1


async def test_messages_travel_with_their_identity_tenant_and_trace(bus: Bus, plane_bus: BusServer) -> None:
    """CloudEvents attributes, trace context and the message id survive the broker."""
    plane_bus.wipe()
    plane_bus.bootstrap()
    gateway = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test-gateway")
    source = ConsumerSource(bus, CONSUMER)
    await source.start()
    sent = event("t1")
    publisher = BusPublisher(gateway)
    await publisher.publish([Outgoing(sent)])
    got = await asyncio.wait_for(source.fetch(10), PATIENCE_SECONDS)
    assert got[0].message == sent
    assert publisher.take_confirmed() == ["t1"]
    await got[0].ack()
    await source.stop()
    await gateway.close()


async def test_a_message_without_headers_is_quarantined_with_its_bytes(
    database: Database, bus: Bus, plane_bus: BusServer
) -> None:
    """It never reaches a handler, its neighbour does, and the planner is told under the subject's tenant.

    Requirements: M3
    """
    plane_bus.wipe()
    plane_bus.bootstrap()
    gateway = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test-gateway")
    source = ConsumerSource(bus, CONSUMER)
    await source.start()
    await gateway.js.publish(event("bare").subject, b"bare bytes")
    await BusPublisher(gateway).publish([Outgoing(event("dressed"))])
    loop = make_loop(database, NotingHandler())
    batch: list[BusDelivery] = []
    while len(batch) < 2:
        batch += await asyncio.wait_for(source.fetch(10), PATIENCE_SECONDS)
    await loop.process(batch)
    assert await rows(database, "SELECT text FROM note") == ["dressed"]
    assert await rows(database, "SELECT data FROM quarantine") == [b"bare bytes"]
    assert await rows(database, "SELECT reason FROM quarantine") == ["Unprocessable: no headers"]
    announced = await rows(database, "SELECT subject FROM outbox WHERE type = 'MessageQuarantined'")
    assert announced == ["trueup.evt.orchestrator.quarantined.acme"]
    await source.stop()
    await gateway.close()


async def test_a_message_with_hostile_headers_is_quarantined_and_the_planner_is_told(
    database: Database, bus: Bus, plane_bus: BusServer
) -> None:
    """A header that no insert and no publication would take costs that one message, never the process.

    Requirements: M3
    """
    plane_bus.wipe()
    plane_bus.bootstrap()
    gateway = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test-gateway")
    source = ConsumerSource(bus, CONSUMER)
    await source.start()
    hostile = [{"ce-id": "x" * 20_000}, {"ce-tenant": "a b"}, {"traceparent": "y" * 9_000, "ce-type": "T" * 20_000}]
    for number, odd in enumerate(hostile):
        headers = {**headers_of(event(f"h{number}")), **odd}
        headers.pop("Nats-Msg-Id")
        await gateway.js.publish(event("h").subject, b"{}", headers=headers)
    await BusPublisher(gateway).publish([Outgoing(event("dressed"))])
    publisher = BusPublisher(bus)
    loop = make_loop(database, NotingHandler())
    loop.publisher = publisher
    batch: list[BusDelivery] = []
    while len(batch) < len(hostile) + 1:
        batch += await asyncio.wait_for(source.fetch(10), PATIENCE_SECONDS)
    await loop.process(batch)
    assert await rows(database, "SELECT text FROM note") == ["dressed"]
    assert await rows(database, "SELECT count(*) FROM quarantine") == [len(hostile)]
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox_unsent SET created_at = created_at - interval '10 s'")
    await Relay(SqlStore(database, MailTransaction), publisher, bus)._send_unsent()
    assert await rows(database, "SELECT count(*) FROM outbox_unsent") == [0]
    await source.stop()
    await gateway.close()


class Unwritable(PlannerTransaction):
    """A transaction in which not even a failure can be kept."""

    async def count_failure(self, consumer: str, message_id: str) -> int:
        raise asyncpg.ProgramLimitExceededError("index row size exceeds the maximum")


async def test_a_failure_that_cannot_be_recorded_hands_the_message_back(database: Database) -> None:
    """The process goes on with the others; ending it would only meet the same message again.

    Requirements: M3
    """
    loop = make_loop(database, NotingHandler(poison=frozenset({"m1"})))
    loop.store = SqlStore(database, Unwritable)
    batch = [ListDelivery(event("m1")), ListDelivery(event("m2"))]
    await loop.process(batch)
    assert [delivery.fate for delivery in batch] == ["nak", "ack"]


async def test_a_message_that_cannot_be_written_to_the_bus_does_not_keep_others_back(bus: Bus) -> None:
    """Requirements: M2"""
    publisher = BusPublisher(bus)
    odd = [
        replace(event("odd-subject", "orchestrator", "case"), subject="trueup.evt.orchestrator.case.a b"),
        replace(event("odd-trace", "orchestrator", "case"), traceparent="Ж"),
    ]
    await publisher.publish([Outgoing(message) for message in (*odd, event("fine", "orchestrator", "case"))])
    assert publisher.take_confirmed() == ["fine"]
    assert bus.connected


async def test_a_message_without_a_usable_subject_never_enters_the_outbox(database: Database) -> None:
    """Requirements: M2"""
    store = SqlStore(database, PlannerTransaction)
    with pytest.raises(ValueError, match="subject"):
        async with store.transaction() as tx:
            await tx.post([Outgoing(replace(event("odd"), subject="trueup.evt.x.*"))])


async def relayed(store: SqlStore[MailTransaction], database: Database) -> list[str]:
    """What the relay takes once time has passed; it counts as published from here."""
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox_unsent SET created_at = created_at - interval '10 s'")
    async with store.transaction() as tx:
        ids = [message.id for message in await tx.unsent(RELAY_AGE_SECONDS, 100)]
        await tx.mark_sent(ids)
    return ids


async def test_a_row_that_commits_late_under_a_lower_number_is_relayed(database: Database) -> None:
    """A slow transaction took its number first and commits last: the relay, which is past that number, takes it too.

    Requirements: M1, M2
    """
    store = SqlStore(database, MailTransaction)
    async with store.transaction() as slow:
        await slow.post([Outgoing(event("late"))])
        await slow.flush()
        async with store.transaction() as quick:
            await quick.post([Outgoing(event("early"))])
        assert await relayed(store, database) == ["early"]
    assert await rows(database, "SELECT message_id FROM outbox ORDER BY id") == ["late", "early"]
    assert await relayed(store, database) == ["late"]
    assert await relayed(store, database) == []


async def test_mail_that_nobody_confirmed_is_never_purged(database: Database) -> None:
    """However old it is: only what was published may go, and then it does.

    Requirements: M2
    """
    store = SqlStore(database, MailTransaction)
    async with store.transaction() as tx:
        await tx.post([Outgoing(event("kept")), Outgoing(event("gone"))])
        await tx.flush()
        await tx.mark_sent(["gone"])
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox SET created_at = created_at - interval '1 day'")
    async with store.transaction() as tx:
        assert await tx.purge(3600, 3600, 100) == 1
    assert await rows(database, "SELECT message_id FROM outbox") == ["kept"]
    async with store.transaction() as tx:
        await tx.mark_sent(["kept"])
        assert await tx.purge(3600, 3600, 100) == 1
    assert await rows(database, "SELECT count(*) FROM outbox") == [0]


async def test_old_mail_goes_as_fast_as_it_came(database: Database, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion that was full is followed by the next at once: what a busy plane posts never grows for good.

    Requirements: B4, B5
    """
    monkeypatch.setattr(timers, "PURGE_LIMIT", 2)
    store = SqlStore(database, MailTransaction)
    names = [f"old{number}" for number in range(5)]
    async with store.transaction() as tx:
        await tx.claim("orchestrator-events", names)
        await tx.post([Outgoing(event(name)) for name in names])
        await tx.flush()
        await tx.mark_sent(names)
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox SET created_at = created_at - interval '1 day'")
        await connection.execute("UPDATE inbox SET received_at = received_at - interval '9 days'")
    relay = Relay(store, BusPublisher(bus), bus)
    relay._ticks = timers.PURGE_TICKS - 1
    left = []
    for _ in range(4):
        await relay.once()
        left.append(
            await rows(database, "SELECT count(*) FROM outbox") + await rows(database, "SELECT count(*) FROM inbox")
        )
    assert left == [[3, 3], [1, 1], [0, 0], [0, 0]]
