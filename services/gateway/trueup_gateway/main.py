"""The gateway process: roles `api` (the HTTP edge) and `worker` (grants, views, governance), by default both."""

import contextlib
import re
from typing import Any, Final

from pydantic import ValidationError

from trueup_common.contracts.topology import CONSUMERS, Consumer, answer_subject
from trueup_common.runtime import tracing
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.db import SqlStore
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.host import Loop
from trueup_common.runtime.metrics import PROCESS, Reading
from trueup_common.runtime.objects import ObjectStore
from trueup_common.runtime.ports import Handler, StoreBusy
from trueup_common.runtime.service import Context, Parts, run_service
from trueup_common.runtime.settings import Settings
from trueup_common.runtime.timers import DueLoop
from trueup_gateway.accept import Acceptor
from trueup_gateway.answers import AnswerBoard
from trueup_gateway.api.app import create_app
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.approval_handler import ApprovalHandler
from trueup_gateway.batches import Batches
from trueup_gateway.core.records import PolicyRow
from trueup_gateway.core.slo import ServiceLevels
from trueup_gateway.counting import Counting
from trueup_gateway.gauges import Gauges
from trueup_gateway.governance import GovernancePublisher
from trueup_gateway.handler import GrantHandler, ViewHandler
from trueup_gateway.issuers import ExternalIssuer, checked_issuer
from trueup_gateway.levels import bounds_of, read_anomaly_rules, read_service_levels
from trueup_gateway.policy import PolicySet
from trueup_gateway.rules import RuleBook
from trueup_gateway.serving import ApiServer
from trueup_gateway.sightings import AnomalyWatch, Sightings
from trueup_gateway.signalling import SignalTaker
from trueup_gateway.starting import Starter
from trueup_gateway.store import GatewayReads, GatewayTransaction, gateway_store
from trueup_gateway.store.batches import ANY_DUE as ANY_BATCH_DUE
from trueup_gateway.store.numbers import ANY_COUNTING_DUE
from trueup_gateway.tokens import ACCESS_TYPE, DEV_ISSUER, Issuer, SigningKey, Verifier
from trueup_gateway.watching import CaseWatch

SERVICE: Final = "gateway"
ROLES: Final = frozenset({"api", "worker"})
BATCH_INTERVAL_SECONDS: Final = 0.5
SEED_TRIES: Final = 20
COUNT_INTERVAL_SECONDS: Final = 10.0
ANOMALY_INTERVAL_SECONDS: Final = 15.0


def read_roles(text: str) -> frozenset[str]:
    """The roles of this process. Raises SystemExit for an unknown one."""
    roles = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not roles or roles - ROLES:
        raise SystemExit(f"trueup gateway: unusable settings: TRUEUP_ROLES is not made of {', '.join(sorted(ROLES))}")
    return roles


def read_signing_keys(settings: Settings) -> tuple[SigningKey, SigningKey | None]:
    """The capability key and, in development mode only, the development issuer's key. Raises SystemExit."""
    try:
        document = settings.signing_key.get_secret_value()
        if not document and not settings.development:
            raise ValueError("TRUEUP_SIGNING_KEY is needed in production mode")
        signing = SigningKey.read(document, "TRUEUP_SIGNING_KEY") if document else SigningKey.generate()
        if not settings.development:
            return signing, None
        issuer = settings.dev_issuer_key.get_secret_value()
        return signing, SigningKey.read(issuer, "TRUEUP_DEV_ISSUER_KEY") if issuer else SigningKey.generate()
    except ValueError as error:
        raise SystemExit(f"trueup gateway: unusable settings: {error}") from None


def read_grant_keys(settings: Settings) -> GrantKeys:
    """The grant keys by system. Raises SystemExit."""
    try:
        return GrantKeys.read(settings.grant_keys.get_secret_value() or "{}")
    except ValueError as error:
        raise SystemExit(f"trueup gateway: unusable settings: {error}") from None


def verifier_of(signing: SigningKey, dev: SigningKey | None) -> Verifier:
    """The verifier of both kinds of tokens."""
    issuers = [Issuer(DEV_ISSUER, ACCESS_TYPE, {dev.kid: dev.key})] if dev is not None else []
    return Verifier(capability_key=signing, access=issuers)


async def seed(store: SqlStore[GatewayTransaction], context: Context) -> None:
    """Epoch and default policy, where the tables hold none yet."""
    policies = PolicySet.default()
    row = PolicyRow(
        version=1,
        sha256=policies.sha256,
        text=policies.text,
        reason="the set that ships with the product",
        created_by="service:gateway",
        created_at=real_now(),
        epoch=1,
    )
    for number in range(1, SEED_TRIES + 1):
        try:
            async with store.transaction() as tx:
                await tx.seed(row)
            return
        except StoreBusy:
            if number == SEED_TRIES:
                raise
            await context.schedule.pause(0.5)


def _counting(context: Context, store: SqlStore[GatewayTransaction], levels: ServiceLevels) -> DueLoop[Any]:
    """The timer that counts what changed."""
    counting = Counting(bounds_of(context.settings, levels))
    return DueLoop(
        name="gateway-numbers",
        store=store,
        tick=counting.count,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=COUNT_INTERVAL_SECONDS,
        due=context.database.asks(ANY_COUNTING_DUE),
    )


def _anomalies(context: Context, store: SqlStore[GatewayTransaction], sightings: Sightings) -> DueLoop[Any]:
    """The timer that keeps what the edge noted and looks whether it is an anomaly."""
    watch = AnomalyWatch(read_anomaly_rules(context.settings), sightings, context.settings)
    return DueLoop(
        name="gateway-anomalies",
        store=store,
        tick=watch.look,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=ANOMALY_INTERVAL_SECONDS,
    )


def _batches(context: Context, store: SqlStore[GatewayTransaction], rules: RuleBook) -> DueLoop[Any]:
    """The timer that works batches off."""
    return DueLoop(
        name="gateway-batches",
        store=store,
        tick=Batches(rules, context.catalog).tick,
        publisher=context.publisher,
        crash=context.crash,
        interval_seconds=BATCH_INTERVAL_SECONDS,
        due=context.database.asks(ANY_BATCH_DUE),
    )


def _consumer(durable: str) -> Consumer:
    return next(consumer for consumer in CONSUMERS if consumer.durable == durable)


def _loop(context: Context, store: SqlStore[GatewayTransaction], durable: str, handler: Handler[Any]) -> Loop[Any]:
    return Loop(
        source=ConsumerSource(context.bus, _consumer(durable)),
        store=store,
        handler=handler,
        publisher=context.publisher,
        crash=context.crash,
        schedule=context.schedule,
    )


async def build(context: Context) -> Parts:
    """The parts of one gateway process."""
    settings = context.settings
    roles = read_roles(settings.roles)
    signing, dev = read_signing_keys(settings)
    keys = read_grant_keys(settings)
    store = gateway_store(context.database)
    levels = read_service_levels(settings)
    rules = RuleBook()
    answers = AnswerBoard(GatewayReads(context.database))
    await seed(store, context)
    parts = Parts(own_health="api" in roles)
    sightings = Sightings(settings.instance)
    parts.timers.append(_anomalies(context, store, sightings))
    publisher = GovernancePublisher(store=store, bus=context.bus, watch=context.governance)
    if "worker" in roles:
        grants = GrantHandler(rules=rules, catalog=context.catalog, keys=keys)
        parts.loops += [
            _loop(context, store, "gateway-grants", grants),
            _loop(context, store, "gateway-views", ViewHandler(answers.cases_over)),
            _loop(context, store, "gateway-approvals", ApprovalHandler()),
        ]
        parts.background.append(lambda: publisher.run(context.stop))
        parts.timers += [_counting(context, store, levels), _batches(context, store, rules)]
        gauges = Gauges(GatewayReads(context.database), levels)
        PROCESS.watch(*gauges.families())
        parts.background.append(lambda: gauges.run(context.stop))
    if "api" in roles:
        await _add_api(context, parts, store, rules, keys, signing, dev, publisher, answers, sightings)
    return parts


async def _add_api(  # noqa: PLR0917 - the parts that both roles share
    context: Context,
    parts: Parts,
    store: SqlStore[GatewayTransaction],
    rules: RuleBook,
    keys: GrantKeys,
    signing: SigningKey,
    dev: SigningKey | None,
    publisher: GovernancePublisher,
    answers: AnswerBoard,
    sightings: Sightings,
) -> None:
    settings = context.settings
    reads = GatewayReads(context.database)
    watch = CaseWatch(reads)
    acceptor, starter = _accepting(context, store, rules, keys)
    signals = SignalTaker(
        store=store,
        publisher=context.publisher,
        crash=context.crash,
        schedule=context.schedule,
        queue_max=settings.accept_queue_max,
        sightings=sightings,
    )
    subject = answer_subject(re.sub(r"[^A-Za-z0-9_-]", "-", settings.instance) or SERVICE)
    verifier = verifier_of(signing, dev)
    address = checked_issuer(settings)
    issuer = ExternalIssuer(address, verifier) if address else None
    gateway = Gateway(
        settings=settings,
        clock=context.clock,
        catalog=context.catalog,
        store=store,
        reads=reads,
        rules=rules,
        acceptor=acceptor,
        starter=starter,
        signals=signals,
        answers=answers,
        verifier=verifier,
        signing_key=signing,
        answer_subject=subject,
        publisher=context.publisher,
        watch=watch,
        objects=ObjectStore(context.bus),
        dev_key=dev,
        issuer=issuer,
        governance_changed=publisher.wake,
        levels=read_service_levels(settings),
        sightings=sightings,
    )
    takers = (acceptor, starter, signals)
    parts.ready.append(lambda: None if all(taker.alive for taker in takers) else "accepting: stopped")
    gateway.ready = [
        lambda: None if context.bus.connected else "bus: not connected",
        *parts.ready,
        lambda: "draining" if context.stop.is_set() else None,
        context.unloaded,
    ]
    await context.bus.hear(subject, answers.nudge)
    for taker in takers:
        taker.start()
    app = create_app(gateway, traced=tracing.is_on())
    server = ApiServer(app, settings, leaving=(answers.dismiss, watch.dismiss))
    parts.background += [lambda: server.run(context.stop), lambda: answers.poll(context.stop)]
    parts.background.append(lambda: watch.run(context.stop))
    if issuer is not None:
        parts.background.append(lambda: issuer.run(context.stop))
    parts.close += [taker.close for taker in takers]


def _accepting(
    context: Context, store: SqlStore[GatewayTransaction], rules: RuleBook, keys: GrantKeys
) -> tuple[Acceptor, Starter]:
    """Those who take commands and starts, each in transactions of its own."""
    acceptor = Acceptor(
        store=store,
        publisher=context.publisher,
        rules=rules,
        keys=keys,
        crash=context.crash,
        schedule=context.schedule,
        queue_max=context.settings.accept_queue_max,
    )
    starter = Starter(
        store=store,
        publisher=context.publisher,
        rules=rules,
        catalog=context.catalog,
        crash=context.crash,
        schedule=context.schedule,
        queue_max=context.settings.accept_queue_max,
    )
    PROCESS.watch(
        Reading("trueup_commands_accepted", "Commands accepted", lambda: acceptor.accepted_count, counter=True),
        Reading("trueup_accept_batches", "Transactions that accepted", lambda: acceptor.batches_count, counter=True),
        Reading("trueup_workflows_started", "Workflows started", lambda: starter.accepted_count, counter=True),
        Reading("trueup_start_batches", "Transactions that started", lambda: starter.batches_count, counter=True),
    )
    return acceptor, starter


def check(settings: Settings) -> None:
    """Everything that is wrong with the settings, before anything is connected. Raises SystemExit."""
    read_roles(settings.roles)
    read_signing_keys(settings)
    read_grant_keys(settings)
    try:
        checked_issuer(settings)
    except ValueError as error:
        raise SystemExit(f"trueup gateway: unusable settings: {error}") from None
    read_service_levels(settings)
    read_anomaly_rules(settings)


def main() -> None:
    """Run the gateway."""
    with contextlib.suppress(ValidationError):  # told by run_service, which reads them again
        check(Settings())
    run_service(SERVICE, build)


if __name__ == "__main__":
    main()
