"""Builders for orchestrator tests: a declaration, accepted commands, and what comes back about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trueup_common.contracts.canonical import digest, fingerprint
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, RetryPolicy
from trueup_common.contracts.events import (
    ElementVerified,
    Mandate,
    OperatorCommand,
    OperatorCommandEnded,
    Settlement,
    StartCase,
)
from trueup_common.contracts.ids import attempt_id, command_id, derived_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import (
    EffectClass,
    ErrorClass,
    Findability,
    FindVerdict,
    OperationState,
    Phase,
    ProbeVerdict,
    ReceiptStatus,
    RiskLevel,
)
from trueup_common.contracts.task import Receipt, Target
from trueup_orchestrator.core.case import Authority, Case, Decision, Terms
from trueup_orchestrator.core.decide import Dispatch, Stimulus, decide, fold_in
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant
from trueup_orchestrator.core.operators import Ground, fold_command
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.core.start import start

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TERMS = Terms(exception_owner="operators", exception_sla_seconds=3600.0)
FREE = Authority()


@dataclass(frozen=True, slots=True)
class At:
    """A moment of a test."""

    business: datetime = NOW
    real: datetime = NOW

    def later(self, seconds: float) -> At:
        step = timedelta(seconds=seconds)
        return At(self.business + step, self.real + step)


def declaration(**changes: Any) -> CommandDeclaration:
    """A type that creates a page and establishes its status."""
    fields: dict[str, Any] = {
        "type": "site.create_page",
        "system": "site",
        "title": "Create a page",
        "permission": "site:write",
        "effect_class": EffectClass.COMPENSABLE,
        "payload_schema": {"type": "object"},
        "identity": ("/payload/slug",),
        "findability": Findability.MARKER,
        "timeout_seconds": 10.0,
        "start_window_seconds": 20.0,
        "late_window_seconds": 5.0,
        "retry": RetryPolicy(attempts_max=3, initial_seconds=1.0, factor=2.0, ceiling_seconds=8.0),
        "success_condition": "201 and the page reads back",
        "compensation": Mapping(
            command_type="site.trash_page", payload={"page_id": ValueFrom(pointer="/receipt/page_id")}
        ),
        "establishes": (
            Establishes(
                element="site.status",
                resource=ValueFrom(pointer="/receipt/page_id"),
                value=ValueFrom(const="draft"),
                probe=Probe(kind="status", params={"page_id": ValueFrom(pointer="/receipt/page_id")}),
            ),
        ),
    }
    return CommandDeclaration(**{**fields, **changes})


PAGE = declaration()
BARE = declaration(type="site.ping", identity=(), establishes=())


def start_case(
    number: int = 1,
    *,
    tenant: str = "acme",
    decl: CommandDeclaration = PAGE,
    key: str | None = None,
    slug: str | None = None,
    grant: str = "grant",
    deadline_seconds: float = 3600.0,
    at: At = At(),
    risk: RiskLevel = RiskLevel.LOW,
    mandate: dict[str, Any] | None = None,
    **changes: Any,
) -> StartCase:
    """An accepted command."""
    workflow = derived_id("wf", tenant, number)
    payload = {"title": "A page", "slug": slug or f"page-{number}"}
    target = Target(system=decl.system, resource="page")
    fields: dict[str, Any] = {
        "workflow_id": workflow,
        "saga_id": derived_id("saga", workflow),
        "command_id": command_id(workflow, "command", 1),
        "tenant": tenant,
        "mandate": Mandate(
            **{
                "mandate_id": derived_id("man", workflow),
                "tenant": tenant,
                "subject": "agent:publisher",
                "decision_id": derived_id("dec", workflow),
                "capability_id": derived_id("cap", workflow),
                "command_types": (decl.type,),
                "system": decl.system,
                "resource": "page",
                "effect_class_max": EffectClass.PIVOT,
                "risk": risk,
                "policy_sha256": "0" * 64,
                "expires_at": at.business + timedelta(days=1),
                **(mandate or {}),
            }
        ),
        "command_type": decl.type,
        "declaration_sha256": decl.sha256,
        "target": target,
        "payload": payload,
        "payload_sha256": digest(payload),
        "request_fingerprint": fingerprint(decl.type, target.model_dump(), payload),
        "idempotency_key": key or f"key-{number}",
        "deadline_at": at.business + timedelta(seconds=deadline_seconds),
        "accepted_at": at.business,
        "grant": grant,
        "grant_expires_at": at.real + timedelta(seconds=120) if grant else None,
    }
    return StartCase(**{**fields, **changes})


def reload(case: Case) -> Case:
    """The case as another process reads it from the store."""
    return Case(
        InstanceRow.model_validate_json(case.instance.model_dump_json()),
        tuple(JournalRow.model_validate_json(row.model_dump_json()) for row in case.operations),
        tuple(ObligationRow.model_validate_json(row.model_dump_json()) for row in case.obligations),
        tuple(HistoryEvent.model_validate_json(event.model_dump_json()) for event in case.unpublished),
    )


class Story:
    """One case through several commits, reloaded between any two, with everything it ever said."""

    def __init__(
        self,
        message: StartCase | None = None,
        decl: CommandDeclaration = PAGE,
        *,
        at: At = At(),
        authority: Authority = FREE,
        dispatched: bool = True,
    ) -> None:
        self.declaration = decl
        self.at = at
        self.authority = authority
        self.history: list[HistoryEvent] = []
        self.decisions: list[Decision] = []
        self.obligations: dict[str, ObligationRow] = {}
        self.acts = 0
        body = message or start_case(decl=decl, at=at)
        fold = start(body, decl, authority, at, TERMS, identity="who", cause="m", reply_to="trueup.answer.gateway")
        if dispatched and fold.state is OperationState.QUEUED:
            grant = AcceptanceGrant(body.grant, body.grant_expires_at)
            fold_in(fold, Dispatch(1, grant), decl, authority)
        self._keep(seal(fold))

    @property
    def row(self) -> JournalRow:
        return self.case.operation

    @property
    def state(self) -> OperationState:
        return self.row.state

    @property
    def kinds(self) -> list[str]:
        """Kinds of the open obligations."""
        return sorted(row.kind for row in self.case.obligations)

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    def sent(self, type_: str) -> list[Any]:
        """Messages of one type that the last commit sends."""
        return [item.message for item in self.last.outgoing if item.message.type == type_]

    def wait(self, seconds: float) -> Story:
        self.at = self.at.later(seconds)
        return self

    def hear(self, message: Stimulus, *, authority: Authority | None = None) -> Story:
        """Fold one message into the reloaded case."""
        self._keep(
            decide(
                self.case,
                message,
                self.at,
                self.declaration,
                TERMS,
                authority=authority or self.authority,
                cause="message",
            )
        )
        return self

    def operate(self, action: str, *, rival: str | None = None, identity: str | None = "who", **changes: Any) -> Story:
        """An operator's act on the operation."""
        fold = Fold(self.case, self.at, TERMS)
        self.acts += 1
        asked = OperatorCommand(
            **{
                "operator_command_id": f"opc_{self.acts}",
                "tenant": "acme",
                "action": action,
                "performer": "orchestrator",
                "target_kind": "command",
                "target_id": self.row.command_id,
                "workflow_id": self.row.workflow_id,
                "command_id": self.row.command_id,
                "actor": "operator:ops",
                "reason": "because",
                "decision_id": "dec_2",
                "deadline_at": self.at.business + timedelta(hours=2),
                "at": self.at.business,
                **changes,
            }
        )
        ground = Ground(self.authority, self.declaration, identity, rival)
        fold_command(fold, asked, ground, asked.operator_command_id)
        if fold.state is OperationState.QUEUED and fold.operation.next_retry_at is None:
            fold_in(fold, Dispatch(len(self.decisions)), self.declaration, self.authority)
        self._keep(seal(fold))
        return self

    def operate_dispatch(self) -> Story:
        """The window admits what is queued."""
        return self.hear(Dispatch(len(self.decisions)))

    def ends(self) -> list[OperatorCommandEnded]:
        """What the last commit tells of operator commands."""
        return [OperatorCommandEnded.model_validate_json(item.data) for item in self.sent("OperatorCommandEnded")]

    def _keep(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.history += decision.events
        for row in (*decision.opened, *decision.changed):
            self.obligations[row.obligation_id] = row
        self.case = reload(decision.case)


def receipt(
    row: JournalRow,
    status: ReceiptStatus,
    error_class: ErrorClass | None = None,
    code: str | None = None,
    *,
    fence: int | None = None,
    sent: bool | None = None,
    at: datetime = NOW,
    resource: str = "42",
    **changes: Any,
) -> Receipt:
    """A receipt of an attempt; of the newest one unless a fence is named."""
    number = row.fence if fence is None else fence
    was_sent = sent if sent is not None else status not in (ReceiptStatus.NOT_SENT, ReceiptStatus.STALE)
    fields: dict[str, Any] = {
        "command_id": row.command_id,
        "workflow_id": row.workflow_id,
        "tenant": row.tenant,
        "system": row.target_system,
        "command_type": row.command_type,
        "attempt_id": attempt_id(row.command_id, number),
        "fence": number,
        "status": status,
        "error_class": error_class,
        "error_code": code,
        "started_at": at,
        "sent_at": at if was_sent else None,
        "ended_at": at,
    }
    if status is ReceiptStatus.CONFIRMED:
        fields |= {
            "result": {"page_id": resource},
            "external_resource_id": resource,
            "external_version": "v1",
            "external_status": "201",
            "observations": (observation("draft", at=at),),
        }
    return Receipt(**{**fields, **changes})


def observation(value: Any, *, at: datetime = NOW, verdict: ProbeVerdict = ProbeVerdict.CONFIRMED) -> Observation:
    return Observation(element="site.status", verdict=verdict, value=value, observed_at=at, source="read-back")


def settlement(
    row: JournalRow,
    verdict: FindVerdict | None = None,
    *,
    fence: int | None = None,
    at: datetime = NOW,
    candidates: int = 1,
    resource: str = "42",
) -> Settlement:
    """A settlement: started where no verdict is given."""
    finding = None
    if verdict is not None:
        found = verdict is FindVerdict.CONFIRMED
        finding = Finding(
            verdict=verdict,
            proof_of_access=True,
            candidates=candidates if found or verdict is FindVerdict.AMBIGUOUS else 0,
            result={"page_id": resource} if found else None,
            external_resource_id=resource if found else None,
            observations=(observation("draft", at=at),) if found else (),
        )
    number = row.fence + 1 if fence is None else fence
    return Settlement(
        settlement_id=derived_id("obs", row.command_id, number),
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        started=True,
        finished=verdict is not None,
        fence=number,
        verdict=verdict,
        finding=finding,
        finds_count=1,
        at=at,
    )


def verified(row: JournalRow, *, resource: str = "42", phase: Phase = Phase.HEALTHY) -> ElementVerified:
    return ElementVerified(
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        system=row.target_system,
        resource=resource,
        element="site.status",
        phase=phase,
        observation=observation("draft"),
        at=NOW,
    )
