"""JSON schemas that the commands share. What they let through is safe in a URL and leads nowhere else.

Hidden names are refused in paths: an archive never touches `.git`, `.github` or the like.
"""

from collections.abc import Sequence
from typing import Any, Final

REPOSITORY: Final = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$",
    "not": {"pattern": "/\\.{1,2}$|\\.git$"},
}
REPOSITORY_OBJECT: Final = "{/payload/repository}"
BRANCH: Final = {
    "type": "string",
    "maxLength": 200,
    "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$",
    "not": {"pattern": "\\.\\.|\\.lock(/|$)|\\.(/|$)|^[0-9a-f]{40}$|^refs/"},
}
_REST: Final = r"[^/\\\x00-\x1f\x7f]*"
_NAME: Final = r"[^./\\\x00-\x1f\x7f]" + _REST
PATH: Final = {"type": "string", "maxLength": 500, "pattern": f"^{_NAME}(/{_NAME})*$"}
SHA1: Final = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
SHA256: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def payload_schema(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    """An object with exactly these members."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }
