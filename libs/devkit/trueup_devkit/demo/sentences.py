"""What the plane did, in words: each event of a case's history as one sentence of the timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_LATE_SECONDS = 0.4


@dataclass(frozen=True)
class Entry:
    """One line of the timeline."""

    at: datetime
    who: str
    text: str


def short(value: Any, length_max: int = 44) -> str:
    """A value for a cell; digests keep their beginning."""
    text = "–" if value is None else str(value)
    if len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text):
        return f"{text[:12]}…"
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def moment(text: str) -> datetime:
    """A time of the HTTP contract."""
    return datetime.fromisoformat(text)


def entry_of(event: dict[str, Any]) -> Entry:
    """One history event as a line of the timeline, with a remark where the word came late."""
    recorded, occurred = moment(event["recorded_at"]), moment(event["occurred_at"])
    text = sentence(event)
    late = (recorded - occurred).total_seconds()
    if late > _LATE_SECONDS:
        text += f" (happened {late:.1f} s before; the message waited)"
    return Entry(recorded, _speaker(event), text)


def _speaker(event: dict[str, Any]) -> str:
    actor = str(event.get("actor", ""))
    if event.get("type") == "ApprovalDecided" and ":" in actor:
        return "editor"
    return "adapter" if actor.startswith("adapter") else "orchestrator"


def sentence(event: dict[str, Any]) -> str:
    """One history event in words: which step, what happened, what was decided and why."""
    payload = event.get("payload") or {}
    kind = str(event.get("type"))
    say = _SENTENCES.get(kind)
    text = say(payload) if say else " ".join([kind, *(f"{k}={short(v)}" for k, v in _plain(payload).items())])
    if payload.get("step_id") and kind != "CaseTurned":
        text = f"{payload['step_id']}: {text}"
    if payload.get("recovery"):
        text += f"; decided: {payload['recovery']}"
    states = payload.get("states") or []
    return f"{text}  [{' → '.join(states)}]" if len(states) > 1 else text


def _plain(payload: dict[str, Any]) -> dict[str, Any]:
    hidden = ("states", "command_id", "recovery", "step_id")
    return {name: value for name, value in payload.items() if name not in hidden and isinstance(value, str | int)}


def _case_started(payload: dict[str, Any]) -> str:
    if "definition" in payload:
        digest = short(payload.get("document_sha256"))
        return f"takes up {payload['definition']} version {payload.get('version')}, document {digest}"
    return _started(payload)


def _started(payload: dict[str, Any]) -> str:
    text = str(payload.get("command_type"))
    return f"{text}, {_dispatched(payload)}" if "fence" in payload else text


def _dispatched(payload: dict[str, Any]) -> str:
    fence = payload.get("fence")
    return f"sends attempt 1 under fence {fence}" if fence == 1 else f"sends another attempt under fence {fence}"


def _receipt(payload: dict[str, Any]) -> str:
    status, code = payload.get("status"), payload.get("error_code")
    why = f" ({code}, class {payload.get('error_class')})" if code else ""
    seen = f", {_answered(payload['external_status'])}" if payload.get("external_status") else ""
    what = "looked it up after its restart" if payload.get("found") else "reports"
    return f"{what}, fence {payload.get('fence')}: {status}{seen}{why}"


def _answered(status: Any) -> str:
    return f"HTTP {status}" if str(status).isdigit() else str(status)


def _settled(payload: dict[str, Any]) -> str:
    looks = payload.get("finds_count") or 0
    evidence = f" by {payload['evidence']}" if payload.get("evidence") else ""
    times = "once" if looks == 1 else f"{looks} times"
    return f"hears the verdict: {payload.get('verdict')}{evidence}, after looking {times}"


def _verified(payload: dict[str, Any]) -> str:
    owed = payload.get("owed") or []
    return f"{payload.get('element')} observed as desired; still owed: {', '.join(owed) or 'nothing'}"


def _turned(payload: dict[str, Any]) -> str:
    ways = {"backward": "turns back: what was done is undone, last first", "person": "hands the case to a person"}
    detail = f": {payload['detail']}" if payload.get("detail") else ""
    return f"{ways.get(str(payload.get('direction')), 'stops')} ({payload.get('reason')}{detail})"


def _checked(payload: dict[str, Any]) -> str:
    failed = payload.get("failed") or []
    return "every check holds" if payload.get("passed") else f"does not hold: {'; '.join(map(str, failed))}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "CaseStarted": _case_started,
    "LocksTaken": lambda payload: f"holds {', '.join(payload.get('locks') or [])}",
    "StepStarted": _started,
    "TaskDispatched": _dispatched,
    "ReceiptReceived": _receipt,
    "OlderReceiptReceived": lambda payload: "keeps as evidence an older receipt: " + _receipt(payload),
    "SettlementStarted": lambda payload: "waits for the reconciler, which goes and looks; meanwhile nothing is sent",
    "SettlementFinished": _settled,
    "ElementVerified": _verified,
    "CheckEvaluated": _checked,
    "ApprovalAsked": lambda payload: f"waits for a person; asked about content {short(payload.get('content_sha256'))}",
    "ApprovalDecided": lambda payload: (
        f"{payload.get('outcome')} content {short(payload.get('content_sha256'))} ({payload.get('reason')})"
    ),
    "CaseTurned": _turned,
    "CompensationStarted": lambda payload: (
        f"takes the step back with {payload.get('command_type')}, {_dispatched(payload)}"
    ),
    "EffectUndone": lambda payload: "is undone",
    "DispatchPaused": lambda payload: f"waits before dispatching: {payload.get('reason')}",
    "AttemptStarted": lambda payload: f"hears that the attempt under fence {payload.get('fence')} is alive",
    "LeaseExpired": lambda payload: (
        f"no word from the attempt under fence {payload.get('fence')} before its lease ended"
    ),
    "RetryFellDue": lambda payload: "the wait before the next attempt is over",
}


def exception_entry(item: dict[str, Any]) -> Entry:
    """An exception as it was opened or closed."""
    if item.get("status") == "closed":
        text = f"exception {item.get('kind')} closed: {item.get('resolution_type')}"
        return Entry(moment(item["closed_at"]), "planner", text)
    text = f"exception {item.get('kind')} ({item.get('failure_class')}) opened, owner {item.get('owner')}"
    minutes = (moment(item["deadline_at"]) - moment(item["opened_at"])).total_seconds() / 60
    return Entry(moment(item["opened_at"]), "planner", f"{text}, to be settled within {minutes:g} minutes")
