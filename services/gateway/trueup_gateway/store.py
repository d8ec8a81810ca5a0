"""SQL of the gateway: the accept transaction, the worker's loads and saves, governance, and the reads of the API.

Every read names its tenant. Capability rows are locked in id order, keys are inserted in key order, so that two batches
cannot deadlock.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from trueup_common.contracts.governance import GovernanceEntry
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_common.runtime.rows import Rows, Write
from trueup_gateway import tables
from trueup_gateway.core.acceptance import Edge, Standing
from trueup_gateway.core.case import DEFINITION, DEFINITION_SHA256, NewCase
from trueup_gateway.core.projection import FreedKey
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    CaseView,
    CommandView,
    DecisionRow,
    EdgeRow,
    ElementView,
    ExceptionView,
    FreezeRow,
    HistoryView,
    MandateRow,
    PolicyRow,
    ReceivedRow,
    RevocationRow,
)

DECISIONS: Final = Rows(tables.DECISION, DecisionRow, key=("decision_id",))
CAPABILITIES: Final = Rows(tables.CAPABILITY, CapabilityRow, key=("capability_id",))
MANDATES: Final = Rows(tables.MANDATE, MandateRow, key=("mandate_id",))
EDGES: Final = Rows(tables.EDGE, EdgeRow, key=("tenant", "key"))
CALLS: Final = Rows(tables.CALL, CallRow, key=("tenant", "key"))
FREEZES: Final = Rows(tables.FREEZE, FreezeRow, key=("freeze_id",))
REVOCATIONS: Final = Rows(tables.REVOCATION, RevocationRow, key=("kind", "id"))
POLICIES: Final = Rows(tables.POLICY, PolicyRow, key=("version",))
RECEIVED: Final = Rows(tables.RECEIVED, ReceivedRow, key=("command_id",))
COMMANDS: Final = Rows(tables.COMMAND_VIEW, CommandView, key=("command_id",), version="state_version")
CASES: Final = Rows(tables.CASE_VIEW, CaseView, key=("workflow_id",), version="state_version")
HISTORY: Final = Rows(tables.HISTORY_VIEW, HistoryView, key=("workflow_id", "seq"))
ELEMENTS: Final = Rows(
    tables.ELEMENT_VIEW, ElementView, key=("workflow_id", "system", "resource", "element"), version="version"
)
EXCEPTIONS: Final = Rows(tables.EXCEPTION_VIEW, ExceptionView, key=("exception_id",), version="version")

OPEN: Final = [status.value for status in InstanceStatus if status not in INSTANCE_TERMINAL]
LOCK_TIMEOUT: Final = "2s"
"""How long acceptance waits for another transaction on the same key or capability before it answers 409."""

_LOCK_CAPABILITIES: Final = """
SELECT c.capability_id, c.tenant, c.subject, c.uses_left, c.revoked_at, c.expires_at, row_to_json(d) AS decision
FROM (SELECT set_config('lock_timeout', $2, true) OFFSET 0) AS bound
CROSS JOIN gateway.capability c JOIN gateway.decision d USING (decision_id)
WHERE c.capability_id = ANY($1::text[]) ORDER BY c.capability_id FOR UPDATE OF c
"""
_EDGES: Final = """
SELECT trueup.now() AS business, clock_timestamp() AS real, (SELECT epoch FROM gateway.governance) AS epoch,
  (SELECT json_agg(f) FROM (
     SELECT e.tenant, e.key, e.fingerprint, e.identity, e.command_id, e.workflow_id, e.saga_id,
       coalesce(v.state, 'RECEIVED') AS state
     FROM unnest($1::text[], $2::text[]) AS q(tenant, key)
     JOIN gateway.edge e ON e.tenant = q.tenant AND e.key = q.key LEFT JOIN gateway.command_view v USING (command_id)
     UNION
     SELECT e.tenant, e.key, e.fingerprint, e.identity, e.command_id, e.workflow_id, e.saga_id,
       coalesce(v.state, 'RECEIVED') AS state
     FROM unnest($1::text[], $3::text[]) AS q(tenant, identity)
     JOIN gateway.edge e ON e.tenant = q.tenant AND e.identity = q.identity AND e.identity IS NOT NULL
     LEFT JOIN gateway.command_view v USING (command_id)) AS f) AS edges
"""


def _source(rows: Rows[Any], parameter: int) -> str:
    """An INSERT of one JSON parameter into a table, in key order."""
    listed = ", ".join(f'"{name}"' for name in rows.model.model_fields)
    chosen = ", ".join(f'r."{name}"' for name in rows.model.model_fields)
    order = ", ".join(f'r."{name}"' for name in rows.key)
    name = f'gateway."{rows.table.name}"'
    return (
        f"INSERT INTO {name} ({listed}) SELECT {chosen} "
        f"FROM json_populate_recordset(NULL::{name}, ${parameter}::text::json) AS r ORDER BY {order}"
    )


_ACCEPT: Final = f"""
WITH edge AS ({_source(EDGES, 1)} ON CONFLICT DO NOTHING RETURNING 1),
mandate AS ({_source(MANDATES, 2)}),
received AS ({_source(RECEIVED, 3)}),
used AS (UPDATE gateway.capability AS c SET uses_left = c.uses_left - u.uses
  FROM unnest($4::text[], $5::bigint[]) AS u(capability_id, uses)
  WHERE c.capability_id = u.capability_id AND c.uses_left >= u.uses RETURNING 1)
SELECT (SELECT count(*) FROM edge) AS edges, (SELECT count(*) FROM used) AS used
"""
_COMMANDS: Final = """(
SELECT command_id, tenant, subject, workflow_id, command_type, system, state, state_version, created_at, "row"
FROM gateway.command_view
UNION ALL
SELECT command_id, tenant, subject, workflow_id, command_type, system, 'RECEIVED', 0, created_at, "row"
FROM gateway.received)"""
"""All commands: as projected, and those that nobody but the gateway has seen yet."""

_CASES: Final = f"""(
SELECT workflow_id, tenant, subject, definition, object_type, object_id, status, state_version, owner, deadline_at,
  created_at, closed_at, instance, obligations
FROM gateway.case_view
UNION ALL
SELECT workflow_id, tenant, subject, '{DEFINITION}', system, resource, 'RUNNING', 0, NULL, deadline_at,
  created_at, NULL,
  jsonb_build_object('workflow_id', workflow_id, 'saga_id', "row"->'saga_id', 'tenant', tenant, 'subject', subject,
    'definition', '{DEFINITION}', 'sha256', '{DEFINITION_SHA256}', 'status', 'RUNNING', 'state_version', 0,
    'object_type', system, 'object_id', resource, 'mandate', '{{}}'::jsonb, 'created_at', "row"->'created_at',
    'deadline_at', "row"->'deadline_at', 'correlation_id', "row"->'correlation_id', 'trace_id', "row"->'trace_id'),
  '[]'::jsonb
FROM gateway.received)"""
"""All cases, in the same way."""

_SEEN: Final = "DELETE FROM gateway.received WHERE command_id IN (SELECT json_array_elements_text($1::text::json))"
_ENTRIES: Final = """
SELECT 'revoked_' || kind AS kind, id, epoch, NULL::jsonb AS scope, NULL::text AS policy_sha256, expires_at
FROM gateway.revocation WHERE expires_at > trueup.now()
UNION ALL
SELECT 'freeze', freeze_id, epoch, scope, NULL, expires_at FROM gateway.freeze
WHERE lifted_at IS NULL AND (expires_at IS NULL OR expires_at > trueup.now())
UNION ALL
(SELECT 'policy', 'current', epoch, NULL::jsonb, sha256, NULL::timestamptz FROM gateway.policy
 ORDER BY version DESC LIMIT 1)
"""
_ACTIVE_FREEZES: Final = "WHERE lifted_at IS NULL AND (expires_at IS NULL OR expires_at > trueup.now())"


class KeyTaken(StoreBusy):
    """Another transaction took the same key or identity first: the batch is decided again."""


def lock_timed_out(busy: StoreBusy) -> bool:
    """True where a transaction gave up because another one held its key or capability for too long."""
    return isinstance(busy.__cause__, asyncpg.LockNotAvailableError)


@dataclass(frozen=True, slots=True)
class AcceptRows:
    """What a batch of requests concerns, as locked."""

    moment: Moment
    epoch: int
    standings: dict[str, Standing]
    by_key: dict[tuple[str, str], Edge]
    by_identity: dict[tuple[str, str], Edge]


def _standing(record: Any) -> Standing:
    return Standing(
        capability_id=record["capability_id"],
        tenant=record["tenant"],
        subject=record["subject"],
        uses_left=record["uses_left"],
        revoked=record["revoked_at"] is not None,
        expires_at=record["expires_at"],
        decision=DecisionRow.model_validate(record["decision"]),
    )


class GatewayTransaction(SqlTransaction):
    """One transaction of the gateway."""

    service = "gateway"

    # Acceptance

    async def accept_rows(
        self,
        capability_ids: Sequence[str],
        tenants: Sequence[str],
        keys: Sequence[str],
        identities: Sequence[str | None],
    ) -> AcceptRows:
        """Lock the capabilities of a batch, then read what its keys and identities stand for."""
        records = await self.connection.fetch(_LOCK_CAPABILITIES, sorted(set(capability_ids)), LOCK_TIMEOUT)
        row = await self.connection.fetchrow(_EDGES, list(tenants), list(keys), list(identities))
        edges = [Edge(**item) for item in row["edges"] or ()]
        return AcceptRows(
            moment=Moment(business=row["business"], real=row["real"]),
            epoch=row["epoch"],
            standings={record["capability_id"]: _standing(record) for record in records},
            by_key={(edge.tenant, edge.key): edge for edge in edges},
            by_identity={(edge.tenant, edge.identity): edge for edge in edges if edge.identity is not None},
        )

    async def save_cases(self, cases: Sequence[NewCase]) -> None:
        """Store accepted commands and count their uses. Raises KeyTaken where another transaction was first."""
        uses: dict[str, int] = {}
        for case in cases:
            uses[case.capability_id] = uses.get(case.capability_id, 0) + 1
        row = await self.connection.fetchrow(
            _ACCEPT,
            _document([case.edge for case in cases]),
            _document([case.mandate for case in cases]),
            _document([case.received for case in cases]),
            list(uses),
            list(uses.values()),
        )
        if row["edges"] != len(cases) or row["used"] != len(uses):
            raise KeyTaken("a key, an identity or a use was taken by another transaction")

    # Authority

    async def moment(self) -> Moment:
        """The time of this transaction."""
        moment, _ = await self.claim("", [])
        return moment

    async def save_decision(self, row: DecisionRow) -> None:
        """Keep a decision with its trace."""
        await DECISIONS.insert(self.connection, [row])

    async def save_capability(self, row: CapabilityRow) -> None:
        """Keep a capability."""
        await CAPABILITIES.insert(self.connection, [row])

    async def decision(self, decision_id: str, *, lock: bool = False) -> DecisionRow | None:
        """One decision, locked against a concurrent revocation where asked."""
        tail = "WHERE decision_id = $1" + (" FOR UPDATE" if lock else "")
        return next(iter(await DECISIONS.select(self.connection, tail, decision_id)), None)

    async def capability(self, capability_id: str) -> CapabilityRow | None:
        """One capability, locked."""
        found = await CAPABILITIES.select(self.connection, "WHERE capability_id = $1 FOR UPDATE", capability_id)
        return next(iter(found), None)

    async def revoke(self, row: RevocationRow) -> None:
        """Mark the row of a decision or capability as revoked, and keep the entry that every service watches."""
        table = {"decision": "decision", "capability": "capability"}[row.kind]
        await self.connection.execute(
            f"UPDATE gateway.{table} SET revoked_at = $2, revoked_by = $3, revocation_reason = $4 "
            f"WHERE {table}_id = $1 AND revoked_at IS NULL",
            row.id,
            row.revoked_at,
            row.revoked_by,
            row.reason,
        )
        await REVOCATIONS.insert_new(self.connection, [row])

    async def circumstances(self, tenant: str, subject: str, limit: int) -> tuple[int, list[str]]:
        """Open exceptions of a tenant, and the states of a subject's latest commands (both bounded)."""
        row = await self.connection.fetchrow(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM gateway.exception_view WHERE tenant = $1 AND status = 'open' "
            f"LIMIT 100) AS o) AS open, array(SELECT state FROM {_COMMANDS} AS c WHERE tenant = $1 AND subject = $2 "
            "ORDER BY created_at DESC LIMIT $3) AS states",
            tenant,
            subject,
            limit,
        )
        return row["open"], list(row["states"])

    # Governance

    async def epoch(self) -> int:
        """The present epoch."""
        return int(await self.connection.fetchval("SELECT epoch FROM gateway.governance"))

    async def next_epoch(self) -> int:
        """Raise the epoch: every change of governance has its own."""
        return int(await self.connection.fetchval("UPDATE gateway.governance SET epoch = epoch + 1 RETURNING epoch"))

    async def seed(self, policy: PolicyRow) -> None:
        """The first epoch and the first policy version, where there is none."""
        await self.connection.execute("INSERT INTO gateway.governance (epoch) VALUES (1) ON CONFLICT DO NOTHING")
        if await self.policy() is None:
            await POLICIES.insert_new(self.connection, [policy])

    async def policy(self) -> PolicyRow | None:
        """The policy set in force."""
        return next(iter(await POLICIES.select(self.connection, "ORDER BY version DESC LIMIT 1")), None)

    async def save_policy(self, row: PolicyRow) -> None:
        """Take a new version into force."""
        await POLICIES.insert(self.connection, [row])

    async def active_freezes(self) -> list[FreezeRow]:
        """All freezes in force."""
        return await FREEZES.select(self.connection, f"{_ACTIVE_FREEZES} ORDER BY freeze_id LIMIT 1000")

    async def freezes_of(self, tenant: str) -> list[FreezeRow]:
        """The tenant's freezes in force, locked, to lift some of them."""
        return await FREEZES.select(
            self.connection, f"{_ACTIVE_FREEZES} AND tenant = $1 ORDER BY freeze_id FOR UPDATE", tenant
        )

    async def save_freeze(self, row: FreezeRow) -> None:
        """Keep a freeze."""
        await FREEZES.insert(self.connection, [row])

    async def lift(self, rows: Sequence[FreezeRow]) -> None:
        """Store freezes that were lifted."""
        await FREEZES.upsert(self.connection, rows)

    async def entries(self) -> list[GovernanceEntry]:
        """Everything that services must watch right now."""
        return [GovernanceEntry.model_validate(dict(row)) for row in await self.connection.fetch(_ENTRIES)]

    async def call(self, tenant: str, key: str) -> CallRow | None:
        """The earlier answer under an Idempotency-Key of a changing call."""
        return next(iter(await CALLS.select(self.connection, "WHERE tenant = $1 AND key = $2", tenant, key)), None)

    async def save_call(self, row: CallRow) -> None:
        """Keep an answer. Raises KeyTaken where the same call runs at the same moment."""
        if not await CALLS.insert_new(self.connection, [row]):
            raise KeyTaken("the key was taken by another transaction")

    # The worker

    async def mandates(self, mandate_ids: Sequence[str]) -> dict[str, MandateRow]:
        """Mandates by id."""
        return {row.mandate_id: row for row in await MANDATES.get(self.connection, "mandate_id", mandate_ids)}

    async def decisions(self, decision_ids: Sequence[str]) -> dict[str, DecisionRow]:
        """Decisions by id."""
        return {row.decision_id: row for row in await DECISIONS.get(self.connection, "decision_id", decision_ids)}

    async def revoked_capabilities(self, capability_ids: Sequence[str]) -> set[str]:
        """Those of the capabilities that are revoked."""
        rows = await self.connection.fetch(
            "SELECT capability_id FROM gateway.capability WHERE capability_id = ANY($1) AND revoked_at IS NOT NULL",
            list(capability_ids),
        )
        return {row["capability_id"] for row in rows}

    async def save_views(
        self,
        *,
        commands: Sequence[CommandView] = (),
        cases: Sequence[CaseView] = (),
        history: Sequence[HistoryView] = (),
        elements: Sequence[ElementView] = (),
        exceptions: Sequence[ExceptionView] = (),
    ) -> None:
        """Project; a row that is newer already stays."""
        self.later(
            COMMANDS.upserting(commands),
            _seen(commands),
            CASES.upserting(cases),
            HISTORY.inserting(history, absent_only=True),
            ELEMENTS.upserting(elements),
            EXCEPTIONS.upserting(exceptions),
        )
        await self.flush()

    async def free_identities(self, keys: Sequence[FreedKey]) -> None:
        """Let other keys have the business identities of these commands."""
        if keys:
            await self.connection.execute(
                "UPDATE gateway.edge AS e SET identity = NULL "
                "FROM unnest($1::text[], $2::text[], $3::text[]) AS f(tenant, key, command_id) "
                "WHERE e.tenant = f.tenant AND e.key = f.key AND e.command_id = f.command_id "
                "AND e.identity IS NOT NULL",
                [tenant for tenant, _, _ in keys],
                [key for _, key, _ in keys],
                [command_id for _, _, command_id in keys],
            )


def _seen(commands: Sequence[CommandView]) -> Write | None:
    """Others know these commands by now: what was shown until then goes."""
    names = json_bytes([view.command_id for view in commands]).decode()
    return Write(_SEEN, (names,), None, "received") if commands else None


def _document(rows: Sequence[Any]) -> str:
    return json_bytes(rows).decode()


def gateway_store(database: Database) -> SqlStore[GatewayTransaction]:
    """The gateway's transactions on a database."""
    return SqlStore(database, GatewayTransaction)


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose objects a read may see: a tenant's, or only those of one subject in it."""

    tenant: str
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A place in a list ordered by (time, id) descending, and how many items to read from there."""

    limit: int
    before: tuple[datetime, str] | None = None


class GatewayReads:
    """Reads of the API: no locks, no writes, always one tenant's rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._database.connection() as connection:
            yield connection

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
                f'SELECT "row" FROM {_COMMANDS} AS c '
                "WHERE command_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)",
                command_id,
                reader.tenant,
                reader.subject,
            )
        return row

    async def command_rows(self, command_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Journal rows of commands that this gateway itself waits for."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT row FROM gateway.command_view WHERE command_id = ANY($1)", list(command_ids)
            )
        return [row["row"] for row in rows]

    async def commands(self, reader: Reader, page: Page) -> list[CommandView]:
        """A page of commands, newest first."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {_COMMANDS} AS c WHERE tenant = $1 AND ($2::text IS NULL OR subject = $2) "
                "AND ($3::timestamptz IS NULL OR (created_at, command_id) < ($3, $4)) "
                "ORDER BY created_at DESC, command_id DESC LIMIT $5",
                reader.tenant,
                reader.subject,
                *_before(page),
                page.limit,
            )
        return COMMANDS.read(rows)

    async def case(self, reader: Reader, workflow_id: str) -> CaseView | None:
        """One case."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {_CASES} AS c "
                "WHERE workflow_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)",
                workflow_id,
                reader.tenant,
                reader.subject,
            )
        return next(iter(CASES.read(rows)), None)

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
    ) -> list[CaseView]:
        """A page of cases, newest first."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f"SELECT * FROM {_CASES} AS c WHERE tenant = $1 "
                "AND ($2::text IS NULL OR subject = $2) AND ($3::text IS NULL OR status = $3) "
                "AND ($4::text IS NULL OR definition = $4) AND ($5::text IS NULL OR object_id = $5) "
                "AND ($6::text IS NULL OR owner = $6) AND ($7::bool IS NULL OR (status = ANY($11::text[]) "
                "AND $7 = (deadline_at < trueup.now()))) "
                "AND ($8::timestamptz IS NULL OR (created_at, workflow_id) < ($8, $9)) "
                "ORDER BY created_at DESC, workflow_id DESC LIMIT $10",
                reader.tenant,
                reader.subject,
                status,
                definition,
                object_id,
                owner,
                overdue,
                *_before(page),
                page.limit,
                OPEN,
            )
        return CASES.read(rows)

    async def case_parts(self, workflow_id: str) -> tuple[list[dict[str, Any]], list[ElementView]]:
        """Operations and elements of a case that the caller may read."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f'SELECT "row" FROM {_COMMANDS} AS c WHERE workflow_id = $1 ORDER BY created_at LIMIT 500', workflow_id
            )
            elements = await ELEMENTS.select(
                connection, "WHERE workflow_id = $1 ORDER BY system, resource, element LIMIT 500", workflow_id
            )
        return [row["row"] for row in rows], elements

    async def steps_of(self, workflow_ids: Sequence[str]) -> dict[str, list[JournalRow]]:
        """Operations of several cases, by case."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                f'SELECT "row" FROM {_COMMANDS} AS c WHERE workflow_id = ANY($1) ORDER BY created_at LIMIT 2000',
                list(workflow_ids),
            )
        found: dict[str, list[JournalRow]] = {}
        for row in rows:
            parsed = JournalRow.model_validate(row["row"])
            found.setdefault(parsed.workflow_id, []).append(parsed)
        return found

    async def history(self, workflow_id: str, after_seq: int, limit: int) -> list[dict[str, Any]]:
        """Events of a case after a sequence number, as they were recorded."""
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT event FROM gateway.history_view WHERE workflow_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                workflow_id,
                after_seq,
                limit,
            )
        return [row["event"] for row in rows]

    async def exceptions(
        self, reader: Reader, page: Page, *, kind: str | None, status: str | None, owner: str | None, cause: str | None
    ) -> list[ExceptionView]:
        """A page of exceptions, newest first."""
        async with self._connection() as connection:
            return await EXCEPTIONS.select(
                connection,
                f"AS x WHERE tenant = $1 AND ($2::text IS NULL OR EXISTS (SELECT 1 FROM {_CASES} AS c "
                "WHERE c.workflow_id = x.workflow_id AND c.subject = $2)) AND ($3::text IS NULL OR kind = $3) "
                "AND ($4::text IS NULL OR status = $4) AND ($5::text IS NULL OR owner = $5) "
                "AND ($6::text IS NULL OR failure_class = $6 OR envelope->>'failure_code' = $6) "
                "AND ($7::timestamptz IS NULL OR (opened_at, exception_id) < ($7, $8)) "
                "ORDER BY opened_at DESC, exception_id DESC LIMIT $9",
                reader.tenant,
                reader.subject,
                kind,
                status,
                owner,
                cause,
                *_before(page),
                page.limit,
            )

    async def exception(self, reader: Reader, exception_id: str) -> ExceptionView | None:
        """One exception."""
        async with self._connection() as connection:
            rows = await EXCEPTIONS.select(
                connection,
                "AS x WHERE exception_id = $1 AND tenant = $2 AND ($3::text IS NULL OR EXISTS (SELECT 1 "
                f"FROM {_CASES} AS c WHERE c.workflow_id = x.workflow_id AND c.subject = $3))",
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
        async with self._connection() as connection:
            return await ELEMENTS.select(
                connection,
                "AS x WHERE tenant = $1 AND phase = 'DRIFT' AND ($2::text IS NULL OR EXISTS (SELECT 1 "
                f"FROM {_CASES} AS c WHERE c.workflow_id = x.workflow_id AND c.subject = $2)) "
                "AND NOT EXISTS (SELECT 1 FROM gateway.element_view n WHERE n.tenant = x.tenant "
                "AND n.system = x.system AND n.resource = x.resource AND n.element = x.element "
                "AND n.version > x.version) "
                "AND ($3::timestamptz IS NULL OR (coalesce(observed_at, 'epoch'), command_id || element) < ($3, $4)) "
                "ORDER BY coalesce(observed_at, 'epoch') DESC, command_id || element DESC LIMIT $5",
                reader.tenant,
                reader.subject,
                *_before(page),
                page.limit,
            )

    async def freezes(self, tenant: str, page: Page, *, active: bool) -> list[FreezeRow]:
        """A page of the tenant's freezes, newest first."""
        async with self._connection() as connection:
            return await FREEZES.select(
                connection,
                "WHERE tenant = $1 AND (NOT $2::bool OR (lifted_at IS NULL "
                "AND (expires_at IS NULL OR expires_at > trueup.now()))) "
                "AND ($3::timestamptz IS NULL OR (created_at, freeze_id) < ($3, $4)) "
                "ORDER BY created_at DESC, freeze_id DESC LIMIT $5",
                tenant,
                active,
                *_before(page),
                page.limit,
            )

    async def policy(self) -> PolicyRow | None:
        """The policy set in force."""
        async with self._connection() as connection:
            return next(iter(await POLICIES.select(connection, "ORDER BY version DESC LIMIT 1")), None)


def _before(page: Page) -> tuple[datetime | None, str | None]:
    return page.before if page.before is not None else (None, None)
