"""Logs as JSON lines, and the start of everything that watches. No decision is ever taken from any of it.

Secrets and personal data stay out: records carry ids, states and codes, never payloads or tokens, and exceptions are
told without the data that they quote.
"""

import json
import logging
import sys
from types import TracebackType
from typing import Any, Final

import orjson

from trueup_common.contracts.shape import rfc3339
from trueup_common.runtime import tracing
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.redact import traced
from trueup_common.runtime.settings import Settings

_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"})
_OURS: Final = "trueup"

log = logging.getLogger("trueup.process")


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the call's extra fields and the trace of the work (`traceparent` among them)."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._fixed = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        message = record.getMessage()
        if not record.name.startswith(_OURS):
            message = message.partition("\n")[0]  # libraries put the representation of whatever failed after it
        line: dict[str, Any] = {
            "at": rfc3339(real_now()),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            **self._fixed,
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        given = line.pop("traceparent", None)
        if trace_id := tracing.trace_id_of(given or tracing.current_traceparent()):
            line["trace_id"] = trace_id
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = traced(record.exc_info[1])
        try:
            return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except orjson.JSONEncodeError:  # half a character, or a number that JSON does not have
            return json.dumps({key: ascii(value) for key, value in line.items()})


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    log.critical("uncaught", exc_info=error)


def set_up(settings: Settings) -> None:
    """Logging to stdout as JSON; tracing where an endpoint or a ratio is configured."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(settings.service, settings.instance))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    for noisy in ("nats", "httpx", "httpcore", "asyncio", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    if tracing.is_wanted(settings):
        tracing.start(settings)
