"""Ten questions that a person asks of a command, each answered from its journal row, its case and its elements alone.

An answer is a key for words, what the words are filled with, and a tone. Nothing is guessed: where the facts do not
tell, the answer is that nobody knows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from trueup_common.contracts.operators import SETTLED_ABSENT

Fields = Mapping[str, Any]


class Tone(StrEnum):
    """How an answer is to be taken."""

    GOOD = "good"
    BAD = "bad"
    CARE = "care"
    UNKNOWN = "unknown"
    WAITING = "waiting"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one question."""

    question: str
    answer: str
    tone: Tone
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a command: its journal row, its case, and the elements that it established."""

    row: Fields
    case: Fields
    elements: Sequence[Fields]

    @property
    def state(self) -> str:
        """The operation's state."""
        return str(self.row.get("state") or "")

    @property
    def undoes(self) -> bool:
        """True where it is the taking back of another one."""
        return bool(self.row.get("compensates"))

    @property
    def owner(self) -> str:
        """Who owes something about it."""
        owed = [
            item
            for item in self.case.get("obligations") or []
            if item.get("command_id") == self.row.get("command_id") and item.get("status") == "open"
        ]
        return str(self.row.get("repair_owner") or next((item.get("owner") for item in owed), "") or "")

    @property
    def was_sent(self) -> bool:
        """True where some attempt may have reached the target."""
        return any(item.get("sent") for item in self._attempts)

    @property
    def is_in_doubt(self) -> bool:
        """True where some attempt's outcome is not known, and none confirmed it."""
        states = {item.get("state") for item in self._attempts}
        return not states.isdisjoint(_DOUBTFUL) and "CONFIRMED" not in states

    @property
    def _attempts(self) -> Sequence[Fields]:
        return self.row.get("attempts") or ()


SHOWN_CHARACTERS: Final = 24
_DOUBTFUL: Final = frozenset({"UNKNOWN", "DISPATCHED"})
BEFORE_SENDING: Final = frozenset({"RECEIVED", "VALIDATING", "AUTHORIZED", "QUEUED"})
IN_FLIGHT: Final = frozenset({"DISPATCHING", "RUNNING"})
UNKNOWN_STATES: Final = frozenset({"OUTCOME_UNKNOWN", "ORPHAN_SUSPECTED", "RECONCILING", "NEEDS_REVIEW"})
STOPPED: Final = frozenset({"FAILED", "CONFLICT", "DEAD_LETTERED", "NEEDS_REVIEW"})

_EXECUTED: Final[dict[str, tuple[str, Tone]]] = {
    "SUCCESS": ("yes", Tone.GOOD),
    "FAILED": ("no_refused", Tone.BAD),
    "CONFLICT": ("no_conflict", Tone.BAD),
    "CANCELLED": ("no_cancelled", Tone.NEUTRAL),
    "RESOLVED": ("settled_by_person", Tone.NEUTRAL),
    "RETRY_PENDING": ("not_yet_again", Tone.WAITING),
    **dict.fromkeys(BEFORE_SENDING, ("not_yet", Tone.WAITING)),
    **dict.fromkeys(IN_FLIGHT, ("under_way", Tone.WAITING)),
    **dict.fromkeys(UNKNOWN_STATES, ("nobody_knows", Tone.UNKNOWN)),
}


def _executed(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    attempts = {"attempts": int(known.row.get("attempt_count") or 0)}
    if known.state == "DEAD_LETTERED":
        if known.is_in_doubt:
            return "nobody_knows", Tone.UNKNOWN, attempts
        return ("no_given_up" if known.was_sent else "no_never_sent"), Tone.BAD, attempts
    answer, tone = _EXECUTED.get(known.state, ("nobody_knows", Tone.UNKNOWN))
    return answer, tone, attempts


def _succeeded(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    recorded = known.row.get("recorded_state") or {}
    if known.state == "SUCCESS":
        named = ", ".join(f"{name} = {_short(value)}" for name, value in recorded.items())
        place = known.row.get("external_resource_id")
        if "recorded_state" in (known.row.get("withheld") or ()):
            return "withheld", Tone.NEUTRAL, {}
        if named and place:
            return "this_at", Tone.GOOD, {"what": named, "place": place}
        return ("this", Tone.GOOD, {"what": named}) if named else ("done_without_element", Tone.GOOD, {})
    if known.state in UNKNOWN_STATES or known.is_in_doubt:
        return "not_proven", Tone.UNKNOWN, {}
    if known.state == "RESOLVED":
        return "by_settlement", Tone.NEUTRAL, {"how": known.row.get("resolution_type") or ""}
    return "nothing", Tone.NEUTRAL, {}


def _short(value: Any) -> str:
    """A value within a sentence: of a hash its beginning is enough, of a document its first member."""
    if isinstance(value, Mapping):
        return next((f"{name} {_short(item)}" for name, item in value.items()), "")
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _unfinished(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    owed = [item["element"] for item in known.elements if item.get("phase") == "CONVERGING"]
    if known.state in BEFORE_SENDING | IN_FLIGHT | {"RETRY_PENDING"}:
        return "the_effect", Tone.WAITING, {}
    if known.state in UNKNOWN_STATES:
        return "the_settlement", Tone.UNKNOWN, {}
    if known.state in STOPPED:
        return "the_whole", Tone.BAD, {}
    if owed:
        return "the_verification", Tone.WAITING, {"elements": ", ".join(owed)}
    if any(item.get("phase") == "DRIFT" for item in known.elements):
        return "the_repair", Tone.BAD, {}
    return "nothing", Tone.GOOD, {}


def _unknown(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.state in UNKNOWN_STATES or (known.state == "DEAD_LETTERED" and known.is_in_doubt):
        return "yes", Tone.UNKNOWN, {"looked": known.row.get("reconciliation_status") or ""}
    if known.state in IN_FLIGHT:
        return "not_answered_yet", Tone.WAITING, {}
    return "no", Tone.GOOD, {}


def _retry(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.state in UNKNOWN_STATES or known.is_in_doubt:
        return "look_first", Tone.CARE, {}
    if known.state in {"SUCCESS", "RESOLVED", "CANCELLED"}:
        return "no_need", Tone.NEUTRAL, {}
    if known.state in BEFORE_SENDING | IN_FLIGHT | {"RETRY_PENDING"}:
        return "by_itself", Tone.WAITING, {"at": known.row.get("next_retry_at") or ""}
    if known.state == "CONFLICT":
        return "after_reading", Tone.CARE, {}
    if known.row.get("resolution_type") == SETTLED_ABSENT:
        return "settled_absent", Tone.CARE, {}
    if known.row.get("error_class") in {"permanent", "business"}:
        return "would_fail_again", Tone.CARE, {"code": known.row.get("error_code") or ""}
    return "yes_redrive", Tone.GOOD, {}


def _direction(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.undoes:
        return "this_is_the_way_back", Tone.CARE, {}
    if known.case.get("pivot") == "passed":
        return "forward_only", Tone.CARE, {}
    if known.case.get("pivot") == "unknown":
        return "pivot_unknown", Tone.UNKNOWN, {}
    if known.state == "SUCCESS" and known.row.get("compensation_command"):
        return "either", Tone.NEUTRAL, {"undo": known.row["compensation_command"]}
    if known.state == "SUCCESS":
        return "nothing_undoes_it", Tone.CARE, {}
    if known.state in UNKNOWN_STATES or known.is_in_doubt:
        return "settle_first", Tone.UNKNOWN, {}
    return "nothing_to_undo", Tone.NEUTRAL, {}


_COMPENSATED: Final[dict[str, tuple[str, Tone]]] = {
    "NONE": ("not_asked", Tone.NEUTRAL),
    "COMPENSATION_PENDING": ("pending", Tone.WAITING),
    "COMPENSATING": ("under_way", Tone.WAITING),
    "COMPENSATED": ("yes", Tone.GOOD),
    "COMPENSATION_FAILED": ("no", Tone.BAD),
    "COMPENSATION_UNKNOWN": ("nobody_knows", Tone.UNKNOWN),
}


def _undoing(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    """Of a compensation itself."""
    if known.state == "SUCCESS":
        return "yes", Tone.GOOD, {}
    if known.state in UNKNOWN_STATES or known.is_in_doubt:
        return "nobody_knows", Tone.UNKNOWN, {}
    if known.state in STOPPED:
        return "no", Tone.BAD, {}
    return "under_way", Tone.WAITING, {}


def _compensated(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.undoes:
        return _undoing(known)
    answer, tone = _COMPENSATED.get(str(known.row.get("compensation_state") or "NONE"), ("nobody_knows", Tone.UNKNOWN))
    return answer, tone, {}


def _diverged(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    drifted = [item["element"] for item in known.elements if item.get("phase") == "DRIFT"]
    unseen = [item["element"] for item in known.elements if item.get("phase") in {"UNKNOWN", "CONVERGING"}]
    if drifted:
        return "yes", Tone.BAD, {"elements": ", ".join(drifted)}
    if known.undoes and known.state in STOPPED:
        return "still_stands", Tone.BAD, {}
    if unseen and known.state in STOPPED and not known.is_in_doubt and not known.row.get("recorded_state"):
        return "not_brought_about", Tone.BAD, {"elements": ", ".join(unseen)}
    if unseen:
        return "not_seen", Tone.UNKNOWN, {"elements": ", ".join(unseen)}
    if known.elements:
        return "no", Tone.GOOD, {"count": len(known.elements)}
    return "nothing_to_compare", Tone.NEUTRAL, {}


def _resumable(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.state in IN_FLIGHT:
        return "lease", Tone.GOOD, {"until": known.row.get("lease_expires_at") or ""}
    if known.state in BEFORE_SENDING | UNKNOWN_STATES | {"RETRY_PENDING"}:
        return "goes_on", Tone.GOOD, {}
    return "at_rest", Tone.GOOD, {}


def _person(known: Known) -> tuple[str, Tone, dict[str, Any]]:
    if known.state in STOPPED or known.row.get("human_review_required"):
        return ("yes_of", Tone.BAD, {"owner": known.owner}) if known.owner else ("yes", Tone.BAD, {})
    if any(item.get("phase") == "DRIFT" for item in known.elements):
        return "maybe", Tone.CARE, {}
    if known.case.get("status") == "HUMAN_TAKEOVER":
        return "for_the_case", Tone.CARE, {}
    return "no", Tone.GOOD, {}


QUESTIONS: Final[dict[str, Callable[[Known], tuple[str, Tone, dict[str, Any]]]]] = {
    "executed": _executed,
    "succeeded": _succeeded,
    "unfinished": _unfinished,
    "unknown": _unknown,
    "retry": _retry,
    "direction": _direction,
    "compensated": _compensated,
    "diverged": _diverged,
    "resumable": _resumable,
    "person": _person,
}
"""The questions in the order in which people ask them."""


def replies(row: Fields, case: Fields, elements: Sequence[Fields]) -> list[Reply]:
    """All ten, answered. `elements` are those of the case; only the command's own count."""
    own = [item for item in elements if item.get("command_id") == row.get("command_id")]
    known = Known(row, case, own)
    found = []
    for question, answer in QUESTIONS.items():
        key, tone, facts = answer(known)
        found.append(Reply(question, key, tone, facts))
    return found
