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
from trueup_common.contracts.workflow import StepPhase, StepState
from trueup_common.documents.work import Effort
from trueup_orchestrator.core.case import Case, Moment, Terms
from trueup_orchestrator.core.operation import IN_FLIGHT, Trigger, knows, move
from trueup_orchestrator.core.recovery import TABLE, Action, Situation, pivot_of, pivot_of_all
from trueup_orchestrator.core.workflow import Workflow

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
    """The working copy of a case within one commit.

    Everything about one operation happens to the one in `focus`; `at` moves the focus. A single command never does.
    """

    __slots__ = (
        "_written",
        "acted",
        "acted_by",
        "asking",
        "before",
        "created",
        "effort",
        "focus",
        "foreign",
        "handed_back",
        "instance",
        "known",
        "late_until",
        "lateness",
        "moment",
        "notes",
        "obligations",
        "operations",
        "outgoing",
        "steps",
        "terms",
        "undone",
        "unverified",
        "workflow",
    )

    def __init__(
        self,
        case: Case,
        moment: Moment,
        terms: Terms,
        *,
        created: bool = False,
        workflow: Workflow | None = None,
    ) -> None:
        self.before = case
        self.instance = case.instance
        self.operations: dict[str, JournalRow] = {row.command_id: row for row in case.operations}
        self.known: dict[str, JournalRow] = {} if created else dict(self.operations)
        """Operations as stored; what is not in here is new."""
        self.focus = case.operations[0].command_id if case.operations else ""
        self.obligations: dict[str, ObligationRow] = {row.obligation_id: row for row in case.obligations}
        self.moment = moment
        self.terms = terms
        self.created = created
        self.workflow = workflow
        self.notes: list[Note] = []
        self.outgoing: list[Outgoing] = []
        self.effort = Effort()
        """What this commit may still spend on the document's expressions: a case never keeps the time from others."""
        self.asking: dict[str, str] = {}
        """Why a settlement is to be asked for when the fold is sealed, by command."""
        self.late_until: dict[str, datetime] = {}
        self.lateness: list[float] = []
        """By how many seconds each timer that woke this case came late."""
        self.acted = False
        """True where a person's act on the whole case was folded in; what follows from it is decided at the end."""
        self.acted_by: dict[str | None, str] = {}
        """Who acted on what within this commit: by command, or None for the whole case."""
        self.handed_back: list[str] = []
        """Operator commands that gave the case back within this commit: what follows is told with their end."""
        self.unverified = False
        """True where verification is overdue."""
        self.undone = False
        """True where nothing is left that a backward step could undo."""
        self.foreign: dict[str, JournalRow] = {}
        """Operations of other cases to which steps of this one are attached."""
        self.steps: dict[str, StepState] = {}
        if workflow is not None:
            read = case.steps or [StepState.model_validate(item) for item in case.instance.steps]
            self.steps = {state.id: state for state in read}
        self._written = {
            item["id"]: (state, item) for item, state in zip(case.instance.steps, self.steps.values(), strict=False)
        }

    @property
    def operation(self) -> JournalRow:
        """The operation in focus."""
        return self.operations[self.focus]

    @operation.setter
    def operation(self, row: JournalRow) -> None:
        self.operations[self.focus] = row

    @property
    def state(self) -> OperationState:
        """The state of the operation in focus."""
        return self.operations[self.focus].state

    @property
    def version(self) -> int:
        """The version that the operation in focus gets with this commit."""
        stored = self.known.get(self.focus)
        return stored.state_version + 1 if stored is not None else 1

    @property
    def left_behind(self) -> str | None:
        """A step that ended badly, and how: of such a case whose other steps went on, nothing else may speak."""
        failed = (state for state in self.steps.values() if state.phase is StepPhase.FAILED)
        return next((f"{state.id}_{state.outcome or 'undecided'}" for state in failed), None)

    def at(self, command_id: str) -> "Fold":
        """Move the focus to another operation of this case."""
        if command_id not in self.operations:
            raise KeyError(command_id)
        self.focus = command_id
        return self

    def step(self, step_id: str, **changes: Any) -> StepState:
        """Change a step's state."""
        changed: StepState = self.steps[step_id].evolve(**changes)
        self.steps[step_id] = changed
        return changed

    def written_steps(self) -> list[dict[str, Any]]:
        """The steps as the instance keeps them; only those that changed are written again."""
        for step_id, state in self.steps.items():
            written = self._written.get(step_id)
            if written is None or written[0] is not state:
                self._written[step_id] = (state, state.written())
        return [self._written[step_id][1] for step_id in self.steps]

    def read_steps(self) -> tuple[StepState, ...]:
        """The steps as the instance has them; none where one of them was not written back."""
        read = tuple(self.steps.values())
        return read if all(self._written[state.id][0] is state for state in read) else ()

    def add(self, row: JournalRow) -> None:
        """A new operation of this case; it gets the focus."""
        self.operations[row.command_id] = row
        self.focus = row.command_id
        self.instance = self.instance.evolve(operations=[*self.instance.operations, row.command_id])

    def ask(self, reason: str, late_until: datetime | None = None) -> None:
        """Let the reconciler find out what became of the operation in focus, where that is still open at the end."""
        self.asking[self.focus] = reason
        if late_until is not None:
            self.late_until[self.focus] = late_until

    def note(self, type_: str, *, actor: str, at: datetime, cause: str | None = None, **facts: Any) -> None:
        """Begin a fact about the operation in focus; the states passed from here on are written into it."""
        row = self.operation
        payload: dict[str, Any] = {"command_id": row.command_id, "states": [row.state.value]}
        if self.workflow is not None:
            payload["step_id"] = row.step_id
        payload.update({key: value for key, value in facts.items() if value is not None})
        self.notes.append(Note(type_, actor, at, cause, payload))

    def case_note(
        self, type_: str, *, actor: str = SOURCE, at: datetime | None = None, cause: str | None = None, **facts: Any
    ) -> None:
        """A fact about the case as a whole."""
        payload = {key: value for key, value in facts.items() if value is not None}
        self.notes.append(Note(type_, actor, at or self.moment.business, cause, payload))

    def own_note(self, type_: str, **facts: Any) -> None:
        """A fact that this service itself establishes; joins the fact that caused it in the same commit."""
        if self.notes and self.notes[-1].payload.get("command_id") == self.focus:
            self.notes[-1].payload.update({key: value for key, value in facts.items() if value is not None})
        else:
            self.note(type_, actor=SOURCE, at=self.moment.business, **facts)

    def _passing(self) -> dict[str, Any]:
        """The fact into which the states of the operation in focus are written."""
        last = self.notes[-1].payload if self.notes else {}
        if last.get("command_id") != self.focus or "states" not in last:
            self.note("OperationMoved", actor=SOURCE, at=self.moment.business)
        return self.notes[-1].payload

    def knows(self, trigger: Trigger) -> bool:
        """True where the table knows this trigger in the present state."""
        return knows(self.operation.state, trigger)

    def move(self, *triggers: Trigger, **changes: Any) -> None:
        """Change the state by the table, with everything that follows from the new state; by several at once, where
        nothing happens between them."""
        states = self._passing()["states"]
        after = self.operation.state
        for trigger in triggers:
            after = move(after, trigger)
            states.append(after.value)
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

    def set(self, **changes: Any) -> None:
        """Change columns that are not the state."""
        self.operation = self.operation.evolve(**changes)

    def drop_lease(self) -> None:
        """Give up the lease of a task that never came to be."""
        self.operation = self.operation.evolve(**_NO_LEASE, proposed=False)

    def fail(self, trigger: Trigger, kind: ErrorClass | None, code: str, detail: str = "", **changes: Any) -> None:
        """Move with a reason that is kept in the journal and in the history."""
        passing = self._passing()
        passing.update({"error_class": kind and kind.value, "error_code": code})
        text = detail[:DETAIL_MAX] or None
        if text:
            passing["reason"] = text
        self.move(trigger, error_class=kind, error_code=code, error_detail=text, **changes)

    def recover(self, situation: Situation) -> Action:
        """What the recovery table says of a situation in the present state; kept in the history."""
        row = self.operation
        pivot = pivot_of(row.effect_class, row.state, proposed=row.proposed)
        if self.workflow is not None:
            pivot = pivot_of_all(self.operations.values())
        decided = TABLE[situation, pivot] or Action.WAIT
        self._passing()["recovery"] = decided.value
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
            tenant=self.instance.tenant,
            source=SOURCE,
            time=self.moment.real,
            data=json_bytes(body),
            traceparent=self.operation.traceparent if self.focus else self.instance.traceparent,
            causation_id=self.notes[-1].causation_id if self.notes else None,
        )
