"""Publishing governance: the bucket says what the tables say, and a beat each second says which set that is.

Level-based: whatever the bucket holds is compared with the tables and corrected, so a lost or foreign entry does not
survive a second, and a start rewrites what is missing. Two workers that do this write the same.
"""

import asyncio
import contextlib
import logging
from typing import Final

from trueup_common.contracts.events import GovernanceBeat
from trueup_common.contracts.governance import GovernanceEntry, digest_of, key_of
from trueup_common.contracts.topology import GOVERNANCE_BEAT_SUBJECT, GOVERNANCE_BUCKET
from trueup_common.runtime.bus import Bus
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.governance import GovernanceWatch
from trueup_common.runtime.kv import write_bucket
from trueup_common.runtime.ports import Store, StoreBusy
from trueup_gateway.store import GatewayTransaction

log = logging.getLogger("trueup.gateway.governance")

BEAT_SECONDS: Final = 1.0


class GovernancePublisher:
    """Keeps bucket and beat true to the tables."""

    def __init__(self, *, store: Store[GatewayTransaction], bus: Bus, watch: GovernanceWatch) -> None:
        self._store = store
        self._bus = bus
        self._watch = watch
        self._wake = asyncio.Event()
        self.rounds_count = 0

    def wake(self) -> None:
        """Something changed: look now, not at the next beat."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self._wake.clear()
            try:
                await self.once()
            except StoreBusy as busy:
                log.warning("governance not published: store busy", extra={"reason": str(busy)})
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self._wake.wait())]
            await asyncio.wait(waits, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def once(self) -> None:
        """One comparison and one beat."""
        async with self._store.transaction() as tx:
            entries = {key_of(entry): entry for entry in await tx.entries()}
            epoch = await tx.epoch()
        policy = next((entry.policy_sha256 for entry in entries.values() if entry.kind == "policy"), None)
        changes = self._changes(entries)
        if changes and not await write_bucket(self._bus, GOVERNANCE_BUCKET, changes):
            return
        beat = GovernanceBeat(epoch=epoch, digest=digest_of(entries), policy_sha256=policy or "", at=real_now())
        await self._bus.send(GOVERNANCE_BEAT_SUBJECT, beat.model_dump_json().encode())
        self.rounds_count += 1

    def _changes(self, entries: dict[str, GovernanceEntry]) -> dict[str, bytes | None]:
        known = self._watch.entries
        changes: dict[str, bytes | None] = {
            key: entry.model_dump_json().encode() for key, entry in entries.items() if known.get(key) != entry
        }
        with contextlib.suppress(RuntimeError):  # the watch may change while it is read; the next round sees it
            changes.update({key: None for key in list(known) if key not in entries})
        return changes
