"""SQL of acceptance: capability rows are locked in id order, keys inserted in key order: no two batches deadlock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.acceptance import Edge, Standing
from trueup_gateway.core.case import NewCase
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.store.rows import EDGES, MANDATES, RECEIVED, json_document

LOCK_TIMEOUT: Final = "2s"
"""How long acceptance waits for another transaction on the same key or capability before it answers 409."""

_LOCK_CAPABILITIES: Final = """
SELECT c.capability_id, c.tenant, c.subject, c.uses_left, c.revoked_at, c.expires_at, row_to_json(d) AS decision
FROM (SELECT set_config('lock_timeout', $2, true) OFFSET 0) AS bound
CROSS JOIN gateway.capability c JOIN gateway.decision d USING (decision_id)
WHERE c.capability_id = ANY($1::text[]) ORDER BY c.capability_id FOR UPDATE OF c
"""
_EDGES: Final = """
SELECT trueup.now() AS business, clock_timestamp() AS real, (SELECT epoch FROM gateway.governance) AS epoch,
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


def _source(rows: Rows[Any], parameter: int) -> str:
    """An INSERT of one JSON parameter into a table, in key order."""
    listed = ", ".join(f'"{name}"' for name in rows.model.model_fields)
    chosen = ", ".join(f'r."{name}"' for name in rows.model.model_fields)
    order = ", ".join(f'r."{name}"' for name in rows.key)
    name = f'gateway."{rows.table.name}"'
    return (
        f"INSERT INTO {name} ({listed}) SELECT {chosen} "
        f"FROM json_populate_recordset(NULL::{name}, ${parameter}::text::json) AS r ORDER BY {order}"
    )


_ACCEPT: Final = f"""
WITH edge AS ({_source(EDGES, 1)} ON CONFLICT DO NOTHING RETURNING 1),
mandate AS ({_source(MANDATES, 2)}),
received AS ({_source(RECEIVED, 3)}),
used AS (UPDATE gateway.capability AS c SET uses_left = c.uses_left - u.uses
  FROM unnest($4::text[], $5::bigint[]) AS u(capability_id, uses)
  WHERE c.capability_id = u.capability_id AND c.uses_left >= u.uses RETURNING 1)
SELECT (SELECT count(*) FROM edge) AS edges, (SELECT count(*) FROM used) AS used
"""


class KeyTaken(StoreBusy):
    """Another transaction took the same key or identity first: the batch is decided again."""


def lock_timed_out(busy: StoreBusy) -> bool:
    """True where a transaction gave up because another one held its key or capability for too long."""
    return isinstance(busy.__cause__, asyncpg.LockNotAvailableError)


@dataclass(frozen=True, slots=True)
class AcceptRows:
    """What a batch of requests concerns, as locked."""

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
        expires_at=record["expires_at"],
        decision=DecisionRow.model_validate(record["decision"]),
    )


class AcceptanceSql(SqlTransaction):
    """Accepting a batch."""

    async def accept_rows(
        self,
        capability_ids: Sequence[str],
        tenants: Sequence[str],
        keys: Sequence[str],
        identities: Sequence[str | None],
    ) -> AcceptRows:
        """Lock the capabilities of a batch, then read what its keys and identities stand for."""
        records = await self.connection.fetch(_LOCK_CAPABILITIES, sorted(set(capability_ids)), LOCK_TIMEOUT)
        row = await self.connection.fetchrow(_EDGES, list(tenants), list(keys), list(identities))
        edges = [Edge(**item) for item in row["edges"] or ()]
        return AcceptRows(
            moment=Moment(business=row["business"], real=row["real"]),
            epoch=row["epoch"],
            standings={record["capability_id"]: _standing(record) for record in records},
            by_key={(edge.tenant, edge.key): edge for edge in edges},
            by_identity={(edge.tenant, edge.identity): edge for edge in edges if edge.identity is not None},
        )

    async def save_cases(self, cases: Sequence[NewCase]) -> None:
        """Store accepted commands and count their uses. Raises KeyTaken where another transaction was first."""
        uses: dict[str, int] = {}
        for case in cases:
            uses[case.capability_id] = uses.get(case.capability_id, 0) + 1
        row = await self.connection.fetchrow(
            _ACCEPT,
            json_document([case.edge for case in cases]),
            json_document([case.mandate for case in cases]),
            json_document([case.received for case in cases]),
            list(uses),
            list(uses.values()),
        )
        if row["edges"] != len(cases) or row["used"] != len(uses):
            raise KeyTaken("a key, an identity or a use was taken by another transaction")
