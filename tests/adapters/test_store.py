"""The ledger on a real PostgreSQL: every field survives, a loser decides again, and a batch costs few statements."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.adapters.builders import Permit, Process, execute, find, message, operation, receipts
from tests.adapters.memory import Ledger
from tests.reconciler.schema import make_schema
from tests.servers import Database as ServerDatabase

from trueup_adapters.core.effect import LedgerStatus
from trueup_adapters.core.job import FinishedMessage, Job, SendJob, Sent
from trueup_adapters.handler import OutcomeHandler, Scan, TaskHandler, keep_progress
from trueup_adapters.store import Changes, SqlAdaptersTransaction, sql_store
from trueup_adapters.tables import METADATA
from trueup_common.contracts.adapter import LeaseLost, confirmed, rejected
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.states import ErrorClass, ReceiptStatus
from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.ports import VersionConflict

Store = SqlStore[SqlAdaptersTransaction]


@pytest.fixture(scope="module")
def adapters_schema(fresh_database: ServerDatabase) -> ServerDatabase:
    make_schema(fresh_database, METADATA)
    return fresh_database


@pytest.fixture
async def store(adapters_schema: ServerDatabase) -> AsyncIterator[Store]:
    database = await Database.connect(adapters_schema.admin_url, schema="adapters", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE effect, attempt, outbox")
    yield sql_store(database)
    await database.close()


class Worker:
    """One process over a real store; jobs are kept for the test."""

    def __init__(self, store: Store, name: str = "adapters#1") -> None:
        self.store = store
        self.jobs: list[Job] = []
        self.process = Process(Ledger())
        self.tasks = TaskHandler(
            system="alpha",
            authority=Permit(),
            declarations=self.process,
            background=self,
            worker=name,
            monotonic=monotonic,
            send_window_seconds=10.0,
        )
        self.outcomes = OutcomeHandler()
        self.scan = Scan(
            declarations=self.process, background=self, process=name.split("#", maxsplit=1)[0], worker=name
        )

    def start(self, job: Job) -> None:
        self.jobs.append(job)

    async def deliver(self, *tasks: Any) -> list[Outgoing]:
        messages = [message(task) for task in tasks]
        outgoing = await self.commit(self.tasks, messages)
        await self.tasks.settled(messages)
        return outgoing

    async def commit(self, handler: TaskHandler | OutcomeHandler, messages: Sequence[Message]) -> list[Outgoing]:
        """What the loop does with a batch: repeated where another one was first, a few times at most."""
        for number in range(4):
            with contextlib.suppress(VersionConflict):
                async with self.store.transaction() as tx:
                    known = None
                    if handler.foresee(tx, messages) and not number:
                        known = tx.presume("test", [])
                    moment, _ = known or await tx.claim("test", [])
                    outgoing = list(await handler.handle(tx, replace(moment, repeated=number > 0), messages))
                    await tx.post(outgoing)
                return outgoing
        raise AssertionError("never decided")

    async def finish(self, *finished: Sent) -> list[Outgoing]:
        messages = [
            FinishedMessage(
                id=item.job.attempt.attempt_id, type="Sent", subject="s", tenant="acme", source="t",
                time=item.job.attempt.sent_at, data=b"{}", finished=item,
            )
            for item in finished
        ]  # fmt: skip
        return await self.commit(self.outcomes, messages)


async def now_of(store: Store) -> Any:
    async with store.transaction() as tx:
        return (await tx.claim("test", []))[0].real


async def test_a_command_goes_through_the_ledger(store: Store) -> None:
    """Requirements: E2. Intent, fence, grant, times, receipt and attempt all survive the database."""
    worker = Worker(store)
    await worker.deliver(execute(1, now=await now_of(store)))
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
    assert row.status is LedgerStatus.SENT
    job = worker.jobs[0]
    assert isinstance(job, SendJob)
    assert row == job.row
    assert row.operation == operation()
    (receipt,) = receipts(await worker.finish(Sent(job, confirmed({"id": 7, "text": "ä\x00"}))))
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
        attempts = await tx.connection.fetch("SELECT attempt_id, status, late FROM attempt")
        posted = await tx.connection.fetch("SELECT message_id, subject FROM outbox")
    assert (row.status, row.receipt) == (LedgerStatus.CONFIRMED, receipt)
    assert [tuple(record) for record in attempts] == [(job.attempt.attempt_id, "CONFIRMED", False)]
    assert [record["subject"] for record in posted] == ["trueup.evt.adapter.alpha.receipt.acme"]


UNSTORABLE: dict[str, Any] = {
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "lone surrogate in a key": {"\udfff": 1, "x\x00": 2},
    "NaN": float("nan"),
    "Infinity": [float("inf"), float("-inf")],
    "beyond every number": 10**400,
    "deep": json.loads("[" * 500 + "]" * 500),
    "long": "x" * 2_000_000,
    "no JSON at all": {"bytes": b"\xff", "set": {1}},
}


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_a_result_that_no_database_takes_is_no_reason_to_send_again(store: Store, name: str) -> None:
    """What the target said is made storable, in every place where it may stand; the effect that happened is kept.

    Requirements: I1, T3
    """
    worker = Worker(store)
    await worker.deliver(execute(1, now=await now_of(store)))
    (job,) = worker.jobs
    assert isinstance(job, SendJob)
    said = UNSTORABLE[name]
    outcome = confirmed({"id": 7, "said": said}, external_resource_id="7\x00", external_version="v\udfff")
    (receipt,) = receipts(await worker.finish(Sent(job, outcome)))
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
    assert row.status is LedgerStatus.CONFIRMED and row.receipt == receipt
    assert receipt.result is not None and receipt.result["id"] == 7
    assert (receipt.result.get("left_out") == ["said"]) == (name == "long"), "half a value is no value"
    await worker.deliver(execute(1, now=await now_of(store)))
    assert len(worker.jobs) == 1


async def test_two_workers_with_the_same_task_send_once(store: Store) -> None:
    """Requirements: I1, E5. The loser of the insert decides again, and then it has nothing to send."""
    now = await now_of(store)
    workers = [Worker(store, f"adapters-{number}#1") for number in range(2)]

    await asyncio.gather(*(worker.deliver(execute(1, now=now)) for worker in workers))
    assert sum(len(worker.jobs) for worker in workers) == 1


async def test_an_outcome_does_not_undo_a_raised_fence(store: Store) -> None:
    """Requirements: E5. The row moved while the attempt was under way: reloaded, and the higher fence stays."""
    worker, other = Worker(store), Worker(store, "adapters-2#1")
    await worker.deliver(execute(1, now=await now_of(store)))
    await other.deliver(find(2))
    job = worker.jobs[0]
    assert isinstance(job, SendJob)
    (receipt,) = receipts(await worker.finish(Sent(job, rejected(ErrorClass.TRANSIENT, "unavailable"))))
    assert (receipt.status, receipt.fence) == (ReceiptStatus.REJECTED, 1)
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
    assert (row.status, row.fence) == (LedgerStatus.REJECTED, 2)


async def test_progress_needs_the_lease(store: Store) -> None:
    """Requirements: E5. A cursor is kept while the attempt holds the row; a find takes the lease and stops it."""
    worker = Worker(store)
    await worker.deliver(execute(1, now=await now_of(store)))
    job = worker.jobs[0]
    assert isinstance(job, SendJob)
    await keep_progress(store, job, {"done": 30}, "test")
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
    assert row.cursor == {"done": 30}
    assert row.look_at is not None
    assert job.row.look_at is not None
    assert row.look_at >= job.row.look_at - timedelta(seconds=10)
    await worker.deliver(find(2))
    with pytest.raises(LeaseLost):
        await keep_progress(store, job, {"done": 60}, "test")
    async with store.transaction() as tx:
        (row,) = await tx.effects(["cmd_1"])
    assert row.cursor == {"done": 30}


async def test_the_scan_takes_due_rows_once(store: Store) -> None:
    """Requirements: E2. Two scanning replicas share the due rows; what a predecessor left is found by its name."""
    dead = Worker(store, "adapters#1")
    await dead.deliver(execute(1, now=await now_of(store)))
    successor, neighbour = Worker(store, "adapters#2"), Worker(store, "adapters-2#1")
    for worker in (successor, neighbour):
        async with store.transaction() as tx:
            await worker.scan.tick(tx, (await tx.claim("scan", []))[0])
    assert [len(worker.jobs) for worker in (successor, neighbour)] == [1, 0]
    async with store.transaction() as tx:
        await tx.connection.execute("UPDATE effect SET look_at = now() - interval '1 second'")
    async with store.transaction() as first, store.transaction() as second:
        await successor.scan.tick(first, (await first.claim("scan", []))[0])
        await neighbour.scan.tick(second, (await second.claim("scan", []))[0])
    assert [len(worker.jobs) for worker in (successor, neighbour)] == [2, 0]


async def test_a_batch_is_a_handful_of_statements(store: Store) -> None:
    """A hundred commands are one transaction with as many statements as one command."""
    counts = []
    for size in (1, 100):
        worker = Worker(store)
        now = await now_of(store)
        tasks = [execute(1, of=operation(f"cmd_{size}_{number}"), now=now) for number in range(size)]
        async with store.transaction() as tx:
            statements: list[str] = []
            tx.reading.add_query_logger(lambda record, kept=statements: kept.append(record.query))
            moment, _ = await tx.claim("test", [])
            await worker.tasks.handle(tx, moment, [message(task) for task in tasks])
        counts.append(len([statement for statement in statements if "effect" in statement]))
    assert counts[0] == counts[1] <= 2


async def test_a_second_insert_is_a_conflict(store: Store) -> None:
    """Requirements: L5. What another replica inserted first is never overwritten."""
    worker = Worker(store)
    await worker.deliver(execute(1, now=await now_of(store)))
    job = worker.jobs[0]
    assert isinstance(job, SendJob)
    with pytest.raises(VersionConflict):
        async with store.transaction() as tx:
            await tx.save(Changes(new=(job.row,)))
