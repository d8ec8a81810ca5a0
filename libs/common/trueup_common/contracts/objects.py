"""Objects: what a command touches, named from its payload, so that authority for one object is none for another.

A template is segments joined by `/`; a segment is text or a placeholder that takes a scalar of the payload:
`post/{/payload/post_id}`. A placeholder with alternatives, `{/payload/name|/payload/check_id}`, takes the one that a
`oneOf` of the schema requires. A label is what a caller writes as the target: the object itself, or what encloses it.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from trueup_common.contracts.pointer import Absent

LABEL_CHARACTERS_MAX: Final = 300
_SEGMENT: Final = re.compile(r"\{([^{}]+)\}|([A-Za-z0-9][A-Za-z0-9._-]*)")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_:@=+,~-][A-Za-z0-9_.:@=+,~-]*")
_ESCAPED: Final = re.compile("[\\s\x00-\x1f\x7f%*\ud800-\udfff]")
_CLIMBING: Final = {"": "%", ".": "%2E", "..": "%2E%2E"}
"""Segments that would lead elsewhere; a bare `%` is an empty text, which no other text is written as."""
_SCALARS: Final = ("string", "integer")


@dataclass(frozen=True, slots=True)
class Source:
    """A scalar of the payload. `has_parts`: its schema's pattern says what it is, so a `/` in it divides it."""

    path: tuple[str, ...]
    has_parts: bool

    def text(self, payload: Any) -> str:
        """The value as it stands in an object's name. Raises Absent."""
        value = payload
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Absent("/" + "/".join(self.path))
        return _escaped(str(value), has_parts=self.has_parts)


def _escaped(text: str, *, has_parts: bool) -> str:
    """Percent-encoded wherever it could be read as something else: no two values have one spelling, none climbs."""
    if _PLAIN.fullmatch(text):
        return text
    parts = text.split("/")
    if has_parts and not any(part in _CLIMBING for part in parts):
        return "/".join(_ESCAPED.sub(_percent, part) for part in parts)
    return _CLIMBING.get(text) or _ESCAPED.sub(_percent, text).replace("/", "%2F")


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Template:
    """How the object of a command type is named."""

    segments: tuple[str | tuple[Source, ...], ...]

    @classmethod
    def read(cls, text: str, schema: Mapping[str, Any]) -> Self:
        """The template over a payload schema. Raises ValueError."""
        segments: list[str | tuple[Source, ...]] = []
        at = 0
        while found := _SEGMENT.match(text, at):
            segments.append(_sources(found[1].split("|"), schema) if found[1] else found[2])
            at = found.end()
            if at == len(text):
                return cls(tuple(segments))
            if text[at] != "/":
                break
            at += 1
        raise ValueError(f"acts_on {text!r}: segments are text or one placeholder, joined by single slashes")

    def fill(self, payload: Any) -> str:
        """The object that a payload names. Raises Absent."""
        return "/".join(item if isinstance(item, str) else _first(item, payload) for item in self.segments)

    def could_name(self, label: str) -> bool:
        """True where a label could be read as an object of this kind.

        What creates touches nothing that a label could name. Elsewhere a label of another kind (`article/0028`) is the
        caller's own word for its business; one that only looks like this kind (`Posts/133`) is not.
        """
        kind = self.segments[0]
        if all(isinstance(item, str) for item in self.segments):
            return False
        return not isinstance(kind, str) or _kind(label.partition("/")[0]) in ("", _kind(kind))

    def pointers(self) -> list[str]:
        """Everything that the template points at."""
        sources = [source for item in self.segments if not isinstance(item, str) for source in item]
        return ["/payload/" + "/".join(map(_raw, source.path)) for source in sources]


def _kind(segment: str) -> str:
    """A kind of objects however it is written: without capitals, signs and a plural's s."""
    plain = unicodedata.normalize("NFKC", segment).casefold()
    return "".join(sign for sign in plain if sign.isalnum()).rstrip("s")


def _raw(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _first(sources: Sequence[Source], payload: Any) -> str:
    for source in sources[:-1]:
        try:
            return source.text(payload)
        except Absent:
            continue
    return sources[-1].text(payload)


def _sources(pointers: Sequence[str], schema: Mapping[str, Any]) -> tuple[Source, ...]:
    branches = [branch.get("required", ()) for branch in schema.get("oneOf", ())]
    names = {pointer.removeprefix("/payload/") for pointer in pointers}
    chosen = bool(branches) and all(len(names.intersection(required)) == 1 for required in branches)
    if len(pointers) > 1 and not chosen:
        raise ValueError(f"acts_on: oneOf does not require exactly one of {', '.join(pointers)}")
    return tuple(_source(pointer, schema, required=len(pointers) == 1) for pointer in pointers)


def _source(pointer: str, schema: Mapping[str, Any], *, required: bool) -> Source:
    root, *raws = pointer.removeprefix("/").split("/")
    path = tuple(raw.replace("~1", "/").replace("~0", "~") for raw in raws)
    if root != "payload" or not path:
        raise ValueError(f"acts_on: {pointer} does not point into the payload")
    node: Any = schema
    for name in path:
        if required and name not in node.get("required", ()):
            raise ValueError(f"acts_on: {pointer} is not required by the payload's schema")
        node = node.get("properties", {}).get(name, {})
    if node.get("type") not in _SCALARS:
        raise ValueError(f"acts_on: {pointer} is not one text or integer")
    pattern = node.get("pattern", "")
    return Source(path, pattern.startswith("^") and pattern.endswith("$"))


def encloses(label: str, named: str) -> bool:
    """True where a label is an object or a prefix of it by whole segments."""
    return label == named or named.startswith(f"{label}/")


def label_of(named: str) -> str:
    """The label of an object: itself, or the longest that encloses it where it is too long for one."""
    while len(named) > LABEL_CHARACTERS_MAX and "/" in named:
        named = named.rpartition("/")[0]
    return named
