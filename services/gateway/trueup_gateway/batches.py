"""The worker's part of batches: takes items at the batch's rate, each admitted as an operator command of its own.

A batch is rows: whichever worker is alive goes on with it, and an item that was refused takes nothing else down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trueup_common.contracts.envelope import Outgoing
from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.ports import Moment
from trueup_gateway.api.acts import telling
from trueup_gateway.api.operators import OperatorCommandRequest, TargetWanted, admit
from trueup_gateway.core.batches import (
    AUTHORITY_HOURS,
    ITSELF,
    TABLE,
    TRAIL_MAX,
    BatchState,
    ItemState,
    Turn,
    ended_as,
    lapsed,
    paced,
    turned,
)
from trueup_gateway.core.person_records import OperatorBatchItemRow, OperatorBatchRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.rules import RuleBook
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

RUNNING_MAX = 500
"""How many items of one batch are at work at once, at most."""


@dataclass(slots=True)
class _Unasked:
    """What an act that no request carries has of a request."""

    scope: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Batches:
    """Works batches off."""

    rules: RuleBook
    catalog: Catalog
    payloads: PayloadSchemas = field(default_factory=PayloadSchemas)

    async def tick(self, tx: GatewayTransaction, moment: Moment) -> Sequence[Outgoing]:
        """One look at every batch at work."""
        outgoing: list[Outgoing] = []
        for batch in await tx.due_batches():
            await tx.save_batch(await self._look(tx, moment, batch, outgoing))
        return outgoing

    async def _look(
        self, tx: GatewayTransaction, moment: Moment, batch: OperatorBatchRow, outgoing: list[Outgoing]
    ) -> OperatorBatchRow:
        """The batch after one look: what ended, what is asked for next, and whether that was all."""
        running = await self._follow(tx, moment, batch)
        if batch.state == BatchState.RUNNING and lapsed(batch.started_at, moment.business):
            batch = _paused(batch, moment)
        if batch.state == BatchState.RUNNING:
            batch = await self._take(tx, moment, batch, RUNNING_MAX - running, outgoing)
        else:
            batch = batch.evolve(next_at=moment.real)  # behind all that were not looked at since: none starves another
        if await tx.open_items(batch.batch_id):
            return batch
        over = TABLE.get((BatchState(batch.state), Turn.FINISH), BatchState(batch.state))
        ended: OperatorBatchRow = batch.evolve(state=over, ended_at=moment.business)
        return ended

    async def _follow(self, tx: GatewayTransaction, moment: Moment, batch: OperatorBatchRow) -> int:
        """Take over how the acts at work ended; answers how many still are."""
        items = await tx.items_of(batch.batch_id, ItemState.RUNNING, RUNNING_MAX)
        acts = await tx.acts_of([item.operator_command_id for item in items if item.operator_command_id is not None])
        ended: list[OperatorBatchItemRow] = []
        for item in items:
            act = acts.get(item.operator_command_id or "")
            came_to = ended_as(act.state, act.detail, act.result) if act is not None else None
            if came_to is not None:
                state, reason = came_to
                ended.append(item.evolve(state=state, reason=reason, ended_at=moment.business))
        await tx.save_items(ended)
        return len(items) - len(ended)

    async def _take(
        self, tx: GatewayTransaction, moment: Moment, batch: OperatorBatchRow, room: int, outgoing: list[Outgoing]
    ) -> OperatorBatchRow:
        count, next_at = paced(batch.next_at, batch.rate_per_second, moment.real)
        items = await tx.items_of(batch.batch_id, ItemState.PENDING, min(count, max(room, 0)))
        await tx.save_items([await self._ask(tx, moment, batch, item, outgoing) for item in items])
        paced_batch: OperatorBatchRow = batch.evolve(next_at=next_at)
        return paced_batch

    async def _ask(
        self,
        tx: GatewayTransaction,
        moment: Moment,
        batch: OperatorBatchRow,
        item: OperatorBatchItemRow,
        outgoing: list[Outgoing],
    ) -> OperatorBatchItemRow:
        """One item at its turn: asked for, or skipped with the reason."""
        caller = Caller(batch.actor, batch.tenant, tuple(batch.roles), tuple(batch.scopes), 0, 0)
        wanted = OperatorCommandRequest(
            action=batch.action,
            target=TargetWanted(kind="exception", id=item.exception_id),
            reason=batch.reason,
            evidence=batch.evidence,
            params=batch.params,
        )
        try:
            async with tx.apart():
                row, asked = await admit(self, tx, caller, _Unasked(), wanted, batch_id=batch.batch_id)
        except Refused as refused:
            reason = f"{refused.problem.slug}: {refused.detail}"
            skipped: OperatorBatchItemRow = item.evolve(
                state=ItemState.SKIPPED, reason=reason[:500], ended_at=moment.business
            )
            return skipped
        outgoing.append(telling(asked, "operator", batch.tenant, asked.operator_command_id, moment, None))
        taken: OperatorBatchItemRow = item.evolve(state=ItemState.RUNNING, operator_command_id=row.operator_command_id)
        return taken


def _paused(batch: OperatorBatchRow, moment: Moment) -> OperatorBatchRow:
    """A batch that waits for somebody: the authority of its last start is over."""
    reason = f"{batch.actor} started it more than {AUTHORITY_HOURS} hours ago: start it again to go on"
    after = TABLE[BatchState.RUNNING, Turn.PAUSE]
    entry = turned(Turn.PAUSE, after, ITSELF, reason, None, moment.business)
    waiting: OperatorBatchRow = batch.evolve(state=after, trail=[*batch.trail, entry][-TRAIL_MAX:])
    return waiting
