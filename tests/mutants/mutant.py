"""One mutant: a line as a tired engineer might have written it, and who must notice. Nothing here touches the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of the simulation, of which at least one must come to a violation."""

    count: int
    first: int = 0
    theme: str | None = None
    sagas: bool | None = None

    def __str__(self) -> str:
        about = [f"theme {self.theme}"] if self.theme else []
        about += [] if self.sagas is None else ["workflows" if self.sagas else "commands"]
        return " ".join([f"seeds {self.first}-{self.first + self.count - 1}", *about])

    @property
    def arguments(self) -> list[str]:
        """For `python -m tests.mutants.seeds`."""
        said = ["--first", str(self.first), "--count", str(self.count)]
        said += ["--theme", self.theme] if self.theme else []
        return said if self.sagas is None else [*said, "--sagas", "yes" if self.sagas else "no"]


Killer = str | Seeds
"""`path::test` of pytest, all its parameters; or seeds."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` occurs exactly once in `file`. `killers` are ordered, the cheapest first; the first that kills ends it."""

    name: str
    law: str
    """What it breaks, in words."""
    rows: str
    """The requirement rows behind the law."""
    file: str
    old: str
    new: str
    killers: tuple[Killer, ...]

    def source(self, root: Path = ROOT) -> str:
        """The file as it is. Raises OSError."""
        return (root / self.file).read_text(encoding="utf-8")

    def mutated(self, source: str) -> str:
        """The file as it would be. Raises ValueError where the place is not there, or not the only one."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)

    @property
    def package(self) -> str:
        """The folder of its package root, below which the module's own name begins."""
        parts = Path(self.file).parts
        return "/".join(parts[:2])

    @property
    def module(self) -> str:
        """The name under which Python imports it."""
        return ".".join(Path(self.file).with_suffix("").parts[2:])
