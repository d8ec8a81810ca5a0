"""Each service has its own role and broker user: what belongs to another service is out of its reach."""

import asyncio

import asyncpg
import pytest

from tests.servers import BusServer, Database
from trueup_common.contracts.topology import (
    CONSUMERS,
    GOVERNANCE_BUCKET,
    SERVICES,
    command_subject,
    event_subject,
    inbox_prefix,
    task_subject,
)
from trueup_common.runtime.bus import Bus

PROBE_SECONDS = 1.0


def schema(service: str) -> str:
    return service.replace("-", "_")


@pytest.mark.parametrize("service", SERVICES)
async def test_a_role_reads_and_writes_only_its_own_tables(service: str, plane_database: Database) -> None:
    """Requirements: T2"""
    connection = await asyncpg.connect(plane_database.url(service))
    try:
        await connection.fetch(f"SELECT 1 FROM {schema(service)}.outbox LIMIT 1")
        for other in SERVICES:
            if other == service:
                continue
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT 1 FROM {schema(other)}.outbox LIMIT 1")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(f"DELETE FROM {schema(other)}.inbox")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"CREATE TABLE {schema(service)}.own (x int)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("UPDATE trueup.clock SET \"offset\" = '1 day'")
    finally:
        await connection.close()


FORBIDDEN = {
    "gateway": [event_subject("orchestrator", "case", "acme"), task_subject("wordpress", "find", "acme")],
    "orchestrator": [command_subject("acme"), event_subject("adapter.wordpress", "receipt", "acme")],
    "adapters": [
        command_subject("acme"),
        task_subject("wordpress", "execute", "acme"),
        event_subject("gateway", "grant-refused", "acme"),
    ],
    "reconciler": [task_subject("wordpress", "execute", "acme"), event_subject("orchestrator", "case", "acme")],
    "repair-planner": [command_subject("acme"), task_subject("wordpress", "execute", "acme")],
}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_user_cannot_publish_what_belongs_to_another(service: str, plane_bus: BusServer) -> None:
    """The broker refuses, the refusal raises an alarm in the client, and nothing is stored.

    Requirements: T2
    """
    bus = await Bus.connect(plane_bus.url(service), service=service, name="probe")
    watcher = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="watcher")
    try:
        before = {name: (await watcher.stream_state(name)) for name in ("COMMANDS", "TASKS", "EVENTS")}
        for subject in [
            *FORBIDDEN[service],
            f"$KV.{GOVERNANCE_BUCKET}.freeze.x" if service != "gateway" else "other.x",
        ]:
            seen = len(bus.alarms)
            await bus.client.publish(subject, b"{}")
            await bus.client.flush()
            async with asyncio.timeout(PROBE_SECONDS * 5):
                while len(bus.alarms) == seen:
                    await asyncio.sleep(0.01)
            assert "ermissions" in bus.alarms[-1]
        assert {name: (await watcher.stream_state(name)) for name in before} == before
    finally:
        await bus.close()
        await watcher.close()


async def test_a_user_cannot_fetch_or_ack_for_another(plane_bus: BusServer) -> None:
    """Another service's consumer cannot be pulled, its acks cannot be forged, its inbox cannot be overheard.

    Requirements: T2
    """
    adapters = await Bus.connect(plane_bus.url("adapters"), service="adapters", name="probe")
    try:
        foreign = next(consumer for consumer in CONSUMERS if consumer.durable == "orchestrator-commands")
        attempts = [
            f"$JS.API.CONSUMER.MSG.NEXT.{foreign.stream}.{foreign.durable}",
            f"$JS.ACK.{foreign.stream}.{foreign.durable}.1.1.1.1.1",
            "$JS.API.STREAM.CREATE.EVIL",
            f"$JS.API.CONSUMER.DELETE.{foreign.stream}.{foreign.durable}",
            f"$JS.API.STREAM.PURGE.{foreign.stream}",
        ]
        for subject in attempts:
            seen = len(adapters.alarms)
            await adapters.client.publish(subject, b"")
            await adapters.client.flush()
            async with asyncio.timeout(PROBE_SECONDS * 5):
                while len(adapters.alarms) == seen:
                    await asyncio.sleep(0.01)
        seen = len(adapters.alarms)

        async def overheard(_: object) -> None:
            raise AssertionError("overheard another service's inbox")

        await adapters.client.subscribe(f"{inbox_prefix('gateway')}.>", cb=overheard)
        await adapters.client.flush()
        async with asyncio.timeout(PROBE_SECONDS * 5):
            while len(adapters.alarms) == seen:
                await asyncio.sleep(0.01)
    finally:
        await adapters.close()
