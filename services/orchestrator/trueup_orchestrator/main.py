"""The orchestrator's process: three consumers, four timers, and an ear for beats."""

import asyncio
import logging

from pydantic import ValidationError

from trueup_common.contracts.task import Beat
from trueup_common.contracts.topology import CONSUMERS, beat_subject
from trueup_common.runtime.bus import ConsumerSource, CoreMessage
from trueup_common.runtime.db import SqlStore
from trueup_common.runtime.host import Loop
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.timers import DueLoop
from trueup_orchestrator.check_store import ANY_BREACH, CheckTransaction, check_store
from trueup_orchestrator.checking import Checker
from trueup_orchestrator.core.case import Terms
from trueup_orchestrator.desk import Desk
from trueup_orchestrator.handler import CommandHandler, EventHandler, Timers
from trueup_orchestrator.store import ANY_DUE, ANY_READY, SqlOrchestratorTransaction
from trueup_orchestrator.windows import Windows

log = logging.getLogger("trueup.orchestrator")

DUE_INTERVAL_SECONDS = 0.25
QUEUE_INTERVAL_SECONDS = 0.25
FREED_SECONDS = 0.005
CHECK_INTERVAL_SECONDS = 15.0


async def build(context: Context) -> Parts:
    """The parts of the orchestrator."""
    settings = context.settings
    desk = Desk(
        declarations=context.catalog,
        governance=context.governance,
        terms=Terms(
            exception_owner=settings.exception_owner, exception_sla_seconds=float(settings.exception_sla_seconds)
        ),
        windows=Windows(settings.window_slots),
    )
    store = SqlStore(context.database, SqlOrchestratorTransaction)
    timers = Timers(desk)

    def loop(durable: str, handler: CommandHandler | EventHandler) -> Loop[SqlOrchestratorTransaction]:
        consumer = next(item for item in CONSUMERS if item.durable == durable)
        return Loop(
            source=ConsumerSource(context.bus, consumer),
            store=store,
            handler=handler,
            publisher=context.publisher,
            crash=context.crash,
            schedule=context.schedule,
        )

    def due(
        name: str, tick: str, interval_seconds: float, question: str | None = None
    ) -> DueLoop[SqlOrchestratorTransaction]:
        return DueLoop(
            name=name,
            store=store,
            tick=getattr(timers, tick),
            publisher=context.publisher,
            crash=context.crash,
            interval_seconds=interval_seconds,
            due=context.database.asks(question) if question else None,
            failed=timers.isolation.failed if tick == "due" else None,
        )

    renewals = due("orchestrator-beats", "beats", 3600)
    queue = due("orchestrator-queue", "queue", QUEUE_INTERVAL_SECONDS, ANY_READY)
    desk.freed = lambda: _soon(queue)

    async def heard(raw: CoreMessage) -> None:
        try:
            beat = Beat.model_validate_json(raw.data)
        except ValidationError:
            log.error("unreadable beat", extra={"subject": raw.subject})
            return
        timers.heard(beat)
        if beat.running:
            renewals.wake()

    await context.bus.listen(beat_subject("*"), heard)
    return Parts(
        loops=[
            loop("orchestrator-commands", CommandHandler(desk)),
            loop("orchestrator-events", EventHandler(desk)),
            loop("orchestrator-signals", EventHandler(desk)),
        ],
        timers=[
            due("orchestrator-due", "due", DUE_INTERVAL_SECONDS, ANY_DUE),
            queue,
            renewals,
            _checks(context, desk.terms),
        ],
    )


def _soon(timer: DueLoop[SqlOrchestratorTransaction]) -> None:
    """Let a timer look, once the answer that is due now has left: who waits for it is served first."""
    asyncio.get_running_loop().call_later(FREED_SECONDS, timer.wake)


def _checks(context: Context, terms: Terms) -> DueLoop[CheckTransaction]:
    """The timer that looks whether the invariants hold."""
    return DueLoop(
        name="orchestrator-checks",
        store=check_store(context.database),
        tick=Checker(terms).check,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=CHECK_INTERVAL_SECONDS,
        due=context.database.asks(ANY_BREACH),
    )


def main() -> None:
    """Entry point of the process."""
    run_service("orchestrator", build)


if __name__ == "__main__":
    main()
