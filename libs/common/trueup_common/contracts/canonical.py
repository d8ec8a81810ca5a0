"""Canonical JSON: one byte string per value (RFC 8785), so that a hash names a content and nothing else."""

import hashlib
from decimal import Decimal
from typing import Any, Final

import orjson
import rfc8785

_SAFE_INTEGER: Final = 2**53 - 1


def _is_plain(value: Any) -> bool:
    """True where orjson's sorted output is RFC 8785 already: ASCII keys, no floats, integers that doubles can hold."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_SAFE_INTEGER <= value <= _SAFE_INTEGER)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or (type(item) is not str and not _is_plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # noqa: SIM110 - every hash of the plane passes here, a generator doubles the cost
            if type(item) is not str and not _is_plain(item):
                return False
        return True
    return False


def _doubles(value: Any) -> Any:
    """Big integers that spell a double, as that double: a store that turns 1e17 into 10^17 changes no hash."""
    if type(value) is int and not -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
        double = float(value)
        return double if int(Decimal(repr(double))) == value else value
    if isinstance(value, dict):
        return {key: _doubles(item) for key, item in value.items()}
    return [_doubles(item) for item in value] if isinstance(value, list | tuple) else value


def canonical(value: Any) -> bytes:
    """The RFC 8785 form of a JSON value.

    Raises ValueError for what has none: NaN, infinity, lone surrogates, integers that no double spells.
    """
    if _is_plain(value):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except (TypeError, orjson.JSONEncodeError) as error:
            raise ValueError(f"not a JSON value: {error}") from error
    try:
        return rfc8785.dumps(_doubles(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a JSON value: {error}") from error


def sha256_hex(data: bytes) -> str:
    """Hex SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """Hex SHA-256 of the canonical form of a JSON value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_of_plain(fields: dict[str, str | int | None]) -> str:
    """The same of a flat object that our own code names and numbers: texts, small integers and nulls under ASCII names.

    Nobody has to look for what it cannot hold. Raises ValueError for a text with lone surrogates.
    """
    try:
        return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except (TypeError, orjson.JSONEncodeError) as error:
        raise ValueError(f"not a JSON value: {error}") from error


def fingerprint(command_type: str, target: dict[str, Any], payload: Any) -> str:
    """What makes two requests the same request: type, target and payload (not deadline, correlation or capability)."""
    return digest({"command_type": command_type, "target": target, "payload": payload})
