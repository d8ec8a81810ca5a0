"""Taking from the broker as a service's own user: a source that stops keeps nothing, a bucket can be followed."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.topology import (
    CATALOG_BUCKET,
    CONSUMERS,
    GOVERNANCE_BUCKET,
    GRANTS,
    SERVICES,
    grant_subject,
)
from trueup_common.runtime import bus
from trueup_common.runtime.bus import SILENCE_SECONDS, Bus, BusPublisher, ConsumerSource, connect_admin
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.kv import BucketWatch

CONSUMER = next(consumer for consumer in CONSUMERS if consumer.stream == GRANTS)
IDS = ["one", "two", "three"]


@pytest.fixture
async def gateway(plane_bus: BusServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test")
    yield bus
    await bus.close()


async def proposed(plane_bus: BusServer, ids: Sequence[str] = IDS, data: bytes = b"{}") -> None:
    """Messages in the gateway's work queue."""
    bus = await Bus.connect(plane_bus.url("orchestrator"), service="orchestrator", name="test")
    messages = [
        Message(id=name, type="T", subject=grant_subject("acme"), tenant="acme", source="o", time=real_now(), data=data)
        for name in ids
    ]
    await BusPublisher(bus).publish([Outgoing(message) for message in messages])
    await bus.close()


async def test_a_stopped_source_hands_back_what_it_has_queued(gateway: Bus, plane_bus: BusServer) -> None:
    """What a draining replica had taken but not begun goes to the next one at once, not after the ack wait."""
    await proposed(plane_bus)
    first = ConsumerSource(gateway, CONSUMER)
    await first.start()
    taken = await asyncio.wait_for(first.fetch(1), PATIENCE_SECONDS)
    assert [delivery.message.id for delivery in taken] == ["one"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while first._queue.qsize() < 2:
            await asyncio.sleep(0.01)
    await first.stop()
    await taken[0].ack()
    second = ConsumerSource(gateway, CONSUMER)
    await second.start()
    found: list[str] = []
    async with asyncio.timeout(CONSUMER.ack_wait_seconds / 2):
        while len(found) < 2:
            for delivery in await second.fetch(10):
                found.append(delivery.message.id)
                await delivery.ack()
    assert sorted(found) == ["three", "two"]
    await second.stop()


CREDIT = 20


@pytest.mark.parametrize(("count", "size", "queued_max"), [(100, 2, CREDIT), (12, 300_000, 6)], ids=["many", "large"])
async def test_a_backlog_waits_with_the_broker(
    gateway: Bus, plane_bus: BusServer, monkeypatch: pytest.MonkeyPatch, count: int, size: int, queued_max: int
) -> None:
    """Who does not take what he has asked for asks for no more, by number and by bytes; who takes gets all of it.

    Requirements: B5, M2
    """
    monkeypatch.setattr(bus, "QUEUED_BYTES_MAX", 1_500_000)
    await proposed(plane_bus, [f"{count}-{number}" for number in range(count)], b"x" * size)
    source = ConsumerSource(gateway, CONSUMER, credit=CREDIT)
    await source.start()
    admin = await connect_admin(plane_bus.url("admin"))
    left = -1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while left != (left := await _not_delivered(admin)) or not source._queue.qsize():
            await gateway.flush()
    assert 0 < source._queue.qsize() <= queued_max
    assert left == count - source._queue.qsize()
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            for delivery in await source.fetch(5):
                found.append(delivery.message.id)
                await delivery.ack()
    assert found == [f"{count}-{number}" for number in range(count)]
    assert (source._queued_bytes, source._queue.qsize()) == (0, 0)
    await admin.close()
    await source.stop()


async def _not_delivered(admin: Client) -> int:
    """What the broker has handed to nobody yet."""
    return int((await admin.jetstream().consumer_info(CONSUMER.stream, CONSUMER.durable)).num_pending or 0)


async def test_a_broker_that_comes_back_is_asked_again_at_once(tmp_path: Path) -> None:
    """The request that stood open died with the broker; whoever waited for silence to tell would wait half a minute.

    Requirements: M2
    """
    broker = BusServer(tmp_path / "broker")
    await asyncio.to_thread(broker.start)
    try:
        await asyncio.to_thread(broker.bootstrap)
        bus = await Bus.connect(broker.url("gateway"), service="gateway", name="test")
        source = ConsumerSource(bus, CONSUMER)
        await source.start()
        await proposed(broker)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for delivery in await source.fetch(10):
                await delivery.ack()
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        again = [f"{name}-again" for name in IDS]
        await proposed(broker, again)
        found: set[str] = set()
        async with asyncio.timeout(SILENCE_SECONDS / 2):
            while found < set(again):
                for delivery in await source.fetch(10):
                    found.add(delivery.message.id)
                    await delivery.ack()
        await source.stop()
        assert not bus.back
        await bus.close()
    finally:
        await asyncio.to_thread(broker.stop)


async def test_stopping_ends_a_fetch_that_waits(gateway: Bus) -> None:
    """An idle replica drains at once."""
    source = ConsumerSource(gateway, CONSUMER)
    await source.start()
    waiting = asyncio.create_task(source.fetch(10))
    await asyncio.sleep(0)
    await source.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await waiting == []


@pytest.mark.parametrize("service", SERVICES)
async def test_every_service_may_follow_the_shared_buckets(plane_bus: BusServer, service: str) -> None:
    """With its own user and nobody else's permissions: otherwise it would never be ready."""
    bus = await Bus.connect(plane_bus.url(service), service=service, name="test")
    watches = [BucketWatch(bus, bucket, lambda key, value: None) for bucket in (CATALOG_BUCKET, GOVERNANCE_BUCKET)]
    for watch in watches:
        await watch.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for watch in watches:
            await watch.loaded.wait()
    for watch in watches:
        await watch.stop()
    assert bus.alarms == []
    await bus.close()


@pytest.mark.parametrize("emptied", [False, True], ids=["restarted", "emptied"])
async def test_a_watch_outlives_the_broker_that_watched_for_it(tmp_path: Path, *, emptied: bool) -> None:
    """A broker that comes back does not know who followed: what changed meanwhile is seen, and what changes later.

    Requirements: G6, M2
    """
    broker = BusServer(tmp_path / "broker")
    await asyncio.to_thread(broker.start)
    known: dict[str, bytes | None] = {}
    try:
        await asyncio.to_thread(broker.bootstrap)
        bus = await Bus.connect(broker.url("adapters"), service="adapters", name="test")
        watch = BucketWatch(bus, GOVERNANCE_BUCKET, known.__setitem__)
        await watch.start()
        await write(broker, "freeze.old")
        await until(lambda: known.get("freeze.old") == b"1")
        await asyncio.to_thread(broker.stop)
        if emptied:
            shutil.rmtree(tmp_path / "broker" / "store")
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.bootstrap)
        await write(broker, "freeze.new")
        await until(lambda: known.get("freeze.new") == b"1")
        assert known["freeze.old"] == (None if emptied else b"1")
        await watch.stop()
        assert not bus.back
        await bus.close()
    finally:
        await asyncio.to_thread(broker.stop)


async def write(broker: BusServer, key: str) -> None:
    """Put one key into the governance bucket."""
    admin = await connect_admin(broker.url("admin"))
    await (await admin.jetstream().key_value(GOVERNANCE_BUCKET)).put(key, b"1")
    await admin.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait, bounded, until something holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


async def test_one_unreadable_entry_does_not_end_the_watch(plane_bus: BusServer) -> None:
    """What comes after it is still heard: a watch that ends silently would freeze what the service knows."""
    admin = await connect_admin(plane_bus.url("admin"))
    bucket = await admin.jetstream().key_value(CATALOG_BUCKET)
    await bucket.put("type/odd/0", b"not a declaration")
    bus = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test")
    catalog = Catalog()
    assert not catalog.has_connection("acme", "odd")
    await catalog.follow(bus)
    assert not catalog.is_loaded
    await bucket.put("current/odd", b"\xff\xfe")
    await bucket.put("connection/acme/odd", b"1")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (catalog.is_loaded and catalog.has_connection("acme", "odd")):
            await asyncio.sleep(0.01)
    for key in ("type/odd/0", "current/odd", "connection/acme/odd"):
        await bucket.delete(key)
    assert catalog.watch is not None
    await catalog.watch.stop()
    await bus.close()
    await admin.close()
