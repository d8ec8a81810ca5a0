"""What the API works with: one object per process, made by main and found by every endpoint."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.clock import BusinessClock
from trueup_common.runtime.health import ReadyCheck
from trueup_common.runtime.objects import Objects
from trueup_common.runtime.ports import Publisher, Store
from trueup_common.runtime.settings import Settings
from trueup_gateway.accept import Acceptor
from trueup_gateway.answers import AnswerBoard
from trueup_gateway.api.bodies import Bodies
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.slo import ServiceLevels
from trueup_gateway.dispositions import Dispositions
from trueup_gateway.issuers import ExternalIssuer
from trueup_gateway.levels import shipped_levels
from trueup_gateway.rules import RuleBook
from trueup_gateway.sightings import Sightings
from trueup_gateway.signalling import SignalTaker
from trueup_gateway.starting import Starter
from trueup_gateway.store import GatewayReads, GatewayTransaction
from trueup_gateway.tokens import SigningKey, Verifier
from trueup_gateway.watching import CaseWatch


@dataclass(slots=True)
class Gateway:
    """Everything that the endpoints use. `governance_changed` nudges the publisher; `dev_key` is set in development."""

    settings: Settings
    clock: BusinessClock
    catalog: Catalog
    store: Store[GatewayTransaction]
    reads: GatewayReads
    rules: RuleBook
    acceptor: Acceptor
    starter: Starter
    signals: SignalTaker
    answers: AnswerBoard
    verifier: Verifier
    signing_key: SigningKey
    answer_subject: str
    publisher: Publisher
    watch: CaseWatch
    objects: Objects
    dev_key: SigningKey | None = None
    issuer: ExternalIssuer | None = None
    loading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    """How many kept payloads are in memory at once."""
    bodies: Bodies = field(default_factory=Bodies)
    payloads: PayloadSchemas = field(default_factory=PayloadSchemas)
    levels: ServiceLevels = field(default_factory=shipped_levels)
    sightings: Sightings = field(default_factory=Sightings)
    governance_changed: Callable[[], None] = lambda: None
    batches_changed: Callable[[], None] = lambda: None
    ready: list[ReadyCheck] = field(default_factory=list)
    sending: set[asyncio.Task[None]] = field(default_factory=set)
    dispositions: Dispositions = field(init=False)

    def __post_init__(self) -> None:
        """What is made of the other parts."""
        self.dispositions = Dispositions(self.reads.disposed)


def unknown(gateway: Gateway, refused: Refused) -> Refused:
    """A refusal because the catalog lacks something: final only once the catalog is here, until then to be retried."""
    if gateway.catalog.is_loaded:
        return refused
    return Refused("unavailable", "The gateway is still loading its catalog.", retry_after_seconds=1)


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves a request."""
    found: Gateway = request.scope["trueup.gateway"]
    return found
