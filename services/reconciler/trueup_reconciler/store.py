"""What the reconciler keeps: rows by key, rows that are due, and one compare-and-set save per transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar

from pydantic import BaseModel

from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.shape import record
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Transaction, VersionConflict
from trueup_common.runtime.rows import Rows
from trueup_reconciler.core.canary import CanaryRow
from trueup_reconciler.core.element import ElementRow, object_key
from trueup_reconciler.core.settlement import SettlementRow
from trueup_reconciler.core.survey import SurveyRow
from trueup_reconciler.core.visit import PaceRow

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Changed(Generic[M]):
    """Rows of one table to save: `new` must not exist yet, `moved` carry the stored version plus 1."""

    new: tuple[M, ...] = ()
    moved: tuple[M, ...] = ()


@record
class Changes:
    """Everything that one transaction changed."""

    settlements: Changed[SettlementRow] = Changed()
    elements: Changed[ElementRow] = Changed()
    obligations: Changed[ObligationRow] = Changed()
    paces: Changed[PaceRow] = Changed()
    canaries: Changed[CanaryRow] = Changed()
    surveys: Changed[SurveyRow] = Changed()
    finished: tuple[SettlementRow, ...] = ()
    """Settlements that came to their verdict with this save, for the metrics."""
    turned: tuple[ElementRow, ...] = ()
    """Elements that came into another phase with this save, for the metrics."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What a page of a survey listed of the effects of one (tenant, system): by operation, and by object."""

    tenant: str
    system: str
    operations: tuple[str, ...]
    resources: tuple[str, ...]


class ReconcilerTransaction(Transaction, Protocol):
    """One transaction as the handlers see it."""

    async def settlements(self, command_ids: Sequence[str]) -> list[SettlementRow]:
        """Settlements of these operations."""
        ...

    async def due_settlements(self, now: datetime, limit: int) -> list[SettlementRow]:
        """Settlements whose time has come, locked; those that another replica holds are left out."""
        ...

    async def elements(self, object_keys: Sequence[str]) -> list[ElementRow]:
        """All elements of these objects."""
        ...

    async def siblings(self, objects: Sequence[tuple[str, str, str]]) -> list[ElementRow]:
        """All elements of these business objects: (tenant, type, id)."""
        ...

    async def due_elements(self, now: datetime, limit: int) -> list[ElementRow]:
        """Elements whose visit is due, locked; those that another replica holds are left out."""
        ...

    async def obligations(self, obligation_ids: Sequence[str]) -> list[ObligationRow]:
        """Obligations by id."""
        ...

    async def paces(self, pace_keys: Sequence[str]) -> list[PaceRow]:
        """Paces by key."""
        ...

    async def canaries(self, canary_keys: Sequence[str]) -> list[CanaryRow]:
        """Canaries by key."""
        ...

    async def due_canaries(self, real: datetime, limit: int) -> list[CanaryRow]:
        """Canaries whose planted drift should have been found by now (real time), locked."""
        ...

    async def surveys(self, survey_keys: Sequence[str]) -> list[SurveyRow]:
        """Surveys by key."""
        ...

    async def due_surveys(self, now: datetime, limit: int) -> list[SurveyRow]:
        """Surveys whose next page is due, locked."""
        ...

    async def listed(self, seen: Listed, now: datetime) -> None:
        """Keep when a survey listed these objects last."""
        ...

    async def unlisted(self, tenant: str, system: str, since: datetime, limit: int) -> list[ElementRow]:
        """Elements whose objects surveys have listed before, but not since then."""
        ...

    async def save(self, changes: Changes) -> None:
        """Insert and update by compare-and-set. Raises VersionConflict where another replica was first."""
        ...


_SETTLEMENTS: Final = Rows("reconciler.settlement", SettlementRow, key=("command_id",), version="state_version")
_ELEMENTS: Final = Rows("reconciler.element", ElementRow, key=("object_key", "element"), version="state_version")
_OBLIGATIONS: Final = Rows("reconciler.obligation", ObligationRow, key=("obligation_id",), version="version")
_CANARIES: Final = Rows("reconciler.canary", CanaryRow, key=("canary_key",), version="state_version")
_SURVEYS: Final = Rows("reconciler.survey", SurveyRow, key=("survey_key",), version="state_version")
_PACES: Final = Rows("reconciler.pace", PaceRow, key=("pace_key",), version="state_version")


ANY_SETTLEMENT: Final = "SELECT EXISTS (SELECT 1 FROM settlement WHERE next_at <= (SELECT trueup.now()))"
ANY_VISIT: Final = "SELECT EXISTS (SELECT 1 FROM element WHERE next_visit_at <= (SELECT trueup.now()))"
ANY_CANARY: Final = "SELECT EXISTS (SELECT 1 FROM canary WHERE due_at <= (SELECT clock_timestamp()))"
ANY_SURVEY: Final = "SELECT EXISTS (SELECT 1 FROM survey WHERE next_at <= (SELECT trueup.now()))"
_LISTED: Final = """
WITH seen AS (
  SELECT object_key, element FROM element
  WHERE (command_id = ANY($2) OR object_key = ANY($3)) AND tenant = $4 AND system = $5
  ORDER BY object_key, element FOR UPDATE
)
UPDATE element e SET surveyed_at = $1 FROM seen s WHERE e.object_key = s.object_key AND e.element = s.element
"""
SETTLEMENTS: Final = Tally("trueup_settlements", "Unknown outcomes settled, by verdict", ("system", "verdict"))
PHASES: Final = Tally("trueup_element_phases", "Elements that came into a phase", ("system", "phase"))


class SqlReconcilerTransaction(SqlTransaction):
    """The same over PostgreSQL."""

    service = "reconciler"

    async def settlements(self, command_ids: Sequence[str]) -> list[SettlementRow]:
        """Settlements of these operations."""
        return await _SETTLEMENTS.get(self.connection, "command_id", command_ids)

    async def due_settlements(self, now: datetime, limit: int) -> list[SettlementRow]:
        """Settlements whose time has come, locked for this transaction."""
        tail = "WHERE next_at <= $1 ORDER BY next_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _SETTLEMENTS.select(self.connection, tail, now, limit)

    async def elements(self, object_keys: Sequence[str]) -> list[ElementRow]:
        """All elements of these objects."""
        return await _ELEMENTS.get(self.connection, "object_key", object_keys)

    async def siblings(self, objects: Sequence[tuple[str, str, str]]) -> list[ElementRow]:
        """All elements of these business objects."""
        tail = (
            "WHERE object_id IS NOT NULL AND (tenant, object_type, object_id) IN "
            "(SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))"
        )
        return await _ELEMENTS.select(self.connection, tail, *map(list, zip(*objects, strict=True)))

    async def due_elements(self, now: datetime, limit: int) -> list[ElementRow]:
        """Elements whose visit is due, locked for this transaction."""
        tail = "WHERE next_visit_at <= $1 ORDER BY next_visit_at, object_key LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _ELEMENTS.select(self.connection, tail, now, limit)

    async def obligations(self, obligation_ids: Sequence[str]) -> list[ObligationRow]:
        """Obligations by id."""
        return await _OBLIGATIONS.get(self.connection, "obligation_id", obligation_ids)

    async def paces(self, pace_keys: Sequence[str]) -> list[PaceRow]:
        """Paces by key, without a lock: the save finds out whether another replica spent meanwhile."""
        return await _PACES.get(self.connection, "pace_key", pace_keys)

    async def canaries(self, canary_keys: Sequence[str]) -> list[CanaryRow]:
        """Canaries by key."""
        return await _CANARIES.get(self.connection, "canary_key", canary_keys)

    async def due_canaries(self, real: datetime, limit: int) -> list[CanaryRow]:
        """Canaries that are overdue, locked for this transaction."""
        tail = "WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _CANARIES.select(self.connection, tail, real, limit)

    async def surveys(self, survey_keys: Sequence[str]) -> list[SurveyRow]:
        """Surveys by key."""
        return await _SURVEYS.get(self.connection, "survey_key", survey_keys)

    async def due_surveys(self, now: datetime, limit: int) -> list[SurveyRow]:
        """Surveys whose next page is due, locked for this transaction."""
        tail = "WHERE next_at <= $1 ORDER BY next_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        return await _SURVEYS.select(self.connection, tail, now, limit)

    async def listed(self, seen: Listed, now: datetime) -> None:
        """Keep when a survey listed these objects last: no change of state, so no version moves."""
        keys = [object_key(seen.tenant, seen.system, resource) for resource in seen.resources]
        place = (seen.tenant, seen.system)
        await self.connection.execute(_LISTED, now, list(seen.operations), keys, *place)

    async def unlisted(self, tenant: str, system: str, since: datetime, limit: int) -> list[ElementRow]:
        """Elements whose objects surveys have listed before, but not since then."""
        tail = (
            "WHERE tenant = $1 AND system = $2 AND surveyed_at < $3 AND next_visit_at IS NOT NULL "
            "ORDER BY object_key, element LIMIT $4 FOR UPDATE SKIP LOCKED"
        )
        return await _ELEMENTS.select(self.connection, tail, tenant, system, since, limit)

    async def save(self, changes: Changes) -> None:
        """Save in a fixed order of tables, so that two batches cannot deadlock."""
        await self._write(_SETTLEMENTS, changes.settlements)
        await self._write(_ELEMENTS, changes.elements)
        await self._write(_OBLIGATIONS, changes.obligations)
        await self._write(_PACES, changes.paces)
        await self._write(_CANARIES, changes.canaries)
        await self._write(_SURVEYS, changes.surveys)
        for settlement in changes.finished:
            self.count(SETTLEMENTS, settlement.system, settlement.verdict or "none")
        for element in changes.turned:
            self.count(PHASES, element.system, element.phase)

    async def _write(self, rows: Rows[M], changed: Changed[M]) -> None:
        if changed.new:
            inserted = await rows.insert_new(self.connection, changed.new)
            if len(inserted) != len(changed.new):
                raise VersionConflict(f"{rows.name}: another replica inserted first")
        await rows.update(self.connection, changed.moved)


def sql_store(database: Database) -> SqlStore[SqlReconcilerTransaction]:
    """The store over one database."""
    return SqlStore(database, SqlReconcilerTransaction)
