"""Telemetry: JSON logs, metrics and traces, kept apart from the journal; no decision is ever taken from them.

Secrets and personal data stay out: log records carry ids, states and codes, never payloads or tokens.
"""

import logging
import os
import re
import sys
from typing import Any, Final

import orjson
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trueup_common.runtime.clock import real_now
from trueup_common.runtime.settings import Settings

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_TRACEPARENT: Final = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")

REGISTRY: Final = CollectorRegistry()
BATCHES = Counter("trueup_loop_batches", "Batches that a loop committed", ["loop"], registry=REGISTRY)
MESSAGES = Counter("trueup_loop_messages", "Messages that a loop settled", ["loop"], registry=REGISTRY)
QUARANTINED = Counter("trueup_loop_quarantined", "Messages put into quarantine", ["loop"], registry=REGISTRY)
BUSY = Counter("trueup_loop_busy", "Transactions repeated because the store was busy", ["loop"], registry=REGISTRY)
OUTBOX_UNSENT = Gauge("trueup_outbox_unsent", "Outbox rows that the relay found unsent", registry=REGISTRY)
HTTP_SECONDS = Histogram(
    "trueup_http_seconds",
    "Seconds per HTTP request",
    ["method", "route", "status"],
    registry=REGISTRY,
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the extra fields of the call."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._fixed = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, Any] = {
            "at": real_now().isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fixed,
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD and key != "message"})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode("utf-8", "replace")


def set_up(settings: Settings) -> None:
    """Logging to stdout as JSON; tracing where an endpoint or a ratio is configured."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(settings.service, settings.instance))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for noisy in ("nats", "httpx", "httpcore", "asyncio", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if settings.otlp_endpoint or settings.trace_ratio > 0:
        _trace(settings)


def _trace(settings: Settings) -> None:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource.create(
            {"service.name": f"trueup-{settings.service}", "service.instance.id": settings.instance}
        ),
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
    )
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint)))
    trace.set_tracer_provider(provider)


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


def exposition() -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
