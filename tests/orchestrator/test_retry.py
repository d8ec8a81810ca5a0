"""Backoff, budget and deadline of repeated attempts."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.orchestrator.cases import NOW

from trueup_common.contracts.declaration import RetryPolicy
from trueup_orchestrator.core.retry import Exhausted, RetryAt, delay_seconds, fraction, latest_start, next_attempt

POLICY = RetryPolicy(attempts_max=4, initial_seconds=1.0, factor=2.0, ceiling_seconds=10.0)


def plan(
    *, attempts: int = 1, failures: int = 1, deadline: datetime | None = None, retry_after: float | None = None
) -> RetryAt | Exhausted:
    return next_attempt(
        POLICY,
        attempts_count=attempts,
        failures_count=failures,
        seed="one",
        now=NOW,
        deadline_at=deadline or NOW + timedelta(hours=1),
        timeout_seconds=10.0,
        retry_after_seconds=retry_after,
    )


@given(st.integers(min_value=0, max_value=10_000), st.text(max_size=20))
def test_the_pause_stays_within_its_exponential_bound(failures: int, seed: str) -> None:
    """Requirements: X5"""
    seconds = delay_seconds(POLICY, failures, seed)
    assert 0 <= seconds <= min(10.0, 2.0 ** min(max(failures - 1, 0), 10))
    assert seconds == delay_seconds(POLICY, failures, seed)


def test_jitter_is_spread_over_the_whole_bound() -> None:
    """Full jitter: a thousand operations that fail together do not come back together.

    Requirements: X5
    """
    shares = [fraction(f"cmd_{number}") for number in range(1000)]
    for tenth in range(10):
        assert 50 < sum(tenth / 10 <= share < (tenth + 1) / 10 for share in shares) < 160


def test_retry_after_is_never_undercut() -> None:
    """Requirements: X5"""
    found = plan(retry_after=120.0)
    assert isinstance(found, RetryAt)
    assert found.at == NOW + timedelta(seconds=120)


def test_the_budget_ends_retrying() -> None:
    """Requirements: X5"""
    assert isinstance(plan(attempts=3), RetryAt)
    assert plan(attempts=4) == Exhausted("attempts_exhausted")


def test_failures_that_sent_nothing_spend_no_attempt() -> None:
    """Requirements: X5"""
    assert isinstance(plan(attempts=0, failures=500), RetryAt)


@given(st.floats(min_value=-100, max_value=200), st.floats(min_value=0, max_value=100), st.integers(0, 30))
def test_no_attempt_is_started_that_cannot_finish_before_the_deadline(
    deadline_in: float, retry_after: float, failures: int
) -> None:
    """Requirements: X5"""
    deadline = NOW + timedelta(seconds=deadline_in)
    found = plan(failures=failures, deadline=deadline, retry_after=retry_after)
    if isinstance(found, RetryAt):
        assert found.at + timedelta(seconds=10) <= deadline
        assert found.at <= latest_start(deadline, 10.0)
    else:
        assert found == Exhausted("deadline_passed")
