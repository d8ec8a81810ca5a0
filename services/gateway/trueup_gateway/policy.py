"""The policy engine: Cedar, validated against the schema. Any error, and anything but Allow, is a denial."""

import json
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

import cedarpy

from trueup_common.contracts.canonical import sha256_hex
from trueup_gateway.core.policy import Act, Answer, Question

_POLICIES: Final = files("trueup_gateway") / "policies"
SCHEMA_TEXT: Final = (_POLICIES / "schema.cedarschema").read_text(encoding="utf-8")
DEFAULT_TEXT: Final = (_POLICIES / "default.cedar").read_text(encoding="utf-8")
GUARDS_TEXT: Final = (_POLICIES / "guards.cedar").read_text(encoding="utf-8")
"""What stands beside every set: no set can let one tenant act on another's, or somebody approve what he asked for."""
TEXT_CHARACTERS_MAX: Final = 200_000
_SCHEMA: Final = cedarpy.Schema.from_str(SCHEMA_TEXT)

_NO_INTENT: Final[dict[str, Any]] = {
    "command_type": "",
    "effect_class": "READ",
    "risk_score": 0,
    "risk_level": "low",
    "approved": False,
    "repair": False,
}
"""What policy sees of an act of a person, which is no intent: no effect and no risk."""


class PolicyInvalid(ValueError):
    """A policy set that cannot be taken into force; `errors` say why."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


class PolicySet:
    """One parsed and validated policy set. Raises PolicyInvalid for a set that could mean less than it says."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha256 = sha256_hex(text.encode())
        errors = _errors_of(text)
        if errors:
            raise PolicyInvalid(errors)
        self._policies = cedarpy.PolicySet.from_str(f"{text}\n{GUARDS_TEXT}")

    @classmethod
    def default(cls) -> "PolicySet":
        """The set that ships with the product."""
        return cls(DEFAULT_TEXT)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The `@id` of every policy, sorted."""
        return tuple(sorted(_ids_of(self.text)))

    def ask(self, question: Question | Act) -> Answer:
        """Evaluate one question. Never raises: an engine that cannot answer denies."""
        try:
            result = cedarpy.is_authorized(_request(question), self._policies, _entities(question), _SCHEMA)
        except (ValueError, TypeError) as error:
            return Answer(False, errors=(f"not evaluated: {type(error).__name__}",))
        diagnostics = result.diagnostics
        errors = tuple(diagnostics.errors)
        policies = tuple(sorted({str(name) for name in diagnostics.id_annotations_by_reason.values()}))
        return Answer(bool(result.allowed) and not errors, policies, errors)


def _errors_of(text: str) -> list[str]:
    """Everything that keeps a text from being a policy set here."""
    if len(text) > TEXT_CHARACTERS_MAX:
        return ["the policy set is too long"]
    try:
        ids = _ids_of(text)
    except ValueError as error:
        return [f"not Cedar: {str(error)[:300]}"]
    problems = []
    if not ids:
        problems.append("a set without policies denies everything")
    if any(not name for name in ids):
        problems.append("every policy needs an @id")
    doubled = sorted({name for name in ids if name and ids.count(name) > 1})
    if doubled:
        problems.append(f"@id is used twice: {', '.join(doubled)}")
    result = cedarpy.validate_policies(text, _SCHEMA)
    if not result.validation_passed:
        problems.extend([str(error)[:300] for error in result.errors] or ["does not fit the schema"])
    return problems


def _ids_of(text: str) -> list[str]:
    """The `@id` of each policy in a text, empty where one has none. Raises ValueError for what Cedar cannot parse."""
    document = json.loads(cedarpy.policies_to_json_str(text))
    if document.get("templates"):
        raise ValueError("templates are not supported")
    return [str((policy.get("annotations") or {}).get("id") or "") for policy in document["staticPolicies"].values()]


def _request(question: Question | Act) -> dict[str, Any]:
    return {
        "principal": {"type": "Subject", "id": question.subject},
        "action": {"type": "Action", "id": question.action},
        "resource": {"type": "Target", "id": f"{question.system}/{question.resource}"},
        "context": {**_NO_INTENT, **dict(question.facts)} if isinstance(question, Act) else _intent(question),
    }


def _intent(question: Question) -> dict[str, Any]:
    return {
        "command_type": question.command_type,
        "effect_class": question.effect_class.value,
        "risk_score": question.risk_score,
        "risk_level": question.risk_level.value,
        "approved": question.approved,
        "repair": question.repair,
    }


def _entities(question: Question | Act) -> list[dict[str, Any]]:
    roles = [{"type": "Role", "id": role} for role in question.roles]
    return [
        {
            "uid": {"type": "Subject", "id": question.subject},
            "attrs": {"tenant": question.tenant},
            "parents": roles,
        },
        *({"uid": role, "attrs": {}, "parents": []} for role in {role["id"]: role for role in roles}.values()),
        {
            "uid": {"type": "Target", "id": f"{question.system}/{question.resource}"},
            "attrs": {"tenant": question.target_tenant, "system": question.system, "resource": question.resource},
            "parents": [],
        },
    ]
