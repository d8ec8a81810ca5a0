"""The object store of the bus on a real server: believed by hash alone, immutable, and only for whom it is meant."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import nats
import nats.errors
import nats.js.errors
import pytest
from tests.servers import BusServer

from trueup_common.contracts.topology import ARTIFACTS_BUCKET, ARTIFACTS_STREAM, SERVICES
from trueup_common.runtime.bus import Bus
from trueup_common.runtime.objects import PIECE_BYTES, ObjectDiffers, ObjectsAway, ObjectStore

CONTENT = bytes(range(256)) * 8192 + b"the end"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def gateway(plane_bus: BusServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test")
    yield bus
    await bus.close()


async def test_what_is_kept_comes_back_whole_for_its_tenant_alone(gateway: Bus, plane_bus: BusServer) -> None:
    """Two MiB in many pieces, read by the adapters' own user; another tenant's name finds nothing.

    Requirements: L16, T1
    """
    stored = await ObjectStore(gateway).put("acme", "art_1", CONTENT)
    assert (stored.sha256, stored.size) == (SHA256, len(CONTENT))
    adapters = await Bus.connect(plane_bus.url("adapters"), service="adapters", name="test")
    try:
        assert await ObjectStore(adapters).get("acme", "art_1", SHA256) == CONTENT
        assert await ObjectStore(adapters).get("globex", "art_1", SHA256) is None
    finally:
        await adapters.close()
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1):
        piece = CONTENT[:size]
        await ObjectStore(gateway).put("acme", f"art_size_{size}", piece)
        found = await ObjectStore(gateway).get("acme", f"art_size_{size}", hashlib.sha256(piece).hexdigest())
        assert found == piece


async def test_another_content_is_never_handed_out(gateway: Bus, plane_bus: BusServer) -> None:
    """A wrong hash, a piece changed by the broker's owner, a piece too many: refused, not returned.

    Requirements: L16
    """
    store = ObjectStore(gateway)
    await store.put("acme", "art_2", CONTENT)
    with pytest.raises(ObjectDiffers):
        await store.get("acme", "art_2", "0" * 64)
    with pytest.raises(ObjectsAway):  # an object is written once
        await store.put("acme", "art_2", b"other")
    assert await store.get("acme", "art_2", SHA256) == CONTENT
    admin = await nats.connect(plane_bus.admin_url)
    try:
        bucket = await admin.jetstream().object_store(ARTIFACTS_BUCKET)
        assert bytes((await bucket.get("acme/art_2")).data or b"") == CONTENT  # the broker's own tools read it too
        await bucket.put("acme/art_2", CONTENT[:-1] + b"!")
    finally:
        await admin.close()
    with pytest.raises(ObjectDiffers):
        await store.get("acme", "art_2", SHA256)


async def test_what_ends_early_or_is_deleted_leaves_no_content(gateway: Bus, plane_bus: BusServer) -> None:
    """Requirements: L16"""
    store = ObjectStore(gateway)

    async def broken() -> AsyncIterator[bytes]:
        yield CONTENT
        raise LookupError("the client went away")

    before = await bytes_kept(plane_bus)
    with pytest.raises(LookupError):
        await store.write("acme", "art_3", broken())
    assert await store.get("acme", "art_3", SHA256) is None
    await store.put("acme", "art_4", CONTENT)
    await store.delete("acme", "art_4")
    await store.delete("acme", "art_4")
    assert await store.get("acme", "art_4", SHA256) is None
    assert await bytes_kept(plane_bus) - before < 2000


async def bytes_kept(server: BusServer) -> int:
    admin = await nats.connect(server.admin_url)
    try:
        return int((await admin.jetstream().stream_info(ARTIFACTS_STREAM)).state.bytes)
    finally:
        await admin.close()


async def test_a_broker_that_does_not_answer_is_not_an_answer(gateway: Bus) -> None:
    """Requirements: X4"""
    store = ObjectStore(gateway)
    await gateway.close()
    with pytest.raises(ObjectsAway):
        await store.get("acme", "art_1", SHA256)
    with pytest.raises(ObjectsAway):
        await store.put("acme", "art_5", CONTENT)


@pytest.mark.parametrize("user", SERVICES)
async def test_the_gateway_writes_adapters_read_and_nobody_else_does_either(user: str, plane_bus: BusServer) -> None:
    """Tried with each user's own connection on the real server.

    Requirements: L16, T1
    """
    admin = await Bus.connect(plane_bus.admin_url, service="admin", name="test")
    name = f"art_for_{user}"
    await ObjectStore(admin).put("acme", name, b"kept")
    sha256 = hashlib.sha256(b"kept").hexdigest()
    bus = await Bus.connect(plane_bus.url(user), service=user, name="test")
    if user not in ("gateway", "adapters"):
        bus.js._timeout = 0.3  # nobody answers what is not allowed
    store = ObjectStore(bus)
    try:
        if user in ("gateway", "adapters"):
            assert await store.get("acme", name, sha256) == b"kept"
            bus.js._timeout = 0.3
        else:
            with pytest.raises(ObjectsAway):
                await store.get("acme", name, sha256)
        if user != "gateway":
            for act in (store.put("acme", f"{name}_own", b"mine"), store.delete("acme", name)):
                with pytest.raises(ObjectsAway):
                    await act
        for verb in ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "CONSUMER.CREATE", "STREAM.MSG.DELETE"):
            with pytest.raises((nats.errors.Error, TimeoutError)):
                await bus.client.request(f"$JS.API.{verb}.{ARTIFACTS_STREAM}", b"{}", timeout=0.2)
        assert await ObjectStore(admin).get("acme", name, sha256) == b"kept"
        assert await ObjectStore(admin).get("acme", f"{name}_own", hashlib.sha256(b"mine").hexdigest()) is None
    finally:
        await bus.close()
        await admin.close()
