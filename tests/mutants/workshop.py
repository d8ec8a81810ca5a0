"""The workshop: a copy of the tree, and for each mutant a copy of the one package that it changes, first on the path.

The tree itself is only read. What happens to it while a run goes on changes nothing in the run.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.mutants.mutant import ROOT, Killer, Mutant, Seeds

COPIED: Final = ("libs", "services", "tests", "docs")
ALONE: Final = ("pyproject.toml", "constraints.txt", "Makefile", "README.md")
PLUGINS: Final = ("pytest_asyncio.plugin", "_hypothesis_pytestplugin", "tests.mutants.recorder", "no:cacheprovider")
"""The plugins that the tests need; loading whatever else is installed would cost as much as the tests themselves."""

PYTEST: Final = ("-x", *(f"-p{plugin}" for plugin in PLUGINS), "--tb=line", "--no-header")
FIRST_FAILURE: Final = "-x"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one killer's run.

    `outcome`: passed, killed, crashed (it failed, but by no assertion), unseen (the mutated module was never loaded),
    late (no end within the limit), unusable (pytest itself could not run it).
    """

    outcome: str
    seconds: float
    by: str = ""
    says: str = ""


@dataclass(slots=True)
class Workshop:
    """A folder that is thrown away afterwards."""

    folder: Path
    limit_seconds: float = 180.0
    root: Path = ROOT
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _nurseries: list[subprocess.Popen[str]] = field(default_factory=list)
    _free: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def copy(self) -> Path:
        """The tree as it was when the run began."""
        return self.folder / "tree"

    def open(self) -> None:
        """Copy the tree."""
        self.copy.mkdir(parents=True)
        for name in COPIED:
            if (self.root / name).is_dir():
                shutil.copytree(self.root / name, self.copy / name, symlinks=True, ignore=_leave_out)
        for name in ALONE:
            shutil.copy2(self.root / name, self.copy / name)

    def close(self, *, keep: bool) -> None:
        """End what runs, and throw the folder away."""
        for nursery in self._nurseries:
            if nursery.stdin is not None:
                nursery.stdin.close()
            nursery.wait()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def overlay(self, mutant: Mutant) -> Path:
        """A folder with the mutant's own copy of its package. Raises ValueError where the mutant does not apply."""
        top = Path(mutant.file).parts[2]
        overlay = self.folder / "overlay" / mutant.name
        shutil.rmtree(overlay, ignore_errors=True)
        shutil.copytree(self.copy / mutant.package / top, overlay / top)
        target = overlay.joinpath(*Path(mutant.file).parts[2:])
        text = mutant.mutated(mutant.source(self.copy))
        target.write_text(text, encoding="utf-8")
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            compiled.unlink()
        return overlay

    def forget(self, overlay: Path) -> None:
        """Throw a mutant's copy away."""
        shutil.rmtree(overlay, ignore_errors=True)

    def run(self, killer: Killer | Sequence[str], mutant: Mutant | None, overlay: Path | None) -> Verdict:
        """Let one killer (or many tests at once) look at the tree, or at the mutant."""
        place = self.folder / "runs" / f"{mutant.name if mutant else 'control'}-{next(self._numbers)}"
        place.mkdir(parents=True)
        report = place / "report.json"
        roots = [*sorted((self.copy / "libs").iterdir()), *sorted((self.copy / "services").iterdir())]
        path = [str(root) for root in ((overlay, *roots) if overlay else roots)]
        wanted = {
            "command": _command(killer, place, once=mutant is not None),
            "environment": _environment(path, report, mutant),
            "path": path,
            "output": str(place / "output.txt"),
            "limit_seconds": self.limit_seconds if mutant else 10 * self.limit_seconds,
        }
        begun = time.monotonic()
        status = self._ask(wanted)
        seconds = time.monotonic() - begun
        verdict = _verdict(status, _read(report), seconds, place, mutant, overlay)
        shutil.rmtree(place / "base", ignore_errors=True)
        return verdict

    def _ask(self, wanted: Mapping[str, Any]) -> int | None:
        """Let a free nursery run it; a new one where none is free."""
        try:
            nursery = self._free.pop()
        except IndexError:
            nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants.nursery"],
                cwd=self.copy,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._nurseries.append(nursery)
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(json.dumps(wanted) + "\n")
        nursery.stdin.flush()
        line = nursery.stdout.readline()
        if not line:
            raise RuntimeError(f"a nursery ended with status {nursery.wait()}")
        answer: dict[str, int | None] = json.loads(line)
        self._free.append(nursery)
        return answer["status"]


def _leave_out(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in {".git", "node_modules", ".hypothesis", ".mypy_cache"}}


def _command(killer: Killer | Sequence[str], place: Path, *, once: bool) -> list[str]:
    if isinstance(killer, Seeds):
        return ["seeds", *killer.arguments]
    tests = [killer] if isinstance(killer, str) else list(killer)
    options = [item for item in PYTEST if once or item != FIRST_FAILURE]
    return ["pytest", *options, "--hypothesis-seed=0", f"--basetemp={place / 'base'}", *tests]


def _environment(path: Sequence[str], report: Path, mutant: Mutant | None) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
        "PYTHONPATH": os.pathsep.join(path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TRUEUP_MUTANT_REPORT": str(report),
        "TRUEUP_MUTANT_MODULE": mutant.module if mutant else "",
    }


def _read(report: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"failed": [], "loaded": None}
    return found


def _verdict(
    status: int | None,
    report: Mapping[str, Any],
    seconds: float,
    place: Path,
    mutant: Mutant | None,
    overlay: Path | None,
) -> Verdict:
    failed = report["failed"]
    first = next((item for item in failed if item["kind"] != "error"), failed[0] if failed else None)
    by, says = (first["test"], first["says"]) if first else ("", "")
    if status is None:
        return Verdict("late", seconds)
    if status == 0 or (status == 1 and first is not None):
        loaded = report["loaded"]
        if overlay is not None and (loaded is None or not str(loaded).startswith(str(overlay))):
            return Verdict("unseen", seconds, by, f"{mutant.module if mutant else ''} was loaded from {loaded}")
        if first is None:
            return Verdict("passed", seconds)
        return Verdict("crashed" if first["kind"] == "error" else "killed", seconds, by, says)
    tail = (place / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return Verdict("crashed" if first else "unusable", seconds, by, says or " ".join(tail)[:300])


def tests_of(mutants: Iterable[Mutant]) -> list[str]:
    """All tests that are named as killers, each once."""
    return sorted({killer for mutant in mutants for killer in mutant.killers if isinstance(killer, str)})


def seeds_of(mutants: Iterable[Mutant]) -> list[Seeds]:
    """All ranges of seeds that are named as killers; of those of one kind the widest."""
    widest: dict[tuple[str | None, bool | None], tuple[int, int]] = {}
    for killer in (killer for mutant in mutants for killer in mutant.killers if isinstance(killer, Seeds)):
        first, last = widest.get((killer.theme, killer.sagas), (killer.first, killer.first))
        widest[killer.theme, killer.sagas] = min(first, killer.first), max(last, killer.first + killer.count)
    return [Seeds(last - first, first, theme, sagas) for (theme, sagas), (first, last) in widest.items()]
