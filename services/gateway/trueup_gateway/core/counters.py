"""The counters: everything that is counted, and how a newer counting takes the place of an older one."""

from collections.abc import Mapping
from typing import Final

from trueup_common.contracts.spending import MEASURES
from trueup_common.contracts.states import ExceptionKind

SPENT: Final = "spent."
"""Before what cases have spent (`contracts.spending`)."""

COUNTERS: Final = frozenset(
    {
        "operations_due",
        "operations_in_time",
        "operations_ended",
        "undoings_ended",
        "undoings_failed",
        "undoings_failed_due",
        "undoings_failed_owned",
        "dead_letters_due",
        "dead_letters_owned",
        "cases_begun",
        "cases_due",
        "cases_converged",
        "high_risk_due",
        "high_risk_verified",
        "exceptions_opened",
        *(f"opened.{kind.value}" for kind in ExceptionKind),
        "interventions",
        "doubts_ended",
        "doubts_settled",
        "repairs_ended",
        "repairs_verified",
        "repair_seconds",
        "sla_due",
        "sla_kept",
        "orphans_due",
        "orphans_in_time",
        "orphans_recovered",
        *(f"{SPENT}{name}" for name in MEASURES),
    }
)
"""Everything that is counted."""

Counts = dict[str, float]
"""Counter → what it came to."""
Parts = dict[str, Counts]
"""What one cohort adds: minute (as text) → counters."""


def difference(before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]) -> Parts:
    """What must be added to the counters so that they hold the newer counting of a cohort instead of the older one."""
    found: Parts = {}
    for at in before.keys() | after.keys():
        old, new = before.get(at, {}), after.get(at, {})
        changes = {name: new.get(name, 0) - old.get(name, 0) for name in old.keys() | new.keys()}
        if kept := {name: change for name, change in changes.items() if change}:
            found[at] = kept
    return found


def added(counts: Mapping[str, float], change: Mapping[str, float]) -> Counts:
    """Counters after a change; what came to nothing is left out."""
    sums = {name: counts.get(name, 0) + change.get(name, 0) for name in counts.keys() | change.keys()}
    return {name: value for name, value in sums.items() if abs(value) > 1e-9}
