"""The contract of an adapter: what a package must offer to reach one external system.

An adapter is an object behind the entry point group `trueup.adapters`. It names its system, declares its command
types as data and opens a target for a connection. The ledger, grants, fences and retries are not its business: it
performs one call, finds one effect, reads elements, and classifies honestly. A doubt is UNKNOWN.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol, runtime_checkable

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import ErrorClass, ReceiptStatus
from trueup_common.contracts.task import Operation, ProbeElement

ENTRY_POINT_GROUP: Final = "trueup.adapters"


@dataclass(frozen=True, slots=True)
class Connection:
    """One (tenant, system) pair as configured; secrets are already resolved. Never logged (`repr` hides secrets)."""

    tenant: str
    system: str
    settings: Mapping[str, Any] = field(repr=False, default_factory=dict)
    timeout_seconds: float | None = None
    max_concurrency: int = 16
    requests_per_second: float | None = None
    allow_private_network: bool = False
    documents: "Documents | None" = field(repr=False, default=None)
    """A small durable store of this connection's own, where the service that opens it has one."""


@dataclass(frozen=True, slots=True)
class Document:
    """What one operation wants a system to find when it comes and asks. It is kept after its removal, as evidence."""

    key: str
    operation_id: str
    content: Mapping[str, Any]
    removed_by: str | None = None
    """The operation that removed it; None while it stands."""


class DocumentsAway(Exception):
    """The store did not answer. `sent` tells whether the change may have been made."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Documents(Protocol):
    """The documents of one (tenant, system), for adapters whose effect is what they answer when the system asks.

    A change and the operation that made it are one commit, so the operation id is an exact native key. Every method
    raises DocumentsAway.
    """

    async def get(self, key: str) -> Document | None:
        """The document that stands under a key."""
        ...

    async def made_by(self, operation_id: str) -> Document | None:
        """The document that an operation put, even where it was removed since."""
        ...

    async def removed_by(self, operation_id: str) -> Document | None:
        """The document that an operation removed."""
        ...

    async def standing(self) -> Sequence[Document]:
        """All documents that stand, by key."""
        ...

    async def put(
        self, key: str, content: Mapping[str, Any], *, operation_id: str, may_send: Callable[[], None]
    ) -> Document:
        """Put a document where none stands under its key, after `may_send`.

        Answers the document that this operation put, now or before; where another's stands under the key, that one.
        """
        ...

    async def remove(self, document: Document, *, operation_id: str, may_send: Callable[[], None]) -> Document:
        """Remove exactly this document, after `may_send`; answers it with the operation that removed it first."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one transmission came to. Build it with the functions below."""

    status: ReceiptStatus
    error_class: ErrorClass | None = None
    error_code: str | None = None
    error_detail: str | None = None
    external_status: str | None = None
    retry_after_seconds: float | None = None
    result: dict[str, Any] | None = None
    external_resource_id: str | None = None
    external_version: str | None = None
    observations: tuple[Observation, ...] = ()


def confirmed(
    result: dict[str, Any],
    *,
    external_resource_id: str | None = None,
    external_version: str | None = None,
    external_status: str | None = None,
    observations: tuple[Observation, ...] = (),
) -> Outcome:
    """The target answered success and the verification of this type holds."""
    return Outcome(
        status=ReceiptStatus.CONFIRMED,
        result=result,
        external_resource_id=external_resource_id,
        external_version=external_version,
        external_status=external_status,
        observations=observations,
    )


def rejected(
    error_class: ErrorClass,
    code: str,
    detail: str = "",
    *,
    external_status: str | None = None,
    retry_after_seconds: float | None = None,
) -> Outcome:
    """Known not to have happened: transient, permanent or business."""
    if error_class is ErrorClass.UNKNOWN:
        raise ValueError("an unknown outcome is not a rejection")
    return Outcome(
        status=ReceiptStatus.REJECTED,
        error_class=error_class,
        error_code=code,
        error_detail=detail,
        external_status=external_status,
        retry_after_seconds=retry_after_seconds,
    )


def not_sent(code: str, detail: str = "") -> Outcome:
    """The slot was lost before the first byte; no attempt is spent. Said by the service, hardly ever by an adapter."""
    return Outcome(
        status=ReceiptStatus.NOT_SENT, error_class=ErrorClass.TRANSIENT, error_code=code, error_detail=detail
    )


def unknown(code: str, detail: str = "", *, external_status: str | None = None) -> Outcome:
    """The request may have been executed; only looking can tell."""
    return Outcome(
        status=ReceiptStatus.UNKNOWN,
        error_class=ErrorClass.UNKNOWN,
        error_code=code,
        error_detail=detail,
        external_status=external_status,
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an adapter for one operation.

    `may_send` must be called directly before the first byte of every write, on a connection that is already held:
    it raises SlotLost when `send_by` has passed, and from its return on the service takes the effect for possible.
    `progress` stores a cursor in the ledger for operations of many parts; it raises LeaseLost when another attempt or
    a find has taken over, and the adapter must let that stop it.
    """

    operation: Operation
    declaration: CommandDeclaration
    attempt_id: str
    fence: int
    timeout_seconds: float
    may_send: Callable[[], None]
    progress: Callable[[dict[str, Any]], Awaitable[None]]
    cursor: dict[str, Any] | None = None
    traceparent: str | None = None
    sent_before: datetime | None = None
    """For find: when the last attempt was sent, None where none was."""


class SlotLost(Exception):
    """`send_by` passed before the first byte: nothing was sent (NOT_SENT)."""


class LeaseLost(Exception):
    """A higher fence stands in the ledger: this attempt has to stop where it is."""


class EndsWith(Exception):
    """What an adapter raises within itself where a command ends here; `outcome` says what that means for it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error_code)
        self.outcome = outcome

    @property
    def reason(self) -> str:
        """A short name of what went wrong."""
        return self.outcome.error_code or "unavailable"


class Target(Protocol):
    """One external system as one tenant sees it."""

    async def perform(self, call: Call) -> Outcome:
        """Perform the effect once and read it back."""
        ...

    async def find(self, call: Call) -> Finding:
        """Look for this operation's effect, by descending strength of evidence. MISSING needs proof of access."""
        ...

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Read elements of one resource with the read credential, one observation each, in order.

        One read may serve them all. A timeout is UNKNOWN, never MISSING.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class Discoverable(Protocol):
    """A target that its system asks what to do, instead of being told (optional).

    The service answers `GET /discovery/<system>/<tenant>` with it, to holders of the connection's `discovery_token`
    where that is set.
    """

    async def discovery(self) -> Any:
        """The present answer, as JSON. Raises DocumentsAway: an answer that is not known is never an empty one."""
        ...


class Adapter(Protocol):
    """One external system.

    An adapter may name the settings that it reads, as a frozenset `settings`: a connection with another one, a
    misspelt credential perhaps, is then refused by name. Without it any setting is let through.
    """

    @property
    def system(self) -> str:
        """The system's name, the prefix of its command types."""
        ...

    @property
    def declarations(self) -> tuple[CommandDeclaration, ...]:
        """All command types, as pure data."""
        ...

    def open(self, connection: Connection) -> Target:
        """A target for one connection. Does no I/O; raises ValueError for unusable settings."""
        ...
