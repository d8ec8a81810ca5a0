"""The bus port: NATS JetStream. Pulls without polling, publishes with confirmation, never raises for a broker away.

An ack of an expired delivery may settle a message that another worker holds by now: fencing is in the database, so that
harms nothing here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit

import trueup_common.runtime.without_websockets  # noqa: F401

# isort: split
import nats
import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from trueup_common.contracts.envelope import (
    BODY_AND_HEADERS_BYTES_MAX,
    EnvelopeBroken,
    Message,
    Outgoing,
    headers_of,
    is_subject,
    message_of,
    stand_in,
)
from trueup_common.contracts.topology import Consumer, inbox_prefix
from trueup_common.runtime.gathering import Gathering
from trueup_common.runtime.lean_client import HeaderBroken, LeanClient

log = logging.getLogger("trueup.bus")

CONFIRM_TIMEOUT_SECONDS: Final = 5.0
PULL_EXPIRES_SECONDS: Final = 20
HEARTBEAT_SECONDS: Final = 5
SILENCE_SECONDS: Final = 2.5 * HEARTBEAT_SECONDS
REPULL_PAUSE_SECONDS: Final = 1.0
FETCH_WAIT_SECONDS: Final = 5.0
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of messages that one consumer has taken and not begun: a backlog waits with the broker, not in memory here."""
STREAM_FULL: Final = b'"err_code":10077'
PROGRESS_PER_SECOND: Final = 20
PROGRESS_DELAY_SECONDS_MAX: Final = 5.0
PROGRESS_WAITING_MAX: Final = 1000
"""Progress of many cases at once waits longer: a plane that is slow must not get slower by saying so (ADR 0043). What
waits is held in memory, so behind so many nobody waits longer than alone."""

BUS_AWAY: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)
"""Failures that mean: the broker is away or does not answer now."""

CoreMessage = Msg
"""A message of core NATS, as `Bus.listen` hands it on."""


class Bus:
    """One connection of one service. `closed` is set when the client gave up for good: the process then restarts."""

    def __init__(self, client: LeanClient, service: str) -> None:
        self.client = client
        self.service = service
        self.closed = asyncio.Event()
        self.back: list[Callable[[], None]] = []
        """Who wants to hear that the connection stands again after it was lost."""
        self.alarms: list[str] = []
        self.js: JetStreamContext = client.jetstream(timeout=CONFIRM_TIMEOUT_SECONDS)

    @classmethod
    async def connect(cls, url: str, *, service: str, name: str, connect_timeout_seconds: float = 5) -> "Bus":
        """Connect with the service's own user and private inbox prefix."""
        client = LeanClient()
        bus = cls(client, service)

        async def failed(error: Exception) -> None:
            bus.alarms.append(repr(error)[:200])
            del bus.alarms[:-50]
            log.error("bus error", extra={"error": repr(error)[:300]})

        async def gone() -> None:
            bus.closed.set()

        async def back() -> None:
            for hear in list(bus.back):
                hear()

        await client.connect(
            url,
            name=name,
            inbox_prefix=inbox_prefix(user_of(url) or service).encode(),
            error_cb=failed,
            closed_cb=gone,
            reconnected_cb=back,
            connect_timeout=int(connect_timeout_seconds),
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=10,
            max_outstanding_pings=3,
            pending_size=16 * 1024 * 1024,
            allow_reconnect=True,
        )
        return bus

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return bool(self.client.is_connected)

    async def send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Core NATS: at most once, for nudges and beats. A broker away is not an error."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.client.publish(subject, data, headers=headers)

    async def flush(self) -> None:
        """Wait until the broker has everything that was sent. A broker away is not an error."""
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            await self.client.flush()

    async def listen(self, subject: str, react: Callable[[Msg], Awaitable[None]], queue: str = "") -> None:
        """Subscribe on core NATS."""
        await self.client.subscribe(subject, queue=queue, cb=react)

    async def hear(self, subject: str, react: Callable[[Msg], None]) -> Subscription:
        """Subscribe with a function that awaits nothing: it is called as messages are read."""
        return await self.client.hear(subject, react)

    async def stream_state(self, stream: str) -> tuple[datetime | None, int] | None:
        """Creation time and last sequence of a stream; None where the broker does not say."""
        try:
            info = await self.js.stream_info(stream)
        except BUS_AWAY:
            return None
        return info.created, info.state.last_seq

    async def pending(self, consumer: Consumer) -> int | None:
        """Messages that a consumer has not settled yet; None where the broker does not say."""
        try:
            info = await self.js.consumer_info(consumer.stream, consumer.durable)
        except BUS_AWAY:
            return None
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def close(self) -> None:
        """Drain and close, within a bound."""
        with contextlib.suppress(*BUS_AWAY):
            async with asyncio.timeout(3):
                await self.client.drain()
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.client.close()


class BusDelivery:
    """One JetStream delivery."""

    __slots__ = ("message", "raw")

    def __init__(self, raw: Msg, message: Message) -> None:
        self.raw = raw
        self.message = message

    async def ack(self) -> None:
        """Settle; a lost ack only means a redelivery, which the store deduplicates."""
        await self._reply(b"+ACK")

    async def nak(self, delay_seconds: float) -> None:
        """Hand back, to come again after a short delay (long waits are rows with a due time)."""
        await self._reply(b'-NAK {"delay": %d}' % int(delay_seconds * 1e9))

    async def term(self) -> None:
        """Never deliver again."""
        await self._reply(b"+TERM")

    async def _reply(self, body: bytes) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.raw._client.publish(self.raw.reply, body)


class ConsumerSource:
    """Batches from one durable pull consumer.

    A pull request always stands open and messages arrive by themselves, so an idle service neither polls nor waits.
    What was asked for and what is queued are never more than `credit`: who is slower than its messages asks for no
    more, so a backlog costs no memory here and little of it runs into its ack wait before it is begun.
    A vanished consumer makes `missing` true (unready) and is asked for again at a bounded rate.
    """

    def __init__(self, bus: Bus, consumer: Consumer, *, credit: int = 400) -> None:
        self.bus = bus
        self.consumer = consumer
        self.credit = credit
        self.missing = False
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._gathering = Gathering()
        self._queued_bytes = 0
        self._owed = 0
        self._heard_at = 0.0
        self._inbox = ""
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}"
        self._watch: asyncio.Task[None] | None = None
        self._answering: asyncio.Future[None] | None = None
        self._subscription: Subscription | None = None
        self._repull = asyncio.Event()

    @property
    def name(self) -> str:
        """The durable's name."""
        return self.consumer.durable

    async def start(self) -> None:
        """Subscribe and ask for messages."""
        self._inbox = self.bus.client.new_inbox()
        self._subscription = await self.bus.hear(self._inbox, self._arrived)
        self._watch = asyncio.create_task(self._keep_pulling(), name=f"pull {self.name}")
        self.bus.back.append(self._ask_again)
        self._repull.set()

    @property
    def _room(self) -> int:
        """How many more messages may be asked for; none while the queued ones are large."""
        return 0 if self._queued_bytes > QUEUED_BYTES_MAX // 2 else self.credit - self._owed - self._queue.qsize()

    def _ask_again(self) -> None:
        """The connection was lost, and with it the request that stood open: silence would tell that much later."""
        self._owed = 0
        self._repull.set()

    async def stop(self) -> None:
        """Ask for nothing more, hand back what is queued, and end a fetch that waits."""
        if self._watch:
            self._watch.cancel()
        if self._ask_again in self.bus.back:
            self.bus.back.remove(self._ask_again)
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            while not self._queue.empty():
                raw = self._queue.get_nowait()
                if raw is not None:
                    await self.bus.client.publish(raw.reply, b"-NAK")
        self._queue.put_nowait(None)

    def _arrived(self, raw: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        status = raw.headers.get("Status") if raw.headers else None
        if status is None or raw.reply:
            if status == "100":  # a flow-control request wants an empty answer
                self._answering = asyncio.ensure_future(self.bus.send(raw.reply, b""))
                return
            self.missing = False
            self._owed -= 1
            self._queued_bytes += len(raw.data)
            self._queue.put_nowait(raw)
        elif status == "100":
            self.missing = False
        else:  # 404, 408 (expired), 409 (deleted, leadership), 503 (no responders): this request is over
            description = (raw.headers or {}).get("Description", "")
            self.missing = status == "503" or "Deleted" in description
            if self.missing:
                log.error("consumer is missing", extra={"consumer": self.name, "status": status})
            self._owed = 0
            self._repull.set()

    async def _keep_pulling(self) -> None:
        loop = asyncio.get_running_loop()
        last = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._repull.wait()
            silent = loop.time() - self._heard_at > SILENCE_SECONDS
            if not self._repull.is_set() and not silent:
                continue
            self._repull.clear()
            if silent:  # whatever stood open is not any more
                self._owed = 0
            room = self._room
            if room < self.credit // 2:  # taking from the queue makes room and asks again
                continue
            if self.missing or silent:
                await asyncio.sleep(max(0.0, last + REPULL_PAUSE_SECONDS - loop.time()))
            last = loop.time()
            self._owed += room
            self._heard_at = last
            request = {
                "batch": room,
                "max_bytes": QUEUED_BYTES_MAX - self._queued_bytes,
                "expires": PULL_EXPIRES_SECONDS * 1_000_000_000,
                "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000,
            }
            with contextlib.suppress(nats.errors.Error, OSError):
                await self.bus.client.publish(self._next, orjson.dumps(request), reply=self._inbox)

    async def fetch(self, limit: int) -> Sequence[BusDelivery]:
        """The next batch; empty after a bounded wait. A stand-in represents a message without its headers."""
        if self._queue.empty():
            try:
                async with asyncio.timeout(FETCH_WAIT_SECONDS):
                    raws = [await self._queue.get()]
            except TimeoutError:
                return []
        else:
            raws = [self._queue.get_nowait()]
        await self._gathering.wait()
        while len(raws) < limit and not self._queue.empty():
            raws.append(self._queue.get_nowait())
        self._gathering.took(len(raws))
        self._queued_bytes -= sum(len(raw.data) for raw in raws if raw is not None)
        if self._room >= self.credit // 2:
            self._repull.set()
        batch: list[BusDelivery] = []
        for raw in raws:
            if raw is None:  # stopped
                break
            try:
                batch.append(BusDelivery(raw, message_of(raw.subject, raw.headers, raw.data)))
            except EnvelopeBroken as error:
                batch.append(BusDelivery(raw, _broken(raw, error)))
        return batch


def _broken(raw: Msg, error: EnvelopeBroken) -> Message:
    place = raw.metadata
    return stand_in(
        raw.subject,
        raw.data,
        id=f"{place.stream}:{place.sequence.stream}",
        time=place.timestamp.astimezone(UTC),
        reason=str(error),
    )


@dataclass(slots=True)
class _Pending:
    """Progress that is not due yet."""

    handle: asyncio.TimerHandle
    item: Outgoing


class _Answers:
    """What the broker says to the publications of one batch, by token; `all_there` is waited for at most once."""

    __slots__ = ("all_there", "asked", "said")

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.said: dict[str, bytes] = {}
        self.all_there: asyncio.Future[None] | None = None

    def hear(self, token: str, refusal: bytes) -> None:
        """One answer; empty for a confirmation."""
        self.said[token] = refusal
        if self.all_there is not None and not self.all_there.done() and len(self.said) == len(self.asked):
            self.all_there.set_result(None)

    async def wait(self) -> None:
        """Until all is said. Answers lost with a connection never come: the bound is ours."""
        if len(self.said) < len(self.asked):
            self.all_there = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_TIMEOUT_SECONDS):
                    await self.all_there


class BusPublisher:
    """Publishes what was committed; remembers what the broker confirmed, for the relay to mark."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.confirmed: list[str] = []
        self.full = False
        self.published_count = 0
        self.failed_count = 0
        self._pending: dict[str, _Pending] = {}
        self._background: set[asyncio.Task[bool]] = set()
        self._inbox = ""
        self._number = 0
        self._waiting: dict[str, _Answers] = {}

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        """Publish durable messages with confirmation, nudges at once, progress after its delay unless replaced."""
        answers = _Answers()
        for item in outgoing:
            late = item.delay_seconds > 0 and item.coalesce is not None and not item.durable
            if late:
                self._put_off(item)
                continue
            if item.coalesce and (replaced := self._pending.pop(item.coalesce, None)):
                replaced.handle.cancel()
            if item.durable:
                await self._start(item.message, answers)
            elif item.core:
                await self.bus.send(item.message.subject, item.message.data, headers_of(item.message))
            else:
                await self._write(item.message)
        if answers.asked:
            await self._confirm(answers)

    def _put_off(self, item: Outgoing) -> None:
        """Progress for later. What replaces it takes over its time: whoever moves on and on is told of all the same."""
        key = str(item.coalesce)
        waiting = self._pending.get(key)
        if waiting is not None:
            waiting.item = item
            return
        crowd = len(self._pending) if len(self._pending) < PROGRESS_WAITING_MAX else 0
        crowd_seconds = min(crowd / PROGRESS_PER_SECOND, PROGRESS_DELAY_SECONDS_MAX)
        delay_seconds = max(item.delay_seconds, crowd_seconds)
        handle = asyncio.get_running_loop().call_later(delay_seconds, self._later, key)
        self._pending[key] = _Pending(handle, item)

    def _later(self, key: str) -> None:
        task = asyncio.get_running_loop().create_task(self._write(self._pending.pop(key).item.message))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _start(self, message: Message, answers: _Answers) -> None:
        """Hand one message to the client, without waiting: a batch leaves in one write.

        `publish_async` of the client would start a task for each message and so write each by itself.
        """
        try:
            if not self._inbox:
                await self._listen()
        except BUS_AWAY as error:
            self._not_written(message, error)
            return
        self._number += 1
        token = str(self._number)
        self._waiting[token] = answers
        answers.asked[token] = message.id
        if not await self._write(message, f"{self._inbox}.{token}"):
            del self._waiting[token], answers.asked[token]

    async def _write(self, message: Message, reply: str = "") -> bool:
        """Hand one message to the client. Who wants no answer, as progress does, gets none."""
        if message.size_bytes > BODY_AND_HEADERS_BYTES_MAX or not is_subject(message.subject):
            self.failed_count += 1
            log.error("message does not fit the bus", extra={"message_id": message.id, "bytes": message.size_bytes})
            return False
        try:
            await self.bus.client.publish(message.subject, message.data, reply=reply, headers=headers_of(message))
        except (*BUS_AWAY, HeaderBroken) as error:  # one that cannot be written must not keep the others from leaving
            self._not_written(message, error)
            return False
        return True

    def _not_written(self, message: Message, error: Exception) -> None:
        self.failed_count += 1
        log.warning("publish failed, left to the relay", extra={"message_id": message.id, "error": repr(error)})

    async def _listen(self) -> None:
        inbox = self.bus.client.new_inbox()
        await self.bus.client.hear(f"{inbox}.*", self._answered)
        self._inbox = inbox

    def _answered(self, raw: Msg) -> None:
        token = raw.subject[len(self._inbox) + 1 :]
        answers = self._waiting.pop(token, None)
        if answers is not None:
            refused = bool(raw.headers) or b'"error"' in raw.data
            answers.hear(token, (raw.data or b"no stream takes this subject") if refused else b"")

    async def _confirm(self, answers: _Answers) -> None:
        await answers.wait()
        for token, message_id in answers.asked.items():
            refusal = answers.said.get(token)
            if refusal is None:  # the outbox keeps the message
                self._waiting.pop(token, None)
                self.failed_count += 1
                continue
            if not refusal:
                self.full = False
                self.published_count += 1
                self.confirmed.append(message_id)
                continue
            self.failed_count += 1
            self.full = STREAM_FULL in refusal
            log.warning(
                "publish not confirmed, left to the relay",
                extra={"message_id": message_id, "error": refusal[:200].decode("utf-8", "replace")},
            )

    def take_confirmed(self) -> list[str]:
        """Message ids confirmed since the last call."""
        taken, self.confirmed = self.confirmed, []
        return taken


def user_of(url: str) -> str | None:
    """The user that a URL of the broker names; servers of a cluster, separated by commas, share it."""
    user = urlsplit(url.partition(",")[0]).username
    return unquote(user) if user else None


async def connect_admin(url: str) -> Client:
    """A connection of the bootstrap identity."""
    return await nats.connect(url, inbox_prefix=b"_INBOX_admin", connect_timeout=5, max_reconnect_attempts=5)
