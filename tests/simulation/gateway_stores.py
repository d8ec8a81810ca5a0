"""The gateway's store in memory: acceptance, starts, grants, what people do, and the views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

from tests.simulation.memory import MemoryTransaction
from trueup_common.contracts.events import SignalDisposed
from trueup_common.contracts.shape import ForwardContract
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_gateway import tables as gateway_tables
from trueup_gateway.core.acceptance import Edge, Standing
from trueup_gateway.core.approval import EXPIRED, PENDING, Answer
from trueup_gateway.core.case import NewCase
from trueup_gateway.core.person_records import ApprovalRow, AuthorizationRow, OperatorCommandRow, SignalRow
from trueup_gateway.core.projection import FreedKey
from trueup_gateway.core.records import (
    CallRow,
    DecisionRow,
    DefinitionRow,
    EffectCountRow,
    FreezeRow,
    MandateRow,
    PolicyRow,
)
from trueup_gateway.core.view_records import CaseView, CommandView, ElementView, ExceptionView, HistoryView
from trueup_gateway.core.workflow_start import Existing, NewWorkflow
from trueup_gateway.store import AcceptRows, KeyTaken, Reader

V = TypeVar("V", bound=ForwardContract)


class GatewayMemory(MemoryTransaction):
    """The gateway's transaction: acceptance as far as the simulation needs it, and all of the worker."""

    async def accept_rows(
        self,
        capability_ids: Sequence[str],
        tenants: Sequence[str],
        keys: Sequence[str],
        identities: Sequence[str | None],
    ) -> AcceptRows:
        """Capabilities, locked, and what keys and identities stand for."""
        moment, _ = await self.claim("", [])
        capabilities = await self.get_locked("capability", "capability_id", capability_ids)
        decisions = await self.decisions([row.decision_id for row in capabilities])
        wanted = set(zip(tenants, keys, strict=True))
        owned = {pair for pair in zip(tenants, identities, strict=True) if pair[1] is not None}
        edges = await self.select(
            "edge", lambda row: (row.tenant, row.key) in wanted or (row.tenant, row.identity) in owned
        )
        views = self._visible(self._table("command_view"))
        found = [
            Edge(
                row.tenant,
                row.key,
                row.fingerprint,
                row.identity,
                row.command_id,
                row.workflow_id,
                row.saga_id,
                views[row.command_id,].state if (row.command_id,) in views else "RECEIVED",
            )
            for row in edges
        ]
        standings = {
            row.capability_id: Standing(
                capability_id=row.capability_id,
                tenant=row.tenant,
                subject=row.subject,
                uses_left=row.uses_left,
                revoked=row.revoked_at is not None,
                expires_at=row.expires_at,
                decision=decisions[row.decision_id],
            )
            for row in capabilities
        }
        return AcceptRows(
            moment=moment,
            epoch=1,
            standings=standings,
            by_key={(edge.tenant, edge.key): edge for edge in found},
            by_identity={(edge.tenant, edge.identity): edge for edge in found if edge.identity is not None},
        )

    async def save_cases(self, cases: Sequence[NewCase]) -> None:
        """Accepted commands, and their uses counted."""
        inserted = await self.insert_new("edge", [case.edge for case in cases])
        if len(inserted) != len(cases):
            raise KeyTaken("a key was taken by another transaction")
        await self.insert("mandate", [case.mandate for case in cases])
        await self.insert("received", [case.received for case in cases])
        uses = Counter(case.capability_id for case in cases)
        rows = await self.get("capability", "capability_id", uses)
        if any(row.uses_left < uses[row.capability_id] for row in rows):
            raise KeyTaken("a use was taken by another transaction")
        await self.update("capability", [row.evolve(uses_left=row.uses_left - uses[row.capability_id]) for row in rows])

    async def epoch(self) -> int:
        """The present epoch."""
        return 1

    async def moment(self) -> Moment:
        """The time."""
        moment, _ = await self.claim("", [])
        return moment

    async def policy(self) -> PolicyRow | None:
        """Policies are not simulated."""
        return None

    async def active_freezes(self) -> list[FreezeRow]:
        """All freezes in force."""
        now = self.engine.business()
        return await self.select(
            "freeze", lambda row: row.lifted_at is None and (row.expires_at is None or row.expires_at > now)
        )

    async def mandates(self, mandate_ids: Sequence[str]) -> dict[str, MandateRow]:
        """Mandates by id."""
        return {row.mandate_id: row for row in await self.get("mandate", "mandate_id", mandate_ids)}

    async def decisions(self, decision_ids: Sequence[str]) -> dict[str, DecisionRow]:
        """Decisions by id."""
        return {row.decision_id: row for row in await self.get("decision", "decision_id", decision_ids)}

    async def revoked_capabilities(self, capability_ids: Sequence[str]) -> set[str]:
        """Those that are revoked."""
        rows = await self.get("capability", "capability_id", capability_ids)
        return {row.capability_id for row in rows if row.revoked_at is not None}

    async def effects(self, mandate_ids: Sequence[str]) -> dict[str, set[str]]:
        """What counts against these mandates, which stay locked."""
        found: dict[str, set[str]] = {
            row.mandate_id: set() for row in await self.get_locked("mandate", "mandate_id", mandate_ids)
        }
        for row in await self.get("effect", "mandate_id", list(found)):
            found[row.mandate_id].add(row.command_id)
        return found

    async def save_effects(self, rows: Sequence[EffectCountRow]) -> None:
        """Count these operations as effects."""
        await self.insert_new("effect", rows)

    async def approvals(self, approval_ids: Sequence[str]) -> dict[str, ApprovalRow]:
        """Approvals by id."""
        return {row.approval_id: row for row in await self.get("approval", "approval_id", approval_ids)}

    async def save_views(
        self,
        *,
        commands: Sequence[CommandView] = (),
        cases: Sequence[CaseView] = (),
        history: Sequence[HistoryView] = (),
        elements: Sequence[ElementView] = (),
        exceptions: Sequence[ExceptionView] = (),
    ) -> None:
        """Project."""
        await self.upsert("command_view", [_read_back(row) for row in commands])
        await self.upsert("case_view", [_read_back(row) for row in cases])
        await self.insert_new("history_view", [_read_back(row) for row in history])
        await self.upsert("element_view", elements)
        await self.upsert("exception_view", exceptions)

    async def free_identities(self, keys: Sequence[FreedKey]) -> None:
        """Let other keys have the identities."""
        if keys:
            rows = await self.get("edge", "command_id", [command_id for _, _, command_id in keys])
            await self.update("edge", [row.evolve(identity=None) for row in rows if row.identity is not None])

    # starting workflows

    async def hold_definition(self, tenant: str, name: str, *, alone: bool) -> None:
        """Who retires is not simulated."""

    async def definitions(self, tenant: str, name: str | None = None) -> list[DefinitionRow]:
        """The tenant's own ones."""
        return await self.select("definition", lambda row: row.tenant == tenant and name in (None, row.name))

    async def existing(self, tenant: str, key: str) -> tuple[Existing, bool] | None:
        """The case behind a start key, and whether the key belongs to a single command."""
        edges = await self.select("edge", lambda row: row.tenant == tenant and row.key == key)
        if not edges:
            return None
        edge = edges[0]
        view = self._visible(self._table("case_view")).get((edge.workflow_id,))
        known = Existing(
            fingerprint=edge.fingerprint,
            workflow_id=edge.workflow_id,
            saga_id=edge.saga_id,
            status=view.status if view else "RUNNING",
            revision=view.instance.revision if view else 1,
            definition=view.definition if view else "command",
            version=view.instance.version if view else 1,
        )
        return known, edge.command_id != ""

    async def save_workflow(self, new: NewWorkflow) -> None:
        """An accepted start, and its use counted."""
        if new.revises is None:
            kept = len(await self.insert_new("edge", [new.edge]))
        else:
            old = await self.select("edge", lambda row: (row.tenant, row.key) == (new.edge.tenant, new.edge.key))
            kept = sum(row.workflow_id == new.revises for row in old)
            if kept:
                await self.touch("edge", [new.edge])
        rows = await self.get("capability", "capability_id", [new.capability_id])
        if kept != 1 or rows[0].uses_left < 1:
            raise KeyTaken("a key or a use was taken by another transaction")
        await self.update("capability", [rows[0].evolve(uses_left=rows[0].uses_left - 1)])
        await self.insert("mandate", [new.mandate])
        await self.insert("case_view", [new.view])

    # people

    async def approvals_of(self, workflow_ids: Sequence[str]) -> list[ApprovalRow]:
        """All of some cases, locked."""
        return await self.get_locked("approval", "workflow_id", workflow_ids)

    async def save_approvals(self, changed: Sequence[ApprovalRow], fresh: Sequence[ApprovalRow]) -> None:
        """Locked ones that changed, then new ones."""
        await self.update("approval", changed)
        if len(await self.insert_new("approval", fresh)) != len(fresh):
            raise VersionConflict("approval: another replica inserted first")

    async def approval(self, tenant: str, approval_id: str) -> ApprovalRow | None:
        """One as it stands."""
        rows = await self.get("approval", "approval_id", [approval_id])
        return next((row for row in rows if row.tenant == tenant), None)

    async def decide_approval(self, row: ApprovalRow, answer: Answer, verb: str, decision_id: str) -> bool:
        """The compare-and-set."""
        known = await self.approval(row.tenant, row.approval_id)
        view = self._visible(self._table("case_view")).get((row.workflow_id,))
        now = self.engine.business()
        if (
            known is None
            or known.status != PENDING
            or (known.nonce, known.content_sha256) != (answer.nonce, answer.content_sha256)
            or now >= known.expires_at
            or (view is not None and view.closed_at is not None)
        ):
            return False
        decided = known.evolve(
            status=answer.status,
            reviewer=answer.reviewer,
            reason=answer.reason,
            decision=verb,
            decision_id=decision_id,
            decided_at=now,
        )
        await self.update("approval", [decided])
        return True

    async def expire_approval(self, approval_id: str) -> bool:
        """Pending past its time: expired."""
        now = self.engine.business()
        rows = [row for row in await self.get("approval", "approval_id", [approval_id]) if row.status == PENDING]
        due = [row.evolve(status=EXPIRED, decided_at=now) for row in rows if now >= row.expires_at]
        await self.update("approval", due)
        return bool(due)

    async def case_actors(self, workflow_id: str | None) -> set[str]:
        """Whose case it is, and who sent it events."""
        view = self._visible(self._table("case_view")).get((workflow_id,))
        signals = self._visible(self._table("signal")).values()
        return {row.actor for row in signals if row.workflow_id == workflow_id} | ({view.subject} if view else set())

    async def case_of(self, reader: Reader, workflow_id: str) -> CaseView | None:
        """One case that the caller may act on."""
        rows: list[CaseView] = await self.get("case_view", "workflow_id", [workflow_id])
        own = [row for row in rows if row.tenant == reader.tenant and reader.subject in (None, row.subject)]
        return next(iter(own), None)

    async def call(self, tenant: str, key: str) -> CallRow | None:
        """An earlier answer."""
        return next(iter(await self.select("call", lambda row: (row.tenant, row.key) == (tenant, key))), None)

    async def save_call(self, row: CallRow) -> None:
        """Keep an answer."""
        if not await self.insert_new("call", [row]):
            raise KeyTaken("the key was taken by another transaction")

    async def save_authorization(self, row: AuthorizationRow) -> None:
        """Keep an authorization decision."""
        await self.insert("authorization_decision", [row])

    async def save_operator_command(self, row: OperatorCommandRow) -> None:
        """Keep an operator's act."""
        await self.insert("operator_command", [row])

    async def save_signal(self, row: SignalRow) -> bool:
        """Keep a signal; False where its event id is known."""
        return bool(await self.insert_new("signal", [row]))

    async def signal(self, workflow_id: str, event_id: str) -> SignalRow | None:
        """One signal."""
        wanted = (workflow_id, event_id)
        return next(iter(await self.select("signal", lambda row: (row.workflow_id, row.event_id) == wanted)), None)

    async def dispose_signals(self, disposed: Sequence[SignalDisposed]) -> None:
        """What became of signals; the newest telling counts."""
        for item in disposed:
            row = await self.signal(item.workflow_id, item.event_id)
            if row is not None and row.tenant == item.tenant and row.version < item.version:
                told = {"disposition": item.disposition, "reason": item.reason, "version": item.version}
                await self.update("signal", [row.evolve(**told, disposed_at=item.at)])


def _read_back(row: V) -> V:
    """A row as the database gives it back: what is kept as it came is read through its contract."""
    return type(row).model_validate(row.__dict__)


GATEWAY_TABLES: Final = (
    gateway_tables.METADATA,
    {
        "command_view": "state_version",
        "case_view": "state_version",
        "element_view": "version",
        "exception_view": "version",
    },
)
