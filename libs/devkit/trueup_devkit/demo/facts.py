"""What a run of the demo came to: every number is taken from what the running system says, none is known beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from trueup_devkit.demo.scenarios import Scenario
from trueup_devkit.demo.world import Standing, counted_by_kind

SETTLED_VERDICTS = frozenset({"CONFIRMED", "MISSING"})


@dataclass
class Facts:
    """What was collected from gateway, world and supervisor at the end."""

    scenario: Scenario
    workflow_id: str = ""
    case: dict[str, Any] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    effects: list[dict[str, Any]] = field(default_factory=list)
    standing: list[Standing] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    restarts: int = 0
    history_broken: str | None = None
    replays: list[tuple[int, bool, bool]] = field(default_factory=list)
    """Of each repetition of the start: status, whether it was marked as a replay, whether the ids were the same."""

    @property
    def status(self) -> str:
        return str(self.case.get("status") or "UNFINISHED")

    @property
    def unknown_settled(self) -> int:
        """How often looking decided what nobody knew: the reconciler's verdicts, and what an adapter found itself."""
        return sum(_is_settlement(event) for event in self.events)

    @property
    def retries(self) -> int:
        """Attempts beyond the first of each operation."""
        return sum(max(0, len(command.get("attempts") or []) - 1) for command in self.commands)

    def last_line(self, seconds: float) -> dict[str, Any]:
        """The documented JSON of the last line. `effects` is what stands in the world, by kind."""
        return {
            "result": self.status,
            "workflow_id": self.workflow_id,
            "seconds": round(seconds, 2),
            "effects": counted_by_kind(self.effects),
            "faults_injected": self.faults,
            "unknown_settled": self.unknown_settled,
            "retries": self.retries,
            "restarts": self.restarts,
        }

    def failure(self) -> str | None:
        """Why this run does not count as success; None where it does."""
        happened = Counter((str(effect["kind"]), str(effect["action"])) for effect in self.effects)
        vector = self.case.get("vector") or []
        unhealthy = {str(item["element"]) for item in vector if item.get("phase") != "HEALTHY"}
        exceptions = self.failure_of_exceptions()
        checks = (
            (self.status == self.scenario.result, f"the case ended as {self.status}, not as {self.scenario.result}"),
            (self.scenario.counted(happened), f"the world saw {_words(happened)}, not {_words(self.scenario.effects)}"),
            (
                unhealthy == self.scenario.unhealthy,
                f"not as desired: {', '.join(sorted(unhealthy)) or 'nothing'}, "
                f"expected: {', '.join(sorted(self.scenario.unhealthy)) or 'nothing'}",
            ),
            (self.history_broken is None, f"the history does not verify: {self.history_broken}"),
            (all(marked and same for _, marked, same in self.replays), "a repeated start was not the stored one"),
            (exceptions is None, exceptions or ""),
            (sorted(self.kills) == sorted(self.scenario.kills), f"killed was {', '.join(self.kills) or 'nothing'}"),
        )
        return next((reason for holds, reason in checks if not holds), None)

    def failure_of_exceptions(self) -> str | None:
        """Nothing may be open at the end, unless the case is in a person's hands: then that person must be named."""
        still_open = self.open_exceptions()
        if self.scenario.result != "HUMAN_TAKEOVER":
            return f"{len(still_open)} exceptions are still open" if still_open else None
        owned = all(item.get("owner") and item.get("deadline_at") for item in still_open)
        return None if still_open and owned else "nobody owns what is left to do"

    def open_exceptions(self) -> list[dict[str, Any]]:
        """Exceptions of this case that nobody has closed."""
        return [item for item in self.exceptions if item.get("status") == "open"]


def _is_settlement(event: dict[str, Any]) -> bool:
    payload = event.get("payload") or {}
    if event.get("type") == "SettlementFinished":
        return payload.get("verdict") in SETTLED_VERDICTS
    return event.get("type") == "ReceiptReceived" and payload.get("found") is True and payload["status"] == "CONFIRMED"


def _words(effects: Any) -> str:
    return ", ".join(f"{count} x {kind} {action}" for (kind, action), count in sorted(effects.items())) or "nothing"
