"""A circuit breaker per connection: a target that fails for everyone is left alone for a while, then tried by one.

What it holds back was never sent (NOT_SENT), so it spends no attempt and proves nothing. Looking is never held back.
It is a hint in one process's memory: losing it only means that the target is tried again.
"""

from typing import Final

from trueup_common.contracts.adapter import Outcome
from trueup_common.contracts.states import ReceiptStatus

FAILURES_MAX: Final = 8
"""Failures in a row that open it."""

OPEN_SECONDS: Final = 2.0
OPEN_FACTOR: Final = 2.0
OPEN_SECONDS_MAX: Final = 30.0

TRIAL_SECONDS_MAX: Final = 120.0
"""After so long a trial that never ended counts as lost, and another may try."""

FAILED_CODES: Final = frozenset(
    {
        "connection_refused",
        "connection_lost",
        "unavailable",
        "target_failed",
        "timeout",
        "answer_missing",
        "too_many_connections",
    }
)
"""What says that the target itself is unwell. A rate limit, a refusal or a conflict says that it is up."""


def ails(outcome: Outcome) -> bool | None:
    """True where an outcome speaks of an unwell target, False where it speaks of a working one, None where of none."""
    if outcome.status is ReceiptStatus.NOT_SENT:
        return None
    return outcome.status is not ReceiptStatus.CONFIRMED and outcome.error_code in FAILED_CODES


class Breaker:
    """Closed, open, or open with one trial under way. Times are monotonic seconds."""

    __slots__ = ("_failures_count", "_open_seconds", "_open_until", "_trial_since")

    def __init__(self) -> None:
        self._failures_count = 0
        self._open_seconds = 0.0
        self._open_until: float | None = None
        self._trial_since: float | None = None

    @property
    def is_open(self) -> bool:
        """True while only trials are let through."""
        return self._open_until is not None

    def admits(self, now: float) -> bool:
        """True where one may send now; where it is open, that one is the trial."""
        if self._open_until is None:
            return True
        if now < self._open_until:
            return False
        if self._trial_since is not None and now - self._trial_since < TRIAL_SECONDS_MAX:
            return False
        self._trial_since = now
        return True

    def heard(self, outcome: Outcome, now: float) -> bool:
        """Take over what became of an attempt that was let through. True where it opens with this one."""
        ailing = ails(outcome)
        if ailing is None:
            self._trial_since = None
            return False
        if not ailing:
            self._failures_count, self._open_seconds = 0, 0.0
            self._open_until = self._trial_since = None
            return False
        self._failures_count += 1
        trial, self._trial_since = self._trial_since is not None, None
        if not trial and (self._open_until is not None or self._failures_count < FAILURES_MAX):
            return False
        grown = self._open_seconds * OPEN_FACTOR or OPEN_SECONDS
        self._open_seconds = min(grown, OPEN_SECONDS_MAX)
        self._open_until = now + self._open_seconds
        return True
