"""Payloads: checked against the declaration's JSON Schema; every place that does not fit is named by a pointer."""

from collections import OrderedDict
from typing import Any, Final

import jsonschema_rs

from trueup_common.contracts.declaration import CommandDeclaration

ERRORS_MAX: Final = 50


SCHEMAS_MAX: Final = 500
"""Compiled schemas that are kept; what was not asked for longest goes first."""


def validator_of(schema: dict[str, Any]) -> Any:
    """The compiled schema. Its patterns are those that take linear time: without look-around and references back.

    Raises ValueError, RuntimeError or jsonschema_rs.ValidationError where it is none.
    """
    return jsonschema_rs.Draft202012Validator(schema, mask="this value", pattern_options=jsonschema_rs.RegexOptions())


class PayloadSchemas:
    """Compiled schemas by declaration. Foreign references are never fetched."""

    def __init__(self) -> None:
        self._validators: OrderedDict[str, Any] = OrderedDict()

    def errors(self, declaration: CommandDeclaration, payload: Any, member: str = "payload") -> list[tuple[str, str]]:
        """(pointer, detail) of every place that does not fit, without showing a value; empty where all fits."""
        return self.errors_of(declaration.sha256, declaration.payload_schema, payload, member)

    def errors_of(self, name: str, schema: dict[str, Any], value: Any, member: str) -> list[tuple[str, str]]:
        """The same for any schema, known by `name`; pointers begin at the body's `member`."""
        validator = self._validators.get(name)
        if validator is None:
            validator = self._validators[name] = validator_of(schema)
            if len(self._validators) > SCHEMAS_MAX:
                self._validators.popitem(last=False)
        else:
            self._validators.move_to_end(name)
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
