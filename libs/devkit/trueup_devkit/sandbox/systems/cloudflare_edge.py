"""The edge: it keeps what the origin said of a public URL until it expires or somebody purges it.

Everything about a cached object as a pure function of its document and the time; the documents live in the store.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Scope

from trueup_devkit.sandbox.store import Document

COLLECTION: Final = "cloudflare.object"
TTL_SECONDS: Final[dict[int, int]] = {200: 7200, 206: 7200, 301: 7200, 302: 1200, 303: 1200, 404: 180, 410: 180}
"""How long the edge keeps an answer by its status; what is not here is not cached."""
_KEPT_HEADERS: Final = ("content-type", "location", "link", "last-modified", "etag", "cache-control")


@dataclass(slots=True)
class Page:
    """An answer on its way through the edge."""

    status: int = 502
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def key_of(host: str, path: str, query: str) -> str:
    """Under what the edge keeps an answer: host, path and the query as it stands. The scheme is not part of it."""
    return f"{host.lower()}{path or '/'}" + (f"?{query}" if query else "")


def key_of_url(url: str) -> str | None:
    """The key of a URL to purge; None where that is no URL of a page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.netloc or any(not "!" <= letter <= "~" for letter in url):
        return None
    return key_of(parts.netloc, parts.path, parts.query)


def kept(page: Page, now: float) -> Document:
    """The document of a cached answer."""
    headers = {name: value for name, value in page.headers.items() if name in _KEPT_HEADERS}
    return {"status": page.status, "headers": headers, "body": page.body.decode("utf-8", "replace"), "stored_at": now}


def is_fresh(document: Document, now: float) -> bool:
    """True until the object expires."""
    return bool(now - document["stored_at"] < TTL_SECONDS.get(document["status"], 0))


def hit(document: Document, now: float) -> Page:
    """A cached answer as it is served."""
    age = max(0, int(now) - int(document["stored_at"]))
    return Page(document["status"], {**document["headers"], "age": str(age)}, document["body"].encode())


def is_cacheable(page: Page, scope: Scope, path: str) -> bool:
    """A visitor's page, and nothing that somebody with an account asked for."""
    directives = page.headers.get("cache-control", "")
    private = any(word in directives for word in ("no-store", "no-cache", "private"))
    named = any(name == b"authorization" for name, _ in scope["headers"])
    return page.status in TTL_SECONDS and not private and not named and "/wp-json" not in path


def signed(page: Page, cache_status: str, key: str, now: float) -> Page:
    """With the edge's own headers."""
    ray = hashlib.sha256(f"{key}{now}".encode()).hexdigest()[:16]
    return Page(
        page.status,
        {**page.headers, "server": "cloudflare", "cf-cache-status": cache_status, "cf-ray": f"{ray}-SBX"},
        page.body,
    )


def challenge(key: str, now: float) -> Page:
    """What a visitor gets whom the edge does not trust: no answer of the site."""
    ray = hashlib.sha256(f"{key}{now}".encode()).hexdigest()[:16]
    headers = {"content-type": "text/html", "server": "cloudflare", "cf-mitigated": "challenge", "cf-ray": f"{ray}-SBX"}
    return Page(403, headers, b"<!DOCTYPE html><title>Just a moment...</title>")


async def fetched(origin: ASGIApp, scope: Scope, host: str, body: Iterable[Message] = ()) -> Page:
    """What the origin answers to this request."""
    page, waiting = Page(), list(body)

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            page.status = message["status"]
            page.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            page.body += message.get("body", b"")

    headers = [(name, value) for name, value in scope["headers"] if name != b"host"] + [(b"host", host.encode())]
    asked = {key: value for key, value in scope.items() if key not in ("interference", "transport", "state")}
    await origin({**asked, "headers": headers}, receive, send)
    page.headers.pop("content-length", None)
    return page


def tampered(change: Mapping[str, Any], now: float) -> Document:
    """An object that an outsider put into the cache. Raises ValueError."""
    status, age, body = change.get("status", 200), change.get("age_seconds", 3600), change.get("body")
    if set(change) - {"status", "age_seconds", "body", "content_type"} or not isinstance(body, str):
        raise ValueError("an object has body, and optionally status, age_seconds and content_type")
    if not isinstance(status, int) or status not in TTL_SECONDS:
        raise ValueError(f"status is one of {', '.join(map(str, TTL_SECONDS))}")
    if isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age < TTL_SECONDS[status]:
        raise ValueError(f"age_seconds is a number below {TTL_SECONDS[status]}")
    content_type = change.get("content_type", "text/html; charset=utf-8")
    if not isinstance(content_type, str) or not content_type.isascii() or not content_type.isprintable():
        raise ValueError("content_type is a media type")
    return {"status": status, "headers": {"content-type": content_type}, "body": body, "stored_at": now - age}
