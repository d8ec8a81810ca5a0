"""What a view leaves out: whoever may not see the business of a case sees that it is there, and not what it says.

One table of places per kind of answer. `*` is every item of a list or member of an object.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from trueup_gateway.core import roles

_VECTOR: Final = ("desired", "recorded", "observed")
_ENVELOPE: Final = ("envelope/desired", "envelope/observed", "envelope/repair")

BUSINESS: Final[Mapping[str, Sequence[str]]] = {
    "command": (
        *("payload", "receipt", "observation", "result_reference"),
        *("desired_state", "recorded_state", "observed_state"),
    ),
    "workflow": tuple(f"vector/*/{name}" for name in _VECTOR),
    "exception": _ENVELOPE,
    "drift": _VECTOR,
    "repair": ("drift/desired", "drift/observed"),
    "approval": ("binds", "summary"),
    "handover": (
        *(f"{place}/*/{name}" for place in ("case/vector", "evidence/observations") for name in _VECTOR),
        "effects/*/receipt",
        *(f"exceptions/*/{name}" for name in _ENVELOPE),
    ),
}
"""Kind of answer → the places that hold business content: payloads, results, and what was observed in the world."""


def shown(held: Collection[str], kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer as somebody with these roles may see it; `withheld` names what was left out."""
    if roles.may(held, roles.VIEW_BUSINESS):
        return body
    left_out = [place for place in BUSINESS[kind] if _holds(body, place.split("/"))]
    for place in left_out:
        body = _without(body, place.split("/"))
    return {**body, "withheld": left_out}


def _holds(value: Any, path: Sequence[str]) -> bool:
    if not path:
        return value is not None
    return any(_holds(item, path[1:]) for item in _at(value, path[0]))


def _at(value: Any, name: str) -> list[Any]:
    if name == "*":
        return list(value) if isinstance(value, list) else []
    return [value[name]] if isinstance(value, dict) and name in value else []


def _without(value: Any, path: Sequence[str]) -> Any:
    name, rest = path[0], path[1:]
    if name == "*":
        return [_without(item, rest) for item in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or name not in value:
        return value
    return {**value, name: _without(value[name], rest) if rest else None}
