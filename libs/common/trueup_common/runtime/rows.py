"""Rows: contracts in and out of tables in bulk. One JSON parameter per batch, never one statement per row."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, EnumType
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import asyncpg
from pydantic import BaseModel

from trueup_common.contracts.shape import ForwardContract, json_bytes, record
from trueup_common.runtime.ports import VersionConflict

M = TypeVar("M", bound=BaseModel)

_PARAMETER: Final = re.compile(r"\$(\d+)")


def _document(rows: Iterable[BaseModel], columns: Sequence[str]) -> str:
    """One JSON parameter for many rows. Columns without a value are left out: the recordset fills them with NULL."""
    return json_bytes(
        [
            {name: value for name in columns if (value := values[name]) is not None}
            for values in (row.__dict__ for row in rows)
        ]
    ).decode()


@record
class Write:
    """One part of a statement that writes several tables at once: what to write, and how many rows must come of it.

    `conflict` says that another replica was first where the count differs; without it that is a fault. `then` writes
    once more, with what `returning` tells of the rows (as `written`). `plain` is the statement without
    ON CONFLICT DO NOTHING, for rows that are hardly ever there: it costs less, and fails where one is.
    """

    statement: str
    arguments: tuple[Any, ...]
    rows: int | None
    name: str
    conflict: bool = True
    returning: str = "1"
    then: str | None = None
    plain: str | None = None


EXPECT: Final = """
CREATE OR REPLACE FUNCTION trueup.expect(names text[], counted bigint[], wanted bigint[], conflicts boolean[])
  RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE fault text;
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    IF counted[i] <> wanted[i] THEN
      fault := pg_catalog.format('%s: %s of %s rows were written', names[i], counted[i], wanted[i]);
      IF conflicts[i] THEN RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = fault; END IF;
    END IF;
  END LOOP;
  IF fault IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'assert_failure', MESSAGE = fault; END IF;
  RETURN true;
END $$;
"""
"""Lets a statement fail that wrote other numbers of rows than it must; a conflict goes before a fault."""


class RowsDiffer(Exception):
    """A write that nobody else can have forestalled did not find or leave the rows that it must."""


class Ask:
    """A read that goes along with another one; equal where statement and arguments are."""

    __slots__ = ("arguments", "statement")

    def __init__(self, statement: str, arguments: tuple[Any, ...]) -> None:
        self.statement = statement
        self.arguments = arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ask) and (self.statement, self.arguments) == (other.statement, other.arguments)

    def __hash__(self) -> int:
        return hash(self.statement)


@lru_cache(maxsize=256)
def _asking(statement: str, arguments: int, asks: tuple[tuple[str, int], ...]) -> str:
    """A statement of one row with more columns: the rows of other statements, each as a JSON list."""
    columns = []
    for number, (asked, count) in enumerate(asks):
        moved = _PARAMETER.sub(lambda found, by=arguments: f"${int(found[1]) + by}", asked)  # type: ignore[misc]
        columns.append(f"(SELECT json_agg(a) FROM ({moved}) AS a) AS told{number}")
        arguments += count
    return ", ".join([statement, *columns])


def together(statement: str, arguments: tuple[Any, ...], asks: Sequence[Ask]) -> tuple[str, list[Any]]:
    """One statement of one row that takes other reads along, and all its arguments."""
    if not asks:
        return statement, list(arguments)
    text = _asking(statement, len(arguments), tuple((item.statement, len(item.arguments)) for item in asks))
    return text, [*arguments, *(argument for item in asks for argument in item.arguments)]


_Part = tuple[str, int, str, str | None, str, bool]


def _part(item: Write) -> _Part:
    """What the text of a statement depends on."""
    return item.statement, len(item.arguments), item.returning, item.then, item.name, item.conflict


def _plain_part(item: Write) -> _Part:
    """The same for the statement without ON CONFLICT DO NOTHING."""
    return item.plain or item.statement, len(item.arguments), item.returning, item.then, item.name, item.conflict


def _parts(parts: Sequence[_Part]) -> tuple[str, str, int]:
    """All parts by name, their counts, and how many parameters they have. Counts, and so locks, are taken in order."""
    named: list[str] = []
    first = 0
    for number, (statement, arguments, returning, then, _, _) in enumerate(parts):
        moved = _PARAMETER.sub(lambda found, by=first: f"${int(found[1]) + by}", statement)  # type: ignore[misc]
        named.append(f"w{number} AS ({moved} RETURNING {returning})")
        if then is not None:
            named.append(f"t{number} AS ({then.replace('written', f'w{number}')})")
        first += arguments
    counts = ", ".join(f"(SELECT count(*) FROM w{number})" for number in range(len(parts)))
    return ", ".join(named), counts, first


@lru_cache(maxsize=256)
def _at_once(parts: tuple[_Part, ...]) -> str:
    """One statement of many, which tells its counts."""
    named, counts, _ = _parts(parts)
    return f"WITH {named} SELECT {counts}"


@lru_cache(maxsize=256)
def _alone(parts: tuple[_Part, ...]) -> str:
    """One statement of many, which fails where a count differs: the last parameter says what they must be."""
    named, counts, arguments = _parts(parts)
    names = ", ".join(f"'{name}'" for _, _, _, _, name, _ in parts)
    conflicts = ", ".join(str(conflict) for *_, conflict in parts)
    return (
        f"WITH {named} "
        f"SELECT trueup.expect(ARRAY[{names}], ARRAY[{counts}], ${arguments + 1}::text::bigint[], ARRAY[{conflicts}])"
    )


async def write_alone(connection: Any, writes: Sequence[Write]) -> None:
    """Write several tables in one statement that is a transaction of its own (ADR 0025).

    Where a count differs, the server lets it fail and keeps nothing: `asyncpg.SerializationError` for a conflict,
    `asyncpg.AssertError` for a fault. A key that is taken fails the plain statements before anything is counted;
    then the others say which of both it is.
    """
    arguments = [argument for item in writes for argument in item.arguments]
    counts = f"{{{','.join('NULL' if item.rows is None else str(item.rows) for item in writes)}}}"
    try:
        await connection.execute(_alone(tuple(map(_plain_part, writes))), *arguments, counts)
    except asyncpg.UniqueViolationError:
        await connection.execute(_alone(tuple(map(_part, writes))), *arguments, counts)


async def write(connection: Any, writes: Sequence[Write]) -> None:
    """Write several tables in one round trip. Raises VersionConflict where another replica was first."""
    if not writes:
        return
    text = _at_once(tuple(map(_part, writes)))
    counts = tuple(await connection.fetchrow(text, *[argument for item in writes for argument in item.arguments]))
    for conflict in (True, False):
        for item, count in zip(writes, counts, strict=True):
            if item.conflict is conflict and item.rows is not None and item.rows != count:
                kind = VersionConflict if conflict else RowsDiffer
                raise kind(f"{item.name}: {count} of {item.rows} rows were written")


_PLAIN: Final = frozenset({str, int, float, bool, datetime, type(None)})
"""What the driver gives as the contract wants it: columns have the contract's own types."""
_IN_JSON: Final = frozenset({str, int, bool, type(None)})

Members = Mapping[Any, Enum]


def _forms(model: type[BaseModel]) -> list[tuple[str, Members | None]] | None:
    """The columns whose values have another form in a contract: an enumeration's members, None for anything else.

    Rows were checked when they were written, so reading them is only a change of form (ADR 0010). None altogether for
    a contract that only pydantic can put together.
    """
    if not issubclass(model, ForwardContract):
        return None
    found: list[tuple[str, Members | None]] = []
    for name, field in model.model_fields.items():
        kinds = _types(field.annotation) - {type(None)}
        if Any in kinds or kinds <= _PLAIN:
            continue
        only = kinds.pop() if len(kinds) == 1 else None
        found.append(
            (name, {item.value: item for item in cast(type[Enum], only)} if isinstance(only, EnumType) else None)
        )
    return found


def _types(annotation: Any) -> set[Any]:
    """The types that an annotation stands for; JSON objects and lists of plain things count as anything."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*(_types(item) for item in get_args(annotation)))
    if origin in (dict, list):
        inner = set().union(*(_types(item) for item in get_args(annotation)))
        return {Any} if Any in inner or inner <= _IN_JSON else {annotation}
    return {annotation}


class Rows(Generic[M]):
    """Bulk access to the rows of one table that a contract describes.

    Rows are always written in key order, so that two batches cannot deadlock on them.
    """

    def __init__(
        self,
        table: str,
        model: type[M],
        *,
        key: tuple[str, ...],
        version: str | None = None,
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        """`table` is `schema.name`; every field of the contract is a column of it.

        `version` is the compare-and-set column; `fixed` names columns that no update ever writes.
        """
        self.table = table
        schema, _, self.name = table.rpartition(".")
        self.model = model
        self.key = key
        self.version = version
        name = f'{schema}."{self.name}"'
        columns = list(model.model_fields)
        listed = ", ".join(f'"{column}"' for column in columns)
        rest = [column for column in columns if column not in key]
        order = ", ".join(f'r."{column}"' for column in key)
        same = " AND ".join(f't."{column}" = r."{column}"' for column in key)
        conflict = ", ".join(f'"{column}"' for column in key)
        changes = ", ".join(f'"{column}" = r."{column}"' for column in rest if column not in fixed)
        excluded = ", ".join(f'"{column}" = excluded."{column}"' for column in rest)
        source = f"json_populate_recordset(NULL::{name}, $1::text::json) AS r"
        chosen = ", ".join(f'r."{column}"' for column in columns)
        self._insert = f"INSERT INTO {name} ({listed}) SELECT {chosen} FROM {source} ORDER BY {order}"
        self._insert_absent = f"{self._insert} ON CONFLICT DO NOTHING"
        self._insert_new = f"{self._insert_absent} RETURNING {conflict}"
        guard = f' AND t."{version}" = r."{version}" - 1' if version else ""
        self._update = f"UPDATE {name} AS t SET {changes} FROM {source} WHERE {same}{guard}"
        newer = f' WHERE t."{version}" < excluded."{version}"' if version else ""
        self._upsert = (
            f"INSERT INTO {name} AS t ({listed}) SELECT {chosen} FROM {source} ORDER BY {order} "
            f"ON CONFLICT ({conflict}) DO UPDATE SET {excluded}{newer}"
        )
        self._select = f"SELECT {listed} FROM {name}"
        self._columns = columns
        self._width = len(model.model_fields)
        self._forms = _forms(model)
        self._changing = [column for column in columns if column not in fixed]

    def key_of(self, row: M) -> tuple[Any, ...]:
        """The key of a row."""
        return tuple(getattr(row, column) for column in self.key)

    async def insert(self, connection: Any, rows: Sequence[M]) -> None:
        """Insert rows; an existing key raises asyncpg.UniqueViolationError."""
        if rows:
            await connection.execute(self._insert, _document(rows, self._columns))

    async def insert_new(self, connection: Any, rows: Sequence[M]) -> set[tuple[Any, ...]]:
        """Insert what is not there yet (under any unique constraint); answers the keys that were inserted."""
        if not rows:
            return set()
        return {tuple(record) for record in await connection.fetch(self._insert_new, _document(rows, self._columns))}

    async def update(self, connection: Any, rows: Sequence[M]) -> None:
        """Compare-and-set: each row's version must be the stored one plus 1. Raises VersionConflict otherwise."""
        if not rows:
            return
        ordered = sorted(rows, key=self.key_of)
        status: str = await connection.execute(self._update, _document(ordered, self._changing))
        changed = int(status.rsplit(" ", 1)[1])
        if changed != len(rows):
            raise VersionConflict(f"{self.name}: {len(rows) - changed} of {len(rows)} rows moved first")

    async def upsert(self, connection: Any, rows: Sequence[M]) -> None:
        """Insert or replace; with a version column an older row never replaces a newer one. Keys must be distinct."""
        if rows:
            await connection.execute(self._upsert, _document(rows, self._columns))

    def inserting(self, rows: Sequence[M], *, conflict: bool = True, absent_only: bool = False) -> Write | None:
        """Insert rows together with other writes; with `absent_only`, those that are there stay as they are."""
        if not rows:
            return None
        count, plain = (None, None) if absent_only else (len(rows), self._insert)
        document = _document(rows, self._columns)
        return Write(self._insert_absent, (document,), count, self.name, conflict, plain=plain)

    def updating(self, rows: Sequence[M]) -> Write | None:
        """Compare-and-set together with other writes."""
        if not rows:
            return None
        ordered = sorted(rows, key=self.key_of)
        return Write(self._update, (_document(ordered, self._changing),), len(rows), self.name)

    def upserting(self, rows: Sequence[M]) -> Write | None:
        """Insert or replace by version together with other writes."""
        return Write(self._upsert, (_document(rows, self._columns),), None, self.name) if rows else None

    async def get(self, connection: Any, column: str, values: Sequence[Any]) -> list[M]:
        """All rows whose column has one of the values."""
        if not values:
            return []
        if column not in self._columns:
            raise KeyError(column)
        records = await connection.fetch(f'{self._select} WHERE "{column}" = ANY($1)', list(values))
        return self.read(records)

    async def select(self, connection: Any, tail: str, *arguments: Any) -> list[M]:
        """Rows by the rest of a statement (`WHERE … ORDER BY … LIMIT … FOR UPDATE SKIP LOCKED`)."""
        return self.read(await connection.fetch(f"{self._select} {tail}", *arguments))

    def read(self, records: Iterable[Any]) -> list[M]:
        """Records as contracts."""
        return [self._row(dict(record)) for record in records]

    def _row(self, fields: dict[str, Any]) -> M:
        if self._forms is None or len(fields) != self._width:
            return self.model.model_validate(fields)
        for name, members in self._forms:
            value = fields[name]
            if value is None:
                continue
            if members is None:
                return self.model.model_validate(fields)
            fields[name] = members[value]
        return cast(M, cast(type[ForwardContract], self.model).trusted(**fields))
