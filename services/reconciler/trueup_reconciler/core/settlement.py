"""The states of a settlement as one table: everything it can hear in every state, and what it does then."""

from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import FindVerdict


class SettlementState(StrEnum):
    """OPEN waits for its next look, FINDING waits for an answer, DONE has a verdict."""

    OPEN = "OPEN"
    FINDING = "FINDING"
    DONE = "DONE"


class Heard(StrEnum):
    """What a settlement can hear."""

    REQUESTED = "requested"
    REQUESTED_AGAIN = "requested_again"
    DUE = "due"
    TOO_EARLY = "too_early"
    EXHAUSTED = "exhausted"
    DECIDED = "decided"
    UNDECIDED = "undecided"
    STALE_ANSWER = "stale_answer"


class Act(StrEnum):
    """What a settlement does next."""

    FIND = "find"
    WAIT = "wait"
    FINISH = "finish"
    REPEAT_RESULT = "repeat_result"
    KEEP_EVIDENCE = "keep_evidence"
    NOTHING = "nothing"


_S, _H, _A = SettlementState, Heard, Act

TABLE: Final[dict[tuple[SettlementState, Heard], tuple[SettlementState, Act]]] = {
    (_S.OPEN, _H.REQUESTED): (_S.FINDING, _A.FIND),
    (_S.OPEN, _H.REQUESTED_AGAIN): (_S.OPEN, _A.NOTHING),
    (_S.OPEN, _H.DUE): (_S.FINDING, _A.FIND),
    (_S.OPEN, _H.TOO_EARLY): (_S.OPEN, _A.WAIT),
    (_S.OPEN, _H.EXHAUSTED): (_S.DONE, _A.FINISH),
    (_S.OPEN, _H.DECIDED): (_S.OPEN, _A.KEEP_EVIDENCE),
    (_S.OPEN, _H.UNDECIDED): (_S.OPEN, _A.KEEP_EVIDENCE),
    (_S.OPEN, _H.STALE_ANSWER): (_S.OPEN, _A.KEEP_EVIDENCE),
    (_S.FINDING, _H.REQUESTED): (_S.FINDING, _A.FIND),
    (_S.FINDING, _H.REQUESTED_AGAIN): (_S.FINDING, _A.NOTHING),
    (_S.FINDING, _H.DUE): (_S.FINDING, _A.FIND),
    (_S.FINDING, _H.TOO_EARLY): (_S.FINDING, _A.WAIT),
    (_S.FINDING, _H.EXHAUSTED): (_S.DONE, _A.FINISH),
    (_S.FINDING, _H.DECIDED): (_S.DONE, _A.FINISH),
    (_S.FINDING, _H.UNDECIDED): (_S.OPEN, _A.WAIT),
    (_S.FINDING, _H.STALE_ANSWER): (_S.FINDING, _A.KEEP_EVIDENCE),
    (_S.DONE, _H.REQUESTED): (_S.FINDING, _A.FIND),
    (_S.DONE, _H.REQUESTED_AGAIN): (_S.DONE, _A.REPEAT_RESULT),
    (_S.DONE, _H.DUE): (_S.DONE, _A.NOTHING),
    (_S.DONE, _H.TOO_EARLY): (_S.DONE, _A.NOTHING),
    (_S.DONE, _H.EXHAUSTED): (_S.DONE, _A.NOTHING),
    (_S.DONE, _H.DECIDED): (_S.DONE, _A.KEEP_EVIDENCE),
    (_S.DONE, _H.UNDECIDED): (_S.DONE, _A.KEEP_EVIDENCE),
    (_S.DONE, _H.STALE_ANSWER): (_S.DONE, _A.KEEP_EVIDENCE),
}
"""Every state by everything it can hear. `requested` carries a higher fence than the request before it."""


class SettlementRow(ForwardContract):
    """One operation's settlement. `asked_at` and `answer_by` are real time, `next_at` is business time."""

    settlement_id: str
    command_id: str
    workflow_id: str
    tenant: str
    system: str
    operation: dict[str, Any]
    state: SettlementState = SettlementState.OPEN
    state_version: int = 1
    round: int = 1
    request_fence: int
    fence: int
    find_id: str | None = None
    finds_count: int = 0
    answers_count: int = 0
    reason: str
    late_until: Instant | None = None
    provable_at: Instant | None = None
    requested_at: Instant
    deadline_at: Instant
    asked_at: Instant | None = None
    answer_by: Instant | None = None
    next_at: Instant | None = None
    finished_at: Instant | None = None
    verdict: FindVerdict | None = None
    finding: dict[str, Any] | None = None
    effect_seen: bool = False
    """An answer of an older look said that the effect exists: absence is no longer believed in this round."""
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    traceparent: str | None = None
