"""The reusable conformance suite, run for the adapters of this repository against the sandbox world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.adapters.cloudflare_world import CloudflareWorld
from tests.adapters.database_world import DatabaseWorld, customer_database, open_database
from tests.adapters.github_world import GitHubWorld
from tests.adapters.monitoring_world import MonitoringWorld, open_monitoring
from tests.adapters.worlds import BenchWorld, WordPressWorld, open_world
from tests.servers import Database, PostgresServer

from trueup_common.contracts.states import ErrorClass, ReceiptStatus
from trueup_common.testing.adapter_conformance import AdapterConformance, Bench


class TestWordPress(AdapterConformance):
    """WordPress, all command types. Requirements: X8."""

    command_types = (
        "wordpress.create_draft",
        "wordpress.update_post",
        "wordpress.publish_post",
        "wordpress.restore_draft",
        "wordpress.withdraw_post",
        "wordpress.trash_post",
    )
    read_types = ("wordpress.inspect_post",)

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[WordPressWorld]:
        async with open_world(WordPressWorld, tmp_path) as world:
            yield world


class TestBench(AdapterConformance):
    """The bench stub. Requirements: X8."""

    command_types = ("bench.post", "bench.post_verified", "bench.make", "bench.unmake")

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[BenchWorld]:
        async with open_world(BenchWorld, tmp_path) as world:
            yield world


class TestMonitoring(AdapterConformance):
    """Monitoring, over documents in a real database and a Prometheus that asks for them. Requirements: X8."""

    command_types = ("monitoring.register_check", "monitoring.remove_check")

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path, documents_database: Database) -> AsyncIterator[MonitoringWorld]:
        async with open_monitoring(tmp_path, documents_database) as world:
            yield world


class TestCloudflare(AdapterConformance):
    """Cloudflare's purge. Requirements: X8, E1."""

    command_types = ("cloudflare.purge",)

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[CloudflareWorld]:
        async with open_world(CloudflareWorld, tmp_path) as world:
            yield world


@pytest.fixture(scope="module")
def customer(postgres_server: PostgresServer) -> Iterator[Database]:
    """A customer's database for all tests of the class."""
    with customer_database(postgres_server) as made:
        yield made


class TestDatabase(AdapterConformance):
    """A customer's PostgreSQL, a real one. Requirements: X8."""

    command_types = ("database.record_publication", "database.cancel_publication")

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path, customer: Database) -> AsyncIterator[DatabaseWorld]:
        async with open_database(tmp_path, customer) as world:
            yield world

    async def test_a_busy_target_is_transient(self, world: DatabaseWorld, command_type: str) -> None:  # type: ignore[override]
        """Requirements: X5. Too many connections: known not to have happened. PostgreSQL has no Retry-After."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.answer(429, {}, None)
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
        assert (outcome.error_code, outcome.retry_after_seconds) == ("too_many_connections", None)
        assert await world.effects_count() == before
        await bench.target.close()


class TestGitHub(AdapterConformance):
    """GitHub, all command types. Requirements: X8."""

    command_types = ("github.archive_version", "github.delete_branch", "github.restore_branch")

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[GitHubWorld]:
        async with open_world(GitHubWorld, tmp_path) as world:
            yield world
