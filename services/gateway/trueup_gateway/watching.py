"""Watching cases: one poller per replica looks after every case that somebody follows, in one statement per look.

A follower is woken when something of its case moved; what moved it reads for itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.store import GatewayReads

log = logging.getLogger("trueup.gateway.watching")

POLL_SECONDS: Final = 0.25
FOLLOWERS_MAX: Final = 500
"""Of one replica: a follower costs memory, not a statement."""
FOLLOWERS_OF_ONE_MAX: Final = 8
"""Of one caller: it takes more than sixty of them to fill a replica."""

Mark = tuple[int, ...]


class TooMany(Exception):
    """This caller follows enough already."""


class Full(TooMany):
    """This replica takes no further follower, whoever asks."""


class Follower:
    """Somebody who follows one case."""

    def __init__(self, workflow_id: str, who: str) -> None:
        self.workflow_id = workflow_id
        self.who = who
        self._moved = asyncio.Event()

    def wake(self) -> None:
        """Something moved."""
        self._moved.set()

    async def moved(self, seconds: float) -> bool:
        """Wait until something moved, at most so long; True where it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        moved = self._moved.is_set()
        self._moved.clear()
        return moved


class CaseWatch:
    """Who follows which case."""

    def __init__(self, reads: GatewayReads) -> None:
        self._reads = reads
        self._followers: set[Follower] = set()
        self._marks: dict[str, Mark] = {}
        self.looks_count = 0
        self.dismissed = False

    def dismiss(self) -> None:
        """This replica leaves: every stream ends, and its client goes on elsewhere."""
        self.dismissed = True
        for follower in self._followers:
            follower.wake()

    @property
    def followers_count(self) -> int:
        """How many follow at present."""
        return len(self._followers)

    @contextmanager
    def following(self, workflow_id: str, who: str) -> Iterator[Follower]:
        """Follow a case. Raises TooMany, and Full where it is not this caller's doing."""
        if len(self._followers) >= FOLLOWERS_MAX:
            raise Full("this replica has too many streams open")
        if sum(other.who == who for other in self._followers) >= FOLLOWERS_OF_ONE_MAX:
            raise TooMany("this caller has too many streams open")
        follower = Follower(workflow_id, who)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    async def look(self) -> None:
        """Look once after every case that is followed, and wake whose case moved."""
        watched = sorted({follower.workflow_id for follower in self._followers})
        if not watched:
            self._marks.clear()
            return
        self.looks_count += 1
        marks = await self._reads.case_marks(watched)
        moved = {name for name in watched if self._marks.get(name) != marks.get(name)}
        self._marks = marks
        for follower in self._followers:
            if follower.workflow_id in moved:
                follower.wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop`, then wake everybody."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()
            try:
                await self.look()
            except StoreBusy as busy:
                log.info("not looked: store busy", extra={"reason": str(busy)})
        for follower in self._followers:
            follower.wake()
