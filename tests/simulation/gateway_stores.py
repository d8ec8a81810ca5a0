"""The gateway's store in memory: acceptance, starts, grants, what people do, and the views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from tests.simulation.batch_stores import BatchMemory
from trueup_common.contracts.events import OperatorCommandEnded, SignalDisposed
from trueup_common.contracts.shape import ForwardContract
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_gateway import tables as gateway_tables
from trueup_gateway.core.acceptance import Edge, Standing
from trueup_gateway.core.approval import EXPIRED, PENDING, Answer
from trueup_gateway.core.artifact import ArtifactRow
from trueup_gateway.core.case import NewCase
from trueup_gateway.core.number_records import SightingRow
from trueup_gateway.core.person_records import ApprovalRow, AuthorizationRow, OperatorCommandRow, SignalRow
from trueup_gateway.core.projection import FreedKey
from trueup_gateway.core.records import (
    CallRow,
    CapabilityRow,
    DecisionRow,
    DefinitionRow,
    EffectCountRow,
    FreezeRow,
    LineageRow,
    PolicyRow,
)
from trueup_gateway.core.view_records import (
    CaseView,
    CommandView,
    ElementView,
    ExceptionView,
    HistoryView,
    IncidentView,
    RepairView,
)
from trueup_gateway.core.workflow_start import Existing, NewWorkflow
from trueup_gateway.store import AcceptRows, GrantRows, KeyTaken, Reader

V = TypeVar("V", bound=ForwardContract)


class GatewayMemory(BatchMemory):
    """The gateway's transaction: acceptance as far as the simulation needs it, and all of the worker."""

    async def accept_rows(
        self,
        capability_ids: Sequence[str],
        tenants: Sequence[str],
        keys: Sequence[str],
        identities: Sequence[str | None],
        *,
        lock: bool = True,
    ) -> AcceptRows:
        """Capabilities, locked where asked, and what keys and identities stand for."""
        moment, _ = await self.claim("", [])
        get = self.get_locked if lock else self.get
        capabilities = await get("capability", "capability_id", capability_ids)
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

    async def states_of(self, commands: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """States of commands by (tenant, id)."""
        views = self._visible(self._table("command_view"))
        waiting = self._visible(self._table("received"))
        found = {}
        for tenant, command_id in commands:
            view = views.get((command_id,)) or waiting.get((command_id,))
            if view is not None and view.tenant == tenant:
                found[tenant, command_id] = str(getattr(view, "state", "RECEIVED"))
        return found

    async def save_lineage(self, lines: Sequence[tuple[LineageRow, str | None]]) -> None:
        """Who takes whose place; the older one gives up its business identity."""
        await self.insert("lineage", [line for line, _ in lines])
        named = {(line.tenant, line.supersedes): identity for line, identity in lines if identity is not None}
        edges = await self.select("edge", lambda row: named.get((row.tenant, row.command_id)) == row.identity)
        await self.update("edge", [row.evolve(identity=None) for row in edges if row.identity is not None])

    async def save_cases(self, cases: Sequence[NewCase], epoch: int) -> None:
        """Accepted commands, and their uses counted."""
        inserted = await self.insert_new("edge", [case.edge for case in cases])
        if len(inserted) != len(cases):
            raise VersionConflict("a key was taken by another transaction")
        await self.insert("mandate", [case.mandate for case in cases])
        await self.insert("received", [case.received for case in cases])
        await self._use(case.capability_id for case in cases)

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

    async def decisions(self, decision_ids: Sequence[str]) -> dict[str, DecisionRow]:
        """Decisions by id."""
        return {row.decision_id: row for row in await self.get("decision", "decision_id", decision_ids)}

    def foresee_grants(self, mandate_ids: Collection[str]) -> None:
        """Reads cost nothing here."""

    async def grant_rows(self, mandate_ids: Collection[str]) -> GrantRows:
        """What attempts under these mandates rest on."""
        mandates = await self.get("mandate", "mandate_id", mandate_ids)
        capabilities = await self.get("capability", "capability_id", [row.capability_id for row in mandates])
        effects: dict[str, set[str]] = {row.mandate_id: set() for row in mandates if row.command_id is None}
        for row in await self.get("effect", "mandate_id", list(effects)):
            effects[row.mandate_id].add(row.command_id)
        return GrantRows(
            epoch=1,
            mandates={row.mandate_id: row for row in mandates},
            decisions=await self.decisions([row.decision_id for row in mandates]),
            revoked=frozenset(row.capability_id for row in capabilities if row.revoked_at is not None),
            effects=effects,
        )

    async def save_effects(self, rows: Sequence[EffectCountRow]) -> None:
        """Count these operations as effects."""
        if len(await self.insert_new("effect", rows)) != len(rows):
            raise VersionConflict("another transaction counted an effect of the same mandate")

    async def decision(self, decision_id: str, *, lock: bool = False) -> DecisionRow | None:
        """One decision."""
        get = self.get_locked if lock else self.get
        return next(iter(await get("decision", "decision_id", [decision_id])), None)

    async def save_decision(self, row: DecisionRow) -> None:
        """Keep a decision."""
        await self.insert("decision", [row])

    async def save_capability(self, row: CapabilityRow) -> None:
        """Keep a capability."""
        await self.insert("capability", [row])

    async def circumstances(self, tenant: str, subject: str, limit: int) -> tuple[int, list[str]]:
        """Open exceptions of a tenant, and the states of a subject's latest commands."""
        open_ = await self.select("exception_view", lambda row: row.tenant == tenant and row.status == "open")
        rows = await self.select("command_view", lambda row: row.tenant == tenant and row.subject == subject)
        newest = sorted(rows, key=lambda row: row.created_at, reverse=True)
        return len(open_[:100]), [str(row.state) for row in newest[:limit]]

    async def make_usable(self, decision_id: str, at: datetime) -> bool:
        """An approval stands behind this decision; False where it was revoked or has expired."""
        rows = await self.get_locked("decision", "decision_id", [decision_id])
        due = [row.evolve(approved_at=at) for row in rows if row.revoked_at is None and row.expires_at > at]
        await self.update("decision", due)
        return bool(due)

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
        repairs: Sequence[RepairView] = (),
        incidents: Sequence[IncidentView] = (),
        sightings: Sequence[SightingRow] = (),
    ) -> None:
        """Project. Who counts anomalies is not simulated."""
        await self.upsert("repair_view", repairs)
        await self.upsert("incident_view", incidents)
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

    async def hold_definitions(self, names: Collection[tuple[str, str]]) -> None:
        """Who retires is not simulated."""

    async def definitions_named(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[DefinitionRow]]:
        """The tenants' own ones."""
        found: dict[tuple[str, str], list[DefinitionRow]] = {}
        for row in await self.select("definition", lambda row: (row.tenant, row.name) in names):
            found.setdefault((row.tenant, row.name), []).append(row)
        return found

    async def existing(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], Existing]:
        """The cases behind start keys."""
        views = self._visible(self._table("case_view"))
        found: dict[tuple[str, str], Existing] = {}
        for edge in await self.select("edge", lambda row: (row.tenant, row.key) in keys):
            view = views.get((edge.workflow_id,))
            found[edge.tenant, edge.key] = Existing(
                fingerprint=edge.fingerprint,
                workflow_id=edge.workflow_id,
                saga_id=edge.saga_id,
                status=view.status if view else "RUNNING",
                revision=view.instance.revision if view else 1,
                version=view.instance.version if view else 1,
                command=edge.command_id != "",
            )
        return found

    async def save_workflows(self, starts: Sequence[NewWorkflow], epoch: int) -> None:
        """Accepted starts, and their uses counted."""
        fresh = [new.edge for new in starts if new.revises is None]
        kept = len(await self.insert_new("edge", fresh))
        for new in starts:
            if new.revises is not None and await self.select("edge", lambda row, of=new.revises: row.workflow_id == of):
                await self.touch("edge", [new.edge])
                kept += 1
        if kept != len(starts):
            raise VersionConflict("a key was taken by another transaction")
        await self._use(new.capability_id for new in starts)
        await self.insert("mandate", [new.mandate for new in starts])
        await self.insert("case_view", [new.view for new in starts])

    async def _use(self, capability_ids: Iterable[str]) -> None:
        uses = Counter(capability_ids)
        rows = await self.get("capability", "capability_id", uses)
        if any(row.uses_left < uses[row.capability_id] or row.revoked_at is not None for row in rows):
            raise VersionConflict("a use was taken by another transaction")
        await self.update("capability", [row.evolve(uses_left=row.uses_left - uses[row.capability_id]) for row in rows])

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

    async def exception_of(self, tenant: str, exception_id: str) -> ExceptionView | None:
        """One exception of the tenant."""
        rows = await self.get("exception_view", "exception_id", [exception_id])
        return next((row for row in rows if row.tenant == tenant), None)

    async def command_of(self, tenant: str, command_id: str) -> CommandView | None:
        """One command of the tenant."""
        rows = await self.get("command_view", "command_id", [command_id])
        return next((row for row in rows if row.tenant == tenant), None)

    async def commands_of(self, workflow_id: str) -> list[CommandView]:
        """All commands of a case."""
        rows: list[CommandView] = await self.get("command_view", "workflow_id", [workflow_id])
        return sorted(rows, key=lambda row: (row.created_at, row.command_id))

    async def replaced(self, identities: Sequence[tuple[str, str, str]]) -> set[str]:
        """The commands whose business identity another one has by now."""
        held = await self.select("edge", lambda row: row.identity is not None)
        return {
            name
            for tenant, identity, name in identities
            if any((row.tenant, row.identity) == (tenant, identity) and row.command_id != name for row in held)
        }

    async def authority_revoked(self, mandate_id: str) -> bool:
        """True where mandate, decision or capability behind a case was revoked."""
        for mandate in await self.get("mandate", "mandate_id", [mandate_id]):
            behind = [mandate, *await self.get("decision", "decision_id", [mandate.decision_id])]
            behind += await self.get("capability", "capability_id", [mandate.capability_id])
            return any(row.revoked_at is not None for row in behind)
        return False

    async def renew_mandate(self, mandate_id: str, until: datetime, by: str) -> bool:
        """Let a mandate live longer."""
        rows = [row for row in await self.get("mandate", "mandate_id", [mandate_id]) if row.expires_at < until]
        await self.update("mandate", [row.evolve(expires_at=until, renewed_by=by) for row in rows])
        return bool(rows)

    async def newest_element(self, tenant: str, system: str, resource: str, element: str) -> ElementView | None:
        """One state element as its newest owner has it."""
        place = (tenant, system, resource, element)
        rows = await self.select(
            "element_view", lambda row: (row.tenant, row.system, row.resource, row.element) == place
        )
        return max(rows, key=lambda row: row.version, default=None)

    async def elements_of(self, workflow_id: str) -> list[ElementView]:
        """The elements that a case established and that are still desired."""
        return await self.select("element_view", lambda row: row.workflow_id == workflow_id and not row.retired)

    async def commands_named(self, tenant: str, command_ids: Sequence[str]) -> list[CommandView]:
        """Commands of the tenant by id."""
        rows: list[CommandView] = await self.get("command_view", "command_id", command_ids)
        return [row for row in rows if row.tenant == tenant]

    async def repairs_offered(self, tenant: str, command_id: str) -> list[dict[str, Any]]:
        """The repair commands that open drifts offer in the place of a command."""
        rows = await self.select(
            "exception_view", lambda row: row.tenant == tenant and row.status == "open" and row.kind == "state_drift"
        )
        offers = [row.envelope.get("repair") for row in rows]
        return [offer for offer in offers if offer is not None and offer.get("supersedes") == command_id]

    async def hold_artifacts(self, tenants: Sequence[str], artifact_ids: Sequence[str]) -> list[ArtifactRow]:
        """Artifacts are not simulated."""
        return []

    async def at_work(self, tenant: str, command_id: str | None, exception_id: str | None) -> OperatorCommandRow | None:
        """The act that is at work on this alone."""
        rows = await self.select(
            "operator_command",
            lambda row: (
                row.tenant == tenant
                and row.state == "ACCEPTED"
                and (
                    (command_id is not None and row.holds_command == command_id)
                    or (exception_id is not None and row.holds_exception == exception_id)
                )
            ),
        )
        return next(iter(rows), None)

    async def save_operator_command(self, row: OperatorCommandRow) -> bool:
        """Keep an operator's act; of two at once that hold the same, one finds the other."""
        return bool(await self.insert_new("operator_command", [row]))

    async def end_operator_commands(self, ended: Sequence[OperatorCommandEnded]) -> None:
        """How acts ended; the first word counts."""
        for item in ended:
            rows = await self.get_locked("operator_command", "operator_command_id", [item.operator_command_id])
            told = {"state": item.state, "detail": item.detail, "result": item.result, "ended_at": item.at}
            allowed = list(item.allowed_actions)
            fresh = [row for row in rows if row.state == "ACCEPTED" and row.tenant == item.tenant]
            await self.update("operator_command", [row.evolve(**told, allowed_actions=allowed) for row in fresh])

    async def owners_of_cases(self, workflow_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Tenant and subject of cases."""
        rows = await self.get("case_view", "workflow_id", workflow_ids)
        return {row.workflow_id: (row.tenant, row.subject) for row in rows}

    async def save_signals(self, rows: Sequence[SignalRow]) -> int:
        """Keep signals; how many of them were not known."""
        return len(await self.insert_new("signal", rows))

    async def signals(self, keys: Collection[tuple[str, str]]) -> list[SignalRow]:
        """Signals by (workflow id, event id)."""
        return await self.select("signal", lambda row: (row.workflow_id, row.event_id) in keys)

    async def open_signals(self, workflow_ids: Sequence[str]) -> dict[str, int]:
        """How many signals of each case nobody has disposed of yet."""
        rows = await self.get("signal", "workflow_id", workflow_ids)
        return Counter(row.workflow_id for row in rows if row.disposition in ("pending", "held"))

    async def dispose_signals(self, disposed: Sequence[SignalDisposed]) -> None:
        """What became of signals; the newest telling counts."""
        for item in disposed:
            known = await self.get_locked("signal", "event_id", [item.event_id])
            row = next((row for row in known if row.workflow_id == item.workflow_id), None)
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
        "repair_view": "version",
        "incident_view": "version",
    },
)
