"""The orchestrator's handlers on real PostgreSQL: rows, compare-and-set, keys, windows, due times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests import servers
from tests.orchestrator.cases import BARE, NOW, PAGE, At, declaration, receipt, settlement, start_case
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import CaseChanged, StartCase
from trueup_common.contracts.history import verify
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import ErrorClass, FindVerdict, OperationState, ReceiptStatus
from trueup_common.contracts.task import Beat, ExecuteTask, RunningAttempt
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_orchestrator.core.case import Terms
from trueup_orchestrator.desk import Desk
from trueup_orchestrator.handler import CommandHandler, EventHandler, Timers
from trueup_orchestrator.store import SqlOrchestratorTransaction
from trueup_orchestrator.windows import Windows

S = OperationState


class Quiet:
    """Governance with nothing revoked or frozen, until a test says so."""

    quiet = False
    stale = False

    def __init__(self) -> None:
        self.revoked_ids: set[str] = set()
        self.frozen = False

    def revoked(self, kind: str, object_id: str | None) -> bool:
        return object_id in self.revoked_ids

    def freeze_of(self, fields: Any, *, compensation: bool = False) -> object | None:
        return self if self.frozen else None


class Plane:
    """One orchestrator process on a database of its own."""

    def __init__(self, database: Database, slots: int = 256, declarations: Sequence[CommandDeclaration] = ()) -> None:
        self.database = database
        self.governance = Quiet()
        self.desk = Desk(
            declarations=Catalog.of(declarations or (PAGE, BARE)),
            governance=self.governance,
            terms=Terms(),
            windows=Windows(slots),
        )
        self.store = SqlStore(database, SqlOrchestratorTransaction)
        self.commands = CommandHandler(self.desk)
        self.events = EventHandler(self.desk)
        self.timers = Timers(self.desk)

    async def react(self, handler: Any, bodies: Sequence[Any], moment: Moment | None = None) -> list[Outgoing]:
        """One batch through the loop's transaction (without inbox)."""
        messages = self.messages(bodies)
        async with self.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            outgoing = await handler.handle(tx, moment or now, messages)
            await tx.post(outgoing)
            return list(outgoing)

    def messages(self, bodies: Sequence[Any]) -> list[Message]:
        return [
            Message(
                id=f"{body.command_id}:{index}",
                type=type(body).__name__,
                subject="test",
                tenant=body.tenant,
                source="test",
                time=NOW,
                data=body.model_dump_json().encode(),
                reply_to="trueup.answer.gateway",
            )
            for index, body in enumerate(bodies)
        ]

    async def tick(self, name: str, later: float = 0.0) -> list[Outgoing]:
        async with self.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            step = timedelta(seconds=later)
            return list(await getattr(self.timers, name)(tx, Moment(now.business + step, now.real + step)))

    async def row(self, command_id: str) -> JournalRow:
        async with self.store.transaction() as tx:
            (found,) = await tx.operations([command_id])
            return found

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        async with self.database.connection() as connection:
            return await connection.fetch(statement, *arguments)


@pytest.fixture
async def plane(plane_database: servers.Database) -> AsyncIterator[Plane]:
    database = await Database.connect(plane_database.url("orchestrator"), schema="orchestrator", size=4)
    async with database.connection() as connection:
        for table in ("operation", "instance", "obligation", "history", "outbox", "inbox"):
            await connection.execute(f"DELETE FROM {table}")
    yield Plane(database)
    await database.close()


async def now_of(plane: Plane) -> Any:
    (record,) = await plane.fetch("SELECT trueup.now() AS now")
    return record["now"]


async def accepted(plane: Plane, number: int = 1, **changes: Any) -> StartCase:
    """An accepted command at the database's own time."""
    now = await now_of(plane)
    return start_case(number, at=At(now, now), **changes)


def types(outgoing: Sequence[Outgoing]) -> list[str]:
    return [item.message.type for item in outgoing]


async def test_a_command_goes_through_two_commits_and_is_closed(plane: Plane) -> None:
    """State, history and messages stand in the same database after each commit.

    Requirements: M1, X2, L4
    """
    body = await accepted(plane)
    sent = await plane.react(plane.commands, [body])
    assert types(sent) == ["ExecuteTask", "CaseChanged"]
    row = await plane.row(body.command_id)
    assert (row.state, row.state_version, row.payload) == (S.DISPATCHING, 1, body.payload)
    sent = await plane.react(plane.events, [receipt(row, ReceiptStatus.CONFIRMED)])
    assert types(sent) == ["Established", "CaseChanged", "CaseAnswered"]
    row = await plane.row(body.command_id)
    assert (row.state, row.state_version, row.lease_expires_at) == (S.SUCCESS, 2, None)
    async with plane.store.transaction() as tx:
        (instance,) = await tx.instances([body.workflow_id])
        history = await tx.history_after({body.workflow_id: 0})
    assert (instance.status, instance.published_seq, len(history)) == ("CLOSED", 2, 2)
    assert verify(history) is None
    changed = CaseChanged.model_validate_json(sent[1].message.data)
    assert [event.hash for event in changed.history] == [event.hash for event in history]
    outbox = await plane.fetch("SELECT type FROM outbox ORDER BY id")
    assert [record["type"] for record in outbox] == ["ExecuteTask", "Established", "CaseChanged"]


async def test_a_failing_commit_keeps_nothing(plane: Plane) -> None:
    """Requirements: M1"""
    body = await accepted(plane)
    with pytest.raises(RuntimeError, match="before commit"):
        async with plane.store.transaction() as tx:
            moment, _ = await tx.claim("test", ["m1"])
            message = Message(
                id="m1",
                type="StartCase",
                subject="s",
                tenant="acme",
                source="t",
                time=NOW,
                data=body.model_dump_json().encode(),
            )
            await tx.post(await plane.commands.handle(tx, moment, [message]))
            raise RuntimeError("before commit")
    for table in ("operation", "instance", "history", "outbox", "inbox"):
        assert await plane.fetch(f"SELECT 1 FROM {table}") == []


async def test_the_loser_of_a_race_reloads(plane: Plane) -> None:
    """Two replicas fold different receipts into the same version: one commit, one StoreBusy.

    Requirements: L5
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    loaded = asyncio.Barrier(2)

    class Slow(EventHandler):
        async def handle(self, tx: Any, moment: Any, messages: Any) -> Any:
            load = tx.operations

            async def both(ids: Sequence[str]) -> list[JournalRow]:
                rows = await load(ids)
                await loaded.wait()
                return rows

            tx.operations = both
            return await super().handle(tx, moment, messages)

    one, other = (Slow(Plane(plane.database).desk) for _ in range(2))  # neither has the case in hand
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(
            plane.react(one, [receipt(row, ReceiptStatus.CONFIRMED)]),
            plane.react(other, [receipt(row, ReceiptStatus.UNKNOWN, None, "timeout")]),
            return_exceptions=True,
        )
    assert sum(isinstance(outcome, StoreBusy) for outcome in outcomes) == 1
    after = await plane.row(body.command_id)
    assert after.state_version == 2
    history = await plane.fetch("SELECT seq FROM history WHERE workflow_id = $1", body.workflow_id)
    assert len(history) == 2


async def test_one_key_has_one_operation_however_often_it_is_started(plane: Plane) -> None:
    """In one batch and in later batches.

    Requirements: I2
    """
    first = await accepted(plane, 1, key="same", slug="a")
    second = await accepted(plane, 2, key="same", slug="b")
    third = await accepted(plane, 3, key="same", slug="c")
    await plane.react(plane.commands, [first, second])
    await plane.react(plane.commands, [third, first])
    assert (await plane.row(first.command_id)).state is S.DISPATCHING
    for loser in (second, third):
        row = await plane.row(loser.command_id)
        assert (row.state, row.error_code) == (S.CONFLICT, "identity_in_use")
        assert first.command_id in (row.error_detail or "")


async def test_of_two_replicas_that_start_the_same_key_at_once_one_wins(plane: Plane) -> None:
    """Both looked before either committed: the unique index decides, the loser repeats and sees the winner.

    Requirements: I2
    """
    looked = asyncio.Barrier(2)

    class Slow(CommandHandler):
        async def handle(self, tx: Any, moment: Any, messages: Any) -> Any:
            look = tx.holders

            async def both(*arguments: Any) -> Any:
                found = await look(*arguments)
                await looked.wait()
                return found

            tx.holders = both
            return await super().handle(tx, moment, messages)

    bodies = [await accepted(plane, number, key="race", slug=f"r{number}") for number in (1, 2)]
    handler = Slow(plane.desk)
    outcomes = await asyncio.gather(
        *(plane.react(handler, [body]) for body in bodies),
        return_exceptions=True,
    )
    busy = [isinstance(outcome, StoreBusy) for outcome in outcomes]
    assert sorted(busy) == [False, True]
    loser = bodies[busy.index(True)]
    assert await plane.fetch("SELECT 1 FROM instance WHERE workflow_id = $1", loser.workflow_id) == []
    await plane.react(plane.commands, [loser])
    states = [(await plane.row(body.command_id)).state for body in bodies]
    assert sorted(states) == [S.CONFLICT, S.DISPATCHING]


async def test_another_key_for_a_taken_identity_is_refused_and_pointed_to_the_holder(plane: Plane) -> None:
    """Requirements: I2"""
    first, second = await accepted(plane, 1, slug="post"), await accepted(plane, 2, slug="post")
    foreign = await accepted(plane, 3, slug="post", tenant="globex")
    sent = await plane.react(plane.commands, [first, second, foreign])
    tasks = [item.message for item in sent if item.message.type == "ExecuteTask"]
    assert [task.tenant for task in tasks] == ["acme", "globex"]
    row = await plane.row(second.command_id)
    assert (row.state, row.error_code) == (S.CONFLICT, "identity_in_use")
    assert first.command_id in (row.error_detail or "")
    assert "ExceptionReported" in types(sent)


@pytest.mark.parametrize(
    ("status", "error", "free"),
    [
        (ReceiptStatus.REJECTED, ErrorClass.PERMANENT, True),
        (ReceiptStatus.CONFIRMED, None, False),
        (ReceiptStatus.UNKNOWN, None, False),
    ],
)
async def test_an_identity_is_free_again_only_when_nothing_happened(
    plane: Plane, status: ReceiptStatus, error: ErrorClass | None, free: bool
) -> None:
    """Requirements: I2"""
    first, second = await accepted(plane, 1, slug="post"), await accepted(plane, 2, slug="post")
    await plane.react(plane.commands, [first])
    await plane.react(plane.events, [receipt(await plane.row(first.command_id), status, error, "forbidden")])
    await plane.react(plane.commands, [second])
    assert (await plane.row(second.command_id)).state is (S.DISPATCHING if free else S.CONFLICT)


async def test_the_operation_id_outlives_its_attempts(plane: Plane) -> None:
    """Requirements: I4"""
    body = await accepted(plane)
    sent = await plane.react(plane.commands, [body])
    first = ExecuteTask.model_validate_json(sent[0].message.data)
    row = await plane.row(body.command_id)
    await plane.react(plane.events, [receipt(row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable")])
    sent = await plane.tick("due", later=20)
    assert types(sent) == ["GrantRequest", "CaseChanged"]
    row = await plane.row(body.command_id)
    assert (row.command_id, row.fence, row.attempt_count) == (first.operation.command_id, 2, 1)
    assert len({item["attempt_id"] for item in row.attempts}) == 2


async def test_windows_hold_back_and_freed_slots_are_refilled_in_the_same_commit(plane: Plane) -> None:
    """Two slots: three commands; the first receipt lets the third out. Another tenant is not held back."""
    plane.desk.windows = Windows(2)
    bodies = [await accepted(plane, number) for number in (1, 2, 3)]
    other = await accepted(plane, 4, tenant="globex")
    sent = await plane.react(plane.commands, [*bodies, other])
    assert types(sent).count("ExecuteTask") == 3
    states = [(await plane.row(body.command_id)).state for body in (*bodies, other)]
    assert states == [S.DISPATCHING, S.DISPATCHING, S.QUEUED, S.DISPATCHING]
    assert types(await plane.tick("queue")) == []
    sent = await plane.react(plane.events, [receipt(await plane.row(bodies[0].command_id), ReceiptStatus.CONFIRMED)])
    assert types(sent).count("GrantRequest") == 1
    assert (await plane.row(bodies[2].command_id)).proposed


async def test_who_waits_longer_goes_first(plane: Plane) -> None:
    plane.desk.windows = Windows(1)
    bodies = [await accepted(plane, number) for number in (1, 2, 3)]
    for body in bodies:
        await plane.react(plane.commands, [body])
    await plane.react(plane.events, [receipt(await plane.row(bodies[0].command_id), ReceiptStatus.CONFIRMED)])
    rows = [await plane.row(body.command_id) for body in bodies]
    assert [row.proposed for row in rows] == [False, True, False]
    plane.desk.windows = Windows(9)
    assert types(await plane.tick("queue")) == ["GrantRequest", "CaseChanged"]
    assert types(await plane.tick("queue")) == []


async def test_a_later_dispatch_of_another_case_is_later_whatever_the_clock_says(plane: Plane) -> None:
    """The database's clock is set back a day between two commands: the second one still owns what both establish.

    Requirements: R1
    """
    first, second = [await accepted(plane, number) for number in (1, 2)]
    await plane.react(plane.commands, [first])
    now = await now_of(plane)
    yesterday = now - timedelta(days=1)
    await plane.react(plane.commands, [second], Moment(business=now, real=yesterday))
    rows = [await plane.row(body.command_id) for body in (first, second)]
    assert all(row.dispatch_sequence for row in rows)
    assert rows[1].dispatch_sequence > rows[0].dispatch_sequence


async def test_leases_that_ran_out_are_found_by_the_sweep(plane: Plane) -> None:
    """The death of a worker is not the death of the case.

    Requirements: R7, X4, Q4
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    assert types(await plane.tick("due", later=30)) == []
    sent = await plane.tick("due", later=60)
    assert types(sent) == ["SettleRequested", "ExceptionReported", "CaseChanged"]
    row = await plane.row(body.command_id)
    assert row.state is S.ORPHAN_SUSPECTED
    (open_,) = await plane.fetch("SELECT owner, deadline_at, kind FROM obligation WHERE status = 'open'")
    assert (open_["owner"], open_["kind"]) == ("operators", "stale_running")
    await plane.react(plane.events, [settlement(row), settlement(row, FindVerdict.CONFIRMED)])
    assert (await plane.row(body.command_id)).state is S.SUCCESS
    assert await plane.fetch("SELECT 1 FROM obligation WHERE status = 'open'") == []


async def test_a_window_is_decided_alone_only_where_room_is_short(plane: Plane) -> None:
    """Who has room for more than twice what it holds asks for no lock; else it does, until nobody waits any more."""

    async def locked(*bodies: StartCase) -> tuple[bool, int]:
        async with plane.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            outgoing = await plane.commands.handle(tx, now, plane.messages(bodies))
            await tx.post(outgoing)
            return tx.connection.begun, sum(name in ("ExecuteTask", "GrantRequest") for name in types(outgoing))

    plane.desk.windows = Windows(8)
    bodies = [await accepted(plane, number) for number in range(14)]
    assert await locked(*bodies[:2]) == (False, 2)
    assert await locked(*bodies[2:5]) == (False, 3)
    assert await locked(*bodies[5:7]) == (True, 2), "one of three places that are left, without the lock"
    assert await locked(*bodies[7:10]) == (True, 1)
    assert await locked(bodies[10]) == (True, 0), "others wait"
    plane.desk.windows = Windows(256)
    assert await locked(bodies[11]) == (True, 4), "with the three that waited"
    assert await locked(bodies[12]) == (True, 1)
    assert await locked(bodies[13]) == (False, 1)


async def test_beats_renew_leases_and_announce_slots(plane: Plane) -> None:
    """Requirements: E5"""
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    attempt = RunningAttempt(command_id=body.command_id, tenant="acme", fence=1)
    foreign = RunningAttempt(command_id=body.command_id, tenant="globex", fence=1)
    at = await now_of(plane)
    plane.timers.heard(Beat(worker="w", system="site", slots={"acme": 3}, running=(foreign,), at=at))
    assert types(await plane.tick("beats")) == []
    plane.timers.heard(Beat(worker="w", system="site", slots={"acme": 3}, running=(attempt,), at=at))
    assert types(await plane.tick("beats", later=30)) == ["CaseChanged"]
    after = await plane.row(body.command_id)
    assert (after.state, after.lease_owner) == (S.RUNNING, "w")
    assert after.lease_expires_at and row.lease_expires_at and after.lease_expires_at > row.lease_expires_at
    assert plane.desk.windows.size(("acme", "site"), at) == 6


async def test_frozen_and_revoked_commands_are_not_sent(plane: Plane) -> None:
    """Requirements: G6, G5"""
    plane.governance.frozen = True
    body, second = await accepted(plane, 1), await accepted(plane, 2)
    sent = await plane.react(plane.commands, [body, second])
    assert "ExecuteTask" not in types(sent)
    assert (await plane.row(body.command_id)).state is S.QUEUED
    plane.governance.frozen = False
    plane.governance.revoked_ids.add(second.mandate.mandate_id)
    sent = await plane.tick("due", later=30)
    assert types(sent).count("GrantRequest") == 1
    assert (await plane.row(body.command_id)).proposed
    row = await plane.row(second.command_id)
    assert (row.state, row.error_code) == (S.FAILED, "revoked")


async def test_an_operation_keeps_the_declaration_it_started_with(plane: Plane) -> None:
    """A later version of the type in the catalog changes nothing for what runs.

    Requirements: X8
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    later = declaration(establishes=())
    plane.desk.declarations = Catalog.of([PAGE, later])
    sent = await plane.react(plane.events, [receipt(await plane.row(body.command_id), ReceiptStatus.CONFIRMED)])
    assert "Established" in types(sent)
    unknown = await accepted(plane, 9, declaration_sha256="0" * 64)
    await plane.react(plane.commands, [unknown])
    assert (await plane.row(unknown.command_id)).error_code == "declaration_unknown"


async def test_who_is_woken_for_a_lock_cannot_be_put_to_sleep_again_by_a_late_save(plane: Plane) -> None:
    """A released lock wakes who queues for it, with a new version: whoever decided beside it loads again.

    Requirements: S5, L5
    """
    holder, waiting = await accepted(plane, 1), await accepted(plane, 2)
    await plane.react(plane.commands, [holder, waiting])
    for body, held in ((holder, True), (waiting, False)):
        await plane.fetch(
            "INSERT INTO lock (tenant, key, workflow_id, held, since) VALUES ($1, 'page', $2, $3, now())",
            body.tenant,
            body.workflow_id,
            held,
        )
    await plane.fetch("UPDATE instance SET locked = false WHERE workflow_id = $1", waiting.workflow_id)
    async with plane.store.transaction() as tx:
        before = {row.workflow_id: row for row in await tx.instances([holder.workflow_id, waiting.workflow_id])}
        await tx.release([before[holder.workflow_id]])
    async with plane.store.transaction() as tx:
        (after,) = await tx.instances([waiting.workflow_id])
        assert after.wake_at is not None and after.wake_at <= await now_of(plane)
        assert after.state_version == before[waiting.workflow_id].state_version + 1
    assert not await plane.fetch("SELECT 1 FROM lock WHERE workflow_id = $1", holder.workflow_id)
    await plane.fetch("DELETE FROM lock")


async def test_messages_about_foreign_or_unknown_commands_are_unprocessable(plane: Plane) -> None:
    """Requirements: T1, M3"""
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    stolen = receipt(row, ReceiptStatus.CONFIRMED, tenant="globex")
    with pytest.raises(Unprocessable):
        await plane.react(plane.events, [stolen])
    with pytest.raises(Unprocessable):
        await plane.react(plane.events, [receipt(row, ReceiptStatus.CONFIRMED, command_id="cmd_unknown")])
    assert (await plane.row(body.command_id)).state is S.DISPATCHING


async def test_due_times_are_where_the_clock_looks_for_them(plane: Plane, plane_database: servers.Database) -> None:
    """`clock advance` steps from due time to due time: a waiting retry is one of them."""
    import asyncpg

    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    await plane.react(
        plane.events,
        [receipt(row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable", retry_after_seconds=200.0)],
    )
    row = await plane.row(body.command_id)
    connection = await asyncpg.connect(plane_database.admin_url)
    try:
        assert await connection.fetchval("SELECT trueup.next_due()") == row.wake_at
    finally:
        await connection.close()


async def test_a_batch_costs_the_same_statements_whatever_its_size(plane: Plane) -> None:
    """No statement per row: one command and forty need the same number of round trips."""
    counts: list[int] = []
    for size in (2, 1, 40):  # with the first one the driver gets to know the types
        bodies = [await accepted(plane, 100 * size + number, decl=BARE) for number in range(size)]
        total = 0

        async def count(handler: Any, messages: Sequence[Any]) -> None:
            nonlocal total
            async with plane.store.transaction() as tx:
                now, _ = await tx.claim("test", [])
                seen: list[Any] = []
                tx.reading.add_query_logger(seen.append)
                wrapped = [
                    Message(
                        id=f"{body.command_id}:{type(body).__name__}",
                        type=type(body).__name__,
                        subject="s",
                        tenant=body.tenant,
                        source="t",
                        time=NOW,
                        data=body.model_dump_json().encode(),
                    )
                    for body in messages
                ]
                await tx.post(await handler.handle(tx, now, wrapped))
                await tx.finish()
                await asyncio.sleep(0)  # the driver tells of a statement a moment later
                total += len(seen)
                tx.reading.remove_query_logger(seen.append)

        await count(plane.commands, bodies)
        rows = [await plane.row(body.command_id) for body in bodies]
        await count(plane.events, [receipt(row, ReceiptStatus.CONFIRMED, observations=()) for row in rows])
        counts.append(total)
    assert counts[1:] == [6, 6], "a start and a receipt: what stands, how full the window is, and one write each"


async def test_a_step_of_a_case_changes_no_index_of_cases(plane: Plane) -> None:
    """A row that changes stays in its page and in its place of every index, unless a timer of it changes.

    Requirements: B4
    """
    body = await accepted(plane)
    await plane.react(plane.commands, [body])
    row = await plane.row(body.command_id)
    async with plane.store.transaction() as tx:
        now, _ = await tx.claim("test", [])
        done = receipt(row, ReceiptStatus.CONFIRMED)
        await tx.post(await plane.events.handle(tx, now, plane.messages([done])))
        await tx.flush()
        changed = await tx.connection.fetchrow(
            "SELECT pg_stat_get_xact_tuples_updated(oid) AS updated, pg_stat_get_xact_tuples_hot_updated(oid) AS hot "
            "FROM pg_class WHERE oid = 'orchestrator.instance'::regclass"
        )
    assert (changed["updated"], changed["hot"]) == (1, 1)
    (case,) = await plane.fetch("SELECT status, watched_until FROM instance")
    assert (case["status"], case["watched_until"]) == ("CLOSED", None), "its status changed, its timer did not"
