"""The site: every address of the console and what serves it."""

import logging
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.console import asking, issuer_login, live, login, pages, places
from trueup_gateway.console.asking import for_forms
from trueup_gateway.console.contract import Answered
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.login import keep_preference
from trueup_gateway.console.sessions import session_of
from trueup_gateway.console.view import LANGUAGE_COOKIE, WHO, address_of, for_people, refused_page, view_of
from trueup_gateway.console.words import LANGUAGES

log = logging.getLogger("trueup.gateway.console")

_STATIC: Final = Path(__file__).parent / "static"


async def _first(request: Request) -> Response:
    return RedirectResponse(PREFIX, 307)


async def _nowhere(request: Request) -> Response:
    """What is not there; an address with a slash too many is only misspelled."""
    view, path = view_of(request), request.url.path
    if path.endswith("/") and (shorter := path.rstrip("/")).startswith(f"{PREFIX}/"):
        return RedirectResponse(shorter, 307)
    body = {"title": view.words("nowhere.title"), "detail": view.words("nowhere.detail"), "status": 404}
    return refused_page(view, Answered(404, {}, body), f"{PREFIX}/exceptions")


class KeptFiles(StaticFiles):
    """Static files that a browser asks for again only to hear that they are the same."""

    async def get_response(self, path: str, scope: object) -> Response:
        """The file, always to be revalidated."""
        response = await super().get_response(path, scope)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def make_site() -> ASGIApp:
    """The site, made once."""
    routes = [
        Route("/", _first, methods=["GET"]),
        Mount("/static", KeptFiles(directory=_STATIC)),
        Route("/login", login.show, methods=["GET"]),
        Route("/login", login.enter, methods=["POST"]),
        Route("/login/issuer", issuer_login.begin, methods=["GET"]),
        Route("/login/callback", issuer_login.finish, methods=["GET"]),
        Route("/logout", login.leave, methods=["POST"]),
        Route("/preferences", login.prefer, methods=["POST"]),
        Route("/exceptions", for_people(pages.exceptions), methods=["GET"]),
        Route("/exceptions/{exception_id}", for_people(pages.exception), methods=["GET"]),
        Route("/cases", for_people(pages.cases), methods=["GET"]),
        Route("/cases/{workflow_id}", for_people(pages.case), methods=["GET"]),
        Route("/commands/{command_id}", for_people(pages.command), methods=["GET"]),
        Route("/decisions/{decision_id}", for_people(pages.decision), methods=["GET"]),
        Route("/approvals", for_people(places.approvals), methods=["GET"]),
        Route("/approvals/{approval_id}", for_people(places.approval), methods=["GET"]),
        Route("/approvals/{approval_id}/decide", for_forms(asking.decide), methods=["POST"]),
        Route("/repairs", for_people(places.repairs), methods=["GET"]),
        Route("/incidents", for_people(places.incidents), methods=["GET"]),
        Route("/batches", for_people(places.batches), methods=["GET"]),
        Route("/batches", for_forms(asking.batch), methods=["POST"]),
        Route("/batches/{batch_id}", for_people(places.batch), methods=["GET"]),
        Route("/batches/{batch_id}/steer", for_forms(asking.steer_batch), methods=["POST"]),
        Route("/slo", for_people(places.slo), methods=["GET"]),
        Route("/freezes", for_people(places.freezes), methods=["GET"]),
        Route("/freezes", for_forms(asking.freeze), methods=["POST"]),
        Route("/break-glass", for_forms(asking.break_glass), methods=["POST"]),
        Route("/acts", for_people(places.acts_listed), methods=["GET"]),
        Route("/freezes/{freeze_id}/lift", for_forms(asking.lift), methods=["POST"]),
        Route("/act", for_forms(asking.act), methods=["POST"]),
        Route("/live/exceptions", live.exceptions, methods=["GET"]),
        Route("/live/exceptions/{exception_id}", live.exception, methods=["GET"]),
        Route("/live/batches/{batch_id}", live.batch, methods=["GET"]),
        Route("/live/cases/{workflow_id}", live.case, methods=["GET"]),
        Route("/{rest:path}", _nowhere, methods=["GET"]),
    ]
    return Greeting(Router(routes, redirect_slashes=False, default=_unknown))


class Greeting:
    """Finds out who comes, once per request, and which language they ask for; files need neither."""

    def __init__(self, site: ASGIApp) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"].startswith(f"{PREFIX}/static/"):
            await self._site(scope, receive, send)
            return
        request = Request(scope, receive)
        response = _asks_for_language(request)
        try:
            scope[WHO] = None if response is not None else await session_of(request)
            if response is None:
                await self._site(scope, receive, send)
                return
        except StoreBusy as busy:
            log.info("console away: store busy", extra={"reason": str(busy)})
            response = _busy(request)
        await response(scope, receive, send)


def _asks_for_language(request: Request) -> Response | None:
    """An address that names a language is kept to it: the answer is the same address without it."""
    wanted = request.query_params.get("lang")
    if request.method != "GET" or wanted not in LANGUAGES or request.url.path.startswith(f"{PREFIX}/live/"):
        return None
    rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "lang"])
    response = RedirectResponse(f"{request.url.path}?{rest}" if rest else request.url.path, 303)
    keep_preference(request, response, LANGUAGE_COOKIE, wanted)
    return response


def _busy(request: Request) -> Response:
    """The store is away for a moment: nothing was changed, and one may come again."""
    view = view_of(request)
    body = {"title": view.words("busy.title"), "detail": view.words("busy.detail"), "status": 503}
    back = address_of(request) if request.method == "GET" else asking.page_of(request.url.path)
    return refused_page(view, Answered(503, {"retry-after": "2"}, body), back)


async def _unknown(scope: object, receive: object, send: object) -> None:
    raise HTTPException(404)
