"""SQL of the checker: what breaks an invariant. It writes its own record of what it told, and nothing else.

Every question goes through a partial index that holds little or nothing while all is well, so that its cost follows
from what is open and never from history.
"""

from collections.abc import Sequence
from typing import Any, Final

from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.rows import Rows
from trueup_orchestrator.columns import ENDED_LIVES, UNKNOWN_OPEN
from trueup_orchestrator.core.invariants import (
    EXPIRED_LEASE,
    LATE_SECONDS,
    LIVE_AFTER_END,
    OVERDUE_WAKEUP,
    UNKNOWN_PAST_SLA,
    Breach,
    BreachRow,
)

BREACHES: Final = Rows("orchestrator.breach", BreachRow, key=("breach_id",))
FOUND: Final = Tally("trueup_invariant_breaches", "Breaches of invariants that were told", ("rule",))

_OPERATION: Final = (
    "o.tenant, o.workflow_id, o.saga_id, o.command_id, o.state_version::text AS stamp, o.command_type, "
    "o.target_system, o.target_resource, o.trace_id"
)
_CASE: Final = (
    "i.tenant, i.workflow_id, i.saga_id, NULL AS command_id, i.state_version::text AS stamp, NULL AS command_type, "
    "NULL AS target_system, i.object_type || '/' || i.object_id AS target_resource, i.trace_id"
)
_LATE: Final = f"interval '{LATE_SECONDS:g} seconds'"
_BUSINESS: Final = f"((SELECT trueup.now()) - {_LATE})"
_REAL: Final = f"((SELECT clock_timestamp()) - {_LATE})"
QUESTIONS: Final[tuple[tuple[str, str], ...]] = (
    (
        OVERDUE_WAKEUP.name,
        f"SELECT {_OPERATION}, o.wake_at AS since FROM operation o "
        f"WHERE o.wake_at <= {_BUSINESS} AND o.wake_at IS NOT NULL",
    ),
    (
        OVERDUE_WAKEUP.name,
        f"SELECT {_CASE}, i.wake_at AS since FROM instance i WHERE i.wake_at <= {_BUSINESS} AND i.wake_at IS NOT NULL",
    ),
    (
        EXPIRED_LEASE.name,
        f"SELECT {_OPERATION}, o.lease_expires_at AS since FROM operation o "
        f"WHERE o.lease_expires_at <= {_REAL} AND o.lease_expires_at IS NOT NULL",
    ),
    (
        UNKNOWN_PAST_SLA.name,
        f"SELECT {_OPERATION.replace('o.state_version::text', 'd.obligation_id')}, d.deadline_at AS since "
        "FROM obligation d JOIN operation o ON o.command_id = d.command_id "
        f"WHERE d.deadline_at <= {_BUSINESS} AND d.{UNKNOWN_OPEN.replace(' AND ', ' AND d.')}",
    ),
    (LIVE_AFTER_END.name, f"SELECT {_OPERATION}, o.last_transition_at AS since FROM operation o WHERE {ENDED_LIVES}"),
    (LIVE_AFTER_END.name, f"SELECT {_CASE}, i.closed_at AS since FROM instance i WHERE i.lives_on"),
)
"""Rule and question."""

ANY_BREACH: Final = "SELECT EXISTS (SELECT 1 FROM breach) OR " + " OR ".join(
    f"EXISTS ({question})" for _, question in QUESTIONS
)


class CheckTransaction(SqlTransaction):
    """One look."""

    service = "orchestrator"

    async def breaches(self, limit: int) -> list[Breach]:
        """What breaks a rule now, so many of each; what is left out is seen once others are over."""
        found: list[Breach] = []
        for rule, question in QUESTIONS:
            rows = await self.connection.fetch(f"{question} LIMIT $1", limit)
            found += [Breach(rule=rule, **dict(row)) for row in rows]
        return found

    async def told(self) -> list[BreachRow]:
        """Breaches that were told and whose end was not."""
        return await BREACHES.select(self.connection, "ORDER BY found_at, breach_id LIMIT 2000")

    async def remember(self, rows: Sequence[BreachRow]) -> set[str]:
        """Keep what is told now; answers which of it nobody else told."""
        new = {str(key[0]) for key in await BREACHES.insert_new(self.connection, rows)}
        for row in rows:
            if row.breach_id in new:
                self.count(FOUND, row.rule)
        return new

    async def forget(self, breach_ids: Sequence[str]) -> set[str]:
        """Drop what is over; answers which of it nobody else dropped."""
        rows: Sequence[Any] = await self.connection.fetch(
            "DELETE FROM breach WHERE breach_id = ANY($1::text[]) RETURNING breach_id", list(breach_ids)
        )
        return {row["breach_id"] for row in rows}

    async def still(self, rows: Sequence[BreachRow]) -> set[str]:
        """Which of these breaches stand as they were told, asked of their own rows."""
        operations = [row.command_id for row in rows if row.command_id is not None]
        cases = [row.workflow_id for row in rows if row.command_id is None]
        found = {
            (row["command_id"] or row["workflow_id"], row["stamp"])
            for row in await self.connection.fetch(_STAMPS, operations, cases, [row.workflow_id for row in rows])
        }
        return {row.breach_id for row in rows if (row.command_id or row.workflow_id, row.stamp) in found}


_STAMPS: Final = """
SELECT command_id, workflow_id, state_version::text AS stamp FROM operation WHERE command_id = ANY($1::text[])
UNION ALL
SELECT NULL, workflow_id, state_version::text FROM instance WHERE workflow_id = ANY($2::text[])
UNION ALL
SELECT command_id, workflow_id, obligation_id FROM obligation WHERE status = 'open' AND workflow_id = ANY($3::text[])
"""


def check_store(database: Database) -> SqlStore[CheckTransaction]:
    """The checker's transactions on a database."""
    return SqlStore(database, CheckTransaction)
