"""Decisions: what governance says of an intent, with the whole trace, and taking it back."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import new_id
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.workflow import NAME_PATTERN
from trueup_common.runtime.tracing import trace_id_of
from trueup_gateway.api import approvals
from trueup_gateway.api.acts import authorization_body
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    OpenBody,
    acts_reader_of,
    answer,
    caller_of,
    found,
    not_found,
    object_id,
    optional_key,
    read_model,
    reader_of,
)
from trueup_gateway.api.intents import Intent, declarations_of, workflow_intent
from trueup_gateway.api.route import BODY, READ, LeanRoute, key_parameter, path_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.artifact import check_evidence, named_in
from trueup_gateway.core.offers import Asked
from trueup_gateway.core.policy import Question
from trueup_gateway.core.questions import offering, summary_of
from trueup_gateway.core.records import CapabilityRow, DecisionRow, RevocationRow
from trueup_gateway.core.refusal import Refused, forbidden, invalid
from trueup_gateway.core.risk import Circumstances, assess, effect_class_max
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

DECISION_SECONDS: Final = 3600
KEYS: Final = ("idempotency-key-invalid", "idempotency-key-reused", "idempotency-in-flight")
HISTORY_COUNT: Final = 100
FAILURES: Final = frozenset({"FAILED", "CONFLICT", "NEEDS_REVIEW", "DEAD_LETTERED"})
WATCHED_SECONDS: Final = 31 * 86400
"""How long a revocation is watched: longer than any mandate can live."""

Text = Annotated[str, Field(min_length=1, max_length=300)]
Resource = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^(\*|[^\s\x00-\x1f*]+(/\*)?)$")]
CommandId = Annotated[str, Field(pattern=r"^cmd_[0-9a-f]{32}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ActionWanted(Body):
    """What shall be done: commands of these types, or a workflow, which brings its own types."""

    command_types: list[Text] = Field(default=[], max_length=100)
    workflow: Annotated[str, Field(pattern=NAME_PATTERN)] | None = Field(
        default=None, description="The workflow to start; `command_types` may be empty then."
    )
    version: int | None = Field(
        default=None, ge=1, strict=True, description="Of the workflow; left out, the newest that is not retired."
    )


class ResourceWanted(Body):
    """On what. `x/*` covers x and everything below.

    For a workflow `system` is `workflow` or `*` (`resource` is then a pattern over the business object, `type/id`), or
    one of its systems, whose effects it restricts.
    """

    system: Text
    resource: Resource


class Evidence(Body):
    """What the intent rests on."""

    kind: Text
    ref: Annotated[str, Field(max_length=500)] | None = None
    sha256: Digest | None = None
    observed_at: Timestamp | None = Field(default=None, description="When it was observed: fresh evidence lowers risk.")


class ContextWanted(Body):
    """What the decision shall be bound to."""

    payload_sha256: Digest | None = None
    expected_version: Text | None = None
    supersedes: CommandId | None = Field(
        default=None,
        description="The ended command that a repair takes the place of; the decision covers nothing else.",
    )


class DecisionRequest(Body):
    """An intent."""

    action: ActionWanted
    resource: ResourceWanted | None = Field(default=None, description="May be left out for a workflow: everything.")
    purpose: Annotated[str, Field(min_length=1, max_length=2000)]
    evidence: list[Evidence] = Field(default=[], max_length=100)
    context: ContextWanted = ContextWanted()
    agent_version: Text | None = None


class RiskAnswer(Body):
    """A deterministic risk."""

    score: int = Field(ge=0, le=100)
    level: str


class PolicyAnswer(Body):
    """The policy set that decided."""

    version: int
    sha256: str


class DecisionAnswer(Body):
    """What governance says."""

    decision_id: str
    outcome: str = Field(description="`approved`, `denied` or `approval_required`")
    risk: RiskAnswer
    policy: PolicyAnswer
    determining_policies: list[str]
    obligations: list[dict[str, Any]]
    approval_id: str | None
    expires_at: str


class DecisionTrace(DecisionAnswer):
    """A decision with everything it rests on."""

    subject: str
    tenant: str
    roles: list[str]
    agent_version: str | None
    action: dict[str, Any]
    resource: dict[str, Any]
    purpose: str
    evidence: list[dict[str, Any]]
    context: dict[str, Any]
    risk_factors: list[dict[str, Any]]
    risks: dict[str, dict[str, Any]]
    declarations: dict[str, str]
    effect_class_max: str
    policy_errors: list[str]
    trace_id: str | None
    created_at: str
    revoked_at: str | None
    revoked_by: str | None
    revocation_reason: str | None


class RevocationRequest(Body):
    """Why."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class RevocationAnswer(OpenBody):
    """What was revoked."""

    id: str
    revoked_at: str
    revoked_by: str
    reason: str


async def _intent(gateway: Gateway, tx: GatewayTransaction, tenant: str, wanted: DecisionRequest) -> Intent:
    """What the request is about. Raises Refused."""
    action, resource = wanted.action, wanted.resource
    if action.workflow is not None:
        where = (resource.system, resource.resource) if resource is not None else None
        return await workflow_intent(gateway, tx, tenant, action.workflow, action.version, action.command_types, where)
    missing = [
        (pointer, "is needed where no workflow is named")
        for pointer, present in (("/action/command_types", bool(action.command_types)), ("/resource", bool(resource)))
        if not present
    ]
    if action.version is not None:
        missing.append(("/action/version", "is the version of a workflow"))
    if missing or resource is None:
        raise invalid(missing)
    declarations = declarations_of(gateway, tenant, action.command_types, resource.system)
    return Intent(tuple(declarations), resource.system, resource.resource)


async def _check_evidence(tx: GatewayTransaction, caller: Caller, wanted: DecisionRequest) -> None:
    """Raise Refused where evidence names an artifact that the caller may not read, or has another hash."""
    told = [(item.ref, item.sha256) for item in wanted.evidence]
    names = named_in(told)
    rows = await tx.hold_artifacts([caller.tenant] * len(names), names) if names else []
    check_evidence(told, rows, of=roles.only_own(caller.roles, caller.subject))


async def create(request: Request) -> Response:
    """Ask for a decision on an intent: its risk is assessed, policy is evaluated, and the whole trace is kept."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    wanted = await read_model(request, gateway, DecisionRequest)
    trace_id = trace_id_of(request.scope.get("trueup.traceparent"))
    key = optional_key(request)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        await _check_evidence(tx, caller, wanted)
        intent = await _intent(gateway, tx, caller.tenant, wanted)
        row = await _decide(gateway, tx, caller, wanted, intent, trace_id)
        drifts = await tx.drifts_offering(row.tenant, row.supersedes) if row.repair and row.supersedes else []
        declared = {item.type: item for item in intent.declarations}
        row = await approvals.ask(tx, row, summary_of(row, declared, offering(row, drifts)))
        return 201, _answer(row)

    if key is not None:  # asked again under its key, it is the same decision, and its approval the same question
        return await once(gateway, caller, key, {"call": "decision", **wanted.model_dump(mode="json")}, act)
    async with gateway.store.transaction() as tx:
        status, body = await act(tx)
    return answer(body, status, {"Location": f"/v1/decisions/{body['decision_id']}"})


async def _decide(  # noqa: PLR0917 - everything that one decision rests on
    gateway: Gateway,
    tx: GatewayTransaction,
    caller: Caller,
    wanted: DecisionRequest,
    intent: Intent,
    trace_id: str | None,
) -> DecisionRow:
    now = (await tx.moment()).business
    rules = await gateway.rules.at(tx, await tx.epoch())
    circumstances = await _circumstances(tx, caller, wanted, now)
    repair = await _mends(gateway, tx, caller, wanted, intent)
    risk, risks = assess(intent.declarations, circumstances), intent.risks(circumstances)
    judgement = intent.judge(
        Question(
            subject=caller.subject,
            tenant=caller.tenant,
            roles=caller.roles,
            action="execute",
            command_type="",
            effect_class=effect_class_max(intent.declarations),
            target_tenant=caller.tenant,
            system=intent.system,
            resource=intent.resource,
            risk_score=risk.score,
            risk_level=risk.level,
            repair=repair,
        ),
        rules,
        risks,
    )
    document = intent.workflow.document if intent.workflow is not None else None
    return DecisionRow(
        decision_id=new_id("dec"),
        tenant=caller.tenant,
        subject=caller.subject,
        roles=list(caller.roles),
        agent_version=wanted.agent_version,
        command_types=[declaration.type for declaration in intent.declarations],
        workflow=document.name if document is not None else None,
        definition_version=document.version if document is not None else None,
        document_sha256=document.sha256 if document is not None else None,
        system=intent.system,
        resource=intent.resource,
        purpose=wanted.purpose,
        evidence=[item.model_dump(mode="json", exclude_none=True) for item in wanted.evidence],
        payload_sha256=wanted.context.payload_sha256,
        expected_version=wanted.context.expected_version,
        supersedes=wanted.context.supersedes,
        repair=repair,
        declarations={declaration.type: declaration.sha256 for declaration in intent.declarations},
        effect_class_max=effect_class_max(intent.declarations),
        outcome=judgement.outcome,
        risk_score=risk.score,
        risk_level=risk.level,
        risk_factors=list(risk.factors),
        risks={name: {"score": score, "level": level.value} for name, (score, level) in risks.items()},
        policy_version=rules.version,
        policy_sha256=rules.policy_sha256,
        determining_policies=list(judgement.policies),
        policy_errors=list(judgement.errors),
        obligations=list(judgement.obligations),
        trace_id=trace_id,
        created_at=now,
        expires_at=now + timedelta(seconds=DECISION_SECONDS),
    )


async def _circumstances(
    tx: GatewayTransaction, caller: Caller, wanted: DecisionRequest, now: datetime
) -> Circumstances:
    """What raises or lowers the risk beside the intent itself."""
    incidents, states = await tx.circumstances(caller.tenant, caller.subject, HISTORY_COUNT)
    return Circumstances(
        evidence_ages=tuple(_age(item.observed_at, now) for item in wanted.evidence),
        open_incidents=incidents,
        recent_commands=len(states),
        recent_failures=sum(state in FAILURES for state in states),
    )


async def _mends(
    gateway: Gateway, tx: GatewayTransaction, caller: Caller, wanted: DecisionRequest, intent: Intent
) -> bool:
    """True where the intent is what an open exception offers to mend a command: its object, its type and its very
    payload. Naming some command that ended makes nothing a repair, and a repairer brings no content of its own.

    Raises Refused, for a repairer, where nothing like it is offered: the offer may still be on its way.
    """
    supersedes = wanted.context.supersedes
    view = await tx.command_of(caller.tenant, supersedes) if supersedes is not None else None
    if view is None or supersedes is None or intent.workflow is not None:
        return False
    declaration = gateway.catalog.declaration(view.row.declaration_sha256)
    types = {view.row.command_type, *(item.command_type for item in (declaration.repairs() if declaration else ()))}
    place = (view.row.target_system, view.row.target_resource)
    asked = Asked(
        types=tuple(item.type for item in intent.declarations),
        place=(intent.system, intent.resource),
        payload_sha256=wanted.context.payload_sha256,
    )
    if not asked.fits(types, place):
        return False
    if any(asked.is_offered(offer) for offer in await tx.repairs_offered(caller.tenant, supersedes)):
        return True
    if roles.may(caller.roles, roles.REPAIR):
        detail = "No open exception is known here (yet) that offers exactly this in the place of the command."
        raise Refused("unavailable", detail, retry_after_seconds=1)
    return False


def _age(observed_at: datetime | None, now: datetime) -> float | None:
    return None if observed_at is None else max(0.0, (now - observed_at).total_seconds())


def _answer(row: DecisionRow) -> dict[str, Any]:
    return {
        "decision_id": row.decision_id,
        "outcome": row.outcome,
        "risk": {"score": row.risk_score, "level": row.risk_level.value},
        "policy": {"version": row.policy_version, "sha256": row.policy_sha256},
        "determining_policies": row.determining_policies,
        "obligations": row.obligations,
        "approval_id": row.approval_id,
        "expires_at": rfc3339(row.expires_at),
    }


async def read(request: Request) -> Response:
    """Read a decision with its whole trace: subject, evidence, risk with its factors, policy, obligations.

    The authorization decisions behind approvals and operator commands are read here as well, where they are the
    caller's own or the caller sees what people did.
    """
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    decision_id = object_id(request, "decision_id", "dec")
    row = await gateway.reads.decision(reader, decision_id)
    if row is None:
        return answer(authorization_body(found(await gateway.reads.authorization(acts_reader_of(caller), decision_id))))
    kept = row.model_dump(mode="json")
    document = {"version": row.definition_version, "document_sha256": row.document_sha256} if row.workflow else {}
    names = (
        "subject",
        "tenant",
        "roles",
        "agent_version",
        "purpose",
        "evidence",
        "risk_factors",
        "risks",
        "declarations",
        "effect_class_max",
        "policy_errors",
        "trace_id",
        "created_at",
        "revoked_at",
        "revoked_by",
        "revocation_reason",
    )
    return answer(
        {
            **_answer(row),
            **{name: kept[name] for name in names},
            "action": {"command_types": row.command_types, "workflow": row.workflow, **document},
            "resource": {"system": row.system, "resource": row.resource},
            "context": {
                "payload_sha256": row.payload_sha256,
                "expected_version": row.expected_version,
                "supersedes": row.supersedes,
            },
        }
    )


async def revoke(request: Request) -> Response:
    """Revoke a decision: every capability and mandate under it loses its authority at once."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    decision_id = object_id(request, "decision_id", "dec")
    wanted = await read_model(request, gateway, RevocationRequest)
    async with gateway.store.transaction() as tx:
        row = await tx.decision(decision_id, lock=True)
        revoked = await take_back(tx, caller, row, "decision", decision_id, wanted.reason)
    gateway.governance_changed()
    return answer(revoked)


async def take_back(  # noqa: PLR0917 - one row and what is to be recorded about it
    tx: GatewayTransaction,
    caller: Caller,
    row: DecisionRow | CapabilityRow | None,
    kind: str,
    object_name: str,
    reason: str,
) -> dict[str, Any]:
    """Revoke a locked decision or capability once; a repetition answers with the first revocation. Raises Refused."""
    if row is None or row.tenant != caller.tenant:
        raise not_found()
    if not roles.may(caller.roles, roles.REVOKE_TENANT) and not (
        roles.may(caller.roles, roles.REVOKE_OWN) and caller.subject == row.subject
    ):
        raise forbidden("role", f"This needs one of the roles {roles.needed(roles.REVOKE_TENANT)}.")
    at, by, why = row.revoked_at, row.revoked_by, row.revocation_reason
    if at is None:
        at, by, why = (await tx.moment()).business, caller.subject, reason
        revocation = RevocationRow(
            kind=kind,
            id=object_name,
            tenant=caller.tenant,
            reason=reason,
            revoked_by=caller.subject,
            revoked_at=at,
            expires_at=at + timedelta(seconds=WATCHED_SECONDS),
            epoch=await tx.next_epoch(),
        )
        await tx.revoke(revocation)
    return {"id": object_name, f"{kind}_id": object_name, "revoked_at": rfc3339(at), "revoked_by": by, "reason": why}


_ID: Final = path_parameter("decision_id", "The decision.", "dec_00000000000000000000000000000000")

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/decisions",
        create,
        tag="decisions",
        summary="Ask for a decision",
        answers={201: ("The decision, whatever its outcome", DecisionAnswer)},
        body=DecisionRequest,
        example={
            "action": {"command_types": ["wordpress.create_draft"], "workflow": None},
            "resource": {"system": "wordpress", "resource": "post/*"},
            "purpose": "publish article 0028",
            "evidence": [{"kind": "quality_gate", "ref": "gate-0028"}],
            "context": {"payload_sha256": None, "expected_version": None},
        },
        parameters=(key_parameter("decide-0028", required=False),),
        problems=("tenant-invalid", "forbidden", "unknown-command-type", "unknown-system", *KEYS, *BODY),
    ),
    route(
        "GET",
        "/v1/decisions/{decision_id}",
        read,
        tag="decisions",
        summary="Read a decision with its trace",
        answers={200: ("The decision with its trace", DecisionTrace)},
        parameters=(_ID,),
        problems=READ,
    ),
    route(
        "POST",
        "/v1/decisions/{decision_id}/revoke",
        revoke,
        tag="decisions",
        summary="Revoke a decision",
        answers={200: ("It is revoked", RevocationAnswer)},
        body=RevocationRequest,
        example={"reason": "the article was withdrawn"},
        parameters=(_ID,),
        problems=(*READ, *BODY),
    ),
]
