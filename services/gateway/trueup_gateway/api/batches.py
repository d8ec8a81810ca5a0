"""Batches of operators' acts: a preview with a frozen selection, then start, pause and stop, and a reason per item."""

from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import new_id
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.states import ExceptionKind
from trueup_gateway.api.acts import authorize
from trueup_gateway.api.allowed import allowed_on_exceptions
from trueup_gateway.api.calls import once
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
    query_number,
    read_model,
    reader_of,
    require,
)
from trueup_gateway.api.operators import EvidenceGiven, ParamsGiven, Reason, params_of
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, key_parameter, path_parameter, query_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.batches import (
    BATCHED,
    ITEMS_MAX,
    RATE_MAX,
    RATE_MIN,
    TABLE,
    TRAIL_MAX,
    BatchState,
    ItemState,
    Turn,
    turned,
    turns,
)
from trueup_gateway.core.operators import OPERATE
from trueup_gateway.core.person_records import OperatorBatchItemRow, OperatorBatchRow
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.core.view_records import ExceptionView
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

SHOWN_MAX: Final = 100
Text = Annotated[str, Field(min_length=1, max_length=300)]


class BatchFilter(Body):
    """Which open exceptions; what is not named is any."""

    kind: ExceptionKind | None = None
    owner: Text | None = None
    cause: Text | None = Field(default=None, description="Failure class or failure code.")
    system: Text | None = None
    incident_id: Text | None = None
    opened_before: Timestamp | None = None
    opened_after: Timestamp | None = None


class OperatorBatchRequest(Body):
    """One action on all that a filter selects. `dry_run` keeps the selection and does nothing until it is started."""

    action: OperatorAction
    filter: BatchFilter = BatchFilter()
    reason: Reason = "bulk"
    evidence: EvidenceGiven = Field(default=[])
    params: ParamsGiven = Field(default={})
    rate_per_second: Annotated[float, Field(ge=RATE_MIN, le=RATE_MAX, strict=True)] = 1.0
    dry_run: bool = Field(default=True, strict=True)


class TurnRequest(Body):
    """Why."""

    reason: Annotated[str, Field(max_length=2000)] | None = None


class OperatorBatchAnswer(OpenBody):
    """A batch and how far it is: `done + failed + skipped` is `total` at its end."""

    batch_id: str
    state: str = Field(description="`PREVIEW`, `RUNNING`, `PAUSED`, `STOPPED` or `DONE`")
    action: str
    created_by: str = Field(description="Who made the selection")
    actor: str = Field(description="Who started it last: the items are acts of this person, for 12 hours at most")
    total: int
    pending: int
    running: int
    done: int
    failed: int
    skipped: int
    rate_per_second: float
    decision_id: str
    allowed_turns: list[str]
    trail: list[dict[str, Any]] = Field(
        default=[],
        description="Who started, paused or stopped it: `turn`, `to`, `actor`, `reason`, `decision_id`, `at`",
    )


class TurnAnswer(OpenBody):
    """Where the batch stands from here on."""

    batch_id: str
    state: str
    decision_id: str


class OperatorBatchList(Body):
    """A page of batches."""

    items: list[OperatorBatchAnswer]
    next_cursor: str | None


class OperatorBatchItem(OpenBody):
    """One item and what became of it."""

    position: int
    exception_id: str
    state: str
    reason: str | None
    operator_command_id: str | None


class OperatorBatchItems(Body):
    """Items in their order; `next_after` continues."""

    items: list[OperatorBatchItem]
    next_after: int | None


def _body(row: OperatorBatchRow, counts: dict[str, int]) -> dict[str, Any]:
    kept = row.model_dump(mode="json", exclude={"tenant", "roles", "scopes", "next_at"})
    numbers = {state.value.lower(): counts.get(state.value, 0) for state in ItemState}
    return {**kept, **numbers, "allowed_turns": turns(BatchState(row.state))}


async def create(request: Request) -> Response:
    """Select open exceptions once and for all, and act on each at a rate. A preview (`dry_run`) tells how many, and of
    the first ones whether the act is possible now; nothing happens until it is started. Each item is admitted again at
    its turn, as an operator command of its own: superseded, expired or revoked ones are skipped with the reason."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.OPERATE)
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, OperatorBatchRequest)
    if wanted.action not in BATCHED:
        extra = {"allowed_actions": [action.value for action in BATCHED]}
        raise Refused("action-not-available", f"{wanted.action} is not done in bulk.", extra=extra)
    params_of(wanted.action, wanted.params)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        return 201, await _keep(gateway, tx, caller, request, wanted)

    response = await once(gateway, caller, key, {"call": "operator-batch", **wanted.model_dump(mode="json")}, act)
    gateway.batches_changed()
    return response


async def _keep(
    gateway: Gateway, tx: GatewayTransaction, caller: Caller, request: Request, wanted: OperatorBatchRequest
) -> dict[str, Any]:
    """The kept batch with its frozen selection, under a decision of its own."""
    now, batch_id = (await tx.moment()).business, new_id("bat")
    views = await _select(tx, caller.tenant, wanted.filter)
    asked = act_on_batch(caller, batch_id, wanted.action.value)
    admitted = await authorize(gateway, tx, caller, asked, request, now)
    row = OperatorBatchRow(
        batch_id=batch_id,
        tenant=caller.tenant,
        action=wanted.action.value,
        filter=wanted.filter.model_dump(mode="json", exclude_none=True),
        params=wanted.params,
        evidence=wanted.evidence,
        reason=wanted.reason,
        created_by=caller.subject,
        actor=caller.subject,
        roles=list(caller.roles),
        scopes=list(caller.scopes),
        decision_id=admitted.decision_id,
        rate_per_second=wanted.rate_per_second,
        state=BatchState.PREVIEW if wanted.dry_run else BatchState.RUNNING,
        total=len(views),
        created_at=now,
        started_at=None if wanted.dry_run else now,
        trail=[]
        if wanted.dry_run
        else [turned(Turn.START, BatchState.RUNNING, caller.subject, wanted.reason, admitted.decision_id, now)],
    )
    items = [
        OperatorBatchItemRow(
            batch_id=batch_id,
            position=position,
            tenant=caller.tenant,
            exception_id=view.exception_id,
            workflow_id=view.workflow_id,
            command_id=view.command_id,
        )
        for position, view in enumerate(views, 1)
    ]
    await tx.save_authorization(admitted)
    await tx.save_batch(row, items)
    possible = await allowed_on_exceptions(gateway, views[:SHOWN_MAX])
    shown = [
        {"exception_id": view.exception_id, "possible": wanted.action.value in possible.get(view.exception_id, [])}
        for view in views[:SHOWN_MAX]
    ]
    return {**_body(row, {ItemState.PENDING: len(items)}), "selection": shown}


async def _select(tx: GatewayTransaction, tenant: str, chosen: BatchFilter) -> list[ExceptionView]:
    """The open exceptions that a filter names. Raises Refused for too many."""
    views = await tx.selection(
        tenant,
        chosen.kind.value if chosen.kind is not None else None,
        chosen.owner,
        chosen.cause,
        chosen.system,
        chosen.incident_id,
        chosen.opened_before,
        chosen.opened_after,
        ITEMS_MAX + 1,
    )
    if len(views) > ITEMS_MAX:
        raise invalid([("/filter", f"selects more than {ITEMS_MAX} exceptions; narrow it")])
    return views


async def _turn(request: Request, turn: Turn) -> Response:
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.OPERATE)
    key = idempotency_key(request)
    batch_id = object_id(request, "batch_id", "bat")
    wanted = await read_model(request, gateway, TurnRequest, optional=True)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        row = found(await tx.batch_to_turn(caller.tenant, batch_id))
        after = TABLE.get((BatchState(row.state), turn))
        if after is None:
            extra = {"allowed_actions": turns(BatchState(row.state))}
            raise Refused("action-not-available", f"The batch is {row.state}.", extra=extra)
        now = (await tx.moment()).business
        asked = act_on_batch(caller, batch_id, f"BATCH_{turn.value.upper()}")
        admitted = await authorize(gateway, tx, caller, asked, request, now)
        admitted = admitted.evolve(detail={**admitted.detail, "action": row.action, "reason": wanted.reason})
        entry = turned(turn, after, caller.subject, wanted.reason, admitted.decision_id, now)
        row = row.evolve(state=after, trail=[*row.trail, entry][-TRAIL_MAX:])
        if turn is Turn.START:  # whose acts they are from here on
            row = row.evolve(actor=caller.subject, roles=list(caller.roles), scopes=list(caller.scopes), started_at=now)
        if after is BatchState.STOPPED:
            said = f": {wanted.reason}" if wanted.reason else ""
            await tx.skip_pending(batch_id, f"stopped by {caller.subject}{said}"[:500], now)
        await tx.save_authorization(admitted)
        await tx.save_batch(row)
        return 200, {"batch_id": batch_id, "state": after.value, "decision_id": admitted.decision_id}

    called = {"call": f"batch-{turn}", "batch_id": batch_id, **wanted.model_dump(mode="json")}
    response = await once(gateway, caller, key, called, act)
    gateway.batches_changed()
    return response


def act_on_batch(caller: Caller, batch_id: str, operation: str) -> Act:
    """The act on a batch that policy is asked about: the operation it repeats, or `BATCH_START` and the like."""
    return Act(
        subject=caller.subject,
        tenant=caller.tenant,
        roles=caller.roles,
        action=OPERATE,
        target_tenant=caller.tenant,
        system="trueup",
        resource=f"batch/{batch_id}",
        facts=(("operation", operation), ("own", False)),
    )


async def start(request: Request) -> Response:
    """Start a preview, or go on after a pause. From here on the items are acts of whoever starts it, with the roles of
    this token: for 12 hours, then the batch pauses by itself until somebody starts it again."""
    return await _turn(request, Turn.START)


async def pause(request: Request) -> Response:
    """Ask for nothing more until it is started again; what was asked for goes on."""
    return await _turn(request, Turn.PAUSE)


async def stop(request: Request) -> Response:
    """Skip everything that was not asked for yet, for good; what was asked for goes on."""
    return await _turn(request, Turn.STOP)


async def read(request: Request) -> Response:
    """Read a batch and how far it is."""
    gateway = gateway_of(request)
    reader = reader_of(caller_of(request, gateway))
    row = found(await gateway.reads.batch(reader, object_id(request, "batch_id", "bat")))
    return answer(await _shown(gateway, row))


async def _shown(gateway: Gateway, row: OperatorBatchRow) -> dict[str, Any]:
    return _body(row, (await gateway.reads.batch_counts([row.batch_id])).get(row.batch_id, {}))


async def listed(request: Request) -> Response:
    """List batches, newest first."""
    gateway = gateway_of(request)
    reader = reader_of(caller_of(request, gateway))
    page = page_of(request)
    rows = await gateway.reads.batches(reader, page)
    counts = await gateway.reads.batch_counts([row.batch_id for row in rows])
    return listing([Item(row.created_at, row.batch_id, _body(row, counts.get(row.batch_id, {}))) for row in rows], page)


async def items(request: Request) -> Response:
    """Read the items of a batch in their order, each with its reason."""
    gateway = gateway_of(request)
    reader = reader_of(caller_of(request, gateway))
    row = found(await gateway.reads.batch(reader, object_id(request, "batch_id", "bat")))
    limit = query_number(request, "limit", SHOWN_MAX, 1, 200)
    after = query_number(request, "after", 0, 0, ITEMS_MAX)
    state = query(request, "state", [item.value for item in ItemState])
    rows = await gateway.reads.batch_items(row.batch_id, after, limit, state)
    bodies = [item.model_dump(mode="json", exclude={"tenant", "batch_id"}) for item in rows]
    return answer({"items": bodies, "next_after": rows[-1].position if len(rows) == limit else None})


_KEYS: Final = (
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-key-reused",
    "idempotency-in-flight",
)
_ID: Final = path_parameter("batch_id", "The batch.", "bat_00000000000000000000000000000000")

_turn_route = partial(
    route,
    "POST",
    tag="batches",
    answers={200: ("So it is", TurnAnswer)},
    body=TurnRequest,
    body_required=False,
    example={"reason": "the target answers again"},
    problems=(*READ, *BODY, *_KEYS, "action-not-available"),
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/operator-batches",
        create,
        tag="batches",
        summary="Act on many exceptions",
        answers={201: ("The batch with its frozen selection", OperatorBatchAnswer)},
        body=OperatorBatchRequest,
        example={
            "action": "REDRIVE",
            "filter": {"kind": "dead_letter", "system": "wordpress"},
            "reason": "the outage is over",
            "rate_per_second": 2.0,
            "dry_run": True,
        },
        parameters=(key_parameter("redrive-after-outage"),),
        problems=(*READ, *BODY, *_KEYS, "action-not-available"),
    ),
    route(
        "GET",
        "/v1/operator-batches",
        listed,
        tag="batches",
        summary="List batches",
        answers={200: ("A page of batches", OperatorBatchList)},
        parameters=PAGE,
        problems=READ,
    ),
    route(
        "GET",
        "/v1/operator-batches/{batch_id}",
        read,
        tag="batches",
        summary="Read a batch",
        answers={200: ("The batch and how far it is", OperatorBatchAnswer)},
        parameters=(_ID,),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/operator-batches/{batch_id}/items",
        items,
        tag="batches",
        summary="Read what became of each item",
        answers={200: ("Items in their order", OperatorBatchItems)},
        parameters=(
            _ID,
            query_parameter("after", "Items after this position.", {"type": "integer", "minimum": 0}),
            query_parameter("limit", "At most so many.", {"type": "integer", "minimum": 1, "maximum": 200}),
            query_parameter("state", "Only these.", {"type": "string", "enum": [item.value for item in ItemState]}),
        ),
        problems=READ,
    ),
    _turn_route(
        "/v1/operator-batches/{batch_id}/start",
        start,
        summary="Start a batch, or go on with it",
        parameters=(_ID, key_parameter("start-1")),
    ),
    _turn_route(
        "/v1/operator-batches/{batch_id}/pause",
        pause,
        summary="Pause a batch",
        parameters=(_ID, key_parameter("pause-1")),
    ),
    _turn_route(
        "/v1/operator-batches/{batch_id}/stop",
        stop,
        summary="Stop a batch",
        parameters=(_ID, key_parameter("stop-1")),
    ),
]
