"""Named crash points: a test names them and the process dies there as by SIGKILL, once (development mode only).

`TRUEUP_CRASH_AT=orchestrator-commands.committed:2,relay.sent` dies the second time the first point is reached, and the
first time the second one is. A mark in the state folder keeps the restarted process from dying there again. A running
process can be armed by a control message.
"""

import os
import signal
from pathlib import Path


class RealCrashPoints:
    """Dies at named points, once each. Without names a point costs one look-up in an empty dictionary."""

    def __init__(self, specification: str = "", marks: Path | None = None) -> None:
        self._left: dict[str, int] = {}
        self._marks = marks
        for name, count in _read(specification):
            if not self._mark(name).exists():
                self._left[name] = count

    def arm(self, specification: str) -> None:
        """Set more points in the running process; a restarted one does not know them."""
        self._left.update(_read(specification))

    def _mark(self, name: str) -> Path:
        return (self._marks or Path("/nonexistent")) / f"crashed-{name}"

    def reach(self, point: str) -> None:
        """Pass, or die here."""
        if point not in self._left:
            return
        self._left[point] -= 1
        if self._left[point] == 0:
            if self._marks is not None:
                self._mark(point).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _read(specification: str) -> list[tuple[str, int]]:
    pairs = (part.partition(":") for part in specification.split(",") if part)
    return [(name, int(count) if count else 1) for name, _, count in pairs]
