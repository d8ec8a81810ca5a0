"""Strict JSON: what two readers could understand differently is refused, and so is what no store can keep.

Refused are: encodings other than UTF-8, duplicate keys, NaN and infinity (also `1e999`), integers beyond 2^53 (which
two readers round differently), nesting deeper than 32, lone surrogates and NUL.
"""

import json
import math
from typing import Any, Final

DEPTH_MAX: Final = 32
_INTEGER_MAX: Final = 2**53 - 1
_CONTAINERS: Final = (dict, list)


class Malformed(ValueError):
    """Bytes that are not acceptable JSON; the message says why, without showing any value."""


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        raise Malformed("an object names a key twice")
    return found


def _constant(_: str) -> Any:
    raise Malformed("NaN and infinity are not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed("a number is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:
        raise Malformed("an integer is too large")
    value = int(text)
    if not -_INTEGER_MAX <= value <= _INTEGER_MAX:
        raise Malformed("an integer is too large")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_integer
)


def parse(raw: bytes) -> Any:
    """The value of one JSON text. Raises Malformed."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("the body is not UTF-8") from error
    if text.startswith("\ufeff"):
        raise Malformed("the body starts with a byte order mark")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON at byte {len(text[: error.pos].encode())}") from error
    except RecursionError as error:
        raise Malformed(f"nested deeper than {DEPTH_MAX}") from error
    # Only an escape can bring in a lone surrogate or NUL: the decoder refuses both as raw bytes.
    _check(value, 1, escapes=b"\\u" in raw)
    return value


def _check(value: Any, depth: int, *, escapes: bool) -> None:
    kind = type(value)
    if kind is dict:
        if depth > DEPTH_MAX:
            raise Malformed(f"nested deeper than {DEPTH_MAX}")
        for key, item in value.items():
            if escapes:
                _storable(key)
            if escapes or type(item) in _CONTAINERS:
                _check(item, depth + 1, escapes=escapes)
    elif kind is list:
        if depth > DEPTH_MAX:
            raise Malformed(f"nested deeper than {DEPTH_MAX}")
        for item in value:
            if escapes or type(item) in _CONTAINERS:
                _check(item, depth + 1, escapes=escapes)
    elif escapes and kind is str:
        _storable(value)


def _storable(text: str) -> None:
    if "\x00" in text:
        raise Malformed("NUL is not acceptable in text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed("a lone surrogate is not text") from error
