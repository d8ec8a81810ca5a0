"""Pointers and mappings: how a declaration, which is pure data, says where a value comes from (RFC 6901 pointers).

A mapping value is `{"const": v}` or `{"pointer": "/payload/slug"}`; the document it points into has the members
`target`, `payload` and, once known, `receipt` and `command_id`.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from trueup_common.contracts.shape import Contract


class ValueFrom(Contract):
    """Exactly one of a constant or a pointer."""

    const: Any = None
    pointer: str | None = Field(default=None, pattern=r"^/")
    default: Any = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.pointer is not None and self.const is not None:
            raise ValueError("a value comes from a constant or from a pointer, not from both")
        return self


class Absent(LookupError):
    """A pointer that leads nowhere in this document."""


def resolve(document: Any, pointer: str) -> Any:
    """The value at an RFC 6901 pointer. Raises Absent."""
    node = document
    for raw in pointer.split("/")[1:]:
        key = raw.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key)] if isinstance(node, list | tuple) else node[key]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise Absent(pointer) from error
    return node


def take(document: Any, source: ValueFrom) -> Any:
    """The value that a mapping entry names; its default where the pointer leads nowhere."""
    if source.pointer is None:
        return source.const
    try:
        return resolve(document, source.pointer)
    except Absent:
        return source.default


def fill(document: Any, mapping: Mapping[str, ValueFrom]) -> dict[str, Any]:
    """All values of a mapping; entries that come out as None are left out."""
    values = {key: take(document, source) for key, source in mapping.items()}
    return {key: value for key, value in values.items() if value is not None}
