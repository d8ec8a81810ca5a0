"""The orchestrator as real processes: two replicas, real servers, their own rights, one of them killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import pytest
from pydantic import BaseModel
from tests import servers
from tests.orchestrator.cases import At, declaration, receipt, start_case

from trueup_common.contracts.declaration import Mapping
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import StartCase
from trueup_common.contracts.history import verify
from trueup_common.contracts.journal import HistoryEvent, JournalRow
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import ReceiptStatus
from trueup_common.contracts.task import ExecuteTask
from trueup_common.contracts.topology import command_subject, event_subject, task_consumer
from trueup_common.runtime.bootstrap import load_catalog
from trueup_common.runtime.bus import Bus, BusPublisher, ConsumerSource
from trueup_common.runtime.clock import monotonic, real_now

DEADLINE_SECONDS = 180.0  # longer than the 30 s after which the broker hands a dead replica's message to another
COMMANDS = 60
TYPE = declaration(
    type="bench.create_page",
    system="bench",
    identity=(),
    establishes=(),
    timeout_seconds=60.0,
    compensation=Mapping(command_type="bench.trash_page", payload={"page_id": ValueFrom(pointer="/receipt/page_id")}),
)


@dataclass
class Stage:
    """The outside: a gateway that accepts and an adapter that answers at once."""

    gateway: Bus
    adapters: Bus
    admin: asyncpg.Connection
    replicas: list[asyncio.subprocess.Process]
    tasks: list[str] = field(default_factory=list)

    async def say(self, bus: Bus, body: BaseModel, message_id: str, subject: str) -> None:
        publisher = BusPublisher(bus)
        message = Message(
            id=message_id,
            type=type(body).__name__,
            subject=subject,
            tenant="acme",
            source="test",
            time=real_now(),
            data=body.model_dump_json().encode(),
        )
        await publisher.publish([Outgoing(message)])
        assert publisher.take_confirmed() == [message_id]

    async def accept(self, body: StartCase) -> None:
        await self.say(self.gateway, body, body.workflow_id, command_subject("acme"))

    async def answer(self) -> None:
        """An adapter that confirms each task, and hears some of them twice."""
        source = ConsumerSource(self.adapters, task_consumer("bench"))
        await source.start()
        while True:
            for delivery in await source.fetch(20):
                task = ExecuteTask.model_validate_json(delivery.message.data)
                self.tasks.append(task.attempt_id)
                row = JournalRow.model_construct(
                    command_id=task.operation.command_id,
                    workflow_id=task.operation.workflow_id,
                    tenant="acme",
                    target_system="bench",
                    command_type=task.operation.command_type,
                    fence=task.fence,
                )
                done = receipt(row, ReceiptStatus.CONFIRMED, at=real_now(), observations=())
                await self.say(
                    self.adapters,
                    done,
                    f"{task.attempt_id}:CONFIRMED",
                    event_subject("adapter.bench", "receipt", "acme"),
                )
                await delivery.ack()


async def launch(database: servers.Database, server: servers.BusServer, number: int) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "TRUEUP_MODE": "development",
        "TRUEUP_INSTANCE": f"orchestrator-{number}",
        "TRUEUP_DATABASE_URL": database.url("orchestrator"),
        "TRUEUP_NATS_URL": server.url("orchestrator"),
        "TRUEUP_HEALTH_PORT": "0",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trueup_orchestrator.main", env=environment, stdout=asyncio.subprocess.DEVNULL
    )


@pytest.fixture
async def stage(plane_database: servers.Database, plane_bus: servers.BusServer) -> AsyncIterator[Stage]:
    await load_catalog(plane_bus.admin_url, [TYPE], [("acme", "bench")])
    gateway = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test-gateway")
    adapters = await Bus.connect(plane_bus.url("adapters"), service="adapters", name="test-adapters")
    admin = await asyncpg.connect(plane_database.admin_url)
    replicas = [await launch(plane_database, plane_bus, number) for number in (1, 2)]
    stage = Stage(gateway, adapters, admin, replicas)
    adapter = asyncio.create_task(stage.answer())
    yield stage
    adapter.cancel()
    for replica in replicas:
        if replica.returncode is None:
            replica.send_signal(signal.SIGTERM)
    for replica in replicas:
        await replica.wait()
    await admin.close()
    await gateway.close()
    await adapters.close()


async def test_a_killed_replica_loses_no_case_and_doubles_none(stage: Stage) -> None:
    """Sixty commands over two replicas, one of them killed by SIGKILL in the middle: each ends once, in one chain.

    Requirements: M1, M2
    """
    now = await stage.admin.fetchval("SELECT trueup.now()")
    at = At(now, now)
    bodies = []
    for number in range(COMMANDS):
        body = start_case(number, decl=TYPE, at=at, grant_expires_at=at.later(600).real)
        bodies.append(body)
        await stage.accept(body)
        if number == COMMANDS // 2:
            stage.replicas[0].kill()
    end = monotonic() + DEADLINE_SECONDS
    while await stage.admin.fetchval("SELECT count(*) FROM orchestrator.instance WHERE status = 'CLOSED'") < COMMANDS:
        assert monotonic() < end, "not every case was closed in time"
        await asyncio.sleep(0.1)
    rows = await stage.admin.fetch("SELECT command_id, state, fence, attempt_count FROM orchestrator.operation")
    assert {row["command_id"] for row in rows} == {body.command_id for body in bodies}
    assert {(row["state"], row["fence"], row["attempt_count"]) for row in rows} == {("SUCCESS", 1, 1)}
    assert len(set(stage.tasks)) == COMMANDS
    history = await stage.admin.fetch("SELECT * FROM orchestrator.history ORDER BY workflow_id, seq")
    chains: dict[str, list[HistoryEvent]] = {}
    for record in history:
        values = {**dict(record), "payload": json.loads(record["payload"])}
        chains.setdefault(record["workflow_id"], []).append(HistoryEvent.model_validate(values))
    assert len(chains) == COMMANDS
    assert [verify(chain) for chain in chains.values()] == [None] * COMMANDS
