"""Fixtures of the gateway's tests: a database with only the gateway's schema, and one or two replicas on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, edge
from tests.servers import Database, PostgresServer, run_apart

from trueup_common.runtime import bootstrap
from trueup_gateway.tables import METADATA


@pytest.fixture(scope="module")
def gateway_database(postgres_server: PostgresServer, monkeypatch_module: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that holds the gateway's schema and its role."""
    database = postgres_server.fresh_database()
    monkeypatch_module.setattr(bootstrap, "service_metadata", lambda: {"gateway": (METADATA, "trueup_gateway")})
    password = postgres_server.passwords["gateway"]
    run_apart(lambda: bootstrap.bootstrap_database(database.admin_url, {"gateway": password}))
    database.urls["gateway"] = postgres_server.cluster.url("trueup_gateway", password, database.name)
    yield database
    postgres_server.drop(database)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    """Changes for the time of one module."""
    patch = pytest.MonkeyPatch()
    yield patch
    patch.undo()


@pytest_asyncio.fixture
async def gateway(gateway_database: Database) -> AsyncIterator[EdgeUnderTest]:
    """One replica."""
    async with edge(gateway_database) as running:
        yield running
