"""The services' stores in memory: the same rows, keys and unique constraints as their tables, row access in place of SQL.

Keys and unique constraints come from the services' own table definitions, so that they cannot differ from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import MetaData, UniqueConstraint

from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_gateway import tables as gateway_tables
from trueup_gateway.core.case import NewCase
from trueup_gateway.core.records import CaseView, CommandView, DecisionRow, ElementView, ExceptionView, HistoryView
from trueup_gateway.core.records import FreezeRow, MandateRow, PolicyRow
from trueup_reconciler import tables as reconciler_tables
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.settle import SettlementRow
from trueup_reconciler.core.visit import PaceRow
from trueup_reconciler.store import Changed, Changes
from trueup_repair_planner import tables as planner_tables
from trueup_repair_planner.core.lifecycle import ExceptionRow

from tests.simulation.memory import MemoryTransaction, Table, Unique

MAIL: Final = frozenset({"inbox", "outbox", "quarantine", "delivery_failure", "stream_mark"})
CONDITIONS: Final[dict[str, Callable[[Any], bool]]] = {"identity IS NOT NULL": lambda row: row.identity is not None}
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


class GatewayMemory(MemoryTransaction):
    """The gateway's transaction: acceptance as far as the simulation needs it, and all of the worker."""

    async def save_cases(self, cases: Sequence[NewCase]) -> None:
        """Accepted commands."""
        for name, rows in (
            ("edge", [case.edge for case in cases]),
            ("mandate", [case.mandate for case in cases]),
            ("command_view", [case.command for case in cases]),
            ("case_view", [case.case for case in cases]),
        ):
            await self.insert(name, rows)

    async def epoch(self) -> int:
        """The present epoch."""
        return 1

    async def moment(self) -> Moment:
        """The time."""
        moment, _ = await self.claim("", [])
        return moment

    async def policy(self) -> PolicyRow | None:
        """Policies are not simulated."""
        return None

    async def active_freezes(self) -> list[FreezeRow]:
        """All freezes in force."""
        now = self.engine.business()
        return await self.select(
            "freeze", lambda row: row.lifted_at is None and (row.expires_at is None or row.expires_at > now)
        )

    async def mandates(self, mandate_ids: Sequence[str]) -> dict[str, MandateRow]:
        """Mandates by id."""
        return {row.mandate_id: row for row in await self.get("mandate", "mandate_id", mandate_ids)}

    async def decisions(self, decision_ids: Sequence[str]) -> dict[str, DecisionRow]:
        """Decisions by id."""
        return {row.decision_id: row for row in await self.get("decision", "decision_id", decision_ids)}

    async def revoked_capabilities(self, capability_ids: Sequence[str]) -> set[str]:
        """Those that are revoked."""
        rows = await self.get("capability", "capability_id", capability_ids)
        return {row.capability_id for row in rows if row.revoked_at is not None}

    async def save_views(
        self,
        *,
        commands: Sequence[CommandView] = (),
        cases: Sequence[CaseView] = (),
        history: Sequence[HistoryView] = (),
        elements: Sequence[ElementView] = (),
        exceptions: Sequence[ExceptionView] = (),
    ) -> None:
        """Project."""
        await self.upsert("command_view", commands)
        await self.upsert("case_view", cases)
        await self.insert_new("history_view", history)
        await self.upsert("element_view", elements)
        await self.upsert("exception_view", exceptions)

    async def free_identities(self, command_ids: Sequence[str]) -> None:
        """Let other keys have the identities."""
        if command_ids:
            rows = await self.get("edge", "command_id", command_ids)
            await self.update("edge", [row.evolve(identity=None) for row in rows if row.identity is not None])


GATEWAY_TABLES: Final = (
    gateway_tables.METADATA,
    {
        "command_view": "state_version",
        "case_view": "state_version",
        "element_view": "version",
        "exception_view": "version",
    },
)


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

    async def save(self, changes: Changes) -> None:
        """Compare-and-set."""
        await self._save("settlement", changes.settlements)
        await self._save("element", changes.elements)
        await self._save("obligation", changes.obligations)
        await self._save("pace", changes.paces)

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

    async def save_exceptions(self, new: Sequence[ExceptionRow], moved: Sequence[ExceptionRow]) -> None:
        """Compare-and-set."""
        if new:
            inserted = await self.insert_new("exception", new)
            if len(inserted) != len(new):
                raise VersionConflict("exception: another replica inserted first")
        await self.update("exception", moved)


PLANNER_TABLES: Final = (planner_tables.METADATA, {"exception": "version"})
