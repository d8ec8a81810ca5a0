"""Timelines: the recorded facts of a case, each as one line of what happened."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from trueup_gateway.console.shown import moment_of

Fields = Mapping[str, Any]

_TONES: Final = (
    (("Failed", "Refused", "Rejected", "DeadLetter", "Drift", "Quarantin", "Expired"), "bad"),
    (("Unknown", "Orphan", "Reconcil"), "unknown"),
    (("Waiting", "Asked", "Retry", "Paused", "Opened", "Requested"), "waiting"),
    (("Succeeded", "Closed", "Confirmed", "Approved", "Resolved", "Completed", "Verified", "Established"), "good"),
)
_STATE_TONES: Final = {
    "SUCCESS": "good",
    "FAILED": "bad",
    "DEAD_LETTERED": "bad",
    "CONFLICT": "bad",
    "NEEDS_REVIEW": "care",
    "OUTCOME_UNKNOWN": "unknown",
    "RECONCILING": "unknown",
    "ORPHAN_SUSPECTED": "unknown",
    "RETRY_PENDING": "waiting",
}
_TOLD: Final = (
    "step_id",
    "step",
    "command_type",
    "resource",
    "fence",
    "error_class",
    "error_code",
    "verdict",
    "recovery",
    "reason",
    "outcome",
    "owner",
    "action",
    "resolution_type",
    "approval_id",
)
"""Which members of a fact a line tells, in this order; the whole fact stands behind it."""
_SUBJECTS: Final = ("step_id", "step", "command_type")
"""What a fact is about: it stands beside its name."""
TURNS_MIN: Final = 3
PERIOD_MAX: Final = 6
PAUSE_SECONDS: Final = 60.0
"""A longer silence between two facts is told."""


def entries_of(events: Sequence[Fields]) -> list[dict[str, Any]]:
    """The lines, newest first; each with its day where that is another than the line's above, and with the silence
    before it where it was a long one."""
    lines = [_entry(event) for event in events]
    for before, line in pairwise(lines):
        line["silence"] = _silence(before, line)
    lines.reverse()
    for above, line in zip([None, *lines], lines, strict=False):
        line["day"] = day_of(line["at"]) if above is None or day_of(above["at"]) != day_of(line["at"]) else None
    return folded(lines)


def folded(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, with what goes round and round told once: of at least so many equal turns the newest stays, and a fold
    holds the others with their number."""
    found: list[dict[str, Any]] = []
    place = 0
    while place < len(lines):
        period, turns = _turns(lines, place)
        if turns < TURNS_MIN:
            found.append(lines[place])
            place += 1
            continue
        end = place + period * turns
        found += lines[place : place + period]
        found.append({"fold": list(lines[place + period : end]), "turns": turns - 1, "day": None, "silence": 0.0})
        place = end
    return found


def _turns(lines: Sequence[Fields], place: int) -> tuple[int, int]:
    """The shortest turn that repeats from here on, and how often it is to be seen; once where nothing repeats."""
    for period in range(1, PERIOD_MAX + 1):
        turn = [_kind(line) for line in lines[place : place + period]]
        count = 1
        while [_kind(line) for line in lines[place + period * count : place + period * (count + 1)]] == turn:
            count += 1
        if count >= TURNS_MIN:
            return period, count
    return 1, 1


def _kind(line: Fields) -> tuple[object, ...]:
    """What makes two lines tell the same, but for their time; a new day stands for itself."""
    return line["type"], str(line["subject"]), line["states"][-1:], line["actor"], line["day"]


def day_of(at: object) -> str:
    """The day of a moment, in UTC."""
    moment = moment_of(at)
    return moment.strftime("%Y-%m-%d") if moment is not None else ""


def _silence(before: Fields, line: Fields) -> float:
    first, second = moment_of(before["at"]), moment_of(line["at"])
    if first is None or second is None:
        return 0.0
    seconds = (second - first).total_seconds()
    return seconds if seconds >= PAUSE_SECONDS else 0.0


def _entry(event: Fields) -> dict[str, Any]:
    payload = event.get("payload") or {}
    states = [str(item) for item in payload.get("states") or []]
    told = [(name, payload[name]) for name in _TOLD if payload.get(name) not in (None, "", [], {})]
    subject = next((value for name, value in told if name in _SUBJECTS), None)
    told = [item for item in told if item[1] is not subject]
    return {
        "seq": event.get("seq"),
        "type": str(event.get("type") or ""),
        "at": event.get("occurred_at"),
        "recorded_at": event.get("recorded_at"),
        "actor": event.get("actor"),
        "subject": subject,
        "silence": 0.0,
        "day": None,
        "states": states,
        "told": told[:6],
        "tone": _tone(str(event.get("type") or ""), states),
        "hash": event.get("hash"),
        "prev_hash": event.get("prev_hash"),
        "payload": payload,
    }


def _tone(kind: str, states: Sequence[str]) -> str:
    if states and states[-1] in _STATE_TONES:
        return _STATE_TONES[states[-1]]
    return next((tone for marks, tone in _TONES if any(mark in kind for mark in marks)), "neutral")
