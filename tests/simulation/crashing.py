"""Crash points: wherever the services name one, a process may die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.engine import Crash
from trueup_repair_planner.core.calls import Ask

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

LIKELY: Final = 0.15
"""How likely a process dies at the kind of crash point that a seed favours."""
AROUND_AN_EFFECT: Final = 0.4
"""The same where it is passed once an attempt, not with every message."""

KINDS: Final = {
    "fetched": "after a fetch",
    "before_commit": "before a commit",
    "committed": "between commit and publication",
    "published": "between publication and ack or mark",
    "acked": "after the ack",
    "before_send": "between the commit of SENT and the first byte",
    "target_acted": "between the answer and its receipt",
    **dict.fromkeys(("claimed", "asked", *(ask.value for ask in Ask)), "while a repair is carried out"),
}
"""What the last part of a crash point's name says."""
OF_ATTEMPTS: Final = ("fetched", "before_commit", "committed", "published", "acked", "before_send", "target_acted")
"""The kinds that every command passes; within repairs the menders die."""


class SimulatedCrashPoints:
    """Named crash points: any of them may be the last."""

    def __init__(self, plane: Plane, prefix: str = "") -> None:
        self.plane = plane
        self.prefix = prefix

    def reach(self, point: str) -> None:
        """Pass, or die here."""
        plane, point = self.plane, self.prefix + point
        plane.coverage["points"][point] += 1
        if plane.crash_point <= 0.0:
            return
        end = point.rsplit(".", 1)[-1]
        favoured = AROUND_AN_EFFECT if end in ("before_send", "target_acted") else LIKELY
        if plane.engine.chance(favoured if plane.crash_favourite in (end, point) else plane.crash_point):
            plane.engine.injected[f"crash {KINDS[end]}"] += 1
            plane.coverage["crashes"][point] += 1
            raise Crash(point)
