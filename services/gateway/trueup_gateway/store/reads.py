"""Reads of the API: no locks, no writes, always one tenant's rows."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.runtime.db import Database
from trueup_gateway.core.records import DecisionRow, FreezeRow, PolicyRow
from trueup_gateway.core.view_records import CaseView, CommandView, ElementView, ExceptionView
from trueup_gateway.store.rows import (
    CASES,
    CASES_SOURCE,
    COMMANDS,
    COMMANDS_SOURCE,
    DECISIONS,
    ELEMENTS,
    EXCEPTIONS,
    FREEZES,
    OPEN,
    POLICIES,
    Page,
    Reader,
    before,
)


class Reads:
    """A connection at a time; each group of reads is a class of its own on this."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._database.connection() as connection:
            yield connection

    @asynccontextmanager
    async def _search(self) -> AsyncIterator[Any]:
        async with self._database.search() as connection:
            yield connection


_WHOLE_CASE: Final = f"""
SELECT c.*,
  (SELECT json_agg("row") FROM (SELECT "row" FROM {COMMANDS_SOURCE} AS o WHERE workflow_id = $1
     ORDER BY created_at LIMIT 500) AS o) AS operations,
  (SELECT json_agg(e) FROM (SELECT * FROM gateway.element_view WHERE workflow_id = $1
     ORDER BY system, resource, element LIMIT 500) AS e) AS elements
FROM {CASES_SOURCE} AS c WHERE workflow_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)
"""


class CoreReads(Reads):
    """Reads of decisions, commands, cases, exceptions and governance."""

    async def alive(self) -> bool:
        """True where the database answers."""
        async with self._connection() as connection:
            return bool(await connection.fetchval("SELECT true"))

    async def business_now(self) -> datetime:
        """Business time."""
        async with self._connection() as connection:
            now: datetime = await connection.fetchval("SELECT trueup.now()")
            return now

    async def decision(self, reader: Reader, decision_id: str) -> DecisionRow | None:
        """One decision."""
        async with self._connection() as connection:
            tail = "WHERE decision_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)"
            rows = await DECISIONS.select(connection, tail, decision_id, reader.tenant, reader.subject)
        return next(iter(rows), None)

    async def command_row(self, reader: Reader, command_id: str) -> dict[str, Any] | None:
        """The journal row of one command as it was projected."""
        async with self._connection() as connection:
            row: dict[str, Any] | None = await connection.fetchval(
                f'SELECT "row" FROM {COMMANDS_SOURCE} AS c '
                "WHERE command_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)",
                command_id,
                reader.tenant,
                reader.subject,
            )
        return row

    async def around_command(self, command_id: str, workflow_id: str) -> tuple[str | None, bool]:
        """Of a command that the caller may read: the newest that took its place, and whether its case owes anything."""
        async with self._connection() as connection:
            row = await connection.fetchrow(
                "SELECT (SELECT command_id FROM gateway.lineage WHERE supersedes = $1 ORDER BY created_at DESC LIMIT 1)"
                " AS superseded_by, EXISTS (SELECT 1 FROM gateway.case_view WHERE workflow_id = $2 "
                "AND json_array_length(obligations) > 0) AS owes",
                command_id,
                workflow_id,
            )
        return row["superseded_by"], row["owes"]

    async def command_rows(self, command_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Journal rows of commands that this gateway itself waits for."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT row FROM gateway.command_view WHERE command_id = ANY($1)", list(command_ids)
            )
        return [row["row"] for row in rows]

    async def cases_over(self, workflow_ids: Sequence[str]) -> list[str]:
        """Which of these cases are over."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT workflow_id FROM gateway.case_view WHERE workflow_id = ANY($1) AND status <> ALL($2::text[])",
                list(workflow_ids),
                OPEN,
            )
        return [row["workflow_id"] for row in rows]

    async def commands(self, reader: Reader, page: Page) -> list[CommandView]:
        """A page of commands, newest first."""
        async with self._search() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {COMMANDS_SOURCE} AS c WHERE tenant = $1 AND ($2::text IS NULL OR subject = $2) "
                "AND ($3::timestamptz IS NULL OR (created_at, command_id) < ($3, $4)) "
                "ORDER BY created_at DESC, command_id DESC LIMIT $5",
                reader.tenant,
                reader.subject,
                *before(page),
                page.limit,
            )
        return COMMANDS.read(rows)

    async def case(self, reader: Reader, workflow_id: str) -> CaseView | None:
        """One case."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {CASES_SOURCE} AS c "
                "WHERE workflow_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)",
                workflow_id,
                reader.tenant,
                reader.subject,
            )
        return next(iter(CASES.read(rows)), None)

    async def whole_case(
        self, reader: Reader, workflow_id: str
    ) -> tuple[CaseView, list[dict[str, Any]], list[ElementView]] | None:
        """One case with its operations and elements, all as of one moment."""
        async with self._connection() as connection:
            record = await connection.fetchrow(_WHOLE_CASE, workflow_id, reader.tenant, reader.subject)
        if record is None:
            return None
        fields = dict(record)
        operations, elements = fields.pop("operations") or [], fields.pop("elements") or []
        (view,) = CASES.read([fields])
        return view, operations, [ElementView.model_validate(element) for element in elements]

    async def cases(
        self,
        reader: Reader,
        page: Page,
        *,
        status: str | None,
        definition: str | None,
        object_id: str | None,
        owner: str | None,
        overdue: bool | None,
        is_open: bool | None = None,
    ) -> list[CaseView]:
        """A page of cases, newest first."""
        async with self._search() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {CASES_SOURCE} AS c WHERE tenant = $1 "
                "AND ($2::text IS NULL OR subject = $2) AND ($3::text IS NULL OR status = $3) "
                "AND ($4::text IS NULL OR definition = $4) AND ($5::text IS NULL "
                "OR object_id IN ($5, substr($5, strpos($5, '/') + 1)) "
                "AND (object_id = $5 OR object_type || '/' || object_id = $5)) "
                "AND ($6::text IS NULL OR owner = $6) AND ($7::bool IS NULL OR (status = ANY($11::text[]) "
                "AND $7 = (deadline_at < trueup.now()))) "
                "AND ($8::timestamptz IS NULL OR (created_at, workflow_id) < ($8, $9)) "
                "AND ($12::bool IS NULL OR $12 = (status = ANY($11::text[]))) "
                "ORDER BY created_at DESC, workflow_id DESC LIMIT $10",
                reader.tenant,
                reader.subject,
                status,
                definition,
                object_id,
                owner,
                overdue,
                *before(page),
                page.limit,
                OPEN,
                is_open,
            )
        return CASES.read(rows)

    async def steps_of(self, workflow_ids: Sequence[str]) -> dict[str, list[JournalRow]]:
        """Operations of several cases, by case."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f'SELECT "row" FROM {COMMANDS_SOURCE} AS c WHERE workflow_id = ANY($1) ORDER BY created_at LIMIT 2000',
                list(workflow_ids),
            )
        found: dict[str, list[JournalRow]] = {}
        for row in rows:
            parsed = JournalRow.model_validate(row["row"])
            found.setdefault(parsed.workflow_id, []).append(parsed)
        return found

    async def history(self, workflow_id: str, after_seq: int, limit: int) -> list[dict[str, Any]]:
        """Events of a case after a sequence number, as they were recorded.

        Messages come in any order: an event whose forerunner is still on its way is shown once that one is here, so
        that whoever continues after the last event seen misses none, and what is shown is a whole chain.
        """
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT event FROM gateway.history_view WHERE workflow_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                workflow_id,
                after_seq,
                limit,
            )
        events = [row["event"] for row in rows]
        return [event for place, event in enumerate(events, after_seq + 1) if event["seq"] == place]

    async def exceptions(
        self,
        reader: Reader,
        page: Page,
        *,
        kind: str | None,
        status: str | None,
        owner: str | None,
        cause: str | None,
        workflow_id: str | None = None,
        incident_id: str | None = None,
        by_deadline: bool = False,
    ) -> list[ExceptionView]:
        """A page of exceptions, newest first, or by deadline, the nearest first."""
        column, way, beyond = ("deadline_at", "ASC", ">") if by_deadline else ("opened_at", "DESC", "<")
        async with self._search() as connection:
            return await EXCEPTIONS.select(
                connection,
                f"AS x WHERE tenant = $1 AND ($2::text IS NULL OR EXISTS (SELECT 1 FROM {CASES_SOURCE} AS c "
                "WHERE c.workflow_id = x.workflow_id AND c.subject = $2)) AND ($3::text IS NULL OR kind = $3) "
                "AND ($4::text IS NULL OR status = $4) AND ($5::text IS NULL OR owner = $5) "
                "AND ($6::text IS NULL OR failure_class = $6 OR envelope->>'failure_code' = $6) "
                f"AND ($7::timestamptz IS NULL OR ({column}, exception_id) {beyond} ($7, $8)) "
                "AND ($10::text IS NULL OR workflow_id = $10) AND ($11::text IS NULL OR incident_id = $11) "
                f"ORDER BY {column} {way}, exception_id {way} LIMIT $9",
                reader.tenant,
                reader.subject,
                kind,
                status,
                owner,
                cause,
                *before(page),
                page.limit,
                workflow_id,
                incident_id,
            )

    async def exception(self, reader: Reader, exception_id: str) -> ExceptionView | None:
        """One exception."""
        async with self._connection() as connection:
            rows = await EXCEPTIONS.select(
                connection,
                "AS x WHERE exception_id = $1 AND tenant = $2 AND ($3::text IS NULL OR EXISTS (SELECT 1 "
                f"FROM {CASES_SOURCE} AS c WHERE c.workflow_id = x.workflow_id AND c.subject = $3))",
                exception_id,
                reader.tenant,
                reader.subject,
            )
        return next(iter(rows), None)

    async def exception_counts(self, tenant: str) -> tuple[dict[str, int], float]:
        """Open exceptions by kind, and the age in seconds of the oldest."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT kind, count(*) AS open, extract(epoch FROM trueup.now() - min(opened_at))::float AS age "
                "FROM gateway.exception_view WHERE tenant = $1 AND status = 'open' GROUP BY kind",
                tenant,
            )
        return {row["kind"]: row["open"] for row in rows}, max((row["age"] for row in rows), default=0.0)

    async def drift(self, reader: Reader, page: Page) -> list[ElementView]:
        """Elements in drift whose newest owner established them."""
        async with self._search() as connection:
            return await ELEMENTS.select(
                connection,
                "AS x WHERE tenant = $1 AND phase = 'DRIFT' AND NOT retired AND ($2::text IS NULL OR EXISTS (SELECT 1 "
                f"FROM {CASES_SOURCE} AS c WHERE c.workflow_id = x.workflow_id AND c.subject = $2)) "
                "AND NOT EXISTS (SELECT 1 FROM gateway.element_view n WHERE n.tenant = x.tenant "
                "AND n.system = x.system AND n.resource = x.resource AND n.element = x.element "
                "AND n.version > x.version) "
                "AND ($3::timestamptz IS NULL OR (coalesce(observed_at, 'epoch'), command_id || element) < ($3, $4)) "
                "ORDER BY coalesce(observed_at, 'epoch') DESC, command_id || element DESC LIMIT $5",
                reader.tenant,
                reader.subject,
                *before(page),
                page.limit,
            )

    async def freezes(self, tenant: str, page: Page, *, active: bool) -> list[FreezeRow]:
        """A page of the tenant's freezes, newest first."""
        async with self._search() as connection:
            return await FREEZES.select(
                connection,
                "WHERE tenant = $1 AND (NOT $2::bool OR (lifted_at IS NULL "
                "AND (expires_at IS NULL OR expires_at > trueup.now()))) "
                "AND ($3::timestamptz IS NULL OR (created_at, freeze_id) < ($3, $4)) "
                "ORDER BY created_at DESC, freeze_id DESC LIMIT $5",
                tenant,
                active,
                *before(page),
                page.limit,
            )

    async def policy(self) -> PolicyRow | None:
        """The policy set in force."""
        async with self._connection() as connection:
            return next(iter(await POLICIES.select(connection, "ORDER BY version DESC LIMIT 1")), None)
