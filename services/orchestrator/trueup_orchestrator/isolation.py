"""Isolation: one case that cannot be decided must never keep time from coming to all others.

A tick decides many cases in one transaction. Where it fails, the next ticks take one case each; the case that fails
alone is left out for a while, and it is put into quarantine, so that it has an owner.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.envelope import Message
from trueup_common.runtime.redact import told

ALONE_TICKS: Final = 50
"""How many ticks take one case each after a failure."""

LEFT_OUT: Final = timedelta(seconds=60)
"""How long a case that failed alone is left out before it is tried again (real time)."""


class Isolation:
    """What one process remembers of failed ticks. Losing it only means that the case fails once more."""

    def __init__(self, batch_max: int) -> None:
        self._batch_max = batch_max
        self._alone_ticks = 0
        self._until: dict[str, datetime] = {}
        self._taken: dict[str, str] = {}
        self._owed: dict[str, tuple[str, str]] = {}
        self._now: datetime | None = None

    def limit(self, now: datetime) -> int:
        """How many cases the tick that begins now may take."""
        self._now = now
        self._taken = {}
        self._until = {key: until for key, until in self._until.items() if until > now}
        if self._alone_ticks:
            self._alone_ticks -= 1
            return 1
        return self._batch_max

    @property
    def left_out(self) -> list[str]:
        """Cases that are not to be taken now."""
        return sorted(self._until)

    def taken(self, cases: Iterable[tuple[str, str]]) -> None:
        """Which cases (workflow id, tenant) the tick works on."""
        self._taken.update(cases)

    def failed(self, error: Exception) -> None:
        """The tick failed: isolate its cases, or leave out the only one."""
        self._alone_ticks = ALONE_TICKS
        if len(self._taken) == 1 and self._now is not None:
            ((workflow_id, tenant),) = self._taken.items()
            self._until[workflow_id] = self._now + LEFT_OUT
            self._owed[workflow_id] = (tenant, told(error))

    def owed(self, consumer: str, now: datetime) -> list[tuple[Message, str]]:
        """What is to be put into quarantine, with its reason: each case once for as long as this process lives."""
        owed, self._owed = self._owed, {}
        return [
            (
                Message(
                    id=f"{workflow_id}:due",
                    type="CaseDue",
                    subject=f"trueup.due.{consumer}.{tenant}",
                    tenant=tenant,
                    source="orchestrator",
                    time=now,
                    data=f'{{"workflow_id": "{workflow_id}"}}'.encode(),
                ),
                reason,
            )
            for workflow_id, (tenant, reason) in owed.items()
        ]
