"""What a run of the demo came to: every number is taken from what the running system says, none is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SETTLED_VERDICTS = frozenset({"CONFIRMED", "MISSING"})


@dataclass
class Facts:
    """What was collected from gateway, world and supervisor at the end."""

    workflow_id: str = ""
    case: dict[str, Any] = field(default_factory=dict)
    command: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)
    posts: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    history_broken: str | None = None
    replays: list[tuple[int, bool, bool]] = field(default_factory=list)
    """Of each repetition of the command: status, whether it was marked as a replay, whether the ids were the same."""

    @property
    def status(self) -> str:
        return str(self.case.get("status") or "UNFINISHED")

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return list(self.command.get("attempts") or [])

    @property
    def unknown_settled(self) -> int:
        """How often looking decided what nobody knew."""
        return sum(
            event.get("type") == "SettlementFinished" and event["payload"].get("verdict") in SETTLED_VERDICTS
            for event in self.events
        )

    def last_line(self, seconds: float) -> dict[str, Any]:
        """The documented JSON of the last line."""
        return {
            "result": self.status,
            "workflow_id": self.workflow_id,
            "seconds": round(seconds, 2),
            "effects": self.effects,
            "faults_injected": self.faults,
            "unknown_settled": self.unknown_settled,
            "retries": max(0, len(self.attempts) - 1),
            "restarts": self.restarts,
        }

    def failure(self) -> str | None:
        """Why this run does not count as success; None where it does."""
        checks = (
            (self.status == "CLOSED", f"the case ended as {self.status}"),
            (self.effects == {"wordpress.post": 1}, f"the world counts {self.effects or 'no effects'}, not one post"),
            (len(self.posts) == 1, f"{len(self.posts)} posts carry the operation's marker"),
            (self.history_broken is None, f"the history does not verify: {self.history_broken}"),
            (all(marked and same for _, marked, same in self.replays), "a repeated command was not the stored one"),
            (not self.open_exceptions(), f"{len(self.open_exceptions())} exceptions are still open"),
        )
        return next((reason for holds, reason in checks if not holds), None)

    def open_exceptions(self) -> list[dict[str, Any]]:
        """Exceptions of this case that nobody has closed."""
        return [item for item in self.exceptions if item.get("status") == "open"]
