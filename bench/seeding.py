"""History without running it: copies of what one really closed command left behind, in every table of every service.

Two commands run one after the other. Ids that only the first one's rows carry belong to it alone; a row is copied
where such an id stands in its primary key, or where its key is a number that the database deals out. Every copy gets
ids of its own, spread like real ones. Nothing here needs to know a table by name, so a new table is copied as well.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

ID = re.compile(r"\b[a-z]{2,5}_[0-9a-f]{32}\b|\b[0-9a-f]{12}-[0-9]+\b")
"""Ids of the product, and the idempotency keys of the load client."""
BATCH = 10_000
SESSIONS = 2
SECONDS_MAX = 3600.0
MANY = 50_000
"""From so many copies on the log is spared: nobody needs to recover a made-up history."""
KEPT_BRIEFLY = {"outbox": 100_000}
"""Mail that was sent is kept for an hour, and a long history does not fit into one: the last copies have it."""
FUTURE_SHIFT = "interval '30 days'"
"""What was due after the command's end stays ahead: copies that all fall due together are another test."""
HISTORY_SHIFT = "interval '30 days'"
HISTORY_MILLISECONDS = 30 * 86_400_000
MOMENT = 12
"""How many digits of an id tell its moment."""
MOMENTS = range(946_684_800_000, 4_102_444_800_000)
"""Milliseconds of this century: an id that begins with any other number is one without a moment."""
BEGAN = "created_at"
"""History began long ago: the minute that is being counted for the key figures holds only its own commands."""

_TABLES = """
SELECT n.nspname AS schema, c.relname AS name,
  array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attidentity = '' AND a.attgenerated = '' ORDER BY a.attnum) AS columns,
  array(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
        WHERE i.indrelid = c.oid AND i.indisprimary) AS key,
  array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attidentity <> '') AS dealt,
  (SELECT json_object_agg(a.attname, format_type(a.atttypid, a.atttypmod)) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text AS types,
  array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
        AND a.atttypid = 'timestamptz'::regtype) AS moments
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = ANY($1::text[]) ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Row:
    """One row that a command left behind."""

    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    dealt: tuple[str, ...]
    ahead: tuple[str, ...]
    """Columns with a moment that still lay ahead."""
    values: dict[str, Any]
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of the columns; one that is left out is text."""

    @property
    def text(self) -> str:
        """The row as JSON, without what the database deals out."""
        return json.dumps({name: self.values[name] for name in self.columns})

    @property
    def ids(self) -> set[str]:
        """Every id in it, bytes excluded."""
        return ids_in(self.text)


def ids_in(text: str) -> set[str]:
    """The ids in a text."""
    return set(ID.findall(text))


def own_rows(first: Sequence[Row], second: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The first command's rows that can be copied, and the ids that belong to it alone."""
    shared = set().union(*(row.ids for row in second)) if second else set()
    own = set().union(*(row.ids for row in first)) - shared if first else set()
    kept = []
    for row in first:
        key_ids = ids_in(json.dumps([row.values[name] for name in row.key]))
        if key_ids & own or (row.dealt and row.ids & own):
            kept.append(row)
    return kept, sorted(own)


def _copied(row: Row, name: str, own: Iterable[str], moments: Mapping[str, str]) -> str:
    """One column of a copy: as it is in the row, or with ids and moments of its own."""
    if name in row.ahead and str(row.values[name]) not in moments:
        return f'r."{name}" + {FUTURE_SHIFT}'
    if name == BEGAN and row.table.endswith("_view"):
        return f'r."{name}" - {HISTORY_SHIFT}'
    said = json.dumps(row.values[name])
    if isinstance(row.values[name], str) and row.values[name] in moments:
        return f"({moments[row.values[name]]})::{row.types.get(name, 'text')}"
    own_here = sorted(set(own) & ids_in(said))
    moved_here = sorted(moment for moment in moments if moment in said)
    if not own_here and not moved_here:
        return f'r."{name}"'
    renamed = f'r."{name}"::text'
    for one in own_here:
        renamed = f"replace({renamed}, '{one}', {_named(one)})"
    for moment in moved_here:
        renamed = f"replace({renamed}, '{moment}', {moments[moment]})"
    return f"({renamed})::{row.types.get(name, 'text')}"


def _named(one: str) -> str:
    """The id of a copy: one that begins with its moment keeps to the order of time, a millisecond for each copy."""
    prefix, _, rest = one.rpartition("_")
    spread = f"md5('{one}' || i)"
    if not prefix:
        return spread
    moment = int(rest[:MOMENT], 16)
    if moment not in MOMENTS:
        return f"'{prefix}_' || {spread}"
    began = moment - HISTORY_MILLISECONDS
    return f"'{prefix}_' || lpad(to_hex({began}::bigint + i), {MOMENT}, '0') || substr({spread}, {MOMENT + 1})"


def copying(row: Row, own: Iterable[str], moments: Mapping[str, str] | None = None) -> str:
    """The statement that makes copies numbered from $1 to $2 of a row that is $3.

    What a copy shares with the row is made once; only what differs is made anew for each.
    """
    columns = ", ".join(f'"{name}"' for name in row.columns)
    copied = ", ".join(_copied(row, name, own, moments or {}) for name in row.columns)
    table = f'"{row.schema}"."{row.table}"'
    return (
        f"INSERT INTO {table} ({columns}) SELECT {copied}"
        f" FROM jsonb_populate_record(NULL::{table}, $3::text::jsonb) AS r, generate_series($1::int, $2::int) AS i"
    )


async def rows_since(connection: Any, schemas: Sequence[str], mark: int) -> list[Row]:
    """Every row of the services that was written by a transaction from `mark` on."""
    found = []
    for table in await connection.fetch(_TABLES, list(schemas)):
        name = f'"{table["schema"]}"."{table["name"]}"'
        ahead = [f"CASE WHEN t.\"{column}\" > now() THEN '{column}' END" for column in table["moments"]]
        for record in await connection.fetch(
            f"SELECT to_jsonb(t)::text AS row, array_remove(array[{', '.join(['NULL::text', *ahead])}], NULL) AS ahead"
            f" FROM {name} AS t WHERE t.xmin::text::bigint >= $1",
            mark,
        ):
            found.append(
                Row(
                    table["schema"],
                    table["name"],
                    tuple(table["columns"]),
                    tuple(table["key"]),
                    tuple(table["dealt"]),
                    tuple(record["ahead"]),
                    json.loads(record["row"]),
                    json.loads(table["types"]),
                )
            )
    return found


async def next_transaction(connection: Any) -> int:
    """A transaction id above all before."""
    return int(await connection.fetchval("SELECT pg_current_xact_id()::text::bigint"))


async def seed(
    url: str, rows: Sequence[Row], own: Sequence[str], first: int, last: int, moments: Mapping[str, str] | None = None
) -> int:
    """Make copies numbered from first to last; how many rows that were. Triggers and references are not asked.

    `moments` are texts of the row, a moment each, with the SQL of what a copy has in its place.
    """
    statements = [(row, copying(row, own, moments)) for row in rows]
    starts = iter(range(first, last + 1, BATCH))
    async with _sparing_the_log(url, last - first + 1):
        made = await asyncio.gather(*(_copies(url, statements, starts, last) for _ in range(SESSIONS)))
    connection = await asyncpg.connect(url, command_timeout=SECONDS_MAX)
    try:
        await connection.execute("SET maintenance_work_mem = '256MB'")
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    return sum(made)


async def _copies(url: str, statements: Sequence[tuple[Row, str]], starts: Iterator[int], last: int) -> int:
    """One session's part of the copies."""
    connection = await asyncpg.connect(url, command_timeout=SECONDS_MAX)
    made = 0
    try:
        await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off")
        for start in starts:
            end = min(last, start + BATCH - 1)
            for row, statement in statements:
                if end > last - KEPT_BRIEFLY.get(row.table, last):
                    await connection.execute(statement, start, end, row.text)
                    made += end - start + 1
    finally:
        await connection.close()
    return made


@asynccontextmanager
async def _sparing_the_log(url: str, copies: int) -> AsyncIterator[None]:
    """Without whole pages in the log where many rows are made."""
    if copies < MANY:
        yield
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("ALTER SYSTEM SET full_page_writes = off")
        await connection.execute("SELECT pg_reload_conf()")
        yield
    finally:
        await connection.execute("ALTER SYSTEM RESET full_page_writes")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
