"""Tokens: compact JWS with exactly the headers `alg, kid, typ`, Ed25519 only, and every claim essential.

A verified token is remembered by its hash until it expires; revocation is another question and is asked each time.
"""

import base64
import binascii
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from trueup_common.contracts.ids import is_tenant, new_id
from trueup_gateway.core.refusal import Refused, unauthorized
from trueup_gateway.core.strict_json import Malformed, parse

ALGORITHM: Final = "Ed25519"
ACCESS_TYPE: Final = "at+jwt"
CAPABILITY_TYPE: Final = "cap+jwt"
AUDIENCE: Final = "trueup-gateway"
CAPABILITY_ISSUER: Final = "trueup-gateway"
DEV_ISSUER: Final = "trueup-dev-issuer"
DETAIL_TYPE: Final = "trueup_command"
WORKFLOW_TYPE: Final = "trueup_workflow"
START_PERMISSION: Final = "workflow:start"
_KINDS: Final = {
    ACCESS_TYPE: "an access token (from POST /dev/token, or from your issuer)",
    CAPABILITY_TYPE: "a capability (from POST /v1/capabilities)",
}
SKEW_SECONDS: Final = 5
"""How far an issuer's clock may run ahead; it never lengthens a token's life."""
CHARACTERS_MAX: Final = 8192
REMEMBERED_MAX: Final = 20_000
EXTERNAL_ALGORITHMS: Final = ("Ed25519", "ES256", "RS256", "PS256")
"""What an external issuer may sign with; tokens of this gateway and of the development issuer are Ed25519 only."""
_COMPACT: Final = re.compile(r"^([A-Za-z0-9_-]{16,2048})\.([A-Za-z0-9_-]{16,6000})\.([A-Za-z0-9_-]{86,1024})$")
_SUBJECT: Final = re.compile(r"^(agent|operator|service):[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$")
_HEADER_KEYS: Final = frozenset({"alg", "kid", "typ"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling, by an access token."""

    subject: str
    tenant: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    not_before: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class CapabilityClaims:
    """What a capability permits, as signed."""

    capability_id: str
    subject: str
    tenant: str
    permissions: tuple[str, ...]
    command_types: tuple[str, ...]
    system: str
    resource: str
    payload_sha256: str | None
    expected_version: str | None
    decision_id: str
    not_before: int
    expires_at: int
    workflow: str | None = None
    """The workflow that it lets start; such a capability lets no single command in."""


def new_nonce() -> str:
    """A one-time value that nobody can guess."""
    return secrets.token_urlsafe(24)


def is_subject(value: object) -> bool:
    """True for `agent:<name>`, `operator:<name>` and `service:<name>`."""
    return isinstance(value, str) and _SUBJECT.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private Ed25519 key and its id."""

    kid: str
    key: OKPKey

    @classmethod
    def read(cls, document: str, name: str) -> "SigningKey":
        """From a private JWK. Raises ValueError that names the setting and shows nothing of the key."""
        try:
            value = json.loads(document)
            if value["kty"] != "OKP" or value["crv"] != "Ed25519" or not value["d"]:
                raise ValueError
            key = OKPKey.import_key({name: value[name] for name in ("kty", "crv", "x", "d")})
            kid = value.get("kid") or key.thumbprint()
            if not isinstance(kid, str) or not kid.isascii() or not 0 < len(kid) <= 128:
                raise ValueError
        except (ValueError, KeyError, TypeError, JoseError):
            raise ValueError(f"{name} is not a private Ed25519 JWK") from None
        return cls(kid, key)

    @classmethod
    def generate(cls) -> "SigningKey":
        """A fresh key, for one development process."""
        key = OKPKey.generate_key("Ed25519")
        return cls(str(key.thumbprint()), key)

    def public(self) -> dict[str, Any]:
        """The public JWK."""
        value = self.key.as_dict(private=False)
        return {
            "kty": value["kty"],
            "crv": value["crv"],
            "x": value["x"],
            "kid": self.kid,
            "alg": ALGORITHM,
            "use": "sig",
        }

    def sign(self, token_type: str, claims: dict[str, Any]) -> str:
        """A compact JWS over the claims."""
        header = {"alg": ALGORITHM, "kid": self.kid, "typ": token_type}
        return jws.serialize_compact(header, json.dumps(claims, separators=(",", ":")).encode(), self.key, [ALGORITHM])


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer that is trusted for one kind of token."""

    name: str
    token_type: str
    keys: Mapping[str, Any]
    algorithms: tuple[str, ...] = (ALGORITHM,)


class Verifier:
    """Verifies both kinds of tokens. `access` are the trusted issuers of access tokens."""

    def __init__(self, *, capability_key: SigningKey, access: Iterable[Issuer] = ()) -> None:
        self._capability = Issuer(CAPABILITY_ISSUER, CAPABILITY_TYPE, {capability_key.kid: capability_key.key})
        self._access = tuple(access)
        self._external: Issuer | None = None
        self._remembered: dict[bytes, Caller | CapabilityClaims] = {}
        self.unknown_key: Callable[[], None] = lambda: None
        """Called where a token names a key that nobody knows: perhaps the external issuer has a new one."""

    def trust(self, issuer: Issuer) -> None:
        """Trust the external issuer with the keys that it has now; what an old key signed is verified anew."""
        before = self._external
        self._external = issuer
        if before is not None and set(before.keys) - set(issuer.keys):
            self._remembered.clear()

    def keys_of(self, name: str) -> dict[str, Any]:
        """The keys of the external issuer of this name."""
        return dict(self._external.keys) if self._external is not None and self._external.name == name else {}

    def caller(self, token: str, real: datetime) -> Caller:
        """The caller of an access token; real time. Raises Refused."""
        found = self._remembered.get(_name_of(token))
        if not isinstance(found, Caller):
            external = (self._external,) if self._external is not None else ()
            claims = self._claims(token, (*self._access, *external), ACCESS_TYPE)
            found = _caller_of(claims)
            self._remember(token, found)
        _check_time(found.not_before, found.expires_at, real)
        return found

    def capability(self, token: str, business: datetime) -> CapabilityClaims:
        """The claims of a capability; business time. Raises Refused."""
        found = self._remembered.get(_name_of(token))
        if not isinstance(found, CapabilityClaims):
            claims = self._claims(token, (self._capability,), CAPABILITY_TYPE)
            found = _capability_of(claims)
            self._remember(token, found)
        _check_time(found.not_before, found.expires_at, business)
        return found

    def _remember(self, token: str, verified: Caller | CapabilityClaims) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            for name in list(self._remembered)[: REMEMBERED_MAX // 2]:
                del self._remembered[name]
        self._remembered[_name_of(token)] = verified

    def _claims(self, token: str, issuers: Iterable[Issuer], token_type: str) -> dict[str, Any]:
        """The claims under a genuine signature of one of the issuers."""
        match = _COMPACT.fullmatch(token) if len(token) <= CHARACTERS_MAX else None
        if match is None:
            raise unauthorized("signature", "The token is not a compact JWS.")
        header = _object(match[1])
        if set(header) != _HEADER_KEYS or header["alg"] not in EXTERNAL_ALGORITHMS:
            raise unauthorized("signature", "The token's header is not acceptable.")
        if header["typ"] != token_type:
            raise unauthorized("audience", f"The token is of another kind: this call needs {_KINDS[token_type]}.")
        kid = header["kid"]
        for issuer in issuers:
            key = issuer.keys.get(kid) if isinstance(kid, str) else None
            if key is None or issuer.token_type != token_type:
                continue
            if header["alg"] not in issuer.algorithms:
                raise unauthorized("signature", "The token's header is not acceptable.")
            try:
                jws.deserialize_compact(token, key, list(issuer.algorithms))
            except (JoseError, ValueError, TypeError):
                raise unauthorized("signature", "The token's signature does not hold.") from None
            claims = _object(match[2])
            if claims.get("iss") != issuer.name:
                raise unauthorized("issuer", "The token names another issuer than its key belongs to.")
            return claims
        self.unknown_key()
        raise unauthorized("signature", "No trusted key has the token's key id.")


def _name_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _object(segment: str) -> dict[str, Any]:
    """One segment as strict JSON: duplicate members would let two readers see two tokens."""
    try:
        value = parse(base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True))
    except (Malformed, binascii.Error, ValueError):
        raise unauthorized("signature", "The token is not made of JSON objects.") from None
    if not isinstance(value, dict):
        raise unauthorized("signature", "The token is not made of JSON objects.")
    return value


def _check_time(not_before: int, expires_at: int, now: datetime) -> None:
    seconds = now.timestamp()
    if seconds >= expires_at:
        raise unauthorized("time", "The token has expired.")
    if seconds < not_before - SKEW_SECONDS:
        raise unauthorized("time", "The token is not valid yet.")


def _audience(claims: dict[str, Any]) -> None:
    found = claims.get("aud")
    if found != AUDIENCE and not (isinstance(found, list) and AUDIENCE in found):
        raise unauthorized("audience", "The token is for another audience.")


def _times(claims: dict[str, Any]) -> tuple[int, int]:
    times = [claims.get("iat"), claims.get("exp"), claims.get("nbf", claims.get("iat"))]
    if any(type(value) is not int or value < 0 for value in times):
        raise unauthorized("time", "The token's times are missing or not whole seconds.")
    issued, expires, not_before = (int(value or 0) for value in times)
    return max(issued, not_before), expires


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512:
        raise unauthorized("holder", f"The token lacks the claim {name}.")
    return value


def _strings(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > 100 or any(type(item) is not str or not item for item in value):
        raise unauthorized("holder", f"The token's claim {name} is not a list of names.")
    return tuple(value)


def _identity(claims: dict[str, Any]) -> tuple[str, str]:
    subject, tenant = claims.get("sub"), claims.get("tenant")
    if not is_subject(subject):
        raise unauthorized("holder", "The token's subject is not acceptable.")
    if not isinstance(tenant, str):
        raise unauthorized("issuer", "The token names no tenant.")
    if not is_tenant(tenant):
        raise Refused("tenant-invalid", "The token's tenant id is not in its one accepted spelling.")
    if "cnf" in claims:
        raise unauthorized("holder", "The token is bound to a holder's key, which this gateway does not verify.")
    return str(subject), tenant


def _caller_of(claims: dict[str, Any]) -> Caller:
    _audience(claims)
    not_before, expires_at = _times(claims)
    subject, tenant = _identity(claims)
    _text(claims, "jti")
    _text(claims, "client_id")
    return Caller(
        subject=subject,
        tenant=tenant,
        roles=_strings(claims.get("roles"), "roles"),
        scopes=_strings(claims.get("scopes", []), "scopes"),
        not_before=not_before,
        expires_at=expires_at,
    )


def _capability_of(claims: dict[str, Any]) -> CapabilityClaims:
    _audience(claims)
    not_before, expires_at = _times(claims)
    subject, tenant = _identity(claims)
    details = claims.get("authorization_details")
    if not isinstance(details, list) or len(details) != 1 or not isinstance(details[0], dict):
        raise unauthorized("holder", "The capability lacks its authorization details.")
    detail = details[0]
    if detail.get("type") not in (DETAIL_TYPE, WORKFLOW_TYPE):
        raise unauthorized("holder", "The capability's authorization details are of another type.")
    bounds = {name: detail.get(name) for name in ("payload_sha256", "expected_version")}
    if any(value is not None and not isinstance(value, str) for value in bounds.values()):
        raise unauthorized("holder", "The capability's bounds are not acceptable.")
    return CapabilityClaims(
        capability_id=_text(claims, "jti"),
        subject=subject,
        tenant=tenant,
        permissions=tuple(_text(claims, "scope").split(" ")),
        command_types=_strings(detail.get("actions"), "actions"),
        system=_text(detail, "system"),
        resource=_text(detail, "resource"),
        payload_sha256=bounds["payload_sha256"],
        expected_version=bounds["expected_version"],
        decision_id=_text(detail, "decision_id"),
        not_before=not_before,
        expires_at=expires_at,
        workflow=_text(detail, "workflow") if detail["type"] == WORKFLOW_TYPE else None,
    )


def sign_capability(
    key: SigningKey,
    *,
    capability_id: str,
    subject: str,
    tenant: str,
    permissions: Iterable[str],
    command_types: Iterable[str],
    system: str,
    resource: str,
    payload_sha256: str | None,
    expected_version: str | None,
    decision_id: str,
    issued_at: datetime,
    expires_at: datetime,
    workflow: Mapping[str, Any] | None = None,
) -> str:
    """A capability as a JWS (RFC 9396 authorization details). `workflow` are name, version and hash of its document."""
    return key.sign(
        CAPABILITY_TYPE,
        {
            "iss": CAPABILITY_ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "tenant": tenant,
            "jti": capability_id,
            "iat": int(issued_at.timestamp()),
            "nbf": int(issued_at.timestamp()),
            "exp": int(expires_at.timestamp()),
            "scope": " ".join(sorted(set(permissions))),
            "authorization_details": [
                {
                    "type": DETAIL_TYPE if workflow is None else WORKFLOW_TYPE,
                    **(workflow or {}),
                    "actions": sorted(set(command_types)),
                    "system": system,
                    "resource": resource,
                    "payload_sha256": payload_sha256,
                    "expected_version": expected_version,
                    "decision_id": decision_id,
                }
            ],
        },
    )


def sign_access(
    key: SigningKey,
    *,
    subject: str,
    tenant: str,
    roles: Iterable[str],
    scopes: Iterable[str],
    ttl_seconds: int,
    real: datetime,
) -> str:
    """An access token of the development issuer (RFC 9068)."""
    issued = int(real.timestamp())
    return key.sign(
        ACCESS_TYPE,
        {
            "iss": DEV_ISSUER,
            "aud": AUDIENCE,
            "client_id": "trueup-dev",
            "sub": subject,
            "tenant": tenant,
            "roles": list(roles),
            "scopes": list(scopes),
            "iat": issued,
            "exp": issued + ttl_seconds,
            "jti": new_id("msg"),
        },
    )
