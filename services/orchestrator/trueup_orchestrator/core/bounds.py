"""What a step may bring about: nothing that a table or a message cannot hold. It fails as a step, before it is tried.

An expression can make much out of little. What is too large, or no text for the store, must never get into a commit:
it would fail there, again and again, together with whatever else that commit holds.
"""

from typing import Any, Final

from trueup_common.contracts.shape import json_bytes
from trueup_common.documents.expressions import ExpressionFailed

PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""The payload of one effect, as for a single command."""

SHOWN_BYTES_MAX: Final = 64 * 1024
"""What an approval binds and shows, together."""

KEY_CHARACTERS_MAX: Final = 255
NAME_CHARACTERS_MAX: Final = 500
"""Resources and expected versions."""

_NUL: Final = b"\\u0000"


def bounded(what: str, value: Any, bytes_max: int) -> Any:
    """The value, where it can be stored and sent. Raises ExpressionFailed."""
    try:
        data = json_bytes(value)
    except ValueError as error:
        raise ExpressionFailed(what, "holds half a character") from error
    if len(data) > bytes_max:
        raise ExpressionFailed(what, f"has {len(data)} bytes; {bytes_max} are possible")
    if _NUL in data and _holds_nul(value):
        raise ExpressionFailed(what, "holds a NUL")
    return value


def named(what: str, value: Any, characters_max: int) -> str:
    """The text of a name that stands in keys and indexes. Raises ExpressionFailed."""
    text = str(value)
    if not 0 < len(text) <= characters_max:
        raise ExpressionFailed(what, f"has {len(text)} characters; 1 to {characters_max} are possible")
    return str(bounded(what, text, 4 * characters_max + 2))


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))
