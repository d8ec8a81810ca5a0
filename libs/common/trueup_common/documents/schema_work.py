"""How often a JSON Schema looks at one value, before any value is there.

A schema whose parts refer to each other twice, each, looks at one value 2^40 times after forty lines, and a validator
does what it says. So the looks on the way from the root of a value to its deepest part are counted beforehand.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

LOOKS_MAX: Final = 1_000
"""Looks on the way from the root of a value to its deepest part."""

DEPTH_MAX: Final = 64
"""Deeper than bodies are accepted."""

_HERE: Final = ("allOf", "anyOf", "oneOf")
_HERE_ONE: Final = ("not", "if", "then", "else")
_HERE_NAMED: Final = ("dependentSchemas",)
_BELOW_ALTERNATIVES: Final = ("properties",)
_BELOW_NAMED: Final = ("patternProperties",)
_BELOW_ONE: Final = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaTooMuch(ValueError):
    """A schema that would look at one value too often. `pointer` says where it stands."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer


def looks(schema: Mapping[str, Any]) -> int:
    """The looks on the way to the deepest part of a value. Raises SchemaTooMuch."""
    try:
        return _Counting(schema).of(schema, DEPTH_MAX, "")
    except RecursionError:
        raise SchemaTooMuch("", "the parts of a schema refer to each other in a chain that is too long") from None


class _Counting:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()
        self._named = dict(_anchors(root, ""))

    def of(self, schema: Any, depth: int, pointer: str) -> int:
        if not isinstance(schema, Mapping) or depth == 0:
            return 1
        place = (id(schema), depth)
        if place in self._known:
            return self._known[place]
        if place in self._open:
            raise SchemaTooMuch(pointer, "a schema that refers to itself goes deeper into the value each time")
        self._open.add(place)
        total = 1
        for child, down, where in self._children(schema, pointer):
            total += self.of(child, depth - down, where)
            if total > LOOKS_MAX:
                raise SchemaTooMuch(where, f"a schema looks at one value at most {LOOKS_MAX} times")
        total += max(
            (
                self.of(child, depth - 1, f"{pointer}/{key}/{name}")
                for key in _BELOW_ALTERNATIVES
                for name, child in _members(schema.get(key))
            ),
            default=0,
        )
        total += max(
            (self.of(child, depth - 1, f"{pointer}/prefixItems/{index}") for index, child in _items(schema)), default=0
        )
        self._open.discard(place)
        self._known[place] = total
        return total

    def _children(self, schema: Mapping[str, Any], pointer: str) -> Iterator[tuple[Any, int, str]]:
        """What looks at the same value, or at any of its parts: schema, how much deeper, where it stands."""
        for key in _HERE:
            for index, child in enumerate(schema.get(key) or ()):
                yield child, 0, f"{pointer}/{key}/{index}"
        for key in _HERE_ONE:
            if key in schema:
                yield schema[key], 0, f"{pointer}/{key}"
        for key in _HERE_NAMED:
            for name, child in _members(schema.get(key)):
                yield child, 0, f"{pointer}/{key}/{name}"
        for key in _REFERENCES:
            if isinstance(schema.get(key), str):
                inside = schema[key].startswith("#/")
                yield self._target(schema[key]), 0, schema[key][1:] if inside else f"{pointer}/{key}"
        for key in _BELOW_NAMED:
            for name, child in _members(schema.get(key)):
                yield child, 1, f"{pointer}/{key}/{name}"
        for key in _BELOW_ONE:
            if key in schema:
                yield schema[key], 1, f"{pointer}/{key}"

    def _target(self, reference: str) -> Any:
        name = reference.removeprefix("#")
        if name and not name.startswith("/"):
            return self._named.get(name, True)
        node: Any = self._root
        for part in name.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(key, True)
            elif isinstance(node, list | tuple) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                return True  # a place that is not there: the validator refuses the schema
        return node


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, Mapping) else ()


def _items(schema: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    found = schema.get("prefixItems")
    yield from enumerate(found) if isinstance(found, list | tuple) else ()


def _anchors(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """Parts by the names that they give themselves. A part with an address of its own would be another root."""
    if isinstance(value, Mapping):
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(key), str):
                yield value[key], value
        if pointer and isinstance(value.get("$id"), str):
            raise SchemaTooMuch(f"{pointer}/$id", "a part of a schema has no address of its own")
        for key, item in value.items():
            yield from _anchors(item, f"{pointer}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _anchors(item, f"{pointer}/{index}")
