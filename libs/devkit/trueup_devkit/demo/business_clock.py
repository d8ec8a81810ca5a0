"""Business time of a demo's plane: moved on as `trueup clock advance` does it, so that nobody sits minutes out."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.topology import SERVICES
from trueup_common.runtime.clock import real_now
from trueup_devkit import virtual_clock
from trueup_devkit.state_folder import PlaneState, StateFolder


class Clock:
    """The virtual clock of one plane."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._offset = timedelta()

    def now(self) -> datetime:
        """Business time."""
        return real_now() + self._offset

    @property
    def ahead_seconds(self) -> float:
        """How far it was moved so far."""
        return self._offset.total_seconds()

    def advance(self, seconds: float, absent: str = "") -> None:
        """Move on, from due time to due time. A process that is `absent` reads the time when it starts again."""
        state = self._folder.running_state()
        steps = asyncio.run(_advance(state, _instances(state, absent), timedelta(seconds=seconds)))
        if steps:
            self._offset = timedelta(seconds=steps[-1].offset_seconds)


async def _advance(state: PlaneState, instances: list[str], distance: timedelta) -> list[virtual_clock.Step]:
    async with virtual_clock.plane_timeline(state.database_url, state.nats_url, instances) as timeline:
        return await virtual_clock.advance(timeline, distance)


def _instances(state: PlaneState, absent: str) -> list[str]:
    names = [process.name for process in state.processes if process.name != absent]
    return [name for name in names if name.rstrip(_REPLICA).rstrip("-") in SERVICES]


_REPLICA: Final = "0123456789"
