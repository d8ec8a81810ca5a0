"""Fixtures of the gateway's tests: a database with only the gateway's schema, and one or two replicas on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, edge
from tests.servers import Database, PostgresServer, run_apart

from trueup_common.runtime import bootstrap
from trueup_gateway.api import app
from trueup_gateway.tables import METADATA


@pytest.fixture(scope="session", autouse=True)
def described_once() -> Iterator[None]:
    """The same routes have the same description: it is made once, because that takes longer than most tests."""
    describe, described = app.document_of, dict[tuple[int, ...], Any]()

    def document_of(routes: Sequence[Any]) -> Any:
        key = tuple(map(id, routes))
        if key not in described:
            described[key] = describe(routes)
        return described[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "document_of", document_of)
        yield


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
