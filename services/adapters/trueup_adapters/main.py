"""The adapters as a process: one consumer per system, the loop of outcomes, the scan, and beats."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Final

from trueup_adapters.authority import GrantAuthority
from trueup_adapters.connections import ConnectionsUnusable, read_connections
from trueup_adapters.discovery import discovery_routes
from trueup_adapters.execution import Execution, FinishedQueue, open_lines
from trueup_adapters.handler import OutcomeHandler, Scan, TaskHandler
from trueup_adapters.payloads import KeptPayloads
from trueup_adapters.store import ANY_OVERDUE, SqlAdaptersTransaction, SqlDocuments, sql_store
from trueup_common.contracts.adapter import ENTRY_POINT_GROUP, Adapter, Connection
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.topology import beat_subject, task_consumer
from trueup_common.runtime.bus import Bus, BusDelivery, ConsumerSource
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.host import BATCH_MAX, Loop
from trueup_common.runtime.objects import ObjectStore
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.settings import Settings
from trueup_common.runtime.timers import DueLoop

BEAT_SECONDS: Final = 1.0
SCAN_INTERVAL_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 6.0


def installed(names: str) -> dict[str, Adapter]:
    """Installed adapters by system; `names` (comma-separated) narrows them. SystemExit for one that is not there."""
    found: dict[str, Adapter] = {point.name: point.load() for point in entry_points(group=ENTRY_POINT_GROUP)}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise SystemExit(f"trueup adapters: no adapter is installed for {', '.join(missing)}")
    return {name: found[name] for name in sorted(wanted or found)}


def configured(settings: Settings, systems: Collection[str] | None = None) -> tuple[Connection, ...]:
    """Connections of this process. SystemExit where the file cannot be used.

    A process that serves every system refuses a system that is not installed; one of some systems cannot know.
    """
    if settings.connections is None:
        return ()
    try:
        return read_connections(
            settings.connections,
            private_networks=settings.development,
            slots=settings.worker_slots,
            systems=systems,
            known=systems if not settings.systems.strip() else None,
        )
    except ConnectionsUnusable as error:
        raise SystemExit(f"trueup adapters: {error}") from None


def differing(adapters: Mapping[str, Adapter], catalog: Catalog) -> str | None:
    """What keeps this process unready: a declaration that differs from the catalog's."""
    differ = [
        declaration.type
        for adapter in adapters.values()
        for declaration in adapter.declarations
        if catalog.declaration(declaration.sha256) is None or catalog.by_type(declaration.type) != declaration
    ]
    return f"declarations differ from the catalog: {', '.join(sorted(differ))}" if differ else None


class _TaskSource(ConsumerSource):
    """A system's tasks, taken only as fast as jobs can begin."""

    def __init__(self, bus: Bus, system: str, execution: Execution) -> None:
        super().__init__(bus, task_consumer(system))
        self.execution = execution

    async def fetch(self, limit: int) -> Sequence[BusDelivery]:
        """The next batch."""
        room = await self.execution.room(limit)
        return await super().fetch(room) if room else []


async def build(context: Context) -> Parts:
    """Loops and timers of the adapters."""
    settings = context.settings
    adapters = installed(settings.systems)
    try:
        lines = open_lines(_with_documents(configured(settings, adapters), context.database), adapters)
        keys = GrantKeys.read(settings.grant_keys.get_secret_value())
    except ValueError as error:
        raise SystemExit(f"trueup adapters: {error}") from None
    worker = f"{settings.instance}#{new_id('msg')[-8:]}"
    store = sql_store(context.database)
    finished = {system: FinishedQueue(system) for system in adapters}
    execution = Execution(
        lines, finished, store, context.crash, worker, payloads=KeptPayloads(ObjectStore(context.bus))
    )
    authority = GrantAuthority(keys, context.governance)
    scan = Scan(declarations=context.catalog, background=execution, process=settings.instance, worker=worker)
    common: dict[str, Any] = {
        "store": store,
        "publisher": context.publisher,
        "crash": context.crash,
        "schedule": context.schedule,
    }
    loops: list[Loop[Any]] = [
        Loop(
            source=_TaskSource(context.bus, system, execution),
            handler=TaskHandler(
                system=system,
                authority=authority,
                declarations=context.catalog,
                background=execution,
                worker=worker,
                monotonic=monotonic,
                send_window_seconds=settings.send_window_seconds,
            ),
            **common,
        )
        for system in adapters
    ]
    outcomes: list[Loop[SqlAdaptersTransaction]] = [
        Loop(source=queue, handler=OutcomeHandler(), **common) for queue in finished.values()
    ]
    return Parts(
        loops=[*loops, *outcomes],
        timers=[_scan_loop(context, store, scan)],
        background=[lambda: _beat(context, execution, adapters), lambda: _drain(context, execution, outcomes)],
        ready=[
            lambda: differing(adapters, context.catalog),
            lambda: (
                f"open operations need unknown declarations: {', '.join(sorted(scan.unknown_declarations))}"
                if scan.unknown_declarations
                else None
            ),
        ],
        routes=list(discovery_routes(lines)),
        close=[execution.close],
    )


def _with_documents(connections: Sequence[Connection], database: Database) -> list[Connection]:
    """Connections, each with the documents of its own tenant and system, and of no other."""
    return [replace(item, documents=SqlDocuments(database, item.tenant, item.system)) for item in connections]


def _scan_loop(
    context: Context, store: SqlStore[SqlAdaptersTransaction], scan: Scan
) -> DueLoop[SqlAdaptersTransaction]:
    return DueLoop(
        name="adapters-scan",
        store=store,
        tick=scan.tick,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=SCAN_INTERVAL_SECONDS,
        due=context.database.asks(ANY_OVERDUE),
    )


async def _beat(context: Context, execution: Execution, adapters: Mapping[str, Adapter]) -> None:
    """Slots and long attempts, each second, until the service stops."""
    while not context.stop.is_set():
        for beat in execution.beats(adapters):
            await context.bus.send(beat_subject(beat.system), beat.model_dump_json().encode())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS):
                await context.stop.wait()


async def _drain(context: Context, execution: Execution, outcomes: Sequence[Loop[SqlAdaptersTransaction]]) -> None:
    """On the way out: let running attempts end and put what they came to into the ledger, within a bound."""
    await context.stop.wait()
    until = monotonic() + DRAIN_SECONDS
    is_over = False
    while not is_over:
        is_over = not execution.jobs_count or monotonic() >= until
        await execution.idle(0.2)
        for loop, queue in zip(outcomes, execution.finished.values(), strict=True):
            while batch := queue.take(BATCH_MAX):
                await loop.process(batch)


def main() -> None:
    """Run until SIGTERM."""
    run_service("adapters", build)


if __name__ == "__main__":
    main()
