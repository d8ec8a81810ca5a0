"""Fixtures that every test package may use: the session's servers, a database per module, a clean bus per module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import BusServer, Database, PlaneClusters, PostgresServer
from tests.system.plane import Plane
from tests.turns import InLots, in_turns

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # an example that takes long says something of the machine, not of the law

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel workers get files in turns; a run without workers keeps its order."""
    if hasattr(config, "workerinput"):
        places = in_turns(item.path.relative_to(TESTS).as_posix() for item in items)
        items.sort(key=lambda item: places[item.path.relative_to(TESTS).as_posix()])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InLots:
    """Who hands the files out to parallel workers."""
    return InLots(config, log)


@pytest.fixture(scope="session", autouse=True)
def plane_clusters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Planes start from a copy of one migrated cluster, which parallel workers share."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if hasattr(request.config, "workerinput") else base
    Plane.clusters = PlaneClusters(place / "plane_cluster")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One embedded cluster per test process; it dies with the process."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusServer]:
    """One NATS server per test process with the real users and permissions; streams are the caller's business."""
    server = BusServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def fresh_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """An empty database for one test module."""
    database = postgres_server.fresh_database()
    yield database
    postgres_server.drop(database)


@pytest.fixture(scope="module")
def plane_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A migrated database with roles and per-service URLs for one test module."""
    database = postgres_server.plane_database()
    yield database
    postgres_server.drop(database)


@pytest.fixture(scope="module")
def plane_bus(nats_server: BusServer) -> Iterator[BusServer]:
    """The bus with freshly made streams, consumers and buckets for one test module."""
    nats_server.wipe()
    nats_server.bootstrap()
    yield nats_server
    nats_server.wipe()
