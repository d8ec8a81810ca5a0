"""Repairs and incidents: what is being mended, by which playbook, how it will be verified, and what hangs together."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trueup_gateway.api.gateway import gateway_of
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
from trueup_gateway.core.withholding import shown

STATUSES: Final = (
    "PLANNED",
    "WAITING_APPROVAL",
    "EXECUTING",
    "VERIFYING",
    "DONE",
    "FAILED",
    "ESCALATED",
    "WITHDRAWN",
)


class RepairAnswer(OpenBody):
    """One repair: what is wrong, what is done about it, at which risk, and how far it has come."""

    repair_id: str
    exception_id: str
    status: str
    number: int
    source_command: str | None
    source_workflow: str | None
    source_saga: str | None
    drift: dict[str, Any] | None
    root_cause: str
    repair_action: str
    risk_level: str
    required_capability: dict[str, Any]
    approval_required: bool
    verification_plan: str
    rollback_or_compensation: str
    explanation: str
    playbook: str
    decision_id: str | None
    approval_id: str | None
    command_id: str | None
    operator_command_id: str | None
    incident_id: str | None
    due_at: str | None
    created_at: str
    ended_at: str | None


class RepairList(Body):
    """A page of repairs."""

    items: list[RepairAnswer]
    next_cursor: str | None


class IncidentAnswer(OpenBody):
    """One incident: what its exceptions share, how far it reaches, and how far its end was tried out."""

    incident_id: str
    status: str
    cause: dict[str, Any]
    owner: str
    exceptions_count: int
    exceptions: list[str]
    blast_radius: dict[str, Any]
    held_count: int
    first_at: str
    last_at: str
    opened_at: str
    closed_at: str | None
    next_probe_at: str | None


class IncidentList(Body):
    """A page of incidents."""

    items: list[IncidentAnswer]
    next_cursor: str | None


async def repairs(request: Request) -> Response:
    """List repairs, newest first."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    page = page_of(request)
    open_ones = query(request, "open", ("true", "false"))
    views = await gateway.reads.repairs(
        reader,
        page,
        status=query(request, "status", STATUSES),
        exception_id=query(request, "exception_id"),
        in_flight=None if open_ones is None else open_ones == "true",
    )
    bodies = [shown(caller.roles, "repair", view.row) for view in views]
    return listing(
        [Item(view.created_at, view.repair_id, body) for view, body in zip(views, bodies, strict=True)], page
    )


async def repair(request: Request) -> Response:
    """Read one repair."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    view = found(await gateway.reads.repair(reader_of(caller), object_id(request, "repair_id", "rep")))
    return answer(shown(caller.roles, "repair", view.row))


async def incidents(request: Request) -> Response:
    """List incidents, newest first."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_TENANT)
    page = page_of(request)
    views = await gateway.reads.incidents(caller.tenant, page, status=query(request, "status", ("open", "closed")))
    return listing([Item(view.opened_at, view.incident_id, view.row) for view in views], page)


async def incident(request: Request) -> Response:
    """Read one incident."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_TENANT)
    name = object_id(request, "incident_id", "inc")
    return answer(found(await gateway.reads.incident(caller.tenant, name)).row)


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/repairs",
        repairs,
        tag="exceptions",
        summary="List repairs",
        answers={200: ("A page of repairs", RepairList)},
        parameters=(
            query_parameter("status", "Only in this status.", {"type": "string", "enum": list(STATUSES)}),
            query_parameter("open", "Only those in flight, or only those that are over.", {"type": "boolean"}),
            query_parameter("exception_id", "Only this exception's."),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/repairs/{repair_id}",
        repair,
        tag="exceptions",
        summary="Read a repair",
        answers={200: ("The repair", RepairAnswer)},
        parameters=(path_parameter("repair_id", "The repair.", "rep_00000000000000000000000000000000"),),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/incidents",
        incidents,
        tag="exceptions",
        summary="List incidents",
        answers={200: ("A page of incidents", IncidentList)},
        parameters=(
            query_parameter("status", "Only open or closed ones.", {"type": "string", "enum": ["open", "closed"]}),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/incidents/{incident_id}",
        incident,
        tag="exceptions",
        summary="Read an incident",
        answers={200: ("The incident", IncidentAnswer)},
        parameters=(path_parameter("incident_id", "The incident.", "inc_00000000000000000000000000000000"),),
        problems=READ,
    ),
]
