"""SQL of anomalies: sightings in, and how many of each actor there are in the window of each rule."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows, Write
from trueup_gateway.core.anomalies import (
    MANY_UNKNOWNS,
    MASS_APPROVALS,
    START_BURST,
    AnomalyRow,
    AnomalyRules,
    Key,
    Sighted,
)
from trueup_gateway.core.number_records import SightingRow

SIGHTINGS: Final = Rows("gateway.sighting", SightingRow, key=("tenant", "kind", "actor", "at", "name"))
ANOMALIES: Final = Rows("gateway.anomaly", AnomalyRow, key=("tenant", "rule", "actor"))
SIGHTINGS_KEPT: Final = timedelta(days=2)

_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('gateway.anomalies', 0))"
_COUNTED: Final = """
SELECT tenant, sum((counts->>$1)::float)::bigint AS count FROM gateway.counter
WHERE grain = 'minute' AND at > $2 AND counts->>$1 IS NOT NULL AND (tenant = '*') = $3
GROUP BY tenant HAVING sum((counts->>$1)::float) >= $4
"""
_STARTERS: Final = """
SELECT subject AS actor, count(*) AS count, max(workflow_id) AS about FROM gateway.case_view
WHERE tenant = $1 AND created_at > $2 GROUP BY subject HAVING count(*) >= $3
"""
_REVIEWERS: Final = """
SELECT tenant, reviewer AS actor, count(*) AS count, max(workflow_id) AS about FROM gateway.approval
WHERE decided_at > $1 AND reviewer IS NOT NULL GROUP BY tenant, reviewer HAVING count(*) >= $2
"""
_SIGHTED: Final = """
SELECT tenant, kind, actor, sum(count)::bigint AS count, max(about) AS about FROM gateway.sighting
WHERE at > $1 AND kind = $2 GROUP BY tenant, kind, actor HAVING sum(count) >= $3
"""


def sighting(rows: Sequence[SightingRow]) -> Write | None:
    """Keep sightings together with other writes; one that was kept already stays."""
    return SIGHTINGS.inserting(rows, absent_only=True)


class AnomalySql(SqlTransaction):
    """Looking for anomalies."""

    async def save_sightings(self, rows: Sequence[SightingRow]) -> None:
        """Keep what this process has seen."""
        self.later(sighting(rows))
        await self.flush()

    async def may_look(self) -> bool:
        """True where this replica looks in this transaction."""
        return bool(await self.connection.fetchval(_LOCK))

    async def open_anomalies(self) -> list[AnomalyRow]:
        """What was told, ends by itself, and has not ended."""
        tail = "WHERE json_array_length(reports) > 0 ORDER BY told_at LIMIT 2000"
        return await ANOMALIES.select(self.connection, tail)

    async def sighted(self, rules: AnomalyRules, marks: Mapping[str, int], now: datetime) -> list[Sighted]:
        """Everything that was seen as often as its rule has to know."""
        found: list[Sighted] = []
        for rule in rules.rules:
            since, least = now - timedelta(seconds=rule.window_seconds), marks[rule.name]
            if rule.name == START_BURST:
                for tenant, _ in await self._over("cases_begun", since, least):
                    rows = await self.connection.fetch(_STARTERS, tenant, since, least)
                    found += [Sighted(tenant=tenant, rule=rule.name, **dict(row)) for row in rows]
            elif rule.name == MANY_UNKNOWNS:
                counted = await self._over("opened.unknown_outcome", since, least)
                found += [Sighted(tenant, rule.name, "", count) for tenant, count in counted]
            elif rule.name == MASS_APPROVALS:
                rows = await self.connection.fetch(_REVIEWERS, since, least)
                found += [Sighted(rule=rule.name, **dict(row)) for row in rows]
            else:
                rows = await self.connection.fetch(_SIGHTED, since, rule.name, least)
                found += [Sighted(row["tenant"], row["kind"], row["actor"], row["count"], row["about"]) for row in rows]
        return found

    async def _over(self, counter: str, since: datetime, threshold: int) -> list[tuple[str, int]]:
        """Tenants over a threshold; nobody is where all of them together are not."""
        if not await self.connection.fetch(_COUNTED, counter, since, True, threshold):
            return []
        rows = await self.connection.fetch(_COUNTED, counter, since, False, threshold)
        return [(row["tenant"], row["count"]) for row in rows]

    async def told_anomalies(self, items: Sequence[Sighted]) -> dict[Key, AnomalyRow]:
        """What is remembered of these."""
        rows = await ANOMALIES.select(
            self.connection,
            "JOIN unnest($1::text[], $2::text[], $3::text[]) AS wanted(t, r, a) "
            "ON tenant = t AND rule = r AND actor = a",
            [item.tenant for item in items],
            [item.rule for item in items],
            [item.actor for item in items],
        )
        return {row.key: row for row in rows}

    async def save_anomalies(self, rows: Sequence[AnomalyRow]) -> None:
        """Remember what is told now."""
        self.later(ANOMALIES.upserting(rows))
        await self.flush()

    async def forget_sightings(self, now: datetime) -> None:
        """Drop what no window reaches any more."""
        await self.connection.execute("DELETE FROM gateway.sighting WHERE at < $1", now - SIGHTINGS_KEPT)
