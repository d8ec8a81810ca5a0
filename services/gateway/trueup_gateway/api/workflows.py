"""Workflows: cases with their steps, state vector, obligations and hash-chained history."""

from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.standing import standing
from trueup_common.contracts.states import InstanceStatus
from trueup_gateway.api.allowed import allowed_as_listed, allowed_on_case
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.grounds import declarations_of
from trueup_gateway.api.holds import hold_body
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    answer,
    caller_of,
    found,
    listing,
    not_found,
    object_id,
    page_of,
    query,
    query_flag,
    query_number,
    reader_of,
)
from trueup_gateway.api.route import PAGE, READ, LeanRoute, path_parameter, query_parameter, route
from trueup_gateway.core.case_body import workflow_body
from trueup_gateway.core.projection import case_view
from trueup_gateway.core.withholding import shown
from trueup_gateway.store import Reader

HISTORY_MAX: Final = 500


class ObjectNamed(Body):
    """The business object of a case."""

    type: str
    id: str


class Step(OpenBody):
    """One step of a case. `outcome` ∈ done, not_done, unknown; null while it is on its way.

    `state` is the operation's of a command, else the step's phase (PENDING, WAITING, DONE, SKIPPED …).
    """

    id: str
    state: str
    command_id: str | None
    attempts: int
    outcome: str | None
    compensation_state: str


class Cost(OpenBody):
    """What a case has spent so far."""

    transitions: int = Field(description="Facts in its history")
    stored_bytes: int = Field(description="Bytes of its history as JSON, and of artifacts carried as payload")
    attempts: int = Field(description="Transmissions that were sent; look-ups are none")
    effects: int = Field(description="Operations of which something was sent")
    model_tokens: int = Field(description="What receipts of models report as used")
    worker_seconds: float = Field(description="Real time from sending to the receipt, summed over all attempts")
    human_minutes: float = Field(description="Time a person held it (`HUMAN_TAKEOVER`), of holds that have ended")
    human_since: str | None = Field(description="Since when a person holds it now")
    human_wait_minutes: float = Field(description="Time that its approvals and waits were open: waiting, not work")
    timers_fired: int = Field(description="Wake-ups that moved it")
    timer_late_seconds: float = Field(description="By how much they came later than due, summed")


class WorkflowAnswer(OpenBody):
    """A case as it stands."""

    workflow_id: str
    saga_id: str
    definition: str
    version: int
    sha256: str
    tenant: str
    status: str
    state_version: int
    pivot: str
    stage: str
    object: ObjectNamed
    steps: list[Step]
    wait: dict[str, Any] | None
    vector: list[dict[str, Any]]
    obligations: list[dict[str, Any]]
    parent_id: str | None
    revision: int
    created_at: str
    deadline_at: str
    closed_at: str | None
    resolution_type: str | None
    cost: Cost
    standing: list[str] = Field(
        default=[], description="Commands whose effects stand, or may: what a person who closes the case speaks about"
    )
    allowed_actions: list[str]
    legal_hold: dict[str, Any] | None = None


class WorkflowList(Body):
    """A page of cases."""

    items: list[WorkflowAnswer]
    next_cursor: str | None


class EventAnswer(OpenBody):
    """One fact of a case, chained by hash to the one before."""

    seq: int
    event_id: str
    type: str
    schema_version: int
    occurred_at: str
    recorded_at: str
    actor: str
    payload: dict[str, Any]
    payload_sha256: str
    causation_id: str | None
    correlation_id: str | None
    trace_id: str | None
    prev_hash: str
    hash: str


class HistoryAnswer(OpenBody):
    """Events in order; `next_after_seq` continues, null at the present end."""

    workflow_id: str
    items: list[EventAnswer]
    next_after_seq: int | None


async def listed(request: Request) -> Response:
    """List cases, newest first."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    page = page_of(request)
    views = await gateway.reads.cases(
        reader,
        page,
        status=query(request, "status", [item.value for item in InstanceStatus]),
        definition=query(request, "definition"),
        object_id=query(request, "object"),
        owner=query(request, "owner"),
        overdue=query_flag(request, "overdue"),
        is_open=query_flag(request, "open"),
    )
    steps = await gateway.reads.steps_of([view.workflow_id for view in views])
    return listing(
        [
            Item(
                view.created_at,
                view.workflow_id,
                shown(
                    caller.roles,
                    "workflow",
                    {
                        **workflow_body(view, steps.get(view.workflow_id, []), []),
                        "allowed_actions": allowed_as_listed(gateway, view, steps.get(view.workflow_id, [])),
                    },
                ),
            )
            for view in views
        ],
        page,
    )


async def read(request: Request) -> Response:
    """Read a case: status, steps, what it waits for, desired / recorded / observed, and what is owed."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    body = await case_body(gateway, reader_of(caller), object_id(request, "workflow_id", "wf"))
    hold = await gateway.reads.legal_hold(caller.tenant, body["workflow_id"])
    return answer(shown(caller.roles, "workflow", {**body, "legal_hold": hold and hold_body(hold)}))


async def case_body(gateway: Gateway, reader: Reader, workflow_id: str) -> dict[str, Any]:
    """A case as the caller may see it. Raises Refused."""
    whole = await gateway.reads.whole_case(reader, workflow_id)
    if whole is None:
        raise not_found()
    view, rows, elements = whole
    operations = [JournalRow.model_validate(gateway.answers.newest(row["command_id"], row)) for row in rows]
    stored = {"state_version": view.state_version}
    told = gateway.answers.newest(workflow_id, stored)
    if told is not stored:
        view = case_view(InstanceRow.model_validate(told), view.obligations)
    body = workflow_body(view, operations, elements)
    return {
        **body,
        "standing": standing(operations, declarations_of(gateway, operations)),
        "allowed_actions": await allowed_on_case(gateway, view, operations),
    }


async def history(request: Request) -> Response:
    """Read the events of a case in order, after a sequence number."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    workflow_id = object_id(request, "workflow_id", "wf")
    after = query_number(request, "after_seq", 0, 0, 2**53)
    limit = query_number(request, "limit", HISTORY_MAX, 1, HISTORY_MAX)
    found(await gateway.reads.case(reader, workflow_id))
    events = await gateway.reads.history(workflow_id, after, limit)
    more = events[-1]["seq"] if len(events) == limit else None
    body = {"workflow_id": workflow_id, "items": events, "next_after_seq": more}
    return answer(shown(caller.roles, "history", body))


_ID: Final = path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000")
_STATUSES: Final = [status.value for status in InstanceStatus]

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/workflows",
        listed,
        tag="workflows",
        summary="List cases",
        answers={200: ("A page of cases", WorkflowList)},
        parameters=(
            query_parameter("status", "Only this status.", {"type": "string", "enum": _STATUSES}),
            query_parameter("open", "Only cases that go on, or only those that are over.", {"type": "boolean"}),
            query_parameter("definition", "Only this definition."),
            query_parameter("object", "Only this business object."),
            query_parameter("owner", "Only what this owner owes."),
            query_parameter("overdue", "Only open cases past (or within) their deadline.", {"type": "boolean"}),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/workflows/{workflow_id}",
        read,
        tag="workflows",
        summary="Read a case",
        answers={200: ("The case as it stands", WorkflowAnswer)},
        parameters=(_ID,),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/workflows/{workflow_id}/history",
        history,
        tag="workflows",
        summary="Read the history of a case",
        answers={200: ("Events in order", HistoryAnswer)},
        parameters=(
            _ID,
            query_parameter("after_seq", "Events after this sequence number.", {"type": "integer", "minimum": 0}),
            query_parameter("limit", "At most so many.", {"type": "integer", "minimum": 1, "maximum": HISTORY_MAX}),
        ),
        problems=READ,
    ),
]
