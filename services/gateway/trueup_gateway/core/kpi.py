"""The key figures (requirement V2): a table that says of each what it counts over what, and in which windows.

A figure without a denominator has no value: nothing came due, so nothing can be said.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from trueup_common.contracts.shape import record
from trueup_common.contracts.spending import MEASURES
from trueup_common.contracts.states import ExceptionKind
from trueup_gateway.core.cost import price_of
from trueup_gateway.core.counters import SPENT
from trueup_gateway.core.windows import Counts, Sums

HOUR: Final = 3600
WINDOWS: Final = (HOUR, 24 * HOUR, 7 * 24 * HOUR)

Terms = tuple[str, ...]
"""Counters that are added up; one with a minus is taken away."""


@record
class Figure:
    """One key figure: counters above, counters below, and what is counted."""

    name: str
    title: str
    numerator: Terms
    denominator: Terms
    unit: str
    over: str


@record
class Kpi:
    """A figure in one window. `oldest_seconds` only where ages are told."""

    figure: Figure
    window_seconds: int
    numerator: float
    denominator: float
    oldest_seconds: float | None = None

    @property
    def value(self) -> float | None:
        """The figure itself: a ratio or a mean, or, of what is only counted, the count."""
        if self.figure.unit == COUNT:
            return self.numerator
        return self.numerator / self.denominator if self.denominator else None


RATIO: Final = "ratio"
SECONDS: Final = "seconds"
MEAN: Final = "mean"
COUNT: Final = "count"


_CORRECT: Final = ("cases_converged",)


def _per_correct_case(name: str, word: str, title: str, unit: str = MEAN) -> Figure:
    """What all cases spent that came due, the bad ones too, over those that ended correctly."""
    return Figure(f"{name}_per_correct_case", title, (f"{SPENT}{word}",), _CORRECT, unit, "cases")


def _opened(kind: ExceptionKind) -> str:
    return f"opened.{kind.value}"


FIGURES: Final = (
    Figure(
        "convergence_rate",
        "Cases that ended with desired = recorded = observed, of all that were due",
        ("cases_converged",),
        ("cases_due",),
        RATIO,
        "cases",
    ),
    Figure(
        "stuck_execution_rate",
        "Operations that had not ended when their time was up",
        ("operations_due", "-operations_in_time"),
        ("operations_due",),
        RATIO,
        "operations",
    ),
    Figure(
        "orphan_recovery_rate",
        "Orphans of which it became known in time what had happened",
        ("orphans_recovered",),
        ("orphans_due",),
        RATIO,
        "exceptions",
    ),
    Figure(
        "lease_expiries",
        "Operations whose lease ran out or whose heartbeat went stale",
        (_opened(ExceptionKind.STALE_RUNNING),),
        ("operations_ended",),
        RATIO,
        "operations",
    ),
    Figure(
        "state_drift_rate",
        "Drift found, per case that came due",
        (_opened(ExceptionKind.STATE_DRIFT),),
        ("cases_due",),
        RATIO,
        "cases",
    ),
    Figure(
        "reconciliation_success_rate",
        "Doubts that ended with knowing what happened",
        ("doubts_settled",),
        ("doubts_ended",),
        RATIO,
        "exceptions",
    ),
    Figure(
        "dlq_entry_rate",
        "Dead letters, of the operations that ended",
        (_opened(ExceptionKind.DEAD_LETTER),),
        ("operations_ended",),
        RATIO,
        "operations",
    ),
    Figure(
        "repair_success_rate",
        "Exceptions that ended with a verified repair",
        ("repairs_verified",),
        ("repairs_ended",),
        RATIO,
        "exceptions",
    ),
    Figure(
        "mean_time_to_repair",
        "From an exception's first second to its verified repair",
        ("repair_seconds",),
        ("repairs_verified",),
        SECONDS,
        "exceptions",
    ),
    Figure(
        "compensation_failure_rate",
        "Compensations that failed or that a person must settle",
        ("undoings_failed",),
        ("undoings_ended",),
        RATIO,
        "operations",
    ),
    Figure(
        "unknown_outcome_rate",
        "Operations whose outcome was unknown for a time",
        (_opened(ExceptionKind.UNKNOWN_OUTCOME),),
        ("operations_ended",),
        RATIO,
        "operations",
    ),
    Figure(
        "manual_intervention_rate",
        "Cases that needed a person, of those that came due",
        ("interventions",),
        ("cases_due",),
        RATIO,
        "cases",
    ),
    Figure(
        "timer_lateness",
        "How much later than due a wake-up of an operation or a case came",
        (f"{SPENT}timer_late_seconds",),
        (f"{SPENT}timers_fired",),
        SECONDS,
        "operations",
    ),
    _per_correct_case("transitions", "transitions", "Facts in histories, per case that ended correctly"),
    _per_correct_case("stored_bytes", "stored_bytes", "Bytes of history and artifacts, per case that ended correctly"),
    _per_correct_case("attempts", "attempts", "Transmissions, per case that ended correctly"),
    _per_correct_case("model_tokens", "model_tokens", "Tokens of models, per case that ended correctly"),
    _per_correct_case("worker_time", "worker_seconds", "Time of workers, per case that ended correctly", SECONDS),
    _per_correct_case("human_time", "person_seconds", "Time a person held it, per case that ended correctly", SECONDS),
)
"""Figures of windows."""

COST: Final = Figure(
    "cost_per_correct_case",
    "All that cases spent at the plane's prices, per case that ended correctly",
    tuple(f"{SPENT}{name}" for name in MEASURES),
    _CORRECT,
    MEAN,
    "cases",
)
"""Its numerator is weighed by the price list (`slo.yaml`)."""

DLQ_AGE: Final = Figure("dlq_age", "Mean age of open dead letters", ("age",), ("open",), SECONDS, "exceptions")
REPAIR_QUEUE_DEPTH: Final = Figure(
    "repair_queue_depth",
    "Repairs that are planned, wait for approval or run",
    ("repairs",),
    ("open",),
    COUNT,
    "exceptions",
)
QUEUE_LAG: Final = Figure(
    "queue_lag",
    "Mean age of accepted commands that nobody has taken up yet",
    ("age",),
    ("open",),
    SECONDS,
    "operations",
)


@record
class Standing:
    """What stands open now: how many, their ages summed, and the oldest age."""

    count: int = 0
    age_seconds: float = 0.0
    oldest_seconds: float = 0.0


def kpis(
    sums: Sums,
    exceptions: Mapping[str, Standing],
    waiting: Standing,
    repairs: int,
    *,
    now: datetime,
    prices: Mapping[str, float],
) -> list[Kpi]:
    """All figures: of each window, and of this moment (a window of 0 seconds).

    `exceptions` are open ones by kind, `waiting` commands that nobody took up yet, `repairs` those in flight; `prices`
    say what one of each word of `contracts.spending` costs.
    """
    found = []
    for seconds in WINDOWS:
        counts = sums.over(seconds, now)
        found += [
            Kpi(figure, seconds, _sum(figure.numerator, counts), _sum(figure.denominator, counts)) for figure in FIGURES
        ]
        found.append(Kpi(COST, seconds, price_of(counts, prices), _sum(COST.denominator, counts)))
    letters = exceptions.get(ExceptionKind.DEAD_LETTER, Standing())
    whole = sum(item.count for item in exceptions.values())
    return [
        *found,
        Kpi(DLQ_AGE, 0, letters.age_seconds, letters.count, letters.oldest_seconds),
        Kpi(REPAIR_QUEUE_DEPTH, 0, repairs, whole),
        Kpi(QUEUE_LAG, 0, waiting.age_seconds, waiting.count, waiting.oldest_seconds),
    ]


def _sum(terms: Terms, counts: Counts) -> float:
    total = sum(-counts.get(term[1:], 0) if term[0] == "-" else counts.get(term, 0) for term in terms)
    return max(total, 0)
