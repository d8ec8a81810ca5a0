"""The one way adapters speak HTTP (not a system itself): each write leaves once, and it is known whether it left.

Libraries differ in what they call an error, so nothing here trusts an exception's name. The only fact that decides is
`sent`: whether the request was handed to a connection. It is set in the last hook before the first byte, where the
connection is already held; there `send_by` is checked again, and there a second sending of the same write is refused.
aiohttp itself, because of that hook and because it costs a third of the CPU of a client on top of it.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ClientResponse
from aiohttp.connector import Connection as HeldConnection
from yarl import URL

from trueup_adapters.core.classify import classify_failure, classify_status, is_json, unsent
from trueup_common.contracts.adapter import Connection, Outcome, SlotLost
from trueup_common.contracts.clean import clean_text

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 15.0
DETAIL_CHARACTERS_MAX: Final = 300


class AddressRefused(Exception):
    """The host leads to a private address and the connection does not allow that."""


class SentTwice(Exception):
    """A transport wanted to send a write again by itself."""


class Transmission:
    """One request on its way out. `sent` turns true directly before the first byte."""

    __slots__ = ("_may_send", "_once", "sent")

    def __init__(self, may_send: Callable[[], None] | None, *, once: bool) -> None:
        self._may_send = may_send
        self._once = once
        self.sent = False

    def leave(self) -> None:
        """Called with the connection held. Raises SlotLost or SentTwice instead of letting a byte out."""
        if self.sent and self._once:
            raise SentTwice
        if self._may_send is not None:
            self._may_send()
        self.sent = True


_LEAVING: ContextVar[Transmission | None] = ContextVar("leaving", default=None)


class _GuardedRequest(aiohttp.ClientRequest):
    """The last hook before the first byte: headers are not serialised yet, the connection is ours."""

    async def send(self, conn: HeldConnection) -> ClientResponse:
        transmission = _LEAVING.get()
        if transmission is not None:
            transmission.leave()
        return await super().send(conn)


def is_public(address: str) -> bool:
    """True for an address on the open internet; anything private, local, reserved or unreadable is not."""
    try:
        parsed = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_global and not parsed.is_multicast


class CheckedResolver(AbstractResolver):
    """Resolves names and refuses those that lead to a private address, however they are spelt."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._resolver: aiohttp.ThreadedResolver | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if self._resolver is None:
            self._resolver = aiohttp.ThreadedResolver()
        found = await self._resolver.resolve(host, port, family)
        if not self._allow_private and not all(is_public(item["host"]) for item in found):
            raise AddressRefused(host)
        return found

    async def close(self) -> None:
        if self._resolver is not None:
            await self._resolver.close()


class Answer:
    """A complete answer: status, headers (looked up in any spelling), and the bounded body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def ok(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON. Raises ValueError where it is something else, whatever it claims to be."""
        if not is_json(self.headers.get("content-type")):
            raise ValueError(f"content type {self.headers.get('content-type', 'missing')!r}")
        return orjson.loads(self.body)

    def document(self) -> dict[str, Any] | None:
        """The body of a success as a JSON object, or None where it is not one."""
        if not self.ok:
            return None
        try:
            value = self.json()
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def detail(self) -> str:
        """A short, storable text about this answer, for people."""
        text = self.body[: 4 * DETAIL_CHARACTERS_MAX].decode("utf-8", "replace")
        return clean_text(" ".join(text.split()), DETAIL_CHARACTERS_MAX)

    def outcome(self) -> Outcome:
        """What this answer to a write means where it is no readable success."""
        return classify_status(self.status, self.headers, self.detail())


class TransportFailed(Exception):
    """No complete answer. `sent` tells whether the request may have reached the target."""

    def __init__(self, code: str, detail: str, *, sent: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.sent = sent

    def outcome(self) -> Outcome:
        """What this means for a write."""
        return classify_failure(sent=self.sent, code=self.code, detail=self.detail)

    def outcome_of_read(self) -> Outcome:
        """What this means for a write that was still being prepared by reading: nothing was written."""
        return unsent(self.outcome())


def _code_of(error: BaseException, *, sent: bool) -> str:
    """A name for people and metrics; no decision hangs on it."""
    if isinstance(error, SentTwice):  # the client met a dead connection and wanted to send again by itself
        return "connection_lost"
    if isinstance(error, AddressRefused):
        return "address_refused"
    if isinstance(error, TimeoutError) and sent:
        return "timeout"
    if not sent:
        refused = isinstance(error.__cause__ or error, aiohttp.ClientConnectorError | OSError)
        return "connection_refused" if refused else "unavailable"
    return "connection_lost"


class HttpTarget:
    """One connection to one base URL. Redirects are never followed, answers are bounded, nothing is sent twice."""

    def __init__(self, connection: Connection, base_url: str, *, timeout_seconds: float = 60.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"connection {connection.tenant}/{connection.system}: base_url is not an http(s) address")
        if parts.username or parts.password:
            raise ValueError(f"connection {connection.tenant}/{connection.system}: base_url holds credentials")
        if not connection.allow_private_network and is_private_literal(parts.hostname):
            raise ValueError(
                f"connection {connection.tenant}/{connection.system}: base_url is in a private network; "
                "set allow_private_network to allow that"
            )
        self._base = base_url.rstrip("/")
        self.allow_private = connection.allow_private_network
        self._limit = connection.max_concurrency
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=timeout_seconds
        )
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        """The session, made in the event loop that uses it. No proxies, cookies or other state from the environment."""
        connector = aiohttp.TCPConnector(
            limit=2 * self._limit,  # a read-back or look-up never waits behind writes
            keepalive_timeout=IDLE_SECONDS,
            resolver=CheckedResolver(allow_private=self.allow_private),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            request_class=_GuardedRequest,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=self._timeout,
            headers={"user-agent": "trueup", "accept": "application/json"},
        )
        return self._session

    async def read(
        self, path: str, *, params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        method: str = "GET",
    ) -> Answer:  # fmt: skip
        """A request that changes nothing. Raises TransportFailed."""
        address = f"{path}?{urlencode(params, quote_via=quote)}" if params else path
        return await self._exchange(method, address, headers, None, Transmission(None, once=False))

    async def write(
        self,
        method: str,
        path: str,
        *,
        may_send: Callable[[], None],
        document: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A request that changes something: leaves once, after `may_send`. Raises TransportFailed or SlotLost."""
        content = None if document is None else orjson.dumps(document)
        return await self._exchange(method, path, headers, content, Transmission(may_send, once=True))

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        content: bytes | None,
        transmission: Transmission,
    ) -> Answer:
        session = self._session or self._open()
        if content is not None:
            headers = {**(headers or {}), "content-type": "application/json"}
        token = _LEAVING.set(transmission)
        try:
            async with session.request(
                method, URL(self._base + path, encoded=True), data=content, headers=headers, allow_redirects=False
            ) as response:
                return await _complete(response)
        except (SlotLost, asyncio.CancelledError):
            raise
        except Exception as error:  # the boundary: whatever a transport raises, only `sent` decides
            code = _code_of(error, sent=transmission.sent)
            raise TransportFailed(code, clean_text(repr(error), 200), sent=transmission.sent) from error
        finally:
            _LEAVING.reset(token)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _complete(response: ClientResponse) -> Answer:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            response.close()
            raise ValueError("the answer is too large")
    return Answer(response.status, response.headers, bytes(body))


def is_private_literal(host: str) -> bool:
    """True for a host that is, without any look-up, an address or name of a private network."""
    if host.lower() in ("localhost", "localhost.localdomain") or host.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # inet_aton spells addresses in ways that no resolver hook sees: "127.1", "0x7f000001", "2130706433"
        try:
            return not is_public(socket.inet_ntoa(socket.inet_aton(host)))
        except OSError:
            return False
    return not is_public(host)
