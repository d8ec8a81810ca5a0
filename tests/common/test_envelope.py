"""The envelope: ASCII headers that name a message, read back exactly, and refused when they do not name it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup_common.contracts.envelope import REQUIRED, EnvelopeBroken, Message, headers_of, message_of

T0 = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_:-.", min_size=1, max_size=30)
WORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
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
    causation_id=st.none() | WORDS,
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
            subject="s",
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
        message_of("s", headers, b"{}")


@pytest.mark.parametrize("time", ["yesterday", "2026-03-01T12:00:00", "1772366400"])
def test_a_time_that_is_unreadable_or_naive_is_broken(headers: dict[str, str], time: str) -> None:
    """Requirements: M3"""
    headers["ce-time"] = time
    with pytest.raises(EnvelopeBroken, match="ce-time"):
        message_of("s", headers, b"{}")


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_message_without_headers_is_broken(nothing: dict[str, str] | None) -> None:
    """Requirements: M3"""
    with pytest.raises(EnvelopeBroken):
        message_of("s", nothing, b"{}")


def test_a_time_of_another_zone_is_the_same_instant(headers: dict[str, str]) -> None:
    headers["ce-time"] = T0.astimezone(timezone(timedelta(hours=9))).isoformat()
    assert message_of("s", headers, b"{}").time == T0
