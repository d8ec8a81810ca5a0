"""Batches in memory: the part of the gateway's transaction that works them off."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tests.simulation.memory import MemoryTransaction
from trueup_gateway.core.batches import BatchState, ItemState
from trueup_gateway.core.person_records import OperatorBatchItemRow, OperatorBatchRow, OperatorCommandRow
from trueup_gateway.core.view_records import RepairView

AT_WORK = ("RUNNING", "STOPPED")
DUE_MAX = 5


class BatchMemory(MemoryTransaction):
    """Batches and their items."""

    async def save_batch(self, row: OperatorBatchRow, items: Sequence[OperatorBatchItemRow] = ()) -> None:
        """Keep a batch with its frozen selection, or what changed of it."""
        await self.touch("operator_batch", [row])
        await self.insert("operator_batch_item", list(items))

    async def batch_to_turn(self, tenant: str, batch_id: str) -> OperatorBatchRow | None:
        """One batch, locked."""
        rows = await self.get_locked("operator_batch", "batch_id", [batch_id])
        return next((row for row in rows if row.tenant == tenant), None)

    async def due_batches(self) -> list[OperatorBatchRow]:
        """Batches at work that no other worker holds."""
        taken = await self.select("operator_batch_item", lambda row: row.state == ItemState.RUNNING)
        followed = {item.batch_id for item in taken}
        return await self.select(
            "operator_batch",
            lambda row: (
                row.ended_at is None
                and (row.state in AT_WORK or (row.state == BatchState.PAUSED and row.batch_id in followed))
            ),
            order=lambda row: (row.next_at is not None, row.next_at, row.batch_id),
            limit=DUE_MAX,
            lock=True,
        )

    async def items_of(self, batch_id: str, state: str, limit: int) -> list[OperatorBatchItemRow]:
        """The first items in a state."""
        return await self.select(
            "operator_batch_item",
            lambda row: row.batch_id == batch_id and row.state == state,
            order=lambda row: row.position,
            limit=limit,
        )

    async def acts_of(self, names: Sequence[str]) -> dict[str, OperatorCommandRow]:
        """Operator commands by id."""
        rows = await self.get("operator_command", "operator_command_id", names)
        return {row.operator_command_id: row for row in rows}

    async def save_items(self, rows: Sequence[OperatorBatchItemRow]) -> None:
        """What became of items."""
        await self.touch("operator_batch_item", list(rows))

    async def skip_pending(self, batch_id: str, reason: str, at: datetime) -> None:
        """Nothing more of this batch is asked for."""
        rows = await self.items_of(batch_id, ItemState.PENDING, 1_000_000)
        await self.save_items([row.evolve(state=ItemState.SKIPPED.value, reason=reason, ended_at=at) for row in rows])

    async def open_items(self, batch_id: str) -> int:
        """How many items have not ended."""
        open_ = (ItemState.PENDING, ItemState.RUNNING)
        return len(
            await self.select("operator_batch_item", lambda row: row.batch_id == batch_id and row.state in open_)
        )

    async def repair_of(self, tenant: str, repair_id: str) -> RepairView | None:
        """One repair of the tenant."""
        rows = await self.get("repair_view", "repair_id", [repair_id])
        return next((row for row in rows if row.tenant == tenant), None)
