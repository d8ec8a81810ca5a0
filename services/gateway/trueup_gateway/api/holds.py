"""Legal holds: while a case is held nothing of it is deleted, whoever asks. Placing and lifting are acts of people."""

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import new_id
from trueup_gateway.api.acts import authorize
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import (
    Body,
    caller_of,
    found,
    idempotency_key,
    not_found,
    object_id,
    read_model,
    require,
)
from trueup_gateway.api.route import BODY, READ, LeanRoute, key_parameter, path_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.operators import OPERATE
from trueup_gateway.core.person_records import AuthorizationRow, LegalHoldRow
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import Refused
from trueup_gateway.store import GatewayTransaction, Reader
from trueup_gateway.tokens import Caller

PLACE: Final = "LEGAL_HOLD"
LIFT: Final = "LIFT_LEGAL_HOLD"
Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class HoldRequest(Body):
    """Why the case must be kept."""

    reason: Reason


class LiftHoldRequest(Body):
    """Why it need not be kept any longer."""

    reason: Reason | None = None


class HoldAnswer(Body):
    """A hold; lifted where `lifted_at` is set."""

    hold_id: str
    workflow_id: str
    reason: str
    decision_id: str
    placed_by: str
    placed_at: str
    lifted_at: str | None
    lifted_by: str | None
    lift_reason: str | None
    lift_decision_id: str | None


def hold_body(row: LegalHoldRow) -> dict[str, Any]:
    """A hold as it is shown."""
    return row.model_dump(mode="json", exclude={"tenant"})


async def _admitted(  # noqa: PLR0917 - one act and who acts
    request: Request, tx: GatewayTransaction, caller: Caller, workflow_id: str, operation: str, reason: str | None
) -> AuthorizationRow:
    """The kept decision about placing or lifting. Raises Refused."""
    gateway = gateway_of(request)
    found(await tx.case_of(Reader(caller.tenant), workflow_id))
    asked = Act(
        subject=caller.subject,
        tenant=caller.tenant,
        roles=caller.roles,
        action=OPERATE,
        target_tenant=caller.tenant,
        system="trueup",
        resource=f"workflow/{workflow_id}",
        facts=(("operation", operation), ("own", False)),
    )
    admitted = await authorize(gateway, tx, caller, asked, request, (await tx.moment()).business)
    kept: AuthorizationRow = admitted.evolve(detail={**admitted.detail, "reason": reason})
    await tx.save_authorization(kept)
    return kept


async def place(request: Request) -> Response:
    """Hold a case: from here on neither retention nor anybody else deletes it, its history or its artifacts."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.LEGAL_HOLD)
    workflow_id = object_id(request, "workflow_id", "wf")
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, HoldRequest)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        admitted = await _admitted(request, tx, caller, workflow_id, PLACE, wanted.reason)
        row = LegalHoldRow(
            hold_id=new_id("hld"),
            tenant=caller.tenant,
            workflow_id=workflow_id,
            reason=wanted.reason,
            decision_id=admitted.decision_id,
            placed_by=caller.subject,
            placed_at=admitted.created_at,
        )
        if not await tx.place_hold(row):
            held = await tx.legal_hold(caller.tenant, workflow_id)
            extra = {"hold_id": held.hold_id} if held is not None else {}
            raise Refused("conflict", "The case is held already.", extra=extra)
        return 201, hold_body(row)

    called = {"call": "legal-hold", "workflow_id": workflow_id, **wanted.model_dump(mode="json")}
    return await once(gateway, caller, key, called, act)


async def lift(request: Request) -> Response:
    """Lift the hold on a case: it is kept as long as any other from here on."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.LEGAL_HOLD)
    workflow_id = object_id(request, "workflow_id", "wf")
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, LiftHoldRequest, optional=True)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        held = await tx.legal_hold(caller.tenant, workflow_id)
        if held is None:
            raise not_found()
        admitted = await _admitted(request, tx, caller, workflow_id, LIFT, wanted.reason)
        row = held.evolve(
            lifted_at=admitted.created_at,
            lifted_by=caller.subject,
            lift_reason=wanted.reason,
            lift_decision_id=admitted.decision_id,
        )
        await tx.lift_hold(row)
        return 200, hold_body(row)

    called = {"call": "lift-legal-hold", "workflow_id": workflow_id, **wanted.model_dump(mode="json")}
    return await once(gateway, caller, key, called, act)


_ID: Final = path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000")
_CHANGE: Final = (
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-in-flight",
    "idempotency-key-reused",
    *READ,
    *BODY,
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/workflows/{workflow_id}/legal-hold",
        place,
        tag="holds",
        summary="Hold a case",
        answers={201: ("It is held", HoldAnswer)},
        body=HoldRequest,
        example={"reason": "claim 2026-114"},
        parameters=(_ID, key_parameter("hold-0028")),
        problems=("conflict", *_CHANGE),
    ),
    route(
        "DELETE",
        "/v1/workflows/{workflow_id}/legal-hold",
        lift,
        tag="holds",
        summary="Lift the hold on a case",
        answers={200: ("It is lifted", HoldAnswer)},
        body=LiftHoldRequest,
        example={"reason": "the claim was settled"},
        body_required=False,
        parameters=(_ID, key_parameter("lift-0028")),
        problems=_CHANGE,
    ),
]
