"""Wiring: which systems a process serves, and what keeps it unready."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup_adapters.main import configured, differing, installed
from trueup_adapters.systems import bench
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.settings import Settings


def test_installed_adapters_come_from_entry_points() -> None:
    """All that are installed, or the named ones; a name that is not there is an error."""
    assert {"wordpress", "bench"} <= set(installed(""))
    assert set(installed(" bench ")) == {"bench"}
    with pytest.raises(SystemExit, match="nothing"):
        installed("bench,nothing")


def test_every_adapter_is_named_after_its_system() -> None:
    assert all(adapter.system == name for name, adapter in installed("").items())


def test_declarations_that_differ_from_the_catalog_keep_the_process_unready() -> None:
    """Requirements: X8. Missing, or current under another hash: the process says which."""
    adapters = {"bench": bench.ADAPTER}
    assert differing(adapters, Catalog.of(bench.ADAPTER.declarations)) is None
    missing = differing(adapters, Catalog.of(bench.ADAPTER.declarations[:1]))
    assert missing is not None
    assert "bench.post_verified" in missing
    changed = bench.ADAPTER.declarations[0].evolve(title="Changed")
    newer = Catalog.of([*bench.ADAPTER.declarations, changed])
    assert "bench.post" in (differing(adapters, newer) or "")


def test_an_unusable_connections_file_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    """Requirements: T3. Named and without a stack trace."""
    path = tmp_path / "connections.yaml"
    path.write_text("connections: 5")
    with pytest.raises(SystemExit, match=r"connections\.yaml"):
        configured(Settings(connections=path))
    assert configured(Settings()) == ()
