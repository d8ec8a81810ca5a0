"""SQL of batches: rows that outlive whoever asked. A worker holds a batch for one tick; others leave it to that one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.person_records import OperatorBatchItemRow, OperatorBatchRow, OperatorCommandRow
from trueup_gateway.core.view_records import ExceptionView
from trueup_gateway.store.operators import OPERATOR_COMMANDS
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import EXCEPTIONS, Page, Reader, before

BATCHES: Final = Rows("gateway.operator_batch", OperatorBatchRow, key=("batch_id",))
ITEMS: Final = Rows("gateway.operator_batch_item", OperatorBatchItemRow, key=("batch_id", "position"))

_SELECTION: Final = (
    "WHERE tenant = $1 AND status = 'open' AND ($2::text IS NULL OR kind = $2) AND ($3::text IS NULL OR owner = $3) "
    "AND ($4::text IS NULL OR failure_class = $4 OR envelope->>'failure_code' = $4) "
    "AND ($5::text IS NULL OR envelope->>'target_system' = $5) AND ($6::text IS NULL OR incident_id = $6) "
    "AND ($7::timestamptz IS NULL OR opened_at < $7) AND ($8::timestamptz IS NULL OR opened_at >= $8) "
    "ORDER BY opened_at, exception_id LIMIT $9"
)
_AT_WORK: Final = (
    "WHERE ended_at IS NULL AND (state IN ('RUNNING', 'STOPPED') OR (state = 'PAUSED' AND EXISTS ("
    "SELECT 1 FROM gateway.operator_batch_item AS i WHERE i.batch_id = operator_batch.batch_id AND i.state = 'RUNNING')"
    "))"
)
"""Batches that take items, and those whose items at work still have an end to be told."""
_DUE: Final = f"{_AT_WORK} ORDER BY next_at NULLS FIRST, batch_id LIMIT 5 FOR UPDATE SKIP LOCKED"
ANY_DUE: Final = f"SELECT EXISTS (SELECT 1 FROM gateway.operator_batch {_AT_WORK})"


class BatchSql(SqlTransaction):
    """The writes of batches."""

    async def selection(  # noqa: PLR0917 - one criterion each
        self,
        tenant: str,
        kind: str | None,
        owner: str | None,
        cause: str | None,
        system: str | None,
        incident_id: str | None,
        opened_before: datetime | None,
        opened_after: datetime | None,
        limit: int,
    ) -> list[ExceptionView]:
        """Open exceptions, oldest first."""
        return await EXCEPTIONS.select(
            self.connection,
            _SELECTION,
            tenant,
            kind,
            owner,
            cause,
            system,
            incident_id,
            opened_before,
            opened_after,
            limit,
        )

    async def save_batch(self, row: OperatorBatchRow, items: Sequence[OperatorBatchItemRow] = ()) -> None:
        """Keep a batch with its frozen selection, or what changed of it."""
        await BATCHES.upsert(self.connection, [row])
        if items:
            await ITEMS.insert(self.connection, items)

    async def batch_to_turn(self, tenant: str, batch_id: str) -> OperatorBatchRow | None:
        """One batch, locked."""
        tail = "WHERE batch_id = $1 AND tenant = $2 FOR UPDATE"
        return next(iter(await BATCHES.select(self.connection, tail, batch_id, tenant)), None)

    async def due_batches(self) -> list[OperatorBatchRow]:
        """Batches at work that no other worker holds."""
        return await BATCHES.select(self.connection, _DUE)

    async def items_of(self, batch_id: str, state: str, limit: int) -> list[OperatorBatchItemRow]:
        """The first items in a state."""
        tail = "WHERE batch_id = $1 AND state = $2 ORDER BY position LIMIT $3"
        return await ITEMS.select(self.connection, tail, batch_id, state, limit)

    async def acts_of(self, names: Sequence[str]) -> dict[str, OperatorCommandRow]:
        """Operator commands by id."""
        found = await OPERATOR_COMMANDS.get(self.connection, "operator_command_id", sorted(names))
        return {row.operator_command_id: row for row in found}

    async def save_items(self, rows: Sequence[OperatorBatchItemRow]) -> None:
        """What became of items."""
        if rows:
            await ITEMS.upsert(self.connection, rows)

    async def skip_pending(self, batch_id: str, reason: str, at: datetime) -> None:
        """Nothing more of this batch is asked for."""
        await self.connection.execute(
            "UPDATE gateway.operator_batch_item SET state = 'SKIPPED', reason = $2, ended_at = $3 "
            "WHERE batch_id = $1 AND state = 'PENDING'",
            batch_id,
            reason,
            at,
        )

    async def open_items(self, batch_id: str) -> int:
        """How many items have not ended."""
        return int(
            await self.connection.fetchval(
                "SELECT count(*) FROM gateway.operator_batch_item WHERE batch_id = $1 "
                "AND state IN ('PENDING', 'RUNNING')",
                batch_id,
            )
        )


class BatchReads(Reads):
    """Reads of batches."""

    async def batch(self, reader: Reader, batch_id: str) -> OperatorBatchRow | None:
        """One batch."""
        async with self._connection() as connection:
            tail = "WHERE batch_id = $1 AND tenant = $2 AND ($3::text IS NULL OR actor = $3)"
            rows = await BATCHES.select(connection, tail, batch_id, reader.tenant, reader.subject)
        return next(iter(rows), None)

    async def batches(self, reader: Reader, page: Page) -> list[OperatorBatchRow]:
        """A page of batches, newest first."""
        async with self._search() as connection:
            return await BATCHES.select(
                connection,
                "WHERE tenant = $1 AND ($2::text IS NULL OR actor = $2) "
                "AND ($3::timestamptz IS NULL OR (created_at, batch_id) < ($3, $4)) "
                "ORDER BY created_at DESC, batch_id DESC LIMIT $5",
                reader.tenant,
                reader.subject,
                *before(page),
                page.limit,
            )

    async def batch_counts(self, batch_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many items of each batch are in which state."""
        async with self._connection() as connection:
            rows: list[Any] = await connection.fetch(
                "SELECT batch_id, state, count(*) AS items FROM gateway.operator_batch_item "
                "WHERE batch_id = ANY($1::text[]) GROUP BY batch_id, state",
                list(batch_ids),
            )
        found: dict[str, dict[str, int]] = {}
        for row in rows:
            found.setdefault(row["batch_id"], {})[row["state"]] = row["items"]
        return found

    async def batch_items(self, batch_id: str, after: int, limit: int, state: str | None) -> list[OperatorBatchItemRow]:
        """Items of a batch in their order, after a position."""
        async with self._connection() as connection:
            tail = (
                "WHERE batch_id = $1 AND position > $2 AND ($3::text IS NULL OR state = $3) ORDER BY position LIMIT $4"
            )
            return await ITEMS.select(connection, tail, batch_id, after, state, limit)
