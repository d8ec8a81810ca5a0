"""Text to workflow document: the one way in, for built-in documents and for those that tenants register.

Read for form only; whether a document is sound stands in `lint`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.faults import DocumentInvalid, Fault, below
from trueup_common.documents.text import decoded, parsed


@dataclass(frozen=True)
class ReadDocument:
    """A document with its text and the line of each of its parts."""

    document: WorkflowDocument
    text: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, pointer: str) -> int | None:
        """The line of a JSON pointer, or of what it would stand in; None where there is no text."""
        return _line_of(self.lines, pointer)


def read_document(text: str | bytes) -> ReadDocument:
    """The document in this YAML (or JSON) text. Raises DocumentInvalid with every fault of form."""
    written = decoded(text)
    value, lines = parsed(written)
    if not isinstance(value, dict):
        raise DocumentInvalid([Fault("shape", "", 1, "a workflow document is a mapping")])
    try:
        document = WorkflowDocument.model_validate(value)
    except ValidationError as error:
        raise DocumentInvalid(_faults(error, value, lines)) from error
    return ReadDocument(document, written, lines)


_PLAIN: Final = {"tuple_type": "a list is wanted here", "too_short": "the list is empty"}


def _line_of(lines: Mapping[str, int], pointer: str) -> int | None:
    while pointer not in lines and pointer:
        pointer = pointer.rpartition("/")[0]
    return lines.get(pointer)


def _faults(error: ValidationError, value: Any, lines: Mapping[str, int]) -> list[Fault]:
    found = [(item["type"], _fault(item, value, lines)) for item in error.errors(include_url=False)]
    kept = {fault for kind, fault in found if not _follows(kind, fault, found)}
    return sorted(kept, key=lambda fault: (fault.line or 0, fault.pointer, fault.detail))


def _follows(kind: str, fault: Fault, found: list[tuple[str, Fault]]) -> bool:
    """True for what only follows from another fault: the other branch of a union, the list that lost a bad item."""
    inside = any(other.pointer.startswith(fault.pointer + "/") for _, other in found)
    beside = any(other.pointer == fault.pointer and other_kind != kind for other_kind, other in found)
    return (kind in ("enum", "too_short") and inside) or (kind == "model_type" and (inside or beside))


def _fault(error: Any, value: Any, lines: Mapping[str, int]) -> Fault:
    """A pydantic error as a fault: its place is the longest part of its path that stands in the text."""
    pointer, node, missing = "", value, ""
    for part in error["loc"]:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            node = node[part]
        else:  # the name of a union's branch, or a field that is not there
            missing = str(part)
            continue
        pointer = below(pointer, part)
    if error["type"] == "missing":
        detail = f"{missing!r} is missing"
    elif error["type"] == "extra_forbidden":
        detail = f"{error['loc'][-1]!r} is not a field here"
    else:
        detail = _PLAIN.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    return Fault("shape", pointer, _line_of(lines, pointer), detail)
