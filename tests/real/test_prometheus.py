"""Monitoring: a real Prometheus discovers what was registered and reports it; the same expectations as the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.adapters import test_conformance, test_monitoring
from tests.adapters.conftest import documents_database
from tests.adapters.monitoring_world import MonitoringWorld, open_monitoring
from tests.real.prometheus_server import PrometheusServer
from tests.real.prometheus_world import open_real_monitoring
from tests.real.sharing import KINDS, shared
from tests.servers import Database
from trueup_adapters.systems.monitoring import ABSENT, ELEMENT, PRESENT
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench
from trueup_devkit.sandbox.systems.monitoring import discovery_token

SANDBOX_ONLY: Final = {
    "test_registered_is_what_prometheus_says_and_not_what_was_written": "nobody edits the targets of a real Prometheus",
    "test_a_prometheus_that_began_lately_proves_no_absence": "a real one of its own is started below",
}
__all__ = ["documents_database"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def world(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, documents_database: Database
) -> AsyncIterator[MonitoringWorld]:
    if kind == "sandbox":
        async with open_monitoring(tmp_path, documents_database) as world:
            yield world
        return
    reason = SANDBOX_ONLY.get(request.function.__name__)
    if reason:
        pytest.skip(reason)
    server: PrometheusServer = request.getfixturevalue("seasoned_prometheus")
    async with open_real_monitoring(server, tmp_path, documents_database) as world:
        yield world


class TestConformance(test_conformance.TestMonitoring):
    """The adapter conformance suite. Requirements: X8."""

    @pytest_asyncio.fixture
    async def world(self, world: MonitoringWorld) -> MonitoringWorld:  # type: ignore[override]
        return world


globals().update(shared(test_monitoring))


async def test_a_young_prometheus_proves_no_absence(
    tmp_path: Path, documents_database: Database, prometheus_server: PrometheusServer
) -> None:
    """Its list does not outlive it: a check that it does not list yet is unknown, one that it lists is there.

    Requirements: E4, R8
    """
    assert prometheus_server.version, "it can be had at all"
    server = PrometheusServer(discovery_token("acme")).start()
    try:
        async with open_real_monitoring(server, tmp_path, documents_database) as world:
            made = await Bench.set_up(world, "monitoring.register_check")
            receipt: Any = (await made.perform()).result
            elements = [
                ProbeElement(element=ELEMENT, kind=kind, params={"check_id": check})
                for check in (receipt["check_id"], "chk_other") for kind in (PRESENT, ABSENT)
            ]  # fmt: skip
            await world.prometheus.refresh()
            there, still, unknown, not_gone = await made.target.probe(elements)
            assert (there.verdict, there.value) == (ProbeVerdict.CONFIRMED, receipt["registered"])
            assert still.value == there.value
            assert {item.reason for item in (unknown, not_gone)} == {"warming_up"}
            assert not unknown.proof_of_access
            await made.target.close()
    finally:
        server.stop()
