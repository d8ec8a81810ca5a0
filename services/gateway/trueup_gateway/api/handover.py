"""Handover: what a person gets who takes a case over."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.journal import JournalRow
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import OpenBody, answer, caller_of, not_found, object_id, reader_of
from trueup_gateway.api.route import READ, LeanRoute, path_parameter, route
from trueup_gateway.api.workflows import case_body
from trueup_gateway.core.handover import package
from trueup_gateway.core.withholding import shown
from trueup_gateway.store import Page

EVENTS_MAX: Final = 100
APPROVALS_MAX: Final = 100


class HandoverAnswer(OpenBody):
    """State, history, effects already caused, open questions, evidence, and what may be done."""

    workflow_id: str
    automation: dict[str, Any]
    case: dict[str, Any]
    effects: list[dict[str, Any]]
    open_questions: list[dict[str, Any]]
    exceptions: list[dict[str, Any]]
    evidence: dict[str, Any]
    history: list[dict[str, Any]]
    allowed_actions: list[str]


async def read(request: Request) -> Response:
    """Read the handover package of a case: where automation stands, what was caused already and what may have been,
    what is open, what it rests on, its latest history, and what may be done now."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    workflow_id = object_id(request, "workflow_id", "wf")
    whole = await gateway.reads.whole_case(reader, workflow_id)
    if whole is None:
        raise not_found()
    view, rows, _ = whole
    body = await case_body(gateway, reader, workflow_id)
    exceptions = await gateway.reads.exceptions_of(reader.tenant, workflow_id)
    approvals = await gateway.reads.approvals(reader, Page(APPROVALS_MAX), status=None, workflow_id=workflow_id)
    since = max(0, view.instance.history_seq - EVENTS_MAX)
    events = await gateway.reads.history(workflow_id, since, EVENTS_MAX)
    operations = [JournalRow.model_validate(row) for row in rows]
    return answer(shown(caller.roles, "handover", package(view, body, operations, exceptions, approvals, events)))


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/workflows/{workflow_id}/handover",
        read,
        tag="handover",
        summary="Read the handover package of a case",
        answers={200: ("All that a person needs who takes it over", HandoverAnswer)},
        parameters=(path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000"),),
        problems=READ,
    )
]
