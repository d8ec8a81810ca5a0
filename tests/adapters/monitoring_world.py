"""A world for the monitoring adapter: documents in a real database, a page on a real port, a Prometheus that asks.

The write of this adapter is a commit of its own service, so the faults of writes stand between it and its documents.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from tests.adapters.worlds import NOWHERE, SandboxWorld, connection_of
from tests.servers import Database as ServerDatabase

from trueup_adapters.discovery import discovery_routes
from trueup_adapters.execution import Line
from trueup_adapters.store import SqlDocuments
from trueup_adapters.systems import monitoring
from trueup_common.contracts.adapter import Adapter, Document, Documents, DocumentsAway
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.db import Database
from trueup_common.testing.adapter_conformance import Case
from trueup_devkit.sandbox import Sandbox, sandbox_connections
from trueup_devkit.sandbox.server import Listener, bind
from trueup_devkit.sandbox.systems.monitoring import Monitoring

Change = Callable[[Callable[[], None]], Awaitable[Document]]


class FlakyDocuments:
    """Documents that fail once on command, or for good where they are `away`."""

    def __init__(self, inner: Documents, *, away: bool = False) -> None:
        self.inner = inner
        self.away = away
        self.fault: str | None = None
        self.seconds = 0.0
        self._late: set[asyncio.Task[Document]] = set()

    async def get(self, key: str) -> Document | None:
        self._there()
        return await self.inner.get(key)

    async def made_by(self, operation_id: str) -> Document | None:
        self._there()
        return await self.inner.made_by(operation_id)

    async def removed_by(self, operation_id: str) -> Document | None:
        self._there()
        return await self.inner.removed_by(operation_id)

    async def standing(self) -> Sequence[Document]:
        self._there()
        return await self.inner.standing()

    async def put(
        self, key: str, content: Mapping[str, Any], *, operation_id: str, may_send: Callable[[], None]
    ) -> Document:
        return await self._change(
            lambda may: self.inner.put(key, content, operation_id=operation_id, may_send=may), may_send
        )

    async def remove(self, document: Document, *, operation_id: str, may_send: Callable[[], None]) -> Document:
        return await self._change(
            lambda may: self.inner.remove(document, operation_id=operation_id, may_send=may), may_send
        )

    def _there(self) -> None:
        if self.away:
            raise DocumentsAway("the database is away", sent=False)

    async def _change(self, change: Change, may_send: Callable[[], None]) -> Document:
        self._there()
        fault, self.fault = self.fault, None
        if fault == "lose_answer":
            await change(may_send)
            raise DocumentsAway("connection was closed while committing", sent=True)
        if fault == "drop":
            may_send()
            raise DocumentsAway("connection was closed", sent=True)
        if fault == "delay":
            may_send()
            task = asyncio.create_task(self._later(change))
            self._late.add(task)
            return await asyncio.shield(task)
        return await change(may_send)

    async def _later(self, change: Change) -> Document:
        """A server goes on with a statement although its client has left."""
        await asyncio.sleep(self.seconds)
        return await change(lambda: None)


class MonitoringWorld(SandboxWorld):
    """A Prometheus that asks the page of this process."""

    system = "monitoring"
    adapter: Adapter = monitoring.ADAPTER
    page_url: str

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession, database: Database) -> None:
        self.sandbox = sandbox
        self.http = http
        self.counter = itertools.count(1)
        self.documents = FlakyDocuments(SqlDocuments(database, "acme", "monitoring"))
        document = sandbox_connections(sandbox.urls)
        self.connection = replace(connection_of(document, "monitoring"), documents=self.documents)
        nothing_there = FlakyDocuments(self.documents.inner, away=True)
        self.unreachable = replace(connection_of(document, "monitoring", base_url=NOWHERE), documents=nothing_there)
        self.unreadable = None
        self.lines = {("acme", "monitoring"): Line(self.connection, self.adapter.open(self.connection))}

    @property
    def prometheus(self) -> Monitoring:
        system = self.sandbox.systems["monitoring"]
        assert isinstance(system, Monitoring)
        return system

    async def case(self, command_type: str) -> Case:
        """A new check; for its removal it stands already."""
        number = next(self.counter)
        payload: dict[str, Any] = {
            "name": f"article-{number}",
            "url": f"https://blog.example/article-{number}/?a=1&b=%C3%A4",
            "expect": {"status": 200, "contains": "Größe"},
            "interval_seconds": 60,
        }
        if command_type == "monitoring.register_check":
            return Case(resource=f"check/{payload['name']}", payload=payload)
        content = {key: payload[key] for key in ("url", "expect", "interval_seconds")}
        made = await self.documents.inner.put(
            payload["name"], content, operation_id=new_id("cmd"), may_send=lambda: None
        )
        removal = {"check_id": monitoring.check_id_of(made.operation_id)} if number % 2 else {"name": made.key}
        return Case(resource="check", payload=removal, extra={"check": made})

    async def effects_count(self) -> int:
        """What Prometheus has taken up, once it has asked again."""
        await self.prometheus.refresh()
        return await super().effects_count()

    async def lose_answer(self) -> None:
        self.documents.fault = "lose_answer"

    async def drop_request(self) -> None:
        self.documents.fault = "drop"

    async def delay(self, seconds: float) -> None:
        self.documents.fault, self.documents.seconds = "delay", seconds

    async def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
        """A commit fails, or it does not: nobody refuses it with a status."""
        if status < 500:
            pytest.skip("the write of this adapter is a commit of its own service, which no status refuses")
        self.documents.fault = "drop"

    async def answer_unreadably(self) -> None:
        self.documents.fault = "lose_answer"

    async def deny_reads(self) -> None:
        """Neither the documents nor Prometheus can be read."""
        self.documents.away = True
        await super().deny_reads()

    async def heal(self) -> None:
        self.documents.away = False
        await super().heal()

    async def remove(self, element: ProbeElement) -> bool:
        """Somebody takes the target out of Prometheus; an absence cannot be removed."""
        if element.kind != monitoring.PRESENT:
            return False
        await self.prometheus.refresh()
        await self.tamper(f"acme/{element.params['check_id']}", {"delete": True})
        return True


@asynccontextmanager
async def open_monitoring(state_dir: Path, server: ServerDatabase) -> AsyncIterator[MonitoringWorld]:
    """A world on a database that has the adapters' tables; checks of earlier tests are forgotten."""
    database = await Database.connect(server.admin_url, schema="adapters", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE document")
    lines: dict[tuple[str, str], Line] = {}
    page = Listener(Starlette(routes=list(discovery_routes(lines))), bind("127.0.0.1", 0))
    await page.start()
    address = f"http://127.0.0.1:{page.port}/discovery/monitoring/{{tenant}}"
    try:
        async with Sandbox(state_dir, 0, discovery=(address,)) as sandbox, aiohttp.ClientSession() as http:
            world = MonitoringWorld(sandbox, http, database)
            lines.update(world.lines)
            world.lines = lines
            world.page_url = address.replace("{tenant}", "acme")
            yield world
            for line in lines.values():
                await line.target.close()
    finally:
        await page.stop()
        await database.close()
