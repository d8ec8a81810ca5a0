"""Pages of evidence say how they were made, and nothing of where."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

from trueup_devkit.evidence import machine, write_page


def test_a_page_names_its_command_and_the_kind_of_machine(tmp_path: Path) -> None:
    """Title, intro, command, cores and versions stand above the table; host and paths stand nowhere."""
    path = tmp_path / "below" / "page.md"
    write_page(path, "Mutants", "make mutants", "What was done.\n", ["| a |", "|---|", "| 1 |"])
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Mutants\n\nWhat was done.\n\nMade by `make mutants` on 20")
    assert f"{os.cpu_count()} cores" in text and f"Python {platform.python_version()}" in text
    assert "PostgreSQL 1" in text and "NATS 2" in text
    assert text.endswith("| a |\n|---|\n| 1 |\n")
    assert socket.gethostname() not in text and str(tmp_path) not in text and str(Path.home()) not in machine()
