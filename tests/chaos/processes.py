"""Faults of processes: killed or paused, at named points and at any moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import NotMet

LOOP: Final = ("fetched", "before_commit", "committed", "published", "acked")
TIMER: Final = ("before_commit", "committed")
QUIET: Final = ("fetched", "before_commit", "committed", "acked")
"""Of a loop that publishes nothing."""

POINTS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "gateway": {
        "gateway-accept": ("before_commit", "committed", "published"),
        "gateway-start": ("before_commit", "committed", "published"),
        "gateway-grants": LOOP,
        "gateway-views": QUIET,
        "gateway-approvals": QUIET,
    },
    "orchestrator": {
        "orchestrator-commands": LOOP,
        "orchestrator-events": LOOP,
        "orchestrator-due": TIMER,
        "orchestrator-queue": TIMER,
        "orchestrator-beats": TIMER,
    },
    "adapters": {
        "adapters-wordpress": ("fetched", "before_commit", "committed", "acked", "before_send", "target_acted"),
        "adapters-wordpress-outcomes": LOOP,
        "adapters-scan": TIMER,
    },
    "reconciler": {
        "reconciler-events": LOOP,
        "reconciler-settlements": TIMER,
        "reconciler-visits": TIMER,
    },
    "repair-planner": {
        "repair-planner-events": LOOP,
        "repair-planner-deadlines": TIMER,
    },
}
AT_START: Final = ("adapters-scan.", "repair-planner-deadlines.")
"""Timers that come by at their start, and then only when something was sent and forgotten, or is overdue."""
MET_SECONDS: Final = 25.0
ROUND_SECONDS: Final = 4.0
PAUSE_SECONDS: Final = 2.0


def come(scene: Scene, happened: Callable[[], bool], what: str) -> None:
    """Send rounds until a process came by this point."""
    _tempt(scene, what)
    end = time.monotonic() + MET_SECONDS
    while not happened():
        if time.monotonic() > end:
            raise NotMet(f"{what} was not reached")
        until = time.monotonic() + ROUND_SECONDS
        while not happened() and time.monotonic() < until:
            time.sleep(0.05)
        if not happened():
            scene.traffic.send(scene.label)
            _tempt(scene, what)


_LOST: Final[tuple[str, str, dict[str, Any]]] = ("lose_answer", "POST", {})
_BAIT: Final[dict[str, tuple[tuple[str, str, dict[str, Any]], ...]]] = {
    "orchestrator-beats": (("delay", "POST", {"seconds": 7}),),
    "orchestrator-due": (("status", "POST", {"status": 503}),),
    "reconciler-events": (_LOST,),
    "reconciler-settlements": (_LOST, ("deny_reads", "GET", {})),
}
"""What makes a process come by a point that the stream alone leads to by chance: faults that a `post` meets."""


def _tempt(scene: Scene, point: str) -> None:
    bait = _BAIT.get(point.partition(".")[0], ())
    for fault, method, params in bait:
        scene.field.plane.fault(fault, method=method, path="/effect", system="bench", **params)
    if bait:
        scene.traffic.send(scene.label, ("post",))


def kill_at(service: str, point: str, scene: Scene) -> None:
    """SIGKILL by itself at a named point."""
    field = scene.field
    before = field.restarts(service)
    if point.startswith(AT_START):
        field.break_at_start(service, point)
        field.kill(service)
        field.until(lambda: field.restarts(service) > before + 1, f"{service} died at its start", 25)
        return
    field.arm(service, point)
    come(scene, lambda: field.restarts(service) > before, point)


def pause_at(service: str, point: str, scene: Scene) -> None:
    """SIGSTOP by itself at a named point, SIGCONT a little later."""
    field = scene.field
    if point.startswith(AT_START):
        field.break_at_start(service, point, "stop")
        field.kill(service)
    else:
        field.arm(service, f"{point}:1:stop")
    come(scene, lambda: field.is_stopped(service), point)
    time.sleep(PAUSE_SECONDS)
    field.signal(service, signal.SIGCONT)


def kill_now(service: str, delay_seconds: float, scene: Scene) -> None:
    """SIGKILL at an arbitrary moment of the stream."""
    scene.traffic.send(scene.label)
    time.sleep(delay_seconds)
    scene.field.kill(service)


def pause_now(service: str, seconds: float, scene: Scene) -> None:
    """SIGSTOP at an arbitrary moment, SIGCONT later."""
    scene.traffic.send(scene.label)
    scene.field.signal(service, signal.SIGSTOP)
    time.sleep(seconds)
    scene.field.signal(service, signal.SIGCONT)


def _at_points(what: str, about: str, inject: Callable[[str, str, Scene], None]) -> list[Fault]:
    return [
        Fault(
            f"{what} {loop}.*",
            f"{about} at {', '.join(points)}",
            [partial(inject, service, f"{loop}.{point}") for point in points],
            lane=service,
        )
        for service, loops in POINTS.items()
        for loop, points in loops.items()
    ]


KILLS: Final = _at_points("kill", "SIGKILL by itself", kill_at)
PAUSES: Final = _at_points("pause", "SIGSTOP by itself, SIGCONT after 2 s,", pause_at)
ANY_MOMENT: Final = [
    *(
        Fault(
            f"kill {service} at any moment",
            "SIGKILL while commands come in",
            [partial(kill_now, service, delay) for delay in (0.07, 0.31)],
            lane=service,
        )
        for service in POINTS
    ),
    *(
        Fault(f"pause {service} at any moment", "SIGSTOP for 8 s", [partial(pause_now, service, 8.0)], lane=service)
        for service in POINTS
    ),
]
