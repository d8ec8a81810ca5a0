"""What a case has spent (requirement V4): one word per kind of cost, and what exactly it measures.

- `transitions`: facts in its history.
- `stored_bytes`: bytes of that history as JSON, and of the artifacts that its commands carry as payload. Rows of
  present state (journal, views) are not counted: they hold one copy per operation, however much happens.
- `attempts`: transmissions that reached `SENT`; look-ups are none.
- `model_tokens`: what receipts of a model report as used.
- `worker_seconds`: real time from `SENT` to the receipt, summed over the attempts of every operation.
- `person_seconds`: business time in which the case was `HUMAN_TAKEOVER`, summed over every hold that has ended. It is
  the time a person held the case, not the time a person worked on it.
- `timers_fired`, `timer_late_seconds`: wake-ups of the case and of its operations that brought a commit about, and by
  how much of business time they came later than due. No cost, but counted in the same way.

All but the first are summed when the case tells of itself durably, as it does at every end, wait and hand-over.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow

MEASURES: Final = (
    "transitions",
    "stored_bytes",
    "attempts",
    "model_tokens",
    "worker_seconds",
    "person_seconds",
    "timers_fired",
    "timer_late_seconds",
)
"""Every word, in the order in which it is shown."""

HELD_SINCE: Final = "person_since"
"""Since when a person holds the case, while one does."""
HISTORY_BYTES: Final = "history_bytes"

_TOKENS: Final = "model_tokens"


def spent_on_operations(rows: Iterable[JournalRow]) -> dict[str, float]:
    """What the attempts of operations come to, and the artifacts that they carry (`artifact_bytes`); no zeros."""
    attempts, tokens, artifacts, seconds = 0, 0, 0, 0.0
    for row in rows:
        attempts += row.attempt_count
        if row.payload_ref is not None:
            artifacts += row.payload_ref.size
        if row.receipt is not None and _TOKENS in row.receipt:
            tokens += int(row.receipt[_TOKENS])
        for attempt in row.attempts:
            if attempt.get("sent"):
                seconds += _seconds_of(attempt)
    found = {_TOKENS: tokens, "artifact_bytes": artifacts, "worker_seconds": round(seconds, 6)}
    return {"attempts": attempts, **{name: value for name, value in found.items() if value}}


def _seconds_of(attempt: Mapping[str, Any]) -> float:
    sent, ended = attempt.get("started_at"), attempt.get("ended_at")
    if sent is None or ended is None:
        return 0.0
    return max((datetime.fromisoformat(ended) - datetime.fromisoformat(sent)).total_seconds(), 0.0)


def measures_of(spent: Mapping[str, Any], transitions: int) -> dict[str, Any]:
    """Every word with its number, from what a case tells of itself."""
    found = dict.fromkeys(MEASURES, 0)
    found.update(spent)
    found["transitions"] = transitions
    found["stored_bytes"] = found.pop(HISTORY_BYTES, 0) + found.pop("artifact_bytes", 0)
    found.pop(HELD_SINCE, None)
    return found
