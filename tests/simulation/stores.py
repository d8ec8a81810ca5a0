"""The services' stores in memory: the rows, keys and unique constraints of their tables, row access for SQL.

Keys and unique constraints come from the services' own table definitions, so that they cannot differ from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import MetaData, UniqueConstraint

from tests.simulation.gateway_stores import GATEWAY_TABLES
from tests.simulation.memory import MemoryTransaction, Table, Unique
from trueup_adapters import tables as adapters_tables
from trueup_adapters.core.effect import EffectRow, LedgerStatus
from trueup_adapters.store import SOMEBODY, ObjectKey
from trueup_adapters.store import Changes as AdaptersChanges
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.runtime.ports import VersionConflict
from trueup_orchestrator import tables as orchestrator_tables
from trueup_orchestrator.columns import HOLDS_KEY
from trueup_orchestrator.core.case import Decision
from trueup_orchestrator.core.dispatch import Load, Pair
from trueup_orchestrator.core.records import DocumentRow, LockRow
from trueup_orchestrator.store import Holder, Identity, Key
from trueup_reconciler import tables as reconciler_tables
from trueup_reconciler.core.element import ElementRow, object_key
from trueup_reconciler.core.settlement import SettlementRow
from trueup_reconciler.core.survey import SurveyRow
from trueup_reconciler.core.visit import PaceRow
from trueup_reconciler.store import Changed, Changes, Listed
from trueup_repair_planner import tables as planner_tables
from trueup_repair_planner.core.incident import IncidentRow
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.core.repair import RepairRow
from trueup_repair_planner.core.repair import Status as RepairStatus

MAIL: Final = frozenset({"inbox", "outbox", "quarantine", "delivery_failure", "stream_mark"})
CONDITIONS: Final[dict[str, Callable[[Any], bool]]] = {
    "identity IS NOT NULL": lambda row: row.identity is not None,
    HOLDS_KEY: lambda row: row.error_code != "identity_in_use",
    "start_key IS NOT NULL": lambda row: row.start_key is not None,
    "held": lambda row: row.held,
    "removed_by IS NULL": lambda row: row.removed_by is None,
    "lifted_at IS NULL": lambda row: row.lifted_at is None,
    "status = 'pending'": lambda row: row.status == "pending",
    "status IN ('EXECUTING', 'PLANNED', 'VERIFYING', 'WAITING_APPROVAL')": lambda row: (
        row.status in ("EXECUTING", "PLANNED", "VERIFYING", "WAITING_APPROVAL")
    ),
    "state = 'ACCEPTED' AND holds_command IS NOT NULL": lambda row: row.state == "ACCEPTED",
    "state = 'ACCEPTED' AND holds_exception IS NOT NULL": lambda row: row.state == "ACCEPTED",
}
"""Predicates of partial unique indexes, by their SQL text."""


def tables_of(metadata: MetaData, versions: Mapping[str, str]) -> list[Table[Any]]:
    """Memory tables for a service's real ones (mail is kept elsewhere). `versions` names compare-and-set columns."""
    tables = []
    for table in metadata.tables.values():
        if table.name in MAIL:
            continue
        unique = [
            Unique(tuple(column.name for column in constraint.columns))
            for constraint in table.constraints
            if isinstance(constraint, UniqueConstraint)
        ]
        for index in table.indexes:
            if index.unique:
                where = index.dialect_options["postgresql"].get("where")
                condition = CONDITIONS[str(where)] if where is not None else (lambda row: True)
                unique.append(Unique(tuple(column.name for column in index.columns), condition))
        key = tuple(column.name for column in table.primary_key.columns)
        tables.append(Table(table.name, key, versions.get(table.name), unique))
    return tables


class ReconcilerMemory(MemoryTransaction):
    """The reconciler's transaction."""

    async def settlements(self, command_ids: Sequence[str]) -> list[SettlementRow]:
        """By command."""
        return await self.get("settlement", "command_id", command_ids)

    async def due_settlements(self, now: datetime, limit: int) -> list[SettlementRow]:
        """Due and locked."""
        return await self.select(
            "settlement",
            lambda row: row.next_at is not None and row.next_at <= now,
            order=lambda row: row.next_at,
            limit=limit,
            lock=True,
        )

    async def elements(self, object_keys: Sequence[str]) -> list[ElementRow]:
        """By object."""
        return await self.get("element", "object_key", object_keys)

    async def siblings(self, objects: Sequence[tuple[str, str, str]]) -> list[ElementRow]:
        """By business object."""
        return await self.select("element", lambda row: (row.tenant, row.object_type, row.object_id) in objects)

    async def listed(self, seen: Listed, now: datetime) -> None:
        """When a survey listed these objects last: no change of state, so no version moves."""
        keys = {object_key(seen.tenant, seen.system, resource) for resource in seen.resources}
        here = (seen.tenant, seen.system)
        rows = await self.select(
            "element",
            lambda row: (
                (row.tenant, row.system) == here and (row.command_id in seen.operations or row.object_key in keys)
            ),
            lock=True,
        )
        await self.touch("element", [row.evolve(surveyed_at=now) for row in rows])

    async def unlisted(self, tenant: str, system: str, since: datetime, limit: int) -> list[ElementRow]:
        """Elements whose objects surveys have listed before, but not since then."""
        return await self.select(
            "element",
            lambda row: (
                (row.tenant, row.system) == (tenant, system)
                and row.surveyed_at is not None
                and row.surveyed_at < since
                and row.next_visit_at is not None
            ),
            order=lambda row: (row.object_key, row.element),
            limit=limit,
            lock=True,
        )

    async def due_elements(self, now: datetime, limit: int) -> list[ElementRow]:
        """Due and locked."""
        return await self.select(
            "element",
            lambda row: row.next_visit_at is not None and row.next_visit_at <= now,
            order=lambda row: (row.next_visit_at, row.object_key),
            limit=limit,
            lock=True,
        )

    async def obligations(self, obligation_ids: Sequence[str]) -> list[Any]:
        """By id."""
        return await self.get("obligation", "obligation_id", obligation_ids)

    async def paces(self, pace_keys: Sequence[str]) -> list[PaceRow]:
        """By key."""
        return await self.get("pace", "pace_key", pace_keys)

    async def surveys(self, survey_keys: Sequence[str]) -> list[SurveyRow]:
        """By key."""
        return await self.get("survey", "survey_key", survey_keys)

    async def due_surveys(self, now: datetime, limit: int) -> list[SurveyRow]:
        """Due and locked."""
        due = lambda row: row.next_at <= now  # noqa: E731
        return await self.select("survey", due, order=lambda row: row.next_at, limit=limit, lock=True)

    async def save(self, changes: Changes) -> None:
        """Compare-and-set."""
        await self._save("settlement", changes.settlements)
        await self._save("element", changes.elements)
        await self._save("obligation", changes.obligations)
        await self._save("pace", changes.paces)
        await self._save("survey", changes.surveys)

    async def _save(self, name: str, changed: Changed[Any]) -> None:
        if changed.new:
            inserted = await self.insert_new(name, changed.new)
            if len(inserted) != len(changed.new):
                raise VersionConflict(f"{name}: another replica inserted first")
        await self.update(name, changed.moved)


RECONCILER_TABLES: Final = (
    reconciler_tables.METADATA,
    {
        "settlement": "state_version",
        "element": "state_version",
        "obligation": "version",
        "pace": "state_version",
        "survey": "state_version",
    },
)


class PlannerMemory(MemoryTransaction):
    """The planner's transaction."""

    async def exceptions(self, exception_ids: Sequence[str]) -> list[ExceptionRow]:
        """By id."""
        return await self.get("exception", "exception_id", exception_ids)

    async def overdue_exceptions(self, now: datetime, limit: int) -> list[ExceptionRow]:
        """Overdue and locked."""
        return await self.select(
            "exception",
            lambda row: row.status == "open" and row.deadline_at <= now,
            order=lambda row: (row.deadline_at, row.exception_id),
            limit=limit,
            lock=True,
        )

    async def repairs(self, repair_ids: Sequence[str]) -> list[RepairRow]:
        """By id."""
        return await self.get("repair", "repair_id", repair_ids)

    async def related_repairs(
        self, subjects: Sequence[str], exception_ids: Sequence[str], operator_command_ids: Sequence[str] = ()
    ) -> list[RepairRow]:
        """By subject, exception or operator command."""
        return await self.select(
            "repair",
            lambda row: (
                row.subject_key in subjects
                or row.exception_id in exception_ids
                or row.operator_command_id in operator_command_ids
            ),
            order=lambda row: (row.created_at, row.repair_id),
        )

    async def due_repairs(self, now: datetime, statuses: Sequence[RepairStatus], limit: int) -> list[RepairRow]:
        """Due and locked."""
        return await self.select(
            "repair",
            lambda row: row.due_at is not None and row.due_at <= now and row.status in statuses,
            order=lambda row: (row.due_at, row.repair_id),
            limit=limit,
            lock=True,
        )

    async def unverified_repairs(self, now: datetime, limit: int) -> list[RepairRow]:
        """Late and locked."""
        return await self.select(
            "repair",
            lambda row: row.status is RepairStatus.VERIFYING and row.verify_until <= now,
            order=lambda row: (row.verify_until, row.repair_id),
            limit=limit,
            lock=True,
        )

    async def held_repairs(self, incident_id: str, limit: int) -> list[RepairRow]:
        """Held by an incident, and locked."""
        return await self.select(
            "repair",
            lambda row: row.held and row.incident_id == incident_id,
            order=lambda row: (row.created_at, row.repair_id),
            limit=limit,
            lock=True,
        )

    async def incidents_of(self, causes: Sequence[tuple[str, str]]) -> list[IncidentRow]:
        """The newest of each cause."""
        rows = await self.select("incident", lambda row: (row.tenant, row.cause_key) in causes)
        newest: dict[tuple[str, str], IncidentRow] = {}
        for row in sorted(rows, key=lambda row: row.number):
            newest[row.tenant, row.cause_key] = row
        return list(newest.values())

    async def due_incidents(self, now: datetime, limit: int) -> list[IncidentRow]:
        """Due and locked."""
        return await self.select(
            "incident",
            lambda row: row.due_at is not None and row.due_at <= now,
            order=lambda row: (row.due_at, row.incident_id),
            limit=limit,
            lock=True,
        )

    async def incident_counts(self, incident_ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """(open exceptions, repairs held, repairs in flight) of each."""
        found: dict[str, tuple[int, int, int]] = {}
        for name in incident_ids:
            of = await self.select("exception", lambda row, name=name: row.incident_id == name and row.status == "open")
            mine = await self.select("repair", lambda row, name=name: row.incident_id == name)
            flying = [row for row in mine if row.in_flight and not row.held and row.due_at is not None]
            found[name] = (len(of), sum(row.held for row in mine), len(flying))
        return found

    async def save(
        self,
        exceptions: tuple[Sequence[ExceptionRow], Sequence[ExceptionRow]],
        repairs: tuple[Sequence[RepairRow], Sequence[RepairRow]] = ((), ()),
        incidents: tuple[Sequence[IncidentRow], Sequence[IncidentRow]] = ((), ()),
    ) -> None:
        """Compare-and-set."""
        for table, (new, moved) in (("exception", exceptions), ("repair", repairs), ("incident", incidents)):
            await self.update(table, moved)
            if new and len(await self.insert_new(table, new)) != len(new):
                raise VersionConflict(f"{table}: another replica inserted first")


PLANNER_TABLES: Final = (
    planner_tables.METADATA,
    {"exception": "version", "repair": "version", "incident": "version"},
)


class OrchestratorMemory(MemoryTransaction):
    """The orchestrator's transaction."""

    async def operations(self, command_ids: Sequence[str]) -> list[JournalRow]:
        """By command."""
        return await self.get("operation", "command_id", command_ids)

    async def instances(self, workflow_ids: Sequence[str]) -> list[InstanceRow]:
        """By case."""
        return await self.get("instance", "workflow_id", workflow_ids)

    async def versions(self, workflow_ids: Sequence[str]) -> dict[str, int]:
        """By case."""
        return {row.workflow_id: row.state_version for row in await self.get("instance", "workflow_id", workflow_ids)}

    def foresee_starts(self, keys: Sequence[Key], identities: Sequence[Identity], pairs: Sequence[Pair]) -> None:
        """Reads cost nothing here."""

    def foresee_events(self, workflow_ids: Sequence[str], pairs: Sequence[Pair]) -> None:
        """Reads cost nothing here."""

    async def obligations(self, workflow_ids: Sequence[str]) -> list[ObligationRow]:
        """Open ones by case."""
        rows = await self.get("obligation", "workflow_id", workflow_ids)
        return sorted((row for row in rows if row.status == "open"), key=lambda row: row.obligation_id)

    async def history_after(self, published: Mapping[str, int]) -> list[HistoryEvent]:
        """Events after a sequence number each."""
        return await self.select(
            "history",
            lambda row: row.workflow_id in published and row.seq > published[row.workflow_id],
            order=lambda row: (row.workflow_id, row.seq),
        )

    async def holders(self, keys: Sequence[Key], identities: Sequence[Identity]) -> list[Holder]:
        """Who holds keys and identities."""
        holds = CONDITIONS[HOLDS_KEY]

        def key(row: JournalRow) -> Key:
            return (row.tenant, row.idempotency_key, row.generation)

        def identity(row: JournalRow) -> Identity | None:
            return (row.tenant, row.command_type, row.identity) if row.identity else None

        rows = await self.select(
            "operation", lambda row: (holds(row) and key(row) in keys) or identity(row) in identities
        )
        return [Holder(row.command_id, key(row), identity(row), row.state) for row in rows]

    async def pass_on(self, command_ids: Sequence[str]) -> None:
        """Identities are given up, under new versions of operation and case."""
        rows = [row for row in await self.operations(command_ids) if row.identity is not None]
        cases = await self.instances([row.workflow_id for row in rows])
        await self.update("operation", [row.evolve(identity=None, state_version=row.state_version + 1) for row in rows])
        await self.update("instance", [case.evolve(state_version=case.state_version + 1) for case in cases])

    async def loads(self, pairs: Sequence[Pair], *, lock: bool) -> dict[Pair, Load]:
        """Load of each pair, with its advisory lock where asked."""
        found, number = {}, self.database.next_mail()
        for pair in sorted(pairs):
            locked = lock and await self.try_advisory_lock(pair)
            rows = [row for row in self._visible(self._table("operation")).values() if _pair(row) == pair]
            in_flight = sum(row.lease_expires_at is not None for row in rows)
            found[pair] = Load(locked, in_flight, sum(map(_ready, rows)), number)
        return found

    async def ready(self, quotas: Mapping[Pair, int]) -> list[JournalRow]:
        """The oldest queued ones of each pair."""
        found = []
        for pair, quota in quotas.items():
            found += await self.select(
                "operation",
                lambda row, pair=pair: _pair(row) == pair and _ready(row),
                order=lambda row: row.created_at,
                limit=quota,
            )
        return found

    async def ready_pairs(self, limit: int) -> list[Pair]:
        """Pairs with queued operations."""
        rows = await self.select("operation", _ready)
        return sorted({_pair(row) for row in rows})[:limit]

    async def due(
        self, business: datetime, real: datetime, limit: int, without: Sequence[str] = ()
    ) -> list[JournalRow]:
        """Due wake-ups and leases, locked."""
        woken = await self.select(
            "operation",
            lambda row: row.wake_at is not None and row.wake_at <= business and row.workflow_id not in without,
            order=lambda row: row.wake_at,
            limit=limit,
            lock=True,
        )
        expired = await self.select(
            "operation",
            lambda row: (
                row.lease_expires_at is not None and row.lease_expires_at <= real and row.workflow_id not in without
            ),
            order=lambda row: row.lease_expires_at,
            limit=limit,
            lock=True,
        )
        known = {row.command_id for row in woken}
        return woken + [row for row in expired if row.command_id not in known]

    async def overdue(self, business: datetime, limit: int, without: Sequence[str] = ()) -> list[InstanceRow]:
        """Cases still verifying at their deadline, locked."""
        return await self.select(
            "instance",
            lambda row: (
                row.closed_at is None
                and row.workflow_id not in without
                and (
                    (
                        row.deadline_at <= business
                        and (row.status is InstanceStatus.VERIFYING or row.definition != "command")
                    )
                    or (row.wake_at is not None and row.wake_at <= business)
                )
            ),
            order=lambda row: row.deadline_at,
            limit=limit,
            lock=True,
        )

    async def newest(self, keys: Sequence[tuple[str, str]]) -> list[JournalRow]:
        """The highest generation under each key."""
        wanted = set(keys)
        found: dict[tuple[str, str], JournalRow] = {}
        for row in await self.select(
            "operation",
            lambda row: (row.tenant, row.idempotency_key) in wanted and row.error_code != "identity_in_use",
        ):
            known = found.get((row.tenant, row.idempotency_key))
            if known is None or known.generation < row.generation:
                found[row.tenant, row.idempotency_key] = row
        return list(found.values())

    async def started(self, keys: Sequence[Key]) -> set[Key]:
        """Which start keys are taken."""
        wanted = set(keys)
        rows = await self.select("instance", lambda row: (row.tenant, row.start_key, row.revision) in wanted)
        return {(row.tenant, row.start_key, row.revision) for row in rows}

    async def documents(self, sha256s: Sequence[str]) -> list[DocumentRow]:
        """By hash."""
        return await self.get("document", "sha256", sha256s)

    async def keep_documents(self, rows: Sequence[DocumentRow]) -> None:
        """Those that are new."""
        await self.insert_new("document", list(rows))

    async def lock_rows(self, keys: Sequence[tuple[str, str]]) -> list[LockRow]:
        """Places at locks."""
        wanted = set(keys)
        return await self.select("lock", lambda row: (row.tenant, row.key) in wanted)

    async def keep_locks(self, rows: Sequence[LockRow], *, first: bool = False) -> None:
        """Places at locks, kept; a lock that was taken meanwhile ends the transaction."""
        held = {(row.tenant, row.key) for row in rows if row.held}
        foreign = await self.select(
            "lock", lambda row: row.held and (row.tenant, row.key) in held and row.workflow_id != rows[0].workflow_id
        )
        if foreign:
            raise VersionConflict("a lock was taken by another case")
        await self.upsert("lock", list(rows))

    async def release(self, instances: Sequence[InstanceRow]) -> None:
        """Locks given up, and who queues for them woken."""
        over = {row.workflow_id for row in instances}
        freed = await self.select("lock", lambda row: row.workflow_id in over)
        keys = {(row.tenant, row.key) for row in freed}
        await self.delete("lock", [(row.tenant, row.key, row.workflow_id) for row in freed])
        waiting = await self.select("lock", lambda row: not row.held and (row.tenant, row.key) in keys)
        moment, _ = await self.claim("", [])
        rows = await self.get("instance", "workflow_id", sorted({row.workflow_id for row in waiting} - over))
        await self.touch(
            "instance",
            [
                row.evolve(wake_at=moment.business, state_version=row.state_version + 1)
                for row in rows
                if row.closed_at is None and not row.locked
            ],
        )

    async def save(self, decisions: Sequence[Decision]) -> None:
        """Store decisions."""
        created = [decision.case.instance for decision in decisions if decision.created]
        old = [decision for decision in decisions if not decision.created]
        begun = [row for decision in decisions for row in decision.begun]
        if begun:
            inserted = await self.insert_new("operation", begun)
            if len(inserted) != len(begun):
                raise VersionConflict("operation: a key or business identity was taken first")
        await self.insert("instance", created)
        await self.update("operation", [row for decision in decisions for row in decision.moved])
        await self.update("instance", [item.case.instance for item in old if item.instance_changed])
        await self.insert("history", [event for item in decisions for event in item.events])
        await self.insert("obligation", [row for item in decisions for row in item.opened])
        await self.update("obligation", [row for item in decisions for row in item.changed])


def _pair(row: JournalRow) -> Pair:
    return (row.tenant, row.target_system)


def _ready(row: JournalRow) -> bool:
    return row.state is OperationState.QUEUED and row.lease_expires_at is None and row.next_retry_at is None


ORCHESTRATOR_TABLES: Final = (
    orchestrator_tables.METADATA,
    {"operation": "state_version", "instance": "state_version", "obligation": "version"},
)


class AdaptersMemory(MemoryTransaction):
    """The adapters' transaction."""

    def foresee_effects(self, command_ids: Sequence[str]) -> None:
        """Reads cost nothing here."""

    async def effects(self, command_ids: Sequence[str]) -> list[EffectRow]:
        """By operation."""
        return await self.get("effect", "command_id", command_ids)

    async def holders(self, system: str, objects: Sequence[ObjectKey], now: datetime) -> dict[ObjectKey, set[str]]:
        """First the locks, then the rows."""
        found: dict[ObjectKey, set[str]] = {}
        for key in objects:
            locked = await self.try_advisory_lock(("object", system, *key))
            found[key] = set() if locked else {SOMEBODY}
        for row in await self.select("effect", lambda row: row.object_key is not None and row.system == system):
            acts = row.status in (LedgerStatus.SENT, LedgerStatus.UNKNOWN) and row.late_until > now
            if acts and (row.tenant, row.object_key) in found:
                found[row.tenant, row.object_key].add(row.command_id)
        self.engine.injected["two writers of one object"] += any(found.values())
        return found

    async def overdue(self, now: datetime, limit: int) -> list[EffectRow]:
        """Open rows that are due, locked."""
        return await self.select(
            "effect",
            lambda row: row.status is LedgerStatus.SENT and row.look_at is not None and row.look_at <= now,
            order=lambda row: row.look_at,
            limit=limit,
            lock=True,
        )

    async def left_behind(self, process: str, worker: str, limit: int) -> list[EffectRow]:
        """Open rows of earlier incarnations."""
        return await self.select(
            "effect",
            lambda row: (
                row.status is LedgerStatus.SENT
                and row.worker is not None
                and row.worker.startswith(f"{process}#")
                and row.worker != worker
            ),
            order=lambda row: row.look_at,
            limit=limit,
        )

    async def save(self, changes: AdaptersChanges) -> None:
        """Compare-and-set."""
        inserted = await self.insert_new("effect", changes.new)
        if len(inserted) != len(changes.new):
            raise VersionConflict("effect: another replica inserted first")
        await self.update("effect", changes.moved)
        await self.insert_new("attempt", changes.attempts)


TABLES: Final[dict[str, tuple[MetaData, dict[str, str]]]] = {
    "gateway": GATEWAY_TABLES,
    "orchestrator": ORCHESTRATOR_TABLES,
    "adapters": (adapters_tables.METADATA, {"effect": "state_version"}),
    "reconciler": RECONCILER_TABLES,
    "repair-planner": PLANNER_TABLES,
}
"""Tables of each service and the columns that compare-and-set goes by."""
