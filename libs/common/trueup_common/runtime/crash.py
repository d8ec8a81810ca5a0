"""Named crash points: a test names them and the process dies there as by SIGKILL, once (development mode only).

`TRUEUP_CRASH_AT=orchestrator-commands.committed:2,relay.published` dies the second time the first point is reached, and
the first time the second one is. `relay.published:1:stop` pauses there instead, as by SIGSTOP, until somebody continues
the process. A mark in the state folder keeps the restarted process from dying there again. A running process can be
armed by a control message.
"""

import os
import signal
from pathlib import Path
from typing import Final

_SIGNALS: Final = {"": signal.SIGKILL, "stop": signal.SIGSTOP}


class RealCrashPoints:
    """Dies or pauses at named points, once each. Without names a point costs one look-up in an empty dictionary."""

    def __init__(self, specification: str = "", marks: Path | None = None) -> None:
        self._left: dict[str, int] = {}
        self._ends: dict[str, signal.Signals] = {}
        self._marks = marks
        for name, count, end in _read(specification):
            if not self._mark(name).exists():
                self._left[name], self._ends[name] = count, end

    def arm(self, specification: str) -> None:
        """Set more points in the running process; a restarted one does not know them."""
        for name, count, end in _read(specification):
            self._left[name], self._ends[name] = count, end

    def _mark(self, name: str) -> Path:
        return (self._marks or Path("/nonexistent")) / f"crashed-{name}"

    def reach(self, point: str) -> None:
        """Pass, pause or die here."""
        if point not in self._left:
            return
        self._left[point] -= 1
        if self._left[point] == 0:
            del self._left[point]
            if self._marks is not None:
                self._mark(point).touch()
            os.kill(os.getpid(), self._ends[point])


def _read(specification: str) -> list[tuple[str, int, signal.Signals]]:
    found = []
    for part in filter(None, specification.split(",")):
        name, _, rest = part.partition(":")
        count, _, end = rest.partition(":")
        found.append((name, int(count) if count else 1, _SIGNALS[end]))
    return found
