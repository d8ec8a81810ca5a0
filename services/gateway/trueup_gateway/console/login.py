"""Coming in and going out: through the token issuer, never past it."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trueup_gateway.console.asking import closed_door
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.forms import NotOurs, form_of, read_form
from trueup_gateway.console.sessions import is_secure, log_in, log_out
from trueup_gateway.console.view import LANGUAGE_COOKIE, THEME_COOKIE, THEMES, View, view_of
from trueup_gateway.console.words import LANGUAGES
from trueup_gateway.core.refusal import Refused

ROLES: Final = ("viewer", "operator", "approver", "auditor", "admin")
TTL_SECONDS: Final = 8 * 3600
_YEAR_SECONDS: Final = 365 * 86400


def own_place(wanted: str) -> str:
    """A page of the console to go to; anything else becomes the first page."""
    parts = urlsplit(wanted)
    fits = wanted.startswith(f"{PREFIX}/") and not parts.scheme and not parts.netloc and len(wanted) <= 1000
    if not fits or any(ord(character) < 33 or character == "\\" for character in wanted):
        return f"{PREFIX}/exceptions"
    return wanted


def login_page(view: View, status: int = 200, mistakes: Sequence[str] = (), **given: object) -> Response:
    """The page to log in at."""
    return view.page(
        "login.html",
        code=status,
        roles=ROLES,
        mistakes=list(mistakes),
        given={"name": "olga", "tenant": "acme", "roles": ["operator", "approver"], "scopes": "content:*", **given},
        next=own_place(view.request.query_params.get("next", "")),
        oidc=view.gateway.issuer is not None and bool(view.gateway.settings.oidc_client_id),
    )


async def show(request: Request) -> Response:
    """Show how to log in."""
    return login_page(view_of(request))


async def enter(request: Request) -> Response:
    """Log in with the development issuer: its own endpoint mints the token, here as for everybody else."""
    view = view_of(request)
    try:
        form = await read_form(request)
    except NotOurs:
        return closed_door(view)
    if view.gateway.dev_key is None:
        return closed_door(view)
    name, tenant = form.text("name", 128), form.text("tenant", 64)
    chosen = [item for item in form.all("roles") if item in ROLES]
    scopes = form.text("scopes", 1000).replace(",", " ").split()
    asked = {
        "sub": f"operator:{name}",
        "tenant": tenant,
        "roles": chosen,
        "scopes": scopes,
        "ttl_seconds": TTL_SECONDS,
    }
    answered = await view.contract.post("/dev/token", asked)
    if not answered.done:
        problem = answered.body if isinstance(answered.body, dict) else {}
        told = [str(item.get("detail")) for item in problem.get("errors") or []] or [str(problem.get("detail") or "")]
        return login_page(view, 422, told, name=name, tenant=tenant, roles=chosen, scopes=" ".join(scopes))
    response = RedirectResponse(own_place(form.text("next", 1000)), 303)
    try:
        if view.session is not None:
            await log_out(request, response, view.session)
        await log_in(request, response, str(answered.object.get("access_token")), "development")
    except Refused as refused:
        return login_page(view, 422, [refused.detail], name=name, tenant=tenant, roles=chosen)
    return response


async def leave(request: Request) -> Response:
    """Log out: the session ends here and at every replica. Who is out already stays out."""
    view = view_of(request)
    response = RedirectResponse(f"{PREFIX}/login", 303)
    if view.session is None:
        return response
    try:
        await form_of(request, view.session)
    except NotOurs as foreign:
        return closed_door(view, foreign.form)
    await log_out(request, response, view.session)
    return response


async def prefer(request: Request) -> Response:
    """Remember a language or a theme; nobody needs to be logged in for that."""
    view = view_of(request)
    try:
        form = await read_form(request)
    except NotOurs:
        return closed_door(view)
    response = RedirectResponse(own_place(form.text("back", 1000)), 303)
    for cookie, field, allowed in ((LANGUAGE_COOKIE, "language", LANGUAGES), (THEME_COOKIE, "theme", THEMES)):
        if (value := form.text(field, 10)) in allowed:
            keep_preference(request, response, cookie, value)
    return response


def keep_preference(request: Request, response: Response, cookie: str, value: str) -> None:
    """Remember what a person prefers, for a year."""
    response.set_cookie(
        cookie,
        value,
        max_age=_YEAR_SECONDS,
        path=PREFIX,
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
