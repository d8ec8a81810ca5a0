"""The effect ledger: what an adapter does with a task, given what the ledger says. One table, ordered by fences.

`SENT` is committed before the first byte and is never sent again: it is looked up. Whatever carries a lower fence than
the ledger is stale and moves nothing.
"""

from enum import StrEnum
from typing import Any, Final

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import ErrorClass
from trueup_common.contracts.task import Operation, Receipt


class LedgerStatus(StrEnum):
    """What the ledger knows of one operation's effect.

    `INTENT` is provably unsent. Here intent and `SENT` are one commit, so it appears only where somebody else wrote it.
    """

    INTENT = "INTENT"
    SENT = "SENT"
    CONFIRMED = "CONFIRMED"
    REJECTED = "REJECTED"
    NOT_SENT = "NOT_SENT"
    UNKNOWN = "UNKNOWN"
    ABSENT = "ABSENT"
    TOMBSTONE = "TOMBSTONE"
    MANUAL = "MANUAL"


class Standing(StrEnum):
    """The rows of the table: the status, with the two kinds of rejection apart, and `NONE` for no row."""

    NONE = "none"
    INTENT = "INTENT"
    SENT = "SENT"
    UNKNOWN = "UNKNOWN"
    ABSENT = "ABSENT"
    TOMBSTONE = "TOMBSTONE"
    CONFIRMED = "CONFIRMED"
    REJECTED_TRANSIENT = "REJECTED transient"
    NOT_SENT = "NOT_SENT"
    REJECTED_PERMANENT = "REJECTED permanent"
    MANUAL = "MANUAL"


class Asked(StrEnum):
    """The columns of the table. A lower fence than the ledger's is stale in every row."""

    NEWER = "task for a newer fence"
    SAME = "the same task again"
    FIND = "find"


class Action(StrEnum):
    """What to do."""

    SEND = "send"
    SEND_IF_DECIDED = "send if decided"
    LOOK_UP = "look up"
    ENTOMB = "entomb"
    ANSWER_STORED = "answer stored"
    IGNORE = "ignore"
    STALE = "stale"


TABLE: Final[dict[tuple[Standing, Asked], Action]] = {
    (Standing.NONE, Asked.NEWER): Action.SEND,
    (Standing.NONE, Asked.FIND): Action.ENTOMB,
    (Standing.INTENT, Asked.NEWER): Action.SEND,
    (Standing.INTENT, Asked.SAME): Action.SEND,
    (Standing.INTENT, Asked.FIND): Action.LOOK_UP,
    (Standing.SENT, Asked.NEWER): Action.LOOK_UP,
    (Standing.SENT, Asked.SAME): Action.IGNORE,
    (Standing.SENT, Asked.FIND): Action.LOOK_UP,
    (Standing.UNKNOWN, Asked.NEWER): Action.LOOK_UP,
    (Standing.UNKNOWN, Asked.SAME): Action.IGNORE,
    (Standing.UNKNOWN, Asked.FIND): Action.LOOK_UP,
    (Standing.ABSENT, Asked.NEWER): Action.SEND,
    (Standing.ABSENT, Asked.SAME): Action.ANSWER_STORED,
    (Standing.ABSENT, Asked.FIND): Action.LOOK_UP,
    (Standing.TOMBSTONE, Asked.NEWER): Action.SEND,
    (Standing.TOMBSTONE, Asked.SAME): Action.ANSWER_STORED,
    (Standing.TOMBSTONE, Asked.FIND): Action.LOOK_UP,
    (Standing.CONFIRMED, Asked.NEWER): Action.ANSWER_STORED,
    (Standing.CONFIRMED, Asked.SAME): Action.ANSWER_STORED,
    (Standing.CONFIRMED, Asked.FIND): Action.ANSWER_STORED,
    (Standing.REJECTED_TRANSIENT, Asked.NEWER): Action.SEND,
    (Standing.REJECTED_TRANSIENT, Asked.SAME): Action.ANSWER_STORED,
    (Standing.REJECTED_TRANSIENT, Asked.FIND): Action.LOOK_UP,
    (Standing.NOT_SENT, Asked.NEWER): Action.SEND,
    (Standing.NOT_SENT, Asked.SAME): Action.ANSWER_STORED,
    (Standing.NOT_SENT, Asked.FIND): Action.LOOK_UP,
    (Standing.REJECTED_PERMANENT, Asked.NEWER): Action.SEND_IF_DECIDED,
    (Standing.REJECTED_PERMANENT, Asked.SAME): Action.ANSWER_STORED,
    (Standing.REJECTED_PERMANENT, Asked.FIND): Action.LOOK_UP,
    (Standing.MANUAL, Asked.NEWER): Action.SEND_IF_DECIDED,
    (Standing.MANUAL, Asked.SAME): Action.ANSWER_STORED,
    (Standing.MANUAL, Asked.FIND): Action.LOOK_UP,
}


class EffectRow(ForwardContract):
    """The ledger row of one operation.

    `fence` is the highest fence seen, by tasks and finds alike; `attempt_id` and `sent_fence` name the attempt that was
    sent last. `late_until` only grows: until then some attempt may still act on the target. `look_at` (real time) is
    when the scan looks at a `SENT` row by itself. `receipt` is the last answer; of a `CONFIRMED` row it never changes.
    `object_key` is the object that the last attempt has to have alone, of types that declare it (ADR 0040).
    """

    command_id: str
    tenant: str
    system: str
    workflow_id: str
    command_type: str
    idempotency_key: str
    payload_sha256: str
    operation: Operation
    status: LedgerStatus
    error_class: ErrorClass | None = None
    fence: int
    attempt_id: str | None = None
    sent_fence: int = 0
    sends_count: int = 0
    worker: str | None = None
    grant_id: str | None = None
    object_key: str | None = None
    decided_by: str | None = None
    send_by: Instant | None = None
    sent_at: Instant | None = None
    late_until: Instant | None = None
    look_at: Instant | None = None
    cursor: dict[str, Any] | None = None
    receipt: Receipt | None = None
    traceparent: str | None = None
    state_version: int = 1
    created_at: Instant
    updated_at: Instant


class AttemptRow(ForwardContract):
    """Evidence: what one attempt that reached `SENT` came to. Written once and never changed.

    `late` is true where the ledger had moved on by then, so that this return caused no transition of its own.
    """

    attempt_id: str
    status: str
    command_id: str
    tenant: str
    fence: int
    worker: str | None = None
    error_class: ErrorClass | None = None
    error_code: str | None = None
    external_status: str | None = None
    sent_at: Instant | None = None
    ended_at: Instant
    found: bool = False
    late: bool = False
    receipt: Receipt | None = None
    """The whole receipt, except where the ledger row itself keeps it for ever (its own CONFIRMED)."""


def standing(row: EffectRow | None) -> Standing:
    """The row of the table. A business rejection stands like a permanent one: nothing resends it by itself."""
    if row is None:
        return Standing.NONE
    if row.status is LedgerStatus.REJECTED:
        transient = row.error_class is ErrorClass.TRANSIENT
        return Standing.REJECTED_TRANSIENT if transient else Standing.REJECTED_PERMANENT
    return Standing(row.status.value)


def decide(row: EffectRow | None, fence: int, *, find: bool = False, decided: bool = False) -> Action:
    """What to do with a task or find of this fence. `decided`: it carries an operator's or a repair's decision."""
    if row is not None and fence < row.fence:
        return Action.STALE
    if find:
        asked = Asked.FIND
    else:
        asked = Asked.SAME if row is not None and fence == row.fence else Asked.NEWER
    action = TABLE[standing(row), asked]
    if action is Action.SEND_IF_DECIDED:
        return Action.SEND if decided else Action.ANSWER_STORED
    return action
