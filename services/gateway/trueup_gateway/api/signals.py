"""Signals: events from outside for a case, taken once per event id, with what became of them."""

import asyncio
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import SignalReceived
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import json_bytes, rfc3339
from trueup_common.runtime.clock import monotonic
from trueup_gateway.api.acts import send_soon, telling
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import Body, OpenBody, answer, caller_of, found, object_id, read_model, reader_of
from trueup_gateway.api.route import BODY, READ, LeanRoute, path_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.anomalies import CROSS_TENANT
from trueup_gateway.core.person_records import SignalRow
from trueup_gateway.core.refusal import Refused, forbidden
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.store import Reader
from trueup_gateway.tokens import Caller

DATA_BYTES_MAX: Final = 65_536
OPEN_MAX: Final = 1000
"""Signals of one case that nobody has disposed of, or that are held."""
WAIT_SECONDS: Final = 2.0
FIRST_LOOK_SECONDS: Final = 0.02
LOOK_SECONDS_MAX: Final = 0.2
PENDING: Final = "pending"
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
    row, fresh = await _keep(gateway, sender, caller, workflow_id, wanted, request)
    row = await _disposed(gateway, row)
    return answer(
        _body(row, duplicate=not fresh),
        202,
        {"Location": f"/v1/workflows/{workflow_id}/signals"} | ({} if fresh else {"Idempotent-Replayed": "true"}),
    )


async def _keep(  # noqa: PLR0917 - one signal and who sends it
    gateway: Gateway, sender: Reader, caller: Caller, workflow_id: str, wanted: SignalRequest, request: Request
) -> tuple[SignalRow, bool]:
    """The row of the signal, and whether it is new. Raises Refused."""
    content = {"type": wanted.type, "data": wanted.data, "occurred_at": wanted.occurred_at}
    fingerprint = digest({**content, "occurred_at": rfc3339(wanted.occurred_at) if wanted.occurred_at else None})
    async with gateway.store.transaction() as tx:
        case = await tx.case_of(sender, workflow_id)
        if case is None and await tx.is_anothers(caller.tenant, workflow_id):
            gateway.sightings.note(caller.tenant, CROSS_TENANT, caller.subject)
        found(case)
        moment = await tx.moment()
        row = SignalRow(
            workflow_id=workflow_id,
            event_id=wanted.event_id,
            tenant=caller.tenant,
            fingerprint=fingerprint,
            type=wanted.type,
            actor=caller.subject,
            disposition=PENDING,
            occurred_at=wanted.occurred_at,
            received_at=moment.business,
        )
        if not await tx.save_signal(row):
            known = found(await tx.signal(workflow_id, wanted.event_id))
            if known.fingerprint != fingerprint:
                raise Refused("idempotency-key-reused", "This event id stands for another event of this case.")
            return known, False
        if await tx.signals_count(workflow_id, OPEN_MAX + 1) > OPEN_MAX:
            raise Refused("rate-limited", "Too many signals of this case wait already.", retry_after_seconds=10)
        received = SignalReceived(
            **{name: getattr(row, name) for name in ("event_id", "workflow_id", "tenant", "type", "actor")},
            data=wanted.data,
            occurred_at=row.occurred_at,
            received_at=row.received_at,
        )
        name = derived_id("sig", workflow_id, wanted.event_id)
        outgoing = telling(received, "signal", caller.tenant, name, moment, request.scope.get("trueup.traceparent"))
        await tx.post([outgoing])
    send_soon(gateway, [outgoing])
    return row, True


async def _disposed(gateway: Gateway, row: SignalRow) -> SignalRow:
    """The row once it is disposed of, or as it stands after a while."""
    end, pause = monotonic() + WAIT_SECONDS, FIRST_LOOK_SECONDS
    while row.disposition == PENDING and monotonic() < end:
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS_MAX)
        row = await gateway.reads.signal(row.tenant, row.workflow_id, row.event_id) or row
    return row


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
