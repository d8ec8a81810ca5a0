"""Batches: many acts of one kind, each admitted again at its turn. Tables and arithmetic; nothing is lost on the way.

done + failed + skipped = total: an item that could not be asked for is skipped with the reason, one whose act ended
other than well has failed.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from trueup_common.contracts.operators import CommandState, OperatorAction
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import OperationState

A = OperatorAction

BATCHED: Final = (A.RETRY, A.RECONCILE, A.REDRIVE, A.REPAIR, A.COMPENSATE, A.ESCALATE, A.ASSIGN)
"""What may be done in bulk. A settlement says what one effect came to: nobody knows that of many at once."""

ITEMS_MAX: Final = 5000
TAKEN_MAX: Final = 20
"""How many items one tick takes, at most."""
RATE_MAX: Final = 50.0
RATE_MIN: Final = 0.001
"""One item in a quarter of an hour. Slower ones have no next moment that a calendar could hold."""
AUTHORITY_HOURS: Final = 12
"""How long a batch acts for whoever started it: a shift. Then it waits until somebody entitled starts it again."""
TRAIL_MAX: Final = 200
"""Turns that a batch shows; every one of a person has its decision for good."""
ITSELF: Final = "service:gateway"
"""Who paused a batch that nobody's authority carries any more."""


class BatchState(StrEnum):
    """Where a batch stands."""

    PREVIEW = "PREVIEW"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    DONE = "DONE"


class Turn(StrEnum):
    """What people do with a batch, and that its last item ended."""

    START = "start"
    PAUSE = "pause"
    STOP = "stop"
    FINISH = "finish"


TABLE: Final[Mapping[tuple[BatchState, Turn], BatchState]] = {
    (BatchState.PREVIEW, Turn.START): BatchState.RUNNING,
    (BatchState.PREVIEW, Turn.STOP): BatchState.STOPPED,
    (BatchState.RUNNING, Turn.START): BatchState.RUNNING,
    (BatchState.RUNNING, Turn.PAUSE): BatchState.PAUSED,
    (BatchState.RUNNING, Turn.STOP): BatchState.STOPPED,
    (BatchState.RUNNING, Turn.FINISH): BatchState.DONE,
    (BatchState.PAUSED, Turn.START): BatchState.RUNNING,
    (BatchState.PAUSED, Turn.PAUSE): BatchState.PAUSED,
    (BatchState.PAUSED, Turn.STOP): BatchState.STOPPED,
    (BatchState.PAUSED, Turn.FINISH): BatchState.DONE,
    (BatchState.STOPPED, Turn.STOP): BatchState.STOPPED,
}
"""States by turns; what is not here is refused."""


class ItemState(StrEnum):
    """Where one item stands. The last three are ends."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


_WELL: Final = frozenset({OperationState.SUCCESS, OperationState.RESOLVED, OperationState.CANCELLED})


def turns(state: BatchState) -> list[str]:
    """What may be done with a batch now."""
    return [turn.value for turn in (Turn.START, Turn.PAUSE, Turn.STOP) if (state, turn) in TABLE]


def turned(  # noqa: PLR0917 - the columns of one line
    turn: Turn, after: BatchState, actor: str, reason: str | None, decision_id: str | None, at: datetime
) -> dict[str, Any]:
    """One line of a batch's trail."""
    return {
        "turn": turn.value,
        "to": after.value,
        "actor": actor,
        "reason": reason,
        "decision_id": decision_id,
        "at": rfc3339(at),
    }


def lapsed(started_at: datetime | None, now: datetime) -> bool:
    """True where the authority of the last start is over."""
    return started_at is None or now >= started_at + timedelta(hours=AUTHORITY_HOURS)


def ended_as(state: str, detail: str | None, result: Mapping[str, Any]) -> tuple[ItemState, str | None] | None:
    """What an item came to, by how its operator command ended; None while that is at work."""
    if state == CommandState.REFUSED:
        return ItemState.SKIPPED, detail or "refused"
    if state != CommandState.DONE:
        return None
    told = result.get("state")
    if told is None or told in _WELL:
        return ItemState.DONE, str(told) if told else None
    reason = f"{told}: {result.get('error_code')}" if result.get("error_code") else str(told)
    return ItemState.FAILED, reason


def paced(next_at: datetime | None, rate_per_second: float, now: datetime) -> tuple[int, datetime]:
    """How many items may be taken now, and when the next one may. Time that was not used is not saved up."""
    step = timedelta(seconds=1 / max(rate_per_second, RATE_MIN))
    at = now if next_at is None else max(next_at, now - timedelta(seconds=1))
    count = 0
    while at <= now and count < TAKEN_MAX:
        count += 1
        at += step
    return count, at
