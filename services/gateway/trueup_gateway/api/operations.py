"""Operators' acts on cases: cancel, pause, resume. Each is asked once, under a decision of its own, and can be read."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import ControlAsked
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.states import InstanceStatus
from trueup_gateway.api.acts import authorize, send_soon, telling
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    OpenBody,
    answer,
    caller_of,
    found,
    idempotency_key,
    not_found,
    object_id,
    read_model,
    reader_of,
)
from trueup_gateway.api.route import BODY, READ, LeanRoute, key_parameter, path_parameter, route
from trueup_gateway.core import control
from trueup_gateway.core.person_records import OperatorCommandRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.view_records import CaseView
from trueup_gateway.store import GatewayTransaction, Reader
from trueup_gateway.tokens import Caller

Reason = Annotated[str, Field(min_length=1, max_length=2000)]
Action = Literal[
    "RETRY",
    "RECONCILE",
    "REDRIVE",
    "REPAIR",
    "COMPENSATE",
    "PAUSE",
    "RESUME",
    "CANCEL",
    "MARK_RESOLVED",
    "ESCALATE",
    "TAKE_OVER",
    "HAND_BACK",
    "ASSIGN",
    "SETTLE",
]


class CancelRequest(Body):
    """Why the case shall end."""

    reason: Reason


class TargetWanted(Body):
    """On what."""

    kind: Literal["command", "workflow", "exception", "dead_letter", "repair"]
    id: Annotated[str, Field(min_length=1, max_length=100)]


class OperatorCommandRequest(Body):
    """What shall be done, on what, and why. This version acts on workflows: CANCEL, PAUSE, RESUME."""

    action: Action
    target: TargetWanted
    reason: Reason
    evidence: list[Any] = Field(default=[], max_length=100)
    params: dict[str, Any] = Field(default={}, max_length=20)


class OperatorCommandAnswer(OpenBody):
    """An act, and where it stands."""

    operator_command_id: str
    decision_id: str
    state: str = Field(
        description="`requested`; `acknowledged` by the case; `done`: in full effect; "
        "`overtaken`: the case ended first; `without_effect`: it did not fit the case's state any more"
    )
    action: str
    target: TargetWanted
    actor: str
    reason: str
    created_at: str


def _body(row: OperatorCommandRow, state: str) -> dict[str, Any]:
    kept = row.model_dump(mode="json", exclude={"tenant", "target_kind", "target_id"})
    return {**kept, "state": state, "target": {"kind": row.target_kind, "id": row.target_id}}


async def cancel(request: Request) -> Response:
    """Ask for the end of a case: what is not sent is not sent any more, what is under way is settled first, and what
    was done before the pivot is undone. An agent may cancel its own case, an operator any of the tenant."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    workflow_id = object_id(request, "workflow_id", "wf")
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, CancelRequest)
    asked = OperatorCommandRequest(
        action=control.CANCEL, target=TargetWanted(kind="workflow", id=workflow_id), reason=wanted.reason
    )
    return await _ask(gateway, caller, request, key, asked)


async def create(request: Request) -> Response:
    """Act as an operator. CANCEL, PAUSE and RESUME of workflows are available; others are refused with what is."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, OperatorCommandRequest)
    if wanted.target.kind != "workflow" or wanted.action not in control.AVAILABLE:
        extra = {"allowed_actions": list(control.AVAILABLE), "allowed_targets": ["workflow"]}
        raise Refused("action-not-available", "This version has no such action on such a target.", extra=extra)
    if wanted.params:
        raise Refused(
            "action-not-available",
            f"{wanted.action} takes no parameters in this version.",
            extra={"allowed_actions": list(control.AVAILABLE), "allowed_params": []},
        )
    return await _ask(gateway, caller, request, key, wanted)


async def _ask(
    gateway: Gateway, caller: Caller, request: Request, key: str, wanted: OperatorCommandRequest
) -> Response:
    outgoing: list[Outgoing] = []
    reader = reader_of(caller)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        view = found(await tx.case_of(reader, wanted.target.id))
        moment = await tx.moment()
        row = await _admit(gateway, tx, caller, request, view, wanted, moment.business)
        asked = ControlAsked(
            control_id=row.operator_command_id,
            workflow_id=view.workflow_id,
            tenant=view.tenant,
            action=row.action.lower(),
            actor=row.actor,
            reason=row.reason,
            at=moment.business,
        )
        trace = request.scope.get("trueup.traceparent")
        outgoing.append(telling(asked, "control", view.tenant, asked.control_id, moment, trace))
        await tx.post(outgoing)
        body = _body(row, control.REQUESTED)
        return 202, {**body, "workflow_id": view.workflow_id, "links": {"self": _place(row), "workflow": _case(view)}}

    named = wanted.model_dump(mode="json")
    response = await once(gateway, caller, key, {"call": "operator-command", **named}, act)
    if outgoing:
        send_soon(gateway, outgoing)
    return response


async def _admit(  # noqa: PLR0917 - one act and everything that it rests on
    gateway: Gateway,
    tx: GatewayTransaction,
    caller: Caller,
    request: Request,
    view: CaseView,
    wanted: OperatorCommandRequest,
    now: datetime,
) -> OperatorCommandRow:
    """The kept act. Raises Refused where it is not permitted, or not possible in the case's status."""
    act = control.operation(
        wanted.action,
        view.workflow_id,
        view.tenant,
        subject=caller.subject,
        tenant=caller.tenant,
        held=caller.roles,
        own=view.subject == caller.subject,
    )
    control.check_operator(act)
    admitted = await authorize(gateway, tx, caller, act, request, now)
    allowed = control.ALLOWED[InstanceStatus(view.status)]
    if wanted.action not in allowed:
        extra = {"allowed_actions": list(allowed), "workflow_status": view.status}
        raise Refused("action-not-available", f"The case is {view.status}.", extra=extra)
    row = OperatorCommandRow(
        operator_command_id=new_id("opc"),
        tenant=view.tenant,
        action=wanted.action,
        target_kind="workflow",
        target_id=view.workflow_id,
        actor=caller.subject,
        reason=wanted.reason,
        evidence=wanted.evidence,
        params=wanted.params,
        decision_id=admitted.decision_id,
        status_before=view.status,
        created_at=admitted.created_at,
    )
    await tx.save_authorization(admitted)
    await tx.save_operator_command(row)
    return row


def _place(row: OperatorCommandRow) -> str:
    return f"/v1/operator-commands/{row.operator_command_id}"


def _case(view: CaseView) -> str:
    return f"/v1/workflows/{view.workflow_id}"


async def read(request: Request) -> Response:
    """Read an operator's act and where it stands, by the history of the case."""
    gateway = gateway_of(request)
    reader = reader_of(caller_of(request, gateway))
    name = object_id(request, "operator_command_id", "opc")
    row = found(await gateway.reads.operator_command(reader, name))
    view = await gateway.reads.case(Reader(reader.tenant), row.target_id)
    if view is None:
        raise not_found()
    heard = await gateway.reads.heard(row.target_id, row.operator_command_id)
    state = control.state_of(row.action, {"status": view.status}, heard=heard)
    return answer(_body(row, state))


_KEYS: Final = (
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-key-reused",
    "idempotency-in-flight",
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/workflows/{workflow_id}/cancel",
        cancel,
        tag="workflows",
        summary="Ask for the end of a case",
        answers={202: ("It is asked; the case's status tells how it goes on", OperatorCommandAnswer)},
        body=CancelRequest,
        example={"reason": "the article was withdrawn"},
        parameters=(
            path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000"),
            key_parameter("cancel-0028"),
        ),
        problems=(*READ, *BODY, *_KEYS, "action-not-available"),
    ),
    route(
        "POST",
        "/v1/operator-commands",
        create,
        tag="operators",
        summary="Act as an operator",
        answers={202: ("It is asked", OperatorCommandAnswer)},
        body=OperatorCommandRequest,
        example={
            "action": "PAUSE",
            "target": {"kind": "workflow", "id": "wf_00000000000000000000000000000000"},
            "reason": "the target is being maintained",
            "evidence": [],
            "params": {},
        },
        parameters=(key_parameter("pause-0028"),),
        problems=(*READ, *BODY, *_KEYS, "action-not-available"),
    ),
    route(
        "GET",
        "/v1/operator-commands/{operator_command_id}",
        read,
        tag="operators",
        summary="Read an operator's act",
        answers={200: ("The act and where it stands", OperatorCommandAnswer)},
        parameters=(path_parameter("operator_command_id", "The act.", "opc_00000000000000000000000000000000"),),
        problems=READ,
    ),
]
