"""Exchanges held to an official OpenAPI description: path, query and body on the way there, status and body back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from openapi_schema_validator import OAS30Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

_WHERE: Final = "urn:description"
_EVERYWHERE: Final = {400, 401, 403}
"""An unknown version, bad credentials and missing rights are answered at every address, and not described at each."""
_ERROR: Final = "/components/schemas/basic-error"
_WITH_SLASHES: Final = {"path", "ref", "basehead"}
_METHODS: Final = {"GET", "POST", "PUT", "PATCH", "DELETE"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, as they were on the wire."""

    method: str
    path: str
    query: str
    body: bytes
    status: int
    content_type: str
    answer: bytes


class Description:
    """An OpenAPI 3.0 document, of which only the operations that are met are ever looked at."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.document: dict[str, Any] = _as_meant(json.loads(path.read_bytes()))
        self.version = str(self.document["info"]["version"])
        self._registry: Registry[Any] = Registry().with_resource(_WHERE, Resource(self.document, DRAFT4))
        self._templates = [(_pattern(item), item) for item in self.document["paths"] if item.startswith(prefix)]
        # The most literal path wins, as the specification wants it.
        self._templates.sort(key=lambda pair: (pair[1].count("{"), -len(pair[1])))
        self._validators: dict[str, OAS30Validator] = {}
        self.met: set[tuple[str, str, int]] = set()

    def complaints(self, exchange: Exchange, *, request: bool = True) -> Iterator[str]:
        """What the description does not know about this exchange."""
        said = f"{exchange.method} {exchange.path}"
        found = next(((match, item) for pattern, item in self._templates if (match := pattern(exchange.path))), None)
        operation = self.document["paths"][found[1]].get(exchange.method.lower()) if found else None
        if found is None or operation is None:
            if request:
                yield f"{said}: no such operation"
            return
        template = found[1]
        pointer = f"/paths/{_escaped(template)}/{exchange.method.lower()}"
        if request:
            for complaint in self._of_request(exchange, operation, pointer, found[0]):
                yield f"{said}: {complaint}"
        self.met.add((exchange.method, template, exchange.status))
        for complaint in self._of_answer(exchange, operation, pointer):
            yield f"{said} -> {exchange.status}: {complaint}"

    def _of_request(
        self, exchange: Exchange, operation: Mapping[str, Any], pointer: str, parts: Mapping[str, str]
    ) -> Iterator[str]:
        known = {}
        for number, given in enumerate(operation.get("parameters", [])):
            where, item = self._resolved(given, f"{pointer}/parameters/{number}")
            known[item["in"], item["name"]] = (where, item)
        sent = [("query", name, value) for name, value in parse_qsl(exchange.query, keep_blank_values=True)]
        sent += [("path", name, unquote(value)) for name, value in parts.items()]
        for place, name, value in sent:
            if (place, name) not in known:
                yield f"{place} parameter {name} is not described"
                continue
            where, item = known[place, name]
            kind = item["schema"].get("type")
            plain: Any = int(value) if kind == "integer" and value.isdigit() else value
            yield from self._against(f"{where}/schema", plain, f"{place} parameter {name}")
        if exchange.method not in _METHODS or "requestBody" not in operation:
            if exchange.body:
                yield "no body is described"
            return
        where, body = self._resolved(operation["requestBody"], f"{pointer}/requestBody")
        if not exchange.body:
            if body.get("required"):
                yield "a body is required"
            return
        document = json.loads(exchange.body)
        schema = f"{where}/content/application~1json/schema"
        yield from self._against(schema, document, "the body")
        described = self._at(schema).get("properties", {})
        yield from (f"the body's {name} is not described" for name in document if described and name not in described)

    def _of_answer(self, exchange: Exchange, operation: Mapping[str, Any], pointer: str) -> Iterator[str]:
        given = operation["responses"].get(str(exchange.status))
        if given is None and exchange.status in _EVERYWHERE:
            yield from self._against(_ERROR, json.loads(exchange.answer), "the error")
            return
        if given is None:
            if exchange.status != 304 or exchange.answer:  # any read may be conditional
                yield "this status is not described"
            return
        where, response = self._resolved(given, f"{pointer}/responses/{exchange.status}")
        content = response.get("content", {})
        if not content:
            if exchange.answer and exchange.status >= 400:
                yield from self._against(_ERROR, json.loads(exchange.answer), "the error")
            elif exchange.answer:
                yield "no content is described"
            return
        kind = exchange.content_type.partition(";")[0].strip()
        if kind not in content:
            yield f"content type {kind!r} is not described, only {', '.join(content)}"
            return
        yield from self._against(f"{where}/content/{_escaped(kind)}/schema", json.loads(exchange.answer), "the answer")

    def _against(self, pointer: str, value: Any, what: str) -> Iterator[str]:
        validator = self._validators.get(pointer)
        if validator is None:
            schema = {"$ref": f"{_WHERE}#{pointer}"}
            validator = self._validators[pointer] = OAS30Validator(schema, registry=self._registry)
        for error in validator.iter_errors(value):
            place = "/".join(map(str, error.absolute_path))
            yield f"{what}{f' at {place}' if place else ''}: {error.message[:300]}"

    def _resolved(self, given: Mapping[str, Any], pointer: str) -> tuple[str, Mapping[str, Any]]:
        while "$ref" in given:
            pointer = str(given["$ref"]).removeprefix("#")
            given = self._at(pointer)
        return pointer, given

    def _at(self, pointer: str) -> Mapping[str, Any]:
        found: Any = self.document
        for part in pointer.strip("/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return dict(found)


def _as_meant(part: Any) -> Any:
    """The document as it is meant: null beside a choice is one more choice, choices may overlap (errors do), and a
    discriminator only helps to choose.
    """
    if isinstance(part, list):
        return [_as_meant(item) for item in part]
    if not isinstance(part, dict):
        return part
    meant = {name: _as_meant(item) for name, item in part.items() if name != "discriminator"}
    if isinstance(meant.get("oneOf"), list):
        meant["anyOf"] = meant.pop("oneOf")
    if part.get("nullable") is True and "type" not in part and ("oneOf" in part or "anyOf" in part or "allOf" in part):
        return {"anyOf": [{"enum": [None], "nullable": True}, meant]}
    return meant


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _pattern(template: str) -> Any:
    """What tells a path of this template, and its parts."""
    names = re.findall(r"{([^}]+)}", template)
    text = re.escape(template)
    for name in names:
        text = text.replace(re.escape("{" + name + "}"), "(.+)" if name in _WITH_SLASHES else "([^/]+)")
    compiled = re.compile(text)

    def match(path: str) -> dict[str, str] | None:
        found = compiled.fullmatch(path)
        return dict(zip(names, found.groups(), strict=True)) if found else None

    return match
