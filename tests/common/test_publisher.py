"""Publishing with confirmation: only the broker's own word takes a message out of the relay's hands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.bus import BusPublisher

FULL = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"EVENTS","seq":0}'
KEPT = b'{"stream":"EVENTS","seq":1}'


@dataclass
class Answer:
    """What the broker sends back."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class Broker:
    """Answers each publication as it is told to."""

    is_connected = True

    def __init__(self, answers: dict[str, tuple[bytes, dict[str, str] | None]]) -> None:
        self.answers = answers
        self.client = self
        self.react: Callable[[Any], None] | None = None

    def new_inbox(self) -> str:
        return "_INBOX_test.1"

    async def hear(self, subject: str, react: Callable[[Any], None]) -> None:
        self.react = react

    async def publish(self, subject: str, data: bytes, *, reply: str, headers: dict[str, str]) -> None:
        assert self.react is not None
        body, said = self.answers[headers["Nats-Msg-Id"]]
        self.react(Answer(reply, body, said))


def message(message_id: str) -> Message:
    return Message(
        id=message_id,
        type="Noted",
        subject="trueup.evt.gateway.noted.acme",
        tenant="acme",
        source="gateway",
        time=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        data=b"{}",
    )


async def test_what_the_broker_refuses_is_left_to_the_relay() -> None:
    """A full stream and a subject without a stream are no confirmation; the neighbours are confirmed all the same.

    Requirements: M2
    """
    broker = Broker({"kept": (KEPT, None), "full": (FULL, None), "nowhere": (b"", {"Status": "503"})})
    publisher = BusPublisher(broker)  # type: ignore[arg-type]
    await publisher.publish([Outgoing(message(name)) for name in ("full", "kept", "nowhere")])
    assert publisher.take_confirmed() == ["kept"]
    assert publisher.failed_count == 2
    broker.answers["full"] = (KEPT, None)
    await publisher.publish([Outgoing(message("full"))])
    assert publisher.take_confirmed() == ["full"] and not publisher.full
