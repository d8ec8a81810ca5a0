"""SQL of acceptance: capabilities are locked in id order, then keys in key order, so that no two batches deadlock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_common.runtime.rows import Write
from trueup_gateway.core.acceptance import Edge, Standing
from trueup_gateway.core.case import NewCase
from trueup_gateway.core.records import DecisionRow, LineageRow
from trueup_gateway.store.rows import CAPABILITIES, COMMANDS_SOURCE, EDGES, LINEAGE, MANDATES, RECEIVED

LOCK_TIMEOUT: Final = "2s"
"""How long acceptance waits for another transaction on the same key or capability before it answers 409."""

_LOCK_CAPABILITIES: Final = """
SELECT c.capability_id FROM (SELECT set_config('lock_timeout', $2, true) OFFSET 0) AS bound
CROSS JOIN gateway.capability c WHERE c.capability_id = ANY($1::text[]) ORDER BY c.capability_id FOR UPDATE OF c
"""
_ROWS: Final = """
SELECT trueup.now() AS business, clock_timestamp() AS real, (SELECT epoch FROM gateway.governance) AS epoch,
  (SELECT json_agg(s) FROM (
     SELECT c.capability_id, c.tenant, c.subject, c.uses_left, c.revoked_at, c.expires_at, row_to_json(d) AS decision
     FROM gateway.capability c JOIN gateway.decision d USING (decision_id)
     WHERE c.capability_id = ANY($4::text[])) AS s) AS standings,
  (SELECT json_agg(f) FROM (
     SELECT e.tenant, e.key, e.fingerprint, e.identity, e.command_id, e.workflow_id, e.saga_id,
       coalesce(v.state, 'RECEIVED') AS state
     FROM unnest($1::text[], $2::text[]) AS q(tenant, key)
     JOIN gateway.edge e ON e.tenant = q.tenant AND e.key = q.key LEFT JOIN gateway.command_view v USING (command_id)
     UNION
     SELECT e.tenant, e.key, e.fingerprint, e.identity, e.command_id, e.workflow_id, e.saga_id,
       coalesce(v.state, 'RECEIVED') AS state
     FROM unnest($1::text[], $3::text[]) AS q(tenant, identity)
     JOIN gateway.edge e ON e.tenant = q.tenant AND e.identity = q.identity AND e.identity IS NOT NULL
     LEFT JOIN gateway.command_view v USING (command_id)) AS f) AS edges
"""


_USE: Final = """
UPDATE gateway.capability AS c SET uses_left = c.uses_left - u.uses
FROM (SELECT set_config('lock_timeout', $3, true) OFFSET 0) AS bound
CROSS JOIN unnest($1::text[], $2::bigint[]) AS u(capability_id, uses)
WHERE c.capability_id = u.capability_id AND c.uses_left >= u.uses AND c.revoked_at IS NULL
  AND c.expires_at > trueup.now() AND ($4::bigint IS NULL OR (SELECT epoch FROM gateway.governance) = $4)
"""
"""What was read of a capability is checked again where its use is counted, and the epoch of governance where given."""


class KeyTaken(StoreBusy):
    """Another transaction took the same key or identity first: the batch is decided again."""


def lock_timed_out(busy: StoreBusy) -> bool:
    """True where a transaction gave up because another one held its key or capability for too long."""
    return isinstance(busy.__cause__, asyncpg.LockNotAvailableError)


@dataclass(frozen=True, slots=True)
class AcceptRows:
    """What a batch of requests concerns."""

    moment: Moment
    epoch: int
    standings: dict[str, Standing]
    by_key: dict[tuple[str, str], Edge]
    by_identity: dict[tuple[str, str], Edge]


def _standing(record: Any) -> Standing:
    return Standing(
        capability_id=record["capability_id"],
        tenant=record["tenant"],
        subject=record["subject"],
        uses_left=record["uses_left"],
        revoked=record["revoked_at"] is not None,
        expires_at=datetime.fromisoformat(record["expires_at"]),
        decision=DecisionRow.model_validate(record["decision"]),
    )


def using(capability_ids: Iterable[str], epoch: int | None = None) -> Write:
    """Count one use for each of these; a conflict where governance has another epoch by then."""
    uses = Counter(capability_ids)
    names = sorted(uses)
    counts = [uses[name] for name in names]
    return Write(_USE, (names, counts, LOCK_TIMEOUT, epoch), len(names), CAPABILITIES.name)


class AcceptanceSql(SqlTransaction):
    """Accepting a batch."""

    async def accept_rows(
        self,
        capability_ids: Sequence[str],
        tenants: Sequence[str],
        keys: Sequence[str],
        identities: Sequence[str | None],
        *,
        lock: bool = True,
    ) -> AcceptRows:
        """Read the capabilities of a batch, locked where asked, and what its keys and identities stand for."""
        capabilities = sorted(set(capability_ids))
        if lock:
            await self.connection.fetch(_LOCK_CAPABILITIES, capabilities, LOCK_TIMEOUT)
        asked = monotonic()
        row = await self.reading.fetchrow(_ROWS, list(tenants), list(keys), list(identities), capabilities)
        moment = Moment(row["business"], row["real"], asked)
        self.connection.time.hear(moment)
        edges = [Edge(**item) for item in row["edges"] or ()]
        return AcceptRows(
            moment=moment,
            epoch=row["epoch"],
            standings={record["capability_id"]: _standing(record) for record in row["standings"] or ()},
            by_key={(edge.tenant, edge.key): edge for edge in edges},
            by_identity={(edge.tenant, edge.identity): edge for edge in edges if edge.identity is not None},
        )

    async def states_of(self, commands: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """States of commands by (tenant, id), as far as they are known here."""
        rows = await self.reading.fetch(
            "SELECT c.tenant, c.command_id, c.state FROM unnest($1::text[], $2::text[]) AS w(tenant, command_id) "
            f"JOIN {COMMANDS_SOURCE} AS c ON c.tenant = w.tenant AND c.command_id = w.command_id",
            [tenant for tenant, _ in commands],
            [command_id for _, command_id in commands],
        )
        return {(row["tenant"], row["command_id"]): row["state"] for row in rows}

    async def save_lineage(self, lines: Sequence[tuple[LineageRow, str | None]]) -> None:
        """Keep who takes whose place, each with its business identity: the older one gives that up."""
        await LINEAGE.insert(self.connection, [line for line, _ in lines])
        await self.connection.execute(
            "UPDATE gateway.edge AS e SET identity = NULL "
            "FROM unnest($1::text[], $2::text[], $3::text[]) AS w(tenant, command_id, identity) "
            "WHERE e.tenant = w.tenant AND e.identity = w.identity AND e.command_id = w.command_id",
            [line.tenant for line, _ in lines],
            [line.supersedes for line, _ in lines],
            [identity for _, identity in lines],
        )

    async def save_cases(self, cases: Sequence[NewCase], epoch: int) -> None:
        """Store accepted commands and count their uses, at the latest with the commit.

        Where another transaction took a key, an identity or a use first, or governance moved on from `epoch`, this one
        ends with VersionConflict.
        """
        self.later(
            using((case.capability_id for case in cases), epoch),
            EDGES.inserting([case.edge for case in cases]),
            MANDATES.inserting([case.mandate for case in cases], conflict=False),
            RECEIVED.inserting([case.received for case in cases], conflict=False),
        )
