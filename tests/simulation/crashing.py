"""Crash points: wherever the services name one, a process may die."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.engine import Crash

if TYPE_CHECKING:
    from tests.simulation.plane import Plane


class SimulatedCrashPoints:
    """Named crash points: any of them may be the last."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def reach(self, point: str) -> None:
        """Pass, or die here."""
        self.plane.coverage["points"][point] += 1
        if self.plane.engine.chance(self.plane.crash_point):
            raise Crash(point)
