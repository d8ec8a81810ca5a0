"""The adapters' store in memory, and a way to run handlers without an event loop: they await nothing but the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from trueup_adapters.core.effect import AttemptRow, EffectRow, LedgerStatus
from trueup_adapters.store import Changes
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime.ports import Moment, StoreBusy, VersionConflict

T = TypeVar("T")
START = datetime(2030, 1, 1, 12, tzinfo=UTC)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a handler awaited something other than its store")


class Ledger:
    """Committed rows. `now` is real time; business time may run ahead."""

    def __init__(self) -> None:
        self.effects: dict[str, EffectRow] = {}
        self.attempts: dict[tuple[str, str], AttemptRow] = {}
        self.posted: list[Message] = []
        self.now = START
        self.ahead = timedelta()
        self.asked_at_seconds: float | None = None
        self.lose_commits = 0
        self.conflicts = 0
        self.presumes = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LedgerTransaction]:
        """All or nothing; `lose_commits` transactions are kept although their caller hears that they failed."""
        tx = LedgerTransaction(self)
        yield tx
        tx.commit()
        if self.lose_commits:
            self.lose_commits -= 1
            raise StoreBusy("the connection was lost while committing")


class LedgerTransaction:
    """One transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.changes: list[Changes] = []
        self.outgoing: list[Outgoing] = []

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        """The moment; there is no inbox."""
        assert not message_ids
        asked = self.ledger.asked_at_seconds
        return Moment(self.ledger.now + self.ledger.ahead, self.ledger.now, asked), frozenset()

    def presume(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]] | None:
        """The moment, where this ledger lets its handlers presume."""
        if not self.ledger.presumes:
            return None
        asked = self.ledger.asked_at_seconds
        return Moment(self.ledger.now + self.ledger.ahead, self.ledger.now, asked, presumed=True), frozenset()

    def foresee_effects(self, command_ids: Sequence[str]) -> None:
        """Reads cost nothing here."""

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        """To the outbox."""
        self.outgoing += outgoing

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        """Not expected here."""
        raise AssertionError(f"quarantined {message.id}: {reason}")

    async def count_failure(self, consumer: str, message_id: str) -> int:
        """Not expected here."""
        raise AssertionError(f"failed {message_id}")

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """Committed rows."""
        return [self.ledger.effects[key] for key in command_ids if key in self.ledger.effects]

    async def holders(
        self, system: str, objects: Sequence[tuple[str, str]], now: datetime
    ) -> dict[tuple[str, str], set[str]]:
        """By the committed rows: here nobody else is in the middle of anything."""
        found: dict[tuple[str, str], set[str]] = {key: set() for key in objects}
        for row in self.ledger.effects.values():
            key = (row.tenant, row.object_key or "")
            is_open = row.status in (LedgerStatus.SENT, LedgerStatus.UNKNOWN)
            if key in found and row.system == system and is_open and row.late_until and row.late_until > now:
                found[key].add(row.command_id)
        return found

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """Open rows that are due."""
        rows = [row for row in self.ledger.effects.values() if row.status is LedgerStatus.SENT]
        return [row for row in rows if row.look_at is not None and row.look_at <= now][:limit]

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """Open rows of earlier incarnations."""
        rows = [row for row in self.ledger.effects.values() if row.status is LedgerStatus.SENT]
        return [row for row in rows if (row.worker or "").startswith(f"{process}#") and row.worker != worker][:limit]

    async def save(self, changes: Changes) -> None:
        """Checked at once, kept at commit."""
        stored = self.ledger.effects
        if any(row.command_id in stored or row.state_version != 1 for row in changes.new):
            self.ledger.conflicts += 1
            raise VersionConflict("effect exists")
        for row in changes.moved:
            if row.command_id not in stored or stored[row.command_id].state_version != row.state_version - 1:
                self.ledger.conflicts += 1
                raise VersionConflict("effect moved")
        self.changes.append(changes)

    def commit(self) -> None:
        """Keep everything."""
        for changes in self.changes:
            for row in (*changes.new, *changes.moved):
                # Through JSON and back, as the database does it: nothing may live only in memory.
                self.ledger.effects[row.command_id] = EffectRow.model_validate_json(row.model_dump_json())
            for attempt in changes.attempts:
                again = AttemptRow.model_validate_json(attempt.model_dump_json())
                self.ledger.attempts.setdefault((attempt.attempt_id, attempt.status), again)
        self.ledger.posted += [item.message for item in self.outgoing]
