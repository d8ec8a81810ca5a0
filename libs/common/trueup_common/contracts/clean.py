"""Foreign text: whatever an outside system says becomes storable here, once, before any insert.

PostgreSQL refuses NUL and lone surrogates in text and jsonb, and NaN in jsonb. Numbers that no double holds it keeps,
but nobody can read them back. An effect that happened is never repeated because its result could not be stored, so this
function does not fail.
"""

import math
from typing import Any, Final

_REPLACEMENT: Final = "\ufffd"
DEPTH_MAX: Final = 32
INTEGER_MAX: Final = 10**308
"""Larger ones are beyond every double, and no reader of JSON takes them."""


def clean_text(value: str, length_max: int | None = None) -> str:
    """Text without NUL and lone surrogates, cut to `length_max` characters."""
    if "\x00" in value:
        value = value.replace("\x00", _REPLACEMENT)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        value = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value if length_max is None or len(value) <= length_max else value[:length_max]


def clean(value: Any, depth: int = 0) -> Any:
    """A JSON value that every store accepts; what cannot be represented becomes text or null."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= INTEGER_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= DEPTH_MAX:
        return _said(value)
    if isinstance(value, dict):
        return {key if _is_plain(key) else _said(key): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item, depth + 1) for item in value]
    return _said(value)


def _is_plain(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and "\x00" not in key


def _said(value: Any) -> str:
    """What something calls itself; its type where it cannot even do that, such as an integer of 5,000 digits."""
    if isinstance(value, str):
        return clean_text(value)
    try:
        return clean_text(str(value), 200)
    except Exception:  # noqa: BLE001 - the boundary: foreign objects say what they like, and this must not fail
        return type(value).__name__
