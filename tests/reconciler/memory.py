"""The reconciler's store in memory: the same promises as the SQL one, for tests that need no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from tests.reconciler.builders import T0

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.journal import ObligationRow
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_reconciler.core.canary import CanaryRow
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.settlement import SettlementRow
from trueup_reconciler.core.survey import SurveyRow
from trueup_reconciler.core.visit import PaceRow
from trueup_reconciler.store import Changed, Changes, Listed


class MemoryStore:
    """Committed rows; one transaction at a time."""

    def __init__(self) -> None:
        self.settlement: dict[Any, SettlementRow] = {}
        self.element: dict[Any, ElementRow] = {}
        self.obligation: dict[Any, ObligationRow] = {}
        self.pace: dict[Any, PaceRow] = {}
        self.canary: dict[Any, CanaryRow] = {}
        self.survey: dict[Any, SurveyRow] = {}
        self.outbox: list[Outgoing] = []
        self.quarantined: list[tuple[str, str]] = []
        self.failures: dict[str, int] = {}
        self.now = Moment(business=T0, real=T0)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        tx = MemoryTransaction(self)
        yield tx
        tx.commit()


class MemoryTransaction:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._saved: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._posted: list[Outgoing] = []

    def commit(self) -> None:
        for table, rows in self._saved:
            table.update(rows)
        self.store.outbox += self._posted

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        return self.store.now, frozenset(message_ids)

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        self._posted += outgoing

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        self.store.quarantined.append((message.id, reason))

    async def count_failure(self, consumer: str, message_id: str) -> int:
        self.store.failures[message_id] = self.store.failures.get(message_id, 0) + 1
        return self.store.failures[message_id]

    async def settlements(self, command_ids: Sequence[str]) -> list[SettlementRow]:
        return [self.store.settlement[key] for key in command_ids if key in self.store.settlement]

    async def due_settlements(self, now: datetime, limit: int) -> list[SettlementRow]:
        return [row for row in self.store.settlement.values() if row.next_at is not None and row.next_at <= now][:limit]

    async def elements(self, object_keys: Sequence[str]) -> list[ElementRow]:
        return [row for row in self.store.element.values() if row.object_key in object_keys]

    async def siblings(self, objects: Sequence[tuple[str, str, str]]) -> list[ElementRow]:
        rows = self.store.element.values()
        return [row for row in rows if (row.tenant, row.object_type, row.object_id) in objects]

    async def due_elements(self, now: datetime, limit: int) -> list[ElementRow]:
        rows = (row for row in self.store.element.values() if row.next_visit_at is not None)
        return [row for row in rows if row.next_visit_at is not None and row.next_visit_at <= now][:limit]

    async def obligations(self, obligation_ids: Sequence[str]) -> list[ObligationRow]:
        return [self.store.obligation[key] for key in obligation_ids if key in self.store.obligation]

    async def paces(self, pace_keys: Sequence[str]) -> list[PaceRow]:
        return [self.store.pace[key] for key in pace_keys if key in self.store.pace]

    async def canaries(self, canary_keys: Sequence[str]) -> list[CanaryRow]:
        return [self.store.canary[key] for key in canary_keys if key in self.store.canary]

    async def due_canaries(self, real: datetime, limit: int) -> list[CanaryRow]:
        return [row for row in self.store.canary.values() if row.due_at is not None and row.due_at <= real][:limit]

    async def surveys(self, survey_keys: Sequence[str]) -> list[SurveyRow]:
        return [self.store.survey[key] for key in survey_keys if key in self.store.survey]

    async def due_surveys(self, now: datetime, limit: int) -> list[SurveyRow]:
        return [row for row in self.store.survey.values() if row.next_at <= now][:limit]

    async def listed(self, seen: Listed, now: datetime) -> None:
        for key, row in self.store.element.items():
            ours = (row.tenant, row.system) == (seen.tenant, seen.system)
            if ours and (row.command_id in seen.operations or row.resource in seen.resources):
                self.store.element[key] = row.evolve(surveyed_at=now)

    async def unlisted(self, tenant: str, system: str, since: datetime, limit: int) -> list[ElementRow]:
        rows = (row for row in self.store.element.values() if (row.tenant, row.system) == (tenant, system))
        listed = (row for row in rows if row.surveyed_at is not None and row.next_visit_at is not None)
        return [row for row in listed if row.surveyed_at is not None and row.surveyed_at < since][:limit]

    async def save(self, changes: Changes) -> None:
        self._keep(self.store.settlement, changes.settlements, ("command_id",), "state_version")
        self._keep(self.store.element, changes.elements, ("object_key", "element"), "state_version")
        self._keep(self.store.obligation, changes.obligations, ("obligation_id",), "version")
        self._keep(self.store.pace, changes.paces, ("pace_key",), "state_version")
        self._keep(self.store.canary, changes.canaries, ("canary_key",), "state_version")
        self._keep(self.store.survey, changes.surveys, ("survey_key",), "state_version")

    def _keep(self, table: dict[Any, Any], changed: Changed[Any], key: tuple[str, ...], version: str) -> None:
        rows: dict[Any, Any] = {}
        for row in changed.new:
            name = tuple(getattr(row, part) for part in key)
            name = name[0] if len(name) == 1 else name
            if name in table:
                raise VersionConflict(f"{name} exists")
            rows[name] = type(row).model_validate_json(row.model_dump_json())
        for row in changed.moved:
            name = tuple(getattr(row, part) for part in key)
            name = name[0] if len(name) == 1 else name
            if name not in table or getattr(table[name], version) + 1 != getattr(row, version):
                raise VersionConflict(f"{name} moved")
            rows[name] = type(row).model_validate_json(row.model_dump_json())
        self._saved.append((table, rows))
