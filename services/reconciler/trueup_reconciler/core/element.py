"""One element of a desired-state vector: what should be true of one property of one object, and how it moves."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import Phase


class Stage(StrEnum):
    """Stages of one element (requirement R2). Repairs drive the later ones when they exist."""

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
    NEEDS_PERSON = "needs_person"
    RETIRE = "retire"


_RESTING: Final = (Stage.PENDING, Stage.OBSERVING, Stage.HEALTHY, Stage.MANUAL)

TABLE: Final[dict[tuple[Stage, Turn], Stage]] = {
    **{(stage, Turn.ESTABLISHED): Stage.PENDING for stage in _RESTING},
    **{(stage, Turn.VISIT): Stage.OBSERVING for stage in _RESTING},
    **{(stage, Turn.RETIRE): Stage.RETIRED for stage in _RESTING},
    (Stage.RETIRED, Turn.ESTABLISHED): Stage.PENDING,
    (Stage.PENDING, Turn.OBSERVED): Stage.COMPARING,
    (Stage.OBSERVING, Turn.OBSERVED): Stage.COMPARING,
    (Stage.COMPARING, Turn.EQUAL): Stage.HEALTHY,
    (Stage.COMPARING, Turn.UNDECIDED): Stage.PENDING,
    (Stage.COMPARING, Turn.CONVERGING): Stage.PENDING,
    (Stage.COMPARING, Turn.DIFFERENT): Stage.DRIFT,
    (Stage.DRIFT, Turn.CLASSIFY): Stage.CLASSIFYING,
    (Stage.CLASSIFYING, Turn.NEEDS_PERSON): Stage.MANUAL,
}
"""Stages by turns. An element rests in PENDING, OBSERVING, HEALTHY, MANUAL or RETIRED; the others last one message."""


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
