"""What a case has cost, as it is shown, and what all of it costs at the prices of this plane (requirement V4)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.spending import HELD_SINCE, MEASURES, measures_of, spent_on_operations
from trueup_common.contracts.workflow import StepKind
from trueup_gateway.core.counters import SPENT

MINUTE_SECONDS: Final = 60.0
_PERSONS_STEPS: Final = frozenset({StepKind.APPROVAL.value, StepKind.WAIT.value})
_SHOWN: Final = ("transitions", "stored_bytes", "attempts", "model_tokens", "worker_seconds")


def cost_body(instance: InstanceRow, operations: Sequence[JournalRow]) -> dict[str, Any]:
    """The cost of one case so far (the words: `contracts.spending`).

    `human_minutes` is the time a person held the case, of every hold that has ended; `human_since` says since when one
    holds it now. `human_wait_minutes` is the time that its approvals and waits were open, summed: waiting, not work.
    """
    spent = {**instance.spent, **spent_on_operations(operations)}
    found = measures_of(spent, instance.history_seq)
    return {
        **{name: found[name] for name in _SHOWN},
        "effects": sum(row.attempt_count > 0 for row in operations),
        "human_minutes": found["person_seconds"] / MINUTE_SECONDS,
        "human_since": spent.get(HELD_SINCE),
        "human_wait_minutes": sum(map(_waited_seconds, instance.steps)) / MINUTE_SECONDS,
        "timers_fired": found["timers_fired"],
        "timer_late_seconds": found["timer_late_seconds"],
    }


def _waited_seconds(step: Mapping[str, Any]) -> float:
    began, ended = step.get("started_at"), step.get("ended_at")
    if step["kind"] not in _PERSONS_STEPS or began is None or ended is None:
        return 0.0
    return (_moment(ended) - _moment(began)).total_seconds()


def _moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def price_of(counts: Mapping[str, float], prices: Mapping[str, float]) -> float:
    """What counted spending costs, in units of the price list."""
    return sum(max(counts.get(f"{SPENT}{name}", 0), 0) * prices.get(name, 0) for name in MEASURES)
