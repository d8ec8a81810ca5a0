"""SQL of people's acts: approvals, signals, and the authorization decisions behind them.

An approval leaves `pending` in one statement: whoever's statement changed the row has won, and nobody else has.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.events import SignalDisposed
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.approval import EXPIRED, PENDING, Answer
from trueup_gateway.core.person_records import ApprovalRow, AuthorizationRow, SignalRow
from trueup_gateway.core.view_records import CaseView
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import CASES, CASES_SOURCE, Page, Reader, before

APPROVALS: Final = Rows("gateway.approval", ApprovalRow, key=("approval_id",))
AUTHORIZATIONS: Final = Rows("gateway.authorization_decision", AuthorizationRow, key=("decision_id",))
SIGNALS: Final = Rows("gateway.signal", SignalRow, key=("workflow_id", "event_id"))

_DECIDE: Final = """
UPDATE gateway.approval AS a
SET status = $3, reviewer = $4, reason = $5, decision = $6, decision_id = $7, decided_at = trueup.now()
WHERE a.approval_id = $1 AND a.tenant = $2 AND a.status = 'pending' AND a.nonce = $8 AND a.content_sha256 = $9
  AND trueup.now() < a.expires_at
  AND NOT EXISTS (SELECT 1 FROM gateway.case_view v WHERE v.workflow_id = a.workflow_id AND v.closed_at IS NOT NULL)
RETURNING a.approval_id
"""
_EXPIRE: Final = f"""
UPDATE gateway.approval SET status = '{EXPIRED}', decided_at = trueup.now()
WHERE approval_id = $1 AND status = '{PENDING}' AND trueup.now() >= expires_at RETURNING approval_id
"""
_USABLE: Final = """
UPDATE gateway.decision SET approved_at = $2
WHERE decision_id = $1 AND revoked_at IS NULL AND expires_at > $2 RETURNING decision_id
"""
_STATUS: Final = f"""(CASE WHEN a.status = '{PENDING}' AND a.expires_at <= trueup.now()
  THEN '{EXPIRED}' ELSE a.status END)"""
"""As it is shown: nobody can approve it past its expiry, also where no timer has come yet."""

_OWN: Final = """(a.requested_by = $2
  OR (SELECT v.subject FROM gateway.case_view v WHERE v.workflow_id = a.workflow_id) = $2)"""
"""Not EXISTS: that may be answered by one look at all cases of the subject."""

_DISPOSE: Final = """
UPDATE gateway.signal AS s SET disposition = d.disposition, reason = d.reason, version = d.version, disposed_at = d.at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[])
  AS d(workflow_id, event_id, tenant, disposition, reason, version, at)
WHERE s.workflow_id = d.workflow_id AND s.event_id = d.event_id AND s.tenant = d.tenant AND s.version < d.version
"""
_MARKS: Final = """
SELECT w.workflow_id,
  coalesce((SELECT state_version FROM gateway.case_view v WHERE v.workflow_id = w.workflow_id), -1) AS version,
  coalesce((SELECT max(seq) FROM gateway.history_view h WHERE h.workflow_id = w.workflow_id), 0) AS seq,
  coalesce((SELECT sum(state_version) FROM gateway.command_view c WHERE c.workflow_id = w.workflow_id), 0)::bigint
    AS operations,
  coalesce((SELECT sum(e.version) FROM gateway.element_view e WHERE e.workflow_id = w.workflow_id), 0)::bigint
    AS elements
FROM unnest($1::text[]) AS w(workflow_id)
"""


class PeopleSql(SqlTransaction):
    """The writes of people's acts."""

    async def approvals_of(self, workflow_ids: Sequence[str]) -> list[ApprovalRow]:
        """All approvals of some cases, locked in id order."""
        return await APPROVALS.select(
            self.connection,
            "WHERE workflow_id = ANY($1::text[]) ORDER BY approval_id FOR UPDATE",
            list(workflow_ids),
        )

    async def save_approvals(self, changed: Sequence[ApprovalRow], fresh: Sequence[ApprovalRow]) -> None:
        """Store locked rows that changed, then new ones. Raises VersionConflict where another replica was first."""
        self.later(APPROVALS.updating(changed))
        await self.flush()
        self.later(APPROVALS.inserting(fresh))
        await self.flush()

    async def approval(self, tenant: str, approval_id: str) -> ApprovalRow | None:
        """One approval as it stands."""
        tail = "WHERE approval_id = $1 AND tenant = $2"
        return next(iter(await APPROVALS.select(self.connection, tail, approval_id, tenant)), None)

    async def approvals(self, approval_ids: Sequence[str]) -> dict[str, ApprovalRow]:
        """Approvals by id."""
        return {row.approval_id: row for row in await APPROVALS.get(self.connection, "approval_id", approval_ids)}

    async def decide_approval(self, row: ApprovalRow, answer: Answer, verb: str, decision_id: str) -> bool:
        """The compare-and-set: True where this answer decided the row."""
        return None is not await self.connection.fetchval(
            _DECIDE,
            row.approval_id,
            row.tenant,
            answer.status,
            answer.reviewer,
            answer.reason,
            verb,
            decision_id,
            answer.nonce,
            answer.content_sha256,
        )

    async def expire_approval(self, approval_id: str) -> bool:
        """Expire a pending approval whose time is over; True where this statement did."""
        return await self.connection.fetchval(_EXPIRE, approval_id) is not None

    async def make_usable(self, decision_id: str, at: datetime) -> bool:
        """An approval stands behind this decision; False where it was revoked or has expired."""
        return await self.connection.fetchval(_USABLE, decision_id, at) is not None

    async def case_actors(self, workflow_id: str | None) -> set[str]:
        """Whose case it is, and who sent it events."""
        rows = await self.connection.fetch(
            f"SELECT subject FROM {CASES_SOURCE} AS c WHERE workflow_id = $1 "
            "UNION SELECT actor FROM gateway.signal WHERE workflow_id = $1",
            workflow_id,
        )
        return {str(row["subject"]) for row in rows if row["subject"] is not None}

    async def case_of(self, reader: Reader, workflow_id: str) -> CaseView | None:
        """One case that the caller may act on."""
        rows = await self.connection.fetch(
            f"SELECT * FROM {CASES_SOURCE} AS c "
            "WHERE workflow_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)",
            workflow_id,
            reader.tenant,
            reader.subject,
        )
        return next(iter(CASES.read(rows)), None)

    async def save_authorization(self, row: AuthorizationRow) -> None:
        """Keep an authorization decision."""
        await AUTHORIZATIONS.insert(self.connection, [row])

    async def owners_of_cases(self, workflow_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Tenant and subject of cases. Nobody but us may learn of another tenant's."""
        rows = await self.connection.fetch(
            f"SELECT workflow_id, tenant, subject FROM {CASES_SOURCE} AS c WHERE workflow_id = ANY($1::text[])",
            list(workflow_ids),
        )
        return {row["workflow_id"]: (row["tenant"], row["subject"]) for row in rows}

    async def save_signals(self, rows: Sequence[SignalRow]) -> int:
        """Keep signals; how many of them were not known."""
        return len(await SIGNALS.insert_new(self.connection, rows))

    async def signals(self, keys: Collection[tuple[str, str]]) -> list[SignalRow]:
        """Signals by (workflow id, event id)."""
        ordered = sorted(keys)
        workflow_ids, event_ids = [workflow_id for workflow_id, _ in ordered], [event_id for _, event_id in ordered]
        return await SIGNALS.select(self.connection, _SIGNALS, workflow_ids, event_ids)

    async def open_signals(self, workflow_ids: Sequence[str]) -> dict[str, int]:
        """How many signals of each case nobody has disposed of yet."""
        rows = await self.connection.fetch(_OPEN_SIGNALS, list(workflow_ids))
        return {row["workflow_id"]: row["count"] for row in rows}

    async def dispose_signals(self, disposed: Sequence[SignalDisposed]) -> None:
        """Store what became of signals; of several tellings of one the newest counts. Unknown ones are nobody's."""
        newest: dict[tuple[str, str], SignalDisposed] = {}
        for item in disposed:
            name = (item.workflow_id, item.event_id)
            if name not in newest or newest[name].version < item.version:
                newest[name] = item
        if not newest:
            return
        items = [newest[name] for name in sorted(newest)]
        await self.connection.execute(
            _DISPOSE,
            [item.workflow_id for item in items],
            [item.event_id for item in items],
            [item.tenant for item in items],
            [item.disposition for item in items],
            [item.reason for item in items],
            [item.version for item in items],
            [item.at for item in items],
        )


_SIGNALS: Final = "JOIN unnest($1::text[], $2::text[]) AS wanted(w, e) ON workflow_id = w AND event_id = e"
_DISPOSED: Final = f"{_SIGNALS} AND disposition <> 'pending'"
_OPEN_SIGNALS: Final = """
SELECT workflow_id, count(*) FROM gateway.signal
WHERE workflow_id = ANY($1::text[]) AND disposition IN ('pending', 'held') GROUP BY workflow_id
"""


class PeopleReads(Reads):
    """Reads of people's acts."""

    async def approvals(
        self, reader: Reader, page: Page, *, status: str | None, workflow_id: str | None
    ) -> list[ApprovalRow]:
        """A page of approvals with their status as it is shown, newest first."""
        async with self._search() as connection:
            rows = await connection.fetch(
                f"SELECT a.*, {_STATUS} AS shown FROM gateway.approval AS a WHERE a.tenant = $1 "
                f"AND ($2::text IS NULL OR {_OWN}) AND ($3::text IS NULL OR {_STATUS} = $3) "
                "AND ($4::text IS NULL OR a.workflow_id = $4) "
                "AND ($5::timestamptz IS NULL OR (a.asked_at, a.approval_id) < ($5, $6)) "
                "ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT $7",
                reader.tenant,
                reader.subject,
                status,
                workflow_id,
                *before(page),
                page.limit,
            )
        return [_shown(row) for row in rows]

    async def approval(self, reader: Reader, approval_id: str) -> ApprovalRow | None:
        """One approval with its status as it is shown."""
        async with self._connection() as connection:
            row = await connection.fetchrow(
                f"SELECT a.*, {_STATUS} AS shown FROM gateway.approval AS a "
                f"WHERE a.tenant = $1 AND ($2::text IS NULL OR {_OWN}) AND a.approval_id = $3",
                reader.tenant,
                reader.subject,
                approval_id,
            )
        return None if row is None else _shown(row)

    async def approvals_pending(self, tenant: str) -> int:
        """How many approvals wait for a person."""
        async with self._connection() as connection:
            return int(
                await connection.fetchval(
                    "SELECT count(*) FROM gateway.approval WHERE tenant = $1 AND status = 'pending' "
                    "AND expires_at > trueup.now()",
                    tenant,
                )
            )

    async def authorization(self, reader: Reader, decision_id: str) -> AuthorizationRow | None:
        """One authorization decision about a person's act."""
        async with self._connection() as connection:
            tail = "WHERE decision_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)"
            rows = await AUTHORIZATIONS.select(connection, tail, decision_id, reader.tenant, reader.subject)
        return next(iter(rows), None)

    async def signal(self, tenant: str, workflow_id: str, event_id: str) -> SignalRow | None:
        """One signal of a case."""
        async with self._connection() as connection:
            tail = "WHERE workflow_id = $1 AND event_id = $2 AND tenant = $3"
            rows = await SIGNALS.select(connection, tail, workflow_id, event_id, tenant)
        return next(iter(rows), None)

    async def disposed(self, signals: Sequence[tuple[str, str]]) -> list[SignalRow]:
        """Those of these signals (workflow id, event id) that somebody has disposed of."""
        workflow_ids, event_ids = [workflow_id for workflow_id, _ in signals], [event_id for _, event_id in signals]
        async with self._connection() as connection:
            return await SIGNALS.select(connection, _DISPOSED, workflow_ids, event_ids)

    async def case_marks(self, workflow_ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """A mark per case that moves whenever something of what is shown of it does."""
        async with self._connection() as connection:
            rows = await connection.fetch(_MARKS, list(workflow_ids))
        return {row["workflow_id"]: tuple(row)[1:] for row in rows}


def _shown(record: Any) -> ApprovalRow:
    return ApprovalRow.model_validate({**dict(record), "status": record["shown"]})
