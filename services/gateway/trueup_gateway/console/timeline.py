"""Timelines: the recorded facts of a case, each as one line of what happened."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

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


def entries_of(events: Sequence[Fields]) -> list[dict[str, Any]]:
    """The lines, newest first."""
    return [_entry(event) for event in reversed(events)]


def _entry(event: Fields) -> dict[str, Any]:
    payload = event.get("payload") or {}
    states = [str(item) for item in payload.get("states") or []]
    told = [(name, payload[name]) for name in _TOLD if payload.get(name) not in (None, "", [], {})]
    return {
        "seq": event.get("seq"),
        "type": str(event.get("type") or ""),
        "at": event.get("occurred_at"),
        "recorded_at": event.get("recorded_at"),
        "actor": event.get("actor"),
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
