"""A workflow driven by hand: the real core, a tiny truthful world, and every message under the test's control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.orchestrator.cases import FREE, TERMS, At, reload

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, RetryPolicy
from trueup_common.contracts.events import (
    ApprovalAsked,
    ApprovalDecided,
    ElementVerified,
    ExceptionReported,
    GrantRefused,
    GrantRequest,
    Mandate,
    OperatorCommand,
    OperatorCommandEnded,
    Settlement,
    SettleRequested,
    SignalReceived,
    StartWorkflow,
)
from trueup_common.contracts.history import verify
from trueup_common.contracts.ids import attempt_id, derived_id
from trueup_common.contracts.journal import HistoryEvent, JournalRow, ObligationRow
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    EffectClass,
    ErrorClass,
    Findability,
    FindVerdict,
    InstanceStatus,
    OperationState,
    Phase,
    ReceiptStatus,
    RiskLevel,
)
from trueup_common.contracts.task import Receipt
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.expressions import Expressions
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.decide import CaseStimulus, Dispatch, Due, Stimulus, Woken, fold_in, fold_in_case
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.opening import start_workflow, take_locks
from trueup_orchestrator.core.operation import IN_FLIGHT, UNDECIDED
from trueup_orchestrator.core.operators import Ground, fold_command
from trueup_orchestrator.core.saga import advance
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.core.steps import begin
from trueup_orchestrator.core.workflow import Workflow


def command(name: str, effect_class: EffectClass, *, undo: str | None = None, **changes: Any) -> CommandDeclaration:
    """A type of the system `site`; its receipt names the effect."""
    fields: dict[str, Any] = {
        "type": f"site.{name}",
        "system": "site",
        "title": name,
        "permission": "site:write",
        "effect_class": effect_class,
        "payload_schema": {"type": "object"},
        "receipt_schema": {"type": "object", "properties": {"ref": {"type": "string"}}},
        "findability": Findability.MARKER,
        "timeout_seconds": 10.0,
        "start_window_seconds": 20.0,
        "late_window_seconds": 5.0,
        "retry": RetryPolicy(attempts_max=3, initial_seconds=1.0, factor=2.0, ceiling_seconds=8.0),
        "success_condition": "201",
    }
    if undo:
        fields["compensation"] = Mapping(
            command_type=f"site.{undo}", payload={"ref": ValueFrom(pointer="/receipt/ref")}
        )
    return CommandDeclaration(**{**fields, **changes})


MAKE = command("make", EffectClass.COMPENSABLE, undo="unmake")
UNMAKE = command("unmake", EffectClass.RETRYABLE)
PUBLISH = command("publish", EffectClass.PIVOT, undo="withdraw")
WITHDRAW = command("withdraw", EffectClass.RETRYABLE)
PURGE = command("purge", EffectClass.RETRYABLE, forward_recovery="retry")
SHOWN = command(
    "show",
    EffectClass.RETRYABLE,
    establishes=(
        Establishes(
            element="site.shown",
            resource=ValueFrom(pointer="/receipt/ref"),
            value=ValueFrom(const=True),
            window_seconds=30.0,
            probe=Probe(kind="shown", params={"ref": ValueFrom(pointer="/receipt/ref")}),
        ),
    ),
)
DECLARATIONS = {item.type: item for item in (MAKE, UNMAKE, PUBLISH, WITHDRAW, PURGE, SHOWN)}
_GONE = Establishes(
    element="site.gone",
    resource=ValueFrom(pointer="/receipt/ref"),
    value=ValueFrom(const=True),
    window_seconds=30.0,
    probe=Probe(kind="gone", params={"ref": ValueFrom(pointer="/receipt/ref")}),
)
SEEN_GONE = {**DECLARATIONS, "site.unmake": command("unmake", EffectClass.RETRYABLE, establishes=(_GONE,))}
"""The same, where it has to be observed that what was undone is gone."""


def document(*steps: dict[str, Any], **changes: Any) -> WorkflowDocument:
    """A document about article 7."""
    fields: dict[str, Any] = {
        "name": "test-flow",
        "version": 1,
        "object": {"type": "article", "id": "${input.id}"},
        "lifetime": "P7D",
        "input": {"type": "object", "properties": {"id": {"type": "string"}}},
        "steps": steps,
    }
    return WorkflowDocument.model_validate({**fields, **changes})


def make(step_id: str, **more: Any) -> dict[str, Any]:
    """A compensable step."""
    return effect(step_id, "site.make", **more)


def effect(step_id: str, command_type: str, **more: Any) -> dict[str, Any]:
    """A command step with a payload and key of its own."""
    return {
        "id": step_id,
        "command": command_type,
        "with": {"of": step_id, "id": "${input.id}"},
        "key": f"{step_id}:${{input.id}}",
        **more,
    }


def approval(step_id: str = "approve", **more: Any) -> dict[str, Any]:
    """A person's approval of the article's id."""
    rule = {"scope": "content:publish", "binds": ["${input.id}"], "timeout": "P2D", "owner": "editors"}
    return {"id": step_id, "approval": {**rule, **more.pop("rule", {})}, **more}


START = At()


class World:
    """What is really true outside: which effects stand. Shared by the runs of one test."""

    def __init__(self) -> None:
        self.standing: Counter[str] = Counter()
        self.undone: set[str] = set()
        self.newest: dict[tuple[str, str], JournalRow] = {}

    def apply(self, row: JournalRow) -> None:
        """An effect happens; the undoing of one takes it away."""
        if row.compensates is not None:
            self.standing[row.compensates] = 0
            self.undone.add(row.command_id)
        else:
            self.standing[row.command_id] += 1


class Run:
    """One case, reloaded between any two commits."""

    def __init__(
        self,
        doc: WorkflowDocument,
        *,
        world: World | None = None,
        number: int = 1,
        actions_max: int = 20,
        locks: dict[str, str] | None = None,
        at: At = START,
        authority: Authority = FREE,
        declarations: dict[str, CommandDeclaration] | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        self.world = world or World()
        self.at = at
        self.authority = authority
        self.workflow = Workflow(doc, Expressions(doc), declarations or DECLARATIONS)
        self.history: list[HistoryEvent] = []
        self.sent: list[Any] = []
        self.told: list[bytes] = []
        self.reports: list[ExceptionReported] = []
        self.requests: dict[str, GrantRequest] = {}
        self.approvals: dict[str, ApprovalAsked] = {}
        self.settling: dict[str, SettleRequested] = {}
        self.obligations: dict[str, ObligationRow] = {}
        self.sequence = 0
        self.acts = 0
        self.ended: dict[str, OperatorCommandEnded] = {}
        """Operator commands that ended, the first word counting."""
        body = start_message(doc, number, at=at, actions_max=actions_max, data=data)
        fold = start_workflow(body, self.workflow, authority, at, TERMS, cause="m")
        self.locks = locks or {}
        take_locks(fold, {key: holder for key, holder in self.locks.items() if key in fold.instance.locks})
        self._finish(fold)

    # what one sees

    @property
    def status(self) -> InstanceStatus:
        return self.case.instance.status

    @property
    def over(self) -> bool:
        return self.status in INSTANCE_TERMINAL

    @property
    def direction(self) -> str:
        return str(self.case.instance.direction)

    def step(self, step_id: str) -> dict[str, Any]:
        return next(item for item in self.case.instance.steps if item["id"] == step_id)

    def row(self, step_id: str) -> JournalRow:
        """The newest operation of a step (`x:undo` for its compensation)."""
        rows = [row for row in self.case.operations if row.step_id == step_id]
        return rows[-1]

    def has(self, step_id: str) -> bool:
        return any(row.step_id == step_id for row in self.case.operations)

    @property
    def kinds(self) -> list[str]:
        return sorted(row.kind for row in self.case.obligations)

    @property
    def events(self) -> list[str]:
        return [event.type for event in self.history]

    # what one does

    def wait(self, seconds: float) -> Run:
        self.at = self.at.later(seconds)
        return self

    def hear(self, message: Stimulus, command_id: str | None = None) -> Run:
        """One message about an operation."""
        fold = self._fold()
        wanted = command_id or getattr(message, "command_id")  # noqa: B009
        fold.at(wanted)
        declaration = self.workflow.declarations[fold.operation.command_type]
        fold_in(fold, message, declaration, self.authority, "message")
        return self._finish(fold)

    def tell(self, message: CaseStimulus) -> Run:
        """One message about the case."""
        fold = self._fold()
        fold_in_case(fold, message, "message")
        return self._finish(fold)

    def tick(self, seconds: float = 0.0) -> Run:
        """Time passes, and everything that is due is looked at."""
        self.wait(seconds)
        fold = self._fold()
        for row in list(fold.operations.values()):
            due = row.wake_at is not None and row.wake_at <= self.at.business
            if due or (row.lease_expires_at is not None and row.lease_expires_at <= self.at.real):
                fold_in(fold.at(row.command_id), Due(), self.workflow.declarations[row.command_type], self.authority)
        instance = fold.instance
        if (instance.wake_at and instance.wake_at <= self.at.business) or instance.deadline_at <= self.at.business:
            fold_in_case(fold, Woken())
        take_locks(fold, {key: holder for key, holder in self.locks.items() if key in instance.locks})
        return self._finish(fold)

    def succeed(self, step_id: str) -> Run:
        """The effect happens and is confirmed."""
        row = self.row(step_id)
        self.world.apply(row)
        return self.hear(self.receipt(row, ReceiptStatus.CONFIRMED))

    def fail(self, step_id: str, kind: ErrorClass = ErrorClass.PERMANENT, code: str = "forbidden") -> Run:
        """The effect is known not to have happened."""
        return self.hear(self.receipt(self.row(step_id), ReceiptStatus.REJECTED, kind, code))

    def doubt(self, step_id: str, *, landed: bool) -> Run:
        """The answer is lost, whether or not the effect happened."""
        row = self.row(step_id)
        if landed:
            self.world.apply(row)
        return self.hear(self.receipt(row, ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "timeout"))

    def settle(self, step_id: str, verdict: FindVerdict) -> Run:
        """The reconciler found out."""
        row = self.row(step_id)
        self.settling.pop(row.command_id, None)
        found = verdict is FindVerdict.CONFIRMED
        finding = Finding(
            verdict=verdict,
            proof_of_access=True,
            candidates=1 if found else 0,
            result={"ref": row.command_id} if found else None,
            external_resource_id=row.command_id if found else None,
        )
        return self.hear(
            Settlement(
                settlement_id=derived_id("obs", row.command_id, row.fence + 1),
                command_id=row.command_id,
                workflow_id=row.workflow_id,
                tenant=row.tenant,
                started=True,
                finished=True,
                fence=row.fence + 1,
                verdict=verdict,
                finding=finding,
                finds_count=1,
                at=self.at.business,
            )
        )

    def refuse(self, step_id: str, check: str = "approval", *, transient: bool = False) -> Run:
        """The gateway mints no grant."""
        row = self.row(step_id)
        return self.hear(
            GrantRefused(
                command_id=row.command_id,
                workflow_id=row.workflow_id,
                tenant=row.tenant,
                fence=row.fence,
                check=check,
                detail="refused",
                transient=transient,
            )
        )

    def decide(self, step_id: str, outcome: str, *, content: str | None = None) -> Run:
        """A person, or the expiry of the row, ends an approval."""
        state = self.step(step_id)
        return self.tell(
            ApprovalDecided(
                approval_id=state["approval_id"],
                workflow_id=self.case.instance.workflow_id,
                tenant="acme",
                step_id=step_id,
                outcome=outcome,
                reviewer="operator:ann",
                content_sha256=content or state["content_sha256"],
                decision_id="dec_1",
                decided_at=self.at.business,
            )
        )

    def decide_late(self, approval_id: str) -> Run:
        """A person answers a question that was withdrawn."""
        asked = self.approvals[approval_id]
        return self.tell(
            ApprovalDecided(
                approval_id=approval_id,
                workflow_id=asked.workflow_id,
                tenant="acme",
                step_id=asked.step_id,
                outcome="approved",
                reviewer="operator:ann",
                content_sha256=asked.content_sha256,
                decided_at=self.at.business,
            )
        )

    def signal(self, type_: str, data: Any = None, event_id: str = "e1") -> Run:
        """An event from outside."""
        return self.tell(
            SignalReceived(
                event_id=event_id,
                workflow_id=self.case.instance.workflow_id,
                tenant="acme",
                type=type_,
                data=data,
                actor="agent:x",
                received_at=self.at.business,
            )
        )

    def control(self, action: str, **changes: Any) -> Run:
        """An operator's act on the case as a whole."""
        return self.act(None, action.upper(), **changes)

    def operate(self, step_id: str, action: str, *, rival: str | None = None, **changes: Any) -> Run:
        """An operator's act on the newest operation of a step."""
        return self.act(self.row(step_id).command_id, action, rival=rival, **changes)

    def act(
        self,
        command_id: str | None,
        action: str,
        *,
        rival: str | None = None,
        corrected: WorkflowDocument | None = None,
        beside: Sequence[str] = (),
        then: Sequence[str] = (),
        **changes: Any,
    ) -> Run:
        """An operator's act; `beside` are acts of others that are taken up with it, in one commit, and `then` those on
        the case as a whole."""
        fold = self._fold()
        self._act(fold, command_id, action, rival=rival, corrected=corrected, **changes)
        for other in beside:
            self._act(fold, command_id, other)
        for other in then:
            self._act(fold, None, other)
        return self._finish(fold)

    def _act(
        self,
        fold: Fold,
        command_id: str | None,
        action: str,
        *,
        rival: str | None = None,
        corrected: WorkflowDocument | None = None,
        **changes: Any,
    ) -> None:
        self.acts += 1
        asked = OperatorCommand(
            **{
                "operator_command_id": f"opc_{self.acts}",
                "tenant": "acme",
                "action": action,
                "performer": "orchestrator",
                "target_kind": "workflow" if command_id is None else "command",
                "target_id": command_id or self.case.instance.workflow_id,
                "workflow_id": self.case.instance.workflow_id,
                "command_id": command_id,
                "actor": "operator:bob",
                "reason": "because",
                "decision_id": "dec_2",
                "deadline_at": self.at.business + timedelta(hours=2),
                "at": self.at.business,
                **changes,
            }
        )
        declaration = None
        if command_id is not None:
            declaration = self.workflow.declarations[fold.at(command_id).operation.command_type]
        version = Workflow(corrected, Expressions(corrected), self.workflow.declarations) if corrected else None
        fold_command(fold, asked, Ground(self.authority, declaration, None, rival, version), asked.operator_command_id)
        if version is not None and fold.workflow is version:
            self.workflow = version

    def verified(self, step_id: str) -> Run:
        """The reconciler saw what a step established."""
        row = self.row(step_id)
        for item in [item for item in self.case.instance.owed if item["command_id"] == row.command_id]:
            self.hear(
                ElementVerified(
                    command_id=row.command_id,
                    workflow_id=row.workflow_id,
                    tenant=row.tenant,
                    system=row.target_system,
                    resource=item["resource"],
                    element=item["element"],
                    phase=Phase.HEALTHY,
                    at=self.at.business,
                )
            )
        return self

    def receipt(
        self, row: JournalRow, status: ReceiptStatus, kind: ErrorClass | None = None, code: str | None = None
    ) -> Receipt:
        """The newest attempt's receipt."""
        sent = status is not ReceiptStatus.NOT_SENT
        confirmed = status is ReceiptStatus.CONFIRMED
        return Receipt(
            command_id=row.command_id,
            workflow_id=row.workflow_id,
            tenant=row.tenant,
            system=row.target_system,
            command_type=row.command_type,
            attempt_id=attempt_id(row.command_id, row.fence),
            fence=row.fence,
            status=status,
            error_class=kind,
            error_code=code,
            started_at=self.at.real,
            sent_at=self.at.real if sent else None,
            ended_at=self.at.real,
            result={"ref": row.command_id} if confirmed else None,
            external_resource_id=row.command_id if confirmed else None,
        )

    # within

    def _fold(self) -> Fold:
        fold = Fold(reload(self.case), self.at, TERMS, workflow=self.workflow)
        fold.foreign = {
            row.command_id: row
            for row in self.world.newest.values()
            if row.workflow_id != self.case.instance.workflow_id
        }
        return fold

    def _progress(self, fold: Fold) -> None:
        for _ in range(50):
            wanted = advance(fold)
            if not wanted:
                return
            for item in wanted:
                key = (fold.instance.tenant, item.key)
                holder = self.world.newest.get(key)
                if holder is not None:  # as this commit leaves it, where it is one of the case's own
                    holder = fold.operations.get(holder.command_id, holder)
                begin(fold, item, self.authority, holder=holder)
                for row in fold.operations.values():
                    if row.idempotency_key == item.key and row.error_code != "identity_in_use":
                        self.world.newest[key] = row
        raise AssertionError("the workflow did not come to rest")

    def _finish(self, fold: Fold) -> Run:
        self._progress(fold)
        for row in list(fold.operations.values()):
            if row.state is OperationState.QUEUED and row.lease_expires_at is None and row.next_retry_at is None:
                self.sequence += 1
                declaration = self.workflow.declarations[row.command_type]
                fold_in(fold.at(row.command_id), Dispatch(self.sequence), declaration, self.authority)
        self._progress(fold)
        decision = seal(fold)
        self.history += decision.events
        for message in (item.message for item in decision.outgoing):
            self._record(message.type, message.data)
        for obligation in (*decision.opened, *decision.changed):
            self.obligations[obligation.obligation_id] = obligation
        self.case = reload(decision.case)
        for row in self.case.operations:
            self.world.newest[row.tenant, row.idempotency_key] = row
        self.check()
        return self

    def _record(self, type_: str, data: bytes) -> None:
        if type_ == "GrantRequest":
            request = GrantRequest.model_validate_json(data)
            self.requests[request.task.operation.command_id] = request
            self.sent.append(request)
        elif type_ == "ApprovalAsked":
            asked = ApprovalAsked.model_validate_json(data)
            self.approvals[asked.approval_id] = asked
            self.sent.append(asked)
        elif type_ == "SettleRequested":
            wanted = SettleRequested.model_validate_json(data)
            self.settling[wanted.operation.command_id] = wanted
        elif type_ == "OperatorCommandEnded":
            ended = OperatorCommandEnded.model_validate_json(data)
            self.ended.setdefault(ended.operator_command_id, ended)
        elif type_ == "CaseChanged":
            self.told.append(data)
        elif type_ == "ExceptionReported":
            self.reports.append(ExceptionReported.model_validate_json(data))

    def check(self) -> None:
        """The laws that hold after every commit."""
        instance, rows = self.case.instance, self.case.operations
        own = [row for row in rows if row.compensates is None]
        undos = [row for row in rows if row.compensates is not None]
        open_undos = [row for row in undos if row.state in IN_FLIGHT or row.proposed or row.state in UNDECIDED]
        assert len(open_undos) <= 1, "one backward step at a time"
        if undos:
            assert not any(row.effect_class is EffectClass.PIVOT and self.world.standing[row.command_id] for row in own)
            assert not any(row.state in IN_FLIGHT or row.state in UNDECIDED or row.proposed for row in own), (
                "nothing runs backward beside what is in flight or unknown"
            )
        if instance.status is InstanceStatus.HUMAN_TAKEOVER and not any(
            row.state in IN_FLIGHT or row.state in UNDECIDED or row.proposed for row in rows
        ):
            assert self.case.obligations, "a person's case is an exception with an owner"
        if instance.status in INSTANCE_TERMINAL:
            assert not any(row.state in IN_FLIGHT or row.state in UNDECIDED or row.proposed for row in rows)
            assert not instance.owed or instance.status is InstanceStatus.SAFE_STOPPED
            assert instance.closed_at is not None and instance.wake_at is None
        if instance.status is InstanceStatus.WAITING:
            assert instance.wait and instance.wait["owner"] and instance.wait["deadline"], "no wait without an owner"
            assert instance.wake_at is not None
        assert all(row.deadline_at and row.owner for row in self.case.obligations)
        assert verify(self.history) is None


def start_message(
    doc: WorkflowDocument,
    number: int = 1,
    *,
    at: At = START,
    actions_max: int = 20,
    data: dict[str, Any] | None = None,
    tenant: str = "acme",
) -> StartWorkflow:
    """An accepted start."""
    workflow = derived_id("wf", tenant, "flow", number)
    content = data or {"id": "7"}
    mandate = Mandate(
        mandate_id=derived_id("man", workflow),
        tenant=tenant,
        subject="agent:publisher",
        decision_id=derived_id("dec", workflow),
        capability_id=derived_id("cap", workflow),
        command_types=doc.command_types,
        system="*",
        resource="*",
        effect_class_max=EffectClass.IRREVERSIBLE,
        effects_max=actions_max,
        document_sha256=doc.sha256,
        risk=RiskLevel.LOW,
        policy_sha256="0" * 64,
        expires_at=at.business + timedelta(days=8),
    )
    return StartWorkflow(
        workflow_id=workflow,
        saga_id=derived_id("saga", workflow),
        tenant=tenant,
        definition=doc.name,
        version=doc.version,
        document_sha256=doc.sha256,
        document=doc.dumped(),
        declarations={name: item.sha256 for name, item in DECLARATIONS.items()},
        mandate=mandate,
        input=content,
        input_sha256=digest(content),
        start_key=f"start-{number}",
        request_fingerprint=digest([doc.name, content]),
        actions_max=actions_max,
        deadline_at=at.business + doc.lifetime,
        accepted_at=at.business,
    )
