"""Cases in hand: exactly what is stored, and never trusted beyond their version."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests import servers
from tests.orchestrator.cases import receipt
from tests.orchestrator.test_store import Plane, accepted

from trueup_common.contracts.events import GrantRefused
from trueup_common.contracts.states import InstanceStatus, OperationState, ReceiptStatus
from trueup_common.contracts.task import Beat, RunningAttempt
from trueup_common.runtime.db import Database
from trueup_common.runtime.ports import StoreBusy, VersionConflict
from trueup_orchestrator import store
from trueup_orchestrator.core.case import Case
from trueup_orchestrator.memory import BYTES_MAX, Cases
from trueup_orchestrator.windows import Windows

S = OperationState


@pytest.fixture
async def plane(plane_database: servers.Database) -> AsyncIterator[Plane]:
    database = await Database.connect(plane_database.url("orchestrator"), schema="orchestrator", size=4)
    async with database.connection() as connection:
        for table in ("operation", "instance", "obligation", "history", "outbox", "inbox"):
            await connection.execute(f"DELETE FROM {table}")
    yield Plane(database)
    await database.close()


def held(plane: Plane, workflow_id: str) -> Case | None:
    """What is in hand, left there."""
    found = plane.desk.cases.take([workflow_id])
    plane.desk.cases.put(list(found.values()))
    return found.get(workflow_id)


async def stored(plane: Plane, workflow_id: str) -> Case:
    """What a load finds."""
    async with plane.store.transaction() as tx:
        now, _ = await tx.claim("test", [])
        instances = await tx.instances([workflow_id])
        own = "SELECT command_id FROM operation WHERE workflow_id = $1"
        rows = [record["command_id"] for record in await plane.fetch(own, workflow_id)]
        folds = await plane.desk.load_cases(tx, now, instances, await tx.operations(rows))
    return folds[workflow_id].before


async def test_what_is_remembered_is_what_is_stored(plane: Plane) -> None:
    """After each commit of an open case, in every column; an ended case is let go.

    Requirements: B5
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    assert held(plane, body.workflow_id) == await stored(plane, body.workflow_id)
    row = await plane.row(body.command_id)
    await plane.react(plane.events, [receipt(row, ReceiptStatus.UNKNOWN)])
    assert held(plane, body.workflow_id) == await stored(plane, body.workflow_id)
    row = await plane.row(body.command_id)
    assert row.state is S.OUTCOME_UNKNOWN
    await plane.react(plane.events, [receipt(row, ReceiptStatus.CONFIRMED)])
    assert (await plane.row(body.command_id)).state is S.SUCCESS
    assert held(plane, body.workflow_id) is None


async def test_who_holds_an_old_case_loads_it_again(plane: Plane) -> None:
    """Two replicas take turns with one case; neither decides on what the other has changed since.

    Requirements: D5
    """
    other = Plane(plane.database)
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    await other.react(other.events, [receipt(row, ReceiptStatus.UNKNOWN)])
    old = held(plane, body.workflow_id)
    assert old is not None and old.operation.state is S.DISPATCHING
    await plane.react(plane.events, [receipt(await plane.row(body.command_id), ReceiptStatus.CONFIRMED)])
    row = await plane.row(body.command_id)
    assert (row.state, row.state_version) == (S.SUCCESS, 3)


async def test_who_waited_for_a_window_is_in_hand_still(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is free again goes to a case that this process wrote itself: it is not loaded for that.

    Requirements: B1
    """
    loaded: list[str] = []
    load = plane.desk.load_cases

    async def noted(tx: Any, moment: Any, instances: Any, rows: Any = ()) -> Any:
        loaded.extend(row.workflow_id for row in instances)
        return await load(tx, moment, instances, rows)

    monkeypatch.setattr(plane.desk, "load_cases", noted)
    plane.desk.windows = Windows(1)
    first, second = await accepted(plane), await accepted(plane, 2)
    await plane.react(plane.commands, [first])
    await plane.react(plane.commands, [second])
    assert (await plane.row(second.command_id)).state is S.QUEUED
    await plane.react(plane.events, [receipt(await plane.row(first.command_id), ReceiptStatus.CONFIRMED)])
    assert (await plane.row(second.command_id)).proposed
    assert loaded == []
    assert held(plane, second.workflow_id) == await stored(plane, second.workflow_id)


async def test_a_beat_that_another_replica_took_makes_a_case_old(plane: Plane) -> None:
    """Also a change that no history tells of raises the version of the case."""
    other = Plane(plane.database)
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    now, _ = await _moment(plane)
    running = RunningAttempt(
        command_id=row.command_id, attempt_id=row.attempts[-1]["attempt_id"], fence=row.fence, tenant=row.tenant
    )
    assert row.lease_expires_at is not None
    left = (row.lease_expires_at - now.real).total_seconds()
    for later in (0.0, left - 1.0):  # the first one moves the operation; the second, late in the lease, only renews
        at = now.real + timedelta(seconds=later)
        other.timers.heard(Beat(worker="adapter", system=row.target_system, running=(running,), slots={}, at=at))
        before, began = await stored(plane, body.workflow_id), len(await plane.fetch("SELECT 1 FROM history"))
        await other.tick("beats", later=later)
        after = await stored(plane, body.workflow_id)
        assert before.instance.state_version < after.instance.state_version
    assert len(await plane.fetch("SELECT 1 FROM history")) == began
    assert after.operation.state is S.RUNNING and after.operation.state_version > before.operation.state_version


class Raced:
    """A transaction in which another replica commits right after the first read of cases or operations."""

    def __init__(self, tx: Any, commit: Callable[[], Awaitable[None]]) -> None:
        self._tx, self._commit, self._over = tx, commit, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def _then(self, found: Any) -> Any:
        if not self._over:
            self._over = True
            await self._commit()
        return found

    async def operations(self, command_ids: Sequence[str]) -> Any:
        return await self._then(await self._tx.operations(command_ids))

    async def instances(self, workflow_ids: Sequence[str]) -> Any:
        return await self._then(await self._tx.instances(workflow_ids))


@pytest.mark.parametrize("by", ["event", "load"])
async def test_a_commit_between_two_reads_of_a_case_leaves_no_old_operation_in_hand(plane: Plane, by: str) -> None:
    """Case and operation are two reads: the newer of the two must not vouch for the older.

    Requirements: D5, M1
    """
    other, late = Plane(plane.database), Plane(plane.database)
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)

    async def commit() -> None:
        await other.react(other.events, [receipt(row, ReceiptStatus.UNKNOWN)])

    moves_nothing = GrantRefused(
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        fence=row.fence + 7,
        check="approval",
        detail="said no",
        transient=False,
    )
    with contextlib.suppress(VersionConflict):
        async with late.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            raced: Any = Raced(tx, commit)
            if by == "event":
                await late.events.handle(raced, now, late.messages([moves_nothing]))
            else:
                folds = await late.desk.load(raced, now, await raced.operations([body.command_id]))
                await late.desk.keep(raced, folds.values())
    found = await stored(plane, body.workflow_id)
    assert found.operation.state is S.OUTCOME_UNKNOWN
    kept = held(late, body.workflow_id)
    if kept is not None and kept.instance.state_version == found.instance.state_version:
        assert kept == found


async def _moment(plane: Plane) -> Any:
    async with plane.store.transaction() as tx:
        return await tx.claim("test", [])


async def test_a_transaction_that_failed_leaves_nothing_in_hand(plane: Plane) -> None:
    """Its repetition starts from the store.

    Requirements: M1
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    with pytest.raises(StoreBusy):
        async with plane.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            folds = await plane.desk.recall(tx, now, [body.workflow_id])
            assert list(folds) == [body.workflow_id]
            await plane.desk.keep(tx, folds.values())
            raise StoreBusy("the connection was lost")
    assert held(plane, body.workflow_id) is None
    await plane.react(plane.events, [receipt(row, ReceiptStatus.CONFIRMED)])
    assert (await plane.row(body.command_id)).state is S.SUCCESS


async def test_memory_is_bounded(plane: Plane) -> None:
    """In cases and in bytes: the oldest and the largest are loaded each time.

    Requirements: B5
    """
    bodies = [await accepted(plane, number, idempotency_key=f"key-{number}") for number in (1, 2, 3)]
    for body in bodies:
        await plane.react(plane.commands, [body])
    found = list(plane.desk.cases.take([body.workflow_id for body in bodies]).values())
    assert len(found) == 3
    few = Cases(cases_max=2)
    few.put(found)
    assert list(few.take([body.workflow_id for body in bodies])) == [body.workflow_id for body in bodies[1:]]
    case = found[0]
    long = case.operation.evolve(payload={"text": "x" * BYTES_MAX})
    over = case.instance.evolve(status=InstanceStatus.CLOSED)
    few.put([Case(case.instance, (long,)), Case(over, case.operations)])
    assert len(few) == 0


@pytest.mark.parametrize(
    ("name", "statement", "arguments"),
    [
        ("holders", store._HOLDERS, 6),
        ("newest", store._NEWEST, 2),
        ("started", store._STARTED, 3),
        ("history", f"SELECT * FROM history {store._AFTER}", 2),
        ("locks", f"SELECT * FROM lock {store._LOCKED}", 2),
    ],
)
async def test_rows_are_reached_by_their_key(plane: Plane, name: str, statement: str, arguments: int) -> None:
    """A plan made while a table was small must not read all of it for ever after.

    Requirements: B4
    """
    types = re.findall(r"\$\d+::(\w+\[\])", statement)
    assert len(types) == arguments
    async with plane.database.connection() as connection:
        await connection.execute(f"PREPARE asked ({', '.join(types)}) AS {statement}")
        try:
            empty = ", ".join(["'{}'"] * arguments)
            plan = [record[0] for record in await connection.fetch(f"EXPLAIN EXECUTE asked({empty})")]
        finally:
            await connection.execute("DEALLOCATE asked")
    text = "\n".join(plan)
    assert "Seq Scan" not in text and "Bitmap" not in text and "Materialize" not in text, text
    assert text.count("Index Cond") == sum("Index" in line and "Scan" in line for line in plan), text


async def presumed(plane: Plane, bodies: Sequence[Any]) -> None:
    """Receipts as the loop takes them where nobody is asked before the save."""
    messages = plane.messages(bodies)
    async with plane.store.transaction() as tx:
        assert plane.events.foresee(tx, messages)
        known = tx.presume("test", [])
        assert known is not None
        await tx.post(await plane.events.handle(tx, known[0], messages))


@pytest.fixture
def heard_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that was heard once is counted on from for as long as a slow machine needs."""
    monkeypatch.setattr("trueup_common.runtime.clock.HEARD_SECONDS", 3600.0)
    monkeypatch.setattr("trueup_common.runtime.clock.ANSWER_SECONDS", 3600.0)


@pytest.mark.usefixtures("heard_for_long")
async def test_a_receipt_of_a_command_in_hand_needs_no_read(plane: Plane) -> None:
    """The save compares the version of the case. Who waits for the slot that is free now is asked after the commit.

    Requirements: D5, B3
    """
    freed: list[str] = []
    plane.desk.freed = lambda: freed.append("freed")
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    await presumed(plane, [receipt(row, ReceiptStatus.CONFIRMED)])
    assert (await plane.row(body.command_id)).state is S.SUCCESS and freed == ["freed"]


@pytest.mark.usefixtures("heard_for_long")
async def test_who_presumes_an_old_case_loses_and_keeps_nothing(plane: Plane) -> None:
    """Another replica moved it, or nothing would be saved that could find out: then it is not presumed any more.

    Requirements: D5
    """
    other = Plane(plane.database)
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    await other.react(other.events, [receipt(row, ReceiptStatus.UNKNOWN)])
    moved = await plane.row(body.command_id)
    with pytest.raises(VersionConflict):
        await presumed(plane, [receipt(row, ReceiptStatus.CONFIRMED)])
    assert await plane.row(body.command_id) == moved
    assert not plane.events.foresee(None, plane.messages([receipt(row, ReceiptStatus.CONFIRMED)])), "not in hand"
    again = await accepted(plane, 2)
    await plane.react(plane.commands, [again])
    with pytest.raises(VersionConflict, match="nothing checks"):
        async with plane.store.transaction() as tx:
            known = tx.presume("test", [])
            assert known is not None
            folds = await plane.desk.recall(tx, known[0], [again.workflow_id])
            assert folds
            await plane.desk.keep(tx, folds.values(), presumed=True)
