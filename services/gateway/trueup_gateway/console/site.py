"""The site: every address of the console and what serves it."""

from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from trueup_gateway.console import acts, issuer_login, live, login, pages, places
from trueup_gateway.console.contract import Answered
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.view import for_people, refused_page, view_of

_STATIC: Final = Path(__file__).parent / "static"


async def _nowhere(request: Request) -> Response:
    view = view_of(request)
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
        Route("/approvals/{approval_id}/decide", acts.decide, methods=["POST"]),
        Route("/repairs", for_people(places.repairs), methods=["GET"]),
        Route("/incidents", for_people(places.incidents), methods=["GET"]),
        Route("/batches", for_people(places.batches), methods=["GET"]),
        Route("/batches", acts.batch, methods=["POST"]),
        Route("/batches/{batch_id}", for_people(places.batch), methods=["GET"]),
        Route("/batches/{batch_id}/steer", acts.steer_batch, methods=["POST"]),
        Route("/slo", for_people(places.slo), methods=["GET"]),
        Route("/freezes", for_people(places.freezes), methods=["GET"]),
        Route("/freezes", acts.freeze, methods=["POST"]),
        Route("/break-glass", acts.break_glass, methods=["POST"]),
        Route("/acts", for_people(places.acts_listed), methods=["GET"]),
        Route("/freezes/{freeze_id}/lift", acts.lift, methods=["POST"]),
        Route("/act", acts.act, methods=["POST"]),
        Route("/live/exceptions", live.exceptions, methods=["GET"]),
        Route("/live/batches/{batch_id}", live.batch, methods=["GET"]),
        Route("/live/cases/{workflow_id}", live.case, methods=["GET"]),
        Route("/{rest:path}", _nowhere, methods=["GET"]),
    ]
    return Router(routes, redirect_slashes=False, default=_unknown)


async def _unknown(scope: object, receive: object, send: object) -> None:
    raise HTTPException(404)
