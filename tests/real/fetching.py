"""Real systems fetched without being installed: packages are unpacked into a folder, and what cannot be had says why.

Nothing outside the folder is touched and no rights are needed. The clients are the machine's own, so they ask the
registries that it is set up for. A stamp beside each unpacked thing makes the second run immediate.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TRUEUP_REAL_DIR", ROOT / ".trueup" / "real"))
FETCH_SECONDS = 400


class Unfetchable(Exception):
    """A real system that cannot be had here, with the reason for people."""


def debian(name: str, packages: Sequence[str], *, alone: Sequence[str] = ()) -> Path:
    """The root of a tree with these Debian packages and what they need beyond this machine.

    `alone` are taken without what they depend on.
    """
    return _once(name, (*packages, "|", *alone), lambda folder: _unpack_debian(folder, packages, alone))


def npm(name: str, package: str, member: str) -> Path:
    """One file out of an npm package."""
    return _once(name, (package, member), lambda folder: _unpack_npm(folder, package, member)) / member


@contextmanager
def one_at_a_time(name: str) -> Iterator[Path]:
    """One process fetches one thing at a time."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _once(name: str, wanted: Sequence[str], fetch: object) -> Path:
    assert callable(fetch)
    with one_at_a_time(name) as folder:
        stamp, asked = folder / "fetched", " ".join(wanted)
        if not stamp.exists() or stamp.read_text() != asked:
            shutil.rmtree(folder / "root", ignore_errors=True)
            (folder / "root").mkdir()
            fetch(folder)
            stamp.write_text(asked)
        return folder / "root"


def _unpack_debian(folder: Path, packages: Sequence[str], alone: Sequence[str]) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unfetchable("no apt-get here: this system comes from Debian's packages")
    apt = CACHE / "apt"
    archives = folder / "archives"
    for path in (apt / "lists" / "partial", archives / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    options = [
        "-qq", "-o", f"Dir::State::lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}", "-o",
        f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    with one_at_a_time("apt"):
        _run(["apt-get", *options, "update"])
    if packages:
        needs = ["--no-install-recommends", "-y", "--download-only", "install"]
        _run(["apt-get", *options, *needs, *packages])
    if alone:
        _run(["apt-get", *options, "download", *alone], cwd=archives)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(folder / "root")])
    shutil.rmtree(archives)


def _unpack_npm(folder: Path, package: str, member: str) -> None:
    if shutil.which("npm") is None:
        raise Unfetchable("no npm here: this description is an npm package")
    _run(["npm", "pack", "--loglevel=error", "--cache", str(CACHE / "npm"), package], cwd=folder)
    archive = next(folder.glob("*.tgz"))
    with tarfile.open(archive) as packed:
        for name in (member, "package.json"):
            source = packed.extractfile(f"package/{name}")
            if source is None:
                raise Unfetchable(f"{package} has no {name}")
            target = folder / "root" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(source, out)
    archive.unlink()


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=quiet, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as slow:
        raise Unfetchable(f"{command[0]} did not end within {FETCH_SECONDS} s") from slow
    if done.returncode:
        said = (done.stderr or done.stdout).splitlines()
        named = [line for line in said if line.startswith("E:") or "error" in line.lower()]
        raise Unfetchable(f"{command[0]} failed: {named[0][:200] if named else done.returncode}")
