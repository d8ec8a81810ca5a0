"""What the adapters keep: ledger rows by operation, open rows that are due, and one compare-and-set save."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from trueup_adapters.core.effect import AttemptRow, EffectRow
from trueup_adapters.tables import ATTEMPT, EFFECT
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Transaction
from trueup_common.runtime.rows import Rows


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that one transaction changed.

    `new` rows must not exist yet, `moved` rows carry the stored version plus 1; attempts that are there already stay.
    """

    new: tuple[EffectRow, ...] = ()
    moved: tuple[EffectRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    outcomes: tuple[tuple[str, str], ...] = ()
    """(system, outcome) of the attempts that ended here, for the metrics."""


class AdaptersTransaction(Transaction, Protocol):
    """One transaction as the handlers see it."""

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """Ledger rows of these operations."""
        ...

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """`SENT` rows whose `look_at` (real time) has come, locked; those that another replica holds are left out."""
        ...

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """`SENT` rows of earlier incarnations of a process (`<process>#…`, but not `worker`), the oldest first."""
        ...

    async def save(self, changes: Changes) -> None:
        """Insert and update by compare-and-set. Raises VersionConflict where another replica was first."""
        ...


_FIXED: Final = frozenset(
    "tenant system workflow_id command_type idempotency_key payload_sha256 operation created_at".split()
)
_EFFECTS: Final = Rows(EFFECT, EffectRow, key=("command_id",), version="state_version", fixed=_FIXED)
_ATTEMPTS: Final = Rows(ATTEMPT, AttemptRow, key=("attempt_id", "status"))


ANY_OVERDUE: Final = (
    "SELECT EXISTS (SELECT 1 FROM effect WHERE status = 'SENT' AND look_at <= (SELECT clock_timestamp()))"
)
ATTEMPTS: Final = Tally("trueup_adapter_attempts", "Attempts by what they came to", ("system", "outcome"))


class SqlAdaptersTransaction(SqlTransaction):
    """The same over PostgreSQL."""

    service = "adapters"

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """Ledger rows of these operations."""
        return await _EFFECTS.get(self.connection, "command_id", command_ids)

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """Open rows that are due, locked for this transaction."""
        tail = "WHERE status = 'SENT' AND look_at <= $1 ORDER BY look_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _EFFECTS.select(self.connection, tail, now, limit)

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """Open rows of earlier incarnations, without a lock: looking harms nobody."""
        tail = "WHERE status = 'SENT' AND starts_with(worker, $1) AND worker <> $2 ORDER BY look_at LIMIT $3"
        return await _EFFECTS.select(self.connection, tail, f"{process}#", worker, limit)

    async def save(self, changes: Changes) -> None:
        """Save in a fixed order of tables, so that two batches cannot deadlock."""
        self.later(
            _EFFECTS.inserting(changes.new),
            _EFFECTS.updating(changes.moved),
            _ATTEMPTS.inserting(changes.attempts, absent_only=True),
        )
        await self.flush()  # whoever saves here reloads what was moved, so it must hear of it at once
        for system, outcome in changes.outcomes:
            self.count(ATTEMPTS, system, outcome)


def sql_store(database: Database) -> SqlStore[SqlAdaptersTransaction]:
    """The store over one database."""
    return SqlStore(database, SqlAdaptersTransaction)
