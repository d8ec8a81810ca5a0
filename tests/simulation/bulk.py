"""Operators who act in bulk: a frozen selection, a rate, a pause, a stop; the gateway's own worker works it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.desks import at_gateway
from tests.simulation.engine import Process
from tests.simulation.naming import next_id
from trueup_common.contracts.operators import OperatorAction
from trueup_gateway.core.batches import TABLE, BatchState, Turn
from trueup_gateway.core.person_records import OperatorBatchItemRow, OperatorBatchRow

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

A = OperatorAction
ACTIONS: Final = (A.REDRIVE, A.REDRIVE, A.RECONCILE, A.RETRY, A.REPAIR, A.ESCALATE, A.ASSIGN)
BATCHES_MAX: Final = 3
"""How many batches one seed has, at most."""
ITEMS_MAX: Final = 20


class Bulk:
    """Somebody who begins batches, and turns them."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.engine = plane.engine

    async def look(self) -> None:
        """Begin a batch, or turn one that is there. Once the world is well, what was begun is ended."""
        rows = [row for row in self.plane.databases["gateway"].rows("operator_batch") if row.ended_at is None]
        if rows and (self.plane.healed or self.engine.chance(0.6)):
            row = rows[self.engine.below(len(rows))]
            turns = (Turn.START, Turn.STOP) if self.plane.healed else (Turn.START, Turn.START, Turn.PAUSE, Turn.STOP)
            turn = turns[self.engine.below(len(turns))]
            await at_gateway(self.plane, lambda process: self._turn(process, row.tenant, row.batch_id, turn))
        elif not self.plane.healed and len(self.plane.databases["gateway"].rows("operator_batch")) < BATCHES_MAX:
            await at_gateway(self.plane, self._begin)

    async def _begin(self, process: Process) -> None:
        engine = self.engine
        action = ACTIONS[engine.below(len(ACTIONS))]
        async with self.plane.gateways[process.name][0].transaction() as tx:
            now = (await tx.moment()).business
            views = await tx.select(
                "exception_view",
                lambda row: row.status == "open",
                order=lambda row: (row.opened_at, row.exception_id),
            )
            if not views:
                return
            tenant = views[engine.below(len(views))].tenant
            chosen = [view for view in views if view.tenant == tenant and engine.chance(0.8)][:ITEMS_MAX]
            preview = engine.chance(0.3)
            row = OperatorBatchRow(
                batch_id=next_id(engine, "bat"),
                tenant=tenant,
                action=action.value,
                params={"owner": "team-1"} if action is A.ASSIGN else {},
                reason="simulated",
                created_by=f"operator:bob@{tenant}",
                actor=f"operator:bob@{tenant}",
                roles=["operator"],
                decision_id=next_id(engine, "dec"),
                rate_per_second=(0.2, 1.0, 50.0)[engine.below(3)],
                state=BatchState.PREVIEW.value if preview else BatchState.RUNNING.value,
                total=len(chosen),
                created_at=now,
                started_at=None if preview else now,
            )
            await tx.save_batch(row, [_item(row, position, view) for position, view in enumerate(chosen, 1)])
        engine.injected["a batch of acts"] += 1
        engine.note(f"batch {row.batch_id}: {row.action} of {row.total}")

    async def _turn(self, process: Process, tenant: str, batch_id: str, turn: Turn) -> None:
        async with self.plane.gateways[process.name][0].transaction() as tx:
            row = await tx.batch_to_turn(tenant, batch_id)
            after = TABLE.get((BatchState(row.state), turn))
            if after is None or row.ended_at is not None:
                return
            if after is BatchState.STOPPED:
                await tx.skip_pending(batch_id, "stopped by operator:bob", (await tx.moment()).business)
            started_at = (await tx.moment()).business if turn is Turn.START else row.started_at
            await tx.save_batch(row.evolve(state=after.value, started_at=started_at))
        self.engine.note(f"batch {batch_id}: {turn} -> {after}")


def _item(row: OperatorBatchRow, position: int, view: Any) -> OperatorBatchItemRow:
    return OperatorBatchItemRow(
        batch_id=row.batch_id,
        position=position,
        tenant=row.tenant,
        exception_id=view.exception_id,
        workflow_id=view.workflow_id,
        command_id=view.command_id,
    )
