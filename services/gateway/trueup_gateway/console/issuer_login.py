"""Logging in at an external issuer: OpenID Connect, authorization code, PKCE; it ends in the browser that began it.

The access token that comes of it is the person's token in this gateway; the id token only proves that it is the answer
to this very login.
"""

import asyncio
import hmac
import logging
import secrets
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trueup_common.runtime.clock import real_now
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.login import login_page, own_place
from trueup_gateway.console.sessions import cookie_name, drop_cookie, log_in, log_out, put_cookie, seal_of
from trueup_gateway.console.view import view_of
from trueup_gateway.core.refusal import Refused
from trueup_gateway.issuers import FETCH_SECONDS_MAX, Description, IssuerAway, client
from trueup_gateway.tokens import EXTERNAL_ALGORITHMS

log = logging.getLogger("trueup.gateway.console")

COOKIE: Final = "trueup_console_login"
LOGIN_SECONDS_MAX: Final = 600
SKEW_SECONDS: Final = 60


class LoginFailed(Exception):
    """The issuer's answer cannot be taken; the message is for the log and holds no secret."""


def callback_url(request: Request) -> str:
    """Where the issuer sends the person back to."""
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return f"{gateway_of(request).settings.public_url.rstrip('/') or own}{PREFIX}/login/callback"


async def begin(request: Request) -> Response:
    """Send the person to the issuer."""
    view, gateway = view_of(request), gateway_of(request)
    if gateway.issuer is None or not gateway.settings.oidc_client_id:
        return login_page(view, 404)
    try:
        described = await gateway.issuer.description()
    except IssuerAway as away:
        log.warning("no login: issuer away", extra={"reason": str(away)})
        return login_page(view, 503, [view.words("login.away")])
    kept = {
        "state": secrets.token_urlsafe(24),
        "nonce": secrets.token_urlsafe(24),
        "verifier": secrets.token_urlsafe(48),
        "next": own_place(request.query_params.get("next", "")),
        "until": int(real_now().timestamp()) + LOGIN_SECONDS_MAX,
    }
    async with client(gateway.settings, redirect_uri=callback_url(request), scope=gateway.settings.oidc_scopes) as http:
        address, _ = http.create_authorization_url(
            described.authorization_endpoint,
            state=kept["state"],
            code_verifier=kept["verifier"],
            nonce=kept["nonce"],
        )
    response = RedirectResponse(str(address), 303)
    sealed = seal_of(gateway).seal(kept)
    put_cookie(request, response, COOKIE, sealed, seconds=LOGIN_SECONDS_MAX, strictness="lax")
    return response


async def finish(request: Request) -> Response:
    """Take the issuer's answer: it must be the answer to what this browser began, once, in time."""
    view, gateway = view_of(request), gateway_of(request)
    kept = seal_of(gateway).open(request.cookies.get(cookie_name(request, COOKIE), ""))
    try:
        token = await _token(request, kept)
        response: Response = RedirectResponse(own_place(str(kept.get("next") or "")), 303)
        if view.session is not None:
            await log_out(request, response, view.session)
        await log_in(request, response, token, "oidc")
    except (LoginFailed, IssuerAway, Refused) as failed:
        log.warning("login refused", extra={"reason": str(failed)})
        response = login_page(view, 403, [view.words("login.failed")])
    drop_cookie(request, response, COOKIE)
    return response


async def _token(request: Request, kept: dict[str, Any]) -> str:
    """The access token of a login. Raises LoginFailed and IssuerAway."""
    gateway, given = gateway_of(request), request.query_params
    if gateway.issuer is None or not kept or int(kept.get("until") or 0) < real_now().timestamp():
        raise LoginFailed("no login was begun in this browser, or its time is over")
    if not hmac.compare_digest(str(kept["state"]).encode(), given.get("state", "").encode()):
        raise LoginFailed("the state is another one")
    if "error" in given or not given.get("code"):
        raise LoginFailed("the issuer refused")
    described = await gateway.issuer.description()
    if given.get("iss", described.issuer) != described.issuer:
        raise LoginFailed("another issuer answered")
    answered = await _exchanged(request, described, str(given["code"]), str(kept["verifier"]))
    claims = _proof(gateway.verifier.keys_of(described.issuer), str(answered.get("id_token") or ""))
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    now = real_now().timestamp()
    fits = (
        claims.get("iss") == described.issuer
        and gateway.settings.oidc_client_id in named
        and hmac.compare_digest(str(claims.get("nonce")).encode(), str(kept["nonce"]).encode())
        and isinstance(claims.get("exp"), int)
        and claims["exp"] > now - SKEW_SECONDS
    )
    if not fits:
        raise LoginFailed("the id token is not the answer to this login")
    return str(answered.get("access_token") or "")


async def _exchanged(request: Request, described: Description, code: str, verifier: str) -> dict[str, Any]:
    settings = gateway_of(request).settings
    try:
        async with (
            asyncio.timeout(FETCH_SECONDS_MAX),
            client(settings, redirect_uri=callback_url(request), scope=settings.oidc_scopes) as http,
        ):
            answered = await http.fetch_token(described.token_endpoint, code=code, code_verifier=verifier)
    except Exception as error:  # noqa: BLE001 - the boundary: a code that cannot be exchanged lets nobody in
        raise LoginFailed(f"the code could not be exchanged: {type(error).__name__}") from None
    return dict(answered)


def _proof(keys: dict[str, Any], id_token: str) -> dict[str, Any]:
    """The claims of an id token under a genuine signature of the issuer. Raises LoginFailed."""
    try:
        decoded = jwt.decode(id_token, KeySet(list(keys.values())), algorithms=list(EXTERNAL_ALGORITHMS))
    except (JoseError, ValueError, TypeError, KeyError):
        raise LoginFailed("the id token's signature does not hold") from None
    return dict(decoded.claims)
