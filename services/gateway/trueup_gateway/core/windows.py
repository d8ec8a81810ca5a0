"""Windows over counters: minutes for what is young, hours for what is older, so that no window reads history."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.shape import record

MINUTES_KEPT: Final = timedelta(hours=7)
HOURS_KEPT: Final = timedelta(days=40)
MINUTES_UP_TO_SECONDS: Final = 6 * 3600
"""Longer windows are summed of hours: their borders lie on hours, and so they are up to one hour longer."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

Counts = Mapping[str, float]
Point = tuple[datetime, Counts]
"""Where a minute or an hour begins, and what was counted in it."""


@record
class Sums:
    """The counters of one tenant (or of all), as far back as windows reach."""

    minutes: Sequence[Point] = ()
    hours: Sequence[Point] = ()

    def over(self, seconds: float, now: datetime) -> Counts:
        """What was counted in the last so many seconds."""
        points, grain = (self.minutes, 60) if seconds <= MINUTES_UP_TO_SECONDS else (self.hours, 3600)
        since = now - timedelta(seconds=seconds + grain)
        return total(counts for at, counts in points if since < at <= now)

    def by_hour(self, hours: int, now: datetime) -> list[Point]:
        """One point per hour, the oldest first, also where nothing was counted."""
        known: dict[datetime, Counts] = dict(self.hours)
        this = now.replace(minute=0, second=0, microsecond=0)
        places = [this - timedelta(hours=back) for back in range(hours - 1, -1, -1)]
        return [(at, known.get(at, {})) for at in places]


def total(points: Iterable[Counts]) -> Counts:
    """Counters added up."""
    sums: dict[str, float] = {}
    for counts in points:
        for name, value in counts.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def window_text(seconds: int) -> str:
    """A window as people write it: 5m, 6h, 3d."""
    size, unit = next(pair for pair in _UNITS if seconds % pair[0] == 0)
    return f"{seconds // size}{unit}"
