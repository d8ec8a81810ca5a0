"""Public addresses as any visitor gets them: bounded in number, time, bytes and redirects, and never with a credential.

There are three answers. Broken is only what the address itself says, or what can be no address. Whoever does not
answer, refuses strangers or is in trouble just now has said nothing about the address: that is unknown, and it stays
unknown. A private network is visited only where the connection allows it, checked at every redirect and look-up.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp
from yarl import URL

from trueup_adapters.systems.http import AddressRefused, CheckedResolver, is_private_literal
from trueup_common.contracts.clean import clean_text

VISITS_MAX: Final = 50
AT_ONCE: Final = 6
AT_ONCE_PER_HOST: Final = 3
REDIRECTS_MAX: Final = 5
BYTES_MAX: Final = 4096
"""So much of a body is read at most, and only of an image: what a page says is not the question."""
ADDRESS_CHARACTERS_MAX: Final = 2000
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_UNDECIDED: Final = frozenset({401, 402, 403, 407, 408, 421, 423, 425, 429, 451})
"""Answers to this visitor, not about the address: others may well be let in."""
_NO_METHOD_HELPS: Final = frozenset({429, 503})
_SIGNATURES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


@dataclass(frozen=True, slots=True)
class Visit:
    """What a visit to one address came to. `ok` is None where nobody can tell; `reason` says why it is not True."""

    url: str
    ok: bool | None
    status: int | None = None
    reason: str | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: str
    begin: bytes
    location: str | None


class _Refused(Exception):
    """An address on the way is not visited."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(visit.reason)
        self.visit = visit


class Visitor:
    """Visits addresses; use it as a context, it keeps nothing from one use to the next."""

    def __init__(self, *, allow_private: bool, link_timeout_seconds: float, total_timeout_seconds: float) -> None:
        self._allow_private = allow_private
        self._link_seconds = link_timeout_seconds
        self._total_seconds = total_timeout_seconds
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit_per_host=AT_ONCE_PER_HOST,
            force_close=True,  # a body that nobody wants is dropped with its connection
            resolver=CheckedResolver(allow_private=self._allow_private),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            headers={"user-agent": "trueup (checks the links of an article)", "accept": "*/*"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def visit(self, pages: Sequence[str], images: Sequence[str] = ()) -> dict[str, Visit]:
        """Each address once, images first, by the address as it was given; those beyond the bound stay unknown."""
        wanted = list(dict.fromkeys((*images, *pages)))
        until = asyncio.get_running_loop().time() + self._total_seconds
        visits = await asyncio.gather(*(self._bounded(url, url in images, until) for url in wanted[:VISITS_MAX]))
        unvisited = (Visit(url, None, reason="not_checked") for url in wanted[VISITS_MAX:])
        return {visit.url: visit for visit in (*visits, *unvisited)}

    async def _bounded(self, url: str, is_image: bool, until: float) -> Visit:
        problem = self._problem(url)
        if problem is not None:
            return problem
        try:
            async with asyncio.timeout_at(until), self._slots, asyncio.timeout(self._link_seconds):
                return await self._visit(url, is_image)
        except TimeoutError:
            return Visit(url, None, reason="timeout")

    async def _visit(self, url: str, is_image: bool) -> Visit:
        if not is_image:
            asked = await self._ask("HEAD", url)
            if asked.ok or asked.status in _NO_METHOD_HELPS or asked.reason == "address_refused":
                return asked
        return await self._ask("GET", url, is_image=is_image)

    async def _ask(self, method: str, url: str, *, is_image: bool = False) -> Visit:
        try:
            answer = await self._followed(method, url, is_image)
        except _Refused as refused:
            return refused.visit
        except AddressRefused:
            return Visit(url, None, reason="address_refused")
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: a stranger's server may make a client raise anything
            lost = isinstance(error, aiohttp.ClientError | OSError)
            return Visit(url, None, reason="unreachable" if lost else "unreadable")
        return judged(url, answer.status, answer.content_type, answer.begin, is_image=is_image)

    async def _followed(self, method: str, url: str, is_image: bool) -> _Answer:
        """The first answer that is no redirect. Raises _Refused, and whatever the client raises."""
        at = url
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._once(method, at, is_image)
            if answer.status not in _REDIRECTS or answer.location is None:
                return answer
            at = urljoin(at, answer.location)
            problem = self._problem(at)
            if problem is not None:
                reason = problem.reason if problem.ok is None else "redirect_unusable"
                raise _Refused(Visit(url, problem.ok, answer.status, reason))
        raise _Refused(Visit(url, False, answer.status, "too_many_redirects"))

    async def _once(self, method: str, url: str, is_image: bool) -> _Answer:
        async with self._session.request(method, URL(urldefrag(url)[0]), allow_redirects=False) as response:
            wanted = is_image and response.status == 200
            begin = await response.content.read(BYTES_MAX) if wanted else b""
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return _Answer(response.status, clean_text(kind, 100), begin, response.headers.get("location"))

    def _problem(self, url: str) -> Visit | None:
        """Why an address is not visited; None where it is."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
            reason = _unusable(url, parts.scheme, host, bool(parts.username or parts.password))
        except ValueError:
            return Visit(url, False, reason="not_an_address")
        if reason is not None:
            return Visit(url, False, reason=reason)
        if not self._allow_private and is_private_literal(host or ""):
            return Visit(url, None, reason="address_refused")
        return None


def _unusable(url: str, scheme: str, host: str | None, has_credentials: bool) -> str | None:
    if not url:
        return "empty"
    if len(url) > ADDRESS_CHARACTERS_MAX:
        return "too_long"
    if scheme not in ("http", "https"):
        return "not_http"
    if not host or any(letter.isspace() for letter in url):
        return "not_an_address"
    return "holds_credentials" if has_credentials else None


def judged(url: str, status: int, content_type: str, begin: bytes, *, is_image: bool) -> Visit:
    """What one final answer says about its address."""
    if 200 <= status < 300:
        reason = _no_image(content_type, begin) if is_image else None
        return Visit(url, reason is None, status, reason, content_type or None)
    if status in _UNDECIDED:
        return Visit(url, None, status, "refuses_visitors", content_type or None)
    if status >= 500:
        return Visit(url, None, status, "server_failed", content_type or None)
    return Visit(url, False, status, f"status_{status}", content_type or None)


def _no_image(content_type: str, begin: bytes) -> str | None:
    """Why an answer is no image; None where it is one."""
    if not content_type.startswith("image/"):
        return "not_an_image"
    if not begin:
        return "empty_image"
    signatures = _SIGNATURES.get(content_type)
    return "not_an_image" if signatures and not begin.startswith(signatures) else None
