"""Grants on the wire: compact JWS, HS256, one key per adapter system; exactly these headers, nothing else."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

import orjson
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from trueup_common.contracts.grant import ALGORITHM, TYPE, GrantClaims, read_claims

KEY_BYTES_MIN: Final = 32
TOKEN_CHARACTERS_MAX: Final = 4096


class GrantKeys:
    """Signing and verification keys by system."""

    def __init__(self, keys: Mapping[str, OctKey]) -> None:
        self._keys = dict(keys)

    @classmethod
    def read(cls, document: str) -> "GrantKeys":
        """From JSON {"system": "base64url of at least 32 bytes"}. Raises ValueError without showing a key."""
        try:
            values = json.loads(document)
            raw = {system: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) for system, text in values.items()}
        except (ValueError, AttributeError, TypeError, binascii.Error):
            raise ValueError("TRUEUP_GRANT_KEYS is not a JSON object of base64url keys") from None
        short = sorted(system for system, key in raw.items() if len(key) < KEY_BYTES_MIN)
        if short:
            raise ValueError(f"grant keys of {', '.join(short)} are shorter than {KEY_BYTES_MIN} bytes")
        return cls({system: OctKey.import_key(key) for system, key in raw.items()})

    @property
    def systems(self) -> frozenset[str]:
        """Systems that a key exists for."""
        return frozenset(self._keys)

    def sign(self, system: str, claims: GrantClaims) -> str:
        """A grant for one system's adapter. Raises KeyError for a system without a key."""
        header = {"alg": ALGORITHM, "typ": TYPE, "kid": system}
        return jws.serialize_compact(header, claims.model_dump_json().encode(), self._keys[system], [ALGORITHM])

    def verify(self, system: str, token: str) -> GrantClaims | str:
        """The claims of a genuine grant, or the name of what is wrong (`signature`, `header`, `claims`)."""
        key = self._keys.get(system)
        if key is None or not token or len(token) > TOKEN_CHARACTERS_MAX:
            return "signature"
        try:
            parsed = jws.deserialize_compact(token, key, [ALGORITHM])
        except (JoseError, ValueError, UnicodeError):
            return "signature"
        header: dict[str, Any] = parsed.headers()
        if set(header) != {"alg", "typ", "kid"} or header["typ"] != TYPE or header["kid"] != system:
            return "header"
        try:
            value = orjson.loads(parsed.payload)
        except orjson.JSONDecodeError:
            return "claims"
        return read_claims(value)
