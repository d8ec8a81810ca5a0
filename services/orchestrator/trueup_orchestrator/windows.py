"""Windows: how much may be in flight per (tenant, system), as the adapters' beats announce it.

What is remembered here is only a hint: without beats the ceiling holds, and adapters refuse what they cannot take.
"""

from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.task import Beat
from trueup_orchestrator.core.dispatch import Pair, window

FORGET_AFTER: Final = timedelta(seconds=10)


class Windows:
    """Announced slots of live workers."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self._beats: dict[tuple[str, str], Beat] = {}

    def announce(self, beat: Beat) -> None:
        """Remember what a worker announces."""
        self._beats[beat.system, beat.worker] = beat

    def size(self, pair: Pair, now: datetime) -> int:
        """The window of a pair at a real time."""
        tenant, system = pair
        announced = [
            beat.slots[tenant]
            for beat in self._beats.values()
            if beat.system == system and tenant in beat.slots and beat.at > now - FORGET_AFTER
        ]
        return window(sum(announced) if announced else None, self.ceiling, self.ceiling)
