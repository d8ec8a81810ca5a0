"""Registered meta as WordPress keeps it: what a site takes, how it stores it, and what it shows. Pure.

PHP has one kind of array, so an empty object comes back as an empty list; a registration that names several types at
once never reaches the REST API; an object takes no property that its schema does not name, unless it says that it does.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from trueup_devkit.sandbox.store import Document

_EMPTY: Final[dict[str, Any]] = {"string": "", "array": [], "object": [], "integer": 0, "number": 0, "boolean": False}
_NUMBERS: Final = {"integer": re.compile(r"\s*[+-]?\d{1,18}\s*"), "number": re.compile(r"\s*[+-]?\d{1,18}(\.\d+)?\s*")}
_DEPTH_MAX: Final = 512
_SPELT: Final = {"true": True, "false": False, "1": True, "0": False}


class WrongMeta(Exception):
    """A value that the schema does not take: the code and the words of WordPress."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shown_registrations(registered: Mapping[str, Document]) -> dict[str, Document]:
    """What of a site's registrations reaches the REST API, with the defaults that WordPress fills in."""
    shown = {}
    for name, schema in registered.items():
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in _EMPTY or (kind == "array" and "items" not in schema):
            continue
        shown[name] = {"description": "", "default": _EMPTY[kind], **_closed(schema)}
    return shown


def _closed(schema: Document) -> Document:
    """Objects refuse unknown properties unless their schema allows them; so do objects inside."""
    closed = dict(schema)
    kinds = schema.get("type")
    if "object" in ([kinds] if isinstance(kinds, str) else kinds or []):
        closed.setdefault("additionalProperties", False)
        if isinstance(schema.get("properties"), dict):
            closed["properties"] = {name: _closed(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        closed["items"] = _closed(schema["items"])
    return closed


def taken(value: Any, schema: Document, where: str) -> Any:
    """The value as it is stored. Raises WrongMeta."""
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds or [])
    for kind in names:
        found = _as(kind, value)
        if found is not None:
            return _inside(kind, found[0], schema, where)
    raise WrongMeta("rest_invalid_type", f"{where} is not of type {','.join(names)}.")


def _as(kind: str, value: Any) -> tuple[Any] | None:
    """The value as one of this kind, however it is spelt; None where it is none."""
    text = value if isinstance(value, str) else None
    plain = not isinstance(value, bool)
    match kind:
        case "string":
            return None if text is None else (text,)
        case "array":
            if text is not None:
                return (re.split(r"[\s,]+", text.strip()) if text.strip() else [],)
            return (value,) if isinstance(value, list) else None
        case "object":
            return (value,) if isinstance(value, dict) or value == [] or text == "" else None
        case "boolean":
            if not plain or (plain and value in (0, 1)):
                return (bool(value),)
            return (_SPELT[text.lower()],) if text is not None and text.lower() in _SPELT else None
        case "integer" | "number":
            if text is not None and _NUMBERS[kind].fullmatch(text):
                return (float(text) if "." in text else int(text),)
            fits = isinstance(value, int) or (isinstance(value, float) and (kind == "number" or value.is_integer()))
            return (value,) if plain and fits else None
        case _:
            return None


def _inside(kind: str, value: Any, schema: Document, where: str) -> Any:
    if kind == "array" and isinstance(schema.get("items"), dict):
        return [taken(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(value)]
    if kind != "object" or not isinstance(value, dict):
        return value
    named = schema.get("properties") or {}
    kept = {}
    for name, item in value.items():
        if name in named:
            kept[name] = taken(item, named[name], f"{where}[{name}]")
        elif schema.get("additionalProperties") is False:
            raise WrongMeta("rest_additional_properties_forbidden", f"{name} is not a valid property of Object.")
        else:
            kept[name] = item
    return kept


def is_too_deep(document: Any) -> bool:
    """PHP reads JSON to a depth of 512."""
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > _DEPTH_MAX:
            return True
        inner = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [item for items in inner if isinstance(items, list) for item in items if isinstance(item, dict | list)]
    return False


def shown_value(value: Any, schema: Document) -> Any:
    """The value as the REST API shows it: nothing where what is stored does not keep the schema."""
    try:
        return _as_php(taken(value, schema, ""))
    except WrongMeta:
        return None


def _as_php(value: Any) -> Any:
    """What is left of a value after PHP has held it."""
    if isinstance(value, dict):
        kept = {}
        for name, item in value.items():  # a comprehension would need twice the stack
            kept[name] = _as_php(item)
        return kept or []
    if isinstance(value, list):
        return [_as_php(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
