"""What one message did to one element: the row as it stands, and what others are to hear of it."""

from dataclasses import dataclass
from typing import Any

from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import Phase
from trueup_reconciler.core.element import ElementRow


@dataclass(frozen=True, slots=True)
class Care:
    """Who owns drift and by when it must be dealt with."""

    owner: str = "operators"
    sla_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Paid:
    """A verification that is no longer owed: the element holds, or a newer operation took it over."""

    command_id: str
    workflow_id: str
    element: str
    resource: str
    phase: Phase
    superseded_by: str | None = None
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """What one message did to one element."""

    row: ElementRow
    changed: bool = True
    paid: tuple[Paid, ...] = ()
    opened: ObligationRow | None = None
    restated: tuple[str, dict[str, Any]] | None = None
    """(obligation_id, changes of its envelope) of a drift that is open and has become another one."""
    closed: tuple[str, str] | None = None
    """(obligation_id, resolution_type) of a drift that is over."""
    closed_by: str | None = None
    """Who ended it, where that was a person."""
    closed_for: ElementRow | None = None
    """The row that the closed drift was about."""
    displaced: ElementRow | None = None
    """The row of the older operation, whose case no longer owns this element."""
    looked: tuple[dict[str, str], ...] = ()
    """Operator commands whose look was made."""


def superseded(row: ElementRow, phase: Phase, by: str) -> Paid:
    """What is no longer owed because a newer operation took the element over."""
    return Paid(
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        element=row.element,
        resource=row.resource,
        phase=phase,
        superseded_by=by,
    )


def given_up(row: ElementRow, by: str) -> tuple[Paid, ...]:
    """Everything that is owed for a row, to its operation and to its repair, when a newer operation takes it over."""
    own = (superseded(row, row.phase, by),) if row.owed else ()
    return (*own, *_to_repair(row, row.phase, superseded_by=by))


def held(row: ElementRow, seen: Observation) -> tuple[Paid, ...]:
    """Everything that is owed for a row that was seen to be healthy."""
    own = Paid(row.command_id, row.workflow_id, row.element, row.resource, Phase.HEALTHY, observation=seen)
    return (*((own,) if row.owed else ()), *_to_repair(row, Phase.HEALTHY, observation=seen))


def _to_repair(
    row: ElementRow, phase: Phase, *, superseded_by: str | None = None, observation: Observation | None = None
) -> tuple[Paid, ...]:
    if not row.repair_owed or row.repaired_by is None or row.repaired_workflow_id is None:
        return ()
    paid = Paid(
        command_id=row.repaired_by,
        workflow_id=row.repaired_workflow_id,
        element=row.element,
        resource=row.resource,
        phase=phase,
        superseded_by=superseded_by,
        observation=observation,
    )
    return (paid,)
