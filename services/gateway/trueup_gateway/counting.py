"""Counting: a timer's work. Cohorts that changed are counted again, and the counters are moved by the difference."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from trueup_common.contracts.envelope import Outgoing
from trueup_common.runtime.ports import Moment
from trueup_gateway.core.counters import Parts, added, difference
from trueup_gateway.core.measures import (
    Bounds,
    CasesAlike,
    Counted,
    ExceptionsAlike,
    OperationsAlike,
    Subject,
    count_cases,
    count_exceptions,
    count_operations,
)
from trueup_gateway.core.number_records import ALL_TENANTS, HOUR_GRAIN, MINUTE_GRAIN, CohortRow, CounterRow
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.store.numbers import CohortKey, CounterKey

MARKS_MAX: Final = 50_000
DUE_MAX: Final = 500
COHORTS_MAX: Final = 2000
OBJECTS_MAX: Final = 200_000
"""What one tick looks at; of many crowded minutes that change at once, some are counted with the next one."""
FORGET_TICKS: Final = 360


class Counting:
    """Counts whatever changed since the last time."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._revised = False
        self._ticks = 0

    async def count(self, tx: GatewayTransaction, moment: Moment) -> Sequence[Outgoing]:
        """One tick."""
        if not await tx.may_count():
            return ()
        now = moment.business
        if not self._revised:
            await tx.revise(self._bounds.revision, now)
            tx.after_commit(self._has_revised)
        self._ticks += 1
        if self._ticks % FORGET_TICKS == 1:
            await tx.forget_old_numbers(now)
        changed = await tx.changed_cohorts(MARKS_MAX)
        due = await tx.due_cohorts(now, DUE_MAX)
        keys = sorted({*changed, *due}, key=lambda key: key[2], reverse=True)
        if keys:
            left = await self._count(tx, keys, now)
            await tx.mark_cohorts(left)
        return ()

    def _has_revised(self) -> None:
        self._revised = True

    async def _count(self, tx: GatewayTransaction, keys: Sequence[CohortKey], now: datetime) -> Sequence[CohortKey]:
        """Count cohorts, the youngest first; answers those that are left for the next tick."""
        before = await tx.cohorts(keys)
        cohorts: list[CohortRow] = []
        changes: list[tuple[str, Parts]] = []
        objects = 0
        for key in keys:
            if objects > OBJECTS_MAX or len(cohorts) >= COHORTS_MAX:
                break
            tenant, subject, began_at = key
            counted, size = await self._counted(tx, key, now)
            objects += size
            old = before[key].parts if key in before else {}
            changes.append((tenant, difference(old, counted.parts)))
            cohorts.append(
                CohortRow(tenant=tenant, subject=subject, began_at=began_at, parts=counted.parts, due_at=counted.due_at)
            )
        moved = moves(changes)
        counters = await tx.counters(sorted(moved))
        await tx.save_counted(
            cohorts,
            [
                CounterRow(
                    tenant=key[0],
                    grain=key[1],
                    at=key[2],
                    counts=added(counters[key].counts if key in counters else {}, change),
                )
                for key, change in sorted(moved.items())
            ],
        )
        return keys[len(cohorts) :]

    async def _counted(self, tx: GatewayTransaction, key: CohortKey, now: datetime) -> tuple[Counted, int]:
        """What a cohort comes to, and how many objects it has."""
        tenant, subject, began_at = key
        bounds = self._bounds
        if subject == Subject.OPERATION:
            operations = await tx.operation_groups(tenant, began_at, bounds.terminal)
            return count_operations(began_at, operations, now=now, bounds=bounds), _size(operations)
        if subject == Subject.CASE:
            cases = await tx.case_groups(tenant, began_at)
            return count_cases(began_at, cases, now=now), _size(cases)
        exceptions = await tx.exception_groups(tenant, began_at, bounds.sla)
        return count_exceptions(began_at, exceptions, now=now, bounds=bounds), _size(exceptions)


def _size(groups: Sequence[OperationsAlike] | Sequence[CasesAlike] | Sequence[ExceptionsAlike]) -> int:
    return sum(group.count for group in groups)


def moves(changes: Iterable[tuple[str, Parts]]) -> dict[CounterKey, dict[str, float]]:
    """What each counter moves by: the tenant's and everybody's, of the minute and of its hour."""
    found: dict[CounterKey, dict[str, float]] = {}
    for tenant, parts in changes:
        for text, counts in parts.items():
            minute = datetime.fromisoformat(f"{text}:00+00:00")
            hour = minute.replace(minute=0)
            for name in (tenant, ALL_TENANTS):
                for key in ((name, MINUTE_GRAIN, minute), (name, HOUR_GRAIN, hour)):
                    found[key] = added(found.get(key, {}), counts)
    return found
