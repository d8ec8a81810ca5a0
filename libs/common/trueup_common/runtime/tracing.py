"""Traces: one per request, from HTTP over the bus and the database to the adapter's call. Off, they cost a comparison.

The trace context travels as W3C `traceparent`: stored in the journal and the outbox, sent in message headers. Whoever
began the trace decided whether it is recorded; work that no request asked for is not traced. Spans carry ids, states
and codes, never payloads.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace import TraceFlags as Flags

from trueup_common.contracts.envelope import Message
from trueup_common.runtime.redact import told
from trueup_common.runtime.settings import Settings

log = logging.getLogger("trueup.tracing")

Attributes = Mapping[str, str | int | float | bool]

FLUSH_SECONDS: Final = 2.0
EXPORT_SECONDS: Final = 3
EXPORT_PATH: Final = "/v1/traces"
_TRACEPARENT: Final = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_ODD: Final = frozenset("13579bdf")


class _Tracing:
    """Whether this process records spans, and with what."""

    tracer: trace.Tracer | None = None
    provider: object | None = None


# -- traceparents -----------------------------------------------------------------------------------------------------


def new_traceparent() -> str:
    """A W3C traceparent for work that came without one; unsampled."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-00"


def valid_traceparent(value: str | None) -> str | None:
    """The header where it is well-formed, else None."""
    if value is None:
        return None
    match = _TRACEPARENT.match(value)
    return value if match and int(match[1], 16) and int(match[2], 16) else None


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id inside a traceparent."""
    match = _TRACEPARENT.match(traceparent or "")
    return match[1] if match else None


def current_traceparent(otherwise: str | None = None) -> str | None:
    """The traceparent of the span in which this code runs, else `otherwise`."""
    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return otherwise
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"


def _parent(traceparent: str | None) -> Context | None:
    """A recorded remote parent as a context; None where nothing is to be recorded."""
    if not traceparent or traceparent[-1] not in _ODD:
        return None
    match = _TRACEPARENT.match(traceparent)
    if match is None:
        return None
    parent = SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=Flags(int(match[3], 16)))
    return trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent.is_valid else None


# -- spans ------------------------------------------------------------------------------------------------------------


class _Nothing(AbstractContextManager[Span]):
    def __enter__(self) -> Span:
        return INVALID_SPAN

    def __exit__(self, *_: object) -> None:
        return None


class _Recorded(AbstractContextManager[Span]):
    """A span around a block, current inside it; an exception makes it an error without its words."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            failed(self._span, type(error).__name__, told(error))
        self._span.end()
        contexts.detach(self._token)


_NOTHING: Final = _Nothing()


def span(
    name: str,
    parent_traceparent: str | None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
) -> AbstractContextManager[Span]:
    """A span around a block, child of a remote parent; nothing where tracing is off or the parent is not recorded."""
    if _Tracing.tracer is None:
        return _NOTHING
    parent = _parent(parent_traceparent)
    if parent is None:
        return _NOTHING
    return _Recorded(_Tracing.tracer.start_span(name, context=parent, kind=kind, attributes=attributes))


def failed(span: Span, code: str, description: str = "") -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, description or code))


def instant() -> int:
    """Now, as spans measure it (nanoseconds); 0 where tracing is off."""
    return time.time_ns() if _Tracing.tracer is not None else 0


def record_commits(traceparents: Iterable[str | None], begun: int, error: BaseException | None = None) -> None:
    """One `store.commit` for each request that shared a transaction, under its own trace. `begun` is an `instant()`."""
    tracer = _Tracing.tracer
    if tracer is None or not begun:
        return
    ended = time.time_ns()
    parents = [parent for parent in map(_parent, traceparents) if parent is not None]
    for parent in parents:
        _commit(tracer, parent, begun, ended, error)


def _commit(tracer: trace.Tracer, parent: Context, begun: int, ended: int, error: BaseException | None = None) -> None:
    made = tracer.start_span(
        "store.commit",
        context=parent,
        kind=SpanKind.CLIENT,
        attributes={"db.system.name": "postgresql"},
        start_time=begun,
    )
    if error is not None:
        failed(made, type(error).__name__, told(error))
    made.end(end_time=ended)


class LoopSpans:
    """Spans of one loop or timer, made after the fact: a batch whose messages nobody records costs a look at each.

    The messages of a batch share a transaction, so each gets a `store.commit` of its own with the same times.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def now(self) -> int:
        """The present instant."""
        return time.time_ns()

    def processed(
        self, messages: Sequence[Message], begun: int, committed: int, error: BaseException | None = None
    ) -> None:
        """Messages from delivery to ack. `committed` is 0 where nothing was."""
        self._record(SpanKind.CONSUMER, "process", messages, begun, committed, error)

    def sent(self, messages: Sequence[Message], begun: int, committed: int) -> None:
        """Messages that time, not a message, gave rise to."""
        self._record(SpanKind.PRODUCER, "send", messages, begun, committed, None)

    def _record(  # noqa: PLR0917 - the same facts for both
        self,
        kind: SpanKind,
        operation: str,
        messages: Sequence[Message],
        begun: int,
        committed: int,
        error: BaseException | None,
    ) -> None:
        tracer = _Tracing.tracer
        if tracer is None:
            return
        ended = time.time_ns()
        for message in messages:
            parent = _parent(message.traceparent)
            if parent is None:
                continue
            made = tracer.start_span(
                f"{self.name} {message.type}",
                context=parent,
                kind=kind,
                attributes={
                    "messaging.system": "nats",
                    "messaging.operation.type": operation,
                    "messaging.destination.name": message.subject,
                    "messaging.consumer.group.name": self.name,
                    "messaging.message.id": message.id,
                    "messaging.message.body.size": len(message.data),
                    "messaging.batch.message_count": len(messages),
                    "trueup.tenant": message.tenant,
                },
                start_time=begun,
            )
            if error is not None:
                failed(made, type(error).__name__, told(error))
            if committed:
                _commit(tracer, trace.set_span_in_context(made, Context()), begun, committed)
            made.end(end_time=ended)


# -- the process ------------------------------------------------------------------------------------------------------


def is_wanted(settings: Settings) -> bool:
    """True where the settings ask for traces."""
    return bool(settings.otlp_endpoint) or settings.trace_ratio > 0


def is_on() -> bool:
    """True where this process records spans."""
    return _Tracing.tracer is not None


def endpoint_of(text: str) -> str:
    """Where traces are posted; an address without a path gets OTLP's own."""
    return text.rstrip("/") + EXPORT_PATH if urlsplit(text).path in ("", "/") else text


def start(settings: Settings) -> None:
    """Record spans from now on, and export them where there is an endpoint."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource.create(
            {"service.name": f"trueup-{settings.service}", "service.instance.id": settings.instance}
        ),
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
        shutdown_on_exit=False,
    )
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=endpoint_of(settings.otlp_endpoint), timeout=EXPORT_SECONDS)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)
    record_with(provider)


def record_with(provider: trace.TracerProvider | None) -> None:
    """Record spans with a provider; with None, none at all."""
    _Tracing.provider = provider
    _Tracing.tracer = provider.get_tracer("trueup") if provider is not None else None


def stop() -> None:
    """Export what is left, within a bound: a collector that is away holds up nobody's end."""
    provider = _Tracing.provider
    record_with(None)
    flush = getattr(provider, "force_flush", None)
    if flush is not None:
        flushing = threading.Thread(target=flush, name="flush spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            log.warning("some spans were not exported")
