"""Traps of PostgreSQL: passing failures that look like poison, times without a zone, plans of empty tables."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.servers import Database as PlaneDatabase
from tests.traps.workbench import ListDelivery, NotingHandler, NotingTransaction, event, make_loop, values
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.topology import DUE, SERVICES
from trueup_common.runtime.db import KEYED_PLANS, Database

FAILURES = {
    "serialization failure": "DO $$ BEGIN RAISE EXCEPTION 'asked to' USING ERRCODE = '40001'; END $$",
    "deadlock, as told": "DO $$ BEGIN RAISE EXCEPTION 'asked to' USING ERRCODE = '40P01'; END $$",
    "lock timeout": "DO $$ BEGIN RAISE EXCEPTION 'asked to' USING ERRCODE = '55P03'; END $$",
    "server shutting down": "DO $$ BEGIN RAISE EXCEPTION 'asked to' USING ERRCODE = '57P01'; END $$",
    "no connections left": "DO $$ BEGIN RAISE EXCEPTION 'asked to' USING ERRCODE = '53300'; END $$",
    "session killed": "SELECT pg_terminate_backend(pg_backend_pid())",
}


@pytest.mark.parametrize("name", FAILURES)
async def test_what_passes_is_repeated_inside_and_counts_as_nothing(database: Database, name: str) -> None:
    """The whole transaction runs again at once: no delivery is spent, nothing is counted, nothing happens twice.

    Requirements: M2
    """
    left = [FAILURES[name]] * 2

    async def fail(tx: NotingTransaction, message: Message) -> None:
        await tx.note("gone with the transaction")
        if left:
            await tx.connection.execute(left.pop())
        await tx.connection.execute("DELETE FROM note")

    loop, batch = make_loop(database, NotingHandler(fail)), [ListDelivery(event("m1"))]
    await loop.process(batch)
    assert [delivery.fate for delivery in batch] == ["ack"]
    assert (loop.statistics.busy_count, loop.statistics.failures_count) == (2, 0)
    assert await values(database, "SELECT text FROM note") == ["m1"]
    assert await values(database, "SELECT count(*) FROM delivery_failure") == [0]


async def test_a_real_deadlock_costs_one_repetition(database: Database) -> None:
    """Two batches lock the same two rows in opposite order; PostgreSQL ends one, which runs again by itself.

    Requirements: M2
    """
    async with database.connection() as connection:
        await connection.execute("INSERT INTO note (text) VALUES ('a'), ('b')")
    both, met = asyncio.Barrier(2), []

    def locking(*names: str) -> NotingHandler:
        async def lock(tx: NotingTransaction, message: Message) -> None:
            await tx.connection.execute("SELECT 1 FROM note WHERE text = $1 FOR UPDATE", names[0])
            if message.id not in met:  # only the first time: the repetition meets nobody
                met.append(message.id)
                await both.wait()
            await tx.connection.execute("SELECT 1 FROM note WHERE text = $1 FOR UPDATE", names[1])

        return NotingHandler(lock)

    loops = make_loop(database, locking("a", "b")), make_loop(database, locking("b", "a"))
    batches = [[ListDelivery(event(name))] for name in ("m1", "m2")]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(loop.process(batch) for loop, batch in zip(loops, batches, strict=True)))
    assert sorted(met) == ["m1", "m2"]
    assert [batch[0].fate for batch in batches] == ["ack", "ack"]
    assert sum(loop.statistics.busy_count for loop in loops) == 1
    assert sum(loop.statistics.failures_count for loop in loops) == 0
    assert sorted(await values(database, "SELECT text FROM note")) == ["a", "b", "m1", "m2"]


async def test_every_time_has_its_zone(plane_database: PlaneDatabase) -> None:
    """No column of any service could keep a time without one; sessions speak UTC whatever the server's zone is.

    Requirements: L1
    """
    owner = await asyncpg.connect(plane_database.admin_url)
    try:
        naive = await owner.fetch(
            "SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE table_schema = ANY($1) "
            "AND data_type IN ('timestamp without time zone', 'time without time zone', 'date')",
            [service.replace("-", "_") for service in SERVICES],
        )
        assert [tuple(record) for record in naive] == []
        await owner.execute(f"ALTER DATABASE \"{plane_database.name}\" SET timezone TO 'Asia/Tokyo'")
        database = await Database.connect(plane_database.url("orchestrator"), schema="orchestrator", size=1)
        try:
            assert await values(database, "SHOW timezone") == ["UTC"]
            async with database.connection() as connection:
                moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
                assert await connection.fetchval("SELECT $1::timestamptz::text", moment) == "2026-03-01 12:00:00+00"
        finally:
            await database.close()
    finally:
        await owner.execute(f'ALTER DATABASE "{plane_database.name}" RESET timezone')
        await owner.close()


async def test_plans_do_not_depend_on_when_they_were_made(database: Database) -> None:
    """A table that was empty is never scanned for ever after; a list with optional filters is planned for what it asks.

    Requirements: B4
    """
    for name, value in KEYED_PLANS.items():
        assert await values(database, f"SHOW {name}") == [value]
    async with database.search() as connection:
        assert await connection.fetchval("SHOW plan_cache_mode") == "force_custom_plan"
    assert await values(database, "SHOW plan_cache_mode") == ["force_generic_plan"]


async def test_what_is_due_is_found_by_an_index(plane_database: PlaneDatabase) -> None:
    """Each due column that the clock looks at leads an index, so a sweep costs what is due and not what there ever was.

    Requirements: B4
    """
    owner = await asyncpg.connect(plane_database.admin_url)
    try:
        for schema, table, column, _ in DUE:
            leading = await owner.fetch(
                "SELECT a.attname FROM pg_index i JOIN pg_attribute a "
                "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] WHERE i.indrelid = $1::regclass",
                f'{schema}."{table}"',
            )
            assert column in {record["attname"] for record in leading}, (schema, table, column)
    finally:
        await owner.close()
