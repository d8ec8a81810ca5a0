"""The repair planner as a process: one consumer, timers for deadlines and incidents, and the execution of repairs."""

import logging
from typing import Final

from trueup_common.contracts.topology import CONSUMERS
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.host import Loop
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.settings import Settings
from trueup_common.runtime.timers import DueLoop
from trueup_repair_planner.core.incident import Alarm
from trueup_repair_planner.core.lifecycle import Duty
from trueup_repair_planner.desk import Rules
from trueup_repair_planner.execution import Execution
from trueup_repair_planner.gateway_client import GatewayClient, token_source
from trueup_repair_planner.handler import EventsHandler, Ticks, rules_of
from trueup_repair_planner.store import (
    ANY_DUE_INCIDENT,
    ANY_DUE_REPAIR,
    ANY_OVERDUE,
    ANY_UNVERIFIED,
    SqlPlannerTransaction,
    sql_store,
)

log = logging.getLogger("trueup.planner")

DEADLINE_INTERVAL_SECONDS: Final = 1.0


def rules_from(settings: Settings) -> Rules:
    """By what this process goes. Raises PlaybooksInvalid: a planner with unsound playbooks does not start."""
    duty = Duty(
        owner=settings.exception_owner,
        escalation_owner=settings.escalation_owner,
        sla_seconds=settings.exception_sla_seconds,
    )
    alarm = Alarm(
        exceptions_min=settings.incident_exceptions,
        window_seconds=settings.incident_window_seconds,
        probe_seconds=settings.incident_probe_seconds,
    )
    return rules_of(duty, alarm)


def gateway_of(settings: Settings) -> GatewayClient | None:
    """The way to the gateway; None where no identity is configured for it."""
    url = (settings.gateway_url or settings.public_url or f"http://{settings.host}:{settings.port}").rstrip("/")
    source = token_source(settings, url)
    if source is None:
        log.warning("no identity for the gateway is configured: repairs stay planned until a person acts")
        return None
    return GatewayClient(url, source)


async def build(context: Context) -> Parts:
    """Loop, timers and execution of the planner."""
    rules = rules_from(context.settings)
    store = sql_store(context.database)
    consumer = next(consumer for consumer in CONSUMERS if consumer.durable == "repair-planner-events")
    loop: Loop[SqlPlannerTransaction] = Loop(
        source=ConsumerSource(context.bus, consumer),
        store=store,
        handler=EventsHandler(rules),
        publisher=context.publisher,
        crash=context.crash,
        schedule=context.schedule,
    )
    ticks = Ticks(rules)
    timers: list[DueLoop[SqlPlannerTransaction]] = [
        DueLoop(
            name=name,
            store=store,
            tick=tick,
            publisher=context.publisher,
            crash=context.crash,
            interval_seconds=DEADLINE_INTERVAL_SECONDS,
            due=context.database.asks(due),
        )
        for name, tick, due in (
            ("repair-planner-deadlines", ticks.deadlines, ANY_OVERDUE),
            ("repair-planner-incidents", ticks.incidents, ANY_DUE_INCIDENT),
            ("repair-planner-verifications", ticks.verifications, ANY_UNVERIFIED),
        )
    ]
    gateway = gateway_of(context.settings)
    execution = Execution(
        store=store,
        publisher=context.publisher,
        crash=context.crash,
        rules=rules,
        gateway=gateway,
        due=context.database.asks(ANY_DUE_REPAIR),
    )
    parts = Parts(loops=[loop], timers=list(timers), background=[lambda: execution.run(context.stop)])
    if gateway is not None:
        parts.close.append(gateway.close)
    return parts


def main() -> None:
    """Run until SIGTERM."""
    run_service("repair-planner", build)


if __name__ == "__main__":
    main()
