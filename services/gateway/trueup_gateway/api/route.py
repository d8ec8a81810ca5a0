"""Routes: an endpoint takes the request and answers by itself; what it takes and answers is documented beside it.

FastAPI's own parsing of bodies and parameters is not used: bodies are read strictly, once and bounded. Every refusal
becomes a problem document here, and nothing that a client sends ends in a 500.
"""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trueup_common.contracts.problems import PROBLEMS
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api.http import Endpoint, check_path
from trueup_gateway.api.problems import INTERNAL_DETAIL, MEDIA_TYPE, instance_of, problem_response
from trueup_gateway.core.refusal import Refused

log = logging.getLogger("trueup.gateway.api")

COMMON = ("unauthorized", "rate-limited", "internal", "unavailable")
BODY = ("body-malformed", "request-timeout", "too-large", "media-type-unsupported", "payload-invalid")
READ = ("parameter-invalid", "tenant-invalid", "forbidden", "not-found")

Parameter = dict[str, Any]


def path_parameter(name: str, description: str, example: str) -> Parameter:
    """A documented path parameter."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


def query_parameter(name: str, description: str, schema: dict[str, Any] | None = None) -> Parameter:
    """A documented query parameter."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema or {"type": "string"},
    }


def header_parameter(name: str, description: str, example: str | None = None, *, required: bool = False) -> Parameter:
    """A documented request header. The docs page fills an example in and sends it; without one it sends no header."""
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
        **({} if example is None else {"example": example}),
    }


PAGE = (
    query_parameter("limit", "Items per page.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
    query_parameter("cursor", "`next_cursor` of the page before."),
)


def key_parameter(example: str, *, required: bool = True) -> Parameter:
    """The Idempotency-Key. Each call has an example of its own: one key for two calls would be refused."""
    return header_parameter(
        "Idempotency-Key",
        "The business key of this intent, as a quoted string. Repeat it on every retry.",
        f'"{example}"',
        required=required,
    )


class LeanRoute(APIRoute):
    """A route without FastAPI's machinery in the way of the request; its documentation is FastAPI's."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = _lean(endpoint)


def _lean(endpoint: Endpoint) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_path(scope)
            response = await endpoint(Request(scope, receive))
        except Refused as refused:
            response = problem_response(refused, scope)
        except StoreBusy as busy:
            log.warning("store busy", extra={"reason": str(busy)})
            response = problem_response(
                Refused("unavailable", "The gateway's store does not answer right now.", retry_after_seconds=1), scope
            )
        except ClientDisconnect:
            return
        except Exception:  # the boundary: the client learns nothing but the trace
            log.exception("request failed", extra={"path": scope["path"], "instance_id": instance_of(scope)})
            response = problem_response(Refused("internal", INTERNAL_DETAIL), scope)
        await response(scope, receive, send)

    return app


def route(
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    tag: str,
    summary: str,
    answers: dict[int, tuple[str, type[BaseModel] | None]],
    body: type[BaseModel] | None = None,
    example: dict[str, Any] | None = None,
    body_required: bool = True,
    parameters: Iterable[Parameter] = (),
    problems: Iterable[str] = (),
    security: str | None = "access",
    media_type: str = "application/json",
) -> LeanRoute:
    """One documented route."""
    status = min(answers)
    description, model = answers[status]
    responses: dict[int | str, dict[str, Any]] = {}
    for code, (text, answer_model) in answers.items():
        responses[code] = {"description": text}
        if answer_model is not None and code != status:
            responses[code]["model"] = answer_model
        if media_type != "application/json" and code == status:
            responses[code]["content"] = {media_type: {"schema": {"type": "string"}}}
    responses.update(_problem_answers({*problems, *(COMMON if security else ("rate-limited", "internal"))}))
    extra: dict[str, Any] = {"parameters": list(parameters), "security": [{security: []}] if security else []}
    if body is not None:
        reference: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}
        if example is not None:
            reference["example"] = example
        extra["requestBody"] = {"required": body_required, "content": {"application/json": reference}}
    made = LeanRoute(
        path,
        endpoint,
        methods=[method],
        status_code=status,
        response_model=model,
        response_description=description,
        responses=responses,
        openapi_extra=extra,
        tags=[tag],
        summary=summary,
        description=(endpoint.__doc__ or "").strip(),
        operation_id=f"{tag}_{_bare(endpoint)}",
        response_class=_Unspecified if media_type != "application/json" else JSONResponse,
    )
    made.body_models = [body] if body is not None else []  # type: ignore[attr-defined]
    return made


class _Unspecified(Response):
    media_type = None


def _bare(endpoint: Endpoint) -> str:
    inner = endpoint.func if isinstance(endpoint, functools.partial) else endpoint
    return str(getattr(inner, "__name__", "endpoint"))


def _problem_answers(slugs: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """Documented problem answers by status; several problems of one status share an entry."""
    by_status: dict[int, list[str]] = {}
    for slug in sorted(slugs):
        by_status.setdefault(PROBLEMS[slug].status, []).append(slug)
    return {
        status: {
            "description": "; ".join(f"`{slug}`: {PROBLEMS[slug].title}" for slug in found),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, found in sorted(by_status.items())
    }
