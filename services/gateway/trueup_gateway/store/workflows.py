"""SQL of workflows: registered documents, starts, and the effects that count against a mandate.

Who starts a version and who retires it meet at one advisory lock: a start sees the retirement, or is seen by it.
"""

from collections.abc import Sequence
from typing import Any, Final

from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway import tables
from trueup_gateway.core.records import DefinitionRow, EffectCountRow
from trueup_gateway.core.view_records import CaseView
from trueup_gateway.core.workflow_start import Existing, NewWorkflow
from trueup_gateway.store.acceptance import KeyTaken
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import CASES, EDGES, MANDATES, OPEN

DEFINITIONS: Final = Rows(tables.DEFINITION, DefinitionRow, key=("tenant", "name", "version"))
EFFECTS: Final = Rows(tables.EFFECT, EffectCountRow, key=("mandate_id", "command_id"))
DEFINITIONS_MAX: Final = 2000

_HOLD: Final = "SELECT pg_advisory_xact_lock{shared}(hashtextextended($1, 4711))"
_EXISTING: Final = """
SELECT e.fingerprint, e.command_id, e.workflow_id, e.saga_id, coalesce(v.status, 'RUNNING') AS status,
  coalesce((v.instance->>'revision')::int, 1) AS revision, coalesce(v.definition, 'command') AS definition,
  coalesce((v.instance->>'version')::int, 1) AS version
FROM gateway.edge e LEFT JOIN gateway.case_view v USING (workflow_id) WHERE e.tenant = $1 AND e.key = $2
"""
_TAKE_OVER: Final = """
UPDATE gateway.edge SET fingerprint = $3, workflow_id = $4, saga_id = $5, capability_id = $6, created_at = $7,
  expires_at = $8
WHERE tenant = $1 AND key = $2 AND workflow_id = $9
"""
_USE: Final = "UPDATE gateway.capability SET uses_left = uses_left - 1 WHERE capability_id = $1 AND uses_left > 0"
_NAMED: Final = "WHERE tenant = $1 AND ($2::text IS NULL OR name = $2) ORDER BY name, version LIMIT $3"


class WorkflowSql(SqlTransaction):
    """Definitions, starts, and the counting of effects."""

    async def hold_definition(self, tenant: str, name: str, *, alone: bool) -> None:
        """Wait for whoever retires (or starts) this workflow right now, until this transaction is over."""
        await self.connection.execute(_HOLD.format(shared="" if alone else "_shared"), f"{tenant}/{name}")

    async def definitions(self, tenant: str, name: str | None = None) -> list[DefinitionRow]:
        """The tenant's own definitions and its retirements of built-in ones."""
        return await DEFINITIONS.select(self.connection, _NAMED, tenant, name, DEFINITIONS_MAX)

    async def save_definition(self, row: DefinitionRow) -> None:
        """Keep a definition, or that it is retired."""
        await DEFINITIONS.upsert(self.connection, [row])

    async def open_cases(self, tenant: str, name: str, version: int, limit: int) -> list[CaseView]:
        """Open cases of one version, oldest first."""
        return await CASES.select(
            self.connection,
            "WHERE tenant = $1 AND definition = $2 AND status = ANY($3::text[]) AND (instance->>'version')::int = $4 "
            "ORDER BY created_at, workflow_id LIMIT $5",
            tenant,
            name,
            OPEN,
            version,
            limit,
        )

    async def existing(self, tenant: str, key: str) -> tuple[Existing, bool] | None:
        """The case behind a start key, and whether the key belongs to a single command."""
        row = await self.connection.fetchrow(_EXISTING, tenant, key)
        if row is None:
            return None
        fields = dict(row)
        return Existing(**{name: fields[name] for name in Existing.__slots__}), fields["command_id"] != ""

    async def save_workflow(self, new: NewWorkflow) -> None:
        """Store an accepted start and count its use; mandate and view go with the message.

        Raises KeyTaken where another transaction was first.
        """
        edge = new.edge
        if new.revises is None:
            kept = len(await EDGES.insert_new(self.connection, [edge]))
        else:
            kept = _count(
                await self.connection.execute(
                    _TAKE_OVER,
                    edge.tenant,
                    edge.key,
                    edge.fingerprint,
                    edge.workflow_id,
                    edge.saga_id,
                    edge.capability_id,
                    edge.created_at,
                    edge.expires_at,
                    new.revises,
                )
            )
        used = _count(await self.connection.execute(_USE, new.capability_id))
        if (kept, used) != (1, 1):
            raise KeyTaken("a key or a use was taken by another transaction")
        self.later(MANDATES.inserting([new.mandate], conflict=False), CASES.inserting([new.view], conflict=False))

    async def effects(self, mandate_ids: Sequence[str]) -> dict[str, set[str]]:
        """What counts against these workflow mandates already. They stay locked, so that the count holds."""
        records = await self.connection.fetch(
            "SELECT mandate_id FROM gateway.mandate WHERE mandate_id = ANY($1::text[]) ORDER BY mandate_id FOR UPDATE",
            list(mandate_ids),
        )
        found: dict[str, set[str]] = {record["mandate_id"]: set() for record in records}
        for row in await EFFECTS.get(self.connection, "mandate_id", list(found)):
            found[row.mandate_id].add(row.command_id)
        return found

    async def save_effects(self, rows: Sequence[EffectCountRow]) -> None:
        """Count these operations as effects."""
        await EFFECTS.insert_new(self.connection, rows)


class WorkflowReads(Reads):
    """Registered documents."""

    async def definitions(self, tenant: str, name: str | None = None) -> list[DefinitionRow]:
        """The tenant's own definitions and its retirements of built-in ones."""
        async with self._connection() as connection:
            return await DEFINITIONS.select(connection, _NAMED, tenant, name, DEFINITIONS_MAX)


def _count(tag: Any) -> int:
    return int(str(tag).rsplit(" ", 1)[1])
