"""When a failed attempt may be repeated: backoff with full jitter, within the attempt budget and before the deadline.

Jitter comes from a hash, so that a replay decides the same. An attempt that cannot finish before the deadline is not
started.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

from trueup_common.contracts.declaration import RetryPolicy

ATTEMPTS_EXHAUSTED = "attempts_exhausted"
DEADLINE_PASSED = "deadline_passed"


@dataclass(frozen=True, slots=True)
class RetryAt:
    """The next attempt may start at this business time."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No further attempt: the budget or the time is used up."""

    reason: str


def fraction(seed: str) -> float:
    """A number in [0, 1) that only depends on the seed."""
    return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big") / 2**64


def delay_seconds(policy: RetryPolicy, failures_count: int, seed: str) -> float:
    """Full jitter: anything between nothing and the exponential bound after this many failures (at least one)."""
    bound = policy.ceiling_seconds
    exponent = max(failures_count - 1, 0)
    if exponent < 64:  # beyond it only the ceiling counts, and floats would overflow
        bound = min(bound, policy.initial_seconds * policy.factor**exponent)
    return bound * fraction(seed)


def latest_start(deadline_at: datetime, timeout_seconds: float) -> datetime:
    """The last moment at which an attempt can still finish before the deadline."""
    return deadline_at - timedelta(seconds=timeout_seconds)


def next_attempt(
    policy: RetryPolicy,
    *,
    attempts_count: int,
    failures_count: int,
    seed: str,
    now: datetime,
    deadline_at: datetime,
    timeout_seconds: float,
    retry_after_seconds: float | None = None,
) -> RetryAt | Exhausted:
    """When to try again after a failure that retrying may cure.

    `attempts_count` are attempts that were sent and count against the budget; `failures_count` are all failures so far,
    also those that sent nothing, and only lengthen the pause.
    """
    if attempts_count >= policy.attempts_max:
        return Exhausted(ATTEMPTS_EXHAUSTED)
    seconds = max(delay_seconds(policy, failures_count, seed), retry_after_seconds or 0.0)
    last = latest_start(deadline_at, timeout_seconds)
    if now > last or seconds > (last - now).total_seconds():
        return Exhausted(DEADLINE_PASSED)
    return RetryAt(now + timedelta(seconds=seconds))
