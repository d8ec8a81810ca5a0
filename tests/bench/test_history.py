"""The history that is made up has to be like the one that happened: every table, ids of its own, nothing falls due."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from bench.flatness import Side, compared
from bench.seeding import Row, next_transaction, own_rows, rows_since, seed
from bench.stacks import TrueupPlane

from tests.servers import Database
from trueup_common.contracts.ids import new_id

TABLES = """
CREATE SCHEMA one; CREATE SCHEMA two;
CREATE TABLE one.shared (cap text PRIMARY KEY, uses int);
CREATE TABLE one.command (id text PRIMARY KEY, key text UNIQUE, cap text, due timestamptz, body jsonb);
CREATE TABLE two.posted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message text, data bytea);
CREATE TABLE two.progress (stream text PRIMARY KEY, at int);
INSERT INTO one.shared VALUES ('cap_' || md5('shared'), 10);
"""
A_COMMAND = """
INSERT INTO one.command VALUES ('cmd_' || md5('{0}'), '0123456789ab-{0}', 'cap_' || md5('shared'),
  now() + interval '1 minute', jsonb_build_object('again', 'cmd_' || md5('{0}')));
INSERT INTO two.posted (message, data) VALUES ('cmd_' || md5('{0}') || ':CONFIRMED', '\\x00ff');
UPDATE one.shared SET uses = uses - 1;
INSERT INTO two.progress VALUES ('EVENTS', 1) ON CONFLICT (stream) DO UPDATE SET at = two.progress.at + 1;
"""
COPIES = 50
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def _seed(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TABLES)
        seen = []
        for number in (1, 2):
            mark = await next_transaction(connection)
            await connection.execute(A_COMMAND.format(number))
            seen.append(await rows_since(connection, ["one", "two"], mark))
        rows, own = own_rows(*seen)
        assert sorted(row.table for row in rows) == ["command", "posted"]
        assert await seed(url, rows, own, 1, COPIES) == 2 * COPIES
        counted = await connection.fetchrow(
            """
            SELECT (SELECT count(*) FROM one.command) AS commands, (SELECT count(*) FROM one.shared) AS shared,
              (SELECT count(DISTINCT message) FROM two.posted) AS posted,
              (SELECT count(*) FROM two.posted WHERE data = '\\x00ff') AS bytes,
              (SELECT count(*) FROM one.command WHERE body->>'again' = id) AS alike,
              (SELECT count(*) FROM one.command WHERE due < now() + interval '1 day') AS due,
              (SELECT count(*) FROM one.command JOIN two.posted ON message = one.command.id || ':CONFIRMED') AS joined
            """
        )
        return dict(counted)
    finally:
        await connection.close()


def test_copies_are_whole_and_distinct(fresh_database: Database) -> None:
    """Shared rows stay single, rows of one copy belong together, bytes survive, and nothing of them falls due."""
    everything = COPIES + 2
    assert asyncio.run(_seed(fresh_database.admin_url)) == {
        "commands": everything,
        "shared": 1,
        "posted": everything,
        "bytes": everything,
        "alike": everything,
        "due": 2,
        "joined": everything,
    }


def test_a_row_of_both_commands_is_not_copied() -> None:
    """Only ids that the second command does not carry belong to the first alone."""
    mine, theirs, both = ("cmd_" + letter * 32 for letter in "abc")
    first = [_row(mine, both), _row(both)]
    second = [_row(theirs, both)]
    rows, own = own_rows(first, second)
    assert (rows, own) == ([first[0]], [mine])


def _row(key: str, other: str = "") -> Row:
    return Row("s", "t", ("key", "other"), ("key",), (), (), {"key": key, "other": other})


@pytest.mark.parametrize(("long_cpu", "long_speed", "verdict"), [(3.2, 290.0, ": flat"), (3.4, 300.0, ": NOT FLAT")])
def test_flat_is_within_a_tenth(long_cpu: float, long_speed: float, verdict: str) -> None:
    """Of CPU and of throughput."""
    sides = []
    for closed, cpu, speed in ((1000, 3.0, 300.0), (100_000, long_cpu, long_speed)):
        plane = TrueupPlane("unused", "bench.post", "http://127.0.0.1:9", units_max=1)
        plane.stop()
        sides.append(Side(closed, plane, [cpu], [speed], [10.0], [Counter(a=40.0)], Counter(a=5.0), 0.05))
    lines, figures, failed = compared(sides)
    assert any(line.endswith(verdict) for line in lines)
    assert not failed
    assert json.loads(json.dumps(figures))["100000"]["cpu_s_per_1000"] == long_cpu


async def _named(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE SCHEMA four; CREATE TABLE four.command (id text PRIMARY KEY)")
        row = Row("four", "command", ("id",), ("id",), (), (), {"id": new_id("cmd", NOW)})
        await seed(url, [row], [row.values["id"]], 1, COPIES)
        return [record["id"] for record in await connection.fetch("SELECT id FROM four.command ORDER BY id")]
    finally:
        await connection.close()


def test_copies_of_what_is_in_the_order_of_time_lie_before_it(fresh_database: Database) -> None:
    """Ids of a long history lie where real ones would: the next command comes after all of them.

    Requirements: B4
    """
    names = asyncio.run(_named(fresh_database.admin_url))
    assert len(set(names)) == COPIES and {len(name) for name in names} == {36}
    moments = [int(name[4:16], 16) for name in names]
    assert moments == [moments[0] + number for number in range(COPIES)]
    assert names[-1] < new_id("cmd", NOW - timedelta(days=29))
