"""Signals: events from outside for a case, taken once per event id, with what became of them."""

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.shape import json_bytes, rfc3339
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import Body, OpenBody, answer, caller_of, found, object_id, read_model, reader_of
from trueup_gateway.api.route import BODY, READ, LeanRoute, path_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.person_records import SignalRow
from trueup_gateway.core.refusal import Refused, forbidden
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.dispositions import PENDING
from trueup_gateway.signalling import Sending
from trueup_gateway.store import Reader
from trueup_gateway.tokens import Caller

DATA_BYTES_MAX: Final = 65_536
WAIT_SECONDS: Final = 2.0
DUPLICATE: Final = "duplicate"

EventId = Annotated[str, Field(min_length=1, max_length=200)]


class SignalRequest(Body):
    """One event. `event_id` is the sender's and opaque: the same one is taken once."""

    event_id: EventId
    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,80}$")]
    data: Any = None
    occurred_at: Timestamp | None = None


class SignalAnswer(OpenBody):
    """What became of a signal. `outcome` is the first disposition where this call was a duplicate."""

    event_id: str
    disposition: str = Field(description="`accepted`, `duplicate`, `held`, `late` or `pending`")
    outcome: str = Field(description="What became of the event itself, however often it was sent")
    reason: str | None
    received_at: str


def _sender(caller: Caller) -> Reader:
    """Whose cases a caller may signal. Raises Refused."""
    if roles.may(caller.roles, roles.SIGNAL_TENANT):
        return Reader(caller.tenant)
    if roles.may(caller.roles, roles.SIGNAL_OWN):
        return Reader(caller.tenant, caller.subject)
    needed = f"{roles.needed(roles.SIGNAL_TENANT)}, {roles.needed(roles.SIGNAL_OWN)}"
    raise forbidden("role", f"This needs one of the roles {needed}.")


def _body(row: SignalRow, *, duplicate: bool = False) -> dict[str, Any]:
    return {
        "event_id": row.event_id,
        "workflow_id": row.workflow_id,
        "type": row.type,
        "disposition": DUPLICATE if duplicate and row.disposition != PENDING else row.disposition,
        "outcome": row.disposition,
        "reason": row.reason,
        "received_at": rfc3339(row.received_at),
        "disposed_at": rfc3339(row.disposed_at) if row.disposed_at else None,
    }


async def send(request: Request) -> Response:
    """Send an event to a case: the caller's own one as an agent, any of the tenant as an operator.

    An event id is taken once per case; again it is a `duplicate` and has no second effect, with another body it is
    refused. `held` waits for a step that expects it, `late` came after its wait was over; neither changes the past.
    """
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    sender = _sender(caller)
    workflow_id = object_id(request, "workflow_id", "wf")
    wanted = await read_model(request, gateway, SignalRequest)
    if len(json_bytes(wanted.data)) > DATA_BYTES_MAX:
        raise Refused("too-large", f"The data of a signal has more than {DATA_BYTES_MAX} bytes.")
    taken = await gateway.signals.submit(
        Sending(
            sender=sender,
            actor=caller.subject,
            workflow_id=workflow_id,
            event_id=wanted.event_id,
            type=wanted.type,
            data=wanted.data,
            occurred_at=wanted.occurred_at,
            traceparent=request.scope.get("trueup.traceparent"),
        )
    )
    row = await gateway.dispositions.of(taken.row, WAIT_SECONDS)
    return answer(
        _body(row, duplicate=not taken.fresh),
        202,
        {"Location": f"/v1/workflows/{workflow_id}/signals"} | ({} if taken.fresh else {"Idempotent-Replayed": "true"}),
    )


async def read(request: Request) -> Response:
    """Read what became of a signal."""
    gateway = gateway_of(request)
    reader = reader_of(caller_of(request, gateway))
    workflow_id = object_id(request, "workflow_id", "wf")
    found(await gateway.reads.case(reader, workflow_id))
    event_id = str(request.path_params["event_id"])
    row = found(await gateway.reads.signal(reader.tenant, workflow_id, event_id))
    return answer(_body(row))


_ID: Final = path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000")

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/workflows/{workflow_id}/signals",
        send,
        tag="signals",
        summary="Send an event to a case",
        answers={202: ("It is kept; `disposition` says what became of it", SignalAnswer)},
        body=SignalRequest,
        example={"event_id": "reply-0028", "type": "partner.reply", "data": {"accepted": True}, "occurred_at": None},
        parameters=(_ID,),
        problems=(*READ, *BODY, "idempotency-key-reused"),
    ),
    route(
        "GET",
        "/v1/workflows/{workflow_id}/signals/{event_id:path}",
        read,
        tag="signals",
        summary="Read what became of a signal",
        answers={200: ("The signal", SignalAnswer)},
        parameters=(_ID, path_parameter("event_id", "The sender's event id.", "reply-0028")),
        problems=READ,
    ),
]
