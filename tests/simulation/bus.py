"""A fake broker over the real topology: it loses, doubles, delays and reorders, and at times forgets a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tests.simulation.engine import STEP, Engine, Process, Signal, Sleep
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.topology import CONSUMERS, STREAMS, Consumer, Stream, task_consumer

BATCH_MAX: Final = 20
GATHERED_SECONDS_MAX: Final = 6.0


@dataclass(slots=True)
class BusFaults:
    """How unreliable the broker is; all zero is a broker that keeps its word."""

    lost_publish: float = 0.0
    """Never arrived, never confirmed."""
    lost_confirmation: float = 0.0
    """Arrived, not confirmed."""
    lost_progress: float = 0.0
    doubled: float = 0.0
    """Stored twice, as after the duplicate window."""
    duplicate: float = 0.0
    """Delivered once more although it was settled."""
    lost_ack: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    """Consumers whose messages may take up to so many seconds."""
    reorder: bool = False
    gathered: float = 0.0
    """What is to be fetched waits until more has come: large batches."""
    small_batches: bool = True


class Entry:
    """One message as one consumer has it."""

    __slots__ = ("deliveries", "message", "pending", "settled")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries = 0
        self.pending = False
        self.settled = False


class ConsumerState:
    """One durable consumer, shared by all replicas of a service."""

    def __init__(self, engine: Engine, consumer: Consumer) -> None:
        self.consumer = consumer
        self.ready: list[Entry] = []
        self.unsettled: dict[int, Entry] = {}
        self.signal = Signal(engine)
        self.ack_wait_seconds = float(consumer.ack_wait_seconds)
        self.deliveries_count = 0

    def matches(self, subject: str) -> bool:
        """True where one of the filters takes the subject."""
        return any(subject_matches(pattern, subject) for pattern in self.consumer.filters)


def subject_matches(pattern: str, subject: str) -> bool:
    """Broker semantics of `*` and `>`."""
    wanted, got = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(got) > index
        if index >= len(got) or token not in ("*", got[index]):
            return False
    return len(wanted) == len(got)


class StreamState:
    """One stream: what the relay asks about, and message ids inside the duplicate window."""

    def __init__(self, stream: Stream, created: datetime) -> None:
        self.stream = stream
        self.created = created
        self.last_seq = 0
        self.seen: dict[str, float] = {}


class FakeBus:
    """Streams, consumers and the publishers' side. Also what the real relay asks of a connection."""

    def __init__(self, engine: Engine, systems: Sequence[str]) -> None:
        self.engine = engine
        self.faults = BusFaults()
        self.down_until = 0.0
        self.full_until = 0.0
        """Until when the streams are at their limit: what is published is refused, nothing is dropped."""
        self.resets = 0
        self.streams = {stream.name: StreamState(stream, engine.real()) for stream in STREAMS}
        consumers = [*CONSUMERS, *(task_consumer(system) for system in systems)]
        self.consumers = {consumer.durable: ConsumerState(engine, consumer) for consumer in consumers}
        self.listeners: list[Callable[[Message], None]] = []
        self.reset_signal = Signal(engine)
        self.published_count = 0
        self.on_stored: Callable[[Message], None] = lambda message: None
        self._routes: dict[str, tuple[StreamState, list[ConsumerState]]] = {}

    @property
    def connected(self) -> bool:
        """True while the broker can be reached."""
        return self.engine.now >= self.down_until

    async def stream_state(self, stream: str) -> tuple[datetime | None, int] | None:
        """What the relay compares: creation time and last sequence; None while the broker is away."""
        await STEP
        state = self.streams[stream]
        return (state.created, state.last_seq) if self.connected else None

    def route(self, subject: str) -> tuple[StreamState, list[ConsumerState]]:
        """The stream that takes a subject and the consumers that hear of it."""
        found = self._routes.get(subject)
        if found is None:
            taking = [s for s in self.streams.values() if any(subject_matches(p, subject) for p in s.stream.subjects)]
            if len(taking) != 1:
                raise LookupError(f"{len(taking)} streams take {subject}")
            hearing = [
                c for c in self.consumers.values() if c.consumer.stream == taking[0].stream.name and c.matches(subject)
            ]
            found = self._routes[subject] = (taking[0], hearing)
        return found

    def store(self, message: Message) -> None:
        """Put a message into its stream; within the duplicate window a known id is a success without effect."""
        stream, hearing = self.route(message.subject)
        now = self.engine.now
        seen = stream.seen.get(message.id)
        if seen is not None and now - seen < stream.stream.duplicate_window_seconds:
            return
        stream.seen[message.id] = now
        stream.last_seq += 1
        self.published_count += 1
        self.on_stored(message)
        copies = 2 if self.engine.strikes("message stored twice", self.faults.doubled) else 1
        for consumer in hearing:
            for _ in range(copies):
                entry = Entry(message)
                consumer.unsettled[id(entry)] = entry
                self._offer(consumer, entry)

    def _offer(self, consumer: ConsumerState, entry: Entry) -> None:
        faults = self.faults
        slow = faults.slow.get(consumer.consumer.durable)
        if slow is not None and self.engine.strikes("delivery delayed", 0.5):
            self.engine.call_later(slow * self.engine.random.random(), lambda: ready(consumer, entry))
        elif self.engine.strikes("delivery delayed", faults.delay):
            self.engine.call_later(faults.delay_seconds * self.engine.random.random(), lambda: ready(consumer, entry))
        else:
            ready(consumer, entry)

    def empty(self, name: str) -> None:
        """The stream is lost and made anew, with everything in it and all that its consumers had."""
        stream = self.streams[name]
        stream.created = self.engine.real()
        stream.last_seq = 0
        stream.seen.clear()
        for consumer in self.consumers.values():
            if consumer.consumer.stream == name:
                for entry in consumer.unsettled.values():
                    entry.settled = True
                consumer.unsettled.clear()
                consumer.ready.clear()
        self.resets += 1
        self.engine.note(f"stream {name} emptied")
        self.reset_signal.notify()

    def idle(self) -> bool:
        """True where nothing waits to be handled."""
        return all(not consumer.unsettled for consumer in self.consumers.values())


def ready(consumer: ConsumerState, entry: Entry) -> None:
    """An entry may be fetched now."""
    if entry.settled or entry in consumer.ready:
        return
    entry.pending = False
    consumer.ready.append(entry)
    consumer.signal.notify()


class SimulatedDelivery:
    """The Delivery port."""

    __slots__ = ("_bus", "_consumer", "_entry")

    def __init__(self, bus: FakeBus, consumer: ConsumerState, entry: Entry) -> None:
        self._bus = bus
        self._consumer = consumer
        self._entry = entry

    @property
    def message(self) -> Message:
        """The message."""
        return self._entry.message

    async def ack(self) -> None:
        """Settle it, if the ack gets through."""
        engine, faults = self._bus.engine, self._bus.faults
        if engine.strikes("ack lost", faults.lost_ack) or not self._bus.connected:
            await STEP
            return
        if not engine.chance(0.8):
            await STEP
        self._settle()
        if engine.strikes("delivered again after its ack", faults.duplicate):
            again = Entry(self._entry.message)
            self._consumer.unsettled[id(again)] = again
            engine.call_later(engine.between(0.0, 5.0), lambda: ready(self._consumer, again))

    async def nak(self, delay_seconds: float) -> None:
        """Hand it back."""
        await STEP
        consumer, entry = self._consumer, self._entry
        self._bus.engine.call_later(delay_seconds, lambda: ready(consumer, entry))

    async def term(self) -> None:
        """Take it out."""
        await STEP
        self._settle()

    def _settle(self) -> None:
        entry, consumer = self._entry, self._consumer
        if not entry.settled:
            entry.settled = True
            consumer.unsettled.pop(id(entry), None)
            if entry in consumer.ready:
                consumer.ready.remove(entry)


class SimulatedSource:
    """The Source port over one consumer."""

    def __init__(self, bus: FakeBus, durable: str) -> None:
        self._bus = bus
        self._consumer = bus.consumers[durable]
        self.name = durable

    async def fetch(self, limit: int) -> Sequence[SimulatedDelivery]:
        """The next batch: in order or not, whole or in part."""
        bus, consumer = self._bus, self._consumer
        engine = bus.engine
        await self._wait()
        if engine.strikes("fetched late and together", bus.faults.gathered):
            await Sleep(engine.between(0.0, GATHERED_SECONDS_MAX))
            await self._wait()  # another replica may have taken it all
        count = min(limit, len(consumer.ready), BATCH_MAX)
        if count > 1 and bus.faults.small_batches:
            count = 1 + engine.below(count)
        batch = []
        for _ in range(count):
            index = engine.below(len(consumer.ready)) if bus.faults.reorder else 0
            if index:
                engine.injected["delivered out of order"] += 1
            entry = consumer.ready.pop(index)
            entry.pending = True
            entry.deliveries += 1
            consumer.deliveries_count += 1
            self._watch(entry, entry.deliveries)
            batch.append(SimulatedDelivery(bus, consumer, entry))
        if len(batch) == 1:
            engine.note(f"{self.name} <- {batch[0].message.type} {batch[0].message.id}")
        else:
            engine.note(f"{self.name} <- " + ", ".join(f"{d.message.type} {d.message.id}" for d in batch))
        return batch

    async def _wait(self) -> None:
        bus, consumer = self._bus, self._consumer
        while not consumer.ready or not bus.connected:
            if not bus.connected:
                await Sleep(bus.down_until - bus.engine.now + 0.01)
            else:
                await Sleep(None, consumer.signal)

    def _watch(self, entry: Entry, deliveries: int) -> None:
        consumer = self._consumer

        def expired() -> None:
            if entry.pending and entry.deliveries == deliveries and not entry.settled:
                self._bus.engine.injected["delivered again without an ack"] += 1
                ready(consumer, entry)

        self._bus.engine.call_later(consumer.ack_wait_seconds, expired)


class SimulatedPublisher:
    """The Publisher port of one replica. What is not confirmed is left to the relay."""

    def __init__(self, bus: FakeBus, process: Process) -> None:
        self.bus = bus
        self.process = process
        self.confirmed: list[str] = []
        self.full = False
        self.confirmed_signal = Signal(bus.engine)

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        """Publish; never raises for a broker that is away."""
        engine, bus = self.bus.engine, self.bus
        faults = bus.faults
        for item in outgoing:
            message = item.message
            if not item.durable:
                self._progress(item)
                continue
            if not engine.chance(0.7):
                await STEP
            if engine.now < bus.full_until:
                engine.injected["publish refused by a full stream"] += 1
                continue
            if not bus.connected or engine.strikes("publish lost", faults.lost_publish):
                engine.note(f"publish lost {message.type} {message.id}")
                continue
            bus.store(message)
            if engine.strikes("confirmation lost", faults.lost_confirmation):
                engine.note(f"confirmation lost {message.type} {message.id}")
                continue
            self.confirmed.append(message.id)
        await STEP
        if self.confirmed:
            self.confirmed_signal.notify()

    def _progress(self, item: Outgoing) -> None:
        engine, bus = self.bus.engine, self.bus
        if not bus.connected or engine.strikes("core message lost", bus.faults.lost_progress):
            return
        message, process, incarnation = item.message, self.process, self.process.incarnation

        def arrive() -> None:
            if item.core:
                for listener in bus.listeners:
                    listener(message)
            elif process.incarnation == incarnation:
                bus.store(message)

        engine.call_later(item.delay_seconds + 0.001, arrive)

    def take_confirmed(self) -> list[str]:
        """Message ids confirmed since the last call."""
        taken, self.confirmed = self.confirmed, []
        return taken
