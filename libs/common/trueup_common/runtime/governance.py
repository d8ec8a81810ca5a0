"""The governance watch: revocations, freezes and the policy in force, as every service sees them.

A beat each second carries epoch and digest of the active set. A mismatch that lasts, or five seconds of silence, is
*stale*: high risk is refused, low risk goes on.
"""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trueup_common.contracts.events import GovernanceBeat
from trueup_common.contracts.governance import POLICY, STALE_AFTER_SECONDS, GovernanceEntry, digest_of, held_by, key_of
from trueup_common.contracts.topology import GOVERNANCE_BEAT_SUBJECT, GOVERNANCE_BUCKET
from trueup_common.runtime.bus import Bus, CoreMessage
from trueup_common.runtime.clock import monotonic, real_now
from trueup_common.runtime.kv import BucketWatch

log = logging.getLogger("trueup.governance")


class GovernanceWatch:
    """What is revoked and frozen right now. Pure look-ups on memory; a doubt shows as `stale`."""

    def __init__(self) -> None:
        self.entries: dict[str, GovernanceEntry] = {}
        self.epoch = 0
        self.policy_sha256 = ""
        self._agreed_at = 0.0
        self._watch: BucketWatch | None = None

    async def follow(self, bus: Bus) -> None:
        """Load the bucket, follow it and listen to the beat."""
        self._watch = BucketWatch(bus, GOVERNANCE_BUCKET, self.changed)
        await self._watch.start()
        await bus.listen(GOVERNANCE_BEAT_SUBJECT, self._beat)

    @property
    def watch(self) -> BucketWatch | None:
        """The watch, for readiness."""
        return self._watch

    def changed(self, key: str, value: bytes | None) -> None:
        """Take over one change of the bucket."""
        if value is None:
            self.entries.pop(key, None)
            return
        try:
            entry = GovernanceEntry.model_validate_json(value)
        except ValidationError:
            log.error("unreadable governance entry", extra={"key": key})
            return
        self.entries[key_of(entry)] = entry

    async def _beat(self, raw: CoreMessage) -> None:
        try:
            self.agree(GovernanceBeat.model_validate_json(raw.data))
        except ValidationError:
            log.error("unreadable governance beat")

    def agree(self, beat: GovernanceBeat) -> None:
        """Compare a beat with what is known here."""
        self.epoch = max(self.epoch, beat.epoch)
        self.policy_sha256 = beat.policy_sha256
        if beat.digest == digest_of(self.entries):
            self._agreed_at = monotonic()

    @property
    def stale(self) -> bool:
        """True where nothing confirmed the active set within the bound."""
        return monotonic() - self._agreed_at > STALE_AFTER_SECONDS

    @property
    def quiet(self) -> bool:
        """True where nothing at all is revoked or frozen, as nearly always."""
        return all(entry.kind == POLICY for entry in self.entries.values())

    def revoked(self, kind: str, object_id: str | None) -> bool:
        """True where a decision, capability or mandate (`kind`) is revoked."""
        return object_id is not None and f"revoked_{kind}.{object_id}" in self.entries

    def freeze_of(self, fields: Mapping[str, Any], *, compensation: bool = False) -> GovernanceEntry | None:
        """The freeze that holds back an effect with these fields, if any."""
        held = [(e.kind, key, e.scope, e.expires_at) for key, e in self.entries.items() if e.scope is not None]
        found = held_by(held, fields, real_now(), compensation=compensation) if held else None
        return self.entries[found] if found is not None else None
