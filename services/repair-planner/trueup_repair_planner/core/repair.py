"""One planned repair: what is wrong, what shall be done about it, at which risk, and how far it has come.

A repair is over only when what it was for was seen to be true again: an answer of the gateway is at most EXECUTING, an
accepted command at most VERIFYING. What did not hold fails, and the next one is planned or a person gets it.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.events import RepairChanged
from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_common.contracts.states import RiskLevel

TRAIL_MAX: Final = 50


class Status(StrEnum):
    """How far a repair has come."""

    PLANNED = "PLANNED"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    EXECUTING = "EXECUTING"
    VERIFYING = "VERIFYING"
    DONE = "DONE"
    FAILED = "FAILED"
    ESCALATED = "ESCALATED"
    WITHDRAWN = "WITHDRAWN"


class Step(StrEnum):
    """What moves a repair."""

    BEGIN = "begin"
    POSTPONE = "postpone"
    ASK = "ask"
    SEND = "send"
    REFUSE = "refuse"
    VERIFY = "verify"
    MISS = "miss"
    ESCALATE = "escalate"
    WITHDRAW = "withdraw"


TABLE: Final[dict[tuple[Status, Step], Status]] = {
    (Status.PLANNED, Step.BEGIN): Status.EXECUTING,
    (Status.PLANNED, Step.SEND): Status.VERIFYING,
    (Status.PLANNED, Step.ESCALATE): Status.ESCALATED,
    (Status.PLANNED, Step.WITHDRAW): Status.WITHDRAWN,
    (Status.EXECUTING, Step.BEGIN): Status.EXECUTING,
    (Status.EXECUTING, Step.POSTPONE): Status.PLANNED,
    (Status.EXECUTING, Step.ASK): Status.WAITING_APPROVAL,
    (Status.EXECUTING, Step.SEND): Status.VERIFYING,
    (Status.EXECUTING, Step.REFUSE): Status.FAILED,
    (Status.EXECUTING, Step.VERIFY): Status.DONE,
    (Status.EXECUTING, Step.WITHDRAW): Status.WITHDRAWN,
    (Status.WAITING_APPROVAL, Step.BEGIN): Status.EXECUTING,
    (Status.WAITING_APPROVAL, Step.REFUSE): Status.FAILED,
    (Status.WAITING_APPROVAL, Step.WITHDRAW): Status.WITHDRAWN,
    (Status.VERIFYING, Step.VERIFY): Status.DONE,
    (Status.VERIFYING, Step.MISS): Status.FAILED,
    (Status.VERIFYING, Step.WITHDRAW): Status.WITHDRAWN,
    (Status.FAILED, Step.ESCALATE): Status.ESCALATED,
}
"""Statuses by steps; what is not here cannot happen. Only a verification makes DONE."""

IN_FLIGHT: Final = frozenset({Status.PLANNED, Status.WAITING_APPROVAL, Status.EXECUTING, Status.VERIFYING})
"""An exception has at most one repair in one of these."""

UNSENT: Final = frozenset({Status.PLANNED, Status.WAITING_APPROVAL})
"""Nothing was asked for yet that could change the world; an approval was asked for exactly what was planned."""

SENT: Final = frozenset({Status.EXECUTING, Status.VERIFYING})
"""From here on the world may have changed."""


class IllegalStep(Exception):
    """A step that the table does not have: a fault of the program, not of the world."""


class RepairRow(ForwardContract):
    """One repair as the planner holds it. `due_at` is when the planner looks at it by itself (business time)."""

    repair_id: str
    tenant: str
    exception_id: str
    subject_key: str
    """What is repaired: an operation, or `system:resource:element`. Attempts are counted by it, not by exception."""
    number: int
    """The how manieth since something was last repaired here."""
    status: Status = Status.PLANNED
    source_command: str | None = None
    source_workflow: str | None = None
    source_saga: str | None = None
    drift: dict[str, Any] | None = None
    request: dict[str, Any] | None = None
    """The repair command of a drifted element: {command_type, system, resource, payload, supersedes}."""
    root_cause: str
    repair_action: str
    risk_level: RiskLevel
    """As the playbook estimates it; from the decision on as that says. An approval shows the same."""
    required_capability: dict[str, Any] = Field(default_factory=dict)
    approval_required: bool
    verification_plan: str
    verify_seconds: float
    rollback_or_compensation: str
    explanation: str = ""
    playbook: str
    playbook_version: int
    owner: str
    planned_by: str
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    system: str | None = None
    decision_id: str | None = None
    decisions_count: int = 0
    """How many of its decisions became too old to go by."""
    approval_id: str | None = None
    command_id: str | None = None
    operator_command_id: str | None = None
    incident_id: str | None = None
    held: bool = False
    """True while an incident holds it back."""
    calls_count: int = 0
    """How often the gateway could not be asked, or put it off."""
    error_code: str | None = None
    error_detail: str | None = None
    due_at: Instant | None = None
    verify_until: Instant | None = None
    created_at: Instant
    executed_at: Instant | None = None
    ended_at: Instant | None = None
    trail: list[dict[str, Any]] = Field(default_factory=list)
    trace_id: str | None = None
    traceparent: str | None = None
    version: int = 0

    @property
    def runs_by_itself(self) -> bool:
        """True for a planned repair that nobody approves and no incident holds back."""
        return self.status is Status.PLANNED and not self.approval_required and not self.held

    @property
    def in_flight(self) -> bool:
        """True where its exception has this repair and needs no other."""
        return self.status in IN_FLIGHT


def advance(
    row: RepairRow, move: Step, at: datetime, actor: str, note: dict[str, Any] | None = None, **changes: Any
) -> RepairRow:
    """One step of the table, recorded in the trail. Raises IllegalStep."""
    following = TABLE.get((row.status, move))
    if following is None:
        raise IllegalStep(f"{row.repair_id}: {row.status} has no {move}")
    entry = {"step": move.value, "to": following.value, "at": rfc3339(at), "actor": actor, **(note or {})}
    over = {} if following in IN_FLIGHT else {"ended_at": at, "due_at": None, "held": False}
    moved: RepairRow = row.evolve(status=following, trail=[*row.trail, entry][-TRAIL_MAX:], **{**over, **changes})
    return moved


def told(row: RepairRow) -> RepairChanged:
    """The repair as operators and the reconciler see it."""
    shared = {name: getattr(row, name) for name in RepairChanged.model_fields if name not in ("status", "risk_level")}
    shared["approval_required"] |= row.approval_id is not None  # policy asks for one that the playbook did not foresee
    return RepairChanged(**shared, status=row.status.value, risk_level=row.risk_level.value)
