"""A page of evidence: what a command printed, with the command, the day and the kind of machine; no host, no path."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

from trueup_common.runtime.clock import real_now
from trueup_devkit.binaries import BinaryMissingError, find_nats_server, find_postgres_folder

_CPU_INFO = Path("/proc/cpuinfo")


def write_page(path: Path, title: str, command: str, intro: str, table_lines: Sequence[str]) -> None:
    """Write a Markdown page: title, intro, how it was made and on what, and the table as it was printed."""
    made = real_now().astimezone(UTC).date().isoformat()
    text = "\n".join(
        [
            f"# {title}",
            "",
            intro.strip(),
            "",
            f"Made by `{command}` on {made}, on {machine()}.",
            "",
            *table_lines,
            "",
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def machine() -> str:
    """Cores, processor and versions, in one sentence."""
    servers = [said for said in (_version(_postgres()), _version(_nats())) if said]
    parts = [f"{os.cpu_count()} cores ({_processor()})", f"Python {platform.python_version()}", *servers]
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine() or "unknown")


def _postgres() -> list[str]:
    try:
        return [str(find_postgres_folder() / "postgres"), "--version"]
    except BinaryMissingError:
        return []


def _nats() -> list[str]:
    try:
        return [str(find_nats_server()), "--version"]
    except BinaryMissingError:
        return []


def _version(command: list[str]) -> str:
    """What a server program says of itself, without what a package adds; nothing where it cannot be asked."""
    if not command:
        return ""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = said.replace("postgres (PostgreSQL)", "PostgreSQL").replace("nats-server: v", "NATS ").split()
    return " ".join(words[:2])
