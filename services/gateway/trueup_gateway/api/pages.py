"""Pages and probes: health, metrics, offline docs, public keys, and a page for every problem type."""

import html
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import fastapi_offline
import orjson
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from trueup_common.contracts import asyncapi
from trueup_common.contracts.problems import CHECKS_401, CHECKS_403, PROBLEMS, ProblemType
from trueup_common.runtime.metrics import exposition
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import Body, answer, not_found
from trueup_gateway.api.route import LeanRoute, path_parameter, route

STATIC_URL: Final = "/docs/static"
_STATIC: Final = Path(str(fastapi_offline.__file__)).parent / "static"


_TAKE_OVER_TOKENS: Final = """
const plainFetch = window.fetch;
window.fetch = async (...call) => {
  const response = await plainFetch(...call);
  if (response.ok) {
    const path = new URL(response.url).pathname;
    const body = /\\/(dev\\/token|v1\\/capabilities)$/.test(path) ? await response.clone().json() : {};
    if (body.access_token) ui.preauthorizeApiKey("access", body.access_token);
    if (body.capability) ui.preauthorizeApiKey("capability", body.capability);
  }
  return response;
};
"""
"""The docs page puts the tokens it was given where *Authorize* keeps them; nobody copies five hundred characters."""


class Health(Body):
    """How the process is."""

    status: str
    missing: list[str] = Field(default=[])


class Keys(Body):
    """A JSON Web Key Set."""

    keys: list[dict[str, Any]]


class ProblemPage(Body):
    """What a problem type means."""

    type: str
    title: str
    status: int
    advice: str
    checks: list[str]


async def livez(request: Request) -> Response:
    """Answers while the process runs."""
    return answer({"status": "live", "missing": []})


async def readyz(request: Request) -> Response:
    """Answers 200 when requests can be served; else 503 with everything that is missing."""
    gateway = gateway_of(request)
    missing = [reason for reason in (check() for check in gateway.ready) if reason]
    try:
        await gateway.reads.alive()
    except StoreBusy as busy:
        missing.append(f"database: {busy}")
    return answer({"status": "unready" if missing else "ready", "missing": missing}, 503 if missing else 200)


async def metrics(request: Request) -> Response:
    """All metrics of this process in Prometheus' text format."""
    return Response(exposition(), media_type="text/plain; version=0.0.4")


async def jwks(request: Request) -> Response:
    """The public keys that verify capabilities and, in development mode, access tokens."""
    gateway = gateway_of(request)
    keys = [gateway.signing_key, *([gateway.dev_key] if gateway.dev_key else [])]
    return answer({"keys": [key.public() for key in keys]}, headers={"Cache-Control": "public, max-age=300"})


async def problem(request: Request) -> Response:
    """What a problem type means and what the caller can do next."""
    found = PROBLEMS.get(str(request.path_params["slug"]))
    if found is None:
        raise not_found()
    checks = [*CHECKS_401] if found.slug == "unauthorized" else [*CHECKS_403] if found.slug == "forbidden" else []
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_problem_html(found, checks))
    return answer(
        {
            "type": f"/problems/{found.slug}",
            "title": found.title,
            "status": found.status,
            "advice": found.advice,
            "checks": checks,
        }
    )


def _problem_html(found: ProblemType, checks: list[str]) -> str:
    listed = f"<p>Possible values of <code>check</code>: {html.escape(', '.join(checks))}</p>" if checks else ""
    return (
        "<!doctype html><meta charset=utf-8>"
        f"<title>{html.escape(found.title)}</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}</style>"
        f"<h1>{found.status} {html.escape(found.title)}</h1><p><code>/problems/{found.slug}</code></p>"
        f"<p>{html.escape(found.advice)}</p>{listed}"
    )


async def docs(request: Request) -> Response:
    """The API, to read and to try, without any other server."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Trueup",
        swagger_js_url=f"{STATIC_URL}/swagger-ui-bundle.js",
        swagger_css_url=f"{STATIC_URL}/swagger-ui.css",
        swagger_favicon_url=f"{STATIC_URL}/favicon.png",
        swagger_ui_parameters={
            "tryItOutEnabled": True,
            "persistAuthorization": True,
            "displayRequestDuration": True,
            "defaultModelsExpandDepth": 0,
        },
    )
    return HTMLResponse(bytes(page.body).decode().replace("</body>", f"<script>{_TAKE_OVER_TOKENS}</script></body>"))


async def root(request: Request) -> Response:
    """The start of everything for a person: the docs."""
    return RedirectResponse("/docs", 307)


@lru_cache(maxsize=1)
def _bus_document() -> bytes:
    return orjson.dumps(asyncapi.document())


async def bus_document(request: Request) -> Response:
    """The messages between the services, as an AsyncAPI document."""
    return Response(_bus_document(), media_type="application/json")


PLAIN_ROUTES: Final[list[Route | Mount]] = [
    Route("/", root, methods=["GET"]),
    Route("/asyncapi.json", bus_document, methods=["GET"]),
    Route("/docs", docs, methods=["GET"]),
    Mount(STATIC_URL, StaticFiles(directory=_STATIC)),
]

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/livez",
        livez,
        tag="health",
        summary="Is the process alive?",
        answers={200: ("It is", Health)},
        security=None,
    ),
    route(
        "GET",
        "/readyz",
        readyz,
        tag="health",
        summary="Can requests be served?",
        answers={200: ("Yes", Health), 503: ("No; what is missing", Health)},
        security=None,
    ),
    route(
        "GET",
        "/metrics",
        metrics,
        tag="health",
        summary="Metrics",
        answers={200: ("Prometheus' text format", None)},
        security=None,
        media_type="text/plain",
    ),
    route(
        "GET",
        "/.well-known/jwks.json",
        jwks,
        tag="keys",
        summary="Public keys",
        answers={200: ("A JSON Web Key Set", Keys)},
        security=None,
    ),
    route(
        "GET",
        "/problems/{slug}",
        problem,
        tag="problems",
        summary="What a problem type means",
        answers={200: ("The problem type", ProblemPage)},
        security=None,
        parameters=(path_parameter("slug", "The problem type.", "body-malformed"),),
        problems=("not-found",),
    ),
]
