"""Grants on the wire: compact JWS, HS256, one key per adapter system; exactly one header per system, nothing else.

Written out instead of taken from the JOSE library: a grant is signed and verified with every attempt, only between our
own services, with one algorithm and a header that is one constant string per system (ADR 0010). A header that differs
in a single byte is refused before anything is parsed.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Final

import orjson

from trueup_common.contracts.grant import ALGORITHM, TYPE, GrantClaims, read_claims

KEY_BYTES_MIN: Final = 32
TOKEN_CHARACTERS_MAX: Final = 4096


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _header(system: str) -> bytes:
    return _encode(orjson.dumps({"alg": ALGORITHM, "kid": system, "typ": TYPE}))


class GrantKeys:
    """Signing and verification keys by system."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        short = sorted(system for system, key in keys.items() if len(key) < KEY_BYTES_MIN)
        if short:
            raise ValueError(f"grant keys of {', '.join(short)} are shorter than {KEY_BYTES_MIN} bytes")
        self._keys = dict(keys)
        self._headers = {system: _header(system) for system in keys}

    def __repr__(self) -> str:
        return f"GrantKeys({', '.join(sorted(self._keys))})"

    @classmethod
    def read(cls, document: str) -> "GrantKeys":
        """From JSON {"system": "base64url of at least 32 bytes"}. Raises ValueError without showing a key."""
        try:
            values = json.loads(document)
            raw = {system: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) for system, text in values.items()}
        except (ValueError, AttributeError, TypeError, binascii.Error):
            raise ValueError("TRUEUP_GRANT_KEYS is not a JSON object of base64url keys") from None
        return cls(raw)

    @property
    def systems(self) -> frozenset[str]:
        """Systems that a key exists for."""
        return frozenset(self._keys)

    def sign(self, system: str, claims: GrantClaims) -> str:
        """A grant for one system's adapter. Raises KeyError for a system without a key."""
        signed = self._headers[system] + b"." + _encode(claims.model_dump_json().encode())
        return (signed + b"." + _encode(hmac.digest(self._keys[system], signed, hashlib.sha256))).decode("ascii")

    def verify(self, system: str, token: str) -> GrantClaims | str:
        """The claims of a genuine grant, or the name of what is wrong (`header`, `signature`, `claims`)."""
        key = self._keys.get(system)
        if key is None or not token.isascii() or len(token) > TOKEN_CHARACTERS_MAX:
            return "signature"
        signed, _, signature = token.encode("ascii").rpartition(b".")
        header, _, body = signed.partition(b".")
        expected = _encode(hmac.digest(key, signed, hashlib.sha256))
        if not hmac.compare_digest(expected, signature):
            return "signature"
        if header != self._headers[system]:
            return "header"
        try:
            value = orjson.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        except (orjson.JSONDecodeError, binascii.Error, ValueError):
            return "claims"
        return read_claims(value)
