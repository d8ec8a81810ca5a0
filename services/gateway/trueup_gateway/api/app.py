"""The application: all routes, their document, and the outermost edge that traces, measures and lets nothing leak."""

import asyncio
import logging
from functools import cache
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.metrics import observe_http
from trueup_common.runtime.tracing import current_traceparent, new_traceparent, valid_traceparent
from trueup_gateway.api import (
    approvals,
    artifacts,
    batches,
    capabilities,
    catalog,
    commands,
    controls,
    decisions,
    definitions,
    development,
    exceptions,
    handover,
    holds,
    numbers,
    operators,
    pages,
    policies,
    repairs,
    signals,
    starts,
    streams,
    workflows,
)
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.api.problems import INTERNAL_DETAIL, instance_of, problem_response
from trueup_gateway.api.route import LeanRoute
from trueup_gateway.console.door import door_routes
from trueup_gateway.core.refusal import Refused

log = logging.getLogger("trueup.gateway.api")

VERSION: Final = "0.1.0"
DESCRIPTION: Final = """
The only way in for effects: an intent becomes a **decision**, the decision a **capability**, and the capability lets
**commands** and starts of **workflows** in, each accepted once per business key.

On `/docs`, *Execute* sends the example that is filled in, and the page takes over the tokens it gets (*Authorize* shows
and changes them). From the first call to the article:

1. `POST /dev/token` (development mode) gives the access token.
2. `POST /v1/decisions`, then `POST /v1/capabilities` with its `decision_id`, gives the capability.
3. `POST /v1/commands`, then look at `GET /v1/commands/{command_id}` and the case's stream.

A workflow goes the same way: ask for the decision with `"action": {"workflow": "seo-article-publish"}` and without a
resource, start it by `POST /v1/workflows`, and look at `GET /v1/workflows/{workflow_id}`. A person answers what
`GET /v1/approvals` lists.
"""
_MODULES: Final = (
    commands,
    capabilities,
    decisions,
    definitions,
    starts,
    workflows,
    streams,
    approvals,
    signals,
    operators,
    exceptions,
    handover,
    holds,
    repairs,
    numbers,
    artifacts,
    batches,
    catalog,
    controls,
    policies,
    development,
    pages,
)


class ProblemError(BaseModel):
    """One place that does not fit."""

    pointer: str = Field(description="RFC 6901 pointer into the body")
    detail: str
    line: int | None = Field(default=None, description="On definition-invalid: the line of the document's text")
    rule: str | None = Field(default=None, description="On definition-invalid: the rule that is broken")


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str = Field(description="`/problems/<slug>`, a page of this gateway")
    title: str
    status: int
    detail: str
    instance: str
    advice: str = Field(description="What the caller can do next")
    check: str | None = Field(default=None, description="On 401 and 403: the check that failed")
    errors: list[ProblemError] | None = Field(default=None, description="On validation failures: every place")
    command_id: str | None = Field(default=None, description="On identity-in-use: the command that owns the identity")
    identity: dict[str, Any] | None = Field(
        default=None, description="On identity-in-use: what identifies the command type, by JSON pointer"
    )
    approval_id: str | None = Field(default=None, description="On `check: approval`: the approval that is missing")
    decision_id: str | None = Field(default=None, description="On `check: approval`: the decision that needs it")


class Edge:
    """The outermost layer: trace context in, metrics out, and a problem document for whatever was not foreseen.

    The busiest call goes straight to its route: the layers between cost as much as accepting a command does.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, *, traced: bool) -> None:
        self._app = app
        self._gateway = gateway
        self._traced = traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["trueup.gateway"] = self._gateway
        scope["trueup.traceparent"] = self._traceparent(scope)
        begun, status = monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] == commands.SUBMIT.path and scope["method"] == "POST":
                scope["route"] = commands.SUBMIT
                await commands.SUBMIT.app(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except Exception:  # the boundary: what FastAPI passes on after it answered, or could not answer
            log.exception("request failed", extra={"path": scope["path"], "instance_id": instance_of(scope)})
            if status == 0:
                await problem_response(Refused("internal", INTERNAL_DETAIL), scope)(scope, receive, watched)
        finally:
            self._gateway.bodies.release(scope)
            matched = scope.get("route")
            template = getattr(matched, "path", "unmatched") if matched is not None else "unmatched"
            observe_http(scope["method"], template, status, monotonic() - begun)

    def _traceparent(self, scope: Scope) -> str:
        if self._traced and (current := current_traceparent()):
            return current
        given = [value for name, value in scope["headers"] if name == b"traceparent"]
        text = given[0].decode("latin-1") if len(given) == 1 else None
        return valid_traceparent(text) or new_traceparent()


def create_app(gateway: Gateway, *, traced: bool = False) -> ASGIApp:
    """The application over one gateway. `traced` adds OpenTelemetry's spans; FastAPI's own stay off: one is enough."""
    app = FastAPI(
        title="Trueup gateway",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    routes = [
        made
        for module in _MODULES
        for made in module.ROUTES
        if module is not development or gateway.dev_key is not None
    ]
    app.router.routes[:] = [*routes, *pages.PLAIN_ROUTES, *door_routes()]
    description = cache(lambda: orjson.dumps(document_of(routes)))

    async def openapi(request: Request) -> Response:
        """Made for the first who asks: to make it takes a fifth of a start, and few gateways are ever asked."""
        return Response(await asyncio.to_thread(description), media_type="application/json")

    app.router.add_route("/openapi.json", openapi, methods=["GET"])
    app.add_exception_handler(HTTPException, _router_problem)
    app.add_exception_handler(Exception, _router_problem)
    if not traced:
        return Edge(app, gateway, traced=False)
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    app.add_middleware(Edge, gateway=gateway, traced=True)
    FastAPIInstrumentor.instrument_app(app, excluded_urls="livez,readyz,metrics", exclude_spans=["receive", "send"])
    return app


async def _router_problem(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown paths and methods; and what failed outside of our routes."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    if status == 405:
        extra = {"allow": headers.get("Allow") or headers.get("allow", "")}
        refused = Refused("method-not-allowed", "This path does not have this method.", extra=extra)
    elif status == 404:
        refused = Refused("not-found", "There is no such path.")
    elif status < 500:
        refused = Refused("parameter-invalid", "The request is not acceptable.")
    else:
        refused = Refused("internal", INTERNAL_DETAIL)
    return problem_response(refused, request.scope)


def document_of(routes: list[LeanRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document: FastAPI's, with the request models, the problem answers and the two kinds of tokens."""
    document: dict[str, Any] = get_openapi(
        title="Trueup gateway",
        version=VERSION,
        openapi_version="3.1.0",
        description=DESCRIPTION,
        routes=routes,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    bodies = {model for made in routes for model in getattr(made, "body_models", [])}
    ordered = sorted((*bodies, Problem), key=lambda model: model.__name__)
    _, defined = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(defined.get("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = {
        "access": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "An access token (`at+jwt`) of a trusted issuer.",
        },
        "capability": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "A capability (`cap+jwt`) from `POST /v1/capabilities`.",
        },
    }
    return document
