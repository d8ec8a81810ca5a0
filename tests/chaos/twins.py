"""Faults for two of everything: a replica stands still for longer than any lease; a machine is wrong about time."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import Field
from tests.chaos.processes import come
from trueup_common.contracts.topology import SERVICES

LATE_SECONDS: Final = 100.0
"""How long to wait until the operation of a stopped attempt has ended without it: late window, find, second attempt."""
LEASE_SECONDS: Final = 48.0
"""Longer than the lease of any declared type here, and than the late window."""
ADAPTERS: Final = ("adapters", "adapters-3")


def stop_in_last_write(scene: Scene) -> None:
    """The pause that no fence can see: behind the last check, before the first byte. WordPress has no atomic key."""
    field = scene.field
    for name in ADAPTERS:
        field.stop_in_last_write(name)
    scene.traffic.send(scene.label, ("draft",))
    field.until(lambda: any(field.is_stopped(name) for name in ADAPTERS), "an attempt stopped in its last write", 20)
    stopped = next(name for name in ADAPTERS if field.is_stopped(name))
    for name in ADAPTERS:
        field.move_on(name)
    _go_on(field, *(name for name in ADAPTERS if name != stopped))
    sent = "SELECT command_id FROM adapters.effect WHERE status = 'SENT' AND command_type = 'wordpress.create_draft'"
    commands = [row["command_id"] for row in field.sql(sent)]
    over = "SELECT 1 FROM orchestrator.operation WHERE command_id = ANY($1) AND state <> 'SUCCESS'"
    try:
        field.until(lambda: not field.sql(over, commands), "another replica finished the stopped attempt", LATE_SECONDS)
    finally:
        _go_on(field, *ADAPTERS)


def _go_on(field: Field, *names: str) -> None:
    """Several may have come to a point before the others were told to move on: none stands still for ever."""
    for name in names:
        if field.is_stopped(name):
            field.signal(name, signal.SIGCONT)


def stop_long(service: str, point: str, scene: Scene) -> None:
    """One of two replicas stands still at a named point until its leases are long over."""
    field = scene.field
    field.arm(service, f"{point}:1:stop")
    come(scene, lambda: field.is_stopped(service), point)
    end = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < end:
        time.sleep(LEASE_SECONDS / 4)
        scene.traffic.send(scene.label)
    field.signal(service, signal.SIGCONT)


def only(stopped: Sequence[str], scene: Scene) -> None:
    """Let one half of the plane do all the work, then the other."""
    field = scene.field
    for name in stopped:
        field.signal(name, signal.SIGSTOP)
    for _ in range(3):
        scene.traffic.send(scene.label)
        time.sleep(1.5)
    for name in stopped:
        field.signal(name, signal.SIGCONT)


WORKERS: Final = tuple(service for service in SERVICES if service != "gateway")
LONG: Final = (
    ("orchestrator", "orchestrator-events.before_commit"),
    ("adapters-2", "adapters-wordpress.before_send"),
    ("reconciler", "reconciler-events.before_commit"),
    ("repair-planner", "repair-planner-events.before_commit"),
    ("gateway", "gateway-views.before_commit"),
)

TWO: Final = [
    Fault(
        "pause in the last write",
        "SIGSTOP behind the last check of an attempt until another replica has done it again",
        [stop_in_last_write],
        lane="adapters",
        plane="two",
        kinds=("draft", "draft", "post"),
    ),
    *(
        Fault(
            f"pause {instance} for longer than a lease",
            f"SIGSTOP of one replica for {LEASE_SECONDS:g} s at {point}",
            [partial(stop_long, instance, point)],
            lane=instance,
            plane="two",
        )
        for instance, point in LONG
    ),
]
CLOCKS: Final = [
    Fault(
        "a replica 5 minutes ahead",
        "one of each service; its twin stands still meanwhile",
        [partial(only, WORKERS)],
        plane="clocks",
    ),
    Fault(
        "a replica under TZ=Asia/Kathmandu",
        "one of each service; its twin stands still meanwhile",
        [partial(only, tuple(f"{service}-2" for service in WORKERS))],
        plane="clocks",
    ),
]
