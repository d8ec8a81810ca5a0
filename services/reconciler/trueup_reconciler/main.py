"""The reconciler as a process: one consumer and two timers."""

import json
from pathlib import Path
from typing import Final

from trueup_common.contracts.topology import CONSUMERS
from trueup_common.documents.text import decoded, parsed
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.host import Loop
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.timers import DueLoop
from trueup_reconciler.core.canary import Watch
from trueup_reconciler.core.drift import Terms
from trueup_reconciler.core.ignoring import IgnoreRule, IgnoreRules
from trueup_reconciler.core.survey import Rounds
from trueup_reconciler.core.turned import Care
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.lookout import Lookout
from trueup_reconciler.store import (
    ANY_CANARY,
    ANY_SETTLEMENT,
    ANY_SURVEY,
    ANY_VISIT,
    SqlReconcilerTransaction,
    sql_store,
)

SETTLE_INTERVAL_SECONDS: Final = 0.25
VISIT_INTERVAL_SECONDS: Final = 0.5
CANARY_INTERVAL_SECONDS: Final = 15.0
SURVEY_INTERVAL_SECONDS: Final = 2.0


async def build(context: Context) -> Parts:
    """Loops and timers of the reconciler."""
    settings = context.settings
    care = Care(owner=settings.exception_owner, sla_seconds=settings.exception_sla_seconds)
    terms = Terms(care=care, rules=read_rules(settings.drift_rules))
    watch = Watch(settings.selftest_seconds) if settings.selftest_seconds else None
    rounds = Rounds(period_seconds=settings.survey_seconds) if settings.survey_seconds else None
    lookout = Lookout(care, watch, rounds)
    store = sql_store(context.database)
    ticks = Ticks()
    consumer = next(consumer for consumer in CONSUMERS if consumer.durable == "reconciler-events")
    loop: Loop[SqlReconcilerTransaction] = Loop(
        source=ConsumerSource(context.bus, consumer),
        store=store,
        handler=EventsHandler(terms, lookout=lookout),
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
    canaries: DueLoop[SqlReconcilerTransaction] = DueLoop(
        name="reconciler-canaries",
        store=store,
        tick=lookout.canaries,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=CANARY_INTERVAL_SECONDS,
        due=context.database.asks(ANY_CANARY),
    )
    surveys: DueLoop[SqlReconcilerTransaction] = DueLoop(
        name="reconciler-surveys",
        store=store,
        tick=lookout.surveys,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=SURVEY_INTERVAL_SECONDS,
        due=context.database.asks(ANY_SURVEY),
    )
    wanted = [timer for timer, on in ((canaries, watch), (surveys, rounds)) if on is not None]
    return Parts(loops=[loop], timers=[settlements, visits, *wanted])


def read_rules(path: Path | None) -> tuple[IgnoreRule, ...]:
    """The rules of accepted drift. Raises ValueError for a document that is not understood: it is never half a rule."""
    if path is None:
        return ()
    value, _ = parsed(decoded(path.read_bytes()))
    return IgnoreRules.model_validate_json(json.dumps(value)).rules


def main() -> None:
    """Run until SIGTERM."""
    run_service("reconciler", build)


if __name__ == "__main__":
    main()
