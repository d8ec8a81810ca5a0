"""SQL of numbers: cohorts that changed, what their objects come to, and counters. One replica counts at a time.

A mark is a row of its own: whoever changes an object adds one in the same transaction, and only marks that are
committed are taken. So no change is missed, whichever of two transactions commits first.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.spending import MEASURES
from trueup_common.contracts.states import ExceptionKind, OperationState
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows, Write
from trueup_gateway.core.kpi import Standing
from trueup_gateway.core.marks import CohortMark
from trueup_gateway.core.measures import (
    MINUTE,
    UNDOING_FAILED,
    CasesAlike,
    ExceptionsAlike,
    OperationsAlike,
    Subject,
)
from trueup_gateway.core.number_records import HOUR_GRAIN, MINUTE_GRAIN, CohortRow, CounterRow
from trueup_gateway.core.windows import HOURS_KEPT, MINUTES_KEPT, Sums
from trueup_gateway.store.reads import Reads

COHORTS: Final = Rows("gateway.cohort", CohortRow, key=("tenant", "subject", "began_at"))
COUNTERS: Final = Rows("gateway.counter", CounterRow, key=("tenant", "grain", "at"))

CohortKey = tuple[str, str, datetime]
CounterKey = tuple[str, str, datetime]

_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('gateway.numbers', 0))"
_MARK: Final = """
INSERT INTO gateway.cohort_mark (tenant, subject, began_at)
SELECT t, s, (m || 'Z')::timestamptz FROM unnest($1::text[], $2::text[], $3::text[]) AS marked(t, s, m)
"""
_TAKE: Final = """
WITH taken AS (
  DELETE FROM gateway.cohort_mark WHERE ctid = ANY(ARRAY(SELECT ctid FROM gateway.cohort_mark LIMIT $1))
  RETURNING tenant, subject, began_at)
SELECT DISTINCT tenant, subject, began_at FROM taken
"""
_DUE: Final = "SELECT tenant, subject, began_at FROM gateway.cohort WHERE due_at <= $1 ORDER BY due_at LIMIT $2"
_OPERATIONS: Final = f"""
SELECT state, undoing, date_trunc('minute', completed_at) AS ended_at,
  completed_at <= created_at + $4::interval AS in_time,
  CASE
    WHEN undoing AND state = ANY($5::text[]) THEN EXISTS (SELECT 1 FROM gateway.exception_view x
      WHERE x.command_id = c.command_id AND x.tenant = c.tenant AND x.owner <> ''
      AND x.kind = '{ExceptionKind.COMPENSATION_FAILED.value}')
    WHEN state = '{OperationState.DEAD_LETTERED.value}' THEN EXISTS (SELECT 1 FROM gateway.exception_view x
      WHERE x.command_id = c.command_id AND x.tenant = c.tenant AND x.owner <> ''
      AND x.kind = '{ExceptionKind.DEAD_LETTER.value}')
  END AS owned, count(*) AS count
FROM gateway.command_view AS c WHERE tenant = $1 AND created_at >= $2 AND created_at < $3 GROUP BY 1, 2, 3, 4, 5
"""
_SUMS: Final = ", ".join(f"sum({name})::float AS {name}" for name in MEASURES)
_CASES: Final = f"""
SELECT status, risk IN ('high', 'critical') AS high_risk,
  date_trunc('minute', least(closed_at, deadline_at)) AS judged_at, count(*) AS count, {_SUMS}
FROM gateway.case_view WHERE tenant = $1 AND created_at >= $2 AND created_at < $3 GROUP BY 1, 2, 3
"""
_EXCEPTIONS: Final = """
SELECT kind, resolution_type AS resolution, date_trunc('minute', closed_at) AS closed_at,
  date_trunc('minute', first_deadline_at) AS first_deadline_at,
  closed_at <= coalesce(first_deadline_at, opened_at + $4::interval) AS kept, owner <> '' AS owned,
  count(*) AS count, coalesce(sum(extract(epoch FROM closed_at - opened_at)), 0)::float AS seconds,
  count(DISTINCT workflow_id) FILTER (WHERE (envelope->>'human_review_required')::boolean) AS persons
FROM gateway.exception_view WHERE tenant = $1 AND opened_at >= $2 AND opened_at < $3 GROUP BY 1, 2, 3, 4, 5, 6
"""
_REVISE: Final = """
INSERT INTO gateway.cohort_revision (revision) VALUES ($1)
ON CONFLICT (one) DO UPDATE SET revision = excluded.revision WHERE cohort_revision.revision <> excluded.revision
RETURNING revision
"""
_BEGAN: Final = {
    Subject.OPERATION: ("command_view", "created_at"),
    Subject.CASE: ("case_view", "created_at"),
    Subject.EXCEPTION: ("exception_view", "opened_at"),
}
_STANDING: Final = """
SELECT kind, count(*) AS count, sum(extract(epoch FROM trueup.now() - opened_at))::float AS age,
  max(extract(epoch FROM trueup.now() - opened_at))::float AS oldest
FROM gateway.exception_view WHERE status = 'open' AND ($1::text IS NULL OR tenant = $1) GROUP BY kind
"""
_WAITING: Final = """
SELECT count(*) AS count, coalesce(sum(extract(epoch FROM trueup.now() - created_at)), 0)::float AS age,
  coalesce(max(extract(epoch FROM trueup.now() - created_at)), 0)::float AS oldest
FROM gateway.received WHERE $1::text IS NULL OR tenant = $1
"""
_REPAIRING: Final = """
SELECT count(*) FROM gateway.repair_view WHERE ended_at IS NULL AND ($1::text IS NULL OR tenant = $1)
"""

ANY_COUNTING_DUE: Final = """
SELECT EXISTS (SELECT 1 FROM gateway.cohort_mark)
  OR EXISTS (SELECT 1 FROM gateway.cohort WHERE due_at <= (SELECT trueup.now()))
"""


def marking(marks: Iterable[CohortMark]) -> Write | None:
    """Mark cohorts as changed, together with the change."""
    columns = list(zip(*marks, strict=True))
    return Write(_MARK, tuple(list(column) for column in columns), None, "cohort_mark") if columns else None


class NumbersSql(SqlTransaction):
    """Counting."""

    async def may_count(self) -> bool:
        """True where this replica counts in this transaction."""
        return bool(await self.connection.fetchval(_LOCK))

    async def revise(self, revision: str, now: datetime) -> bool:
        """Have everything counted anew where it was counted by other rules; True where it is."""
        if await self.connection.fetchval(_REVISE, revision) is None:
            return False
        await self.connection.execute("DELETE FROM gateway.cohort_mark")
        await self.connection.execute("DELETE FROM gateway.cohort")
        await self.connection.execute("DELETE FROM gateway.counter")
        for subject, (table, column) in _BEGAN.items():
            await self.connection.execute(
                "INSERT INTO gateway.cohort_mark (tenant, subject, began_at) "
                f"SELECT DISTINCT tenant, $1::text, date_trunc('minute', {column}) FROM gateway.{table} "
                f"WHERE {column} > $2",
                subject.value,
                now - HOURS_KEPT,
            )
        return True

    async def changed_cohorts(self, limit: int) -> list[CohortKey]:
        """Take marks; whose they are."""
        rows = await self.connection.fetch(_TAKE, limit)
        return [(row["tenant"], row["subject"], row["began_at"]) for row in rows]

    async def mark_cohorts(self, keys: Sequence[CohortKey]) -> None:
        """Put marks back."""
        if keys:
            statement = (
                "INSERT INTO gateway.cohort_mark (tenant, subject, began_at) "
                "SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[])"
            )
            await self.connection.execute(statement, *_columns(keys))

    async def due_cohorts(self, now: datetime, limit: int) -> list[CohortKey]:
        """Cohorts about which time decides."""
        rows = await self.connection.fetch(_DUE, now, limit)
        return [(row["tenant"], row["subject"], row["began_at"]) for row in rows]

    async def operation_groups(self, tenant: str, began_at: datetime, terminal: timedelta) -> list[OperationsAlike]:
        """The operations of a cohort."""
        rows = await self.connection.fetch(
            _OPERATIONS, tenant, began_at, began_at + MINUTE, terminal, sorted(UNDOING_FAILED)
        )
        return [OperationsAlike(**row) for row in rows]

    async def case_groups(self, tenant: str, began_at: datetime) -> list[CasesAlike]:
        """The cases of a cohort."""
        rows = await self.connection.fetch(_CASES, tenant, began_at, began_at + MINUTE)
        return [_cases_alike(dict(row)) for row in rows]

    async def exception_groups(self, tenant: str, opened_at: datetime, sla: timedelta) -> list[ExceptionsAlike]:
        """The exceptions of a cohort."""
        rows = await self.connection.fetch(_EXCEPTIONS, tenant, opened_at, opened_at + MINUTE, sla)
        return [ExceptionsAlike(**row) for row in rows]

    async def cohorts(self, keys: Sequence[CohortKey]) -> dict[CohortKey, CohortRow]:
        """Cohorts as they were counted last."""
        rows = await COHORTS.select(
            self.connection,
            "JOIN unnest($1::text[], $2::text[], $3::timestamptz[]) AS wanted(t, s, b) "
            "ON tenant = t AND subject = s AND began_at = b",
            *_columns(keys),
        )
        return {COHORTS.key_of(row): row for row in rows}

    async def counters(self, keys: Sequence[CounterKey]) -> dict[CounterKey, CounterRow]:
        """Counters as they stand."""
        rows = await COUNTERS.select(
            self.connection,
            "JOIN unnest($1::text[], $2::text[], $3::timestamptz[]) AS wanted(t, g, a) "
            "ON tenant = t AND grain = g AND at = a",
            *_columns(keys),
        )
        return {COUNTERS.key_of(row): row for row in rows}

    async def save_counted(self, cohorts: Sequence[CohortRow], counters: Sequence[CounterRow]) -> None:
        """Keep how cohorts were counted and what the counters are now."""
        self.later(COHORTS.upserting(cohorts), COUNTERS.upserting(counters))
        await self.flush()

    async def forget_old_numbers(self, now: datetime) -> None:
        """Drop what no window reaches any more."""
        await self.connection.execute("DELETE FROM gateway.cohort WHERE began_at < $1", now - HOURS_KEPT)
        for grain, kept in ((MINUTE_GRAIN, MINUTES_KEPT), (HOUR_GRAIN, HOURS_KEPT)):
            await self.connection.execute("DELETE FROM gateway.counter WHERE grain = $1 AND at < $2", grain, now - kept)


class NumbersReads(Reads):
    """Reads of numbers."""

    async def sums(self, tenant: str, now: datetime) -> Sums:
        """The counters of a tenant (`*`: of all)."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT grain, at, counts FROM gateway.counter WHERE tenant = $1 AND grain = 'minute' AND at > $2 "
                "UNION ALL "
                "SELECT grain, at, counts FROM gateway.counter WHERE tenant = $1 AND grain = 'hour' AND at > $3",
                tenant,
                now - MINUTES_KEPT,
                now - HOURS_KEPT,
            )
        found: dict[str, list[tuple[datetime, Mapping[str, float]]]] = {MINUTE_GRAIN: [], HOUR_GRAIN: []}
        for row in rows:
            found[row["grain"]].append((row["at"], row["counts"]))
        return Sums(minutes=found[MINUTE_GRAIN], hours=found[HOUR_GRAIN])

    async def standing(self, tenant: str | None) -> tuple[dict[str, Standing], Standing, int]:
        """What stands open now: exceptions by kind, commands that nobody took up, repairs. None: of all tenants."""
        async with self._search() as connection:
            rows = await connection.fetch(_STANDING, tenant)
            waiting = await connection.fetchrow(_WAITING, tenant)
            repairs = await connection.fetchval(_REPAIRING, tenant)
        return {row["kind"]: _standing(row) for row in rows}, _standing(waiting), repairs


def _cases_alike(fields: dict[str, Any]) -> CasesAlike:
    return CasesAlike(spent={name: fields.pop(name) for name in MEASURES}, **fields)


def _standing(row: Any) -> Standing:
    return Standing(row["count"], row["age"], max(row["oldest"], 0.0))


def _columns(keys: Sequence[tuple[str, str, datetime]]) -> list[list[Any]]:
    return [[key[place] for key in keys] for place in range(3)]
