"""What the planner keeps: exceptions, repairs and incidents, found by what they are about, saved by compare-and-set."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Transaction
from trueup_common.runtime.rows import Rows
from trueup_repair_planner.columns import FLYING
from trueup_repair_planner.core.incident import IncidentRow
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.core.repair import RepairRow, Status


class PlannerTransaction(Transaction, Protocol):
    """One transaction as the handlers see it."""

    async def exceptions(self, exception_ids: Sequence[str]) -> list[ExceptionRow]:
        """Exceptions by id."""
        ...

    async def overdue_exceptions(self, now: datetime, limit: int) -> list[ExceptionRow]:
        """Open exceptions whose deadline passed, locked; those that another replica holds are left out."""
        ...

    async def repairs(self, repair_ids: Sequence[str]) -> list[RepairRow]:
        """Repairs by id."""
        ...

    async def related_repairs(
        self, subjects: Sequence[str], exception_ids: Sequence[str], operator_command_ids: Sequence[str] = ()
    ) -> list[RepairRow]:
        """All repairs of these subjects or exceptions, and those that these operator commands are at work for."""
        ...

    async def due_repairs(self, now: datetime, statuses: Sequence[Status], limit: int) -> list[RepairRow]:
        """Repairs whose time has come, locked; those that another replica holds are left out."""
        ...

    async def unverified_repairs(self, now: datetime, limit: int) -> list[RepairRow]:
        """Repairs in verification whose time for it is over, locked."""
        ...

    async def held_repairs(self, incident_id: str, limit: int) -> list[RepairRow]:
        """Repairs that an incident holds back, oldest first, locked."""
        ...

    async def incidents_of(self, causes: Sequence[tuple[str, str]]) -> list[IncidentRow]:
        """The newest incident of each (tenant, cause), locked against other replicas by its version."""
        ...

    async def due_incidents(self, now: datetime, limit: int) -> list[IncidentRow]:
        """Incidents whose time has come, locked."""
        ...

    async def incident_counts(self, incident_ids: Sequence[str]) -> Mapping[str, tuple[int, int, int]]:
        """Of each incident: (open exceptions, repairs held, repairs in flight)."""
        ...

    async def save(
        self,
        exceptions: tuple[Sequence[ExceptionRow], Sequence[ExceptionRow]],
        repairs: tuple[Sequence[RepairRow], Sequence[RepairRow]] = ((), ()),
        incidents: tuple[Sequence[IncidentRow], Sequence[IncidentRow]] = ((), ()),
    ) -> None:
        """Insert and update, each (new, moved), by compare-and-set. At the latest the commit raises VersionConflict
        where another was first."""
        ...


_EXCEPTIONS: Final = Rows("repair_planner.exception", ExceptionRow, key=("exception_id",), version="version")
_REPAIRS: Final = Rows("repair_planner.repair", RepairRow, key=("repair_id",), version="version")
_INCIDENTS: Final = Rows("repair_planner.incident", IncidentRow, key=("incident_id",), version="version")


ANY_OVERDUE: Final = (
    "SELECT EXISTS (SELECT 1 FROM exception WHERE status = 'open' AND deadline_at <= (SELECT trueup.now()))"
)
ANY_DUE_INCIDENT: Final = "SELECT EXISTS (SELECT 1 FROM incident WHERE due_at <= (SELECT trueup.now()))"
ANY_UNVERIFIED: Final = (
    "SELECT EXISTS (SELECT 1 FROM repair WHERE status = 'VERIFYING' AND verify_until <= (SELECT trueup.now()))"
)
ANY_DUE_REPAIR: Final = "SELECT EXISTS (SELECT 1 FROM repair WHERE due_at <= (SELECT trueup.now()))"
OPENED: Final = Tally("trueup_exceptions_opened", "Exceptions opened by kind", ("kind",))
REPAIRS_ENDED: Final = Tally("trueup_repairs_ended", "Repairs by how they ended", ("action", "status"))
INCIDENTS_OPENED: Final = Tally("trueup_incidents_opened", "Incidents opened", ("by",))
_COUNTS: Final = f"""
SELECT i AS incident_id,
  (SELECT count(*) FROM exception WHERE incident_id = i AND status = 'open') AS open,
  (SELECT count(*) FROM repair WHERE incident_id = i AND held) AS held,
  (SELECT count(*) FROM repair WHERE incident_id = i AND NOT held AND {FLYING} AND due_at IS NOT NULL) AS flying
FROM unnest($1::text[]) AS wanted(i)
"""

_RELATED: Final = """
WHERE repair_id = ANY(ARRAY(
  SELECT repair_id FROM repair WHERE subject_key = ANY($1::text[])
  UNION SELECT repair_id FROM repair WHERE exception_id = ANY($2::text[])
  UNION SELECT repair_id FROM repair WHERE operator_command_id = ANY($3::text[]) AND operator_command_id IS NOT NULL))
ORDER BY created_at, repair_id
"""
"""Each by its own index; one condition with OR would read all repairs that ever were."""


class SqlPlannerTransaction(SqlTransaction):
    """The same over PostgreSQL."""

    service = "repair-planner"

    async def exceptions(self, exception_ids: Sequence[str]) -> list[ExceptionRow]:
        """Exceptions by id."""
        return await _EXCEPTIONS.get(self.reading, "exception_id", exception_ids)

    async def overdue_exceptions(self, now: datetime, limit: int) -> list[ExceptionRow]:
        """Open exceptions whose deadline passed, locked for this transaction."""
        tail = (
            "WHERE status = 'open' AND deadline_at <= $1 ORDER BY deadline_at, exception_id LIMIT $2 "
            "FOR UPDATE SKIP LOCKED"
        )
        return await _EXCEPTIONS.select(self.connection, tail, now, limit)

    async def repairs(self, repair_ids: Sequence[str]) -> list[RepairRow]:
        """Repairs by id."""
        return await _REPAIRS.get(self.reading, "repair_id", repair_ids)

    async def related_repairs(
        self, subjects: Sequence[str], exception_ids: Sequence[str], operator_command_ids: Sequence[str] = ()
    ) -> list[RepairRow]:
        """All repairs of these subjects or exceptions, and those that these operator commands are at work for."""
        if not (subjects or exception_ids or operator_command_ids):
            return []
        return await _REPAIRS.select(
            self.reading, _RELATED, list(subjects), list(exception_ids), list(operator_command_ids)
        )

    async def due_repairs(self, now: datetime, statuses: Sequence[Status], limit: int) -> list[RepairRow]:
        """Repairs whose time has come, locked for this transaction."""
        tail = "WHERE due_at <= $1 AND status = ANY($2) ORDER BY due_at, repair_id LIMIT $3 FOR UPDATE SKIP LOCKED"
        return await _REPAIRS.select(self.connection, tail, now, [status.value for status in statuses], limit)

    async def unverified_repairs(self, now: datetime, limit: int) -> list[RepairRow]:
        """Repairs in verification whose time for it is over, locked for this transaction."""
        tail = (
            "WHERE status = 'VERIFYING' AND verify_until <= $1 ORDER BY verify_until, repair_id LIMIT $2 "
            "FOR UPDATE SKIP LOCKED"
        )
        return await _REPAIRS.select(self.connection, tail, now, limit)

    async def held_repairs(self, incident_id: str, limit: int) -> list[RepairRow]:
        """Repairs that an incident holds back, oldest first."""
        tail = "WHERE incident_id = $1 AND held ORDER BY created_at, repair_id LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _REPAIRS.select(self.connection, tail, incident_id, limit)

    async def incidents_of(self, causes: Sequence[tuple[str, str]]) -> list[IncidentRow]:
        """The newest incident of each (tenant, cause)."""
        if not causes:
            return []
        tail = (
            "AS x JOIN unnest($1::text[], $2::text[]) AS wanted(t, k) ON tenant = t AND cause_key = k "
            "WHERE number = (SELECT max(number) FROM incident n WHERE n.tenant = t AND n.cause_key = k)"
        )
        tenants, keys = [tenant for tenant, _ in causes], [key for _, key in causes]
        return await _INCIDENTS.select(self.reading, tail, tenants, keys)

    async def due_incidents(self, now: datetime, limit: int) -> list[IncidentRow]:
        """Incidents whose time has come, locked for this transaction."""
        tail = "WHERE due_at <= $1 ORDER BY due_at, incident_id LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _INCIDENTS.select(self.connection, tail, now, limit)

    async def incident_counts(self, incident_ids: Sequence[str]) -> Mapping[str, tuple[int, int, int]]:
        """Of each incident: (open exceptions, repairs held, repairs in flight)."""
        records: list[Any] = await self.connection.fetch(_COUNTS, list(incident_ids))
        return {record["incident_id"]: (record["open"], record["held"], record["flying"]) for record in records}

    async def save(
        self,
        exceptions: tuple[Sequence[ExceptionRow], Sequence[ExceptionRow]],
        repairs: tuple[Sequence[RepairRow], Sequence[RepairRow]] = ((), ()),
        incidents: tuple[Sequence[IncidentRow], Sequence[IncidentRow]] = ((), ()),
    ) -> None:
        """Insert and update by compare-and-set, with the commit; what ends makes room for what takes its place.

        Where a row moved first or is there already, the transaction ends with VersionConflict.
        """
        new, moved = repairs
        self.later(_REPAIRS.updating(moved))
        if new and moved:  # one statement writes its tables in no order, and an exception has one repair in flight
            await self.flush()
        self.later(
            _REPAIRS.inserting(new),
            _EXCEPTIONS.inserting(exceptions[0]),
            _EXCEPTIONS.updating(exceptions[1]),
            _INCIDENTS.inserting(incidents[0]),
            _INCIDENTS.updating(incidents[1]),
        )
        self._count(exceptions[0], [*repairs[0], *repairs[1]], [*incidents[0], *incidents[1]])

    def _count(
        self, found: Sequence[ExceptionRow], repairs: Sequence[RepairRow], incidents: Sequence[IncidentRow]
    ) -> None:
        for row in found:
            self.count(OPENED, row.kind)
        for repair in repairs:
            if not repair.in_flight:
                self.count(REPAIRS_ENDED, repair.repair_action, repair.status.value)
        for item in incidents:
            if item.trail and item.trail[-1]["event"] == "many":
                self.count(INCIDENTS_OPENED, str(item.cause["by"]))


def sql_store(database: Database) -> SqlStore[SqlPlannerTransaction]:
    """The store over one database."""
    return SqlStore(database, SqlPlannerTransaction)
