"""Foreign text: whatever an outside system says becomes storable here, once, before any insert.

PostgreSQL refuses NUL and lone surrogates in text and jsonb, and NaN in jsonb. An effect that happened is never
repeated because its result could not be stored, so this function does not fail.
"""

import math
from typing import Any, Final

_REPLACEMENT: Final = "\ufffd"
DEPTH_MAX: Final = 32


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
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= DEPTH_MAX:
        return clean_text(repr(value), 200)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item, depth + 1) for item in value]
    return clean_text(str(value), 200)
