"""The case: an instance with its operations and what it owes, as decisions take it in and give it back.

Everything here is plain data. Time comes with the batch, settings come as `Terms`, governance comes as `Authority`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import RiskLevel
from trueup_common.contracts.workflow import StepState


class Moment(Protocol):
    """The time of a batch: business time for deadlines and waits, real time for leases."""

    @property
    def business(self) -> datetime:
        """Business time."""
        ...

    @property
    def real(self) -> datetime:
        """Real time."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings that decisions need."""

    exception_owner: str = "operators"
    exception_sla_seconds: float = 3600.0
    lease_margin_seconds: float = 5.0
    """How long after the last possible moment of an attempt its receipt may still be on its way."""
    reminder_seconds: float = 900.0
    """How long to wait for a settlement before asking for it again (business time)."""


@record
class Authority:
    """What governance says of one operation right now."""

    revoked: str | None = None
    """What was revoked (mandate, decision, capability), if anything."""
    frozen: bool = False
    stale: bool = False
    """True where nobody confirmed lately what is revoked and frozen."""

    def holds_back(self, risk: RiskLevel) -> str | None:
        """Why nothing may be sent for now, or None. A stale watch holds back high risk only."""
        if self.frozen:
            return "frozen"
        return "governance_stale" if self.stale and risk in (RiskLevel.HIGH, RiskLevel.CRITICAL) else None


@record
class Case:
    """One case as stored. `obligations` are the open ones; `unpublished` is history that no durable event carried.

    A single command has exactly one operation; a workflow has those that it has begun so far, compensations included.
    """

    instance: InstanceRow
    operations: tuple[JournalRow, ...]
    obligations: tuple[ObligationRow, ...] = ()
    unpublished: tuple[HistoryEvent, ...] = ()
    steps: tuple[StepState, ...] = field(default=(), compare=False)
    """What `instance.steps` says, where somebody has read it already."""

    @property
    def operation(self) -> JournalRow:
        """The operation of a single command."""
        return self.operations[0]


@record
class Decision:
    """What is to be stored and sent in one commit. Rows that did not change are not listed.

    `begun` are new operations, `moved` those that changed; `case` holds all of them as they stand.
    """

    case: Case
    events: tuple[HistoryEvent, ...] = ()
    opened: tuple[ObligationRow, ...] = ()
    changed: tuple[ObligationRow, ...] = ()
    outgoing: tuple[Outgoing, ...] = ()
    created: bool = False
    begun: tuple[JournalRow, ...] = ()
    moved: tuple[JournalRow, ...] = ()
    instance_changed: bool = False

    @property
    def changes(self) -> bool:
        """True where anything is to be stored."""
        return self.created or self.instance_changed or bool(self.begun or self.moved)
