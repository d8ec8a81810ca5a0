"""One element of a desired-state vector: what should be true of one property of one object, and how it moves."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import Phase


class Stage(StrEnum):
    """Stages of one element (requirement R2)."""

    PENDING = "PENDING"
    OBSERVING = "OBSERVING"
    COMPARING = "COMPARING"
    HEALTHY = "HEALTHY"
    DRIFT = "DRIFT"
    CLASSIFYING = "CLASSIFYING"
    AUTO_REPAIR = "AUTO_REPAIR"
    RETRYABLE = "RETRYABLE"
    MANUAL = "MANUAL"
    REPAIR_QUEUE = "REPAIR_QUEUE"
    VERIFY = "VERIFY"
    ESCALATED = "ESCALATED"
    IGNORED = "IGNORED"
    RETIRED = "RETIRED"


class Turn(StrEnum):
    """What moves an element."""

    ESTABLISHED = "established"
    VISIT = "visit"
    OBSERVED = "observed"
    EQUAL = "equal"
    UNDECIDED = "undecided"
    CONVERGING = "converging"
    DIFFERENT = "different"
    CLASSIFY = "classify"
    MENDABLE = "mendable"
    MENDABLE_AGAIN = "mendable_again"
    NEEDS_PERSON = "needs_person"
    SPENT = "spent"
    ACCEPTED = "accepted"
    REPAIR_PLANNED = "repair_planned"
    REPAIR_SUCCEEDED = "repair_succeeded"
    REPAIR_FAILED = "repair_failed"
    RETIRE = "retire"


ROUTED: Final = (Stage.AUTO_REPAIR, Stage.RETRYABLE, Stage.MANUAL, Stage.ESCALATED)
"""Where a drift waits for its repair, by who may begin it: the planner, the planner after a while, or a person."""
WAITING: Final = (Stage.PENDING, Stage.OBSERVING, Stage.HEALTHY, *ROUTED, Stage.REPAIR_QUEUE, Stage.IGNORED)
RESTING: Final = (*WAITING, Stage.VERIFY)

TABLE: Final[dict[tuple[Stage, Turn], Stage]] = {
    **{(stage, Turn.ESTABLISHED): Stage.PENDING for stage in (*RESTING, Stage.RETIRED)},
    **{(stage, Turn.RETIRE): Stage.RETIRED for stage in RESTING},
    **{(stage, Turn.VISIT): Stage.OBSERVING for stage in WAITING},
    (Stage.PENDING, Turn.OBSERVED): Stage.COMPARING,
    (Stage.OBSERVING, Turn.OBSERVED): Stage.COMPARING,
    (Stage.COMPARING, Turn.EQUAL): Stage.HEALTHY,
    (Stage.COMPARING, Turn.UNDECIDED): Stage.PENDING,
    (Stage.COMPARING, Turn.CONVERGING): Stage.PENDING,
    (Stage.COMPARING, Turn.DIFFERENT): Stage.DRIFT,
    (Stage.DRIFT, Turn.CLASSIFY): Stage.CLASSIFYING,
    (Stage.CLASSIFYING, Turn.MENDABLE): Stage.AUTO_REPAIR,
    (Stage.CLASSIFYING, Turn.MENDABLE_AGAIN): Stage.RETRYABLE,
    (Stage.CLASSIFYING, Turn.NEEDS_PERSON): Stage.MANUAL,
    (Stage.CLASSIFYING, Turn.SPENT): Stage.ESCALATED,
    (Stage.CLASSIFYING, Turn.ACCEPTED): Stage.IGNORED,
    **{(stage, Turn.REPAIR_PLANNED): Stage.REPAIR_QUEUE for stage in (*ROUTED, Stage.REPAIR_QUEUE)},
    **{(stage, Turn.REPAIR_FAILED): Stage.CLASSIFYING for stage in (*ROUTED, Stage.REPAIR_QUEUE, Stage.VERIFY)},
    **{(stage, Turn.REPAIR_SUCCEEDED): Stage.VERIFY for stage in (*WAITING, Stage.VERIFY)},
    (Stage.VERIFY, Turn.VISIT): Stage.VERIFY,
    (Stage.VERIFY, Turn.OBSERVED): Stage.VERIFY,
    (Stage.VERIFY, Turn.UNDECIDED): Stage.VERIFY,
    (Stage.VERIFY, Turn.CONVERGING): Stage.VERIFY,
    (Stage.VERIFY, Turn.EQUAL): Stage.HEALTHY,
    (Stage.VERIFY, Turn.DIFFERENT): Stage.DRIFT,
}
"""Stages by turns. COMPARING, DRIFT and CLASSIFYING last one message, an element rests in all others.

An element whose drift is open is visited like any other; the comparison that follows finds its way back by the same
facts (`core.budget.route`). After a repair it stays in VERIFY until an observation says that it holds, or does not.
"""


class IllegalTurn(Exception):
    """A turn that the table does not have: a fault of the program, not of the world."""


class ElementRow(ForwardContract):
    """One element as the reconciler holds it. Times are business time except `observed_at`."""

    object_key: str
    element: str
    tenant: str
    system: str
    resource: str
    command_id: str
    workflow_id: str
    saga_id: str = ""
    command_type: str
    declaration_sha256: str
    origin: dict[str, Any]
    """What an exception about this element needs to name: step, decision, capability, payload, trace."""
    revision: int
    sequence: int
    desired: Any = None
    recorded: Any = None
    normaliser: str
    window_seconds: float
    probe: dict[str, Any]
    established_at: Instant
    window_until: Instant
    stage: Stage = Stage.PENDING
    phase: Phase = Phase.CONVERGING
    owed: bool = True
    """True until the orchestrator was told that this element holds, or that a newer operation took it over."""
    verdict: str | None = None
    observed: Any = None
    observed_at: Instant | None = None
    source: str | None = None
    observed_version: str | None = None
    etag: str | None = None
    reason: str | None = None
    healthy_at: Instant | None = None
    drifted_at: Instant | None = None
    same_count: int = 0
    unknown_count: int = 0
    drifts_count: int = 0
    obligation_id: str | None = None
    visit_id: str | None = None
    visits_count: int = 0
    unanswered_count: int = 0
    visit_asked_at: Instant | None = None
    next_visit_at: Instant | None = None
    state_version: int = 1
    traceparent: str | None = None
    object_type: str | None = None
    object_id: str | None = None
    """The business object whose state vector this element is part of."""
    retired_by: str | None = None
    """The compensation that took back what was desired here; such an element is not visited."""
    repair: dict[str, Any] | None = None
    """The command that would bring this element back (`RepairOffer`); None where only a person can."""
    repaired_by: str | None = None
    """The newest repair that succeeded. The element stays the operation's that established it."""
    repaired_workflow_id: str | None = None
    repair_owed: bool = False
    """True until the repair's own case was told that the element holds."""
    repair_id: str | None = None
    repair_status: str | None = None
    repair_version: int = 0
    """What the planner last said of the repair of this element."""
    repairs_count: int = 0
    """Repairs that succeeded or failed since the element last held for long enough."""
    fights_count: int = 0
    """How often in a row somebody put the same other value back after a repair."""
    foreign_sha256: str | None = None
    tried_at: Instant | None = None
    automatic: bool = True
    """False once repairs were given up: from then on only a person has it repaired."""
    escalated_code: str | None = None
    reported_sha256: str | None = None
    """Of what the open exception says, so that it is told again only where that changed."""
    looks: list[dict[str, str]] = Field(default_factory=list)
    """Operator commands that asked for a look and hear of the next observation."""
    downstream_of: list[str] = Field(default_factory=list)
    """Elements of the same business object that come first: while one has drifted, this one is not repaired."""
    waits_for: list[str] = Field(default_factory=list)
    """Those of them that its open drift waits for."""
    awaited: bool = False
    """True while something downstream waits for the next look at this one."""
    surveyed_at: Instant | None = None
    """When a survey last listed the object. Not listed any more by the next one, it is looked at, now."""

    @property
    def rank(self) -> tuple[int, int, datetime, str]:
        """Whose desired value counts: the higher revision, then the later dispatch, never the later arrival.

        Commands of different cases may share both numbers; then the time at which they succeeded and the id decide, the
        same for every replica.
        """
        return (self.revision, self.sequence, self.established_at, self.command_id)


def object_key(tenant: str, system: str, resource: str) -> str:
    """One object of one tenant; tenant and system cannot contain the separator."""
    return f"{tenant}:{system}:{resource}"


def turn(row: ElementRow, *turns: Turn) -> ElementRow:
    """The row after these turns. Raises IllegalTurn."""
    stage = row.stage
    for move in turns:
        following = TABLE.get((stage, move))
        if following is None:
            raise IllegalTurn(f"{row.object_key} {row.element}: {stage} has no {move}")
        stage = following
    moved: ElementRow = row.evolve(stage=stage)
    return moved
