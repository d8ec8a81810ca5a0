"""SQL of authority and governance: decisions, capabilities, revocations, freezes, policies and changing calls."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.governance import GovernanceEntry
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.ports import Moment
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    DecisionRow,
    EffectCountRow,
    FreezeRow,
    MandateRow,
    PolicyRow,
    RevocationRow,
)
from trueup_gateway.store.acceptance import KeyTaken
from trueup_gateway.store.rows import (
    CALLS,
    CAPABILITIES,
    COMMANDS_SOURCE,
    DECISIONS,
    EFFECTS,
    FREEZES,
    POLICIES,
    REVOCATIONS,
)

LATE_USE: Final = timedelta(minutes=1)
"""Longer than a request may take that found a capability in force and has not committed its use of it."""

_ENTRIES: Final = """
SELECT 'revoked_' || kind AS kind, id, epoch, NULL::json AS scope, NULL::text AS policy_sha256, expires_at
FROM gateway.revocation WHERE expires_at > trueup.now()
UNION ALL
SELECT kind, freeze_id, epoch, scope, NULL, expires_at FROM gateway.freeze
WHERE lifted_at IS NULL AND (expires_at IS NULL OR expires_at > trueup.now())
UNION ALL
(SELECT 'policy', 'current', epoch, NULL::json, sha256, NULL::timestamptz FROM gateway.policy
 ORDER BY version DESC LIMIT 1)
"""
_ACTIVE_FREEZES: Final = "WHERE lifted_at IS NULL AND (expires_at IS NULL OR expires_at > trueup.now())"


_GROUNDS: Final = """
WITH mandates AS MATERIALIZED (SELECT * FROM gateway.mandate WHERE mandate_id = ANY($1::text[]))
SELECT (SELECT epoch FROM gateway.governance) AS epoch,
  (SELECT json_agg(m) FROM mandates AS m) AS mandates,
  (SELECT json_agg(d) FROM gateway.decision AS d
    WHERE decision_id = ANY(ARRAY(SELECT decision_id FROM mandates))) AS decisions,
  (SELECT json_agg(capability_id) FROM gateway.capability
    WHERE capability_id = ANY(ARRAY(SELECT capability_id FROM mandates)) AND revoked_at IS NOT NULL) AS revoked,
  (SELECT json_agg(json_build_array(mandate_id, command_id)) FROM gateway.effect
    WHERE mandate_id = ANY(ARRAY(SELECT mandate_id FROM mandates WHERE command_id IS NULL))) AS effects
"""


@dataclass(frozen=True, slots=True)
class GrantRows:
    """What attempts rest on: mandates, their decisions, revoked capabilities, and the epoch of governance.

    `effects` are the operations that count against each mandate of a workflow already.
    """

    epoch: int
    mandates: dict[str, MandateRow]
    decisions: dict[str, DecisionRow]
    revoked: frozenset[str]
    effects: dict[str, set[str]]


class AuthoritySql(SqlTransaction):
    """Decisions, capabilities and what mandates rest on."""

    async def moment(self) -> Moment:
        """The time of this transaction."""
        moment, _ = await self.claim("", [])
        return moment

    async def save_decision(self, row: DecisionRow) -> None:
        """Keep a decision with its trace."""
        await DECISIONS.insert(self.connection, [row])

    async def save_capability(self, row: CapabilityRow) -> None:
        """Keep a capability."""
        await CAPABILITIES.insert(self.connection, [row])

    async def decision(self, decision_id: str, *, lock: bool = False) -> DecisionRow | None:
        """One decision, locked against a concurrent revocation where asked."""
        tail = "WHERE decision_id = $1" + (" FOR UPDATE" if lock else "")
        return next(iter(await DECISIONS.select(self.connection, tail, decision_id)), None)

    async def given_uses(self, decision_id: str, now: datetime) -> int:
        """How many uses the capabilities of a (locked) decision have had, or may have: what expired a while ago lets
        nothing happen any more, and what a request of that very moment took is counted by then.
        """
        given: int = await self.connection.fetchval(
            "SELECT coalesce(sum(CASE WHEN revoked_at IS NOT NULL OR expires_at <= $2 THEN max_uses - uses_left "
            "ELSE max_uses END), 0)::integer FROM gateway.capability WHERE decision_id = $1",
            decision_id,
            now - LATE_USE,
        )
        return given

    async def capability(self, capability_id: str) -> CapabilityRow | None:
        """One capability, locked."""
        found = await CAPABILITIES.select(self.connection, "WHERE capability_id = $1 FOR UPDATE", capability_id)
        return next(iter(found), None)

    async def revoke(self, row: RevocationRow) -> None:
        """Mark the row of a decision or capability as revoked, and keep the entry that every service watches."""
        table = {"decision": "decision", "capability": "capability"}[row.kind]
        await self.connection.execute(
            f"UPDATE gateway.{table} SET revoked_at = $2, revoked_by = $3, revocation_reason = $4 "
            f"WHERE {table}_id = $1 AND revoked_at IS NULL",
            row.id,
            row.revoked_at,
            row.revoked_by,
            row.reason,
        )
        await REVOCATIONS.insert_new(self.connection, [row])

    async def circumstances(self, tenant: str, subject: str, limit: int) -> tuple[int, list[str]]:
        """Open exceptions of a tenant, and the states of a subject's latest commands (both bounded)."""
        row = await self.connection.fetchrow(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM gateway.exception_view WHERE tenant = $1 AND status = 'open' "
            f"LIMIT 100) AS o) AS open, array(SELECT state FROM {COMMANDS_SOURCE} AS c "
            "WHERE tenant = $1 AND subject = $2 "
            "ORDER BY created_at DESC LIMIT $3) AS states",
            tenant,
            subject,
            limit,
        )
        return row["open"], list(row["states"])

    def foresee_grants(self, mandate_ids: Collection[str]) -> None:
        """What attempts under these mandates rest on will be asked for."""
        self.foresee(_GROUNDS, sorted(mandate_ids))

    async def grant_rows(self, mandate_ids: Collection[str]) -> GrantRows:
        """What attempts under these mandates rest on. Nothing is locked: who counts effects beside us is found out when
        they are saved."""
        (told,) = await self.ask(_GROUNDS, sorted(mandate_ids))
        mandates = [MandateRow.model_validate(row) for row in told["mandates"] or ()]
        effects: dict[str, set[str]] = {row.mandate_id: set() for row in mandates if row.command_id is None}
        for mandate_id, command_id in told["effects"] or ():
            effects[mandate_id].add(command_id)
        return GrantRows(
            epoch=told["epoch"],
            mandates={row.mandate_id: row for row in mandates},
            decisions={row["decision_id"]: DecisionRow.model_validate(row) for row in told["decisions"] or ()},
            revoked=frozenset(told["revoked"] or ()),
            effects=effects,
        )

    async def save_effects(self, rows: Sequence[EffectCountRow]) -> None:
        """Count these operations as effects, with the messages of this transaction. Where another transaction counted
        one of the same mandate meanwhile, this one ends with VersionConflict."""
        self.later(EFFECTS.inserting(rows))


class GovernanceSql(SqlTransaction):
    """Epoch, policies, freezes, and the answers of changing calls."""

    async def epoch(self) -> int:
        """The present epoch."""
        return int(await self.reading.fetchval("SELECT epoch FROM gateway.governance"))

    async def next_epoch(self) -> int:
        """Raise the epoch: every change of governance has its own."""
        return int(await self.connection.fetchval("UPDATE gateway.governance SET epoch = epoch + 1 RETURNING epoch"))

    async def seed(self, policy: PolicyRow) -> None:
        """The first epoch and the first policy version, where there is none."""
        await self.connection.execute("INSERT INTO gateway.governance (epoch) VALUES (1) ON CONFLICT DO NOTHING")
        if await self.policy() is None:
            await POLICIES.insert_new(self.connection, [policy])

    async def policy(self) -> PolicyRow | None:
        """The policy set in force."""
        return next(iter(await POLICIES.select(self.connection, "ORDER BY version DESC LIMIT 1")), None)

    async def save_policy(self, row: PolicyRow) -> None:
        """Take a new version into force."""
        await POLICIES.insert(self.connection, [row])

    async def active_freezes(self) -> list[FreezeRow]:
        """All freezes in force."""
        return await FREEZES.select(self.connection, f"{_ACTIVE_FREEZES} ORDER BY freeze_id LIMIT 1000")

    async def freezes_of(self, tenant: str) -> list[FreezeRow]:
        """The tenant's freezes in force, locked, to lift some of them."""
        return await FREEZES.select(
            self.connection, f"{_ACTIVE_FREEZES} AND tenant = $1 ORDER BY freeze_id FOR UPDATE", tenant
        )

    async def save_freeze(self, row: FreezeRow) -> None:
        """Keep a freeze."""
        await FREEZES.insert(self.connection, [row])

    async def lift(self, rows: Sequence[FreezeRow]) -> None:
        """Store freezes that were lifted."""
        await FREEZES.upsert(self.connection, rows)

    async def entries(self) -> list[GovernanceEntry]:
        """Everything that services must watch right now."""
        return [GovernanceEntry.model_validate(dict(row)) for row in await self.connection.fetch(_ENTRIES)]

    async def call(self, tenant: str, key: str) -> CallRow | None:
        """The earlier answer under an Idempotency-Key of a changing call."""
        return next(iter(await CALLS.select(self.connection, "WHERE tenant = $1 AND key = $2", tenant, key)), None)

    async def save_call(self, row: CallRow) -> None:
        """Keep an answer. Raises KeyTaken where the same call runs at the same moment."""
        if not await CALLS.insert_new(self.connection, [row]):
            raise KeyTaken("the key was taken by another transaction")
