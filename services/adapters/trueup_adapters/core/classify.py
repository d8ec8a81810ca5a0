"""What an HTTP answer, or its absence, means for a write. One table; a doubt is UNKNOWN.

The decisive fact is whether the first byte may have left: before it nothing happened, after it only the target's own
word counts.
"""

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from trueup_common.contracts.adapter import Outcome, rejected, unknown
from trueup_common.contracts.states import ErrorClass

_T, _P, _B, _U = ErrorClass.TRANSIENT, ErrorClass.PERMANENT, ErrorClass.BUSINESS, ErrorClass.UNKNOWN

BY_STATUS: Final[dict[int, tuple[ErrorClass, str]]] = {
    301: (_P, "redirected"),
    307: (_P, "redirected"),
    308: (_P, "redirected"),
    400: (_P, "payload_invalid"),
    401: (_P, "unauthenticated"),
    402: (_P, "forbidden"),
    403: (_P, "forbidden"),
    404: (_P, "not_found"),
    405: (_P, "refused"),
    406: (_P, "refused"),
    407: (_P, "unauthenticated"),
    408: (_U, "answer_missing"),
    409: (_B, "version_conflict"),
    410: (_P, "gone"),
    411: (_P, "payload_invalid"),
    412: (_B, "version_conflict"),
    413: (_P, "payload_invalid"),
    414: (_P, "payload_invalid"),
    415: (_P, "payload_invalid"),
    421: (_P, "refused"),
    422: (_P, "payload_invalid"),
    423: (_B, "locked"),
    425: (_T, "unavailable"),
    429: (_T, "rate_limited"),
    431: (_P, "payload_invalid"),
    451: (_P, "forbidden"),
    503: (_T, "unavailable"),
}
"""Answers that say by themselves what became of the write. Everything else follows the class of its first digit."""

BY_CLASS: Final[dict[int, tuple[ErrorClass, str]]] = {
    1: (_U, "answer_unreadable"),
    2: (_U, "answer_unreadable"),  # a success that cannot be read; readable ones never come here
    3: (_U, "redirected"),  # "see other" usually follows a write that was done
    4: (_P, "refused"),
    5: (_U, "target_failed"),
}

READABLE: Final = ("application/json", "+json")
RETRY_AFTER_SECONDS_MAX: Final = 86400.0


def is_json(content_type: str | None) -> bool:
    """True where an answer claims to be JSON."""
    bare = (content_type or "").split(";", 1)[0].strip().lower()
    return bare == READABLE[0] or bare.endswith(READABLE[1])


def classify_status(status: int, headers: Mapping[str, str], detail: str = "") -> Outcome:
    """What the answer to a write means where it is no readable success. Header names in lower case."""
    error_class, code = BY_STATUS.get(status) or BY_CLASS.get(status // 100, (_U, "answer_unreadable"))
    if error_class is _U:
        return unknown(code, detail, external_status=str(status))
    waiting = retry_after_seconds(headers) if error_class is _T else None
    return rejected(error_class, code, detail, external_status=str(status), retry_after_seconds=waiting)


def classify_failure(*, sent: bool, code: str, detail: str = "") -> Outcome:
    """What a failure of the transport means: provably unsent, or unknown. `code` names the failure."""
    if sent:
        return unknown(code, detail)
    return rejected(_T, code, detail)


def unsent(outcome: Outcome) -> Outcome:
    """The same answer to a read that only prepared a write: a doubt there means that nothing was written."""
    if outcome.error_class is not _U:
        return outcome
    return rejected(
        _T,
        outcome.error_code or "unavailable",
        outcome.error_detail or "",
        external_status=outcome.external_status,
        retry_after_seconds=outcome.retry_after_seconds,
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds; a date counts from the answer's own `Date`. None where it is missing or unusable."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), RETRY_AFTER_SECONDS_MAX)
    until, asked_at = http_date(value), http_date(headers.get("date", ""))
    if until is None or asked_at is None:
        return None
    return min(max((until - asked_at).total_seconds(), 0.0), RETRY_AFTER_SECONDS_MAX)


def http_date(value: str) -> datetime | None:
    """An HTTP date, aware; None where it is none."""
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else None
