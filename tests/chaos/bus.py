"""Faults of the broker: it dies, it forgets, it is full, and the relay dies between publishing and marking."""

from __future__ import annotations

import shutil
import signal
import time
from functools import partial
from typing import Any, Final

import nats.js.errors
from nats.js import JetStreamContext

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import Field, NotMet
from trueup_common.contracts.topology import CONSUMERS, STREAMS, task_consumer

NAMES: Final = tuple(stream.name for stream in STREAMS)
FULL_SECONDS: Final = 6.0
ALL_CONSUMERS: Final = (*CONSUMERS, task_consumer("wordpress"), task_consumer("bench"))


def killed(scene: Scene) -> None:
    """SIGKILL of the broker."""
    scene.traffic.send(scene.label)
    scene.field.kill("nats")


def restarted(scene: Scene) -> None:
    """The broker shuts down in order and is started again."""
    before = scene.field.restarts("nats")
    scene.traffic.send(scene.label)
    scene.field.signal("nats", signal.SIGTERM)
    scene.field.until(lambda: scene.field.restarts("nats") > before, "the broker was started again", 20)


def paused(scene: Scene) -> None:
    """The broker stands still for longer than a publish waits for its confirmation."""
    scene.field.signal("nats", signal.SIGSTOP)
    scene.traffic.send(scene.label)
    time.sleep(7)
    scene.field.signal("nats", signal.SIGCONT)


def consumers_deleted(count: int, scene: Scene) -> None:
    """Consumers vanish while messages wait for them."""
    gone = ALL_CONSUMERS[:count]

    async def delete(js: JetStreamContext) -> None:
        for consumer in gone:
            await js.delete_consumer(consumer.stream, consumer.durable)

    scene.traffic.send(scene.label)
    scene.field.bus(delete)


def _with_messages_waiting(scene: Scene, readers: tuple[str, ...], then: Any) -> None:
    """Do something to streams while their readers stand still and messages are on their way."""
    field = scene.field
    for name in readers:
        field.signal(name, signal.SIGSTOP)
    scene.traffic.send(scene.label)
    time.sleep(1.5)
    then(field)
    for name in readers:
        field.signal(name, signal.SIGCONT)


def _delete(streams: tuple[str, ...], field: Field) -> None:
    async def delete(js: JetStreamContext) -> None:
        for name in streams:
            await js.delete_stream(name)

    field.bus(delete)


def purged(scene: Scene) -> None:
    """Somebody tries to drop everything that waits: the broker refuses, because nobody could tell that it happened."""

    async def purge(js: JetStreamContext) -> None:
        for name in NAMES:
            try:
                await js.purge_stream(name)
            except nats.js.errors.Error:
                continue
            raise NotMet(f"{name} could be purged")

    _with_messages_waiting(scene, ("orchestrator",), lambda field: field.bus(purge))


def deleted(streams: tuple[str, ...], reader: str, scene: Scene) -> None:
    """Streams are gone, with their consumers, and are made again by whoever may."""
    _with_messages_waiting(scene, (reader,), partial(_delete, streams))


def emptied(scene: Scene) -> None:
    """The broker comes back without anything that it had stored."""
    field = scene.field
    before = field.restarts("nats")
    scene.traffic.send(scene.label)
    time.sleep(0.3)
    field.signal("nats", signal.SIGSTOP)
    shutil.rmtree(field.folder / "nats" / "store")
    field.signal("nats", signal.SIGKILL)
    field.until(lambda: field.restarts("nats") > before, "the broker was started again", 20)


def _limit(field: Field, streams: tuple[str, ...], bytes_max: int | None) -> None:
    """Leave a stream no room; None = what the topology says."""
    declared = {stream.name: stream.max_bytes for stream in STREAMS}

    async def change(js: JetStreamContext) -> None:
        for name in streams:
            info = await js.stream_info(name)
            info.config.max_bytes = declared[name] if bytes_max is None else info.state.bytes + bytes_max
            await js.update_stream(info.config)

    field.bus(change)


def full(streams: tuple[str, ...], scene: Scene) -> None:
    """No room for one more message, for a while: the outbox has to wait."""
    _limit(scene.field, streams, 1)
    scene.traffic.send(scene.label)
    time.sleep(FULL_SECONDS)
    _limit(scene.field, streams, None)


def relay_dies(streams: tuple[str, ...], service: str, scene: Scene) -> None:
    """What could not be published goes out by the relay, which dies before it can mark it."""
    field = scene.field
    before = field.restarts(service)
    _limit(field, streams, 1)
    try:
        scene.traffic.send(scene.label)
        schema = service.replace("-", "_")
        waiting = f"SELECT 1 FROM {schema}.outbox_unsent WHERE created_at < now() - interval '1 s' LIMIT 1"
        field.until(lambda: bool(field.sql(waiting)), f"messages of {service} wait in the outbox", 20)
        field.arm(service, "relay.published")
    finally:
        _limit(field, streams, None)
    field.until(lambda: field.restarts(service) > before, f"the relay of {service} died", 20)


FAULTS: Final = [
    Fault("nats killed", "SIGKILL of the broker", [killed]),
    Fault("nats restarted", "SIGTERM of the broker, started again", [restarted]),
    Fault("nats paused", "SIGSTOP of the broker for 7 s", [paused]),
    Fault("nats stream full: COMMANDS", "no room for 6 s", [partial(full, ("COMMANDS",))]),
    Fault("nats stream full: TASKS, GRANTS", "no room for 6 s", [partial(full, ("TASKS", "GRANTS"))]),
    Fault("nats stream full: EVENTS", "no room for 6 s", [partial(full, ("EVENTS",))]),
    Fault(
        "relay dies before it marks",
        "what a full stream kept back goes out, and SIGKILL comes between publish and mark",
        [
            partial(relay_dies, ("COMMANDS",), "gateway"),
            partial(relay_dies, ("EVENTS",), "orchestrator"),
            partial(relay_dies, ("EVENTS",), "adapters"),
        ],
    ),
    Fault("nats consumer deleted", "orchestrator-commands is gone", [partial(consumers_deleted, 1)]),
    Fault("nats consumers deleted", "every consumer is gone", [partial(consumers_deleted, len(ALL_CONSUMERS))]),
    Fault("nats streams purged", "all four at once, while messages wait: refused", [purged]),
    Fault("nats stream deleted: COMMANDS", "with what waited in it", [partial(deleted, ("COMMANDS",), "orchestrator")]),
    Fault("nats streams deleted", "all four at once", [partial(deleted, NAMES, "orchestrator")]),
    Fault("nats store emptied", "the broker comes back with nothing", [emptied]),
]
