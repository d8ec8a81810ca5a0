"""A service: settings → database, bus, catalog, governance → loops, timers, health; drains on SIGTERM.

Every service is one call of `run_service` with a function that builds its parts. Any part that dies ends the process:
the supervisor starts a fresh one, and nothing was kept in memory that mattered.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import asyncpg
import orjson
import uvloop
from pydantic import ValidationError
from starlette.routing import BaseRoute

from trueup_common.contracts.topology import CLOCK_SUBJECT, CRASH_SUBJECT
from trueup_common.runtime import memory, tracing
from trueup_common.runtime.bus import BUS_AWAY, Bus, BusPublisher, ConsumerSource, CoreMessage
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.clock import BusinessClock, RealSchedule, agree, machine_now, set_skew
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.db import PASSING, Database, SqlStore
from trueup_common.runtime.governance import GovernanceWatch
from trueup_common.runtime.health import ReadyCheck, serve_health
from trueup_common.runtime.host import Loop
from trueup_common.runtime.mail import MailTransaction
from trueup_common.runtime.metering import export_metrics
from trueup_common.runtime.metrics import PROCESS, Reading
from trueup_common.runtime.ports import StoreBusy
from trueup_common.runtime.queues import Queues
from trueup_common.runtime.settings import Settings
from trueup_common.runtime.telemetry import set_up
from trueup_common.runtime.timers import DueLoop, Relay

log = logging.getLogger("trueup.service")

START_PAUSE_SECONDS: Final = 0.5
START_TRIES: Final = 120
DRAIN_SECONDS: Final = 10.0
HOUSE_SECONDS: Final = 30.0
"""Between two looks at the time, at spare sessions and at memory that is free."""


@dataclass(slots=True)
class Context:
    """What a service is built from."""

    name: str
    settings: Settings
    database: Database
    bus: Bus
    publisher: BusPublisher
    catalog: Catalog
    governance: GovernanceWatch
    clock: BusinessClock
    crash: RealCrashPoints
    schedule: RealSchedule
    stop: asyncio.Event

    def unloaded(self) -> str | None:
        """The bucket that is not read to its end yet, where one is not: what it holds is not known."""
        for watch in (self.catalog.watch, self.governance.watch):
            if watch is not None and not watch.loaded.is_set():
                return f"bucket {watch.bucket} is not loaded yet"
        return None


@dataclass(slots=True)
class Parts:
    """What a service consists of. `background` are coroutines that end by themselves once `context.stop` is set."""

    loops: list[Loop[Any]] = field(default_factory=list)
    timers: list[DueLoop[Any]] = field(default_factory=list)
    background: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    ready: list[ReadyCheck] = field(default_factory=list)
    close: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    routes: list[BaseRoute] = field(default_factory=list)
    """What this service answers on its health port besides health."""
    own_health: bool = False
    """True where the service serves health itself (the gateway on its main port)."""


Build = Callable[[Context], Awaitable[Parts]]


def schema_of(service: str) -> str:
    """Schema and role suffix of a service."""
    return service.replace("-", "_")


async def _connect(settings: Settings) -> tuple[Database, Bus]:
    """Database and bus, waiting for servers that are still starting."""
    last = ""
    for _ in range(START_TRIES):
        try:
            database = await Database.connect(
                settings.database_url.get_secret_value(),
                schema=schema_of(settings.service),
                size=settings.database_pool,
                application=settings.instance,
            )
        except (*PASSING, asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            last = f"database: {type(error).__name__}: {error}"
            await asyncio.sleep(START_PAUSE_SECONDS)
            continue
        try:
            bus = await Bus.connect(
                settings.nats_url.get_secret_value(), service=settings.service, name=settings.instance
            )
        except BUS_AWAY as error:
            last = f"bus: {type(error).__name__}: {error}"
            await database.close()
            await asyncio.sleep(START_PAUSE_SECONDS)
            continue
        return database, bus
    raise SystemExit(f"trueup {settings.service}: not reachable: {last}")


async def _follow_clock(context: Context) -> None:
    """Business time outside transactions follows the control message; the answer tells that it did."""

    async def moved(raw: CoreMessage) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            seconds = float(orjson.loads(raw.data)["offset_seconds"])
            context.clock.offset = timedelta(seconds=seconds)
            context.database.time.forget()
            answer = {"instance": context.settings.instance, "offset_seconds": seconds}
            await context.bus.send(raw.reply, orjson.dumps(answer))

    await context.bus.listen(CLOCK_SUBJECT, moved)
    async with context.database.connection() as connection:
        context.clock.offset = await connection.fetchval("SELECT trueup.now() - now()")


async def _agree_on_time(context: Context) -> None:
    """Real time is the database's: ask, compare, and go by the difference until asked again."""
    with contextlib.suppress(StoreBusy):
        async with context.database.connection() as connection:
            asked = machine_now()
            told = await connection.fetchval("SELECT clock_timestamp()")
            answered = machine_now()
        ahead = agree(asked, told, answered)
        if ahead:
            log.warning("this machine's clock is wrong; the database's is used", extra={"ahead_seconds": ahead})


async def _keep_house(context: Context) -> None:
    """Now and then: agree on the time, and give back what a burst left behind."""
    while not context.stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOUSE_SECONDS):
                await context.stop.wait()
        await _agree_on_time(context)
        await context.database.let_go()
        memory.give_back()


async def _follow_crash_points(context: Context) -> None:
    """In development, tests may arm crash points of a running process."""

    async def armed(raw: CoreMessage) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            order = orjson.loads(raw.data)
            if order["instance"] == context.settings.instance:
                # Answered first: the next thing that this process does may be to die.
                await context.bus.send(raw.reply, b"{}")
                await context.bus.flush()
                context.crash.arm(order["at"])

    if context.settings.development:
        await context.bus.listen(CRASH_SUBJECT, armed)


def _checks(context: Context, parts: Parts) -> list[ReadyCheck]:
    def bus() -> str | None:
        return None if context.bus.connected else "bus: not connected"

    def consumers() -> str | None:
        gone = [
            loop.source.name for loop in parts.loops if isinstance(loop.source, ConsumerSource) and loop.source.missing
        ]
        return f"consumers are missing: {', '.join(gone)}" if gone else None

    def draining() -> str | None:
        return "draining" if context.stop.is_set() else None

    return [bus, consumers, context.unloaded, draining, *parts.ready]


async def _run(settings: Settings, build: Build) -> int:
    database, bus = await _connect(settings)
    context = Context(
        name=settings.service,
        settings=settings,
        database=database,
        bus=bus,
        publisher=BusPublisher(bus),
        catalog=Catalog(),
        governance=GovernanceWatch(),
        clock=BusinessClock(),
        crash=RealCrashPoints(settings.crash_at, settings.state_dir),
        schedule=RealSchedule(),
        stop=asyncio.Event(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stop.set)
    await context.catalog.follow(bus)
    await context.governance.follow(bus)
    await _agree_on_time(context)
    with contextlib.suppress(StoreBusy):
        await _follow_clock(context)
    await _follow_crash_points(context)
    try:
        parts = await build(context)
    except BaseException:  # unusable settings found late: leave nothing running that would keep the process
        await _close(context, Parts())
        raise
    queues = _look_on(context, parts)
    mail = SqlStore(database, lambda connection: _mail(connection, settings.service))
    relay = Relay(mail, context.publisher, bus, context.crash)
    checks = _checks(context, parts)
    health_stop = asyncio.Event()
    tasks = [asyncio.create_task(_run_loop(context, loop_), name=loop_.source.name) for loop_ in parts.loops]
    tasks += [asyncio.create_task(_run_timer(context, timer), name=timer.name) for timer in parts.timers]
    tasks += [asyncio.create_task(relay.run(), name="relay")]
    tasks += [asyncio.create_task(_keep_house(context), name="house")]
    tasks += [asyncio.create_task(queues.run(context.stop), name="queues")]
    if settings.otlp_endpoint:
        tasks += [asyncio.create_task(export_metrics(settings, context.stop), name="metrics")]
    tasks += [asyncio.ensure_future(part()) for part in parts.background]
    health: list[asyncio.Task[None]] = []
    if not parts.own_health or settings.health_port:
        serving = serve_health(settings.host, settings.health_port, checks, health_stop, parts.routes)
        health = [asyncio.create_task(serving)]
    memory.settle()
    log.info("started", extra={"pid": os.getpid()})
    code = await _until_stopped(context, tasks + health)
    await _drain(context, parts, relay, tasks)
    health_stop.set()
    if health:
        await asyncio.wait(health, timeout=2)
    await _close(context, parts)
    log.info("stopped", extra={"code": code})
    return code


async def _is_informed(context: Context) -> bool:
    """Wait for catalog and governance: before, `unknown type` and `not revoked` would be guesses. False on a stop."""
    watches = [watch for watch in (context.catalog.watch, context.governance.watch) if watch is not None]
    stop = asyncio.create_task(context.stop.wait())
    for watch in watches:
        loaded = asyncio.create_task(watch.loaded.wait())
        await asyncio.wait([stop, loaded], return_when=asyncio.FIRST_COMPLETED)
        loaded.cancel()
    stop.cancel()
    return not context.stop.is_set()


async def _run_loop(context: Context, loop: Loop[Any]) -> None:
    if await _is_informed(context):
        if isinstance(loop.source, ConsumerSource):
            await loop.source.start()
        await loop.run()


async def _run_timer(context: Context, timer: DueLoop[Any]) -> None:
    if await _is_informed(context):
        await timer.run()


async def _close(context: Context, parts: Parts) -> None:
    for close in parts.close:
        await close()
    for watch in (context.catalog.watch, context.governance.watch):
        if watch is not None:
            await watch.stop()
    await context.bus.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            await context.database.close()


def _look_on(context: Context, parts: Parts) -> Queues:
    """Let metrics read what is counted anyway, and traces see the loops where this process records any."""
    publisher, bus = context.publisher, context.bus
    PROCESS.loops.update((loop.source.name, loop.statistics) for loop in parts.loops)
    PROCESS.watch(
        Reading("trueup_bus_connected", "1 while the connection to the bus stands", lambda: bus.connected),
        Reading("trueup_publisher_published", "Messages confirmed", lambda: publisher.published_count, counter=True),
        Reading("trueup_publisher_failed", "Messages not confirmed", lambda: publisher.failed_count, counter=True),
        Reading("trueup_publisher_full", "1 while a stream is at its limit", lambda: publisher.full),
    )
    if tracing.is_on():
        for loop in parts.loops:
            loop.watch = tracing.LoopSpans(loop.source.name)
        for timer in parts.timers:
            timer.watch = tracing.LoopSpans(timer.name)
    queues = Queues(bus, parts.loops, parts.timers)
    PROCESS.watch(*queues.families())
    return queues


def _mail(connection: Any, service: str) -> MailTransaction:
    transaction = MailTransaction(connection)
    transaction.service = service
    return transaction


async def _until_stopped(context: Context, tasks: "Sequence[asyncio.Future[Any]]") -> int:
    stop = asyncio.create_task(context.stop.wait())
    closed = asyncio.create_task(context.bus.closed.wait())
    done, _ = await asyncio.wait([stop, closed, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if stop in done:
        closed.cancel()
        return 0
    for task in done:
        error = None if task in (stop, closed) or task.cancelled() else task.exception()
        name = "bus connection" if task is closed else getattr(task, "get_name", lambda: "part")()
        log.critical("a part ended; this process ends too", extra={"part": name}, exc_info=error)
    context.stop.set()
    closed.cancel()
    return 1


async def _drain(context: Context, parts: Parts, relay: Relay, tasks: "list[Any]") -> None:
    """Ask for nothing more, finish what is in hand, mark what was sent."""
    for loop_ in parts.loops:
        loop_.stopping = True
        if isinstance(loop_.source, ConsumerSource):
            await loop_.source.stop()
    for timer in parts.timers:
        timer.stopping = True
        timer.wake()
    relay.stopping = True
    _, pending = await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=2)


def run_service(name: str, build: Build) -> None:
    """Run a service until SIGTERM; the process exits 0 after a drain, 1 when a part died, 2 on bad settings."""
    os.environ["TRUEUP_SERVICE"] = name
    os.environ.setdefault("TRUEUP_INSTANCE", f"{name}-{socket.gethostname()}"[:64])
    try:
        settings = Settings()
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}" for item in error.errors()
        )
        sys.stderr.write(f"trueup {name}: unusable settings: {reasons}\n")
        raise SystemExit(2) from None
    set_skew(settings.clock_skew_seconds)
    set_up(settings)
    try:
        raise SystemExit(uvloop.run(_run(settings, build)))
    finally:
        tracing.stop()
