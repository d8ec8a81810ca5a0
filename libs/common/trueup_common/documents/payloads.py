"""Payloads: checked against the declaration's JSON Schema; every place that does not fit is named by a pointer."""

from typing import Any, Final

import jsonschema_rs

from trueup_common.contracts.declaration import CommandDeclaration

ERRORS_MAX: Final = 50


class PayloadSchemas:
    """Compiled schemas by declaration. Foreign references are never fetched."""

    def __init__(self) -> None:
        self._validators: dict[str, Any] = {}

    def errors(self, declaration: CommandDeclaration, payload: Any, member: str = "payload") -> list[tuple[str, str]]:
        """(pointer, detail) of every place that does not fit, without showing a value; empty where all fits."""
        return self.errors_of(declaration.sha256, declaration.payload_schema, payload, member)

    def errors_of(self, name: str, schema: dict[str, Any], value: Any, member: str) -> list[tuple[str, str]]:
        """The same for any schema, known by `name`; pointers begin at the body's `member`."""
        validator = self._validators.get(name)
        if validator is None:
            validator = jsonschema_rs.Draft202012Validator(schema, mask="this value")
            self._validators[name] = validator
        if validator.is_valid(value):
            return []
        found = []
        for error in validator.iter_errors(value):
            found.append((pointer_of((member, *error.instance_path)), str(error.message)[:300]))
            if len(found) >= ERRORS_MAX:
                break
        return found


def pointer_of(path: Any) -> str:
    """An RFC 6901 pointer from path parts."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
