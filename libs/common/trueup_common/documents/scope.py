"""What expressions can read: the shape of the scope, from the input's schema and the receipts of the commands.

A schema that names properties is closed for readers, unless it says `additionalProperties` itself: a field that nobody
announced is a typing error. A number is dynamic, because JSON writes 3.0 as 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cel_expr_python import cel

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.workflow import Step, StepKind, WorkflowDocument
from trueup_common.documents.cel_text import Path

_T: Final = cel.Type
_SCALARS: Final[Mapping[str, Any]] = {"string": _T.STRING, "integer": _T.INT, "boolean": _T.BOOL}
_STRING: Final = {"type": "string"}


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CASE: Final = _closed(
    workflow_id=_STRING, tenant=_STRING, definition=_STRING, version={"type": "integer"}, started_at=_STRING
)
APPROVAL: Final = _closed(approved={"type": "boolean"}, reviewer=_STRING, content_sha256=_STRING, decided_at=_STRING)
CHECK: Final = _closed(passed={"type": "boolean"}, failed={"type": "array", "items": _STRING})


class NotThere(LookupError):
    """A path that leads nowhere; the text says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The CEL type at a path, and those beginnings of the path that need not be there though its step ended well."""

    type: Any
    optional: tuple[Path, ...]


def deref(schema: Any, root: Any) -> dict[str, Any]:
    """The schema with a local reference followed; what cannot be read is the schema of anything."""
    for _ in range(10):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return dict(schema)
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        schema = target
    return {}


def outputs(step: Step, declarations: Mapping[str, CommandDeclaration]) -> dict[str, Any]:
    """The schema of what later steps may read of a step."""
    if step.kind is StepKind.APPROVAL:
        return APPROVAL
    if step.kind is StepKind.CHECK:
        return CHECK
    if step.wait is not None:
        return _closed(data=step.wait.data, actor=_STRING, event_id=_STRING)
    declaration = declarations.get(step.command or "")
    receipt = declaration.receipt_schema if declaration else {}
    properties = receipt.get("properties")
    if not properties:
        return {}
    # Receipts are written by adapters, which leave out what does not apply: not announced as optional, never missed.
    return {**receipt, "properties": {"command_id": _STRING, **properties}, "required": ["command_id", *properties]}


class Scope:
    """The shape of the scope of one document."""

    def __init__(self, document: WorkflowDocument, declarations: Mapping[str, CommandDeclaration]) -> None:
        self._input = document.input
        self._steps = {step.id: outputs(step, declarations) for step in document.steps}

    def look(self, path: Path, event: Mapping[str, Any] | None = None) -> Seen:
        """The type at a path. Raises NotThere."""
        root, rest = path[0], path[1:]
        if root == "input":
            return _look(self._input, path, 1, "the input")
        if root == "case":
            return _look(CASE, path, 1, "the case")
        if root == "event":
            return _look(event or {}, path, 1, "the event")
        if rest[0] not in self._steps:
            raise NotThere(f"there is no step {rest[0]!r}")
        if len(rest) == 1:
            raise NotThere(f"steps.{rest[0]} alone is no value: name a field of it")
        return _look(self._steps[rest[0]], path, 2, f"what step {rest[0]!r} gives")


def _look(root: Any, path: Path, start: int, where: str) -> Seen:
    node, optional = deref(root, root), []
    for index, name in enumerate(path[start:], start):
        kind = node.get("type")
        if isinstance(kind, str) and kind != "object":
            raise NotThere(f"{where} is of type {kind} and has no field {name!r}")
        properties = node.get("properties") or {}
        more = node.get("additionalProperties")
        if name in properties:
            if name not in (node.get("required") or ()):
                optional.append(path[: index + 1])
            node = deref(properties[name], root)
        elif isinstance(more, Mapping) or more is True or "patternProperties" in node or _open(node):
            node = deref(more, root) if isinstance(more, Mapping) else {}
        elif properties or more is False:
            known = ", ".join(sorted(properties)) or "no fields"
            raise NotThere(f"{where} has no field {name!r} (it has {known})")
        else:
            node = {}
        where = f"{where}, field {name!r}"
    return Seen(type_of(node, root), tuple(optional))


def _open(node: Mapping[str, Any]) -> bool:
    return any(word in node for word in ("anyOf", "oneOf", "allOf", "if", "$dynamicRef"))


def type_of(schema: Any, root: Any) -> Any:
    """The CEL type of values of a schema."""
    node = deref(schema, root)
    kind = node.get("type")
    if not isinstance(kind, str):
        return _T.DYN
    if kind == "array":
        return _T.List(type_of(node.get("items"), root))
    if kind == "object":
        return _T.Map(_T.STRING, _T.DYN)
    return _SCALARS.get(kind, _T.DYN)
