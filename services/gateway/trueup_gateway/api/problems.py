"""Problem documents (RFC 9457): every refusal in one shape, and nothing of the inside in any of them."""

from typing import Any, Final

import orjson
from starlette.responses import Response
from starlette.types import Scope

from trueup_common.runtime.tracing import trace_id_of
from trueup_gateway.core.refusal import Refused

MEDIA_TYPE: Final = "application/problem+json"
INTERNAL_DETAIL: Final = "The gateway failed; nothing of this request was kept."


def document(refused: Refused, instance: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    problem = refused.problem
    body: dict[str, Any] = {
        "type": f"/problems/{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": refused.detail,
        "instance": instance,
        "advice": refused.advice,
    }
    if refused.check is not None:
        body["check"] = refused.check
    if refused.errors:
        body["errors"] = [{"pointer": pointer, "detail": detail} for pointer, detail in refused.errors]
    body.update(refused.extra)
    return body


def instance_of(scope: Scope) -> str:
    """What names this occurrence: the trace of the request."""
    trace_id = trace_id_of(scope.get("trueup.traceparent"))
    return f"urn:trueup:request:{trace_id}" if trace_id else "urn:trueup:request:unknown"


def problem_response(refused: Refused, scope: Scope) -> Response:
    """The answer to a refused request."""
    headers = {"Cache-Control": "no-store"}
    if refused.problem.status == 401:
        fault = "" if refused.anonymous else ', error="invalid_token"'
        headers["WWW-Authenticate"] = f'Bearer realm="trueup"{fault}'
    if refused.retry_after_seconds is not None:
        headers["Retry-After"] = str(refused.retry_after_seconds)
    if refused.problem.status == 413:
        headers["Connection"] = "close"
    allow = refused.extra.pop("allow", None)
    if allow:
        headers["Allow"] = str(allow)
    body = orjson.dumps(document(refused, instance_of(scope)))
    return Response(body, status_code=refused.problem.status, headers=headers, media_type=MEDIA_TYPE)
