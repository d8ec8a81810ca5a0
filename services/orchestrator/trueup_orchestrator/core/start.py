"""Starting a case: the checks that admit a command, and its way from RECEIVED into the queue in one commit."""

from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration, identified
from trueup_common.contracts.events import Mandate, StartCase
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.pointer import Absent, resolve
from trueup_common.contracts.resource import covers
from trueup_common.contracts.states import EFFECT_CLASS_RANK, EffectClass, ErrorClass, InstanceStatus, OperationState
from trueup_orchestrator.core.case import Authority, Case, Moment, Terms
from trueup_orchestrator.core.due import fold_cancel
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.launch import wake_when_too_late
from trueup_orchestrator.core.operation import Trigger
from trueup_orchestrator.core.success import desired_of, document

COMMAND_VERSION: Final = 1
COMMAND_SHA256: Final = digest({"definition": "command", "version": COMMAND_VERSION})
"""The identity of the implicit document of a single command."""

IDENTITY_IN_USE: Final = "identity_in_use"


def identity_of(declaration: CommandDeclaration, target: dict[str, Any], payload: Any) -> str | None:
    """The business identity that the type declares, or None where only the key counts."""
    if not declaration.identity:
        return None
    known, values = identified(declaration, target, payload), list[Any]()
    for pointer in declaration.identity:
        try:
            values.append(resolve(known, pointer))
        except Absent:
            values.append(None)
    return digest(values)


def refusal(
    message: StartCase, declaration: CommandDeclaration | None, authority: Authority, moment: Moment
) -> tuple[str, str] | None:
    """None where the mandate admits the command; else (code, reason)."""
    mandate: Mandate = message.mandate
    target = message.target
    if declaration is None or declaration.type != message.command_type:
        return "declaration_unknown", f"no declaration {message.declaration_sha256} of {message.command_type}"
    highest = EFFECT_CLASS_RANK[mandate.effect_class_max]
    missing = declaration.expected_version == "required" and target.expected_version is None
    checks = (
        ("revoked", authority.revoked is None, authority.revoked or ""),
        ("mandate_tenant", mandate.tenant == message.tenant, "the mandate is of another tenant"),
        ("mandate_command_type", message.command_type in mandate.command_types, "the mandate does not name the type"),
        ("mandate_effects", mandate.effects_max >= 1, "the mandate allows no effect"),
        ("mandate_effect_class", EFFECT_CLASS_RANK[declaration.effect_class] <= highest, "above the mandate's class"),
        ("mandate_system", mandate.system == target.system == declaration.system, "another system than the mandate's"),
        ("mandate_resource", covers(mandate.resource, target.resource), "the mandate does not cover the resource"),
        ("mandate_expired", mandate.expires_at > moment.business, "the mandate's lifetime is over"),
        ("payload_invalid", not missing, "this type requires an expected version"),
    )
    return next(((code, reason) for code, holds, reason in checks if not holds), None)


def _rows(
    message: StartCase,
    declaration: CommandDeclaration | None,
    moment: Moment,
    *,
    identity: str | None,
    traceparent: str | None,
    reply_to: str | None,
) -> Case:
    now, mandate, target = moment.business, message.mandate, message.target
    effect_class = declaration.effect_class if declaration else EffectClass.READ
    known = document({"system": target.system, "resource": target.resource}, message.payload, message.command_id)
    row = JournalRow(
        command_id=message.command_id,
        tenant=message.tenant,
        workflow_id=message.workflow_id,
        saga_id=message.saga_id,
        step_id="command",
        state_version=0,
        execution_id=message.workflow_id,
        supersedes=message.supersedes,
        decision_id=mandate.decision_id,
        capability_id=mandate.capability_id,
        mandate_id=mandate.mandate_id,
        command_type=message.command_type,
        declaration_sha256=message.declaration_sha256,
        effect_class=effect_class,
        risk=mandate.risk,
        target_system=target.system,
        target_resource=target.resource,
        expected_version=target.expected_version,
        payload=message.payload,
        payload_sha256=message.payload_sha256,
        payload_ref=message.payload_ref,
        idempotency_key=message.idempotency_key,
        identity=identity,
        request_fingerprint=message.request_fingerprint,
        state=OperationState.RECEIVED,
        desired_state=desired_of(declaration, known) if declaration else None,
        created_at=message.accepted_at,
        last_transition_at=now,
        deadline_at=message.deadline_at,
        compensation_command=declaration.compensation.command_type
        if declaration and declaration.compensation
        else None,
        correlation_id=message.correlation_id,
        trace_id=message.trace_id,
        traceparent=traceparent,
        reply_to=reply_to,
    )
    instance = InstanceRow(
        workflow_id=message.workflow_id,
        saga_id=message.saga_id,
        tenant=message.tenant,
        definition=message.definition,
        version=COMMAND_VERSION,
        sha256=COMMAND_SHA256,
        status=InstanceStatus.RUNNING,
        state_version=0,
        object_type=target.system,
        object_id=target.resource,
        subject=mandate.subject,
        mandate=mandate.model_dump(mode="json"),
        created_at=message.accepted_at,
        deadline_at=message.deadline_at,
        correlation_id=message.correlation_id,
        trace_id=message.trace_id,
    )
    return Case(instance, (row,))


def start(
    message: StartCase,
    declaration: CommandDeclaration | None,
    authority: Authority,
    moment: Moment,
    terms: Terms,
    *,
    identity: str | None = None,
    holder: str | None = None,
    cause: str | None = None,
    traceparent: str | None = None,
    reply_to: str | None = None,
    is_late: bool = False,
) -> Fold:
    """A new case, folded up to the queue or to its refusal. `holder` is the command that has the key or identity;
    `is_late`: what this command would take the place of is taken back by its own case."""
    free = identity if holder is None and not is_late else None
    case = _rows(message, declaration, moment, identity=free, traceparent=traceparent, reply_to=reply_to)
    fold = Fold(case, moment, terms, created=True)
    fold.note(
        "CaseStarted",
        actor=message.mandate.subject,
        at=message.accepted_at,
        cause=cause,
        command_type=message.command_type,
        system=message.target.system,
        resource=message.target.resource,
        expected_version=message.target.expected_version,
        idempotency_key=message.idempotency_key,
        payload_sha256=message.payload_sha256,
        declaration_sha256=message.declaration_sha256,
        decision_id=message.mandate.decision_id,
        mandate_id=message.mandate.mandate_id,
    )
    fold.move(Trigger.TAKE_UP)
    refused = refusal(message, declaration, authority, moment)
    if refused is not None:
        code, reason = refused
        fold.fail(Trigger.REFUSE, ErrorClass.PERMANENT, code, reason)
    elif holder is not None:
        detail = f"{holder} already holds this key or business identity"
        fold.fail(Trigger.CONFLICT, ErrorClass.BUSINESS, IDENTITY_IN_USE, detail, human_review_required=True)
    elif is_late:
        reason = f"{message.supersedes} is being taken back, or was: nothing of it is put there again"
        fold_cancel(fold, reason=reason, actor=SOURCE, cause=cause)
    elif declaration is not None:
        fold.move(Trigger.ADMIT)
        fold.move(Trigger.ENQUEUE, wake_at=wake_when_too_late(fold.operation, declaration))
    return fold
