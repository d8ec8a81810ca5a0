"""Invariants that are checked all the time (requirement V5): a table of rules, and what a breach is as an exception.

The checker looks and tells. It changes no case: whoever repairs a breach does so by a command, like everybody else.
What is seen once may be on its way to be right; a breach is what stands unchanged in two looks, some time apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.operators import INVARIANT
from trueup_common.contracts.shape import ForwardContract, Instant, record, rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass

PATIENCE_SECONDS: Final = 30.0
"""Real time for which a breach must stand; a clock that was moved brings nothing about by itself."""
LATE_SECONDS: Final = 60.0
"""How much later than due a timer may fire, and a lease may be noticed to have run out."""
RESTORED: Final = "invariant_holds"
"""Resolution of an exception whose breach is over."""


@record
class Rule:
    """One invariant: what a breach is called, as which kind of exception it is seen, and what it means."""

    name: str
    kind: ExceptionKind
    reason: str
    recommended: str


OVERDUE_WAKEUP: Final = Rule(
    "overdue_wakeup",
    ExceptionKind.STALE_RUNNING,
    "its wake-up time passed and no timer fired",
    "RECONCILE it; if many are overdue, look at the orchestrator's timers",
)
EXPIRED_LEASE: Final = Rule(
    "expired_lease",
    ExceptionKind.STALE_RUNNING,
    "its lease ran out and nobody dispatched it again or asked the target",
    "RECONCILE it: the target says whether the effect happened",
)
UNKNOWN_PAST_SLA: Final = Rule(
    "unknown_past_sla",
    ExceptionKind.STALE_RUNNING,
    "its outcome is still unknown although the deadline for knowing it passed",
    "RECONCILE it, or look into the target and SETTLE it with evidence",
)
LIVE_AFTER_END: Final = Rule(
    "live_after_end",
    ExceptionKind.NEEDS_REVIEW,
    "it is over and still has a timer or a lease",
    "look at its history: what ended must hold nothing any more",
)
RULES: Final = {rule.name: rule for rule in (OVERDUE_WAKEUP, EXPIRED_LEASE, UNKNOWN_PAST_SLA, LIVE_AFTER_END)}


@record
class Breach:
    """Something that breaks a rule. `stamp` changes whenever the row moves on: then it is another breach."""

    rule: str
    tenant: str
    workflow_id: str
    saga_id: str
    command_id: str | None
    stamp: str
    since: datetime
    command_type: str | None = None
    target_system: str | None = None
    target_resource: str | None = None
    trace_id: str | None = None

    @property
    def obligation_id(self) -> str:
        """The same for whoever sees it, and however often."""
        return derived_id("obl", "invariant", self.rule, self.command_id or self.workflow_id, self.stamp)


class BreachRow(ForwardContract):
    """A breach that was told and is not over: the checker's own record, so that its end is told too."""

    breach_id: str
    rule: str
    tenant: str
    workflow_id: str
    command_id: str | None = None
    stamp: str
    found_at: Instant
    report: dict[str, Any]


def standing(
    suspects: Mapping[str, datetime], seen: Iterable[Breach], real: datetime
) -> tuple[dict[str, datetime], list[Breach]]:
    """Whom to suspect from now on (since when), and which breaches have stood long enough to be told."""
    since: dict[str, datetime] = {}
    told: list[Breach] = []
    for breach in seen:
        first = suspects.get(breach.obligation_id, real)
        since[breach.obligation_id] = first
        if (real - first).total_seconds() >= PATIENCE_SECONDS:
            told.append(breach)
    return since, told


def reported(breach: Breach, *, now: datetime, owner: str, sla_seconds: float, reporter: str) -> ExceptionReported:
    """A breach as the planner takes it in."""
    rule = RULES[breach.rule]
    at = rfc3339(now)
    return ExceptionReported(
        reported_by=reporter,
        obligation=ObligationRow(
            obligation_id=breach.obligation_id,
            tenant=breach.tenant,
            workflow_id=breach.workflow_id,
            saga_id=breach.saga_id,
            command_id=breach.command_id,
            kind=rule.kind.value,
            failure_class=FailureClass.TIMEOUT_UNKNOWN.value,
            owner=owner,
            opened_at=now,
            deadline_at=now + timedelta(seconds=sla_seconds),
            envelope={
                "failure_code": f"{INVARIANT}{rule.name}",
                "failure_reason": f"{rule.reason} (since {rfc3339(breach.since)})",
                "first_failed_at": rfc3339(breach.since),
                "last_failed_at": at,
                "recommended_repair": rule.recommended,
                "human_review_required": True,
            },
        ),
        command_type=breach.command_type,
        target_system=breach.target_system,
        target_resource=breach.target_resource,
        trace_id=breach.trace_id,
    )


def restored(row: BreachRow, now: datetime) -> ExceptionReported:
    """The end of a breach that was told."""
    report = ExceptionReported.model_validate(row.report)
    ended = report.obligation.evolve(
        status="closed", closed_at=now, resolution_type=RESTORED, version=report.obligation.version + 1
    )
    closed: ExceptionReported = report.evolve(obligation=ended)
    return closed


def rows_of(breaches: Sequence[Breach], reports: Sequence[ExceptionReported], now: datetime) -> list[BreachRow]:
    """What the checker remembers of breaches that it tells."""
    return [
        BreachRow(
            breach_id=breach.obligation_id,
            rule=breach.rule,
            tenant=breach.tenant,
            workflow_id=breach.workflow_id,
            command_id=breach.command_id,
            stamp=breach.stamp,
            found_at=now,
            report=report.model_dump(mode="json"),
        )
        for breach, report in zip(breaches, reports, strict=True)
    ]
