"""Acts: what a person may do now, as forms, and why not the rest. What a form asks for is in `asking`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from trueup_gateway.console.view import View
from trueup_gateway.core import roles


@dataclass(frozen=True)
class Offer:
    """One act that may be asked for now, and what it asks beside its reason."""

    action: str
    target_kind: str
    target_id: str
    fields: tuple[str, ...] = ()
    grave: bool = False
    steps: tuple[str, ...] = ()
    further_steps: tuple[tuple[str, int], ...] = ()
    """Steps that only another version has, each with that version."""
    versions: tuple[Mapping[str, Any], ...] = ()
    """Other versions of the case's workflow by which it may go on."""
    version: int | None = None
    """The version that the case runs by."""
    effects: tuple[tuple[str, str], ...] = ()
    """Effects that may stand, each with what it is: who closes a case says what became of every one."""
    observations: tuple[tuple[str, str], ...] = ()
    """Elements that were seen to be right, as a form names them and as a person reads them."""


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "SETTLE": ("finding", "external_resource_id", "receipt", "evidence", "became"),
    "MARK_RESOLVED": ("observation", "became"),
    "RESUME": ("from_step", "version", "dry_run"),
    "ASSIGN": ("owner",),
    "ESCALATE": ("owner",),
    "TAKE_OVER": ("stop",),
}
"""What an act asks beside its reason."""
RECOMMENDED: Final[Mapping[str, tuple[str, ...]]] = {
    "dead_letter": ("REDRIVE", "RECONCILE"),
    "failed": ("REDRIVE", "RECONCILE"),
    "needs_review": ("SETTLE", "RECONCILE", "RESUME"),
    "state_drift": ("REPAIR", "RECONCILE"),
    "compensation_failed": ("COMPENSATE", "REDRIVE", "REPAIR"),
    "conflict": ("SETTLE", "MARK_RESOLVED"),
}
"""What most often helps, by the kind of exception: it stands first."""
GRAVE: Final = frozenset({"CANCEL", "COMPENSATE", "SETTLE", "MARK_RESOLVED"})
"""Acts that cannot simply be taken back."""
_NOTHING_LEFT: Final = frozenset({"PENDING", "RESOLVED", "CANCELLED", "SKIPPED"})


def offers_for_exception(
    view: View, item: Mapping[str, Any], case: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Offer]:
    """What may be done about an exception now: what the contract allows, where the person may act at all."""
    offers = _offers(view, "exception", str(item["exception_id"]), item.get("allowed_actions"), case, row)
    first = RECOMMENDED.get(str(item.get("kind")), ())
    return sorted(offers, key=lambda offer: first.index(offer.action) if offer.action in first else len(first))


def why_not_for_exception(
    view: View, item: Mapping[str, Any], case: Mapping[str, Any], row: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """The acts on an exception that its state does not admit, each with the reason: a key for words."""
    if not view.may(roles.OPERATE) or item.get("status") != "open":
        return []
    allowed = item.get("allowed_actions") or []
    return [(action, why_not(action, item, case, row)) for action in OF_EXCEPTIONS if action not in allowed]


def why_not_for_case(view: View, case: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same of a case."""
    if not view.may(roles.OPERATE) or case.get("closed_at"):
        return []
    allowed = case.get("allowed_actions") or []
    return [(action, why_not_of_case(action, case)) for action in OF_CASES if action not in allowed]


OF_EXCEPTIONS: Final = ("RETRY", "RECONCILE", "REDRIVE", "REPAIR", "COMPENSATE", "SETTLE", "MARK_RESOLVED")
OF_CASES: Final = ("PAUSE", "RESUME", "CANCEL", "COMPENSATE", "TAKE_OVER", "HAND_BACK", "MARK_RESOLVED")
_KNOWS_NOTHING: Final = frozenset({"OUTCOME_UNKNOWN", "ORPHAN_SUSPECTED", "RECONCILING"})
_PERSONS: Final = frozenset({"FAILED", "CONFLICT", "DEAD_LETTERED", "NEEDS_REVIEW"})
_HELD: Final = frozenset({"PAUSED", "HUMAN_TAKEOVER"})


def why_not(action: str, item: Mapping[str, Any], case: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Why an act is not offered. What the facts shown do not tell is told as the state alone."""
    state, kind = str(row.get("state") or ""), str(item.get("kind") or "")
    if kind == "state_drift":
        return "drift"
    if kind.startswith("quarantined"):
        return "quarantined"
    if not row:
        return "no_command"
    if state in _KNOWS_NOTHING:
        return "unknown"
    if state not in _PERSONS:
        return "under_way" if not row.get("completed_at") else "ended"
    touched = any(one.get("sent") for one in row.get("attempts") or ())
    reasons = {
        "RETRY": "touched" if touched else "state",
        "RECONCILE": "state" if touched else "untouched",
        "REDRIVE": "conflict" if state == "CONFLICT" else "state",
        "COMPENSATE": "state" if row.get("compensates") else "pivot" if case.get("pivot") == "passed" else "whole_case",
    }
    return reasons.get(action, "state")


def why_not_of_case(action: str, case: Mapping[str, Any]) -> str:
    status = str(case.get("status") or "")
    if case.get("definition") == "command":
        return "single"
    if action in {"COMPENSATE", "CANCEL"} and case.get("pivot") in {"passed", "unknown"}:
        return "pivot" if case.get("pivot") == "passed" else "pivot_unknown"
    reasons = {
        "PAUSE": "held" if status in _HELD else "state",
        "TAKE_OVER": "held" if status == "HUMAN_TAKEOVER" else "state",
        "RESUME": "state" if status in _HELD else "goes_on",
        "HAND_BACK": "state" if status == "HUMAN_TAKEOVER" else "goes_on",
        "MARK_RESOLVED": "state" if status == "HUMAN_TAKEOVER" else "goes_on",
        "COMPENSATE": "state" if status == "HUMAN_TAKEOVER" else "goes_on",
    }
    return reasons.get(action, "state")


def offers_for_case(view: View, case: Mapping[str, Any]) -> list[Offer]:
    """What may be done with a case now."""
    return _offers(view, "workflow", str(case["workflow_id"]), case.get("allowed_actions"), case, {})


def _offers(  # noqa: PLR0917 - one target and what stands around it
    view: View, kind: str, name: str, allowed: object, case: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Offer]:
    if not view.may(roles.OPERATE) or not isinstance(allowed, list):
        return []
    return [_offer(action, kind, name, case, row) for action in CONTRACT if action in allowed]


def _offer(action: str, kind: str, name: str, case: Mapping[str, Any], row: Mapping[str, Any]) -> Offer:
    fields = FIELDS.get(action, ())
    if action == "RESUME" and case.get("status") == "PAUSED":
        fields = ()
    return Offer(
        action,
        kind,
        name,
        fields,
        action in GRAVE,
        steps=tuple(str(step["id"]) for step in case.get("steps") or []) if "from_step" in fields else (),
        further_steps=tuple(case.get("further_steps") or ()) if "from_step" in fields else (),
        versions=tuple(case.get("versions") or ()) if "version" in fields else (),
        version=case.get("version"),
        effects=_effects(case, row) if "became" in fields else (),
        observations=_observations(case, row) if "observation" in fields else (),
    )


def _effects(case: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if row:
        return ((str(row["command_id"]), str(row.get("command_type") or row["command_id"])),)
    standing = case.get("standing")
    if isinstance(standing, list):  # as the contract will ask about them: every one of these, and no other
        named = {step.get("command_id"): step.get("command_type") or step["id"] for step in case.get("steps") or []}
        return tuple((str(name), str(named.get(name) or name)) for name in standing)
    return tuple(
        (str(step["command_id"]), str(step.get("command_type") or step["id"]))
        for step in case.get("steps") or []
        if step.get("command_id")
        and step.get("state") not in _NOTHING_LEFT
        and step.get("compensation_state") != "COMPENSATED"
        and (step.get("state") == "SUCCESS" or step.get("attempts"))
    )


def _observations(case: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            json.dumps({name: item.get(name) for name in ("system", "resource", "element")}),  # ASCII: as it is
            f"{item.get('element')} · {item.get('resource')}",
        )
        for item in case.get("vector") or []
        if item.get("phase") == "HEALTHY" and (not row or item.get("command_id") == row.get("command_id"))
    )


CONTRACT: Final = (
    "RECONCILE",
    "RETRY",
    "REDRIVE",
    "REPAIR",
    "COMPENSATE",
    "SETTLE",
    "MARK_RESOLVED",
    "RESUME",
    "PAUSE",
    "CANCEL",
    "TAKE_OVER",
    "HAND_BACK",
    "ASSIGN",
    "ESCALATE",
)
"""The acts of the contract. There is no other: nothing here runs a tool of somebody's choice."""


async def outcome(view: View) -> dict[str, Any]:
    """The operator command that this page was reached by, as it stands; empty where there is none."""
    name = view.asked("did", 60)
    if not name or not name.startswith("opc_"):
        return {}
    return (await view.contract.get(f"/v1/operator-commands/{quote(name, safe='')}")).object
