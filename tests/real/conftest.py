"""What real systems there are, fetched once per session; a test whose system cannot be had is skipped by its name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.real.fetching import Unfetchable
from tests.real.prometheus_server import PrometheusServer
from tests.real.wordpress_server import WordPressServer
from tests.system.plane import Plane

from trueup_adapters.systems.monitoring import WINDOW_SECONDS
from trueup_devkit.sandbox.systems.monitoring import discovery_token


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only who names this folder runs it: it installs what it needs."""
    return None if any("tests/real" in argument for argument in config.args) else True


@pytest.fixture(scope="session")
def wordpress_server() -> Iterator[WordPressServer]:
    """A real WordPress."""
    try:
        server = WordPressServer().start()
    except Unfetchable as failure:
        pytest.skip(f"WordPress: {failure}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def prometheus_server() -> Iterator[PrometheusServer]:
    """A real Prometheus."""
    try:
        server = PrometheusServer(discovery_token("acme")).start()
    except Unfetchable as failure:
        pytest.skip(f"Prometheus: {failure}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seasoned_prometheus(prometheus_server: PrometheusServer) -> PrometheusServer:
    """One whose silence proves something: it had the time to ask."""
    while prometheus_server.age_seconds() < WINDOW_SECONDS + 1:
        time.sleep(0.5)
    return prometheus_server


@pytest.fixture(scope="session")
def real_plane(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Plane]:
    """A plane without a sandbox; its one connection leads to the real WordPress."""
    server: WordPressServer = request.getfixturevalue("wordpress_server")
    folder = tmp_path_factory.mktemp("real-plane")
    site = {
        "tenant": "acme", "system": "wordpress", "base_url": f"{server.url}/acme", "username": "bot",
        "password": server.passwords["bot"], "read_username": "reader", "read_password": server.passwords["reader"],
        "allow_private_network": True,
    }  # fmt: skip
    (folder / "connections.yaml").write_text(json.dumps({"connections": [site]}))
    plane = Plane(folder / "state", connections=str(folder / "connections.yaml")).start()
    yield plane
    plane.stop()
