"""SQL of workflows: registered documents, and their starts.

Who starts a version and who retires it meet at one advisory lock: a start sees the retirement, or is seen by it.
"""

from collections.abc import Collection, Sequence
from typing import Final

from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows, Write
from trueup_gateway.core.records import DefinitionRow
from trueup_gateway.core.view_records import CaseView
from trueup_gateway.core.workflow_start import Existing, NewWorkflow
from trueup_gateway.store.acceptance import using
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import CASES, EDGES, MANDATES, OPEN

DEFINITIONS: Final = Rows("gateway.definition", DefinitionRow, key=("tenant", "name", "version"))
DEFINITIONS_MAX: Final = 2000

_HOLD: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 4711))"
_HOLD_SHARED: Final = "SELECT pg_advisory_xact_lock_shared(hashtextextended(n, 4711)) FROM unnest($1::text[]) AS n"
_EXISTING: Final = """
SELECT e.tenant, e.key, e.fingerprint, e.command_id <> '' AS command, e.workflow_id, e.saga_id,
  coalesce(v.status, 'RUNNING') AS status, coalesce((v.instance->>'revision')::int, 1) AS revision,
  coalesce((v.instance->>'version')::int, 1) AS version
FROM unnest($1::text[], $2::text[]) AS q(tenant, key) JOIN gateway.edge e ON e.tenant = q.tenant AND e.key = q.key
LEFT JOIN gateway.case_view v ON v.workflow_id = e.workflow_id
"""
_TAKE_OVER: Final = """
UPDATE gateway.edge AS e SET fingerprint = q.fingerprint, workflow_id = q.workflow_id, saga_id = q.saga_id,
  capability_id = q.capability_id, created_at = q.created_at, expires_at = q.expires_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[],
  $8::timestamptz[], $9::text[]) AS q(tenant, key, fingerprint, workflow_id, saga_id, capability_id, created_at,
  expires_at, revises)
WHERE e.tenant = q.tenant AND e.key = q.key AND e.workflow_id = q.revises
"""
_NAMED: Final = "WHERE tenant = $1 AND ($2::text IS NULL OR name = $2) ORDER BY name, version LIMIT $3"
_EACH_NAMED: Final = """
WHERE (tenant, name) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY tenant, name, version LIMIT $3
"""


class WorkflowSql(SqlTransaction):
    """Definitions and starts."""

    async def hold_definition(self, tenant: str, name: str) -> None:
        """Wait for whoever starts or retires this workflow right now, and make others wait until the commit."""
        await self.connection.execute(_HOLD, f"{tenant}/{name}")

    async def hold_definitions(self, names: Collection[tuple[str, str]]) -> None:
        """Wait for whoever retires one of these (tenant, name), and make such others wait; who starts does not."""
        await self.connection.execute(_HOLD_SHARED, sorted(f"{tenant}/{name}" for tenant, name in names))

    async def definitions(self, tenant: str, name: str | None = None) -> list[DefinitionRow]:
        """The tenant's own definitions and its retirements of built-in ones."""
        return await DEFINITIONS.select(self.connection, _NAMED, tenant, name, DEFINITIONS_MAX)

    async def definitions_named(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[DefinitionRow]]:
        """What `definitions` has of each (tenant, name)."""
        ordered = sorted(names)
        arguments = [tenant for tenant, _ in ordered], [name for _, name in ordered], DEFINITIONS_MAX * len(ordered)
        found: dict[tuple[str, str], list[DefinitionRow]] = {}
        for row in await DEFINITIONS.select(self.connection, _EACH_NAMED, *arguments):
            found.setdefault((row.tenant, row.name), []).append(row)
        return found

    async def save_definition(self, row: DefinitionRow) -> None:
        """Keep a definition, or that it is retired."""
        await DEFINITIONS.upsert(self.connection, [row])

    async def open_cases(self, tenant: str, name: str, version: int, limit: int) -> list[CaseView]:
        """Open cases of one version, oldest first."""
        return await CASES.select(
            self.connection,
            "WHERE tenant = $1 AND definition = $2 AND closed_at IS NULL AND status = ANY($3::text[]) "
            "AND (instance->>'version')::int = $4 ORDER BY created_at, workflow_id LIMIT $5",
            tenant,
            name,
            OPEN,
            version,
            limit,
        )

    async def existing(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], Existing]:
        """The cases behind these (tenant, key)."""
        ordered = sorted(keys)
        tenants, names = [tenant for tenant, _ in ordered], [key for _, key in ordered]
        records = await self.reading.fetch(_EXISTING, tenants, names)
        fields = Existing.__slots__
        return {
            (record["tenant"], record["key"]): Existing(**{name: record[name] for name in fields}) for record in records
        }

    async def save_workflows(self, starts: Sequence[NewWorkflow], epoch: int) -> None:
        """Store accepted starts and count their uses, together with their messages.

        That raises VersionConflict where another transaction was first, or governance moved on from `epoch`.
        """
        self.later(
            EDGES.inserting([new.edge for new in starts if new.revises is None]),
            _taking_over([new for new in starts if new.revises is not None]),
            using([new.capability_id for new in starts], epoch),
            MANDATES.inserting([new.mandate for new in starts], conflict=False),
            CASES.inserting([new.view for new in starts], conflict=False),
        )


class WorkflowReads(Reads):
    """Registered documents."""

    async def definitions(self, tenant: str, name: str | None = None) -> list[DefinitionRow]:
        """The tenant's own definitions and its retirements of built-in ones."""
        async with self._connection() as connection:
            return await DEFINITIONS.select(connection, _NAMED, tenant, name, DEFINITIONS_MAX)


def _taking_over(starts: Sequence[NewWorkflow]) -> Write | None:
    """Let the keys of cases that are over stand for their revisions."""
    if not starts:
        return None
    starts = sorted(starts, key=lambda new: EDGES.key_of(new.edge))
    edges = [new.edge for new in starts]
    arguments = (
        [edge.tenant for edge in edges],
        [edge.key for edge in edges],
        [edge.fingerprint for edge in edges],
        [edge.workflow_id for edge in edges],
        [edge.saga_id for edge in edges],
        [edge.capability_id for edge in edges],
        [edge.created_at for edge in edges],
        [edge.expires_at for edge in edges],
        [new.revises for new in starts],
    )
    return Write(_TAKE_OVER, arguments, len(starts), EDGES.name)
