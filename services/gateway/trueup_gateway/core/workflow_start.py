"""Starting a workflow: what a start key stands for, what a capability lets start, and the rows of a new case.

A start key names one case at a time. While it is open, or where its end shall be returned, repetitions get it; a
revision takes the key over once the case before it is over.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import Mandate, StartWorkflow
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import InstanceRow
from trueup_common.contracts.resource import covers
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.contracts.workflow import StepState, WorkflowDocument
from trueup_gateway.core.acceptance import Standing, check_capability
from trueup_gateway.core.projection import case_view
from trueup_gateway.core.records import EdgeRow, MandateRow
from trueup_gateway.core.refusal import Refused, forbidden
from trueup_gateway.core.risk import effect_class_max
from trueup_gateway.core.view_records import CaseView

REVISE: Final = "revise"
EVERYTHING: Final = "*"
OBJECT: Final = "workflow"
OBJECTS: Final = frozenset({OBJECT, EVERYTHING})
"""The `system` of a decision whose resource is a pattern over the business object of the case (`type/id`)."""
_OBJECT_ID: Final = re.compile(r"[^\s\x00-\x1f*]{1,300}")
KEY_LIFETIME_SECONDS: Final = 400 * 86400
"""Longer than a case may live: while it runs, its key stands for it."""
MESSAGE_BYTES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One request that passed every check that needs no row. Ids are made with it; `system` … are the capability's."""

    tenant: str
    key: str
    fingerprint: str
    capability_id: str
    system: str
    resource: str
    payload_sha256: str | None
    expected_version: str | None
    definition: str
    version: int | None
    input: Any
    input_sha256: str
    actions_max: int
    on_terminal: str
    workflow_id: str
    saga_id: str
    purpose: str | None = None
    source_version: str | None = None
    stage: str = "live"
    correlation_id: str | None = None
    traceparent: str | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Existing:
    """The case that a start key stands for; `command` where that is a single command, which no start can get."""

    fingerprint: str
    workflow_id: str
    saga_id: str
    status: InstanceStatus
    revision: int
    version: int
    command: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What would run: the document, its object, and the declarations of its types and of what undoes them."""

    document: WorkflowDocument
    object_id: str
    declarations: Mapping[str, CommandDeclaration]

    @property
    def forward(self) -> list[CommandDeclaration]:
        """The declarations of the document's own command types."""
        return [self.declarations[name] for name in self.document.command_types]


@dataclass(frozen=True, slots=True)
class Governance:
    """Governance as it stands in the same transaction. `frozen` names what holds an effect back."""

    now: datetime
    policy_sha256: str
    frozen: Callable[[Mapping[str, Any]], str | None]
    permitted: Callable[[Standing, Plan], bool]


@dataclass(frozen=True, slots=True)
class NewWorkflow:
    """Everything that one start stores and sends; `data` is its message, `revises` the case whose key it takes over."""

    edge: EdgeRow
    mandate: MandateRow
    view: CaseView
    start: StartWorkflow
    data: bytes
    capability_id: str
    revises: str | None


def is_object_id(name: str) -> bool:
    """True for what can stand in a resource: no blanks, no control characters, no pattern."""
    return _OBJECT_ID.fullmatch(name) is not None


def is_replay(request: StartRequest, existing: Existing) -> bool:
    """True where the key's case is the answer, False where a revision is wanted and due. Raises Refused."""
    if not existing.command and existing.status in INSTANCE_TERMINAL and request.on_terminal == REVISE:
        return False
    if existing.command or existing.fingerprint != request.fingerprint:
        raise Refused("idempotency-key-reused", "This key stands for another request.")
    return True


def check_authority(request: StartRequest, standing: Standing | None, now: datetime) -> Standing:
    """The capability as it stands. Raises Refused where it does not, or is for something else than this workflow."""
    if standing is None or standing.tenant != request.tenant:
        raise forbidden("revoked", "The capability is not known here.")
    check_capability(standing, now)
    if standing.decision.workflow != request.definition:
        raise forbidden("scope", "The capability does not let this workflow start.")
    return standing


def check_start(request: StartRequest, standing: Standing, plan: Plan, rules: Governance) -> None:
    """What a start and its repetition must fit besides, except the number of uses. Raises Refused."""
    decision, document = standing.decision, plan.document
    if decision.document_sha256 != document.sha256:
        detail = f"Version {decision.definition_version} was decided on, and this is version {document.version}."
        raise forbidden("decision", detail)
    if request.system in OBJECTS and not covers(request.resource, f"{document.object.type}/{plan.object_id}"):
        raise forbidden("resource", "The capability does not cover the business object of this case.")
    if request.payload_sha256 is not None and request.payload_sha256 != request.input_sha256:
        raise forbidden("payload_hash", "The capability is bound to another input.")
    if request.expected_version is not None and request.expected_version != request.source_version:
        raise forbidden("resource_version", "The capability is bound to another source version.")
    if not rules.permitted(standing, plan):
        raise forbidden("policy", "The policy in force no longer permits this.")
    holder = next((found for fields in _fields(request, plan) if (found := rules.frozen(fields)) is not None), None)
    if holder is not None:
        raise forbidden("frozen", f"A freeze ({holder}) holds this back.")


def check_uses(standing: Standing, taken: int) -> None:
    """Raise Refused where the capability has no use left besides those that were taken since it was read."""
    if taken >= standing.uses_left:
        raise forbidden("uses", "The capability has no uses left.")


def _fields(request: StartRequest, plan: Plan) -> list[dict[str, Any]]:
    """What freezes are compared with: one entry per command type, or the bare workflow where it runs none."""
    common = {
        "tenant": request.tenant,
        "definition": plan.document.name,
        "version": plan.document.version,
    }
    return [{**common, "system": item.system, "command_type": item.type} for item in plan.forward] or [common]


def new_workflow(
    request: StartRequest, standing: Standing, plan: Plan, rules: Governance, revises: Existing | None
) -> NewWorkflow:
    """All rows of an accepted start and its message, under a mandate as wide as the document. Raises Refused."""
    deadline_at = rules.now + plan.document.lifetime
    mandate = _mandate(request, standing, plan, rules, deadline_at)
    carried = Mandate(**{name: getattr(mandate, name) for name in Mandate.model_fields})
    start = _start(request, plan, carried, rules.now, deadline_at, revises)
    data = json_bytes(start)
    if len(data) >= MESSAGE_BYTES_MAX:
        raise Refused("too-large", f"Document and input together come to {MESSAGE_BYTES_MAX} bytes or more.")
    edge = EdgeRow(
        tenant=request.tenant,
        key=request.key,
        fingerprint=request.fingerprint,
        command_id="",
        workflow_id=request.workflow_id,
        saga_id=request.saga_id,
        capability_id=request.capability_id,
        created_at=rules.now,
        expires_at=rules.now + timedelta(seconds=KEY_LIFETIME_SECONDS),
    )
    return NewWorkflow(
        edge=edge,
        mandate=mandate,
        view=_view(start, plan, standing.subject),
        start=start,
        data=data,
        capability_id=request.capability_id,
        revises=revises.workflow_id if revises is not None else None,
    )


def _mandate(
    request: StartRequest, standing: Standing, plan: Plan, rules: Governance, deadline_at: datetime
) -> MandateRow:
    decision, document = standing.decision, plan.document
    limited = request.system not in OBJECTS
    return MandateRow(
        mandate_id=derived_id("man", request.workflow_id),
        tenant=request.tenant,
        subject=standing.subject,
        decision_id=decision.decision_id,
        capability_id=request.capability_id,
        command_types=list(document.command_types),
        system=EVERYTHING,
        resource=EVERYTHING,
        effect_class_max=effect_class_max(plan.forward),
        effects_max=request.actions_max,
        document_sha256=document.sha256,
        approval_id=decision.approval_id if decision.approved_at is not None else None,
        risk=decision.risk_level,
        policy_sha256=rules.policy_sha256,
        agent_version=decision.agent_version,
        expires_at=deadline_at,
        workflow_id=request.workflow_id,
        definition=document.name,
        version=document.version,
        declarations={name: item.sha256 for name, item in plan.declarations.items()},
        within_system=request.system if limited else None,
        within_resource=request.resource if limited else None,
        created_at=rules.now,
    )


def _start(  # noqa: PLR0917 - everything that one start is made of
    request: StartRequest,
    plan: Plan,
    mandate: Mandate,
    now: datetime,
    deadline_at: datetime,
    revises: Existing | None,
) -> StartWorkflow:
    return StartWorkflow(
        workflow_id=request.workflow_id,
        saga_id=request.saga_id,
        tenant=request.tenant,
        definition=plan.document.name,
        version=plan.document.version,
        document_sha256=plan.document.sha256,
        document=plan.document.dumped(),
        declarations={name: item.sha256 for name, item in plan.declarations.items()},
        mandate=mandate,
        input=request.input,
        input_sha256=request.input_sha256,
        start_key=request.key,
        request_fingerprint=request.fingerprint,
        purpose=request.purpose,
        source_version=request.source_version,
        stage=request.stage,
        on_terminal=request.on_terminal,
        actions_max=request.actions_max,
        parent_id=revises.workflow_id if revises is not None else None,
        revision=revises.revision + 1 if revises is not None else 1,
        deadline_at=deadline_at,
        correlation_id=request.correlation_id,
        trace_id=request.trace_id,
        accepted_at=now,
    )


def _view(start: StartWorkflow, plan: Plan, subject: str) -> CaseView:
    """What is shown of a case until the orchestrator tells of it; anything it tells is newer."""
    document = plan.document
    shared = {name: getattr(start, name) for name in InstanceRow.model_fields if name in StartWorkflow.model_fields}
    instance = InstanceRow.model_validate(
        {
            **shared,
            "sha256": document.sha256,
            "status": InstanceStatus.RUNNING,
            "state_version": 0,
            "object_type": document.object.type,
            "object_id": plan.object_id,
            "subject": subject,
            "mandate": start.mandate.model_dump(mode="json"),
            "input": None,
            "steps": [
                StepState(id=step.id, kind=step.kind, command_type=step.command).model_dump(mode="json")
                for step in document.steps
            ],
            "created_at": start.accepted_at,
        }
    )
    return case_view(instance, ())
