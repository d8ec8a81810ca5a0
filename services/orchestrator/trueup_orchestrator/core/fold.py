"""A fold: one case while the messages of one commit are folded into it.

States change only through `move`, which asks the table. What follows from a state alone (the lease is gone, the clock
of completion stops) follows here, so that no decision can forget it.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.journal import JournalRow, ObligationRow
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import ANSWERED, ErrorClass, OperationState
from trueup_orchestrator.core.case import Case, Moment, Terms
from trueup_orchestrator.core.operation import IN_FLIGHT, Trigger, knows, move
from trueup_orchestrator.core.recovery import Action, Situation, action, pivot_of

SOURCE: Final = "orchestrator"
_NO_LEASE: Final[dict[str, Any]] = {
    "lease_owner": None,
    "lease_acquired_at": None,
    "lease_expires_at": None,
    "start_by": None,
}
_NO_ERROR: Final[dict[str, Any]] = {"error_class": None, "error_code": None, "error_detail": None}
DETAIL_MAX: Final = 500

Body = BaseModel | dict[str, Any]
"""A message body: a contract, or its fields where it is built for every command (then its name is given)."""


@dataclass(slots=True)
class Note:
    """One fact for the history; chained when the fold is sealed."""

    type: str
    actor: str
    occurred_at: datetime
    causation_id: str | None
    payload: dict[str, Any] = field(default_factory=dict)


class Fold:
    """The working copy of a case within one commit."""

    __slots__ = (
        "asking",
        "before",
        "created",
        "instance",
        "late_until",
        "moment",
        "notes",
        "obligations",
        "operation",
        "outgoing",
        "terms",
        "unverified",
    )

    def __init__(self, case: Case, moment: Moment, terms: Terms, *, created: bool = False) -> None:
        self.before = case
        self.instance = case.instance
        self.operation: JournalRow = case.operation
        self.obligations: dict[str, ObligationRow] = {row.obligation_id: row for row in case.obligations}
        self.moment = moment
        self.terms = terms
        self.created = created
        self.notes: list[Note] = []
        self.outgoing: list[Outgoing] = []
        self.asking: str | None = None
        """Why a settlement is to be asked for when the fold is sealed."""
        self.late_until: datetime | None = None
        self.unverified = False
        """True where verification is overdue."""

    @property
    def state(self) -> OperationState:
        """The operation's state."""
        return self.operation.state

    @property
    def version(self) -> int:
        """The version that the operation gets with this commit."""
        return self.before.operation.state_version + 1

    def note(self, type_: str, *, actor: str, at: datetime, cause: str | None = None, **facts: Any) -> None:
        """Begin a fact of the history; the states passed from here on are written into it."""
        payload: dict[str, Any] = {"command_id": self.operation.command_id, "states": [self.operation.state.value]}
        payload.update({key: value for key, value in facts.items() if value is not None})
        self.notes.append(Note(type_, actor, at, cause, payload))

    def own_note(self, type_: str, **facts: Any) -> None:
        """A fact that this service itself establishes; joins the fact that caused it in the same commit."""
        if self.notes:
            self.notes[-1].payload.update({key: value for key, value in facts.items() if value is not None})
        else:
            self.note(type_, actor=SOURCE, at=self.moment.business, **facts)

    def knows(self, trigger: Trigger) -> bool:
        """True where the table knows this trigger in the present state."""
        return knows(self.operation.state, trigger)

    def move(self, trigger: Trigger, **changes: Any) -> None:
        """Change the state by the table, with everything that follows from the new state."""
        after = move(self.operation.state, trigger)
        now = self.moment.business
        follows: dict[str, Any] = {
            "state": after,
            "last_transition_at": now,
            "wake_at": None,
            "next_retry_at": None,
            "completed_at": now if after in ANSWERED else None,
            "proposed": False,
        }
        if after not in IN_FLIGHT:
            follows.update(_NO_LEASE)
        if after is OperationState.SUCCESS:
            follows.update(_NO_ERROR)
        follows.update(changes)
        self.operation = self.operation.evolve(**follows)
        self.notes[-1].payload["states"].append(after.value)

    def set(self, **changes: Any) -> None:
        """Change columns that are not the state."""
        self.operation = self.operation.evolve(**changes)

    def drop_lease(self) -> None:
        """Give up the lease of a task that never came to be."""
        self.operation = self.operation.evolve(**_NO_LEASE, proposed=False)

    def fail(self, trigger: Trigger, kind: ErrorClass | None, code: str, detail: str = "", **changes: Any) -> None:
        """Move with a reason that is kept in the journal and in the history."""
        self.notes[-1].payload.update({"error_class": kind and kind.value, "error_code": code})
        text = detail[:DETAIL_MAX] or None
        if text:
            self.notes[-1].payload["reason"] = text
        self.move(trigger, error_class=kind, error_code=code, error_detail=text, **changes)

    def recover(self, situation: Situation) -> Action:
        """What the recovery table says of a situation in the present state; kept in the history."""
        row = self.operation
        decided = action(situation, pivot_of(row.effect_class, row.state, proposed=row.proposed))
        self.notes[-1].payload["recovery"] = decided.value
        return decided

    def send(self, body: Body, *, type_: str | None = None, message_id: str, subject: str, first: bool = False) -> None:
        """Send with the commit."""
        item = Outgoing(self.envelope(body, message_id, subject, type_))
        if first:
            self.outgoing.insert(0, item)
        else:
            self.outgoing.append(item)

    def envelope(self, body: Body, message_id: str, subject: str, type_: str | None = None) -> Message:
        """A message about this case."""
        return Message(
            id=message_id,
            type=type_ or type(body).__name__,
            subject=subject,
            tenant=self.operation.tenant,
            source=SOURCE,
            time=self.moment.real,
            data=json_bytes(body),
            traceparent=self.operation.traceparent,
            causation_id=self.notes[-1].causation_id if self.notes else None,
        )
