"""Exceptions first: what is open, who owns it and until when."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.states import ExceptionKind
from trueup_gateway.api.allowed import allowed_on_exceptions
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    answer,
    caller_of,
    found,
    listing,
    object_id,
    page_of,
    query,
    reader_of,
    require,
)
from trueup_gateway.api.route import PAGE, READ, LeanRoute, path_parameter, query_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.vector import element_body
from trueup_gateway.core.view_records import ExceptionView
from trueup_gateway.core.withholding import shown

WAITING_APPROVAL: Final = "WAITING_APPROVAL"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

SUMMARY: Final[dict[str, tuple[str, ...]]] = {
    "open_incidents": (),  # counted from the incidents themselves
    "dead_letters": (ExceptionKind.DEAD_LETTER,),
    "repair_queue": (),  # repairs in flight: counted from the repairs themselves
    "stale_running": (ExceptionKind.STALE_RUNNING,),
    "compensation_failed": (ExceptionKind.COMPENSATION_FAILED,),
    "state_drift": (ExceptionKind.STATE_DRIFT,),
    "approvals_required": (),  # asked and unanswered: counted from the approvals themselves
    "unknown_outcomes": (ExceptionKind.UNKNOWN_OUTCOME,),
    "quarantined_callbacks": (ExceptionKind.QUARANTINED_CALLBACK,),
    "failed": (ExceptionKind.FAILED,),
    "conflicts": (ExceptionKind.CONFLICT,),
    "needs_review": (ExceptionKind.NEEDS_REVIEW,),
    "quarantined_messages": (ExceptionKind.QUARANTINED_MESSAGE,),
}
"""Which kinds of open exceptions each number of the summary counts."""


class ExceptionAnswer(OpenBody):
    """One exception with its failure envelope."""

    exception_id: str
    kind: str
    status: str
    failure_class: str
    owner: str
    deadline_at: str
    opened_at: str
    workflow_id: str | None
    saga_id: str | None
    command_id: str | None
    incident_id: str | None
    approval_id: str | None = Field(description="The approval that its repair waits for")
    envelope: dict[str, Any]
    allowed_actions: list[str]


class ExceptionList(Body):
    """A page of exceptions."""

    items: list[ExceptionAnswer]
    next_cursor: str | None


class ExceptionSummary(Body):
    """Open exceptions by kind, and the age of the oldest."""

    open_incidents: int
    dead_letters: int
    repair_queue: int
    stale_running: int
    compensation_failed: int
    state_drift: int
    approvals_required: int
    unknown_outcomes: int
    quarantined_callbacks: int
    failed: int
    conflicts: int
    needs_review: int
    quarantined_messages: int
    open: int
    oldest_age_seconds: float


class DriftItem(OpenBody):
    """One element of the world that is not as it should be."""

    element: str
    system: str
    resource: str
    workflow_id: str
    command_id: str
    desired: Any
    observed: Any
    phase: str
    observed_at: str | None


class DriftList(Body):
    """A page of drifted elements."""

    items: list[DriftItem]
    next_cursor: str | None


def _body(view: ExceptionView, allowed: Mapping[str, list[str]], approvals: Mapping[str, str]) -> dict[str, Any]:
    body = view.model_dump(mode="json", exclude={"tenant"})
    known = {"approval_id": approvals.get(view.repair_id or ""), "allowed_actions": allowed.get(view.exception_id, [])}
    return {**body, **known}


async def _approvals(gateway: Gateway, tenant: str, views: Sequence[ExceptionView]) -> dict[str, str]:
    """The approvals that repairs of these exceptions wait for, by repair."""
    waiting = [view.exception_id for view in views if view.repair_status == WAITING_APPROVAL]
    repairs = await gateway.reads.repairs_of(tenant, waiting) if waiting else []
    return {item.repair_id: item.row["approval_id"] for item in repairs if item.row.get("approval_id") is not None}


async def summary(request: Request) -> Response:
    """Count what is open."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_TENANT)
    counts, oldest = await gateway.reads.exception_counts(caller.tenant)
    numbers: dict[str, Any] = {name: sum(counts.get(str(kind), 0) for kind in kinds) for name, kinds in SUMMARY.items()}
    numbers["approvals_required"] += await gateway.reads.approvals_pending(caller.tenant)
    numbers["repair_queue"], numbers["open_incidents"] = await gateway.reads.repair_counts(caller.tenant)
    return answer({**numbers, "open": sum(counts.values()), "oldest_age_seconds": round(oldest, 3)})


async def _page(request: Request, kind: str | None, status: str | None) -> Response:
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    page = page_of(request)
    by_deadline = query(request, "order", ("opened", "deadline")) == "deadline"
    views = await gateway.reads.exceptions(
        reader,
        page,
        kind=kind,
        status=status,
        owner=query(request, "owner"),
        cause=query(request, "cause"),
        workflow_id=query(request, "workflow_id"),
        incident_id=query(request, "incident_id"),
        by_deadline=by_deadline,
    )
    places = [view.deadline_at if by_deadline else view.opened_at for view in views]
    allowed = await allowed_on_exceptions(gateway, views)
    approvals = await _approvals(gateway, caller.tenant, views)
    bodies = [shown(caller.roles, "exception", _body(view, allowed, approvals)) for view in views]
    items = [Item(at, str(body["exception_id"]), body) for at, body in zip(places, bodies, strict=True)]
    return listing(items, page)


async def listed(request: Request) -> Response:
    """List exceptions, newest first, or by deadline."""
    kinds = {*ExceptionKind, "incident", "repair", "approval"}
    return await _page(request, query(request, "kind", kinds), query(request, "status", ("open", "closed")))


async def dead_letters(request: Request) -> Response:
    """List dead letters, newest first."""
    return await _page(request, ExceptionKind.DEAD_LETTER.value, query(request, "status", ("open", "closed")))


async def read(request: Request) -> Response:
    """Read one exception with its failure envelope."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    view = found(await gateway.reads.exception(reader_of(caller), object_id(request, "exception_id", "exc")))
    allowed, approvals = await allowed_on_exceptions(gateway, [view]), await _approvals(gateway, caller.tenant, [view])
    return answer(shown(caller.roles, "exception", _body(view, allowed, approvals)))


async def drift(request: Request) -> Response:
    """List the elements whose observed value is not the desired one."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    page = page_of(request)
    views = await gateway.reads.drift(reader_of(caller), page)
    return listing(
        [
            Item(
                view.observed_at or _EPOCH,
                f"{view.command_id}{view.element}",
                shown(caller.roles, "drift", {**element_body(view), "workflow_id": view.workflow_id}),
            )
            for view in views
        ],
        page,
    )


_FILTERS: Final = (
    query_parameter("status", "Only open or closed ones.", {"type": "string", "enum": ["open", "closed"]}),
    query_parameter("owner", "Only this owner's."),
    query_parameter("cause", "Only this failure class or failure code."),
    query_parameter("workflow_id", "Only those of this case."),
    query_parameter("incident_id", "Only those of this incident."),
    query_parameter(
        "order",
        "`opened`: newest first; `deadline`: the nearest first.",
        {"type": "string", "enum": ["opened", "deadline"], "default": "opened"},
    ),
    *PAGE,
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/exceptions/summary",
        summary,
        tag="exceptions",
        summary="Count what is open",
        answers={200: ("Open exceptions by kind", ExceptionSummary)},
        problems=("tenant-invalid", "forbidden"),
    ),
    route(
        "GET",
        "/v1/exceptions",
        listed,
        tag="exceptions",
        summary="List exceptions",
        answers={200: ("A page of exceptions", ExceptionList)},
        parameters=(
            query_parameter("kind", "Only this kind.", {"type": "string", "enum": [k.value for k in ExceptionKind]}),
            *_FILTERS,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/exceptions/{exception_id}",
        read,
        tag="exceptions",
        summary="Read an exception",
        answers={200: ("The exception with its failure envelope", ExceptionAnswer)},
        parameters=(path_parameter("exception_id", "The exception.", "exc_00000000000000000000000000000000"),),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/dead-letters",
        dead_letters,
        tag="exceptions",
        summary="List dead letters",
        answers={200: ("A page of dead letters", ExceptionList)},
        parameters=_FILTERS,
        problems=READ,
    ),
    route(
        "GET",
        "/v1/drift",
        drift,
        tag="exceptions",
        summary="List drifted elements",
        answers={200: ("A page of drifted elements", DriftList)},
        parameters=PAGE,
        problems=READ,
    ),
]
