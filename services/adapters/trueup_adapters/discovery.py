"""What adapters answer to systems that come and ask, at `GET /discovery/<system>/<tenant>`; every replica answers it.

An answer that is not known is 503, never an empty list: who asks keeps what it was told last.
"""

import hmac
import logging
from collections.abc import Mapping
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trueup_adapters.execution import Line
from trueup_common.contracts.adapter import Discoverable, DocumentsAway
from trueup_common.contracts.canonical import sha256_hex

log = logging.getLogger("trueup.discovery")

PATH: Final = "/discovery/{system}/{tenant}"
TOKEN: Final = "discovery_token"
"""The setting of a connection that closes its page to everyone without this bearer token."""


def discovery_routes(lines: Mapping[tuple[str, str], Line]) -> list[Route]:
    """The route, over connections by (tenant, system)."""

    async def answer(request: Request) -> Response:
        line = lines.get((request.path_params["tenant"], request.path_params["system"]))
        if line is None or not isinstance(line.target, Discoverable):
            return _json(404, {"error": "nothing is to be discovered here"})
        token = line.connection.settings.get(TOKEN)
        if token is not None and not _holds(request.headers.get("authorization"), str(token)):
            return _json(401, {"error": "a bearer token is needed"}, {"www-authenticate": "Bearer"})
        try:
            content = orjson.dumps(await line.target.discovery())
        except DocumentsAway as away:
            log.warning("discovery could not be answered", extra={"reason": str(away)})
            return _json(503, {"error": "not known at present"})
        etag = f'"{sha256_hex(content)[:32]}"'
        headers = {"etag": etag, "cache-control": "no-cache"}
        if etag in [item.strip() for item in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, media_type="application/json")

    return [Route(PATH, answer)]


def _holds(authorization: str | None, token: str) -> bool:
    scheme, _, given = (authorization or "").partition(" ")
    return bool(token) and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _json(status: int, body: dict[str, str], headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
