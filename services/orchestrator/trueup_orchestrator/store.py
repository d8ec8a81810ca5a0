"""What the handlers need of a transaction, and how PostgreSQL gives it: rows in bulk, changed by compare-and-set."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import asyncpg

from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import ANSWERED, OperationState
from trueup_common.runtime.db import InTransaction
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Transaction, VersionConflict
from trueup_common.runtime.rows import Rows, Write
from trueup_orchestrator.columns import HOLDS_KEY, INSTANCE_FIXED, OPERATION_FIXED, READY
from trueup_orchestrator.core.case import Decision
from trueup_orchestrator.core.dispatch import Load, Pair
from trueup_orchestrator.core.records import DocumentRow, LockRow

Key = tuple[str, str, int]
"""(tenant, idempotency key, generation)."""

Identity = tuple[str, str, str]
"""(tenant, command type, business identity)."""


@record
class Holder:
    """A command that holds a key and perhaps a business identity."""

    command_id: str
    key: Key
    identity: Identity | None
    state: OperationState


class OrchestratorTransaction(Transaction, Protocol):
    """Rows in and out; every decision is made elsewhere."""

    def foresee_starts(self, keys: Sequence[Key], identities: Sequence[Identity], pairs: Sequence[Pair]) -> None:
        """The holders of these keys and identities and the loads of these pairs will be asked for."""
        ...

    def foresee_events(self, workflow_ids: Sequence[str], pairs: Sequence[Pair]) -> None:
        """The versions of these cases and the loads of these pairs will be asked for."""
        ...

    async def operations(self, command_ids: Sequence[str]) -> list[JournalRow]:
        """Journal rows by command."""
        ...

    async def instances(self, workflow_ids: Sequence[str]) -> list[InstanceRow]:
        """Cases by id."""
        ...

    async def versions(self, workflow_ids: Sequence[str]) -> dict[str, int]:
        """The `state_version` of cases."""
        ...

    def after_commit(self, call: Callable[[], None]) -> None:
        """Do something once this transaction is committed, and not otherwise."""
        ...

    async def obligations(self, workflow_ids: Sequence[str]) -> list[ObligationRow]:
        """Open obligations of cases."""
        ...

    async def history_after(self, published: Mapping[str, int]) -> list[HistoryEvent]:
        """Events of cases after a sequence number each, in order."""
        ...

    async def holders(self, keys: Sequence[Key], identities: Sequence[Identity]) -> list[Holder]:
        """Who holds any of these keys or business identities."""
        ...

    async def pass_on(self, command_ids: Sequence[str]) -> None:
        """These commands give up their business identities to others that take their place."""
        ...

    async def loads(self, pairs: Sequence[Pair], *, lock: bool) -> dict[Pair, Load]:
        """How full each pair is; with `lock`, try to become the one who decides for it in this transaction."""
        ...

    async def ready(self, quotas: Mapping[Pair, int]) -> list[JournalRow]:
        """The oldest queued operations of each pair that wait for nothing but their window."""
        ...

    async def ready_pairs(self, limit: int) -> list[Pair]:
        """Pairs that have such operations."""
        ...

    async def due(
        self, business: datetime, real: datetime, limit: int, without: Sequence[str] = ()
    ) -> list[JournalRow]:
        """Operations whose wake-up or lease is due; rows that another transaction holds are left to it.

        `without` names cases that are not to be taken.
        """
        ...

    async def overdue(self, business: datetime, limit: int, without: Sequence[str] = ()) -> list[InstanceRow]:
        """Cases that are still open at their deadline, and workflows whose wake-up is due; held ones are left out."""
        ...

    async def newest(self, keys: Sequence[tuple[str, str]]) -> list[JournalRow]:
        """The operation of the highest generation under each (tenant, key)."""
        ...

    async def started(self, keys: Sequence[Key]) -> set[Key]:
        """Which of these (tenant, start key, revision) stand for a workflow already."""
        ...

    async def documents(self, sha256s: Sequence[str]) -> list[DocumentRow]:
        """Workflow documents by hash."""
        ...

    async def keep_documents(self, rows: Sequence[DocumentRow]) -> None:
        """Store documents that are not stored yet."""
        ...

    async def lock_rows(self, keys: Sequence[tuple[str, str]]) -> list[LockRow]:
        """Who holds and who queues for these (tenant, key) locks."""
        ...

    async def keep_locks(self, rows: Sequence[LockRow], *, first: bool = False) -> None:
        """Store a case's places at its locks. Two that take one lock at once: one ends with VersionConflict.

        `first`: the case is new, and so are its places.
        """
        ...

    async def release(self, instances: Sequence[InstanceRow]) -> None:
        """Give up all locks of cases that are over, and wake who queues for them."""
        ...

    async def save(self, decisions: Sequence[Decision]) -> None:
        """Store decisions, at the latest with the commit.

        Where a row moved first or a key was taken meanwhile, the transaction ends with VersionConflict.
        """
        ...


_INSTANCES: Final = Rows(
    "orchestrator.instance", InstanceRow, key=("workflow_id",), version="state_version", fixed=INSTANCE_FIXED
)
_OPERATIONS: Final = Rows(
    "orchestrator.operation", JournalRow, key=("command_id",), version="state_version", fixed=OPERATION_FIXED
)
_OBLIGATIONS: Final = Rows("orchestrator.obligation", ObligationRow, key=("obligation_id",), version="version")
_DOCUMENTS: Final = Rows("orchestrator.document", DocumentRow, key=("sha256",))
_LOCKS: Final = Rows("orchestrator.lock", LockRow, key=("tenant", "key", "workflow_id"))
_HISTORY: Final = Rows("orchestrator.history", HistoryEvent, key=("workflow_id", "seq"))

_VERSIONS: Final = "SELECT workflow_id, state_version FROM instance WHERE workflow_id = ANY($1::text[])"
_HOLDERS: Final = f"""
SELECT command_id, tenant, idempotency_key, generation, command_type, identity, state
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS wanted(t, k, g)
JOIN operation ON tenant = t AND idempotency_key = k AND generation = g AND {HOLDS_KEY}
UNION ALL
SELECT command_id, tenant, idempotency_key, generation, command_type, identity, state
FROM unnest($4::text[], $5::text[], $6::text[]) AS wanted(t, c, i)
JOIN operation ON tenant = t AND command_type = c AND identity = i AND identity IS NOT NULL
"""
_PASS_ON: Final = """
WITH passed AS (
  UPDATE operation SET identity = NULL, state_version = state_version + 1
  WHERE command_id = ANY($1::text[]) AND identity IS NOT NULL RETURNING workflow_id)
UPDATE instance SET state_version = state_version + 1 WHERE workflow_id IN (SELECT workflow_id FROM passed)
"""
_LOADS: Final = f"""
WITH pair AS MATERIALIZED (
  SELECT t, s, CASE WHEN $3 THEN pg_try_advisory_xact_lock(hashtextextended(t || '/' || s, 0)) ELSE false END AS locked
  FROM unnest($1::text[], $2::text[]) AS wanted(t, s))
SELECT t, s, locked,
  (SELECT count(*) FROM operation WHERE tenant = t AND target_system = s AND lease_expires_at IS NOT NULL) AS in_flight,
  (SELECT count(*) FROM (
     SELECT 1 FROM operation WHERE tenant = t AND target_system = s AND {READY} LIMIT 1000) AS part) AS queued,
  (SELECT nextval('outbox_id_seq')) AS number
FROM pair
"""
"""The number is of the database's own sequence: it goes on where clocks are set back, and it survives a dump."""
_READY: Final = f"""
SELECT o.* FROM unnest($1::text[], $2::text[], $3::bigint[]) AS wanted(t, s, quota)
CROSS JOIN LATERAL (
  SELECT * FROM operation WHERE tenant = t AND target_system = s AND {READY} ORDER BY created_at LIMIT quota) AS o
"""
_READY_PAIRS: Final = f"""
WITH RECURSIVE pair(t, s) AS (
  (SELECT tenant, target_system FROM operation WHERE {READY} ORDER BY tenant, target_system LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.target_system FROM pair CROSS JOIN LATERAL (
    SELECT tenant, target_system FROM operation WHERE {READY} AND (tenant, target_system) > (t, s)
    ORDER BY tenant, target_system LIMIT 1) AS n)
SELECT t, s FROM pair LIMIT $1
"""
_AFTER: Final = """
JOIN unnest($1::text[], $2::bigint[]) AS published(case_id, after) ON workflow_id = case_id AND seq > after
ORDER BY workflow_id, seq
"""
_LEFT_OUT: Final = "workflow_id <> ALL($3::text[])"
_DUE: Final = (
    f"WHERE wake_at <= $1 AND wake_at IS NOT NULL AND {_LEFT_OUT} ORDER BY wake_at LIMIT $2 FOR UPDATE SKIP LOCKED"
)
_EXPIRED: Final = (
    f"WHERE lease_expires_at <= $1 AND lease_expires_at IS NOT NULL AND {_LEFT_OUT} ORDER BY lease_expires_at LIMIT $2 "
    "FOR UPDATE SKIP LOCKED"
)
_OVERDUE: Final = (
    f"WHERE watched_until <= $1 AND watched_until IS NOT NULL AND {_LEFT_OUT} ORDER BY watched_until LIMIT $2 "
    "FOR UPDATE SKIP LOCKED"
)
_WOKEN: Final = _DUE
_NEWEST: Final = f"""
SELECT DISTINCT ON (o.tenant, o.idempotency_key) o.*
FROM unnest($1::text[], $2::text[]) AS wanted(t, k)
JOIN operation o ON o.tenant = t AND o.idempotency_key = k AND {HOLDS_KEY}
ORDER BY o.tenant, o.idempotency_key, o.generation DESC
"""
_STARTED: Final = """
SELECT tenant, start_key, revision FROM unnest($1::text[], $2::text[], $3::bigint[]) AS wanted(t, k, r)
JOIN instance ON tenant = t AND start_key = k AND revision = r AND start_key IS NOT NULL
"""
_LOCKED: Final = "JOIN unnest($1::text[], $2::text[]) AS wanted(t, k) ON tenant = t AND key = k"
_KEEP_LOCK: Final = """
INSERT INTO lock (tenant, key, workflow_id, held, since) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, key, workflow_id) DO UPDATE SET held = EXCLUDED.held
"""
# A new version: whoever decides about a waiting case at the same moment must not save the old time over this one.
_GIVE_UP: Final = "DELETE FROM lock WHERE workflow_id = ANY($1::text[])"
_WAKE: Final = """
UPDATE instance SET wake_at = (SELECT trueup.now()), state_version = state_version + 1
WHERE closed_at IS NULL AND NOT locked AND workflow_id IN (
  SELECT waiting.workflow_id FROM lock waiting JOIN written AS freed USING (tenant, key)
  WHERE NOT waiting.held AND waiting.workflow_id NOT IN (SELECT workflow_id FROM written))
"""
_RELEASE: Final = """
WITH freed AS (DELETE FROM lock WHERE workflow_id = ANY($1::text[]) RETURNING tenant, key)
UPDATE instance SET wake_at = (SELECT trueup.now()), state_version = state_version + 1
WHERE closed_at IS NULL AND NOT locked AND workflow_id IN (
  SELECT waiting.workflow_id FROM lock waiting JOIN freed USING (tenant, key)
  WHERE NOT waiting.held AND waiting.workflow_id <> ALL($1::text[]))
"""


ANY_DUE: Final = """
SELECT EXISTS (SELECT 1 FROM operation WHERE wake_at <= (SELECT trueup.now()))
  OR EXISTS (SELECT 1 FROM operation WHERE lease_expires_at <= (SELECT clock_timestamp()))
  OR EXISTS (SELECT 1 FROM instance WHERE watched_until <= (SELECT trueup.now()) AND watched_until IS NOT NULL)
  OR EXISTS (SELECT 1 FROM instance WHERE wake_at <= (SELECT trueup.now()) AND wake_at IS NOT NULL)
"""
ANY_READY: Final = f"SELECT EXISTS (SELECT 1 FROM operation WHERE {READY})"

LEASES_EXPIRED: Final = Tally("trueup_lease_expiries", "Leases that ran out", ("system",))
OPERATIONS: Final = Tally("trueup_operations", "Operations by the end that they came to", ("system", "state"))


class SqlOrchestratorTransaction(SqlTransaction):
    """The same on PostgreSQL."""

    service = "orchestrator"

    def __init__(self, connection: InTransaction) -> None:
        super().__init__(connection)
        self._places: dict[tuple[Any, ...], LockRow] = {}
        """Places of new cases at their locks, written with the cases."""
        self._queueing = True
        """False where no case that is saved here queues for a lock."""

    def foresee_starts(self, keys: Sequence[Key], identities: Sequence[Identity], pairs: Sequence[Pair]) -> None:
        """The holders of these keys and identities and the loads of these pairs will be asked for."""
        self.foresee(_HOLDERS, *_columns(keys, 3), *_columns(identities, 3))
        self.foresee(_LOADS, *_columns(sorted(pairs), 2), False)

    def foresee_events(self, workflow_ids: Sequence[str], pairs: Sequence[Pair]) -> None:
        """The versions of these cases and the loads of these pairs will be asked for."""
        self.foresee(_VERSIONS, list(workflow_ids))
        if pairs:
            self.foresee(_LOADS, *_columns(sorted(pairs), 2), False)

    async def operations(self, command_ids: Sequence[str]) -> list[JournalRow]:
        """Journal rows by command."""
        return await _OPERATIONS.get(self.reading, "command_id", command_ids)

    async def instances(self, workflow_ids: Sequence[str]) -> list[InstanceRow]:
        """Cases by id."""
        return await _INSTANCES.get(self.reading, "workflow_id", workflow_ids)

    async def versions(self, workflow_ids: Sequence[str]) -> dict[str, int]:
        """The `state_version` of cases."""
        records = await self.ask(_VERSIONS, list(workflow_ids))
        return {record["workflow_id"]: record["state_version"] for record in records}

    async def obligations(self, workflow_ids: Sequence[str]) -> list[ObligationRow]:
        """Open obligations of cases."""
        if not workflow_ids:
            return []
        return await _OBLIGATIONS.select(
            self.reading,
            "WHERE status = 'open' AND workflow_id = ANY($1) ORDER BY obligation_id",
            list(workflow_ids),
        )

    async def history_after(self, published: Mapping[str, int]) -> list[HistoryEvent]:
        """Events of cases after a sequence number each, in order."""
        if not published:
            return []
        return await _HISTORY.select(self.reading, _AFTER, list(published), list(published.values()))

    async def holders(self, keys: Sequence[Key], identities: Sequence[Identity]) -> list[Holder]:
        """Who holds any of these keys or business identities."""
        records = await self.ask(_HOLDERS, *_columns(keys, 3), *_columns(identities, 3))
        return [
            Holder(
                record["command_id"],
                (record["tenant"], record["idempotency_key"], record["generation"]),
                (record["tenant"], record["command_type"], record["identity"]) if record["identity"] else None,
                OperationState(record["state"]),
            )
            for record in records
        ]

    async def pass_on(self, command_ids: Sequence[str]) -> None:
        """New versions of operation and case: what somebody holds in hand would bring the identity back."""
        await self.connection.execute(_PASS_ON, sorted(command_ids))

    async def loads(self, pairs: Sequence[Pair], *, lock: bool) -> dict[Pair, Load]:
        """How full each pair is; with `lock`, try to become the one who decides for it in this transaction."""
        if not pairs:
            return {}
        arguments = (*_columns(sorted(pairs), 2), lock)
        records = await (self.connection.fetch(_LOADS, *arguments) if lock else self.ask(_LOADS, *arguments))
        return {
            (record["t"], record["s"]): Load(record["locked"], record["in_flight"], record["queued"], record["number"])
            for record in records
        }

    async def ready(self, quotas: Mapping[Pair, int]) -> list[JournalRow]:
        """The oldest queued operations of each pair that wait for nothing but their window."""
        if not quotas:
            return []
        records = await self.reading.fetch(_READY, *_columns(list(quotas), 2), list(quotas.values()))
        return _OPERATIONS.read(records)

    async def ready_pairs(self, limit: int) -> list[Pair]:
        """Pairs that have such operations."""
        return [(record["t"], record["s"]) for record in await self.reading.fetch(_READY_PAIRS, limit)]

    async def due(
        self, business: datetime, real: datetime, limit: int, without: Sequence[str] = ()
    ) -> list[JournalRow]:
        """Operations whose wake-up or lease is due; rows that another transaction holds are left to it."""
        left_out = list(without)
        woken = await _OPERATIONS.select(self.connection, _DUE, business, limit, left_out)
        expired = await _OPERATIONS.select(self.connection, _EXPIRED, real, limit, left_out)
        known = {row.command_id for row in woken}
        found = woken + [row for row in expired if row.command_id not in known]
        return found if limit > 1 else found[:1]

    async def overdue(self, business: datetime, limit: int, without: Sequence[str] = ()) -> list[InstanceRow]:
        """Cases that are still open at their deadline, and workflows whose wake-up is due; held ones are left out."""
        left_out = list(without)
        late = await _INSTANCES.select(self.connection, _OVERDUE, business, limit, left_out)
        known = {row.workflow_id for row in late}
        woken = await _INSTANCES.select(self.connection, _WOKEN, business, limit, left_out)
        found = late + [row for row in woken if row.workflow_id not in known]
        return found if limit > 1 else found[:1]

    async def newest(self, keys: Sequence[tuple[str, str]]) -> list[JournalRow]:
        """The operation of the highest generation under each (tenant, key)."""
        if not keys:
            return []
        return _OPERATIONS.read(await self.reading.fetch(_NEWEST, *_columns(keys, 2)))

    async def started(self, keys: Sequence[Key]) -> set[Key]:
        """Which of these (tenant, start key, revision) stand for a workflow already."""
        records = await self.reading.fetch(_STARTED, *_columns(keys, 3))
        return {(record["tenant"], record["start_key"], record["revision"]) for record in records}

    async def documents(self, sha256s: Sequence[str]) -> list[DocumentRow]:
        """Workflow documents by hash."""
        return await _DOCUMENTS.get(self.reading, "sha256", sha256s)

    async def keep_documents(self, rows: Sequence[DocumentRow]) -> None:
        """Store documents that are not stored yet."""
        await _DOCUMENTS.insert_new(self.connection, rows)

    async def lock_rows(self, keys: Sequence[tuple[str, str]]) -> list[LockRow]:
        """Who holds and who queues for these (tenant, key) locks."""
        if not keys:
            return []
        wanted = set(keys)
        new = [row for row in self._places.values() if (row.tenant, row.key) in wanted]
        return await _LOCKS.select(self.reading, _LOCKED, *_columns(keys, 2)) + new

    async def keep_locks(self, rows: Sequence[LockRow], *, first: bool = False) -> None:
        """Store a case's places at its locks. Two that take one lock at once: one ends with VersionConflict."""
        if first:  # with everything else that is written
            self._places.update({_LOCKS.key_of(row): row for row in rows})
            return
        try:
            await self.connection.executemany(
                _KEEP_LOCK, [(row.tenant, row.key, row.workflow_id, row.held, row.since) for row in rows]
            )
        except asyncpg.UniqueViolationError as error:
            raise VersionConflict("a lock was taken by another case") from error

    async def release(self, instances: Sequence[InstanceRow]) -> None:
        """Give up all locks of cases that are over, and wake who queues for them."""
        over = [row.workflow_id for row in instances]
        if self._queueing:  # one of them may be woken by this: what was decided about it comes first
            await self.flush()
            await self.connection.execute(_RELEASE, over)
        else:
            self.later(Write(_GIVE_UP, (over,), None, _LOCKS.name, returning="tenant, key, workflow_id", then=_WAKE))

    async def save(self, decisions: Sequence[Decision]) -> None:
        """Store decisions, at the latest with the commit.

        Where a row moved first or a key was taken meanwhile, the transaction ends with VersionConflict.
        """
        created = [decision.case for decision in decisions if decision.created]
        old = [decision for decision in decisions if not decision.created]
        self._queueing = any(not decision.case.instance.locked for decision in decisions)
        over = {case.instance.workflow_id for case in created if case.instance.closed_at is not None}
        if not self._queueing:  # nobody saw the places of a case that began and ended here
            self._places = {key: row for key, row in self._places.items() if row.workflow_id not in over}
        self.later(
            _LOCKS.inserting(list(self._places.values())),
            _OPERATIONS.inserting([row for decision in decisions for row in decision.begun]),
            _INSTANCES.inserting([case.instance for case in created]),
            _OPERATIONS.updating([row for decision in decisions for row in decision.moved]),
            _INSTANCES.updating([decision.case.instance for decision in old if decision.instance_changed]),
            _HISTORY.inserting([event for decision in decisions for event in decision.events], conflict=False),
            _OBLIGATIONS.inserting([row for decision in decisions for row in decision.opened], conflict=False),
            _OBLIGATIONS.updating([row for decision in decisions for row in decision.changed]),
        )
        self._count(decisions)

    def _count(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            for event in decision.events:
                ends = [state for state in event.payload.get("states", ())[1:] if state in ANSWERED]
                if ends:
                    system = systems(decision)[event.payload["command_id"]]
                    for state in ends:
                        self.count(OPERATIONS, system, state)
                if event.type == "LeaseExpired":
                    self.count(LEASES_EXPIRED, systems(decision)[event.payload["command_id"]])


def systems(decision: Decision) -> dict[str, str]:
    """The target system of each operation of a case."""
    return {row.command_id: row.target_system for row in decision.case.operations}


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as one array per column."""
    return [[row[index] for row in rows] for index in range(width)]
