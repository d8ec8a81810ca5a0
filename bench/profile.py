"""Where CPU goes inside the services: snapshots of `bench.profiled`, subtracted and ranked."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

SNAPSHOT_TIMEOUT_SECONDS = 10.0
Table = dict[str, tuple[int, float, float]]
NOTHING = (0, 0.0, 0.0)


def take_snapshot(pid: int, prefix: str) -> Table:
    """Ask a profiled process for its next snapshot."""
    folder, name = Path(prefix).parent, Path(prefix).name
    path = folder / f"{name}.{len(list(folder.glob(f'{name}.*.json'))) + 1}.json"
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + SNAPSHOT_TIMEOUT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} wrote no snapshot {path.name}")
        time.sleep(0.01)
    return {function: (int(row[0]), row[1], row[2]) for function, row in json.loads(path.read_text()).items()}


@dataclass(frozen=True)
class Line:
    """One function between two snapshots."""

    function: str
    calls: int
    own_seconds: float
    whole_seconds: float


@dataclass(frozen=True)
class Profile:
    """One service between two snapshots, over a number of units."""

    first: Table
    last: Table
    units: int

    def lines(self) -> list[Line]:
        """All functions that ran, the most expensive by own time first."""
        found = []
        for function, (calls, own, whole) in self.last.items():
            before = self.first.get(function, NOTHING)
            line = Line(function, calls - before[0], own - before[1], whole - before[2])
            if line.calls or line.whole_seconds > 0:
                found.append(line)
        return sorted(found, key=lambda line: line.own_seconds, reverse=True)

    def calls_of(self, *words: str) -> int:
        """How often functions were called whose name contains all the words."""
        return sum(line.calls for line in self.lines() if all(word in line.function for word in words))
