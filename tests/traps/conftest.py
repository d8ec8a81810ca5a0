"""The orchestrator's own schema with a table of notes, as its own role sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.servers import BusServer, PostgresServer
from tests.servers import Database as PlaneDatabase
from tests.traps.workbench import SERVICE
from trueup_common.runtime.bus import Bus
from trueup_common.runtime.db import Database


@pytest.fixture(scope="module")
def noting_database(plane_database: PlaneDatabase, postgres_server: PostgresServer) -> Iterator[PlaneDatabase]:
    postgres_server.execute(
        "CREATE TABLE orchestrator.note (text text);"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON orchestrator.note TO trueup_orchestrator",
        plane_database.admin_url,
    )
    yield plane_database


@pytest_asyncio.fixture
async def database(noting_database: PlaneDatabase) -> AsyncIterator[Database]:
    made = await Database.connect(noting_database.url(SERVICE), schema=SERVICE, size=4)
    async with made.connection() as connection:
        for table in ("note", "inbox", "delivery_failure", "quarantine", "outbox_unsent", "outbox"):
            await connection.execute(f"DELETE FROM {table}")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def clean_bus(plane_bus: BusServer) -> AsyncIterator[BusServer]:
    """Streams as the bootstrap makes them; whatever a test did to them is undone before the next one."""
    plane_bus.wipe()
    plane_bus.bootstrap()
    yield plane_bus


@pytest_asyncio.fixture
async def gateway(clean_bus: BusServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(clean_bus.url("gateway"), service="gateway", name="gateway-test")
    yield bus
    await bus.close()


@pytest_asyncio.fixture
async def orchestrator(clean_bus: BusServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(clean_bus.url(SERVICE), service=SERVICE, name="orchestrator-test")
    yield bus
    await bus.close()
