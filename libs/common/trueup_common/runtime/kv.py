"""A watched bucket: its whole content in memory, kept current, with the moment it was last heard of.

A watch whose consumer is gone hears nothing, like one in whose bucket nothing happens. So it begins anew whenever the
connection was lost, and after a while of silence it asks whether the bucket is still the same one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from trueup_common.runtime.bus import BUS_AWAY, Bus
from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.redact import told

log = logging.getLogger("trueup.kv")

RETRY_PAUSE_SECONDS = 1.0
STOP_PAUSE_SECONDS = 0.2
LISTEN_SECONDS = 2.0
SILENT_LISTENS = 15
"""After so many in a row without a word: is it still the same bucket?"""


class BucketWatch:
    """Follows one KV bucket. `loaded` is set once the present content is here."""

    def __init__(self, bus: Bus, bucket: str, changed: Callable[[str, bytes | None], None]) -> None:
        self.bus = bus
        self.bucket = bucket
        self.loaded = asyncio.Event()
        self._changed = changed
        self._known: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.heard_at = 0.0
        self._stopping = False
        self._was_lost = False

    async def start(self) -> None:
        """Begin to follow; returns at once."""
        self.bus.back.append(self._lost)
        self._task = asyncio.create_task(self._follow(), name=f"watch {self.bucket}")

    async def stop(self) -> None:
        """Stop following. The client may swallow a cancellation (its `wait_for` does): it is asked until it ends."""
        self._stopping = True
        if self._lost in self.bus.back:
            self.bus.back.remove(self._lost)
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_PAUSE_SECONDS)

    def _lost(self) -> None:
        """The connection stands again; what watched for us at the broker may not."""
        self._was_lost = True

    async def _created(self) -> datetime | None:
        """When the bucket was made: another time is another bucket."""
        return (await self.bus.js.stream_info(f"KV_{self.bucket}")).created

    async def _follow(self) -> None:
        while not self._stopping:
            try:
                await self._follow_once()
            except BUS_AWAY as error:
                if self._stopping:  # the client made an error of the cancellation
                    return
                log.warning("watch lost, following again", extra={"bucket": self.bucket, "error": repr(error)[:200]})
            await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _follow_once(self) -> None:
        self._was_lost = False
        store = await self.bus.js.key_value(self.bucket)
        created = await self._created()
        watcher = await store.watchall()
        seen: set[str] = set()
        initial, silent = True, 0
        try:
            while not self._stopping:
                try:
                    entry = await watcher.updates(timeout=LISTEN_SECONDS)  # type: ignore[no-untyped-call]
                except TimeoutError:
                    silent += 1
                    is_another = silent % SILENT_LISTENS == 0 and await self._created() != created
                    if self._was_lost or is_another:
                        log.warning("following anew", extra={"bucket": self.bucket, "is_another": is_another})
                        return
                    continue
                silent = 0
                self.heard_at = monotonic()
                if entry is None:
                    if initial:  # what vanished while nobody watched
                        for key in self._known - seen:
                            self._tell(key, None)
                        self._known = seen
                        initial = False
                        self.loaded.set()
                    continue
                gone = entry.operation in ("DEL", "PURGE")
                if gone:
                    self._known.discard(entry.key)
                    seen.discard(entry.key)
                else:
                    self._known.add(entry.key)
                    seen.add(entry.key)
                self._tell(entry.key, None if gone else entry.value)
        finally:
            with contextlib.suppress(*BUS_AWAY):
                await watcher.stop()  # type: ignore[no-untyped-call]

    def _tell(self, key: str, value: bytes | None) -> None:
        try:
            self._changed(key, value)
        except ValueError as error:  # one unreadable entry must not end the watch: all later ones would be missed
            log.error("unreadable entry ignored", extra={"bucket": self.bucket, "key": key, "error": told(error)})


async def write_bucket(bus: Bus, bucket: str, changes: Mapping[str, bytes | None]) -> bool:
    """Put (or, for None, delete) keys of a bucket. False where the broker did not confirm all of it."""
    try:
        store = await bus.js.key_value(bucket)
        for key, value in changes.items():
            if value is None:
                await store.delete(key)
            else:
                await store.put(key, value)
    except BUS_AWAY as error:
        log.warning("bucket not written", extra={"bucket": bucket, "error": repr(error)[:200]})
        return False
    return True
