"""Sessions at hand, and reads that the claim takes along: savings, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database as ServerDatabase

from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import StoreBusy, VersionConflict

GROUND = """
DROP TABLE IF EXISTS orchestrator.held;
CREATE TABLE orchestrator.held (name text PRIMARY KEY, number bigint, is_new boolean);
INSERT INTO orchestrator.held VALUES ('a', 9007199254740993, true), ('b', NULL, false);
"""
HELD = "SELECT name, number, is_new FROM held WHERE name = ANY($1::text[]) AND number IS DISTINCT FROM $2 ORDER BY name"
TO_CHANGE = "UPDATE held SET number = 7 WHERE name = 'a'"


@pytest.fixture
async def database(plane_database: ServerDatabase) -> AsyncIterator[Database]:
    made = await Database.connect(plane_database.admin_url, schema="orchestrator", size=2)
    async with made.connection() as connection:
        await connection.execute(GROUND)
    yield made
    await made.close()


class Counting(SqlTransaction):
    """Counts its plain reads."""

    service = "orchestrator"
    reads = 0

    @property
    def reading(self) -> Any:
        type(self).reads += 1
        return super().reading


async def test_what_was_foreseen_is_what_would_have_been_read(database: Database) -> None:
    """The same rows as without, in one round trip with the claim; another question is asked by itself.

    Requirements: M2, B3
    """
    async with SqlStore(database, Counting).transaction() as tx:
        await tx.claim("orchestrator-events", ["one"])
        plain = [dict(row) for row in await tx.ask(HELD, ["a", "b", "c"], 1)]
    assert plain == [
        {"name": "a", "number": 9007199254740993, "is_new": True},
        {"name": "b", "number": None, "is_new": False},
    ]
    async with SqlStore(database, Counting).transaction() as tx:
        tx.foresee(HELD, ["a", "b", "c"], 1)
        tx.foresee(HELD, ["nobody"], 1)
        Counting.reads = 0
        moment, fresh = await tx.claim("orchestrator-events", ["one", "two"])
        assert fresh == {"two"} and moment.real.tzinfo is not None
        assert [dict(row) for row in await tx.ask(HELD, ["a", "b", "c"], 1)] == plain
        assert await tx.ask(HELD, ["nobody"], 1) == []
        assert Counting.reads == 1
        assert [row["name"] for row in await tx.ask(HELD, ["b"], 1)] == ["b"]
        assert [dict(row) for row in await tx.ask(HELD, ["a", "b", "c"], 1)] == plain
        assert Counting.reads == 3


async def test_what_was_foreseen_is_not_told_after_a_change(database: Database) -> None:
    """Who has begun to write sees what he wrote.

    Requirements: M2
    """
    async with SqlStore(database, SqlTransaction).transaction() as tx:
        tx.foresee(HELD, ["a"], 1)
        await tx.claim("orchestrator-events", [])
        await tx.connection.execute(TO_CHANGE)
        assert [row["number"] for row in await tx.ask(HELD, ["a"], 1)] == [7]


async def test_a_session_serves_again_and_a_broken_one_does_not(
    database: Database, plane_database: ServerDatabase
) -> None:
    """What ended badly goes back to the pool, and a session that the server ended is not handed out.

    Requirements: M2
    """
    async with database.session() as first:
        process = await first.fetchval("SELECT pg_backend_pid()")
    async with database.session() as second:
        assert await second.fetchval("SELECT pg_backend_pid()") == process
    with pytest.raises(ZeroDivisionError):
        async with database.session():
            raise ZeroDivisionError
    async with database.session() as first:
        process = await first.fetchval("SELECT pg_backend_pid()")
    admin = await asyncpg.connect(plane_database.admin_url)
    await admin.execute("SELECT pg_terminate_backend($1, 5000)", process)
    await admin.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                async with database.connection() as connection:
                    assert await connection.fetchval("SELECT pg_backend_pid()") != process
                    break
            except StoreBusy:
                continue


async def test_who_waits_for_a_session_gets_one_that_is_given_back(database: Database) -> None:
    """Sessions at hand never keep the pool from those who wait for it, and closing waits for nobody.

    Requirements: M2
    """

    async def work(number: int) -> int:
        async with database.session() as connection:
            found: int = await connection.fetchval("SELECT $1::bigint FROM pg_sleep(0.005)", number)
            return found

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*(work(number) for number in range(20))) == list(range(20))
        waiting = asyncio.create_task(work(1))
        await asyncio.sleep(0)
        await database.close()
        assert await waiting == 1


async def test_an_id_that_is_presumed_to_be_new_is_found_where_it_is_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks: a message that was settled before is a conflict, and leaves nothing of its transaction.

    Requirements: M2
    """
    monkeypatch.setattr("trueup_common.runtime.clock.HEARD_SECONDS", 3600.0)
    monkeypatch.setattr("trueup_common.runtime.clock.ANSWER_SECONDS", 3600.0)
    store = SqlStore(database, Counting)
    async with store.transaction() as tx:
        assert tx.presume("orchestrator-events", ["first"]) is None, "the time was never heard"
        moment, _ = await tx.claim("orchestrator-events", ["known"])
    Counting.reads = 0
    async with store.transaction() as tx:
        tx.foresee(HELD, ["a"], 1)
        presumed = tx.presume("orchestrator-events", ["fresh"])
        assert presumed is not None and Counting.reads == 0
        assert presumed[1] == {"fresh"} and presumed[0].real >= moment.real and not tx.foreseen(HELD, ["a"], 1)
    with pytest.raises(VersionConflict):
        async with store.transaction() as tx:
            assert tx.presume("orchestrator-events", ["known", "another"]) is not None
    async with store.transaction() as tx:
        _, fresh = await tx.claim("orchestrator-events", ["known", "fresh", "another"])
        assert fresh == {"another"}


async def _sessions(database: Database) -> int:
    """Sessions of this pool, the asking one among them."""
    async with database.connection() as connection:
        return int(
            await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'spare-sessions'")
        )


async def _at_once(database: Database, number: int) -> set[int]:
    """So many sessions at work at the same moment, and at hand afterwards; which."""
    taken = [await database.take() for _ in range(number)]
    for session in taken:
        await database.give_back(session, served_well=True)
    return {session.get_server_pid() for session in taken}


async def _until_only(database: Database, number: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await _sessions(database) > number:
            await asyncio.sleep(0.01)


async def test_sessions_that_only_a_burst_needed_are_closed_after_it(plane_database: ServerDatabase) -> None:
    """Each keeps the plan of every statement that it ever ran, ten MiB and more. What is still needed stays.

    Requirements: B5
    """
    database = await Database.connect(
        plane_database.admin_url, schema="orchestrator", size=4, application="spare-sessions", spare_seconds=0.01
    )
    try:
        burst = await _at_once(database, 4)
        await database.let_go()
        needed = await _at_once(database, 2)
        assert len(burst) == 4 and needed < burst
        await database.let_go()
        await _until_only(database, 2)
        assert await _at_once(database, 2) == needed
        await database.let_go()
        assert await _at_once(database, 2) == needed
        await database.let_go()
        await database.let_go()
        await _until_only(database, 1)
        assert await _at_once(database, 1) < needed
        assert len(await _at_once(database, 4)) == 4
    finally:
        await database.close()
