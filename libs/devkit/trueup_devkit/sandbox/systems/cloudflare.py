"""Cloudflare's API for purging (`/client/v4`), and on the same port the edge in front of the sandbox's WordPress.

The edge serves whatever `Host` it is asked for, each host with a cache of its own, and asks the WordPress of this world
as its origin. It caches every public page, as a zone with the rule "cache everything" does. One API token per tenant,
good for the tenant's zone only; which errors come with which status follows the documented envelopes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trueup_devkit.sandbox.faults import Interference, interference
from trueup_devkit.sandbox.store import Change, Effect, Store
from trueup_devkit.sandbox.system import Refusal
from trueup_devkit.sandbox.systems.cloudflare_edge import (
    COLLECTION,
    Page,
    challenge,
    fetched,
    hit,
    is_cacheable,
    is_fresh,
    kept,
    key_of,
    key_of_url,
    signed,
    tampered,
)
from trueup_devkit.sandbox.systems.wordpress import SITES, WordPress

API: Final = "/client/v4"
FILES_MAX: Final = 30
ZONES: Final[dict[str, str]] = {
    "acme": "ac3e0000000000000000000000000001",
    "globex": "910be800000000000000000000000002",
}
_MAX_BODY_BYTES: Final = 1 << 20
_TENANT_OF_ZONE: Final = {zone: tenant for tenant, zone in ZONES.items()}


def zone_token(tenant: str) -> str:
    """The API token of a sandbox tenant. Made up here, known to everybody, good for nothing else."""
    return f"sandbox-cloudflare-{tenant}"


_TENANT_OF_TOKEN: Final = {zone_token(tenant): tenant for tenant in ZONES}


class ApiError(Exception):
    """An error as the API answers it."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def _envelope(result: Any, *, messages: tuple[dict[str, Any], ...] = ()) -> Response:
    return _json({"success": True, "errors": [], "messages": list(messages), "result": result})


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


class Cloudflare:
    """The API and the edge; cached objects live in the collection `cloudflare.object`."""

    rewritable: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: Store, _url: str) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path: str = scope["path"]
        try:
            if path == API or path.startswith(f"{API}/"):
                answer = await self._api(request, path[len(API) :].rstrip("/"))
            else:
                answer = await self._edge(request, path)
        except ApiError as error:
            body = {"success": False, "errors": [{"code": error.code, "message": error.message}], "messages": []}
            answer = _json({**body, "result": None}, error.status)
        except ClientDisconnect:
            return
        await answer(scope, receive, send)

    async def _api(self, request: Request, route: str) -> Response:
        disturbed = interference(request.scope)
        tenant = _caller(request)
        if disturbed.deny_reads:
            raise ApiError(403, 10000, "Authentication error")
        if route == "/user/tokens/verify" and request.method == "GET":
            active = {"code": 10000, "message": "This API Token is valid and active", "type": None}
            return _envelope({"id": ZONES[tenant][::-1], "status": "active"}, messages=(active,))
        parts = route.split("/")[1:]
        if len(parts) in (2, 3) and parts[0] == "zones":
            zone = _zone(parts[1], tenant, route)
            if len(parts) == 2 and request.method == "GET":
                return _envelope({"id": zone, "name": f"{tenant}.example", "status": "active", "paused": False})
            if parts[2:] == ["purge_cache"] and request.method == "POST":
                return await self._purge(request, zone, disturbed)
        raise ApiError(400, 7000, "No route for that URI")

    async def _purge(self, request: Request, zone: str, disturbed: Interference) -> Response:
        keys = _keys(await _document(request), _TENANT_OF_ZONE[zone])
        if disturbed.pause is not None:
            await disturbed.pause()
        cached = self._store.documents(COLLECTION)
        gone = [Change(COLLECTION, key, None) for key in keys if key in cached]
        seq = self._store.apply(Effect("cloudflare", "cloudflare.purge", zone, "purge"), gone)
        return _envelope({"id": f"{seq:032x}"})

    async def _edge(self, request: Request, path: str) -> Response:
        scope, now = request.scope, self._store.now()
        disturbed, host = interference(scope), request.headers.get("host", "")
        key = key_of(host, path, scope["query_string"].decode("latin-1"))
        if path == "/cdn-cgi/trace":
            trace = f"fl=sandbox\nh={host}\nts={now:.3f}\nvisit_scheme=http\ncolo=SBX\n"
            return _served(Page(200, {"content-type": "text/plain", "server": "cloudflare"}, trace.encode()), request)
        if disturbed.deny_reads:
            return _served(challenge(key, now), request)
        origin = WordPress(self._store, f"http://{host}")
        if request.method not in {"GET", "HEAD"}:
            body = [{"type": "http.request", "body": await _body(request), "more_body": False}]
            return _served(signed(await fetched(origin, scope, host, body), "DYNAMIC", key, now), request)
        as_of = None if disturbed.stale_seconds is None else now - disturbed.stale_seconds
        document = self._store.documents(COLLECTION, as_of).get(key)
        if document is not None and is_fresh(document, now):
            return _served(signed(hit(document, now), "HIT", key, now), request)
        page = await fetched(origin, {**scope, "method": "GET"}, host)
        if not is_cacheable(page, scope, path):
            return _served(signed(page, "DYNAMIC", key, now), request)
        self._store.apply(None, [Change(COLLECTION, key, kept(page, now))])
        return _served(signed(page, "MISS" if document is None else "EXPIRED", key, now), request)

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Edit the cached object of a URL: evict it with `{"delete": true}`, or let an old page come back."""
        key = key_of_url(object_)
        if key is None:
            raise Refusal(404, "an object is the URL of a page")
        if change == {"delete": True}:
            self._store.apply(None, [Change(COLLECTION, key, None)])
            return {"object": object_, "deleted": True}
        try:
            document = tampered(change, self._store.now())
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        self._store.apply(None, [Change(COLLECTION, key, document)])
        return {"object": object_, "cached": document}


def _caller(request: Request) -> str:
    """The tenant whose token this is."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        raise ApiError(400, 9106, 'Missing "X-Auth-Key", "X-Auth-Email" or "Authorization" headers')
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(400, 6003, "Invalid request headers")
    tenant = _TENANT_OF_TOKEN.get(token.strip())
    if tenant is None:
        raise ApiError(403, 10000, "Authentication error")
    return tenant


def _zone(zone: str, tenant: str, route: str) -> str:
    if zone not in _TENANT_OF_ZONE:
        raise ApiError(404, 7003, f"Could not route to {route[:200]}, perhaps your object identifier is invalid?")
    if _TENANT_OF_ZONE[zone] != tenant:
        raise ApiError(403, 9109, "Unauthorized to access requested resource")
    return zone


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise ApiError(413, 1015, "The request body is too large")
    return bytes(body)


async def _document(request: Request) -> dict[str, Any]:
    try:
        document = orjson.loads(await _body(request))
    except orjson.JSONDecodeError:
        raise ApiError(400, 1012, "The request body is not JSON") from None
    if not isinstance(document, dict) or "files" not in document:
        raise ApiError(400, 1012, 'Request must contain "files": this world purges by URL only')
    return document


def _keys(document: dict[str, Any], tenant: str) -> list[str]:
    """What to purge: all of it is in order, or nothing is purged."""
    files = document["files"]
    if not isinstance(files, list) or not files:
        raise ApiError(400, 1014, '"files" must be an array')
    if len(files) > FILES_MAX:
        raise ApiError(400, 1015, f"You may only purge up to {FILES_MAX} files per API call")
    keys = []
    for item in files:
        url = item.get("url") if isinstance(item, dict) else item
        key = key_of_url(url) if isinstance(url, str) else None
        site = key.partition("/")[2].partition("/")[0] if key is not None else ""
        if key is None or (site in SITES and site != tenant):
            raise ApiError(400, 1012, f"Unable to purge {str(url)[:200]}, which is an invalid URL")
        keys.append(key)
    return keys


def _served(page: Page, request: Request) -> Response:
    headers = {**page.headers, "content-length": str(len(page.body))}
    return Response(b"" if request.method == "HEAD" else page.body, page.status, headers)
