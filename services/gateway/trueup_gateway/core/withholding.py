"""What a view leaves out: whoever may not see the business of a case sees that it is there, and not what it says.

One table of places per kind of answer. `*` is every item of a list, `*failure` every fact that something went wrong.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from trueup_gateway.core import roles

_VECTOR: Final = ("desired", "recorded", "observed")
_ENVELOPE: Final = ("envelope/desired", "envelope/observed", "envelope/repair", "envelope/failure_reason")
"""The reason is what the target said: it quotes content, and nobody reads it before it is kept. What went wrong is told
by `failure_class`, `failure_code` and `last_external_status` as well."""
_FACTS: Final = ("*failure/payload/reason", "*/payload/observation")

BUSINESS: Final[Mapping[str, Sequence[str]]] = {
    "command": (
        *("payload", "receipt", "observation", "result_reference"),
        *("desired_state", "recorded_state", "observed_state", "error_detail"),
    ),
    "workflow": (
        *(f"vector/*/{name}" for name in _VECTOR),
        *(f"obligations/*/{name}" for name in _ENVELOPE),
    ),
    "history": tuple(f"items/{place}" for place in _FACTS),
    "exception": _ENVELOPE,
    "drift": _VECTOR,
    "repair": ("drift/desired", "drift/observed", "root_cause", "error_detail"),
    "approval": ("binds", "summary", "repair/root_cause"),
    "handover": (
        *(f"{place}/*/{name}" for place in ("case/vector", "evidence/observations") for name in _VECTOR),
        *("effects/*/receipt", *(f"history/{place}" for place in _FACTS)),
        *(f"{place}/*/{name}" for place in ("case/obligations", "exceptions") for name in _ENVELOPE),
    ),
    "act": ("detail", "params/receipt"),
    "refused_act": ("params/receipt",),
}
"""Kind of answer → the places that hold business content: payloads, results, what was observed in the world, and what a
target said of it. Of an act that ended badly `detail` is what the target said, of a refused one what the plane says."""


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


def _is_failure(fact: Any) -> bool:
    """True for a fact of the plane's own that has a failure code: its reason is in the words of the target."""
    payload = fact.get("payload") if isinstance(fact, dict) else None
    return isinstance(payload, dict) and "error_code" in payload and fact.get("type") != "OperatorActed"


_ITEMS: Final[Mapping[str, Callable[[Any], bool]]] = {"*": lambda _: True, "*failure": _is_failure}


def _at(value: Any, name: str) -> list[Any]:
    if name in _ITEMS:
        return [item for item in value if _ITEMS[name](item)] if isinstance(value, list) else []
    return [value[name]] if isinstance(value, dict) and name in value else []


def _without(value: Any, path: Sequence[str]) -> Any:
    name, rest = path[0], path[1:]
    if name in _ITEMS:
        meant = _ITEMS[name]
        return [_without(item, rest) if meant(item) else item for item in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or name not in value:
        return value
    return {**value, name: _without(value[name], rest) if rest else None}
