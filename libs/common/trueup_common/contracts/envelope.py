"""The envelope: CloudEvents attributes and W3C trace context in ASCII headers, JSON in the body.

A message without its required headers, or with headers that could not be stored and sent on, is quarantined, never
guessed at: what passes here can neither break an insert nor a publication later.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.ids import is_tenant
from trueup_common.contracts.shape import record, rfc3339

REQUIRED: Final = ("ce-id", "ce-type", "ce-source", "ce-specversion", "ce-time", "ce-tenant")
BROKEN: Final = "trueup.broken"
"""The type of a stand-in for a message that does not say what it is."""
BODY_AND_HEADERS_BYTES_MAX: Final = 1_000_000
"""Below the broker's 1 MiB, headers included: over it the server cuts the connection for good."""


HEADERS_BYTES_BOUND: Final = 2048
"""What the fixed headers can come to: ids, types, times and traces are short."""


NAME_PATTERN: Final = r"[\x21-\x7e]{1,200}"
TYPE_PATTERN: Final = r"[A-Za-z][A-Za-z0-9._-]{0,99}"
TRACE_PATTERN: Final = r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
_NAME: Final = re.compile(NAME_PATTERN)
_TYPE: Final = re.compile(TYPE_PATTERN)
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_TRACE: Final = re.compile(TRACE_PATTERN)
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]{1,20}")
SUBJECT_CHARACTERS_MAX: Final = 400
ATTRIBUTE_CHARACTERS_MAX: Final = 500


class EnvelopeBroken(ValueError):
    """A message whose headers do not name what it is."""


@record
class Message:
    """One message. `id` is its identity for deduplication; `data` is the JSON body as bytes."""

    id: str
    type: str
    subject: str
    tenant: str
    source: str
    time: datetime
    data: bytes
    traceparent: str | None = None
    causation_id: str | None = None
    reply_to: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Body plus an upper bound on the headers as they travel."""
        named = sum(len(key) + 3 * len(value) + 8 for key, value in self.attributes.items())
        return len(self.data) + HEADERS_BYTES_BOUND + len(self.causation_id or "") * 3 + named


class Outgoing:
    """A message to be sent with the commit.

    `durable=False` is for progress only: published from memory after `delay_seconds` unless a newer one with the same
    `coalesce` key replaced it; losing it loses no fact. Most progress is replaced before it is due, so it may be given
    as a function that makes the message when somebody asks for it. `core=True` goes over core NATS (a nudge to one
    replica).
    """

    __slots__ = ("_message", "coalesce", "core", "delay_seconds", "durable")

    def __init__(
        self,
        message: Message | Callable[[], Message],
        durable: bool = True,
        core: bool = False,
        delay_seconds: float = 0.0,
        coalesce: str | None = None,
    ) -> None:
        self._message = message
        self.durable = durable
        self.core = core
        self.delay_seconds = delay_seconds
        self.coalesce = coalesce

    @property
    def message(self) -> Message:
        """The message, made on first use."""
        if not isinstance(self._message, Message):
            self._message = self._message()
        return self._message


def stand_in(subject: str, data: bytes, *, id: str, time: datetime, reason: str) -> Message:  # noqa: A002
    """Stands for a message without its headers on its way into quarantine; its tenant is the subject's last token."""
    tenant = subject.rsplit(".", 1)[-1]
    return Message(
        id=id,
        type=BROKEN,
        subject=clean_text(subject, SUBJECT_CHARACTERS_MAX),
        tenant=tenant if is_tenant(tenant) else "unknown",
        source="unknown",
        time=time,
        data=data,
        attributes={"broken": reason},
    )


def headers_of(message: Message) -> dict[str, str]:
    """Headers of a message; values are percent-encoded to ASCII."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-type": message.type,
        "ce-source": message.source,
        "ce-time": rfc3339(message.time),
        "ce-tenant": message.tenant,
        "Nats-Msg-Id": message.id,
        "content-type": "application/json",
    }
    if message.traceparent:
        headers["traceparent"] = message.traceparent
    if message.causation_id:
        headers["ce-causationid"] = quote(message.causation_id, safe="_-.:")
    if message.reply_to:
        headers["ce-replyto"] = message.reply_to
    for key, value in message.attributes.items():
        headers[f"ce-{key}"] = quote(value, safe="_-.:/")
    return headers


def is_subject(text: str) -> bool:
    """True for a subject that can be published to: a malformed one costs the publisher its connection."""
    return len(text) <= SUBJECT_CHARACTERS_MAX and _SUBJECT.fullmatch(text) is not None


def message_of(subject: str, headers: Mapping[str, str] | None, data: bytes) -> Message:
    """Read a message back. Raises EnvelopeBroken when a header is missing, unreadable or not one of ours."""
    if not headers:
        raise EnvelopeBroken("no headers")
    missing = [name for name in REQUIRED if not headers.get(name)]
    if missing:
        raise EnvelopeBroken(f"missing headers: {', '.join(missing)}")
    if not is_subject(subject):
        raise EnvelopeBroken("the subject is not one of ours")
    tenant = headers["ce-tenant"]
    if not is_tenant(tenant) or subject.rpartition(".")[2] != tenant:
        raise EnvelopeBroken("ce-tenant is not the tenant of the subject")
    for name, allowed in (("ce-id", _NAME), ("ce-type", _TYPE), ("ce-source", _NAME)):
        if not allowed.fullmatch(headers[name]):
            raise EnvelopeBroken(f"{name} is not acceptable")
    causation, reply_to = headers.get("ce-causationid"), headers.get("ce-replyto")
    causation = unquote(causation) if causation else None
    if causation and not _NAME.fullmatch(causation):
        raise EnvelopeBroken("ce-causationid is not acceptable")
    if reply_to and not is_subject(reply_to):
        raise EnvelopeBroken("ce-replyto is not a subject")
    known = {*REQUIRED, "ce-causationid", "ce-replyto"}
    trace = headers.get("traceparent")
    return Message(
        id=headers["ce-id"],
        type=headers["ce-type"],
        subject=subject,
        tenant=tenant,
        source=headers["ce-source"],
        time=_instant(headers["ce-time"]),
        data=data,
        traceparent=trace if trace and _TRACE.fullmatch(trace) else None,
        causation_id=causation,
        reply_to=reply_to or None,
        attributes={
            key[3:]: clean_text(unquote(value), ATTRIBUTE_CHARACTERS_MAX)
            for key, value in headers.items()
            if key.startswith("ce-") and key not in known and _ATTRIBUTE.fullmatch(key[3:])
        },
    )


def _instant(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        utc = time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise EnvelopeBroken("ce-time is not RFC 3339") from error
    if time.tzinfo is None:
        raise EnvelopeBroken("ce-time is naive")
    return utc
