"""Reconciler and planner as real processes, two replicas each, on real servers and with their own rights."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest
from pydantic import BaseModel
from tests.reconciler.builders import TENANT, established, finding, operation, seen
from tests.servers import BusServer
from tests.servers import Database as ServerDatabase

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import SettleRequested
from trueup_common.contracts.states import FindVerdict, ProbeVerdict
from trueup_common.contracts.task import FindTask, Found, Observed, ProbeTask
from trueup_common.contracts.topology import event_subject, task_consumer
from trueup_common.runtime.bus import Bus, BusPublisher, ConsumerSource
from trueup_common.runtime.clock import monotonic, real_now

DEADLINE_SECONDS = 120.0  # longer than the 30 s after which the broker hands a dead replica's message to another
PROGRAMS = {"reconciler": "trueup_reconciler.main", "repair-planner": "trueup_repair_planner.main"}


@dataclass
class Stage:
    """The outside as these services see it: an orchestrator that asks and an adapter that answers."""

    orchestrator: Bus
    adapters: Bus
    admin: asyncpg.Connection
    replicas: list[asyncio.subprocess.Process]

    async def say(self, body: BaseModel, message_id: str, subject: str, bus: Bus | None = None) -> None:
        publisher = BusPublisher(bus or self.orchestrator)
        message = Message(
            id=message_id,
            type=type(body).__name__,
            subject=subject,
            tenant=TENANT,
            source="test",
            time=real_now(),
            data=body.model_dump_json().encode(),
        )
        await publisher.publish([Outgoing(message)])
        assert publisher.take_confirmed() == [message_id]

    async def answer(self, body: BaseModel, message_id: str, kind: str) -> None:
        await self.say(body, message_id, event_subject("adapter.wordpress", kind, TENANT), self.adapters)

    async def count(self, query: str) -> int:
        return int(await self.admin.fetchval(query))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    end = monotonic() + DEADLINE_SECONDS
    while not await condition():
        assert monotonic() < end, "the state was not reached in time"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def running(database: ServerDatabase, server: BusServer) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    replicas = []
    for service, module in PROGRAMS.items():
        for number in (1, 2):
            environment = {
                **os.environ,
                "TRUEUP_MODE": "development",
                "TRUEUP_INSTANCE": f"{service}-{number}",
                "TRUEUP_DATABASE_URL": database.url(service),
                "TRUEUP_NATS_URL": server.url(service),
                "TRUEUP_HEALTH_PORT": "0",
            }
            replicas.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", module, env=environment, stdout=asyncio.subprocess.DEVNULL
                )
            )
    try:
        yield replicas
    finally:
        for replica in replicas:
            if replica.returncode is None:
                replica.send_signal(signal.SIGTERM)
        codes = [await replica.wait() for replica in replicas]
        # A replica that was still starting has no drain yet: SIGTERM ends it, which is as good as a drain of nothing.
    assert set(codes) <= {0, -signal.SIGKILL, -signal.SIGTERM}


@pytest.fixture
async def stage(plane_database: ServerDatabase, plane_bus: BusServer) -> AsyncIterator[Stage]:
    orchestrator = await Bus.connect(plane_bus.url("orchestrator"), service="orchestrator", name="test-orchestrator")
    adapters = await Bus.connect(plane_bus.url("adapters"), service="adapters", name="test-adapters")
    admin = await asyncpg.connect(plane_database.admin_url)
    async with running(plane_database, plane_bus) as replicas:
        yield Stage(orchestrator, adapters, admin, replicas)
    await admin.close()
    await orchestrator.close()
    await adapters.close()


async def next_task(source: ConsumerSource) -> Message:
    end = monotonic() + DEADLINE_SECONDS
    while monotonic() < end:
        for delivery in await source.fetch(1):
            await delivery.ack()
            return delivery.message
    raise AssertionError("no task came")


async def test_unknowns_are_settled_and_drift_becomes_an_exception_although_a_replica_is_killed(stage: Stage) -> None:
    """One reconciler dies by SIGKILL on the way; the other one carries on.

    Requirements: R1, R8, Q4
    """
    tasks = ConsumerSource(stage.adapters, task_consumer("wordpress"))
    await tasks.start()
    request = SettleRequested(
        operation=operation("p1"),
        fence=1,
        reason="timeout",
        requested_at=real_now(),
        deadline_at=real_now().replace(year=2100),
    )
    await stage.say(request, "settle-1", event_subject("orchestrator", "settle", TENANT))
    asked = await next_task(tasks)
    find = FindTask.model_validate_json(asked.data)
    assert (asked.type, find.fence) == ("FindTask", 2)
    stage.replicas[0].send_signal(signal.SIGKILL)
    await stage.replicas[0].wait()
    found = Found(
        find_id=find.find_id,
        settlement_id=find.settlement_id,
        command_id=find.operation.command_id,
        workflow_id=find.operation.workflow_id,
        tenant=TENANT,
        system="wordpress",
        fence=find.fence,
        finding=finding(FindVerdict.CONFIRMED),
        ledger_status="CONFIRMED",
        found_at=real_now(),
    )
    await stage.answer(found, "found-1", "found")
    settled = "SELECT count(*) FROM reconciler.settlement WHERE state = 'DONE' AND verdict = 'CONFIRMED'"
    await until(lambda: _reaches(stage, settled, 1))

    event = established("p1").evolve(established_at=real_now())
    await stage.say(event, "established-1", event_subject("orchestrator", "established", TENANT))
    probe = ProbeTask.model_validate_json((await next_task(tasks)).data)
    observed = Observed(
        visit_id=probe.visit_id,
        tenant=TENANT,
        system="wordpress",
        resource=probe.resource,
        command_id=probe.command_id,
        observations=(seen(verdict=ProbeVerdict.MISSING).evolve(observed_at=real_now()),),
        observed_at=real_now(),
    )
    await stage.answer(observed, "observed-1", "observed")
    await until(
        lambda: _reaches(
            stage,
            "SELECT count(*) FROM repair_planner.exception WHERE kind = 'state_drift' AND status = 'open' "
            "AND failure_class = 'RESOURCE_MISSING' AND owner <> '' AND deadline_at > opened_at",
            1,
        )
    )
    await tasks.stop()


async def _reaches(stage: Stage, query: str, number: int) -> bool:
    return await stage.count(query) == number
