"""Rows in bulk on a real PostgreSQL: several tables in one statement, a loser that learns of it, and no older row over
a newer one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.servers import Database as ServerDatabase

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import VersionConflict
from trueup_common.runtime.rows import EXPECT, Rows, RowsDiffer, Write, write

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
GROUND = f"""
CREATE SCHEMA IF NOT EXISTS trueup;
{EXPECT}
CREATE SCHEMA IF NOT EXISTS lab;
DROP TABLE IF EXISTS lab.thing, lab.mark, lab.log;
CREATE TABLE lab.thing (
  tenant text, id text, version int NOT NULL, name text UNIQUE, made_at timestamptz, data jsonb, tags text[],
  PRIMARY KEY (tenant, id));
CREATE TABLE lab.mark (id text PRIMARY KEY, note text);
CREATE TABLE lab.log (number bigint GENERATED ALWAYS AS IDENTITY, id text, note text);
"""


class Thing(ForwardContract):
    """A row with a compound key, a version, and every kind of column."""

    tenant: str = "acme"
    id: str
    version: int = 1
    name: str | None = None
    made_at: Instant | None = None
    data: Any = None
    tags: tuple[str, ...] | None = None


class Mark(ForwardContract):
    """A row without a version."""

    id: str
    note: str | None = None


THINGS = Rows("lab.thing", Thing, key=("tenant", "id"), version="version", fixed=frozenset({"made_at"}))
MARKS = Rows("lab.mark", Mark, key=("id",))


@pytest.fixture
async def lab(fresh_database: ServerDatabase) -> AsyncIterator[Database]:
    database = await Database.connect(fresh_database.admin_url, schema="lab", size=4)
    async with database.pool.acquire() as connection:
        await connection.execute(GROUND)
    yield database
    await database.close()


async def things(lab: Database) -> dict[str, Thing]:
    async with lab.connection() as connection:
        return {row.id: row for row in await THINGS.select(connection, "ORDER BY tenant, id")}


async def marks(lab: Database) -> dict[str, str | None]:
    async with lab.connection() as connection:
        return {row.id: row.note for row in await MARKS.select(connection, "ORDER BY id")}


async def put(lab: Database, *writes: Write | None) -> None:
    """One transaction with one statement."""
    async with lab.pool.acquire() as connection, connection.transaction():
        await write(connection, [item for item in writes if item is not None])


async def test_a_row_comes_back_as_it_was_written(lab: Database) -> None:
    """Text that looks like SQL or JSON, nested data, arrays, instants to the microsecond, and nothing at all."""
    whole = Thing(id="a", name="'; --\n\"\\", made_at=NOW, data={"b": [1, None, {"é": "𝄞"}]}, tags=("x", "", '"y,{}'))
    empty = Thing(id="b")
    await put(lab, THINGS.inserting([empty, whole]))
    assert await things(lab) == {"a": whole, "b": empty}
    async with lab.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM lab.thing WHERE data IS NULL AND tags IS NULL") == 1
        assert await THINGS.get(connection, "id", ["a", "nothing"]) == [whole]
        assert await THINGS.get(connection, "id", []) == []
        with pytest.raises(KeyError):
            await THINGS.get(connection, "id = id; --", ["a"])


async def test_many_tables_are_written_in_one_statement(lab: Database) -> None:
    """Inserts, updates and free statements share one round trip; their parameters do not get mixed up, past nine too.

    Requirements: M1
    """
    await put(lab, THINGS.inserting([Thing(id="old", name="before", made_at=NOW)]))
    moved = Thing(id="old", version=2, name="after", made_at=NOW + timedelta(days=9), data=[1])
    free = [
        Write("INSERT INTO lab.log (id, note) SELECT $2, $1", (f"note {number}", f"id {number}"), 1, "log")
        for number in range(6)
    ]
    await put(
        lab, THINGS.inserting([Thing(id="new")]), THINGS.updating([moved]), *free, MARKS.inserting([Mark(id="m")])
    )
    found = await things(lab)
    assert set(found) == {"old", "new"} and await marks(lab) == {"m": None}
    assert found["old"] == moved.evolve(made_at=NOW), "a fixed column keeps its value"
    async with lab.connection() as connection:
        logged = await connection.fetch("SELECT id, note FROM lab.log ORDER BY number")
    assert [(row["id"], row["note"]) for row in logged] == [(f"id {n}", f"note {n}") for n in range(6)]


async def test_a_second_table_takes_what_the_first_one_returns(lab: Database) -> None:
    """`then` sees exactly the rows that were written, not those that were asked for."""
    await put(lab, MARKS.inserting([Mark(id="there")]))
    statement = "INSERT INTO lab.mark (id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"
    follow = "INSERT INTO lab.log (id) SELECT id FROM written"
    await put(lab, Write(statement, (["there", "fresh"],), None, "mark", returning="id", then=follow))
    async with lab.connection() as connection:
        assert [row["id"] for row in await connection.fetch("SELECT id FROM lab.log")] == ["fresh"]


async def test_a_statement_alone_keeps_all_or_nothing(lab: Database) -> None:
    """Without a transaction around it: a count that differs lets the server refuse the whole statement.

    Requirements: M1
    """
    store = SqlStore(lab, SqlTransaction)
    async with store.transaction() as tx:
        tx.later(MARKS.inserting([Mark(id="m")]), THINGS.inserting([Thing(id="a"), Thing(id="b")]))
        assert not tx.connection.begun
    assert set(await things(lab)) == {"a", "b"} and await marks(lab) == {"m": None}
    fault = MARKS.inserting([Mark(id="m")], conflict=False)
    conflict = THINGS.updating([Thing(id="a", version=2), Thing(id="b", version=9)])
    then = "INSERT INTO lab.mark (id) SELECT id FROM written"
    follow = Write("INSERT INTO lab.log (id) VALUES ('x')", (), None, "log", returning="id", then=then)
    with pytest.raises(RowsDiffer, match="mark: 0 of 1"):
        async with store.transaction() as tx:
            tx.later(follow, fault)
    for order in ((fault, conflict), (conflict, fault)):
        with pytest.raises(VersionConflict, match="thing: 1 of 2"):
            async with store.transaction() as tx:
                tx.later(follow, *order)
    assert {row.version for row in (await things(lab)).values()} == {1} and await marks(lab) == {"m": None}
    async with lab.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM lab.log") == 0


async def test_a_transaction_begins_with_its_first_statement(lab: Database) -> None:
    """From there on all of it is one: what an earlier statement wrote goes with what the last one could not write."""
    store = SqlStore(lab, SqlTransaction)
    with pytest.raises(VersionConflict, match="thing: 0 of 1"):
        async with store.transaction() as tx:
            assert await THINGS.get(tx.reading, "id", ["a"]) == [] and not tx.connection.begun
            await tx.connection.execute("INSERT INTO lab.mark (id) VALUES ('first')")
            assert tx.connection.begun and await tx.reading.fetchval("SELECT count(*) FROM lab.mark") == 1
            assert await marks(lab) == {}
            tx.later(THINGS.updating([Thing(id="nowhere", version=2)]))
    assert await marks(lab) == {}
    async with store.transaction() as tx:
        tx.later(MARKS.inserting([Mark(id="flushed")]))
        await tx.flush()
        assert tx.connection.begun and await marks(lab) == {}
    assert await marks(lab) == {"flushed": None}


async def test_a_part_may_fail_alone_with_what_it_put_off(lab: Database) -> None:
    store = SqlStore(lab, SqlTransaction)
    async with store.transaction() as tx:
        tx.later(MARKS.inserting([Mark(id="before")]))
        with pytest.raises(ZeroDivisionError):
            async with tx.apart():
                await tx.connection.execute("INSERT INTO lab.mark (id) VALUES ('written')")
                tx.later(MARKS.inserting([Mark(id="put off")]))
                raise ZeroDivisionError
        with pytest.raises(VersionConflict):
            async with tx.apart():
                tx.later(THINGS.updating([Thing(id="nowhere", version=2)]))
        async with tx.apart():
            tx.later(MARKS.inserting([Mark(id="good")]))
    assert set(await marks(lab)) == {"before", "good"}


async def test_nothing_to_write_asks_nothing(lab: Database) -> None:
    assert THINGS.inserting([]) is THINGS.updating([]) is THINGS.upserting([]) is None
    await write(object(), [])


@pytest.mark.parametrize("version", [1, 3, 4])
async def test_another_version_than_the_next_is_a_conflict_and_keeps_nothing(lab: Database, version: int) -> None:
    """The loser learns of it, and of its whole transaction nothing is left, in no table.

    Requirements: M1
    """
    await put(lab, THINGS.inserting([Thing(id="a"), Thing(id="b")]))
    with pytest.raises(VersionConflict, match="thing: 1 of 2 rows"):
        await put(
            lab,
            MARKS.inserting([Mark(id="m")]),
            THINGS.updating([Thing(id="a", version=2, name="kept"), Thing(id="b", version=version, name="late")]),
        )
    assert {row.version for row in (await things(lab)).values()} == {1} and await marks(lab) == {}
    async with lab.pool.acquire() as connection, connection.transaction():
        with pytest.raises(VersionConflict):
            await THINGS.update(connection, [Thing(id="b", version=version)])


async def test_a_missing_row_is_a_conflict_too(lab: Database) -> None:
    with pytest.raises(VersionConflict, match="thing: 0 of 1"):
        await put(lab, THINGS.updating([Thing(id="nowhere", version=2)]))


async def test_of_two_that_move_the_same_row_one_wins(lab: Database) -> None:
    """Both read version 1; whoever comes second gets a conflict, whatever the interleaving."""
    await put(lab, THINGS.inserting([Thing(id="a")]))
    for version in range(2, 12):
        rows = [Thing(id="a", version=version, name=f"{who} {version}") for who in ("one", "other")]
        ends = await asyncio.gather(*(put(lab, THINGS.updating([row])) for row in rows), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["NoneType", "VersionConflict"]
        winner = rows[next(index for index, end in enumerate(ends) if end is None)]
        assert (await things(lab))["a"] == winner


async def test_a_difference_that_nobody_else_can_cause_is_a_fault_not_a_conflict(lab: Database) -> None:
    """A conflict is told first, whatever the order: repeating may cure it, and then nothing else was wrong."""
    await put(lab, MARKS.inserting([Mark(id="m")]), THINGS.inserting([Thing(id="a")]))
    fault, conflict = MARKS.inserting([Mark(id="m")], conflict=False), THINGS.updating([Thing(id="a", version=9)])
    with pytest.raises(RowsDiffer, match="mark: 0 of 1"):
        await put(lab, fault)
    for order in ((fault, conflict), (conflict, fault)):
        with pytest.raises(VersionConflict):
            await put(lab, *order)
    assert await marks(lab) == {"m": None}


async def test_rows_that_are_there_stay_as_they_are(lab: Database) -> None:
    """`absent_only` neither changes, nor fails, nor counts; without it, the same rows are a conflict."""
    await put(lab, MARKS.inserting([Mark(id="a", note="first")]))
    again = [Mark(id="b", note="new"), Mark(id="a", note="second")]
    with pytest.raises(VersionConflict, match="mark: 1 of 2"):
        await put(lab, MARKS.inserting(again))
    assert await marks(lab) == {"a": "first"}
    await put(lab, MARKS.inserting(again, absent_only=True))
    assert await marks(lab) == {"a": "first", "b": "new"}


async def test_what_is_new_is_told_under_any_unique_rule(lab: Database) -> None:
    """`insert_new` answers the keys it inserted: neither a known key nor a taken name is among them."""
    async with lab.pool.acquire() as connection:
        assert await THINGS.insert_new(connection, [Thing(id="a", name="n")]) == {("acme", "a")}
        again = [Thing(id="a"), Thing(id="b", name="n"), Thing(id="c"), Thing(id="a", tenant="globex")]
        assert await THINGS.insert_new(connection, again) == {("acme", "c"), ("globex", "a")}
        assert await THINGS.insert_new(connection, []) == set()
        with pytest.raises(asyncpg.UniqueViolationError):
            await THINGS.insert(connection, [Thing(id="c")])


@pytest.mark.parametrize("together", [True, False])
async def test_an_older_row_never_replaces_a_newer_one(lab: Database, together: bool) -> None:
    """Views are written in any order: only a higher version wins, an equal one changes nothing.

    Requirements: M2
    """

    async def upsert(*rows: Thing) -> None:
        if together:
            await put(lab, MARKS.upserting([Mark(id="m", note=rows[0].name)]), THINGS.upserting(rows))
            return
        async with lab.pool.acquire() as connection:
            await THINGS.upsert(connection, rows)

    await upsert(Thing(id="a", version=5, name="five"), Thing(id="b", version=1))
    for version, expected in ((4, "five"), (5, "five"), (6, "at 6"), (1, "at 6")):
        await upsert(Thing(id="a", version=version, name=f"at {version}"), Thing(id=f"c{version}", version=1))
        assert (await things(lab))["a"].name == expected
    assert set(await things(lab)) == {"a", "b", "c1", "c4", "c5", "c6"}
    assert await marks(lab) == ({"m": "at 1"} if together else {}), "without a version the last one wins"


async def test_batches_in_opposite_order_do_not_wait_for_each_other_for_ever(lab: Database) -> None:
    """Rows are written in key order, so two batches over the same rows never deadlock."""
    rows = [Thing(id=f"{number:02}") for number in range(40)]
    for version in range(1, 9):
        newer = [row.evolve(version=version) for row in rows]
        await asyncio.gather(put(lab, THINGS.upserting(newer)), put(lab, THINGS.upserting(newer[::-1])))
    for number in range(8):
        fresh = [Mark(id=f"{number}-{index}") for index in range(40)]
        batches = (MARKS.inserting(part, absent_only=True) for part in (fresh, fresh[::-1]))
        await asyncio.gather(*(put(lab, batch) for batch in batches))
    assert {row.version for row in (await things(lab)).values()} == {8} and len(await marks(lab)) == 320


def test_updates_name_their_rows_in_key_order() -> None:
    """The order in which an update takes its locks never depends on the order in which a batch met its rows."""
    wanted = [f"{number:02}" for number in range(20)]
    written = THINGS.updating([Thing(id=name) for name in reversed(wanted)])
    assert written is not None
    assert [row["id"] for row in json.loads(written.arguments[0])] == wanted


async def test_a_session_that_the_batch_meets_can_be_repeated(lab: Database) -> None:
    """After a conflict the same connection works on: the transaction was rolled back, not the session."""
    await put(lab, THINGS.inserting([Thing(id="a")]))
    async with lab.pool.acquire() as connection:
        for version, fails in ((5, True), (2, False)):
            try:
                async with connection.transaction():
                    await write(
                        connection, [item for item in [THINGS.updating([Thing(id="a", version=version)])] if item]
                    )
                assert not fails
            except VersionConflict:
                assert fails
    assert (await things(lab))["a"].version == 2
