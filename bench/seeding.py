"""History without running it: copies of what one really closed command left behind, in every table of every service.

Two commands run one after the other. Ids that only the first one's rows carry belong to it alone; a row is copied
where such an id stands in its primary key, or where its key is a number that the database deals out. Every copy gets
ids of its own, spread like real ones. Nothing here knows a table by name, so a new table is copied as well.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

ID = re.compile(r"\b[a-z]{2,5}_[0-9a-f]{32}\b|\b[0-9a-f]{12}-[0-9]+\b")
"""Ids of the product, and the idempotency keys of the load client."""
BATCH = 20_000
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


def _shifted(row: Row, name: str) -> str:
    if name in row.ahead:
        return f'r."{name}" + {FUTURE_SHIFT}'
    if name == BEGAN and row.table.endswith("_view"):
        return f'r."{name}" - {HISTORY_SHIFT}'
    return f'r."{name}"'


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


def copying(row: Row, own: Iterable[str]) -> str:
    """The statement that makes copies numbered from $1 to $2 of a row that is $3."""
    renamed = "$3::text"
    for one in sorted(set(own) & row.ids):
        renamed = f"replace({renamed}, '{one}', {_named(one)})"
    columns = ", ".join(f'"{name}"' for name in row.columns)
    shifted = ", ".join(_shifted(row, name) for name in row.columns)
    table = f'"{row.schema}"."{row.table}"'
    return (
        f"INSERT INTO {table} ({columns}) SELECT {shifted} FROM generate_series($1::int, $2::int) AS i,"
        f" LATERAL jsonb_populate_record(NULL::{table}, ({renamed})::jsonb) AS r"
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
                )
            )
    return found


async def next_transaction(connection: Any) -> int:
    """A transaction id above all before."""
    return int(await connection.fetchval("SELECT pg_current_xact_id()::text::bigint"))


async def seed(url: str, rows: Sequence[Row], own: Sequence[str], first: int, last: int) -> int:
    """Make copies numbered from first to last; how many rows that were. Triggers and references are not asked."""
    connection = await asyncpg.connect(url, command_timeout=1800)
    made = 0
    try:
        await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off")
        for start in range(first, last + 1, BATCH):
            end = min(last, start + BATCH - 1)
            for row in rows:
                await connection.execute(copying(row, own), start, end, row.text)
                made += end - start + 1
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    return made
