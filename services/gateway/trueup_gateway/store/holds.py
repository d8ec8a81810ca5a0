"""SQL of legal holds. While a case is held, nothing that belongs to it is deleted: whoever deletes asks here first."""

from collections.abc import Sequence
from typing import Final

from trueup_common.contracts.ids import derived_id
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.person_records import LegalHoldRow
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import COMMANDS_SOURCE

HOLDS: Final = Rows("gateway.legal_hold", LegalHoldRow, key=("hold_id",))
SHOWN_MAX: Final = 20

HELD: Final = "SELECT workflow_id FROM gateway.legal_hold WHERE lifted_at IS NULL"
"""The cases that are held: retention takes nothing of them (`workflow_id NOT IN (…)`)."""

_ACTIVE: Final = "WHERE tenant = $1 AND workflow_id = $2 AND lifted_at IS NULL"
_NAMING: Final = f"""
SELECT h.workflow_id FROM unnest($2::text[], $3::text[]) AS h (workflow_id, mandate_id)
WHERE EXISTS (SELECT 1 FROM gateway.case_view v WHERE v.workflow_id = h.workflow_id AND v.instance::text LIKE $4)
   OR EXISTS (SELECT 1 FROM {COMMANDS_SOURCE} AS c WHERE c.workflow_id = h.workflow_id AND c."row"::text LIKE $4)
   OR EXISTS (SELECT 1 FROM gateway.history_view y WHERE y.workflow_id = h.workflow_id AND y.event::text LIKE $4)
   OR EXISTS (SELECT 1 FROM gateway.artifact_use u JOIN {COMMANDS_SOURCE} AS c USING (command_id)
              WHERE u.tenant = $1 AND u.artifact_id = $5 AND c.workflow_id = h.workflow_id)
   OR EXISTS (SELECT 1 FROM gateway.mandate m JOIN gateway.decision d USING (decision_id)
              WHERE m.mandate_id = h.mandate_id AND d.evidence::text LIKE $4)
   OR EXISTS (SELECT 1 FROM gateway.operator_command o WHERE o.tenant = $1 AND o.workflow_id = h.workflow_id
              AND (o.evidence::text LIKE $4 OR o.params::text LIKE $4))
ORDER BY h.workflow_id
"""


class HoldSql(SqlTransaction):
    """Placing and lifting holds, and what they keep."""

    async def legal_hold(self, tenant: str, workflow_id: str) -> LegalHoldRow | None:
        """The hold on a case, locked."""
        return next(iter(await HOLDS.select(self.connection, f"{_ACTIVE} FOR UPDATE", tenant, workflow_id)), None)

    async def place_hold(self, row: LegalHoldRow) -> bool:
        """Keep a hold; False where the case is held since a moment ago."""
        return bool(await HOLDS.insert_new(self.connection, [row]))

    async def lift_hold(self, row: LegalHoldRow) -> None:
        """Keep that a hold was lifted."""
        await HOLDS.upsert(self.connection, [row])

    async def held_by(self, tenant: str, artifact_id: str) -> list[str]:
        """The held cases that an artifact belongs to: they name it, or rest on it (bounded)."""
        rows = await self.connection.fetch(f"{HELD} AND tenant = $1 ORDER BY workflow_id", tenant)
        cases: Sequence[str] = [row["workflow_id"] for row in rows]
        if not cases:
            return []
        mandates = [derived_id("man", workflow_id) for workflow_id in cases]
        found = await self.connection.fetch(_NAMING, tenant, cases, mandates, f"%{artifact_id}%", artifact_id)
        return [row["workflow_id"] for row in found][:SHOWN_MAX]


class HoldReads(Reads):
    """Reads of holds."""

    async def legal_hold(self, tenant: str, workflow_id: str) -> LegalHoldRow | None:
        """The hold on a case."""
        async with self._connection() as connection:
            return next(iter(await HOLDS.select(connection, _ACTIVE, tenant, workflow_id)), None)
