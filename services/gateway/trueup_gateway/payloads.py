"""Payloads: checked against the declaration's JSON Schema; every place that does not fit is named by a pointer."""

from typing import Any, Final

import jsonschema_rs

from trueup_common.contracts.declaration import CommandDeclaration

ERRORS_MAX: Final = 50


class PayloadSchemas:
    """Compiled schemas by declaration. Foreign references are never fetched."""

    def __init__(self) -> None:
        self._validators: dict[str, Any] = {}

    def errors(self, declaration: CommandDeclaration, payload: Any) -> list[tuple[str, str]]:
        """(pointer, detail) of every place that does not fit, without showing a value; empty where all fits."""
        validator = self._validators.get(declaration.sha256)
        if validator is None:
            validator = jsonschema_rs.Draft202012Validator(declaration.payload_schema, mask="this value")
            self._validators[declaration.sha256] = validator
        if validator.is_valid(payload):
            return []
        found = []
        for error in validator.iter_errors(payload):
            found.append((pointer_of(("payload", *error.instance_path)), str(error.message)[:300]))
            if len(found) >= ERRORS_MAX:
                break
        return found


def pointer_of(path: Any) -> str:
    """An RFC 6901 pointer from path parts."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
