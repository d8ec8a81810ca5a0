"""Starting workflows: the capability as bearer, the start key as Idempotency-Key, one case per key at a time."""

import asyncio
import contextlib
from typing import Annotated, Any, Final, Literal

from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts import ids
from trueup_common.contracts.canonical import canonical, digest, sha256_hex
from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_common.contracts.workflow import NAME_PATTERN
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.tracing import trace_id_of
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import Body, answer, capability_of, fit, idempotency_key, read_json, wait_seconds
from trueup_gateway.api.route import BODY, LeanRoute, header_parameter, key_parameter, route
from trueup_gateway.api.workflows import WorkflowAnswer, case_body
from trueup_gateway.core.refusal import Refused, forbidden, invalid
from trueup_gateway.core.workflow_start import StartRequest
from trueup_gateway.starting import Started
from trueup_gateway.store import Reader
from trueup_gateway.tokens import START_PERMISSION, CapabilityClaims

LIVE: Final = "live"
WAIT_SECONDS_MAX: Final = 60
_ENDS: Final = frozenset(status.value for status in INSTANCE_TERMINAL)

Name = Annotated[str, Field(min_length=1, max_length=200)]


class WorkflowRequest(Body):
    """What to start. `stage`, `on_terminal` and `max_actions` only narrow what policy and document permit."""

    definition: Annotated[str, Field(pattern=NAME_PATTERN)]
    version: int | None = Field(
        default=None, ge=1, strict=True, description="Left out: the newest that is not retired."
    )
    input: Any = Field(default={}, description="Fits the `input` schema of the document.")
    purpose: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    max_actions: int = Field(default=20, ge=1, le=1000, strict=True, description="At most so many effects.")
    source_version: Name | None = None
    stage: Literal["replay", "shadow", "sandbox", "draft_only", "approved_low_risk", "live"] = "live"
    on_terminal: Literal["return", "revise"] = Field(
        default="return",
        description="Where the case of this key is over: `return` it, or start a revision of it (`revise`).",
    )
    correlation_id: Name | None = None


class StartLinks(Body):
    """Where to look next."""

    self: str
    workflow: str
    stream: str


class WorkflowAccepted(Body):
    """An accepted start, or the open case that this key stands for."""

    command_id: None = Field(default=None, description="Of single commands only.")
    workflow_id: str
    saga_id: str
    state: str
    links: StartLinks


class WorkflowOver(WorkflowAnswer):
    """The case that this key stands for, which is over."""

    state: str
    links: StartLinks


class StartOver(RootModel[WorkflowOver | WorkflowAccepted]):
    """The whole case for whose it is; for another agent with the same intent its names and state alone."""


async def start(request: Request) -> Response:
    """Start a workflow under a capability. The same key again answers with the case that it stands for."""
    gateway = gateway_of(request)
    claims = capability_of(request, gateway)
    value = await read_json(request, gateway)
    key = idempotency_key(request)
    wanted = fit(WorkflowRequest, value)
    started = await gateway.starter.submit(
        _start_request(gateway, claims, key, wanted, request.scope.get("trueup.traceparent"))
    )
    seconds = wait_seconds(request, WAIT_SECONDS_MAX)
    if not seconds:
        return await _answer(gateway, claims, started)
    with gateway.answers.expecting_case(started.workflow_id) as over:
        if started.replayed:
            answered = await _answer(gateway, claims, started)
            if over is None or answered.status_code == 200:
                return answered
        if over is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await over.wait()
    return await _answer(gateway, claims, started, waited=seconds)


def _start_request(
    gateway: Gateway, claims: CapabilityClaims, key: str, wanted: WorkflowRequest, traceparent: str | None
) -> StartRequest:
    """Every check that needs no row. Raises Refused."""
    if claims.workflow != wanted.definition or START_PERMISSION not in claims.permissions:
        raise forbidden("scope", "The capability does not let this workflow start.")
    if wanted.stage != LIVE:
        raise invalid([("/stage", "this gateway runs cases in the stage live only")])
    try:
        plain = canonical(wanted.input)
    except ValueError:
        raise invalid([("/input", "has no canonical form")]) from None
    if len(plain) > gateway.settings.payload_bytes_max:
        raise Refused("too-large", f"The input has more than {gateway.settings.payload_bytes_max} bytes.")
    same = wanted.model_dump(mode="json", include={"definition", "version", "input", "max_actions", "source_version"})
    return StartRequest(
        tenant=claims.tenant,
        key=key,
        fingerprint=digest({"call": "start", **same}),
        capability_id=claims.capability_id,
        system=claims.system,
        resource=claims.resource,
        payload_sha256=claims.payload_sha256,
        expected_version=claims.expected_version,
        definition=wanted.definition,
        version=wanted.version,
        input=wanted.input,
        input_sha256=sha256_hex(plain),
        actions_max=wanted.max_actions,
        on_terminal=wanted.on_terminal,
        workflow_id=ids.new_id("wf", real_now()),
        saga_id=ids.new_id("saga"),
        purpose=wanted.purpose,
        source_version=wanted.source_version,
        stage=wanted.stage,
        correlation_id=wanted.correlation_id,
        traceparent=traceparent,
        trace_id=trace_id_of(traceparent),
    )


def _links(workflow_id: str) -> dict[str, str]:
    own = f"/v1/workflows/{workflow_id}"
    return {"self": own, "workflow": own, "stream": f"{own}/stream"}


async def _answer(gateway: Gateway, claims: CapabilityClaims, started: Started, *, waited: int = 0) -> Response:
    """202 with the ids; where the case is over at a repetition, or after waiting, 200 with the case. Another agent's
    case is not shown: that agent's names and state alone."""
    links = _links(started.workflow_id)
    headers = {"Location": links["self"]}
    if waited:
        headers["Preference-Applied"] = f"wait={waited}"
    if started.replayed:
        headers["Idempotent-Replayed"] = "true"
    state, body = "RECEIVED", None
    if started.replayed or waited:
        body = await case_body(gateway, Reader(claims.tenant), started.workflow_id)
        state = body["status"]
    names = {"command_id": None, "workflow_id": started.workflow_id, "saga_id": started.saga_id}
    if body is not None and state in _ENDS:
        shown = body if body["subject"] == claims.subject else names
        return answer({**shown, "command_id": None, "state": state, "links": links}, 200, headers)
    return answer({**names, "state": state, "links": links}, 202, headers)


_EXAMPLE_INPUT: Final = {
    "article_id": "0028",
    "version": 1,
    "title": "Success is not proof",
    "slug": "success-is-not-proof",
    "content": "<p>A returned success proves little.</p>",
    "meta": {
        "description": "Why the outcome of an action needs three answers, an identity, and someone who goes and looks.",
        "json_ld": {"@context": "https://schema.org", "@type": "Article", "headline": "Success is not proof"},
        "citations": ["https://web.example/source"],
        "featured_image": "https://web.example/picture.png",
    },
    "author": {"name": "Ada Author", "email": "ada@web.example"},
    "authored_at": "2026-01-01T09:00:00Z",
    "repository": "acme/articles",
    "zone_id": "ac3e0000000000000000000000000001",
}

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/workflows",
        start,
        tag="workflows",
        summary="Start a workflow",
        answers={
            200: ("The same start key again, and its case is over; or it ended within `Prefer: wait`", StartOver),
            202: ("Accepted, or the same start key again while its case is open", WorkflowAccepted),
        },
        body=WorkflowRequest,
        example={
            "definition": "seo-article-publish",
            "version": None,
            "input": _EXAMPLE_INPUT,
            "purpose": "publish article 0028",
            "max_actions": 20,
            "source_version": "v1",
            "stage": "live",
            "on_terminal": "return",
        },
        parameters=(
            key_parameter("article-0028"),
            header_parameter("Prefer", "Wait for the end of the case, in seconds.", "wait=10"),
            header_parameter("traceparent", "W3C trace context of the caller; left out, a new trace begins."),
        ),
        problems=(
            "tenant-invalid",
            "forbidden",
            "not-found",
            "conflict",
            "idempotency-key-missing",
            "idempotency-key-invalid",
            "idempotency-in-flight",
            "idempotency-key-reused",
            "unknown-command-type",
            "unknown-system",
            *BODY,
        ),
        security="capability",
    )
]
