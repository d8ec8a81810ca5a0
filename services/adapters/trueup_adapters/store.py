"""What the adapters keep: ledger rows by operation, open rows that are due, one compare-and-set save; and documents."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

from trueup_adapters.columns import EFFECT_FIXED
from trueup_adapters.core.document import DocumentRow
from trueup_adapters.core.effect import AttemptRow, EffectRow
from trueup_common.contracts.adapter import Document, DocumentsAway
from trueup_common.contracts.shape import record
from trueup_common.runtime.db import Connection, Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import StoreBusy, Transaction
from trueup_common.runtime.rows import Rows


@record
class Changes:
    """Everything that one transaction changed.

    `new` rows must not exist yet, `moved` rows carry the stored version plus 1; attempts that are there already stay.
    """

    new: tuple[EffectRow, ...] = ()
    moved: tuple[EffectRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    outcomes: tuple[tuple[str, str], ...] = ()
    """(system, outcome) of the attempts that ended here, for the metrics."""


ObjectKey: TypeAlias = tuple[str, str]
"""(tenant, object) within one system."""
SOMEBODY: Final = "somebody"
"""Stands for the operation of a transaction under way, which nobody else can read."""


class AdaptersTransaction(Transaction, Protocol):
    """One transaction as the handlers see it."""

    def foresee_effects(self, command_ids: Sequence[str]) -> None:
        """The ledger rows of these operations will be asked for."""
        ...

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """Ledger rows of these operations."""
        ...

    async def holders(self, system: str, objects: Sequence[ObjectKey], now: datetime) -> dict[ObjectKey, set[str]]:
        """The operations that have these objects alone: an attempt of theirs may still act. Waits for nobody.

        Until this transaction ends, nobody else can begin one on an object that it was told of.
        """
        ...

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """`SENT` rows whose `look_at` (real time) has come, locked; those that another replica holds are left out."""
        ...

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """`SENT` rows of earlier incarnations of a process (`<process>#…`, but not `worker`), the oldest first."""
        ...

    async def save(self, changes: Changes) -> None:
        """Insert and update by compare-and-set, at the latest with the commit.

        Where another replica was first, the transaction ends with VersionConflict.
        """
        ...


_EFFECTS: Final = Rows("adapters.effect", EffectRow, key=("command_id",), version="state_version", fixed=EFFECT_FIXED)
_ATTEMPTS: Final = Rows("adapters.attempt", AttemptRow, key=("attempt_id", "status"))


_THERE: Final = "SELECT command_id FROM effect WHERE command_id = ANY($1::text[])"
ANY_OVERDUE: Final = (
    "SELECT EXISTS (SELECT 1 FROM effect WHERE status = 'SENT' AND look_at <= (SELECT clock_timestamp()))"
)
_TAKE: Final = """
SELECT t, o FROM unnest($2::text[], $3::text[]) AS named (t, o)
WHERE pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array('adapters.object', $1::text, t, o)::text, 0))
"""
_HOLDERS: Final = """
SELECT tenant, object_key, command_id FROM effect
WHERE system = $1 AND (tenant, object_key) IN (SELECT * FROM unnest($2::text[], $3::text[]))
  AND object_key IS NOT NULL AND status IN ('SENT', 'UNKNOWN') AND late_until > $4
"""
ATTEMPTS: Final = Tally("trueup_adapter_attempts", "Attempts by what they came to", ("system", "outcome"))


class SqlAdaptersTransaction(SqlTransaction):
    """The same over PostgreSQL."""

    service = "adapters"

    def foresee_effects(self, command_ids: Sequence[str]) -> None:
        """The ledger rows of these operations will be asked for."""
        self.foresee(_THERE, list(command_ids))

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """Ledger rows of these operations. Most tasks are new, and the claim has told already that there is no row."""
        there = await self.ask(_THERE, list(command_ids)) if self.foreseen(_THERE, list(command_ids)) else [{}]
        return await _EFFECTS.get(self.reading, "command_id", command_ids) if there else []

    async def holders(self, system: str, objects: Sequence[ObjectKey], now: datetime) -> dict[ObjectKey, set[str]]:
        """First the locks, then the rows: what was committed under a lock is seen by who has it next. A lock that
        somebody has is not waited for, so that no two batches can deadlock."""
        tenants, names = [tenant for tenant, _ in objects], [name for _, name in objects]
        taken = {(row["t"], row["o"]) for row in await self.connection.fetch(_TAKE, system, tenants, names)}
        found: dict[ObjectKey, set[str]] = {key: set() if key in taken else {SOMEBODY} for key in objects}
        for row in await self.connection.fetch(_HOLDERS, system, tenants, names, now):
            found[row["tenant"], row["object_key"]].add(row["command_id"])
        return found

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """Open rows that are due, locked for this transaction."""
        tail = "WHERE status = 'SENT' AND look_at <= $1 ORDER BY look_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _EFFECTS.select(self.connection, tail, now, limit)

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """Open rows of earlier incarnations, without a lock: looking harms nobody."""
        tail = "WHERE status = 'SENT' AND starts_with(worker, $1) AND worker <> $2 ORDER BY look_at LIMIT $3"
        return await _EFFECTS.select(self.reading, tail, f"{process}#", worker, limit)

    async def save(self, changes: Changes) -> None:
        """Save in a fixed order of tables, so that two batches cannot deadlock."""
        self.later(
            _EFFECTS.inserting(changes.new),
            _EFFECTS.updating(changes.moved),
            _ATTEMPTS.inserting(changes.attempts, absent_only=True),
        )
        for system, outcome in changes.outcomes:
            self.count(ATTEMPTS, system, outcome)


def sql_store(database: Database) -> SqlStore[SqlAdaptersTransaction]:
    """The store over one database."""
    return SqlStore(database, SqlAdaptersTransaction)


_DOCUMENTS: Final = Rows("adapters.document", DocumentRow, key=("operation_id",))
_PUT: Final = """
INSERT INTO document (tenant, system, operation_id, key, content, created_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp()) ON CONFLICT DO NOTHING
"""
_REMOVE: Final = """
UPDATE document SET removed_by = $4, removed_at = clock_timestamp()
WHERE tenant = $1 AND system = $2 AND operation_id = $3 AND removed_by IS NULL
"""


class SqlDocuments:
    """Documents over the adapters' own table. Each change is one statement, and so one commit with its operation id."""

    def __init__(self, database: Database, tenant: str, system: str) -> None:
        self._database = database
        self._whose = (tenant, system)

    async def get(self, key: str) -> Document | None:
        """The document that stands under a key."""
        return await self._one("key = $3 AND removed_by IS NULL", key)

    async def made_by(self, operation_id: str) -> Document | None:
        """The document that an operation put."""
        return await self._one("operation_id = $3", operation_id)

    async def removed_by(self, operation_id: str) -> Document | None:
        """The document that an operation removed."""
        return await self._one("removed_by = $3", operation_id)

    async def standing(self) -> Sequence[Document]:
        """All documents that stand."""
        return await self._read("removed_by IS NULL ORDER BY key")

    async def put(
        self, key: str, content: Mapping[str, Any], *, operation_id: str, may_send: Callable[[], None]
    ) -> Document:
        """Put a document, or answer the one that keeps it out."""
        await self._change(_PUT, operation_id, key, dict(content), may_send=may_send)
        found = await self._after(self.made_by(operation_id)) or await self._after(self.get(key))
        if found is None:  # the other's document was removed between the two statements
            raise DocumentsAway("the key was taken and is free again", sent=True)
        return found

    async def remove(self, document: Document, *, operation_id: str, may_send: Callable[[], None]) -> Document:
        """Remove exactly this document."""
        await self._change(_REMOVE, document.operation_id, operation_id, may_send=may_send)
        found = await self._after(self.made_by(document.operation_id))
        if found is None:
            raise DocumentsAway("the document is not there any more", sent=True)
        return found

    async def _change(self, statement: str, *values: Any, may_send: Callable[[], None]) -> None:
        sent = False
        try:
            async with self._database.connection() as connection:
                may_send()
                sent = True
                await connection.execute(statement, *self._whose, *values)
        except StoreBusy as busy:
            raise DocumentsAway(str(busy), sent=sent) from busy

    async def _one(self, condition: str, value: str) -> Document | None:
        found = await self._read(condition, value)
        return found[0] if found else None

    async def _read(self, condition: str, *values: str) -> list[Document]:
        async with self._reading() as connection:
            tail = f"WHERE tenant = $1 AND system = $2 AND {condition}"
            return [row.document for row in await _DOCUMENTS.select(connection, tail, *self._whose, *values)]

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        try:
            async with self._database.connection() as connection:
                yield connection
        except StoreBusy as busy:
            raise DocumentsAway(str(busy), sent=False) from busy

    async def _after(self, reading: Any) -> Document | None:
        """A read that follows a change: where it fails, the change may stand."""
        try:
            found: Document | None = await reading
        except DocumentsAway as away:
            raise DocumentsAway(str(away), sent=True) from away
        return found
