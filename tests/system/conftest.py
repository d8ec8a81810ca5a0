"""One plane that modules share, because starting one takes longer than most tests, and one with two of everything."""

from collections.abc import Generator, Iterator

import pytest

from tests.system.plane import Plane, http
from tests.turns import SHARED_PLANE
from trueup_common.contracts.topology import SERVICES

_SHARING = {name.rpartition("/")[2] for lot in SHARED_PLANE for name in lot}
_shared: list[Plane] = []
"""The shared plane of this test process, while there is one."""


@pytest.fixture(scope="session")
def shared() -> Iterator[list[Plane]]:
    """Nothing yet or the shared plane, which ends with the session at the latest."""
    yield _shared
    stop_shared()


@pytest.fixture(scope="module")
def plane(shared: list[Plane], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process of every service, shared; faults that a module did not use up do not meet the next one."""
    if not shared:
        shared.append(Plane(tmp_path_factory.mktemp("plane")).start())
    yield shared[0]
    http("DELETE", f"{shared[0].sandbox_url}/_faults")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Stop the shared plane after its last user here: beside the tests that follow it would only take their time."""
    try:
        yield
    finally:
        in_lots = hasattr(item.config, "workerinput")
        if in_lots and (nextitem is None or nextitem.path.name not in _SHARING):
            stop_shared()


def stop_shared() -> None:
    while _shared:
        _shared.pop().stop()


@pytest.fixture(scope="module")
def twin_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Two processes of every service."""
    plane = Plane(tmp_path_factory.mktemp("twins"), replicas=dict.fromkeys(SERVICES, 2)).start()
    yield plane
    plane.stop()
