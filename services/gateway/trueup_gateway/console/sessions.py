"""Sessions: the access token sealed into a cookie that no script can read, and a form token that only its pages know.

The cookie opens nothing by itself: the session must stand in the gateway's own table, which every replica reads. To log
out takes it away there, and a copy of the cookie is worth nothing. The token is in the cookie alone, so the table opens
nothing either. A session ends with its access token at the latest.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.runtime.clock import real_now
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.core.refusal import Refused
from trueup_gateway.store.sessions import SessionRow
from trueup_gateway.tokens import Caller, new_nonce

COOKIE: Final = "trueup_console"
COOKIE_BYTES_MAX: Final = 4000
_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}
_SEALS: Final = ["dir", "A256GCM"]


@dataclass(frozen=True)
class Session:
    """A person who is logged in."""

    token: str
    secret: str
    caller: Caller
    flow: str
    """How they came in: `development` or `oidc`."""


class Seal:
    """Seals small documents with a key that only gateways with the same signing key have."""

    def __init__(self, gateway: Gateway) -> None:
        private = str(gateway.signing_key.key.as_dict(private=True)["d"]).encode()
        self._key = OctKey.import_key(_derived(private, b"trueup console session"))
        self._forms = _derived(private, b"trueup console forms")

    def seal(self, document: dict[str, Any]) -> str:
        """The sealed document."""
        return jwe.encrypt_compact(_HEADER, orjson.dumps(document), self._key, algorithms=_SEALS)

    def open(self, text: str) -> dict[str, Any]:
        """The document; empty where the seal does not hold."""
        try:
            found = orjson.loads(jwe.decrypt_compact(text, self._key, algorithms=_SEALS).plaintext or b"")
        except (JoseError, ValueError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    def form_token(self, secret: str) -> str:
        """What a form of this session carries."""
        return hmac.new(self._forms, secret.encode(), hashlib.sha256).hexdigest()


def _derived(private: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose).derive(private)


def seal_of(gateway: Gateway) -> Seal:
    """The seal of this gateway."""
    return Seal(gateway)


def is_secure(request: Request) -> bool:
    """True where people reach this gateway over TLS, here or at the proxy before it."""
    public = gateway_of(request).settings.public_url
    return public.startswith("https://") if public else request.url.scheme == "https"


def cookie_name(request: Request, name: str = COOKIE) -> str:
    """The cookie's name: over TLS with the prefix that binds it to this host and path."""
    return f"__Host-{name}" if is_secure(request) else name


async def session_of(request: Request) -> Session | None:
    """Who is logged in; None where nobody is, where the token is not good any more, or where the session was ended.
    Raises StoreBusy."""
    sealed = request.cookies.get(cookie_name(request), "")
    if not sealed:
        return None
    gateway = gateway_of(request)
    found = seal_of(gateway).open(sealed)
    token, secret, flow = found.get("token"), found.get("secret"), found.get("flow")
    if not (isinstance(token, str) and isinstance(secret, str) and isinstance(flow, str)):
        return None
    try:
        caller = gateway.verifier.caller(token, real_now())
    except Refused:
        return None
    session = Session(token, secret, caller, flow)
    return session if await is_open(gateway, session) else None


async def is_open(gateway: Gateway, session: Session) -> bool:
    """True until the session was ended, at this replica or at another. Raises StoreBusy."""
    return await gateway.reads.session_is_open(session_id(session.secret))


def session_id(secret: str) -> str:
    """What a session is called in the table: nobody finds the secret from it."""
    return hashlib.sha256(f"session:{secret}".encode()).hexdigest()


async def log_in(request: Request, response: Response, token: str, flow: str) -> None:
    """Give the person their session. Raises Refused where the token is not good, or too large for a cookie, and
    StoreBusy."""
    gateway = gateway_of(request)
    caller = gateway.verifier.caller(token, real_now())
    secret = new_nonce()
    sealed = seal_of(gateway).seal({"token": token, "secret": secret, "flow": flow})
    if len(sealed) > COOKIE_BYTES_MAX:
        raise Refused("too-large", "The access token is too large for a session.")
    until = datetime.fromtimestamp(caller.expires_at, UTC)
    async with gateway.store.transaction() as tx:
        await tx.open_session(SessionRow(session_id(secret), caller.tenant, caller.subject, until))
    seconds = max(1, caller.expires_at - int(real_now().timestamp()))
    # An issuer sends the browser back from its own site: a strict cookie would not come along on that way.
    strictness = "lax" if flow == "oidc" else "strict"
    put_cookie(request, response, COOKIE, sealed, seconds=seconds, strictness=strictness)


async def log_out(request: Request, response: Response, session: Session) -> None:
    """End the session, here and at every replica. Raises StoreBusy."""
    async with gateway_of(request).store.transaction() as tx:
        await tx.end_session(session_id(session.secret))
    drop_cookie(request, response)


def put_cookie(request: Request, response: Response, name: str, value: str, *, seconds: int, strictness: str) -> None:
    """A cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=seconds,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="strict" if strictness == "strict" else "lax",
    )


def drop_cookie(request: Request, response: Response, name: str = COOKIE) -> None:
    """Take a cookie away."""
    response.delete_cookie(cookie_name(request, name), path="/", secure=is_secure(request), httponly=True)


def comes_from_here(request: Request) -> bool:
    """True where a form was sent from a page of this gateway: by what the browser says, which no page can forge."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        return origin in _own_origins(request)
    return site == "same-origin"


def _own_origins(request: Request) -> set[str]:
    own = {f"{request.url.scheme}://{request.headers.get('host', '')}"}
    public = urlsplit(gateway_of(request).settings.public_url)
    if public.scheme and public.netloc:
        own.add(f"{public.scheme}://{public.netloc}")
    return own


def form_token_holds(request: Request, session: Session, given: str) -> bool:
    """True where the form was made for this session."""
    wanted = seal_of(gateway_of(request)).form_token(session.secret)
    return hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace"))
