"""The seeds of the test suite: so many of each kind of misfortune, and where to look on for a transition that is rare.

Plain seeds draw their misfortunes; a theme prescribes some that matter together. Both halves together are 300 seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.simulation.coverage import TABLES, UNREACHED, cells
from tests.simulation.run import Summary, run_seeds


@dataclass(frozen=True, slots=True)
class Share:
    """Some seeds of one kind."""

    count: int
    theme: str | None = None
    first: int = 0


COMMANDS: Final = (
    Share(20),
    Share(6, "late"),
    Share(8, "orphan"),
    Share(8, "blind"),
    Share(14, "crashes"),
    Share(8, "echo"),
    Share(8, "refusals"),
    Share(10, "liar"),
    Share(10, "word"),
    Share(6, "stale"),
    Share(10, "deaf"),
    Share(10, "vandals"),
    Share(12, "operators"),
    Share(10, "outsiders"),
    Share(8, "menders"),
    Share(8, "outage"),
    Share(6, "writers"),
)
WORKFLOWS: Final = (
    Share(36),
    Share(24, "undo"),
    Share(16, "impatient"),
    Share(24, "forward"),
    Share(8, "liar"),
    Share(6, "deaf"),
    Share(6, "crashes"),
    Share(10, "operators"),
    Share(8, "unseen"),
)

HUNT_MAX: Final = 240
"""How many more seeds are run for a rare transition, at most."""
OF_WORKFLOWS: Final[dict[str, str]] = {
    "operation: QUEUED × refuse_grant": "undo",
    "operation: VALIDATING × conflict": "undo",
    "element: PENDING × retire": "undo",
    "element: OBSERVING × retire": "undo",
    "element: HEALTHY × retire": "undo",
    "element: CLASSIFYING × needs_person": "undo",
    "element: MANUAL × repair_planned": "undo",
    "element: RETIRED × established": "undo",
    **{f"recovery: {name}": "forward" for name in cells("recovery")},
}
"""Transitions that need workflows → the theme in which they are likely."""
OF_COMMANDS: Final[dict[str, str]] = {
    "exception: assigned × classify": "vandals",
    "exception: repaired × assign": "operators",
    **{f"repair: {name}": "menders" for name in cells("repair")},
    **{f"incident: {name}": "outage" for name in cells("incident")},
    **{f"element: {name}": "outsiders" for name in cells("element") if name.startswith("IGNORED")},
    "element: CLASSIFYING × accepted": "outsiders",
    **{f"exception: repaired × {turn}": "operators" for turn in ("escalate", "withdraw", "refute")},
    "operation: QUEUED × doubt": "liar",
    "operation: OUTCOME_UNKNOWN × beat": "blind",
    "operation: ORPHAN_SUSPECTED × beat": "stale",
    "operation: ORPHAN_SUSPECTED × return_unsent": "stale",
    "operation: RUNNING × return_unsent": "stale",
    **{
        f"operation: {state} × {trigger}": "operators"
        for state in ("FAILED", "CONFLICT", "DEAD_LETTERED", "NEEDS_REVIEW")
        for trigger in ("retry_by_person", "settle_exists", "settle_absent", "resolve")
    },
    **{f"operation: {name}": "word" for name in cells("operation") if name.startswith("OUTCOME_UNKNOWN × re")},
    "operation: OUTCOME_UNKNOWN × conflict": "word",
    "operation: OUTCOME_UNKNOWN × leave_unknown": "word",
    "operation: OUTCOME_UNKNOWN × confirm": "word",
    "ledger: UNKNOWN × task for a newer fence": "liar",
    "ledger: CONFIRMED × task for a newer fence": "liar",
    "ledger: ABSENT × find": "liar",
    "ledger: TOMBSTONE × find": "orphan",
    "settlement: FINDING × requested": "liar",
    "settlement: FINDING × exhausted": "orphan",
    "settlement: FINDING × stale_answer": "liar",
    "settlement: OPEN × exhausted": "blind",
    "element: PENDING × established": "blind",
    "element: OBSERVING × established": "stale",
    **{f"element: {name}": "vandals" for name in cells("element") if name.startswith(("CLASSIFYING", "VERIFY", "RE"))},
    "element: AUTO_REPAIR × repair_planned": "vandals",
    "element: OBSERVING × repair_succeeded": "vandals",
}
"""The same for single commands; whatever is named nowhere is looked for in `DEFAULT`."""
DEFAULT: Final = "deaf"
_ROUTED: Final = ("AUTO_REPAIR", "RETRYABLE", "MANUAL", "ESCALATED")
_COMMON: Final = frozenset({"AUTO_REPAIR × repair_planned", "RETRYABLE × repair_planned", "MANUAL × repair_planned"})
RARE: Final = frozenset(
    {
        *(f"element: {name}" for name in cells("element") if name.startswith(_ROUTED) and name not in _COMMON),
        *(f"element: {stage} × {turn}" for stage in ("REPAIR_QUEUE", "VERIFY") for turn in ("established", "retire")),
        *(f"element: IGNORED × {turn}" for turn in ("established", "retire", "repair_succeeded")),
        "incident: RECOVERING × relapse",
        "operation: CONFLICT × retry_by_person",
        "operation: VALIDATING × cancel",
        "element: PENDING × repair_succeeded",
        "element: VERIFY × repair_failed",
        "element: VERIFY × repair_succeeded",
        "element: VERIFY × undecided",
    }
)
"""What needs several rare things within moments: seeds may take it, the tables' own tests do."""

LIKELY: Final[dict[str, int]] = {
    "operation: RUNNING × cancel": 1115,
    "operation: OUTCOME_UNKNOWN × conflict": 1033,
    "operation: OUTCOME_UNKNOWN × cancel": 1049,
    "operation: ORPHAN_SUSPECTED × reject_permanent": 1013,
    "operation: ORPHAN_SUSPECTED × cancel": 1147,
    "operation: CONFLICT × settle_absent": 1021,
    "operation: NEEDS_REVIEW × settle_exists": 1124,
    "operation: NEEDS_REVIEW × settle_absent": 1107,
    "ledger: CONFIRMED × task for a newer fence": 1034,
    "repair: EXECUTING × withdraw": 1045,
    "repair: WAITING_APPROVAL × withdraw": 1044,
    "operation: OUTCOME_UNKNOWN × beat": 1387,
    "settlement: FINDING × exhausted": 1279,
}
"""Rare transition → the seed of its theme that took it last; `python -m tests.simulation.likely` finds them anew."""


def wanted(*, sagas: bool) -> dict[str, str]:
    """Transitions that one half of the seeds has to take, and the theme in which each is likely."""
    everything = [
        f"{table}: {name}" for table in TABLES for name in cells(table) if name not in UNREACHED.get(table, {})
    ]
    if sagas:
        return {name: theme for name, theme in OF_WORKFLOWS.items() if name in everything}
    left = [name for name in everything if name not in OF_WORKFLOWS and name not in RARE]
    return {name: OF_COMMANDS.get(name, DEFAULT) for name in left}


def run_shares(shares: tuple[Share, ...], *, sagas: bool) -> Summary:
    """All seeds of one half."""
    summary = Summary()
    for share in shares:
        summary.add(run_seeds(share.first, share.count, theme=share.theme, sagas=sagas))
    return summary


def missing(summary: Summary, *, sagas: bool) -> dict[str, str]:
    """Transitions of one half that were not taken, with the theme in which each is likely."""
    taken = {f"{table}: {name}" for table in TABLES for name in summary.coverage.get(table, {})}
    return {name: theme for name, theme in wanted(sagas=sagas).items() if name not in taken}


def hunt(summary: Summary, *, sagas: bool) -> None:
    """Run more seeds of the themes of what is missing, always the same ones, until it is taken or `HUNT_MAX` is up.

    Those that took it last time come first. A change of the simulation makes them strangers: then all are asked.
    """
    for name, theme in missing(summary, sagas=sagas).items():
        if name in LIKELY and name in missing(summary, sagas=sagas):
            summary.add(run_seeds(LIKELY[name], 1, theme=theme, sagas=sagas))
            summary.hunted += 1
    next_seed: dict[str, int] = {}
    while left := missing(summary, sagas=sagas):
        theme = next((theme for theme in left.values() if next_seed.get(theme, 0) < HUNT_MAX), None)
        if theme is None:
            return
        at = next_seed.setdefault(theme, 0)
        summary.add(run_seeds(1000 + at, 5, theme=theme, sagas=sagas))
        summary.hunted += 5
        next_seed[theme] = at + 5
