"""Service levels (requirement V3): targets, error budgets and burn rates, as arithmetic over counters.

The burn rate says how many times faster than allowed the budget is used up: 1 uses it exactly at the end of the
window. An alert needs a long window (it matters) and a short one (it still goes on).
"""

from collections.abc import Sequence
from datetime import datetime
from math import isfinite
from typing import Any, Final

from pydantic import Field, field_validator

from trueup_common.contracts.shape import Contract, record
from trueup_common.contracts.spending import MEASURES
from trueup_gateway.core.windows import Counts, Sums

ALLOWANCE_MIN: Final = 1e-6
"""A target of 100 % allows nothing; so small a share is counted as allowed that each miss is far over it."""
SERIES_HOURS: Final = 24


class Objective(Contract):
    """One service level: of what counts as `total`, the share `target` must count as `good`."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,59}$")
    title: str = Field(max_length=200)
    over: str
    good: str
    total: str
    target: float = Field(gt=0, le=1)


class BurnRule(Contract):
    """An alert: the budget burns faster than `rate` in a long window and in a short one."""

    long_seconds: int = Field(gt=0)
    short_seconds: int = Field(gt=0)
    rate: float = Field(gt=0)
    severity: str = Field(pattern="^(page|ticket)$")


class ServiceLevels(Contract):
    """The document: what is promised, over which time, and when somebody is told."""

    window_days: int = Field(gt=0, le=40)
    terminal_seconds: int = Field(gt=0, multiple_of=60)
    """When an operation that has not ended is late."""
    orphan_seconds: int = Field(gt=0, multiple_of=60)
    """When an orphan is too old."""
    prices: dict[str, float] = Field(default_factory=dict)
    """What one of each word of `contracts.spending` costs; what is not named costs nothing."""
    objectives: tuple[Objective, ...] = Field(min_length=1, max_length=50)
    alerts: tuple[BurnRule, ...] = Field(min_length=1, max_length=10)

    @field_validator("prices")
    @classmethod
    def _spent(cls, value: dict[str, float]) -> dict[str, float]:
        unknown = sorted(value.keys() - set(MEASURES))
        if unknown:
            raise ValueError(f"nothing is spent under the name {unknown[0]}")
        if not all(isfinite(price) and price >= 0 for price in value.values()):
            raise ValueError("a price is a number that is not negative")
        return value

    @field_validator("objectives")
    @classmethod
    def _distinct(cls, value: tuple[Objective, ...]) -> tuple[Objective, ...]:
        if len({item.name for item in value}) != len(value):
            raise ValueError("two objectives have one name")
        return value

    @property
    def window_seconds(self) -> int:
        """The time over which a target is promised."""
        return self.window_days * 86400

    @property
    def burn_windows(self) -> tuple[int, ...]:
        """All windows that some alert looks at, the shortest first."""
        return tuple(sorted({seconds for rule in self.alerts for seconds in (rule.short_seconds, rule.long_seconds)}))


@record
class Burn:
    """How fast the budget burns in one window."""

    window_seconds: int
    rate: float
    good: float
    total: float


@record
class Level:
    """Where one objective stands."""

    objective: Objective
    window_seconds: int
    good: float
    total: float
    burns: Sequence[Burn]
    firing: Sequence[BurnRule]
    series: Sequence[tuple[datetime, float, float]]
    """(hour, good, total)."""

    @property
    def ratio(self) -> float:
        """The share of good ones; where nothing came due, nothing was missed."""
        return ratio(self.good, self.total)

    @property
    def budget_remaining(self) -> float:
        """1: untouched; 0: used up; below: overdrawn."""
        return budget_remaining(self.good, self.total, self.objective.target)


def ratio(good: float, total: float) -> float:
    """The share of good ones."""
    return good / total if total > 0 else 1.0


def burn_rate(good: float, total: float, target: float) -> float:
    """The share of bad ones, in units of the share that is allowed."""
    return (1.0 - ratio(good, total)) / max(1.0 - target, ALLOWANCE_MIN)


def budget_remaining(good: float, total: float, target: float) -> float:
    """The part of the error budget that is left. A target of 100 % has none to overdraw: it is whole or gone."""
    if target >= 1:
        return 1.0 if good >= total else 0.0
    return 1.0 - burn_rate(good, total, target)


def levels(document: ServiceLevels, sums: Sums, *, now: datetime) -> list[Level]:
    """Where every objective stands."""
    windows = {seconds: sums.over(seconds, now) for seconds in {*document.burn_windows, document.window_seconds}}
    hours = sums.by_hour(SERIES_HOURS, now)
    return [_level(document, objective, windows, hours) for objective in document.objectives]


def _level(
    document: ServiceLevels,
    objective: Objective,
    windows: dict[int, Counts],
    hours: Sequence[tuple[datetime, Counts]],
) -> Level:
    def of(counts: Counts) -> tuple[float, float]:
        total = max(counts.get(objective.total, 0), 0)
        return min(max(counts.get(objective.good, 0), 0), total), total

    whole = of(windows[document.window_seconds])
    burns = {
        seconds: Burn(seconds, burn_rate(*of(windows[seconds]), objective.target), *of(windows[seconds]))
        for seconds in document.burn_windows
    }
    firing = [
        rule
        for rule in document.alerts
        if burns[rule.long_seconds].rate > rule.rate and burns[rule.short_seconds].rate > rule.rate
    ]
    return Level(
        objective=objective,
        window_seconds=document.window_seconds,
        good=whole[0],
        total=whole[1],
        burns=list(burns.values()),
        firing=firing,
        series=[(at, *of(counts)) for at, counts in hours],
    )


def read_levels(document: Any) -> ServiceLevels:
    """A document as it was read. Raises ValueError."""
    return ServiceLevels.model_validate(document)
