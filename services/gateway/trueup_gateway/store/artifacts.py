"""SQL of artifacts. Who refers to one holds its row shared, who deletes it alone: none is deleted under a reference."""

from collections.abc import Sequence
from typing import Final

import orjson

from trueup_common.contracts.states import SETTLED
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.artifact import ArtifactRow, ArtifactUseRow
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import COMMANDS_SOURCE, Reader

ARTIFACTS: Final = Rows("gateway.artifact", ArtifactRow, key=("artifact_id",))
ARTIFACT_USES: Final = Rows("gateway.artifact_use", ArtifactUseRow, key=("artifact_id", "command_id"))
SHOWN_MAX: Final = 20

_OPEN_USES: Final = f"""
SELECT u.command_id FROM gateway.artifact_use u LEFT JOIN {COMMANDS_SOURCE} AS c USING (command_id)
WHERE u.tenant = $1 AND u.artifact_id = $2 AND NOT coalesce(c.state, 'RECEIVED') = ANY($3::text[])
ORDER BY u.command_id LIMIT $4
"""
_OPEN_EVIDENCE: Final = """
SELECT decision_id FROM gateway.decision
WHERE tenant = $1 AND created_at > trueup.now() - interval '2 days' AND expires_at > trueup.now()
  AND revoked_at IS NULL AND evidence::jsonb @> $2::text::jsonb
ORDER BY decision_id LIMIT $3
"""


class ArtifactSql(SqlTransaction):
    """Keeping, referring to, and deleting artifacts."""

    async def save_artifact(self, row: ArtifactRow) -> None:
        """Keep the row of an artifact whose content is stored."""
        await ARTIFACTS.insert(self.connection, [row])

    async def hold_artifacts(self, tenants: Sequence[str], artifact_ids: Sequence[str]) -> list[ArtifactRow]:
        """Artifacts that are there, each asked for by its tenant; nobody deletes them during this transaction."""
        return await ARTIFACTS.select(
            self.connection,
            "WHERE (tenant, artifact_id) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND deleted_at IS NULL "
            "ORDER BY artifact_id FOR SHARE",
            list(tenants),
            list(artifact_ids),
        )

    async def save_artifact_uses(self, rows: Sequence[ArtifactUseRow]) -> None:
        """Keep which commands take their payload from artifacts."""
        await ARTIFACT_USES.insert(self.connection, rows)

    async def artifact(self, tenant: str, artifact_id: str) -> ArtifactRow | None:
        """One artifact, locked for its deletion."""
        tail = "WHERE tenant = $1 AND artifact_id = $2 FOR UPDATE"
        return next(iter(await ARTIFACTS.select(self.connection, tail, tenant, artifact_id)), None)

    async def artifact_references(self, tenant: str, artifact_id: str) -> tuple[list[str], list[str]]:
        """Commands that are not over and decisions in force that refer to an artifact (both bounded)."""
        over = [state.value for state in SETTLED]
        commands = await self.connection.fetch(_OPEN_USES, tenant, artifact_id, over, SHOWN_MAX)
        named = orjson.dumps([{"ref": artifact_id}]).decode()
        decisions = await self.connection.fetch(_OPEN_EVIDENCE, tenant, named, SHOWN_MAX)
        return [row["command_id"] for row in commands], [row["decision_id"] for row in decisions]

    async def entomb_artifact(self, row: ArtifactRow) -> None:
        """Leave a tombstone: the row with its hash, who deleted it and why."""
        await ARTIFACTS.upsert(self.connection, [row])


class ArtifactReads(Reads):
    """Rows of artifacts."""

    async def artifact(self, reader: Reader, artifact_id: str) -> ArtifactRow | None:
        """One artifact, also where only its tombstone is left."""
        async with self._connection() as connection:
            tail = "WHERE artifact_id = $1 AND tenant = $2 AND ($3::text IS NULL OR created_by = $3)"
            rows = await ARTIFACTS.select(connection, tail, artifact_id, reader.tenant, reader.subject)
        return next(iter(rows), None)
