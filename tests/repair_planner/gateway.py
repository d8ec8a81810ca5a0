"""A gateway that a test plays: what was asked of it, and answers by path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trueup_repair_planner.core.calls import Answer, Call

RISK = {"risk": {"score": 17, "level": "medium"}}
Reply = Answer | Callable[[Call], Answer]


class PlayedGateway:
    """Answers by (method, path); what it was not told how to answer gives no answer."""

    def __init__(self) -> None:
        self.asked: list[Call] = []
        self.replies: dict[str, list[Reply]] = {}
        self.keys: dict[str, Answer] = {}
        self.accepted = 0

    def on(self, path: str, *replies: Reply) -> None:
        """Answers in order; the last one stays."""
        self.replies[path] = list(replies)

    def permit(self) -> None:
        """Approve, authorize and accept everything, each key once, as the real one does."""
        self.on("/v1/decisions", Answer(201, {"decision_id": "dec_1", "outcome": "approved", **RISK}))
        self.on("/v1/capabilities", Answer(201, {"capability": "jws"}))
        self.on("/v1/commands", lambda call: self._once(call, "command_id", "cmd_r"))
        self.on("/v1/operator-commands", lambda call: self._once(call, "operator_command_id", "opc_r"))

    def _once(self, call: Call, member: str, name: str) -> Answer:
        assert call.key is not None
        if call.key not in self.keys:
            self.accepted += 1
            self.keys[call.key] = Answer(202, {member: f"{name}{self.accepted}"})
        return self.keys[call.key]

    async def send(self, asked: Call) -> Answer:
        """One request."""
        self.asked.append(asked)
        replies = self.replies.get(asked.path) or self.replies.get(asked.path.rpartition("/")[0] + "/*") or [Answer(0)]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply(asked) if callable(reply) else reply

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """What was asked there."""
        return [call.body or {} for call in self.asked if call.path == path]
