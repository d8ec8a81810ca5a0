"""What makes something resolved: it was just seen to be right, or a person says what became of every effect of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import APART
from trueup_common.contracts.shape import record
from trueup_common.contracts.standing import standing, unspoken
from trueup_gateway.core.operator_params import Observed, ResolvedParams
from trueup_gateway.core.operators import Target
from trueup_gateway.core.refusal import invalid
from trueup_gateway.core.view_records import ElementView

OBSERVATION_SECONDS_MAX: Final = 900
"""How old an observation may be on which something is called resolved."""
SHOWN_MAX: Final = 20
Place = tuple[str, str, str]


@record
class Ground:
    """What is to be resolved rests on: its operations with their declarations by hash, and the elements of its case.

    `named` is the element that the request names, as its newest owner has it.
    """

    rows: Sequence[JournalRow]
    declarations: Mapping[str, CommandDeclaration]
    elements: Sequence[ElementView] = ()
    named: ElementView | None = None


def whole_case(target: Target) -> bool:
    """True where a case as a whole is to be resolved."""
    return target.row is None and target.case is not None and target.exception_kind not in APART


def check_resolved(wanted: ResolvedParams, target: Target, ground: Ground, now: datetime) -> list[str]:
    """The effects that speak for themselves, since every element of theirs was just seen. Raises Refused."""
    if whole_case(target):
        return _whole(wanted, target, ground, now)
    if wanted.observation is not None:
        _one(ground, target, now)
        return []
    if not wanted.disposition:
        raise invalid([_nothing_said()])
    ids = {row.command_id for row in ground.rows}
    named = [item.effect for item in wanted.disposition]
    strangers = [name for name in named if name.startswith("cmd_") and name not in ids]
    if strangers:
        raise invalid([("/params/disposition", f"{name} is not what is to be resolved") for name in strangers])
    return []


def _nothing_said() -> tuple[str, str]:
    return "/params/observation", "name a fresh observation, or say by `disposition` what became of every effect"


def _one(ground: Ground, target: Target, now: datetime) -> None:
    seen = ground.named
    if seen is not None and not _speaks_of(seen, target, ground.rows):
        raise invalid([("/params/observation", "this element says nothing of what is to be resolved")])
    if seen is None or not is_fresh(seen, now):
        detail = f"this element was not observed healthy within the last {OBSERVATION_SECONDS_MAX} seconds"
        raise invalid([("/params/observation", detail)])
    owed = target.case.instance.owed if target.case is not None and target.exception_kind not in APART else []
    named = (seen.system, seen.resource, seen.element)
    unseen = sorted({item["element"] for item in owed if _place(item) != named})
    if unseen:
        raise invalid([("/params/observation", f"says nothing of {', '.join(unseen[:SHOWN_MAX])}")])


def _whole(wanted: ResolvedParams, target: Target, ground: Ground, now: datetime) -> list[str]:
    """Every effect that stands is spoken of, by a person or by what was seen: one look at one element is not enough."""
    if wanted.observation is None and "disposition" not in wanted.model_fields_set:
        raise invalid([_nothing_said()])
    errors: list[tuple[str, str]] = []
    seen: list[str] = []
    if wanted.observation is not None:
        errors += [("/params/observation", detail) for detail in _unseen(wanted.observation, target, ground, now)]
        stale = {element.command_id for element in ground.elements if not is_fresh(element, now)}
        seen = sorted({element.command_id for element in ground.elements} - stale)
    named = [item.effect for item in wanted.disposition]
    wrong = unspoken(standing(ground.rows, ground.declarations), named, seen)
    errors += [("/params/disposition", detail) for detail in wrong[:SHOWN_MAX]]
    if errors:
        raise invalid(errors)
    return seen


def _unseen(named: Observed, target: Target, ground: Ground, now: datetime) -> list[str]:
    """Elements of the case that were not just observed to be right, those included that nobody observed yet."""
    assert target.case is not None
    there: dict[Place, bool] = {
        (item.system, item.resource, item.element): is_fresh(item, now) for item in ground.elements
    }
    owed = {_place(item): False for item in target.case.instance.owed}
    whole = {**owed, **there}
    wanted = (named.system, named.resource, named.element)
    if wanted not in whole:
        return ["this element says nothing of what is to be resolved"]
    bound = f"was not observed healthy within the last {OBSERVATION_SECONDS_MAX} seconds"
    late = [f"{place[2]} of {place[0]}:{place[1]} {bound}" for place, fresh in sorted(whole.items()) if not fresh]
    return late[:SHOWN_MAX]


def _place(owed: Mapping[str, Any]) -> Place:
    return str(owed.get("system")), str(owed.get("resource")), str(owed.get("element"))


def is_fresh(seen: ElementView, now: datetime) -> bool:
    """True for an element that was observed to be as it should be a moment ago."""
    if seen.phase != "HEALTHY" or seen.observed_at is None:
        return False
    return now - seen.observed_at <= timedelta(seconds=OBSERVATION_SECONDS_MAX)


def _speaks_of(seen: ElementView, target: Target, rows: Sequence[JournalRow]) -> bool:
    """True for an element of the case in question, or of the very object that one of its operations is about."""
    if target.case is not None and seen.workflow_id == target.case.workflow_id:
        return True
    return any((seen.system, seen.resource) == (row.target_system, row.target_resource) for row in rows)
