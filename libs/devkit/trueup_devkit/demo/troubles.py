"""What goes wrong in the drift demo, and what came of it: read from the trails of its exceptions and its repairs.

No time and no verdict is known beforehand: a trouble counts as found, repaired or verified where the plane wrote that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from trueup_devkit.demo.sentences import moment

STAGES: Final = ("found", "classified", "repaired", "verified")
"""Stages of an exception, in order; what is verified is closed in the same moment."""
TIMES: Final = ("what", *STAGES, "times")
OUTCOMES: Final = ("what", "classified as", "repair", "by")
PLANNER: Final = "service:repair-planner"


@dataclass
class Trouble:
    """One thing that went wrong. What its exceptions are known by is known once it was caused."""

    name: str
    what: str
    matches: Mapping[str, str]
    """Members of its exceptions or of their envelopes."""
    caused_at: datetime
    """Business time."""
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    repairs: list[dict[str, Any]] = field(default_factory=list)

    def fits(self, item: Mapping[str, Any]) -> bool:
        """True where an exception is about this."""
        known = {**(item.get("envelope") or {}), **item}
        return all(known.get(name) == value for name, value in self.matches.items())

    def take(self, exceptions: Sequence[dict[str, Any]], repairs: Sequence[dict[str, Any]]) -> None:
        """Keep what is about this."""
        self.exceptions = [item for item in exceptions if self.fits(item)]
        names = {item["exception_id"] for item in self.exceptions}
        self.repairs = [item for item in repairs if item["exception_id"] in names]

    def reached(self, stage: str) -> datetime | None:
        """When the first of its exceptions was found and classified, and the last one repaired and verified."""
        moments = [_moments(item, stage) for item in self.exceptions]
        if not moments or not all(moments):
            return None
        return min(map(min, moments)) if stage in ("found", "classified") else max(map(max, moments))

    @property
    def is_over(self) -> bool:
        """True where it was found and nothing of it is open."""
        return bool(self.exceptions) and all(item["status"] == "closed" for item in self.exceptions)

    def missing(self) -> str | None:
        """The first stage that it did not come to; None where it came to all."""
        missed = next((stage for stage in STAGES if self.reached(stage) is None), None)
        return None if missed is None else f"{self.name} was not {missed}"

    def row(self) -> dict[str, Any]:
        """One line of the table; times are seconds since it was caused."""
        return {
            "what": self.what,
            **{stage: self._since(stage) for stage in STAGES},
            "times": len(self.exceptions),
            "classified as": _counted(str(item["failure_class"]) for item in self.exceptions),
            "repair": _counted(self._does(item) for item in self._done()) or self._settled(),
            "by": ", ".join(dict.fromkeys(_hand(item) for item in self._done())) or self._closers(),
        }

    def _since(self, stage: str) -> str | None:
        at = self.reached(stage)
        return None if at is None else f"{(at - self.caused_at).total_seconds():.1f} s"

    def _done(self) -> list[dict[str, Any]]:
        return [item for item in self.repairs if item["status"] == "DONE"]

    def _does(self, repair: Mapping[str, Any]) -> str:
        wanted = (repair.get("required_capability") or {}).get("command_type")
        if wanted:
            return str(wanted)
        about = next(item for item in self.exceptions if item["exception_id"] == repair["exception_id"])
        return f"{repair['repair_action']} {(about.get('envelope') or {}).get('command_type')}"

    def _settled(self) -> str | None:
        told = _counted(str(item["resolution_type"]) for item in self.exceptions if item.get("resolution_type"))
        return f"looked up: {told}" if told else None

    def _closers(self) -> str | None:
        return ", ".join(dict.fromkeys(str(i["resolved_by"]) for i in self.exceptions if i.get("resolved_by"))) or None


def _hand(repair: Mapping[str, Any]) -> str:
    """Who sent a repair."""
    sender = next((entry["actor"] for entry in reversed(repair.get("trail") or []) if entry["step"] == "send"), None)
    if sender != PLANNER:
        return str(sender)
    return "planner, once approved" if repair.get("approval_id") else "planner"


def _counted(words: Any) -> str:
    return ", ".join(word if count == 1 else f"{word} x{count}" for word, count in Counter(words).items())


def _moments(item: Mapping[str, Any], stage: str) -> list[datetime]:
    trail = (item.get("envelope") or {}).get("trail") or []
    return [moment(entry["at"]) for entry in trail if entry["to"] == stage]


def last_line(troubles: Sequence[Trouble], open_count: int, seconds: float, failure: str | None) -> dict[str, Any]:
    """The JSON of the last line."""
    reached = {stage: sum(trouble.reached(stage) is not None for trouble in troubles) for stage in STAGES}
    return {
        "result": "HEALED" if failure is None else "NOT_HEALED",
        "seconds": round(seconds, 2),
        "drifts": len(troubles),
        **{stage: reached[stage] for stage in ("found", "repaired", "verified")},
        "open_exceptions": open_count,
    }


def failure_of(
    troubles: Sequence[Trouble], planned: int, open_exceptions: Sequence[Mapping[str, Any]], wrong: Sequence[str]
) -> str | None:
    """What is missing; None where nothing is. `wrong` is what cases and world say against it."""
    missing = [words for words in (trouble.missing() for trouble in troubles) if words]
    if len(troubles) != planned:
        missing.append(f"{len(troubles)} of {planned} things went wrong")
    missing += [f"{item['exception_id']} ({item['kind']}) is open" for item in open_exceptions]
    return "; ".join([*missing, *wrong]) or None
