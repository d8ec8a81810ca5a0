"""The external issuer: its description and keys, fetched anew again and again, so that keys can rotate.

Only what the issuer itself publishes is believed: its own name in its description, keys for signatures, nothing else.
"""

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from trueup_common.runtime.settings import Settings
from trueup_gateway.tokens import ACCESS_TYPE, EXTERNAL_ALGORITHMS, Issuer, Verifier

log = logging.getLogger("trueup.gateway.issuers")

REFRESH_SECONDS: Final = 300.0
FAILING_SECONDS: Final = 5.0
FETCH_SECONDS_MAX: Final = 10.0
DOCUMENT_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 50
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_KINDS: Final[dict[str, Any]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


class IssuerAway(Exception):
    """The issuer cannot be used now; the message says why and holds no secret."""


@dataclass(frozen=True)
class Description:
    """What an issuer says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


def checked_issuer(settings: Settings) -> str:
    """The configured issuer's address, empty for none. Raises ValueError for one that cannot be trusted."""
    address = settings.oidc_issuer
    if address and not _is_safe(address):
        raise ValueError("TRUEUP_OIDC_ISSUER is not an https address")
    if settings.oidc_client_id and not address:
        raise ValueError("TRUEUP_OIDC_CLIENT_ID is set without TRUEUP_OIDC_ISSUER")
    return address


def _is_safe(address: str) -> bool:
    """Over TLS, or on this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class ExternalIssuer:
    """One external issuer."""

    def __init__(self, address: str, verifier: Verifier) -> None:
        self.address = address
        self._verifier = verifier
        self._description: Description | None = None
        self._stale = asyncio.Event()
        verifier.unknown_key = self._stale.set

    @property
    def missing(self) -> str | None:
        """Why nobody can be let in by this issuer yet; None where somebody can."""
        return None if self._description is not None else "issuer: its description was not fetched yet"

    async def description(self) -> Description:
        """What the issuer says of itself. Raises IssuerAway."""
        if self._description is None:
            await self.refresh()
        if self._description is None:
            raise IssuerAway("the issuer does not answer")
        return self._description

    async def run(self, stop: asyncio.Event) -> None:
        """Fetch description and keys until `stop`; sooner where a token names a key that nobody knows."""
        while not stop.is_set():
            try:
                await self.refresh()
                pause = REFRESH_SECONDS
            except IssuerAway as away:
                log.warning("issuer away", extra={"reason": str(away)})
                pause = FAILING_SECONDS
            await self._wait(stop, FAILING_SECONDS)  # a flood of made-up key ids does not become one of fetches
            await self._wait(stop, pause - FAILING_SECONDS, self._stale)
            self._stale.clear()

    async def _wait(self, stop: asyncio.Event, seconds: float, *others: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (stop, *others)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def refresh(self) -> None:
        """Fetch description and keys once. Raises IssuerAway."""
        document = await _fetched(f"{self.address.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != self.address:
            raise IssuerAway("its description names another issuer")
        names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        found = {name: str(document.get(name) or "") for name in names}
        if not all(_is_safe(found[name]) for name in names):
            raise IssuerAway("its description names an address that is not https")
        description = Description(**found)
        keys = usable_keys(await _fetched(description.jwks_uri))
        if not keys:
            raise IssuerAway("it publishes no usable key")
        self._description = description
        self._verifier.trust(Issuer(self.address, ACCESS_TYPE, keys, EXTERNAL_ALGORITHMS))


def usable_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """The signature keys of a key set by their ids; what is malformed, private or for something else is left out."""
    listed = document.get("keys")
    found: dict[str, Any] = {}
    for item in listed[:KEYS_MAX] if isinstance(listed, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("kid"), str) or "d" in item:
            continue
        if item.get("use", "sig") != "sig" or item.get("kty") not in _KINDS:
            continue
        with contextlib.suppress(JoseError, ValueError, TypeError, KeyError):
            found[item["kid"]] = _KINDS[item["kty"]].import_key(item)
    return found


async def _fetched(address: str) -> dict[str, Any]:
    """A JSON document. Raises IssuerAway."""
    try:
        async with asyncio.timeout(FETCH_SECONDS_MAX), client() as http:
            response = await http.request("GET", address, withhold_token=True)
            if response.status_code != 200 or len(response.content) > DOCUMENT_BYTES_MAX:
                raise IssuerAway(f"it answers {response.status_code}")
            document = response.json()
    except IssuerAway:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary: whatever goes wrong on the way there, it is away
        raise IssuerAway(type(error).__name__) from None
    if not isinstance(document, dict):
        raise IssuerAway("it answers no object")
    return document


def client(settings: Settings | None = None, **options: Any) -> Any:
    """An OAuth client of authlib; imported when it is needed, for most planes have no external issuer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from authlib.integrations.httpx_client import AsyncOAuth2Client
    secret = settings.oidc_client_secret.get_secret_value() if settings is not None else ""
    return AsyncOAuth2Client(
        client_id=settings.oidc_client_id if settings is not None else None,
        client_secret=secret or None,
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
        code_challenge_method="S256",
        timeout=FETCH_SECONDS_MAX,
        follow_redirects=False,
        **options,
    )
