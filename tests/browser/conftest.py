"""A plane with real exceptions, and windows of a real browser on its console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.browser.chromium import missing
from tests.browser.desk import Desk, desk_on
from tests.servers import Database, PostgresServer, run_apart
from trueup_common.runtime import bootstrap
from trueup_gateway.tables import METADATA

if TYPE_CHECKING:
    from tests.browser.window import Window

REASON = missing()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser these tests are skipped, each by its name and with the reason."""
    for item in items:
        if "/tests/browser/" in str(item.path).replace("\\", "/") and REASON is not None:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="module")
def desk_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database with the gateway's schema."""
    database = postgres_server.fresh_database()
    password = postgres_server.passwords["gateway"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "service_metadata", lambda: {"gateway": (METADATA, "trueup_gateway")})
        run_apart(lambda: bootstrap.bootstrap_database(database.admin_url, {"gateway": password}))
    database.urls["gateway"] = postgres_server.cluster.url("trueup_gateway", password, database.name)
    yield database
    postgres_server.drop(database)


@pytest_asyncio.fixture
async def desk(desk_database: Database) -> AsyncIterator[Desk]:
    """A gateway on a port of its own, in this process."""
    async with desk_on(desk_database) as running:
        yield running


@pytest_asyncio.fixture
async def window(desk: Desk) -> AsyncIterator[Window]:
    """A window on the desk, as wide as a desk allows."""
    from tests.browser.window import window as opening

    async with opening(desk.url) as opened:
        yield opened
