"""Numbers as arithmetic: what is judged when, counting again without counting twice, budgets and burn rates."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup_common.contracts.spending import MEASURES
from trueup_common.contracts.states import ExceptionKind, InstanceStatus, OperationState
from trueup_common.runtime.settings import Settings
from trueup_gateway.core.counters import COUNTERS, added, difference
from trueup_gateway.core.kpi import FIGURES, WINDOWS, Standing, kpis
from trueup_gateway.core.measures import (
    MINUTE,
    Bounds,
    CasesAlike,
    Counted,
    ExceptionsAlike,
    OperationsAlike,
    count_cases,
    count_exceptions,
    count_operations,
    minute_text,
)
from trueup_gateway.core.slo import (
    BurnRule,
    Objective,
    ServiceLevels,
    budget_remaining,
    burn_rate,
    levels,
    ratio,
)
from trueup_gateway.core.windows import Sums
from trueup_gateway.levels import SHIPPED, levels_of, read_service_levels, shipped_levels

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BOUNDS = Bounds()
MINUTES = st.integers(0, 3000).map(lambda number: BEGAN + timedelta(minutes=number))
COUNT = st.integers(1, 50)
COSTS = ("transitions", "stored_bytes", "attempts", "model_tokens", "worker_time", "human_time")
PRICES = {"person_seconds": 2.0, "attempts": 0.5}

operations = st.builds(
    OperationsAlike,
    state=st.sampled_from([state.value for state in OperationState]),
    undoing=st.booleans(),
    ended_at=st.one_of(st.none(), MINUTES),
    in_time=st.booleans(),
    owned=st.one_of(st.none(), st.booleans()),
    count=COUNT,
)
cases = st.builds(
    CasesAlike,
    status=st.sampled_from([status.value for status in InstanceStatus]),
    high_risk=st.booleans(),
    judged_at=MINUTES,
    count=COUNT,
    spent=st.dictionaries(st.sampled_from(MEASURES), st.integers(0, 100)),
)
exceptions = st.builds(
    ExceptionsAlike,
    kind=st.sampled_from([kind.value for kind in ExceptionKind]),
    resolution=st.sampled_from([None, "observed_healthy", "operation_failed", "superseded"]),
    closed_at=st.one_of(st.none(), MINUTES),
    first_deadline_at=st.one_of(st.none(), MINUTES),
    kept=st.booleans(),
    owned=st.booleans(),
    count=COUNT,
    seconds=st.floats(0, 1e6),
    persons=st.integers(0, 5),
)


def at(minutes: float) -> datetime:
    return BEGAN + timedelta(minutes=minutes)


def total(counted: Counted, counter: str) -> float:
    return sum(counts.get(counter, 0) for counts in counted.parts.values())


def count_of(groups: list[Any], now: datetime) -> Counted:
    """Count whatever it is."""
    if groups and isinstance(groups[0], CasesAlike):
        return count_cases(BEGAN, groups, now=now)
    if groups and isinstance(groups[0], ExceptionsAlike):
        return count_exceptions(BEGAN, groups, now=now, bounds=BOUNDS)
    return count_operations(BEGAN, groups, now=now, bounds=BOUNDS)


SNAPSHOTS = st.one_of(
    st.lists(st.lists(operations, max_size=4), min_size=1, max_size=5),
    st.lists(st.lists(cases, max_size=4), min_size=1, max_size=5),
    st.lists(st.lists(exceptions, max_size=4), min_size=1, max_size=5),
)


@given(SNAPSHOTS, st.lists(MINUTES, min_size=5, max_size=5).map(sorted))
def test_counting_again_is_no_different_from_counting_once(snapshots: list[list[Any]], times: list[datetime]) -> None:
    """Whatever a cohort was counted as before, the counters end at what it comes to now.

    Requirements: V2
    """
    sums: dict[str, dict[str, float]] = {}
    before: dict[str, dict[str, float]] = {}
    for groups, now in zip(snapshots, times, strict=False):
        counted = count_of(groups, now)
        assert all(name in COUNTERS for counts in counted.parts.values() for name in counts)
        assert all(minute <= minute_text(now) for minute in counted.parts), "nothing is judged before its time"
        assert counted.due_at is None or counted.due_at > now, "what is due again is due later"
        for minute, change in difference(before, counted.parts).items():
            sums[minute] = added(sums.get(minute, {}), change)
        before = counted.parts
        for minute in sums.keys() | before.keys():
            assert sums.get(minute, {}) == pytest.approx(
                {k: v for k, v in before.get(minute, {}).items() if abs(v) > 1e-9}
            )


@given(st.lists(operations, max_size=6), MINUTES, st.integers(0, 100))
def test_every_operation_is_judged_once_and_by_time_alone_in_the_end(
    groups: list[OperationsAlike], now: datetime, more: int
) -> None:
    """Judged at most once at any time; when all time is over, every single one.

    Requirements: V2
    """
    due = total(count_operations(BEGAN, groups, now=now, bounds=BOUNDS), "operations_due")
    everything = sum(group.count for group in groups)
    assert due <= everything
    late = count_operations(BEGAN, groups, now=BEGAN + timedelta(days=30 + more), bounds=BOUNDS)
    assert total(late, "operations_due") == everything
    in_time = sum(group.count for group in groups if group.ended_at is not None and group.in_time)
    assert total(late, "operations_in_time") == in_time


def operation(**changes: Any) -> OperationsAlike:
    fields = {"state": "RUNNING", "undoing": False, "ended_at": None, "in_time": None, "owned": None, "count": 1}
    return OperationsAlike(**{**fields, **changes})


def test_an_operation_is_late_at_the_moment_its_time_is_up() -> None:
    """It counts as bad then, and not when it ends at last; one in time counts when it ends.

    Requirements: V3
    """
    stuck = [operation()]
    assert count_operations(BEGAN, stuck, now=at(15), bounds=BOUNDS) == Counted({}, at(16))
    late = count_operations(BEGAN, stuck, now=at(16), bounds=BOUNDS)
    assert late.parts == {minute_text(at(16)): {"operations_due": 1}}
    ended = [operation(state="SUCCESS", ended_at=at(50), in_time=False)]
    after = count_operations(BEGAN, ended, now=at(60), bounds=BOUNDS)
    assert after.parts[minute_text(at(16))] == {"operations_due": 1}
    assert total(after, "operations_in_time") == 0
    quick = count_operations(
        BEGAN, [operation(state="SUCCESS", ended_at=at(2), in_time=True)], now=at(3), bounds=BOUNDS
    )
    assert quick.parts == {minute_text(at(2)): {"operations_due": 1, "operations_in_time": 1, "operations_ended": 1}}


@pytest.mark.parametrize(
    ("group", "counter"),
    [
        (operation(state="DEAD_LETTERED", ended_at=at(1), in_time=True, owned=False), "dead_letters"),
        (operation(state="FAILED", undoing=True, ended_at=at(1), in_time=True, owned=False), "undoings_failed"),
        (operation(state="DEAD_LETTERED", undoing=True, ended_at=at(1), in_time=True, owned=False), "undoings_failed"),
    ],
)
def test_what_needs_an_owner_is_asked_again_until_it_has_one(group: OperationsAlike, counter: str) -> None:
    """News of an owner may take a moment; after it, each minute without one is counted and looked at again.

    Requirements: V3
    """
    young = count_operations(BEGAN, [group], now=at(2), bounds=BOUNDS)
    assert total(young, f"{counter}_due") == 0 and young.due_at == at(3)
    old = count_operations(BEGAN, [group], now=at(30), bounds=BOUNDS)
    assert total(old, f"{counter}_due") == 1 and total(old, f"{counter}_owned") == 0
    assert old.due_at == at(31)
    owned = OperationsAlike(
        state=group.state, undoing=group.undoing, ended_at=group.ended_at, in_time=True, owned=True, count=1
    )
    known = count_operations(BEGAN, [owned], now=at(30), bounds=BOUNDS)
    assert total(known, f"{counter}_owned") == 1 and known.due_at is None


def test_convergence_counts_closed_of_all_that_were_due() -> None:
    """Undone, taken over and overdue cases are due and not converged; a cancelled one is not due any more.

    Requirements: V2
    """
    groups = [CasesAlike(status=status.value, high_risk=False, judged_at=at(3), count=1) for status in InstanceStatus]
    counted = count_cases(BEGAN, groups, now=at(10))
    assert total(counted, "cases_due") == len(InstanceStatus) - 1
    assert total(counted, "cases_converged") == 1
    early = count_cases(BEGAN, [CasesAlike(status="RUNNING", high_risk=True, judged_at=at(60), count=1)], now=at(10))
    assert early == Counted({minute_text(BEGAN): {"cases_begun": 1}}, at(61))
    taken = count_cases(
        BEGAN, [CasesAlike(status="HUMAN_TAKEOVER", high_risk=True, judged_at=at(5), count=2)], now=at(10)
    )
    assert total(taken, "high_risk_due") == 2 and total(taken, "high_risk_verified") == 0


def exception(**changes: Any) -> ExceptionsAlike:
    fields = {
        "kind": "dead_letter",
        "resolution": None,
        "closed_at": None,
        "first_deadline_at": at(60),
        "kept": None,
        "owned": True,
        "count": 1,
        "seconds": 0.0,
        "persons": 1,
    }
    return ExceptionsAlike(**{**fields, **changes})


def test_an_exception_keeps_its_first_deadline_or_does_not() -> None:
    """Good when it ends in time; bad when the first deadline passes, wherever escalation has moved it.

    Requirements: V3
    """
    open_ = count_exceptions(BEGAN, [exception()], now=at(10), bounds=BOUNDS)
    assert total(open_, "sla_due") == 0 and open_.due_at == at(61)
    missed = count_exceptions(BEGAN, [exception()], now=at(61), bounds=BOUNDS)
    assert missed.parts[minute_text(at(61))] == {"sla_due": 1}
    ended = exception(closed_at=at(90), kept=False, resolution="operation_success", seconds=5400.0)
    late = count_exceptions(BEGAN, [ended], now=at(100), bounds=BOUNDS)
    assert late.parts[minute_text(at(61))] == {"sla_due": 1} and total(late, "sla_kept") == 0
    assert late.parts[minute_text(at(90))] == {"repairs_ended": 1, "repairs_verified": 1, "repair_seconds": 5400.0}
    kept = exception(closed_at=at(30), kept=True, resolution="superseded")
    good = count_exceptions(BEGAN, [kept], now=at(100), bounds=BOUNDS)
    assert total(good, "sla_kept") == total(good, "sla_due") == 1
    assert total(good, "repairs_verified") == 0, "withdrawn is not repaired"


def test_an_orphan_has_a_day() -> None:
    """It is recovered where it became known in time what happened, else it is an old orphan a day later.

    Requirements: V2, V3
    """
    orphan = exception(kind="stale_running")
    old = count_exceptions(BEGAN, [orphan], now=at(24 * 60 + 1), bounds=BOUNDS)
    assert total(old, "orphans_due") == 1 and total(old, "orphans_in_time") == 0
    known = exception(kind="stale_running", closed_at=at(9), kept=True, resolution="operation_failed")
    found = count_exceptions(BEGAN, [known], now=at(10), bounds=BOUNDS)
    assert [total(found, f"orphans_{name}") for name in ("due", "in_time", "recovered")] == [1, 1, 1]
    given_up = exception(kind="stale_running", closed_at=at(9), kept=True, resolution="operation_needs_review")
    lost = count_exceptions(BEGAN, [given_up], now=at(10), bounds=BOUNDS)
    assert [total(lost, f"orphans_{name}") for name in ("due", "in_time", "recovered")] == [1, 1, 0]


# -- windows ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 9)), max_size=30), st.sampled_from([300, 1800, 3600]))
def test_a_window_holds_what_it_says(points: list[tuple[int, int]], seconds: int) -> None:
    """All of the window, and at most one minute more."""
    now = at(500) + timedelta(seconds=17)
    minutes: Counter[datetime] = Counter()
    for back, count in points:
        minutes[at(500) - timedelta(minutes=back)] += count
    sums = Sums(minutes=[(minute, {"x": count}) for minute, count in minutes.items()])
    found = sums.over(seconds, now).get("x", 0)
    since = now - timedelta(seconds=seconds)
    least = sum(count for minute, count in minutes.items() if minute >= since)
    most = sum(count for minute, count in minutes.items() if minute + MINUTE > since)
    assert least <= found <= most


def test_the_chart_has_a_point_for_each_hour() -> None:
    """Also for hours in which nothing happened."""
    sums = Sums(hours=[(BEGAN, {"x": 3.0})])
    points = sums.by_hour(24, at(5 * 60))
    assert len(points) == 24 and points[-6] == (BEGAN, {"x": 3.0}) and points[-1] == (at(300), {})


# -- service levels ---------------------------------------------------------------------------------------------------

GOODS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted)


@given(GOODS, st.floats(0.5, 0.9999))
def test_budget_and_burn_rate_are_one_arithmetic(goods: list[int], target: float) -> None:
    """Untouched without a miss, used up exactly at the target, overdrawn beyond; a burn of 1 uses all of it.

    Requirements: V3
    """
    good, whole = goods
    left = budget_remaining(good, whole, target)
    assert left <= 1 and (left == 1) == (good == whole)
    if whole:
        assert (left >= -1e-9) == (ratio(good, whole) >= target - 1e-12)
        assert left == pytest.approx(1 - burn_rate(good, whole, target), abs=1e-6)
    assert burn_rate(good, whole, target) >= 0
    if good:
        assert burn_rate(good - 1, whole, target) >= burn_rate(good, whole, target)


@given(GOODS)
def test_a_target_of_everything_is_whole_or_gone(goods: list[int]) -> None:
    """One miss of a promise without exceptions is over every threshold.

    Requirements: V3
    """
    good, whole = goods
    assert budget_remaining(good, whole, 1.0) == (1.0 if good == whole else 0.0)
    assert (burn_rate(good, whole, 1.0) > 1) == (good < whole) if whole < 10**6 else True


def document(**changes: Any) -> ServiceLevels:
    objective = Objective(name="level", title="A level", over="operations", good="good", total="total", target=0.99)
    rules = (
        BurnRule(long_seconds=3600, short_seconds=300, rate=14.4, severity="page"),
        BurnRule(long_seconds=259200, short_seconds=21600, rate=1, severity="ticket"),
    )
    fields = {
        "window_days": 30,
        "terminal_seconds": 900,
        "orphan_seconds": 86400,
        "objectives": (objective,),
        "alerts": rules,
    }
    return ServiceLevels(**{**fields, **changes})


def sums_of(misses: dict[int, int], now: datetime, per_minute: int = 100) -> Sums:
    """A steady stream for six hours, with misses so many minutes ago."""
    minutes = [
        (now - timedelta(minutes=back), {"total": per_minute, "good": per_minute - misses.get(back, 0)})
        for back in range(360)
    ]
    hours: dict[datetime, Counter[str]] = {}
    for place, counts in minutes:
        hours.setdefault(place.replace(minute=0), Counter()).update(counts)
    return Sums(minutes=minutes, hours=[(hour, dict(counts)) for hour, counts in hours.items()])


def test_an_alert_needs_both_windows() -> None:
    """A burst that is over does not page, and neither does one that has just begun; one that goes on does.

    Requirements: V3
    """
    now = at(600)
    going_on = sums_of(dict.fromkeys(range(40), 40), now)
    (level,) = levels(document(), going_on, now=now)
    assert [rule.severity for rule in level.firing] == ["page", "ticket"]
    over = sums_of(dict.fromkeys(range(20, 60), 40), now)
    (level,) = levels(document(), over, now=now)
    assert "page" not in [rule.severity for rule in level.firing]
    begun = sums_of(dict.fromkeys(range(5), 40), now)
    (level,) = levels(document(), begun, now=now)
    rates = {burn.window_seconds: burn.rate for burn in level.burns}
    assert rates[300] > 14.4 > rates[3600] and "page" not in [rule.severity for rule in level.firing]
    (level,) = levels(document(), sums_of({}, now), now=now)
    assert level.firing == [] and level.budget_remaining == 1


def test_the_shipped_levels_are_those_that_were_promised() -> None:
    """Every target of the requirement, over counters that exist, alerting over short and long windows.

    Requirements: V3
    """
    shipped = shipped_levels()
    assert {item.name: item.target for item in shipped.objectives} == {
        "operations_terminal_in_time": 0.99,
        "high_risk_verified": 0.999,
        "dead_letters_owned": 1.0,
        "failed_compensations_owned": 1.0,
        "repairs_within_sla": 0.95,
        "no_old_orphans": 1.0,
    }
    assert shipped.terminal_seconds == 900 and shipped.orphan_seconds == 86400
    assert shipped.burn_windows == (300, 1800, 3600, 21600, 259200)


def test_targets_are_configuration(tmp_path: Path) -> None:
    """A document of one's own takes the place; one that speaks of what nobody counts is refused.

    Requirements: V3
    """
    text = SHIPPED.read_text()
    own = tmp_path / "levels.yaml"
    own.write_text(text.replace("target: 0.95", "target: 0.5"))
    assert next(item for item in levels_of(own).objectives if item.name == "repairs_within_sla").target == 0.5
    own.write_text(text.replace("good: sla_kept", "good: attempts_kept"))
    with pytest.raises(ValueError, match="attempts_kept"):
        levels_of(own)
    own.write_text(text.replace("target: 0.95", "target: 1.5"))
    with pytest.raises(ValueError, match="target"):
        levels_of(own)
    for price in ("kindness: 1", "attempts: -1", "attempts: .nan"):
        own.write_text(text.replace("person_seconds: 1.6667", price))
        with pytest.raises(ValueError, match=r"nothing is spent|not negative"):
            levels_of(own)
    with pytest.raises(SystemExit, match="TRUEUP_SLO"):
        read_service_levels(Settings(mode="development", service="gateway", slo=own))
    assert read_service_levels(Settings(mode="development", service="gateway")) is shipped_levels()


# -- key figures ------------------------------------------------------------------------------------------------------


def test_every_figure_says_what_it_counts_over_what() -> None:
    """Numerator, denominator, window and kind of object of each; never attempts; no value without a denominator.

    Requirements: V2
    """
    now = at(600)
    counts = {name: float(number) for number, name in enumerate(sorted(COUNTERS), 1)}
    counts["operations_in_time"] = counts["operations_due"] - 1
    sums = Sums(minutes=[(at(599), counts)], hours=[(at(600), counts)])
    found = kpis(sums, {"dead_letter": Standing(2, 50.0, 40.0)}, Standing(), 3, now=now, prices=PRICES)
    names = {item.figure.name for item in found}
    assert names == {
        "stuck_execution_rate",
        "orphan_recovery_rate",
        "state_drift_rate",
        "reconciliation_success_rate",
        "dlq_entry_rate",
        "dlq_age",
        "repair_queue_depth",
        "repair_success_rate",
        "mean_time_to_repair",
        "compensation_failure_rate",
        "unknown_outcome_rate",
        "manual_intervention_rate",
        "convergence_rate",
        "queue_lag",
        "lease_expiries",
        "timer_lateness",
        "cost_per_correct_case",
        *(f"{word}_per_correct_case" for word in COSTS),
    }
    assert {item.figure.over for item in found} <= {"operations", "cases", "exceptions"}
    for figure in FIGURES:
        mine = [item for item in found if item.figure is figure]
        assert [item.window_seconds for item in mine] == list(WINDOWS)
        assert all(item.value == item.numerator / item.denominator for item in mine)
        terms = {term.lstrip("-") for term in (*figure.numerator, *figure.denominator)}
        assert terms <= COUNTERS
    stuck = next(item for item in found if item.figure.name == "stuck_execution_rate")
    assert (stuck.numerator, stuck.denominator) == (1, counts["operations_due"])
    age = next(item for item in found if item.figure.name == "dlq_age")
    assert (age.value, age.oldest_seconds, age.window_seconds) == (25.0, 40.0, 0)
    depth = next(item for item in found if item.figure.name == "repair_queue_depth")
    assert depth.value == 3
    nothing = kpis(Sums(), {}, Standing(), 0, now=now, prices=PRICES)
    assert all(item.value is None for item in nothing if item.figure.unit != "count")
