"""Small declarations and documents for the tests of the linter. A line that ends with `# <-` is where a fault is."""

from typing import Any

from trueup_common.contracts.declaration import CommandDeclaration, Mapping
from trueup_common.contracts.states import EffectClass, Findability
from trueup_common.documents.faults import Fault
from trueup_common.documents.lint import faults
from trueup_common.documents.read import read_document

SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
RECEIPT = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "link": {"type": "string"}, "content_sha256": SHA256},
}


def declared(name: str, effect: EffectClass, undo: str | None = None, **more: Any) -> CommandDeclaration:
    """A command of the system `t`."""
    fields: dict[str, Any] = {
        "type": f"t.{name}",
        "system": "t",
        "title": name,
        "permission": f"t:{name}",
        "effect_class": effect,
        "payload_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "receipt_schema": RECEIPT,
        "findability": Findability.MARKER,
        "success_condition": "it is there",
        "forward_recovery": "retry",
        "compensation": Mapping(command_type=f"t.{undo}", payload={}) if undo else None,
    }
    return CommandDeclaration(**{**fields, **more})


TYPES = [
    declared("look", EffectClass.READ),
    declared("make", EffectClass.COMPENSABLE, "unmake"),
    declared("sign", EffectClass.COMPENSABLE, "unmake", forward_recovery="person"),
    declared("unmake", EffectClass.RETRYABLE),
    declared("tell", EffectClass.RETRYABLE),
    declared("touch", EffectClass.RETRYABLE, "touch"),
    declared("publish", EffectClass.PIVOT),
    declared("pay", EffectClass.IRREVERSIBLE),
    declared("versioned", EffectClass.READ, expected_version="required"),
    declared("unversioned", EffectClass.READ, expected_version="none"),
    declared(
        "strict",
        EffectClass.READ,
        payload_schema={
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "count"],
            "properties": {
                "name": {"type": "string", "maxLength": 5},
                "count": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "inner": {"$ref": "#/$defs/inner"},
            },
            "$defs": {"inner": {"type": "object", "required": ["x"], "properties": {"x": {"type": "boolean"}}}},
        },
    ),
    declared(
        "choice",
        EffectClass.READ,
        payload_schema={"type": "object", "anyOf": [{"required": ["text"]}, {"required": ["title"]}]},
    ),
]
DECLARATIONS = {item.type: item for item in TYPES}

HEAD = """\
name: sample
version: 1
object: { type: thing, id: "${input.id}" }
lifetime: P7D
input:
  type: object
  required: [id, count, names]
  properties:
    id: { type: string }
    count: { type: integer }
    ratio: { type: number }
    note: { type: string }
    names: { type: array, items: { type: string } }
    extra: { type: object }
    meta:
      type: object
      required: [title]
      properties: { title: { type: string }, hint: { type: string } }
steps:
"""


def text_of(steps: str) -> str:
    """A document with these steps."""
    return HEAD + steps


def faults_of(text: str, declarations: dict[str, CommandDeclaration] | None = None) -> list[Fault]:
    """The linter's findings."""
    read = read_document(text)
    return faults(read.document, DECLARATIONS if declarations is None else declarations, read.line_of)


def marked_lines(text: str) -> list[int]:
    """The numbers of the lines that end with the mark."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith("# <-")]
