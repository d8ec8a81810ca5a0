"""The envelope: ASCII headers that name a message, read back exactly, and refused when they do not name it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup_common.contracts.envelope import (
    REQUIRED,
    EnvelopeBroken,
    Message,
    headers_of,
    is_subject,
    message_of,
    stand_in,
)

T0 = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_:-.", min_size=1, max_size=30)
WORDS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=20)
SUBJECT = "trueup.evt.adapters.receipt.acme"
MESSAGES = st.builds(
    Message,
    id=NAMES,
    type=st.sampled_from(["StartCase", "Receipt"]),
    subject=st.just("trueup.cmd.acme"),
    tenant=st.just("acme"),
    source=st.just("gateway"),
    time=st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - hypothesis adds the zone
    data=st.binary(max_size=50),
    traceparent=st.none() | st.just("00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
    causation_id=st.none() | NAMES,
    reply_to=st.none() | st.just("trueup.answer.gateway-1"),
    attributes=st.dictionaries(st.sampled_from(["command", "batch", "reason"]), WORDS, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(sent=MESSAGES)
def test_a_message_is_read_back_exactly_as_it_was_sent_through_ascii_headers(sent: Message) -> None:
    headers = headers_of(sent)
    for value in headers.values():
        assert value.isascii()
        assert value.isprintable()
    assert headers["Nats-Msg-Id"] == headers["ce-id"]
    assert message_of(sent.subject, headers, sent.data) == sent
    assert sent.size_bytes >= len(sent.data) + sum(len(key) + len(value) for key, value in headers.items())


@pytest.fixture
def headers() -> dict[str, str]:
    return headers_of(
        Message(
            id="msg_1",
            type="Receipt",
            subject=SUBJECT,
            tenant="acme",
            source="adapters",
            time=T0,
            data=b"{}",
        )
    )


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_message_without_a_required_header_is_broken_never_guessed_at(
    headers: dict[str, str], name: str, how: str
) -> None:
    """Requirements: M3"""
    if how == "missing":
        del headers[name]
    else:
        headers[name] = ""
    with pytest.raises(EnvelopeBroken, match=name):
        message_of(SUBJECT, headers, b"{}")


@pytest.mark.parametrize("time", ["yesterday", "2026-03-01T12:00:00", "1772366400"])
def test_a_time_that_is_unreadable_or_naive_is_broken(headers: dict[str, str], time: str) -> None:
    """Requirements: M3"""
    headers["ce-time"] = time
    with pytest.raises(EnvelopeBroken, match="ce-time"):
        message_of(SUBJECT, headers, b"{}")


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_message_without_headers_is_broken(nothing: dict[str, str] | None) -> None:
    """Requirements: M3"""
    with pytest.raises(EnvelopeBroken):
        message_of(SUBJECT, nothing, b"{}")


def test_a_time_of_another_zone_is_the_same_instant(headers: dict[str, str]) -> None:
    headers["ce-time"] = T0.astimezone(timezone(timedelta(hours=9))).isoformat()
    assert message_of(SUBJECT, headers, b"{}").time == T0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce-id", "x" * 20_000),
        ("ce-id", "n\x00ul"),
        ("ce-id", "\ufffd"),
        ("ce-type", "T" * 20_000),
        ("ce-type", "Тип"),
        ("ce-source", "two words"),
        ("ce-tenant", "a b c"),
        ("ce-tenant", "*"),
        ("ce-tenant", "globex"),
        ("ce-tenant", "a" * 64),
        ("ce-time", "0001-01-01T00:00:00+14:00"),
        ("ce-time", "9999-12-31T23:59:59-14:00"),
        ("ce-causationid", "%00"),
        ("ce-replyto", "a b > *"),
    ],
)
def test_headers_that_no_store_or_bus_would_take_are_broken_at_the_door(
    headers: dict[str, str], name: str, value: str
) -> None:
    """Otherwise they fail where nothing can be isolated any more: in the inbox, in the quarantine, in the relay.

    Requirements: M3
    """
    headers[name] = value
    with pytest.raises(EnvelopeBroken, match=name):
        message_of(SUBJECT, headers, b"{}")


def test_a_trace_that_is_none_is_left_out(headers: dict[str, str]) -> None:
    headers["traceparent"] = "Ж" * 50_000
    assert message_of(SUBJECT, headers, b"{}").traceparent is None


@settings(max_examples=200, deadline=None)
@given(subject=st.text(max_size=600), data=st.binary(max_size=20))
def test_a_stand_in_can_always_be_stored_and_told(subject: str, data: bytes) -> None:
    """Requirements: M3"""
    found = stand_in(subject, data, id="EVENTS:1", time=T0, reason="no headers")
    assert "\x00" not in found.subject
    found.subject.encode()
    assert is_subject(f"trueup.evt.orchestrator.quarantined.{found.tenant}")
    assert all(value.isascii() for value in headers_of(found).values())
