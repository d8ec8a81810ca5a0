"""What real systems there are, fetched once per session; a test whose system cannot be had is skipped by its name.

`--write PAGE` keeps what the run came to; the last line is JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.fetching import Unfetchable
from tests.real.prometheus_server import PrometheusServer
from tests.real.report import INTRO, Report
from tests.real.wordpress_server import WordPressServer
from tests.system.plane import Plane
from trueup_adapters.systems.monitoring import WINDOW_SECONDS
from trueup_devkit.evidence import write_page
from trueup_devkit.sandbox.systems.monitoring import discovery_token

REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The page is written only where it is asked for."""
    parser.addoption("--write", metavar="PAGE", default=None, help="write what the run came to, as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = Report()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only who names this folder runs it: it installs what it needs."""
    return None if any("tests/real" in argument for argument in config.args) else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    made: pytest.TestReport = yield  # type: ignore[misc, assignment]
    report = item.config.stash.get(REPORT, None)
    ended = made.when == "call" or made.outcome != "passed"
    if report is not None and ended and not (made.when == "teardown" and made.outcome == "passed"):
        reason = made.longrepr[2] if made.skipped and isinstance(made.longrepr, tuple) else ""
        report.add(item.nodeid, made.outcome, call.duration, reason.removeprefix("Skipped: "))
    return made  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash.get(REPORT, None)
    if report is None or not report.results:
        return
    lines = report.lines()
    terminalreporter.write_line("")
    for line in lines:
        terminalreporter.write_line(line)
    page = config.getoption("--write")
    if page:
        command = f'make test-real ARGS="--write {page}"'
        write_page(Path(page), "The real systems", command, INTRO, lines)


def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's own last word."""
    report = config.stash.get(REPORT, None)
    if report is not None and report.results:
        sys.__stdout__.write(report.json() + "\n") if sys.__stdout__ else None


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Where a system says its version."""
    return request.config.stash[REPORT]


@pytest.fixture(scope="session")
def wordpress_server(report: Report) -> Iterator[WordPressServer]:
    """A real WordPress."""
    try:
        server = WordPressServer().start()
    except Unfetchable as failure:
        pytest.skip(f"WordPress: {failure}")
    report.versions["WordPress"] = f"{server.version}, PHP {server.php_version}, MariaDB {server.database_version}"
    yield server
    server.stop()


@pytest.fixture(scope="session")
def prometheus_server(report: Report) -> Iterator[PrometheusServer]:
    """A real Prometheus."""
    try:
        server = PrometheusServer(discovery_token("acme")).start()
    except Unfetchable as failure:
        pytest.skip(f"Prometheus: {failure}")
    report.versions["Prometheus"] = server.version
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seasoned_prometheus(prometheus_server: PrometheusServer) -> PrometheusServer:
    """One whose silence proves something: it had the time to ask."""
    while prometheus_server.age_seconds() < WINDOW_SECONDS + 1:
        time.sleep(0.5)
    return prometheus_server


@pytest.fixture(scope="session", autouse=True)
def early(request: pytest.FixtureRequest) -> None:
    """Prometheus grows old enough while others are tested."""
    if any("kind" in getattr(item, "fixturenames", ()) and "test_prometheus" in item.nodeid
           for item in request.session.items):  # fmt: skip
        with contextlib.suppress(pytest.skip.Exception):
            request.getfixturevalue("prometheus_server")


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
