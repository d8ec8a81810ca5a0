"""Fair windows: which queued operations may go out now, given what is in flight per (tenant, system).

A window follows the slots that adapters announce. Pairs take turns and each stays within its own window, so that no
tenant and no target starves another; within a pair the oldest goes first.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from trueup_common.contracts.shape import record

Pair = tuple[str, str]
"""(tenant, system)."""


@record
class Load:
    """How full one pair is. `locked` is True where this transaction alone decides for the pair right now.

    `number` is the database's own and only grows: it orders what this transaction dispatches after all before it.
    """

    locked: bool
    in_flight: int
    queued: int
    number: int = 0


@record
class Waiting:
    """A queued operation that could go out."""

    command_id: str
    pair: Pair
    since: datetime


def window(slots: int | None, default: int, ceiling: int) -> int:
    """Twice the announced slots, so that a worker never waits for us; the default where none announced any."""
    return min(ceiling, default if slots is None else max(2 * slots, 1))


def free(load: Load, size: int, *, in_hand: bool) -> int:
    """How many operations of a pair may go out now.

    Who does not hold the pair's lock knows the load only roughly: it takes at most half of what seems free, and only
    for commands that it holds in hand; whatever waits in the store is left to the holder.
    """
    room = max(size - load.in_flight, 0)
    if load.locked:
        return room
    return max((room - load.queued) // 2, 0) if in_hand else 0


def choose(waiting: Iterable[Waiting], room: Mapping[Pair, int], limit: int) -> list[str]:
    """Command ids to dispatch: pairs in turn, oldest first within a pair, within each pair's room and the limit."""
    queues: dict[Pair, deque[Waiting]] = defaultdict(deque)
    for item in sorted(waiting, key=lambda item: (item.since, item.command_id)):
        queues[item.pair].append(item)
    left = dict(room)
    turns: deque[Pair] = deque(sorted(queues, key=lambda pair: (queues[pair][0].since, pair)))
    chosen: list[str] = []
    while turns and len(chosen) < limit:
        pair = turns.popleft()
        if left.get(pair, 0) <= 0:
            continue
        chosen.append(queues[pair].popleft().command_id)
        left[pair] -= 1
        if queues[pair]:
            turns.append(pair)
    return chosen


def quotas(room: Mapping[Pair, int], pairs: Sequence[Pair], limit: int) -> dict[Pair, int]:
    """How many queued rows to load per pair so that `choose` can be fair within the limit."""
    return {pair: min(room[pair], limit) for pair in pairs if room.get(pair, 0) > 0}
