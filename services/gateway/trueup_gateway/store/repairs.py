"""Reads of repairs and incidents: always one tenant's rows."""

from collections.abc import Sequence
from typing import Final

from trueup_gateway.core.view_records import IncidentView, RepairView
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import CASES_SOURCE, INCIDENTS, REPAIRS, Page, Reader, before

_OWN: Final = (
    f"($2::text IS NULL OR EXISTS (SELECT 1 FROM {CASES_SOURCE} AS c "
    "WHERE c.workflow_id = x.source_workflow AND c.subject = $2))"
)


class RepairReads(Reads):
    """Reads of what is being repaired."""

    async def repairs(
        self, reader: Reader, page: Page, *, status: str | None, exception_id: str | None, in_flight: bool | None
    ) -> list[RepairView]:
        """A page of repairs, newest first."""
        async with self._search() as connection:
            return await REPAIRS.select(
                connection,
                f"AS x WHERE tenant = $1 AND {_OWN} AND ($3::text IS NULL OR status = $3) "
                "AND ($4::text IS NULL OR exception_id = $4) AND ($5::bool IS NULL OR $5 = (ended_at IS NULL)) "
                "AND ($6::timestamptz IS NULL OR (created_at, repair_id) < ($6, $7)) "
                "ORDER BY created_at DESC, repair_id DESC LIMIT $8",
                reader.tenant,
                reader.subject,
                status,
                exception_id,
                in_flight,
                *before(page),
                page.limit,
            )

    async def repairs_of(self, tenant: str, exception_ids: Sequence[str]) -> list[RepairView]:
        """Every repair of some exceptions."""
        async with self._connection() as connection:
            tail = "WHERE exception_id = ANY($2::text[]) AND tenant = $1 ORDER BY created_at, repair_id LIMIT 1000"
            return await REPAIRS.select(connection, tail, tenant, list(exception_ids))

    async def repair(self, reader: Reader, repair_id: str) -> RepairView | None:
        """One repair."""
        async with self._connection() as connection:
            tail = f"AS x WHERE tenant = $1 AND {_OWN} AND repair_id = $3"
            rows = await REPAIRS.select(connection, tail, reader.tenant, reader.subject, repair_id)
        return next(iter(rows), None)

    async def incidents(self, tenant: str, page: Page, *, status: str | None) -> list[IncidentView]:
        """A page of incidents, newest first."""
        async with self._search() as connection:
            return await INCIDENTS.select(
                connection,
                "WHERE tenant = $1 AND ($2::text IS NULL OR $2 = CASE WHEN closed_at IS NULL THEN 'open' "
                "ELSE 'closed' END) AND ($3::timestamptz IS NULL OR (opened_at, incident_id) < ($3, $4)) "
                "ORDER BY opened_at DESC, incident_id DESC LIMIT $5",
                tenant,
                status,
                *before(page),
                page.limit,
            )

    async def incident(self, tenant: str, incident_id: str) -> IncidentView | None:
        """One incident."""
        async with self._connection() as connection:
            rows = await INCIDENTS.select(connection, "WHERE tenant = $1 AND incident_id = $2", tenant, incident_id)
        return next(iter(rows), None)

    async def repair_counts(self, tenant: str) -> tuple[int, int]:
        """(repairs in flight, incidents that are not over) of a tenant."""
        async with self._connection() as connection:
            row = await connection.fetchrow(
                "SELECT (SELECT count(*) FROM gateway.repair_view WHERE tenant = $1 AND ended_at IS NULL) AS repairs, "
                "(SELECT count(*) FROM gateway.incident_view WHERE tenant = $1 AND closed_at IS NULL) AS incidents",
                tenant,
            )
        return row["repairs"], row["incidents"]
