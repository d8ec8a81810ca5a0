"""A request handed on to a real system, and its answer handed back unchanged but for what belongs to the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from yarl import URL

_NOT_PASSED: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})


def raw_path(request: Request) -> str:
    """Path and query, as they were sent."""
    query = request.scope["query_string"].decode("latin-1")
    return request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")


def headers_of(request: Request) -> dict[str, str]:
    """What the caller said, without what was between him and us."""
    return {name: value for name, value in request.headers.items() if name not in _NOT_PASSED}


async def passed_on(
    http: aiohttp.ClientSession, request: Request, address: str, headers: Mapping[str, str]
) -> Response:
    """The real system's answer."""
    body = await request.body()
    url = URL(address, encoded=True)
    async with http.request(request.method, url, data=body or None, headers=headers, allow_redirects=False) as answer:
        content = await answer.read()
        passed = Response(content, answer.status)
        passed.raw_headers = [
            (name.lower(), value)
            for name, value in answer.raw_headers
            if name.decode("latin-1").lower() not in _NOT_PASSED
        ]
        passed.raw_headers.append((b"content-length", str(len(content)).encode()))
        return passed
