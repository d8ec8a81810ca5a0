"""The classification table: every answer to a write, and its absence, before and after the first byte."""

from __future__ import annotations

import pytest

from trueup_adapters.core.classify import (
    BY_STATUS,
    classify_failure,
    classify_status,
    is_json,
    retry_after_seconds,
    unsent,
)
from trueup_common.contracts.states import ErrorClass, ReceiptStatus

TRANSIENT, PERMANENT, BUSINESS, UNKNOWN = (
    ErrorClass.TRANSIENT, ErrorClass.PERMANENT, ErrorClass.BUSINESS, ErrorClass.UNKNOWN,
)  # fmt: skip


@pytest.mark.parametrize(
    ("status", "error_class", "code"),
    [
        (429, TRANSIENT, "rate_limited"),
        (503, TRANSIENT, "unavailable"),
        (401, PERMANENT, "unauthenticated"),
        (403, PERMANENT, "forbidden"),
        (404, PERMANENT, "not_found"),
        (410, PERMANENT, "gone"),
        (400, PERMANENT, "payload_invalid"),
        (422, PERMANENT, "payload_invalid"),
        (418, PERMANENT, "refused"),
        (409, BUSINESS, "version_conflict"),
        (412, BUSINESS, "version_conflict"),
        (423, BUSINESS, "locked"),
        (307, PERMANENT, "redirected"),
        (302, UNKNOWN, "redirected"),
        (303, UNKNOWN, "redirected"),
        (408, UNKNOWN, "answer_missing"),
        (500, UNKNOWN, "target_failed"),
        (502, UNKNOWN, "target_failed"),
        (504, UNKNOWN, "target_failed"),
        (200, UNKNOWN, "answer_unreadable"),
        (204, UNKNOWN, "answer_unreadable"),
        (100, UNKNOWN, "answer_unreadable"),
        (999, UNKNOWN, "answer_unreadable"),
    ],
)
def test_what_an_answer_means(status: int, error_class: ErrorClass, code: str) -> None:
    """Requirements: X5, X4."""
    outcome = classify_status(status, {})
    assert (outcome.error_class, outcome.error_code) == (error_class, code)
    expected = ReceiptStatus.UNKNOWN if error_class is UNKNOWN else ReceiptStatus.REJECTED
    assert outcome.status is expected
    assert outcome.external_status == str(status)


def test_only_transient_answers_wait() -> None:
    """Requirements: X5. Retry-After counts where a retry follows, and nowhere else."""
    headers = {"retry-after": "30"}
    for status, (error_class, _) in BY_STATUS.items():
        waits = classify_status(status, headers).retry_after_seconds
        assert waits == (30 if error_class is TRANSIENT else None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 12 "}, 12),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 40}, 86400),
        ({"retry-after": "١٢"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Requirements: X5. Seconds, or a date that counts from the answer's own date, never from our clock."""
    assert retry_after_seconds(headers) == seconds


def test_without_an_answer_the_first_byte_decides() -> None:
    """Requirements: X4, X5. Before it transient, after it unknown, whatever the error was called."""
    before = classify_failure(sent=False, code="connection_refused")
    assert (before.status, before.error_class) == (ReceiptStatus.REJECTED, TRANSIENT)
    after = classify_failure(sent=True, code="connection_lost")
    assert (after.status, after.error_class) == (ReceiptStatus.UNKNOWN, UNKNOWN)


def test_a_doubt_about_a_preparing_read_is_transient() -> None:
    """Requirements: X5. Nothing was written; what a read says clearly stays what it is."""
    assert unsent(classify_status(500, {})).error_class is TRANSIENT
    assert unsent(classify_status(401, {})).error_class is PERMANENT
    assert unsent(classify_status(503, {"retry-after": "3"})).retry_after_seconds == 3


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=UTF-8", "application/hal+json"]
)
def test_what_is_json(content_type: str) -> None:
    """Requirements: X6."""
    assert is_json(content_type)
    assert not is_json(content_type.replace("json", "html"))
    assert not is_json(None)
