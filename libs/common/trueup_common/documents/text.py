"""YAML 1.2 text to JSON values, with the line of each: what two readers could read differently is refused.

So: no duplicate keys, no anchors, aliases, merges or tags, one document, string keys, and the core schema of YAML 1.2,
in which `on`, `yes` and `2026-01-01` are strings. JSON is read as the YAML that it is.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from trueup_common.documents.faults import DocumentInvalid, Fault, below

SIZE_BYTES_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 40
FORM: Final = {
    "encoding": "The text is not UTF-8, or holds half a character or NUL.",
    "size": f"The text is longer than {SIZE_BYTES_MAX // 1024} KiB.",
    "syntax": "The text is not YAML, or uses what is not read: anchors, aliases, tags, several documents.",
    "depth": f"Values are nested deeper than {DEPTH_MAX}.",
    "duplicate-key": "A key stands twice in one mapping.",
    "number": "A number that JSON does not keep: not finite, or beyond 2^53.",
    "shape": "A field is missing, unknown or of the wrong form.",
}
"""The rules of form: what is found while the text is read, before any rule of the linter."""
_SAFE_INTEGER: Final = 2**53 - 1
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT: Final = re.compile(r"[-+]?[0-9]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def decoded(text: str | bytes) -> str:
    """The text, bounded and in UTF-8. Raises DocumentInvalid."""
    try:
        raw = text.encode() if isinstance(text, str) else text
        if len(raw) > SIZE_BYTES_MAX:
            raise refused("size", 1, f"the document has {len(raw)} bytes; at most {SIZE_BYTES_MAX} are read")
        return raw.decode()
    except UnicodeError as error:
        raise refused("encoding", 1, "the document is not UTF-8") from error


def refused(rule: str, line: int, detail: str, pointer: str = "") -> DocumentInvalid:
    """The refusal of a text for one fault."""
    return DocumentInvalid([Fault(rule, pointer, line, detail)])


def parsed(text: str) -> tuple[Any, dict[str, int]]:
    """The value of the one document in the text, and the line of each JSON pointer. Raises DocumentInvalid."""
    # libyaml is 20 times faster, but refuses the surrogate pairs that JSON writers emit.
    loader = yaml.SafeLoader if _SURROGATE_ESCAPE.search(text) else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise refused("syntax", mark.line + 1 if mark else 1, error.problem or "not YAML") from error
    except yaml.YAMLError as error:
        raise refused("syntax", 1, f"not YAML: {str(error).splitlines()[0][:200]}") from error


class _Builder:
    """Values from parse events; recursion is bounded by DEPTH_MAX."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.events = events
        self.lines: dict[str, int] = {}

    def document(self) -> tuple[Any, dict[str, int]]:
        """The single document."""
        next(self.events)  # the start of the stream
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            raise refused("syntax", 1, "the text holds no document")
        if start.tags or (start.version and start.version[0] != 1):
            raise refused("syntax", _line(start), "a document has no %TAG directive and is YAML 1.2")
        value = self.value(next(self.events), "", 0)
        next(self.events)  # the end of the document
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise refused("syntax", _line(after), "one text holds one document")
        return value, self.lines

    def value(self, event: Any, pointer: str, depth: int) -> Any:
        """The value that starts with this event."""
        self.lines.setdefault(pointer, _line(event))
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise refused("syntax", _line(event), "anchors and aliases are not read: write the value out", pointer)
        if event.tag:
            raise refused("syntax", _line(event), f"tags are not read: {event.tag}", pointer)
        if depth > DEPTH_MAX:
            raise refused("depth", _line(event), f"nested deeper than {DEPTH_MAX}", pointer)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event, pointer)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(pointer, depth)
        return self.mapping(pointer, depth)

    def sequence(self, pointer: str, depth: int) -> list[Any]:
        """The items up to the end of the sequence."""
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, below(pointer, len(items)), depth + 1))
        return items

    def mapping(self, pointer: str, depth: int) -> dict[str, Any]:
        """The members up to the end of the mapping."""
        members: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event, pointer)
            if key in members:
                raise refused("duplicate-key", _line(event), f"the key {key!r} stands here twice", below(pointer, key))
            self.lines[below(pointer, key)] = _line(event)
            members[key] = self.value(next(self.events), below(pointer, key), depth + 1)
        return members

    def key(self, event: Any, pointer: str) -> str:
        """A key; it is a string, whatever it looks like."""
        if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
            raise refused("syntax", _line(event), "a key is a plain string", pointer)
        return _joined(event.value, _line(event), pointer)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _scalar(event: Any, pointer: str) -> Any:
    text, line = event.value, _line(event)
    if not event.implicit[0]:
        return _joined(text, line, pointer)
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _NOT_FINITE.fullmatch(text):
        raise refused("number", line, f"{text} is no JSON number", pointer)
    if _INT.fullmatch(text) or _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        return _integer(text, line, pointer)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise refused("number", line, f"{text} is too large", pointer)
        return number
    return _joined(text, line, pointer)


def _integer(text: str, line: int, pointer: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = int(text, base) if len(text) < 40 else _SAFE_INTEGER + 1
    if abs(number) > _SAFE_INTEGER:
        raise refused("number", line, "an integer beyond 2^53 is not kept exactly: write it as a string", pointer)
    return number


def _joined(text: str, line: int, pointer: str) -> str:
    """Surrogate pairs of JSON escapes as the characters they stand for; a lone one and NUL are no text."""
    if "\0" in text:
        raise refused("encoding", line, "NUL is not acceptable in text", pointer)
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeError as error:
        raise refused("encoding", line, "a lone surrogate is no character", pointer) from error
