"""The reconciler as a process: one consumer and two timers."""

from typing import Final

from trueup_common.contracts.topology import CONSUMERS
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.host import Loop
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.timers import DueLoop
from trueup_reconciler.core.drift import Care
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.store import ANY_SETTLEMENT, ANY_VISIT, SqlReconcilerTransaction, sql_store

SETTLE_INTERVAL_SECONDS: Final = 0.25
VISIT_INTERVAL_SECONDS: Final = 0.5


async def build(context: Context) -> Parts:
    """Loops and timers of the reconciler."""
    settings = context.settings
    care = Care(owner=settings.exception_owner, sla_seconds=settings.exception_sla_seconds)
    store = sql_store(context.database)
    ticks = Ticks()
    consumer = next(consumer for consumer in CONSUMERS if consumer.durable == "reconciler-events")
    loop: Loop[SqlReconcilerTransaction] = Loop(
        source=ConsumerSource(context.bus, consumer),
        store=store,
        handler=EventsHandler(care),
        publisher=context.publisher,
        crash=context.crash,
        schedule=context.schedule,
    )
    settlements: DueLoop[SqlReconcilerTransaction] = DueLoop(
        name="reconciler-settlements",
        store=store,
        tick=ticks.settlements,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=SETTLE_INTERVAL_SECONDS,
        due=context.database.asks(ANY_SETTLEMENT),
    )
    visits: DueLoop[SqlReconcilerTransaction] = DueLoop(
        name="reconciler-visits",
        store=store,
        tick=ticks.visits,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=VISIT_INTERVAL_SECONDS,
        due=context.database.asks(ANY_VISIT),
    )
    return Parts(loops=[loop], timers=[settlements, visits])


def main() -> None:
    """Run until SIGTERM."""
    run_service("reconciler", build)


if __name__ == "__main__":
    main()
