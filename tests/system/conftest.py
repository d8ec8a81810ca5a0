"""One plane per module: a single one, or with two replicas of every service."""

from collections.abc import Iterator

import pytest

from tests.system.plane import Plane
from trueup_common.contracts.topology import SERVICES


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process of every service."""
    plane = Plane(tmp_path_factory.mktemp("plane")).start()
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def twin_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Two processes of every service."""
    plane = Plane(tmp_path_factory.mktemp("twins"), replicas=dict.fromkeys(SERVICES, 2)).start()
    yield plane
    plane.stop()
