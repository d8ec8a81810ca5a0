"""One object, one writer: types that read, compare and write have their object alone while an attempt may still act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from tests.adapters.builders import (
    LATE_SECONDS,
    TIMEOUT_SECONDS,
    Process,
    answers,
    declare,
    execute,
    find,
    operation,
    receipts,
)
from tests.adapters.memory import Ledger
from tests.adapters.test_store import Worker
from tests.reconciler.schema import make_schema
from tests.servers import Database as ServerDatabase

from trueup_adapters.core.job import SendJob, Sent
from trueup_adapters.store import SOMEBODY, SqlAdaptersTransaction, sql_store
from trueup_adapters.systems.wordpress.commands import WordPressAdapter
from trueup_adapters.tables import METADATA
from trueup_common.contracts.adapter import Outcome, confirmed, unknown
from trueup_common.contracts.states import EffectClass, ReceiptStatus
from trueup_common.contracts.task import ExecuteTask
from trueup_common.runtime.db import Database, SqlStore

SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
ALONE = declare(type="alpha.edit", payload_schema=SCHEMA, acts_on="thing/{/payload/id}", exclusive=True)
MANY = declare(type="alpha.add", payload_schema=SCHEMA, acts_on="thing/{/payload/id}")


def edit(name: str, number: int = 1, *, fence: int = 1, declaration: Any = ALONE, **changes: Any) -> ExecuteTask:
    """A task on one object."""
    return execute(fence, of=operation(name, {"id": number}, declaration), **changes)


def process(ledger: Ledger, name: str = "adapters#1") -> Process:
    return Process(ledger, name, declarations=(ALONE, MANY))


def sends(worker: Process | Worker) -> list[str]:
    """The operations whose sending has begun."""
    return [job.row.command_id for job in worker.jobs if isinstance(job, SendJob)]


def refused(outgoing: Any) -> list[tuple[str, str, str | None]]:
    return [(item.command_id, item.status.value, item.error_code) for item in receipts(outgoing)]


BUSY = ("NOT_SENT", "object_busy")


@pytest.mark.parametrize("presumes", [False, True])
def test_a_second_writer_waits_without_spending_anything(presumes: bool) -> None:
    """Requirements: X7. In one batch, in the next one, and in another process alike; other objects are free."""
    ledger = Ledger()
    ledger.presumes = presumes
    first, second = process(ledger), process(ledger, "adapters#2")
    outgoing = first.deliver(edit("cmd_a"), edit("cmd_b"), edit("cmd_c", 2))
    assert (sends(first), refused(outgoing)) == (["cmd_a", "cmd_c"], [("cmd_b", *BUSY)])
    assert ledger.effects["cmd_b"].sends_count == 0
    assert refused(second.deliver(edit("cmd_d"))) == [("cmd_d", *BUSY)]
    first.finish(*[Sent(job, confirmed({})) for job in first.jobs if isinstance(job, SendJob)])
    assert refused(second.deliver(edit("cmd_b", fence=2))) == []
    assert sends(second) == ["cmd_b"]


def test_types_that_need_no_object_alone_do_not_wait() -> None:
    """Requirements: X7. Only what declares it is held back, and only by what declares it."""
    worker = process(Ledger())
    worker.deliver(edit("cmd_a"), edit("cmd_b", declaration=MANY), edit("cmd_c", declaration=MANY))
    assert sends(worker) == ["cmd_a", "cmd_b", "cmd_c"]


def test_an_unknown_outcome_keeps_the_object_until_nothing_can_come_late() -> None:
    """Requirements: X7, X4. Afterwards the next one may read what is there, whoever settles the doubt, and when."""
    ledger = Ledger()
    worker = process(ledger)
    worker.deliver(edit("cmd_a"))
    worker.finish(*[Sent(job, unknown("timeout")) for job in worker.jobs if isinstance(job, SendJob)])
    assert refused(worker.deliver(edit("cmd_b", now=ledger.now))) == [("cmd_b", *BUSY)]
    ledger.now += timedelta(seconds=5.0 + TIMEOUT_SECONDS + LATE_SECONDS + 0.1)
    assert refused(worker.deliver(edit("cmd_b", fence=2, now=ledger.now))) == []
    assert sends(worker) == ["cmd_a", "cmd_b"]


def test_looking_is_never_held_back() -> None:
    """Requirements: X7, X4. Who looks changes nothing."""
    worker = process(Ledger())
    worker.deliver(edit("cmd_a"))
    outgoing = worker.deliver(find(2, of=edit("cmd_a").operation), edit("cmd_a", fence=3))
    assert (receipts(outgoing), answers(outgoing)) == ([], [])
    assert len(worker.jobs) == 3


def test_what_has_its_object_alone_names_it() -> None:
    """Requirements: X8. Exclusive without an object is a mistake; without either the hash is the one it always was."""
    with pytest.raises(ValidationError, match="names its object"):
        declare(exclusive=True)
    assert ALONE.sha256 != declare(type="alpha.edit", payload_schema=SCHEMA, acts_on="thing/{/payload/id}").sha256
    assert declare(exclusive=False).sha256 == declare().sha256


def test_every_change_of_an_existing_post_has_it_alone() -> None:
    """Requirements: X7. The site compares nothing: whoever reads a version and then writes needs the post alone."""
    for declaration in WordPressAdapter.declarations:
        changes = declaration.effect_class is not EffectClass.READ and "post_id" in str(declaration.acts_on)
        assert declaration.exclusive is changes, declaration.type


@pytest.fixture(scope="module")
def schema(fresh_database: ServerDatabase) -> ServerDatabase:
    make_schema(fresh_database, METADATA)
    return fresh_database


Store = SqlStore[SqlAdaptersTransaction]


@pytest.fixture
async def stores(schema: ServerDatabase) -> AsyncIterator[list[Store]]:
    """Of two replicas."""
    databases = [await Database.connect(schema.admin_url, schema="adapters", size=4) for _ in range(2)]
    async with databases[0].connection() as connection:
        await connection.execute("TRUNCATE effect, attempt, outbox")
    yield [sql_store(database) for database in databases]
    for database in databases:
        await database.close()


def worker_of(store: Store, name: str) -> Worker:
    worker = Worker(store, name)
    worker.process.known |= {item.sha256: item for item in (ALONE, MANY)}
    return worker


async def start_by_of(store: Store) -> datetime:
    """Far enough for any machine."""
    async with store.transaction() as tx:
        return (await tx.claim("test", []))[0].real + timedelta(minutes=5)


async def end(worker: Worker, outcome: Outcome) -> None:
    await worker.finish(*[Sent(job, outcome) for job in worker.jobs if isinstance(job, SendJob)])


async def test_replicas_share_the_object(stores: list[Store]) -> None:
    """Requirements: X7. Two processes, one database: one sends, also where both begin at once and in any order."""
    start_by = await start_by_of(stores[0])
    for number in range(8):
        one, two = worker_of(stores[0], "adapters#1"), worker_of(stores[1], "adapters#2")
        tasks = [[edit(f"cmd_{number}_{who}_{at}", at, start_by=start_by) for at in (1, 2, 3)] for who in "ab"]
        told = await asyncio.gather(one.deliver(*tasks[0]), two.deliver(*reversed(tasks[1])))
        sent = [name.rsplit("_", 1)[1] for name in (*sends(one), *sends(two))]
        assert len(sent) == len(set(sent)), "an object has two writers"
        assert all(item[1:] == BUSY for outgoing in told for item in refused(outgoing))
        assert len(sent) + sum(len(refused(outgoing)) for outgoing in told) == 6
        later = edit(f"cmd_{number}_later", int(sent[0]), start_by=start_by)
        assert refused(await worker_of(stores[1], "adapters#3").deliver(later)) == [(later.operation.command_id, *BUSY)]
        await end(one, confirmed({}))
        await end(two, confirmed({}))
    assert sends(one) or sends(two)


async def test_an_object_in_somebody_elses_hands_is_not_waited_for(stores: list[Store]) -> None:
    """Requirements: X7. A transaction under way answers for its object at once, and gives it back with its end."""
    key = ("acme", "thing/1")
    async with stores[0].transaction() as mine:
        moment, _ = await mine.claim("test", [])
        assert await mine.holders("alpha", [key], moment.real) == {key: set()}
        async with stores[1].transaction() as theirs:
            await theirs.claim("test", [])
            assert await theirs.holders("alpha", [key], moment.real) == {key: {SOMEBODY}}
    async with stores[1].transaction() as theirs:
        await theirs.claim("test", [])
        assert await theirs.holders("alpha", [key], moment.real) == {key: set()}


async def test_an_unsettled_doubt_gives_the_object_back_in_time(stores: list[Store]) -> None:
    """Requirements: X7, X4. The row may stay UNKNOWN for days: what nothing can come late of holds nobody up."""
    start_by = await start_by_of(stores[0])
    worker = worker_of(stores[0], "adapters#1")
    await worker.deliver(edit("cmd_a", start_by=start_by))
    await end(worker, unknown("timeout"))
    assert refused(await worker.deliver(edit("cmd_b", start_by=start_by))) == [("cmd_b", *BUSY)]
    async with stores[0].transaction() as tx:
        await tx.connection.execute("UPDATE effect SET late_until = now() WHERE command_id = 'cmd_a'")
    assert refused(await worker.deliver(edit("cmd_b", fence=2, start_by=start_by))) == []
    assert sends(worker) == ["cmd_a", "cmd_b"]


async def test_the_object_survives_a_restart_and_falls_free_with_the_answer(stores: list[Store]) -> None:
    """Requirements: X7, X4. The row holds it, not the process that is gone."""
    start_by = await start_by_of(stores[0])
    await worker_of(stores[0], "adapters#1").deliver(edit("cmd_a", start_by=start_by))
    again = worker_of(stores[1], "adapters#2")
    assert refused(await again.deliver(edit("cmd_b", start_by=start_by))) == [("cmd_b", *BUSY)]
    async with stores[0].transaction() as tx:
        assert (await tx.effects(["cmd_a"]))[0].object_key == "thing/1"
        await tx.connection.execute("UPDATE effect SET status = $1 WHERE command_id = 'cmd_a'", ReceiptStatus.REJECTED)
    await again.deliver(edit("cmd_b", fence=2, start_by=start_by))
    assert sends(again) == ["cmd_b"]
