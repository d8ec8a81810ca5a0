"""Alert rules and configuration as Prometheus itself reads them, and the alerts over series that promtool makes up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real.fetching import Unfetchable, debian

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return shutil.which("promtool") or str(debian("prometheus", ("prometheus",)) / "usr/bin/promtool")
    except Unfetchable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "alerts.test.yaml"),
    ],
    ids=" ".join,
)
def test_prometheus_takes_what_is_shipped(promtool: str, arguments: tuple[str, ...]) -> None:
    """Requirements: V3"""
    run = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
