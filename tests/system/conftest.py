"""One plane that modules share, because starting one takes longer than most tests, and one with two of everything."""

from collections.abc import Iterator

import pytest

from tests.system.plane import Plane, http
from trueup_common.contracts.topology import SERVICES


@pytest.fixture(scope="session")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process of every service."""
    plane = Plane(tmp_path_factory.mktemp("plane")).start()
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def plane(shared_plane: Plane) -> Iterator[Plane]:
    """The shared plane; faults that a module did not use up do not meet the next one."""
    yield shared_plane
    http("DELETE", f"{shared_plane.sandbox_url}/_faults")


@pytest.fixture(scope="module")
def twin_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Two processes of every service."""
    plane = Plane(tmp_path_factory.mktemp("twins"), replicas=dict.fromkeys(SERVICES, 2)).start()
    yield plane
    plane.stop()
