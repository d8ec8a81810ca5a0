"""Traps of the broker: what NATS does when nobody would expect it, and what the product then does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig
from nats.js.client import JetStreamContext

from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer
from tests.traps.workbench import (
    EVENTS_CONSUMER,
    ListDelivery,
    NotingHandler,
    NotingTransaction,
    event,
    make_loop,
    values,
)
from trueup_common.contracts.envelope import (
    BODY_AND_HEADERS_BYTES_MAX,
    HEADERS_BYTES_BOUND,
    Message,
    Outgoing,
    headers_of,
)
from trueup_common.contracts.governance import GovernanceEntry, key_of
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.topology import CONSUMERS, GOVERNANCE_BUCKET, STREAMS, event_subject, task_consumer
from trueup_common.runtime import bootstrap, bus, host
from trueup_common.runtime.bus import Bus, BusDelivery, BusPublisher, ConsumerSource, connect_admin
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.kv import write_bucket
from trueup_common.runtime.mail import MailTransaction
from trueup_common.runtime.timers import Relay
from trueup_devkit import nats_server as embedded
from trueup_devkit.children import Lease, StartError
from trueup_devkit.secret_files import installed_systems

BROKER_BYTES_MAX = 1024 * 1024


async def changed(server: BusServer, stream: str, **changes: object) -> None:
    """Change one stream as an operator might."""
    client = await connect_admin(server.admin_url)
    try:
        js = client.jetstream()
        config = (await js.stream_info(stream)).config
        await js.update_stream(StreamConfig(**{**config.__dict__, **changes}))
    finally:
        await client.close()


async def with_admin(server: BusServer, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """Run one piece of work with the admin's JetStream context."""
    client = await connect_admin(server.admin_url)
    try:
        return await work(client.jetstream())
    finally:
        await client.close()


async def fetched(source: ConsumerSource, count: int) -> list[BusDelivery]:
    """Deliveries as they come, at least so many."""
    found: list[BusDelivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await source.fetch(100)
    return found


async def test_what_only_its_headers_make_too_large_never_reaches_the_wire(gateway: Bus) -> None:
    """The client's own check looks at the body alone; the largest message that we let through is confirmed.

    Requirements: M2
    """
    publisher = BusPublisher(gateway)
    within = BROKER_BYTES_MAX - 50
    small, big = event("small"), event("big", data=b"x" * within)
    largest = event("largest" + "x" * 190, data=b"x" * (BODY_AND_HEADERS_BYTES_MAX - HEADERS_BYTES_BOUND))
    assert within < gateway.client.max_payload < within + sum(map(len, headers_of(big).values()))
    await publisher.publish([Outgoing(message) for message in (small, big, largest)])
    assert sorted(publisher.take_confirmed()) == sorted(["small", largest.id])
    assert publisher.failed_count == 1 and gateway.connected and not gateway.alarms


async def test_a_client_that_closed_for_good_is_noticed(clean_bus: BusServer) -> None:
    """The trap itself: sent past our check, it ends the client in spite of unlimited reconnects, and the process hears.

    Requirements: M2
    """
    victim = await Bus.connect(clean_bus.url("gateway"), service="gateway", name="victim")
    big = event("big", data=b"x" * (BROKER_BYTES_MAX - 50))
    await victim.client.publish(big.subject, big.data, headers=headers_of(big))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await victim.closed.wait()
    assert not victim.connected and victim.client.is_closed


@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_a_consumer_that_vanished_is_asked_for_at_a_bounded_rate_and_taken_up_again(
    gateway: Bus, orchestrator: Bus, clean_bus: BusServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Unready while it is gone, no hot loop, and no restart needed once the bootstrap has made it again.

    Requirements: M2
    """
    pause = 0.1
    monkeypatch.setattr(bus, "REPULL_PAUSE_SECONDS", pause)
    source, asked = ConsumerSource(orchestrator, EVENTS_CONSUMER), []
    publish, loop = orchestrator.client.publish, asyncio.get_running_loop()

    async def counting(subject: str, *arguments: object, **more: object) -> None:
        if subject == source._next:
            asked.append(loop.time())
        await publish(subject, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(orchestrator.client, "publish", counting)
    await source.start()

    async def vanish(js: JetStreamContext) -> None:
        if what == "consumer":
            await js.delete_consumer(EVENTS_CONSUMER.stream, EVENTS_CONSUMER.durable)
        else:
            await js.delete_stream(EVENTS_CONSUMER.stream)

    await with_admin(clean_bus, vanish)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not source.missing:
            await asyncio.sleep(0.01)
        begun = len(asked)
        while len(asked) < begun + 6:
            await asyncio.sleep(0.01)
    assert asked[begun + 5] - asked[begun] > 4 * pause, "a hot loop"
    assert source.missing
    clean_bus.bootstrap()
    await BusPublisher(gateway).publish([Outgoing(event("again"))])
    assert [delivery.message.id for delivery in await fetched(source, 1)] == ["again"]
    assert not source.missing
    await source.stop()


async def test_a_late_ack_settles_what_another_holds_and_costs_nothing(
    gateway: Bus, orchestrator: Bus, clean_bus: BusServer, database: Database
) -> None:
    """An expired delivery and its redelivery are both worked on; one effect, and the message is settled exactly once.

    Requirements: M1, M2
    """
    brief = replace(EVENTS_CONSUMER, ack_wait_seconds=3)
    await with_admin(clean_bus, lambda js: bootstrap.ensure_consumer(js, brief))
    slow, quick = ConsumerSource(orchestrator, brief), ConsumerSource(orchestrator, brief)
    await slow.start()
    await BusPublisher(gateway).publish([Outgoing(event("m1"))])
    expired = await fetched(slow, 1)
    await quick.start()
    again: list[BusDelivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not again:  # whichever of the two has asked gets the redelivery
            done = [await one.fetch(1) for one in (quick, slow) if not one._queue.empty()]
            again = [delivery for batch in done for delivery in batch]
            await asyncio.sleep(0.01)
    assert again[0].raw.metadata.num_delivered == 2 and again[0].message == expired[0].message
    handlers = NotingHandler(), NotingHandler()
    late, held = (make_loop(database, handler) for handler in handlers)
    await asyncio.gather(late.process(expired), held.process(again))
    assert await values(database, "SELECT text FROM note") == ["m1"]
    assert sorted(len(handler.heard) for handler in handlers) == [0, 1]
    await orchestrator.client.flush()

    async def open_deliveries(js: JetStreamContext) -> int:
        return int((await js.consumer_info(brief.stream, brief.durable)).num_ack_pending or 0)

    assert await with_admin(clean_bus, open_deliveries) == 0
    for one in (slow, quick):
        await one.stop()


async def test_a_full_stream_drops_nothing_and_the_outbox_waits(
    orchestrator: Bus, clean_bus: BusServer, database: Database
) -> None:
    """The older message stays, the newer one is refused by the broker and sent by the relay once there is room.

    Requirements: M2
    """
    await changed(clean_bus, "EVENTS", max_msgs=1)
    publisher, store = BusPublisher(orchestrator), SqlStore(database, MailTransaction)
    messages = [told_of("first"), told_of("second")]
    async with store.transaction() as tx:
        await tx.post([Outgoing(message) for message in messages])
    await publisher.publish([Outgoing(messages[0])])
    await publisher.publish([Outgoing(messages[1])])
    assert publisher.full and publisher.confirmed == ["first"]
    relay = Relay(store, publisher, orchestrator)
    await relay.once()
    assert await values(database, "SELECT message_id FROM outbox_unsent") == ["second"]
    await changed(clean_bus, "EVENTS", max_msgs=-1)
    async with database.connection() as connection:
        await connection.execute("UPDATE outbox_unsent SET created_at = created_at - interval '10 s'")
    await relay._send_unsent()
    assert await values(database, "SELECT message_id FROM outbox_unsent") == []
    assert not publisher.full
    assert (await orchestrator.js.stream_info("EVENTS")).state.messages == 2


def told_of(message_id: str) -> Message:
    """An event of the orchestrator."""
    return replace(event(message_id), subject=event_subject("orchestrator", "case", "acme"), source="orchestrator")


async def test_the_same_message_outside_of_the_duplicate_window_has_one_effect(
    gateway: Bus, orchestrator: Bus, clean_bus: BusServer, database: Database
) -> None:
    """Inside of it the broker swallows the repetition; after it the stream holds two, and the inbox makes one of them.

    Requirements: M1, I1
    """
    await changed(clean_bus, "EVENTS", duplicate_window=0.1)
    publisher, count = BusPublisher(gateway), 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while count < 2:  # until the window has passed, the broker keeps one
            await publisher.publish([Outgoing(event("m1"))])
            count = (await gateway.js.stream_info("EVENTS")).state.messages
    source, handler = ConsumerSource(orchestrator, EVENTS_CONSUMER), NotingHandler()
    await source.start()
    loop = make_loop(database, handler, source)
    both = await fetched(source, 2)
    for delivery in both:  # in batches of their own, as after a redelivery
        await loop.process([delivery])
    assert [delivery.message.id for delivery in both] == ["m1", "m1"]
    assert await values(database, "SELECT text FROM note") == ["m1"]
    assert loop.statistics.duplicates_count == 1
    await source.stop()


async def test_answers_that_are_lost_with_the_connection_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stops answering costs a bounded wait; sent again once it is back, the stream holds one.

    Requirements: M2
    """
    server = BusServer(tmp_path)
    server.start()
    try:
        server.bootstrap()
        connected = await Bus.connect(server.url("gateway"), service="gateway", name="test")
        publisher = BusPublisher(connected)
        await publisher.publish([Outgoing(event("before"))])
        assert server.server.child is not None
        os.kill(server.server.child.pid, signal.SIGSTOP)
        # It takes a moment to stop.
        await asyncio.to_thread(os.waitid, os.P_PID, server.server.child.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with monkeypatch.context() as hasty:
                hasty.setattr(bus, "CONFIRM_TIMEOUT_SECONDS", 0.3)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await publisher.publish([Outgoing(event("during"))])
        finally:
            os.kill(server.server.child.pid, signal.SIGCONT)
        assert publisher.take_confirmed() == ["before"] and publisher.failed_count == 1
        await asyncio.sleep(0)
        assert not publisher._waiting, "a future that nobody will ever answer is kept"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while publisher.take_confirmed() != ["during"]:
                await publisher.publish([Outgoing(event("during"))])
        assert (await connected.js.stream_info("EVENTS")).state.messages == 2
        await connected.close()
    finally:
        server.stop()


async def test_what_is_handed_back_does_not_starve_others(
    gateway: Bus,
    orchestrator: Bus,
    clean_bus: BusServer,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Poison that fills every place of the consumer is counted out; the healthy tenant behind it gets through.

    Requirements: M3, E7
    """
    monkeypatch.setattr(host, "NAK_DELAY_SECONDS", 0.05)
    crowded = replace(EVENTS_CONSUMER, max_ack_pending=3)
    await with_admin(clean_bus, lambda js: bootstrap.ensure_consumer(js, crowded))
    poison = [event(f"poison{number}", "acme") for number in range(6)]
    await BusPublisher(gateway).publish([Outgoing(message) for message in (*poison, event("healthy", "globex"))])

    async def refuse(_: NotingTransaction, message: Message) -> None:
        if message.tenant == "acme":
            raise ZeroDivisionError(message.id)

    source, handler = ConsumerSource(orchestrator, crowded), NotingHandler(refuse)
    loop = make_loop(database, handler, source)
    await source.start()
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while handler.heard != ["healthy"] or loop.statistics.quarantined_count < len(poison):
            await asyncio.sleep(0.01)
    kept = await values(database, "SELECT message_id FROM quarantine ORDER BY 1")
    assert kept == [message.id for message in poison]
    loop.stopping = True
    await source.stop()
    await running


def test_a_message_is_handed_back_for_moments_only() -> None:
    """A delayed redelivery holds a place of the consumer, so nothing waits long in that way: long waits are rows."""
    assert host.NAK_DELAY_SECONDS <= 1.0
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("libs/common", "services")
        for path in (Path(__file__).parents[2] / folder).rglob("*.py")
    )
    given = set(re.findall(r"\.nak\(([^)]*)\)", source))
    assert given == {"NAK_DELAY_SECONDS"}


async def test_streams_and_consumers_are_made_so_that_nothing_gets_lost(clean_bus: BusServer) -> None:
    """As the broker itself reports them after the bootstrap: full means refused, and no delivery is the last one.

    Requirements: M2, M3
    """

    async def look(js: JetStreamContext) -> None:
        for stream in STREAMS:
            config = (await js.stream_info(stream.name)).config
            assert (config.discard, config.storage) == ("new", "file"), stream.name
            assert config.max_msgs in (-1, 0, None) and config.max_bytes == stream.max_bytes
        for consumer in (*CONSUMERS, *map(task_consumer, installed_systems())):
            made = (await js.consumer_info(consumer.stream, consumer.durable)).config
            assert made.max_deliver == -1, "after the last delivery a message would be in no list"
            assert made.ack_policy == "explicit"

    await with_admin(clean_bus, look)


async def test_poison_is_kept_before_it_is_settled(database: Database) -> None:
    """`term` comes after the quarantine has committed: a death in between delivers it again, it does not lose it.

    Requirements: M3
    """
    seen: list[int] = []

    class Watched(ListDelivery):
        async def term(self) -> None:
            seen.extend(await values(database, "SELECT count(*) FROM quarantine"))
            await super().term()

    async def refuse(_: NotingTransaction, message: Message) -> None:
        raise host.Unprocessable("no such thing")

    delivery = Watched(event("m1"))
    await make_loop(database, NotingHandler(refuse)).process([delivery])
    assert delivery.fate == "term" and seen == [1]


async def test_keys_of_buckets_are_made_of_what_a_bucket_takes(gateway: Bus) -> None:
    """A subject such as `operator:a@b` can be no key: keys are made of ids, kinds, tenants, systems and types alone.

    Requirements: G6
    """
    kinds = ("revoked_decision", "revoked_capability", "revoked_mandate", "freeze", "policy")
    keys = [key_of(GovernanceEntry(kind=kind, id=new_id("frz"), epoch=1)) for kind in kinds]
    assert await write_bucket(gateway, GOVERNANCE_BUCKET, dict.fromkeys(keys, b"{}"))
    assert await write_bucket(gateway, GOVERNANCE_BUCKET, dict.fromkeys(keys, None))
    assert not await write_bucket(gateway, GOVERNANCE_BUCKET, {"freeze.operator@acme": b"{}"})
    assert gateway.connected


def test_two_servers_never_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-server itself would start a second time without complaint.

    Requirements: M2
    """
    take = Lease.take
    monkeypatch.setattr(embedded.Lease, "take", lambda path, timeout_seconds=0.0: take(path, 0.1))
    first = BusServer(tmp_path)
    first.start()
    try:
        with pytest.raises(StartError, match="still runs"):
            BusServer(tmp_path).start()
        assert first.server.is_ready()
    finally:
        first.stop()
