"""Carrying repairs out: due repairs are claimed, asked for at the gateway outside of any transaction, and settled.

A claim is a lease in the row. Whoever dies between asking and settling is followed by another who asks again under the
same key: what was accepted is found, never done twice.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from trueup_common.contracts.envelope import Outgoing
from trueup_common.runtime.ports import CrashPoints, Publisher, Store, StoreBusy
from trueup_repair_planner.core import course
from trueup_repair_planner.core import repair as repairs
from trueup_repair_planner.core.calls import Answer, Call, Outcome, answered, call, first, look, miss_of, put_off
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.core.plan import PLANNER
from trueup_repair_planner.core.repair import RepairRow, Status, Step
from trueup_repair_planner.desk import Desk, Rules
from trueup_repair_planner.handler import desk_of, keep
from trueup_repair_planner.store import PlannerTransaction

log = logging.getLogger("trueup.planner.execution")

STARTS_PER_TICK: Final = 5
"""With one tick a second, the rate at which repairs begin."""
LOOKS_PER_TICK: Final = 20
INTERVAL_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 2.0
LOOK_SECONDS_MAX: Final = 30.0
SETTLE_TRIES: Final = 5
_BEGINS: Final = (Status.PLANNED, Status.EXECUTING, Status.WAITING_APPROVAL)
STATE_MOVED: Final = frozenset({"action-not-available"})
"""Refusals that speak of the state, not of permission: what comes next is planned by the state that is told."""

T = TypeVar("T", bound=PlannerTransaction)


class Gateway(Protocol):
    """The gateway as the planner reaches it; nothing is known where it answers with status 0."""

    async def send(self, asked: Call) -> Answer:
        """One request, never repeated by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A claimed repair and what came of its turn: an outcome, or what was seen of its command."""

    repair: RepairRow
    outcome: Outcome | None = None
    seen: Answer | None = None


class Execution:
    """Repairs whose time has come. Without a gateway nothing begins: what is planned waits, visibly."""

    def __init__(
        self,
        *,
        store: Store[Any],
        publisher: Publisher,
        crash: CrashPoints,
        rules: Rules,
        gateway: Gateway | None,
        due: Any = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._crash = crash
        self._rules = rules
        self._gateway = gateway
        self._due = due
        self.turns_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop."""
        while not stop.is_set():
            try:
                await self.once()
            except StoreBusy as busy:
                log.info("store busy, looking again", extra={"reason": str(busy)})
            except Exception:  # the boundary: what was claimed has its lease, so the others go on meanwhile
                log.exception("a round of repairs failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await stop.wait()

    async def once(self) -> int:
        """One round; answers how many repairs had their turn."""
        if self._gateway is None or (self._due is not None and not await self._due()):
            return 0
        claimed = await self._claim()
        if not claimed:
            return 0
        self._crash.reach("planner-repairs.claimed")
        turns = await asyncio.gather(*(self._guarded(repair) for repair in claimed))
        self._crash.reach("planner-repairs.asked")
        await self._settled(turns)
        self.turns_count += len(turns)
        return len(turns)

    async def _claim(self) -> list[RepairRow]:
        claimed: list[str] = []
        async with self._store.transaction() as tx:
            moment, _ = await tx.claim("planner-repairs", [])
            due = await tx.due_repairs(moment.business, [Status.VERIFYING], LOOKS_PER_TICK)
            due += await tx.due_repairs(moment.business, _BEGINS, STARTS_PER_TICK)
            desk = await desk_of(tx, moment, self._rules, due)
            for repair in due:
                row = desk.exceptions[repair.exception_id]
                if row.status == "closed":
                    desk.put(*course.closed(row, repair, desk.now))
                elif self._claimed(desk, row, repair):
                    claimed.append(repair.repair_id)
            outgoing, rows = await _keep(tx, desk)
        await self._publish(outgoing)
        return [rows[name] for name in claimed]

    def _claimed(self, desk: Desk, row: ExceptionRow, repair: RepairRow) -> bool:
        """True where the repair has its turn now."""
        lease = desk.now + timedelta(seconds=LEASE_SECONDS)
        if repair.status is not Status.VERIFYING:
            until = repair.verify_until
            if until is None or until <= desk.now:
                until = desk.now + timedelta(seconds=repair.verify_seconds)
            begun = repairs.advance(repair, Step.BEGIN, desk.now, PLANNER, due_at=lease, verify_until=until)
            desk.put(course.mirror(row, begun), begun)
            return True
        until = repair.verify_until or desk.now
        seen = until > desk.now and look(repair) is not None
        later = until if until > desk.now else None  # what is late is told as such by a timer of its own
        desk.put(row, repair.evolve(due_at=lease if seen else later))
        return seen

    async def _guarded(self, repair: RepairRow) -> Turn:
        """Its turn; what cannot even be asked is put off like any silence, and holds nothing else up."""
        try:
            return await self._turn(repair)
        except Exception:  # the boundary: at the limit of how often it may be put off a person gets it
            log.exception("a repair could not be asked for", extra={"repair_id": repair.repair_id})
            return Turn(repair, outcome=None if repair.status is Status.VERIFYING else put_off(repair, "turn_failed"))

    async def _turn(self, repair: RepairRow) -> Turn:
        assert self._gateway is not None
        if repair.status is Status.VERIFYING:
            asked = look(repair)
            assert asked is not None
            return Turn(repair, seen=await self._gateway.send(asked))
        known: dict[str, Any] = {}
        if repair.decision_id is not None:
            known = {"decision_id": repair.decision_id, "approval_id": repair.approval_id}
        following = first(repair)
        while True:
            answer = await self._gateway.send(call(repair, following, known))
            self._crash.reach(f"planner-repairs.{following.value}")
            try:
                found = answered(repair, following, known, answer)
            except KeyError as missing:
                found = put_off(repair, f"answer_without_{missing.args[0]}")
            if isinstance(found, Outcome):
                return Turn(repair, outcome=found)
            following = found

    async def _settled(self, turns: Sequence[Turn]) -> None:
        """Settle, also where the news of what was accepted is being folded at the same moment."""
        for number in range(1, SETTLE_TRIES + 1):
            try:
                await self._settle(turns)
                return
            except StoreBusy:
                if number == SETTLE_TRIES:
                    raise  # the lease ends, and the same question gets the same answer
            except Exception:
                if len(turns) == 1:
                    raise
                log.exception("a round could not be settled at once: one by one, so that one holds up no other")
                for turn in turns:
                    await self._alone(turn)
                return

    async def _alone(self, turn: Turn) -> None:
        try:
            await self._settled([turn])
        except Exception:  # the boundary: its lease ends, and it is asked for again under the same key
            log.exception("a repair could not be settled", extra={"repair_id": turn.repair.repair_id})

    async def _settle(self, turns: Sequence[Turn]) -> None:
        async with self._store.transaction() as tx:
            moment, _ = await tx.claim("planner-repairs", [])
            stored = {row.repair_id: row for row in await tx.repairs([turn.repair.repair_id for turn in turns])}
            desk = await desk_of(tx, moment, self._rules, list(stored.values()))
            for turn in turns:
                repair = stored.get(turn.repair.repair_id)
                if repair is None or repair.version != turn.repair.version:
                    continue  # something else moved it meanwhile, and knows better
                row = desk.exceptions[repair.exception_id]
                if turn.outcome is not None:
                    _take(desk, row, repair, turn.outcome)
                elif turn.seen is not None:
                    _seen(desk, row, repair, turn.seen)
            outgoing, _ = await _keep(tx, desk)
            self._crash.reach("planner-repairs.before_commit")
        await self._publish(outgoing)

    async def _publish(self, outgoing: Sequence[Outgoing]) -> None:
        if outgoing:
            await self._publisher.publish(outgoing)


def _take(desk: Desk, row: ExceptionRow, repair: RepairRow, outcome: Outcome) -> None:
    """What a turn at the gateway means for the repair and its exception."""
    now, changes = desk.now, outcome.changes
    match outcome.step:
        case Step.SEND:
            until = now + timedelta(seconds=repair.verify_seconds)
            due = now + timedelta(seconds=LOOK_SECONDS) if "command_id" in changes else until
            row, repair = course.sent(row, repair, now, PLANNER, **changes, verify_until=until, due_at=due)
            desk.put(row, repair)
            if row.status == "closed":
                desk.put(*course.closed(row, repair, now))
        case Step.ASK | Step.POSTPONE:
            note = {"reason": outcome.code} if outcome.code else {}
            moved = repairs.advance(
                repair,
                outcome.step,
                now,
                PLANNER,
                note,
                due_at=now + (outcome.again or timedelta()),
                calls_count=repair.calls_count + (1 if outcome.step is Step.POSTPONE else 0),
                error_code=outcome.code,
                **changes,
            )
            desk.put(course.mirror(row, moved), moved)
        case _:
            code = outcome.code or "refused"
            refused = repair.evolve(**changes)
            if code in STATE_MOVED:
                desk.fail(row, refused, code, outcome.detail)
            else:
                row, refused = course.failed(row, refused, code, outcome.detail, now)
                desk.put(row, refused)
                desk.escalate(row, refused)


def _seen(desk: Desk, row: ExceptionRow, repair: RepairRow, seen: Answer) -> None:
    """What was seen of a repair command: that it failed, or nothing that says so."""
    code = miss_of(seen)
    if code is not None:
        desk.fail(row, repair, code, str(seen.body.get("error_detail") or "") or None)
        return
    pause = min(LOOK_SECONDS_MAX, LOOK_SECONDS * 1.5 ** min(repair.calls_count, 20))
    until = repair.verify_until or desk.now
    due = min(desk.now + timedelta(seconds=pause), until)
    desk.put(row, repair.evolve(due_at=due, calls_count=repair.calls_count + 1))


async def _keep(tx: PlannerTransaction, desk: Desk) -> tuple[list[Outgoing], dict[str, RepairRow]]:
    outgoing = await keep(tx, desk)
    if outgoing:
        await tx.post(outgoing)
    new, moved = desk.changes().repairs
    return outgoing, {row.repair_id: row for row in (*new, *moved)}
