"""Playbooks: which exception calls for which repair. Documents in order; the first whose condition holds is taken.

A playbook only chooses among actions that the gateway knows and governs. It is linted when it is loaded: a set of
playbooks that leaves any kind or class of exception without one, or a failed compensation without a repair, is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.operators import REPAIRERS
from trueup_common.contracts.shape import Contract
from trueup_common.contracts.states import ExceptionKind, FailureClass, RiskLevel
from trueup_common.documents.cel_text import TextInvalid
from trueup_common.documents.conditions import Condition
from trueup_common.documents.faults import DocumentInvalid
from trueup_common.documents.text import decoded, parsed

FACTS: Final[Mapping[str, type]] = {
    "exception.kind": str,
    "exception.failure_class": str,
    "exception.origin": str,
    "exception.repairs_count": int,
    "exception.undoing": bool,
    "envelope.failure_code": str,
    "envelope.attempt_count": int,
    "envelope.command_type": str,
    "envelope.target_system": str,
    "drift.route": str,
    "drift.repairable": bool,
}
"""What a condition may ask. `drift.route` is empty where nothing has drifted; `exception.repairs_count` are the repairs
that were tried since one last held. `exception.undoing`: its case takes back what it caused, which ends it."""


class Action(StrEnum):
    """What a playbook may call for. NONE: the plane is working on it by itself already."""

    REDRIVE = "REDRIVE"
    RECONCILE = "RECONCILE"
    REPAIR = "REPAIR"
    ESCALATE = "ESCALATE"
    NONE = "NONE"


class Playbook(Contract):
    """One playbook. Durations are in seconds; a repair that did not hold is tried again after a delay that doubles."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    version: int = Field(ge=1)
    order: int = Field(ge=1)
    when: str
    action: Action
    risk: RiskLevel
    approval: Literal["auto", "person"]
    delay_seconds: float = Field(default=0.0, ge=0, le=86400)
    attempts_max: int = Field(default=1, ge=1, le=20)
    verify_seconds: float = Field(default=600.0, gt=0, le=7 * 86400)
    verification: str = Field(min_length=1)
    rollback: str = Field(min_length=1)
    explanation: str = Field(min_length=1)


class PlaybooksInvalid(ValueError):
    """Playbooks that may not be used; `faults` say why."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = list(faults)


@dataclass(frozen=True, slots=True)
class _Armed:
    playbook: Playbook
    condition: Condition


class Playbooks:
    """A sound set of playbooks."""

    def __init__(self, playbooks: Iterable[Playbook]) -> None:
        """Raises PlaybooksInvalid."""
        ordered = sorted(playbooks, key=lambda item: item.order)
        faults: list[str] = []
        self._armed: list[_Armed] = []
        for playbook in ordered:
            try:
                self._armed.append(_Armed(playbook, Condition(playbook.when, FACTS)))
            except TextInvalid as error:
                faults.append(f"{playbook.name}: when: {error}")
            faults += _faults(playbook)
        faults += _doubled("name", [item.name for item in ordered])
        faults += _doubled("order", [item.order for item in ordered])
        faults = faults or self._gaps()
        if faults:
            raise PlaybooksInvalid(faults)
        self.all = tuple(ordered)
        self.sha256 = digest([item.model_dump(mode="json") for item in ordered])

    def choose(self, facts: Mapping[str, Any]) -> Playbook:
        """The playbook for these facts."""
        return next(item.playbook for item in self._armed if item.condition.holds(facts))

    def _gaps(self) -> list[str]:
        """What no playbook would answer, and what must never be answered by doing nothing."""
        faults = []
        taken: set[str] = set()
        for facts in samples():
            playbook = next((item.playbook for item in self._armed if item.condition.holds(facts)), None)
            what = f"{facts['exception.kind']} of class {facts['exception.failure_class']}"
            if playbook is None:
                faults.append(f"no playbook for {what}")
                continue
            taken.add(playbook.name)
            if playbook.action is Action.NONE and not settles_itself(facts):
                faults.append(f"{playbook.name}: {what} would be left without a repair")
            if not _may_act(playbook, facts):
                faults.append(f"{playbook.name}: {playbook.action.value} of {what} is not the planner's to ask for")
        faults += [f"{item.playbook.name}: never taken" for item in self._armed if item.playbook.name not in taken]
        return sorted(set(faults))[:50]


SETTLE_THEMSELVES: Final = frozenset({ExceptionKind.UNKNOWN_OUTCOME.value, ExceptionKind.STALE_RUNNING.value})
"""Kinds on which the reconciler is at work: they end, or they become another kind."""


def settles_itself(facts: Mapping[str, Any]) -> bool:
    """True for what may be left without a repair: somebody else is at work on it already, and says how it ends."""
    return facts["exception.kind"] in SETTLE_THEMSELVES or bool(facts["exception.undoing"])


_SAMPLED_ROUTES: Final = ("AUTO_REPAIR", "RETRYABLE", "MANUAL", "ESCALATED")
_SAMPLED_CODES: Final = ("", "effects_duplicated", "unavailable", "forbidden", "unauthenticated")


def _may_act(playbook: Playbook, facts: Mapping[str, Any]) -> bool:
    """True where what runs by itself is within the rights of the planner's identity: its few operator commands, and the
    repair command that an element's own declaration offers."""
    if playbook.approval != "auto" or playbook.action in (Action.NONE, Action.ESCALATE):
        return True
    if playbook.action is Action.REPAIR:
        return bool(facts["drift.repairable"])
    return playbook.action.value in {action.value for action in REPAIRERS}


def samples() -> Iterable[dict[str, Any]]:
    """Facts of every kind, class, route and of the codes that playbooks tell apart."""
    ways = product(ExceptionKind, FailureClass, _SAMPLED_ROUTES, (True, False), _SAMPLED_CODES)
    for kind, failure, route, repairable, code in ways:
        drifted = kind is ExceptionKind.STATE_DRIFT
        if not drifted and (route != "MANUAL" or repairable):
            continue
        ways_on = (True, False) if kind is ExceptionKind.FAILED else (False,)
        for origin, undoing in product(("environment", "work"), ways_on):
            yield {
                "exception.kind": kind.value,
                "exception.failure_class": failure.value,
                "exception.origin": origin,
                "exception.repairs_count": 0,
                "exception.undoing": undoing,
                "envelope.failure_code": code,
                "envelope.attempt_count": 1,
                "envelope.command_type": "wordpress.create_draft",
                "envelope.target_system": "wordpress",
                "drift.route": route if drifted else "",
                "drift.repairable": repairable,
            }


def facts_of(
    kind: str, failure_class: str, envelope: Mapping[str, Any], repairs_count: int, *, undoing: bool = False
) -> dict[str, Any]:
    """The facts of one exception."""
    return {
        "exception.kind": kind,
        "exception.failure_class": failure_class,
        "exception.origin": str(envelope.get("origin") or "work"),
        "exception.repairs_count": repairs_count,
        "exception.undoing": undoing,
        "envelope.failure_code": str(envelope.get("failure_code") or ""),
        "envelope.attempt_count": int(envelope.get("attempt_count") or 0),
        "envelope.command_type": str(envelope.get("command_type") or ""),
        "envelope.target_system": str(envelope.get("target_system") or ""),
        "drift.route": str(envelope.get("route") or "MANUAL") if kind == ExceptionKind.STATE_DRIFT else "",
        "drift.repairable": isinstance(envelope.get("repair"), Mapping),
    }


def read_playbook(text: str, name: str) -> Playbook:
    """A playbook from its document. Raises PlaybooksInvalid."""
    try:
        return Playbook.model_validate(parsed(decoded(text))[0])
    except DocumentInvalid as error:
        raise PlaybooksInvalid([f"{name}: {error}"]) from error
    except ValidationError as error:
        places = [f"{name}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise PlaybooksInvalid(places) from error


def read_playbooks(texts: Mapping[str, str]) -> Playbooks:
    """A sound set from its documents by file name. Raises PlaybooksInvalid."""
    found: list[Playbook] = []
    faults: list[str] = []
    for name, text in texts.items():
        try:
            found.append(read_playbook(text, name))
        except PlaybooksInvalid as invalid:
            faults += invalid.faults
    if faults:
        raise PlaybooksInvalid(faults)
    return Playbooks(found)


_RUNS_BY_ITSELF: Final = frozenset({RiskLevel.LOW, RiskLevel.MEDIUM})


def _faults(playbook: Playbook) -> list[str]:
    acts = playbook.action not in (Action.NONE, Action.ESCALATE)
    if acts and playbook.approval == "auto" and playbook.risk not in _RUNS_BY_ITSELF:
        return [f"{playbook.name}: what is of {playbook.risk.value} risk waits for a person"]
    return []


def _doubled(member: str, values: Sequence[Any]) -> list[str]:
    twice = sorted({value for value in values if values.count(value) > 1})
    return [f"{member} {value} is used twice" for value in twice]
