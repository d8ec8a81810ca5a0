"""The console's only way to anything: the public HTTP contract, called in this process as the person who is logged in.

A call goes through the same routes as one from outside, with that person's access token: what the contract refuses
them, the console cannot do for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON: Final = "json"


@dataclass(frozen=True)
class Answered:
    """One answer of the contract."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def done(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items of a list; a list that is not there (yet) is empty."""
        found = self.body.get("items") if self.done and isinstance(self.body, dict) else None
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    @property
    def object(self) -> dict[str, Any]:
        """The object of an answer; empty where there is none."""
        return self.body if self.done and isinstance(self.body, dict) else {}


@dataclass
class _Collected:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            self.pieces.append(message.get("body", b""))


class Contract:
    """The contract as one person may use it; without a token only what needs none."""

    def __init__(self, request: Request, token: str | None) -> None:
        self._app: ASGIApp = request.app
        self._origin: Scope = dict(request.scope)
        self._token = token

    async def get(self, path: str, **query: Any) -> Answered:
        """Read something. Parameters that are None are left out."""
        return await self._call("GET", path, query, None, None)

    async def post(self, path: str, body: Any, key: str | None = None) -> Answered:
        """Change something under an idempotency key."""
        return await self._call("POST", path, {}, body, key)

    async def delete(self, path: str, key: str) -> Answered:
        """Take something away."""
        return await self._call("DELETE", path, {}, None, key)

    async def follow(self, path: str, last_event_id: str | None, receive: Receive, send: Send) -> None:
        """Pass a stream of the contract through as it comes."""
        extra = [(b"last-event-id", last_event_id.encode("latin-1", "replace"))] if last_event_id else []
        await self._app(self._scope("GET", path, {}, extra), receive, send)

    async def _call(self, method: str, path: str, query: Mapping[str, Any], body: Any, key: str | None) -> Answered:
        content = b"" if body is None else orjson.dumps(body)
        extra = [(b"content-type", b"application/json")] if body is not None else []
        if key is not None:
            quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
            extra.append((b"idempotency-key", quoted.encode("latin-1", "replace")))
        collected, sent = _Collected(), False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        await self._app(self._scope(method, path, query, extra), receive, collected.send)
        return Answered(collected.status, collected.headers, _parsed(b"".join(collected.pieces)))

    def _scope(
        self, method: str, path: str, query: Mapping[str, Any], extra: list[tuple[bytes, bytes]]
    ) -> dict[str, Any]:
        headers = [(b"accept", b"application/json"), *extra]
        if self._token is not None:
            headers.append((b"authorization", b"Bearer " + self._token.encode("latin-1", "replace")))
        asked = urlencode({name: _spelled(value) for name, value in query.items() if value is not None})
        kept = ("type", "asgi", "http_version", "scheme", "server", "client", "trueup.gateway", "trueup.traceparent")
        return {
            **{name: self._origin[name] for name in kept if name in self._origin},
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": asked.encode(),
            "root_path": "",
            "headers": headers,
            "state": {},
        }


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw) if raw else None
    except orjson.JSONDecodeError:
        return None
