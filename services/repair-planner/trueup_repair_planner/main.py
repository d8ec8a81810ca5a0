"""The repair planner as a process: one consumer and one timer."""

from typing import Final

from trueup_common.contracts.topology import CONSUMERS
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.host import Loop
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.timers import DueLoop
from trueup_repair_planner.core.lifecycle import Duty
from trueup_repair_planner.handler import EventsHandler, Ticks
from trueup_repair_planner.store import ANY_OVERDUE, SqlPlannerTransaction, sql_store

DEADLINE_INTERVAL_SECONDS: Final = 1.0


async def build(context: Context) -> Parts:
    """Loop and timer of the planner."""
    settings = context.settings
    duty = Duty(
        owner=settings.exception_owner,
        escalation_owner=settings.escalation_owner,
        sla_seconds=settings.exception_sla_seconds,
    )
    store = sql_store(context.database)
    consumer = next(consumer for consumer in CONSUMERS if consumer.durable == "repair-planner-events")
    loop: Loop[SqlPlannerTransaction] = Loop(
        source=ConsumerSource(context.bus, consumer),
        store=store,
        handler=EventsHandler(duty),
        publisher=context.publisher,
        crash=context.crash,
        schedule=context.schedule,
    )
    deadlines: DueLoop[SqlPlannerTransaction] = DueLoop(
        name="repair-planner-deadlines",
        store=store,
        tick=Ticks(duty).deadlines,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=DEADLINE_INTERVAL_SECONDS,
        due=context.database.asks(ANY_OVERDUE),
    )
    return Parts(loops=[loop], timers=[deadlines])


def main() -> None:
    """Run until SIGTERM."""
    run_service("repair-planner", build)


if __name__ == "__main__":
    main()
