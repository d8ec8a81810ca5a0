"""Rules about commands and times: a document names commands that exist, fits their payloads, and only tightens them."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import jsonschema_rs

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.workflow import Concurrency
from trueup_common.documents.cel_text import TextInvalid
from trueup_common.documents.faults import below
from trueup_common.documents.ground import Found, Ground
from trueup_common.documents.places import Reading
from trueup_common.documents.rules_of_values import kind_of
from trueup_common.documents.scope import deref
from trueup_common.documents.templates import OPEN, strings

_FITS: Mapping[str, frozenset[str]] = {
    "STRING": frozenset({"string"}),
    "INT": frozenset({"integer", "number"}),
    "UINT": frozenset({"integer", "number"}),
    "DOUBLE": frozenset({"number", "integer"}),
    "BOOL": frozenset({"boolean"}),
    "NULL": frozenset({"null"}),
    "LIST": frozenset({"array"}),
    "MAP": frozenset({"object"}),
}


def unknown_command(ground: Ground) -> Iterator[Found]:
    """A command type is named that no adapter declares."""
    for pointer, step in ground.steps:
        if step.command is not None and step.command not in ground.declarations:
            yield f"{pointer}/command", f"no adapter declares {step.command}"


def expected_version(ground: Ground) -> Iterator[Found]:
    """A version is bound where the command takes none, or missing where it needs one."""
    for pointer, step, declaration in ground.commands:
        if declaration.expected_version == "none" and step.expected_version is not None:
            yield f"{pointer}/expected_version", f"{step.command} takes no expected version"
        if declaration.expected_version == "required" and step.expected_version is None:
            yield pointer, f"{step.command} needs expected_version: the version that the caller saw"


def loosens(ground: Ground) -> Iterator[Found]:
    """A document allows more attempts than the declaration; it may only tighten."""
    for pointer, step, declaration in ground.commands:
        if step.retry is not None and step.retry.attempts_max > declaration.retry.attempts_max:
            yield (
                f"{pointer}/retry/attempts_max",
                f"{step.command} allows {declaration.retry.attempts_max} attempts; a document may only tighten that",
            )


def lifetime(ground: Ground) -> Iterator[Found]:
    """Something may take longer than the case lives."""
    limit = ground.document.lifetime
    queues = ground.document.object.concurrency is Concurrency.QUEUE
    times = [("/object/queue_timeout", ground.document.object.queue_timeout)] if queues else []
    for pointer, step in ground.steps:
        times += [(f"{pointer}/timeout", step.timeout)] if step.timeout else []
        times += [(f"{pointer}/approval/timeout", step.approval.timeout)] if step.approval else []
        times += [(f"{pointer}/wait/timeout", step.wait.timeout)] if step.wait else []
    for pointer, found in times:
        if found > limit:
            yield pointer, f"{_said(found)} is longer than the lifetime of the case, {_said(limit)}"


def _said(duration: timedelta) -> str:
    days, seconds = duration.days, duration.total_seconds() % 86400
    return " ".join(filter(None, (f"{days} d" if days else "", f"{seconds:g} s" if seconds or not days else "")))


def payload(ground: Ground) -> Iterator[Found]:
    """The payload does not fit the command: a field is missing, unknown or of the wrong type."""
    for pointer, step, declaration in ground.commands:
        yield from _Payload(ground, declaration).value(step.payload, declaration.payload_schema, f"{pointer}/with")


class _Payload:
    """One payload against the schema of its command, as far as it is known before the case runs."""

    def __init__(self, ground: Ground, declaration: CommandDeclaration) -> None:
        self.ground = ground
        self.root = declaration.payload_schema
        self.readings = {reading.place.pointer: reading for reading in ground.readings}

    def value(self, value: Any, schema: Any, pointer: str) -> Iterator[Found]:
        """Faults of a value and of what is inside it."""
        node = deref(schema, self.root)
        if isinstance(value, str) and OPEN in value:
            yield from self.template(pointer, node)
        elif not any(OPEN in text for _, text, _ in strings(value)):
            inside = list(self.members(value, node, pointer)) if isinstance(value, dict) else []
            yield from inside or self.constant(value, node, pointer)
        elif isinstance(value, dict):
            yield from self.members(value, node, pointer)
        else:
            for index, item in enumerate(value):
                yield from self.value(item, node.get("items", {}), below(pointer, index))

    def members(self, value: dict[str, Any], node: Mapping[str, Any], pointer: str) -> Iterator[Found]:
        """Faults of an object."""
        if not _allows(node, frozenset({"object"})):
            yield pointer, f"an object stands where {node['type']} is wanted"
            return
        properties = node.get("properties") or {}
        for name in node.get("required") or ():
            if name not in value:
                yield pointer, f"{name!r} is missing"
            elif self.optional(below(pointer, name)):
                yield below(pointer, name), f"{name!r} is required and cannot be left out"
        choices: list[list[str]] = [choice.get("required", []) for choice in node.get("anyOf", ())]
        if choices and all(choices) and not any(set(choice) <= value.keys() for choice in choices):
            yield pointer, "one of these is needed: " + " or ".join(", ".join(choice) for choice in choices)
        for name, item in value.items():
            if name in properties:
                yield from self.value(item, properties[name], below(pointer, name))
            elif node.get("additionalProperties") is False:
                known = ", ".join(sorted(properties)) or "none"
                yield below(pointer, name), f"{name!r} is not a field of the payload (it has {known})"
            elif isinstance(node.get("additionalProperties"), Mapping):
                yield from self.value(item, node["additionalProperties"], below(pointer, name))

    def constant(self, value: Any, node: Mapping[str, Any], pointer: str) -> Iterator[Found]:
        """Faults of what holds no expression."""
        shared: dict[str, Any] = {name: self.root[name] for name in ("$defs", "definitions") if name in self.root}
        try:
            errors = list(jsonschema_rs.validator_for({**shared, **node}).iter_errors(value))
        except (jsonschema_rs.ValidationError, ValueError):
            return  # the declaration's own schema is not this document's fault
        for error in errors:
            yield below(pointer, *error.instance_path), error.message[:300]

    def template(self, pointer: str, node: Mapping[str, Any]) -> Iterator[Found]:
        """Faults of an expression's type against the schema's."""
        reading = self.readings.get(pointer)
        if reading is None or reading.template is None:
            return
        kinds = self.kinds(reading)
        if kinds is not None and not _allows(node, kinds):
            is_, wanted = " or ".join(sorted(kinds)), node["type"]
            yield pointer, f"{reading.place.text[:200]} gives {is_}, where {wanted} is wanted"

    def kinds(self, reading: Reading) -> frozenset[str] | None:
        """The JSON types that a template may give; None where nothing is known."""
        whole = reading.template.whole if reading.template else None
        if whole is None:
            return frozenset({"string"})
        try:
            return _FITS.get(kind_of(self.ground.type_of(reading.place, whole)))
        except TextInvalid:
            return None

    def optional(self, pointer: str) -> bool:
        """True for an entry that may be left out."""
        reading = self.readings.get(pointer)
        return reading is not None and reading.template is not None and reading.template.optional


def _allows(node: Mapping[str, Any], kinds: frozenset[str]) -> bool:
    wanted = node.get("type")
    if wanted is None:
        return True
    return bool(kinds & ({wanted} if isinstance(wanted, str) else set(wanted)))
