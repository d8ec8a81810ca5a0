"""Approvals: what a person is asked, and the one answer that counts. The row arbitrates; a 200 is the truth."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.ids import new_id
from trueup_gateway.api.acts import authorize, send_soon, telling
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    answer,
    caller_of,
    found,
    idempotency_key,
    listing,
    object_id,
    page_of,
    query,
    read_model,
    reader_of,
    require,
)
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, key_parameter, path_parameter, query_parameter, route
from trueup_gateway.core import approval as rules
from trueup_gateway.core import roles
from trueup_gateway.core.anomalies import NONCE_REUSE
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.questions import exception_of, intent_of, plan_of
from trueup_gateway.core.records import CallRow, DecisionRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.withholding import shown
from trueup_gateway.store import GatewayTransaction, KeyTaken, Reader
from trueup_gateway.tokens import Caller, new_nonce

OWNER: Final = "approvers"


class ApprovalAnswer(OpenBody):
    """What exactly is to be approved, by whom it was asked, and how it ended."""

    approval_id: str
    kind: str = Field(description="`workflow`: a step of a case asks; `decision`: an intent needs approval first")
    status: str = Field(description="`pending`, `approved`, `rejected`, `expired` or `superseded`")
    scope: str = Field(description="What a scope of the reviewer's token must cover")
    content_sha256: str = Field(description="What exactly is approved; send it back with the decision")
    nonce: str | None = Field(description="One-time; send it back with the decision. Null for agents")
    binds: list[Any] = Field(description="The values behind the hash")
    summary: dict[str, Any] = Field(
        description="What a person reads before they answer. Of an intent also `risk_factors`, `effect_class` and what "
        "takes it back (`taken_back_by`, by command type), and what bounds it (`binds`): its `payload`, or one of its "
        "`uses`, which lets one effect happen on the resource, whatever its content. Of a repair also the `payload` "
        "behind `content_sha256`, and the `drift` that it is for: element, desired, observed"
    )
    repair: dict[str, Any] | None = Field(
        default=None, description="Of a repair: its plan, as far as the planner has told it (null for a moment)"
    )
    workflow_id: str | None
    saga_id: str | None
    step_id: str | None
    subject_decision_id: str | None = Field(description="The decision that an approval of kind `decision` makes usable")
    definition: str | None
    version: int | None
    document_sha256: str | None
    state_version: int
    requested_by: str
    owner: str
    backup_owner: str | None
    asked_at: str
    expires_at: str
    reviewer: str | None
    decision: str | None
    reason: str | None
    decision_id: str | None = Field(description="The authorization decision that admitted the reviewer")
    decided_at: str | None
    superseded_by: str | None


class ApprovalList(Body):
    """A page of approvals."""

    items: list[ApprovalAnswer]
    next_cursor: str | None


class ApprovalDecision(Body):
    """A person's answer to exactly this content."""

    decision: Literal["approve", "reject"]
    nonce: Annotated[str, Field(min_length=1, max_length=200)]
    content_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    reason: Annotated[str, Field(max_length=2000)] | None = None


def _reader(caller: Caller) -> Reader:
    if roles.may(caller.roles, roles.READ_APPROVALS):
        return Reader(caller.tenant)
    return reader_of(caller)


def _body(row: ApprovalRow, reader: Reader) -> dict[str, Any]:
    body = row.model_dump(mode="json", exclude={"tenant"})
    if reader.subject is not None:
        body["nonce"] = None
    return body


async def _plans(gateway: Gateway, tenant: str, rows: Sequence[ApprovalRow]) -> dict[str, dict[str, Any]]:
    """The plans of the repairs among these, by approval."""
    exceptions = sorted({name for row in rows if (name := exception_of(row.summary)) is not None})
    repairs = await gateway.reads.repairs_of(tenant, exceptions) if exceptions else []
    return {str(repair.row["approval_id"]): plan_of(repair) for repair in repairs if repair.row.get("approval_id")}


async def listed(request: Request) -> Response:
    """List approvals, newest first; `?status=pending` is what waits for a person."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = _reader(caller)
    page = page_of(request)
    rows = await gateway.reads.approvals(
        reader, page, status=query(request, "status", rules.STATUSES), workflow_id=query(request, "workflow_id")
    )
    plans = await _plans(gateway, caller.tenant, rows)
    bodies = [
        shown(caller.roles, "approval", {**_body(row, reader), "repair": plans.get(row.approval_id)}) for row in rows
    ]
    return listing([Item(row.asked_at, row.approval_id, body) for row, body in zip(rows, bodies, strict=True)], page)


async def read(request: Request) -> Response:
    """Read what exactly is to be approved: values and hash, who asked, scope, expiry, and the nonce to answer with."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = _reader(caller)
    row = found(await gateway.reads.approval(reader, object_id(request, "approval_id", "apr")))
    plans = await _plans(gateway, caller.tenant, [row])
    return answer(shown(caller.roles, "approval", {**_body(row, reader), "repair": plans.get(row.approval_id)}))


async def decide(request: Request) -> Response:
    """Approve or reject. The answer counts for exactly the content hash and nonce that it names, once, before expiry;
    a second click gets the same 200. Who asked, or sent the case an event, cannot review it; `admin` is no approver.

    A token's scope covers the approval's scope part by part: `content:*` covers `content:publish`, `content` does not.
    """
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    approval_id = object_id(request, "approval_id", "apr")
    require(caller, roles.APPROVE)
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, ApprovalDecision)
    outgoing: list[Outgoing] = []
    try:
        async with gateway.store.transaction() as tx:
            row = found(await tx.approval(caller.tenant, approval_id))
            outcome = await _decide(gateway, tx, caller, request, row, wanted, key, outgoing)
    except KeyTaken:
        raise Refused(
            "idempotency-in-flight", "The same call is being performed right now.", retry_after_seconds=1
        ) from None
    if outgoing:
        send_soon(gateway, outgoing)
    if isinstance(outcome, Refused):
        raise outcome
    row, replayed = outcome
    return answer(_body(row, Reader(caller.tenant)), headers={"Idempotent-Replayed": "true"} if replayed else None)


async def _decide(  # noqa: PLR0917 - one answer and everything that it rests on
    gateway: Gateway,
    tx: GatewayTransaction,
    caller: Caller,
    request: Request,
    row: ApprovalRow,
    wanted: ApprovalDecision,
    key: str,
    outgoing: list[Outgoing],
) -> tuple[ApprovalRow, bool] | Refused:
    """The row as this answer decided it, or did before; or the refusal, with what must be kept nevertheless."""
    act = rules.review(row, subject=caller.subject, tenant=caller.tenant, held=caller.roles, scopes=caller.scopes)
    rules.check_reviewer(act, {row.requested_by, *await tx.case_actors(row.workflow_id)})
    moment = await tx.moment()
    admitted = await authorize(gateway, tx, caller, act, request, moment.business)
    given = rules.Answer(
        status=rules.VERBS[wanted.decision],
        nonce=wanted.nonce,
        content_sha256=wanted.content_sha256,
        reviewer=caller.subject,
        reason=wanted.reason,
    )
    fingerprint = digest({"subject": caller.subject, "approval": row.approval_id, **wanted.model_dump(mode="json")})
    earlier = await tx.call(caller.tenant, key)
    if earlier is not None and earlier.fingerprint != fingerprint:
        raise Refused("idempotency-key-reused", "This key stands for another call.")
    trace = request.scope.get("trueup.traceparent")
    won = await tx.decide_approval(row, given, wanted.decision, admitted.decision_id)
    row = found(await tx.approval(row.tenant, row.approval_id))
    if won:
        await tx.save_authorization(admitted)
        await _take_effect(tx, row)
        if row.kind == rules.WORKFLOW:
            outgoing.append(_told(row, moment, trace))
        await tx.save_call(
            CallRow(
                tenant=row.tenant,
                key=key,
                fingerprint=fingerprint,
                status=200,
                body={"approval_id": row.approval_id},
                created_at=moment.business,
            )
        )
    elif rules.repeats(row, given):
        return row, True
    else:
        refusal = rules.refusal(row, given, moment.business)
        if rules.misuses_nonce(row, given):
            gateway.sightings.note(row.tenant, NONCE_REUSE, caller.subject, row.workflow_id)
        if await tx.expire_approval(row.approval_id) and row.kind == rules.WORKFLOW:
            row = found(await tx.approval(row.tenant, row.approval_id))
            outgoing.append(_told(row, moment, trace))
            await tx.post(outgoing)
        return refusal
    await tx.post(outgoing)
    return row, False


async def _take_effect(tx: GatewayTransaction, row: ApprovalRow) -> None:
    """An approved intent becomes usable. Raises Refused where its decision does not stand any more."""
    if row.kind != rules.DECISION or row.status != rules.APPROVED:
        return
    assert row.subject_decision_id is not None and row.decided_at is not None
    if not await tx.make_usable(row.subject_decision_id, row.decided_at):
        extra = {"reason": "superseded", "approval_status": rules.PENDING}
        raise Refused("conflict", "The decision to approve was revoked or has expired.", extra=extra)


def _told(row: ApprovalRow, moment: Any, traceparent: str | None) -> Outgoing:
    body = rules.told(row)
    return telling(body, "approval", row.tenant, f"{row.approval_id}:{body.outcome}", moment, traceparent)


def approval_of(decision: DecisionRow, summary: Mapping[str, Any]) -> ApprovalRow:
    """The question that an intent with the outcome `approval_required` asks a person; the decision names its id."""
    assert decision.approval_id is not None
    intent = intent_of(decision)
    content = decision.payload_sha256 or digest(intent)
    scopes = [str(item["scope"]) for item in decision.obligations if item.get("kind") == "approval"]
    return ApprovalRow(
        approval_id=decision.approval_id,
        tenant=decision.tenant,
        kind=rules.DECISION,
        subject_decision_id=decision.decision_id,
        scope=scopes[0] if scopes else decision.system,
        content_sha256=content,
        binds=[decision.payload_sha256] if decision.payload_sha256 else [intent],
        summary=dict(summary),
        nonce=new_nonce(),
        requested_by=decision.subject,
        owner=OWNER,
        status=rules.PENDING,
        asked_at=decision.created_at,
        expires_at=decision.expires_at,
    )


async def ask(tx: GatewayTransaction, decision: DecisionRow, summary: Mapping[str, Any]) -> DecisionRow:
    """Give a decision that needs a person its approval, and keep both. Others are kept as they are."""
    if decision.outcome == "approval_required":
        decision = decision.evolve(approval_id=new_id("apr"))
        await tx.save_approvals([], [approval_of(decision, summary)])
    await tx.save_decision(decision)
    return decision


_ID: Final = path_parameter("approval_id", "The approval.", "apr_00000000000000000000000000000000")

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/approvals",
        listed,
        tag="approvals",
        summary="List approvals",
        answers={200: ("A page of approvals", ApprovalList)},
        parameters=(
            query_parameter("status", "Only this status.", {"type": "string", "enum": list(rules.STATUSES)}),
            query_parameter("workflow_id", "Only those of this case."),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/approvals/{approval_id}",
        read,
        tag="approvals",
        summary="Read what is to be approved",
        answers={200: ("The approval", ApprovalAnswer)},
        parameters=(_ID,),
        problems=READ,
    ),
    route(
        "POST",
        "/v1/approvals/{approval_id}/decision",
        decide,
        tag="approvals",
        summary="Approve or reject",
        answers={200: ("It is decided, by this call or by the same answer before", ApprovalAnswer)},
        body=ApprovalDecision,
        example={
            "decision": "approve",
            "nonce": "from GET /v1/approvals/{approval_id}",
            "content_sha256": "0" * 64,
            "reason": "read and checked",
        },
        parameters=(_ID, key_parameter("approve-0028")),
        problems=(
            *READ,
            *BODY,
            "conflict",
            "idempotency-key-missing",
            "idempotency-key-invalid",
            "idempotency-key-reused",
            "idempotency-in-flight",
        ),
    ),
]
