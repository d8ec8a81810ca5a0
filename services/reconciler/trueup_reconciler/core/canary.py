"""A drift that is planted on purpose: if the detector does not find it in time, it is the detector that is broken.

For each (tenant, system) one element is copied with a desired value that nothing can have. It goes the way of all
elements: due, probed, answered, compared. No case owns it, no view shows it, nothing repairs it. Whether
it is found in time is a matter of real time: what does not run finds nothing, whatever business time says.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass, Phase
from trueup_reconciler.core.drift import looked_at
from trueup_reconciler.core.element import ElementRow, Turn, object_key, turn
from trueup_reconciler.core.report import close, restated
from trueup_reconciler.core.turned import Care

RESOURCE: Final = "trueup-selftest"
CODE: Final = "detector_dead"


@dataclass(frozen=True, slots=True)
class Watch:
    """How often the detector is tried out."""

    period_seconds: float = 900.0


class CanaryRow(ForwardContract):
    """One (tenant, system) and when its planted drift was last found."""

    canary_key: str
    tenant: str
    system: str
    element: str
    planted_at: Instant
    due_at: Instant | None
    """By when the planted drift has to be found."""
    found_at: Instant | None = None
    obligation_id: str | None = None
    misses_count: int = 0
    state_version: int = 1


@dataclass(frozen=True, slots=True)
class Tried:
    """What a try of the detector came to: the canary, and what is reported of it or is over."""

    canary: CanaryRow
    opened: ObligationRow | None = None
    closed: ObligationRow | None = None


def canary_key(tenant: str, system: str) -> str:
    """The canary of a pair."""
    return f"{tenant}:{system}"


def is_canary(row: ElementRow) -> bool:
    """True for a planted element."""
    return row.resource == RESOURCE


def plant(model: ElementRow, *, now: datetime, real: datetime, watch: Watch) -> tuple[CanaryRow, ElementRow]:
    """The first canary of a pair, after an element that it has."""
    period = timedelta(seconds=watch.period_seconds)
    canary = CanaryRow(
        canary_key=canary_key(model.tenant, model.system),
        tenant=model.tenant,
        system=model.system,
        element=model.element,
        planted_at=real,
        due_at=real + 2 * period,
        state_version=0,
    )
    nobody = derived_id("cmd", "selftest", model.tenant, model.system)
    element = ElementRow(
        object_key=object_key(model.tenant, model.system, RESOURCE),
        element=model.element,
        tenant=model.tenant,
        system=model.system,
        resource=RESOURCE,
        command_id=nobody,
        workflow_id=nobody,
        command_type=model.command_type,
        declaration_sha256=model.declaration_sha256,
        origin={},
        revision=0,
        sequence=0,
        desired={"planted": nobody},
        normaliser="exact",
        window_seconds=0.0,
        probe=model.probe,
        established_at=now,
        window_until=now,
        owed=False,
        state_version=0,
        next_visit_at=now + period,
    )
    return canary, element


def observed(row: ElementRow, seen: Observation, now: datetime, watch: Watch) -> ElementRow:
    """The planted element after a look. Found, it rests for a period, as if it had been planted anew."""
    looked = looked_at(row, seen, now)
    if looked.phase is not Phase.DRIFT:
        return looked
    rested: ElementRow = turn(looked, Turn.NEEDS_PERSON).evolve(
        next_visit_at=now + timedelta(seconds=watch.period_seconds)
    )
    return rested


def found(canary: CanaryRow, obligation: ObligationRow | None, *, now: datetime, real: datetime, watch: Watch) -> Tried:
    """The planted drift was found: the detector lives, which ends what was reported, and it is planted anew."""
    is_open = obligation is not None and obligation.status == "open"
    return Tried(
        canary.evolve(
            found_at=real,
            planted_at=real,
            due_at=real + timedelta(seconds=2 * watch.period_seconds),  # it rests for one and is found within one
            obligation_id=None,
            misses_count=0,
        ),
        closed=close(obligation, "observed_healthy", now) if obligation is not None and is_open else None,
    )


def missed(
    canary: CanaryRow, obligation: ObligationRow | None, *, now: datetime, real: datetime, care: Care, watch: Watch
) -> Tried:
    """The planted drift was not found in time: the detector of this pair is dead or blind, and a person hears of it."""
    number = canary.misses_count + 1
    later = canary.evolve(due_at=real + timedelta(seconds=watch.period_seconds), misses_count=number)
    if obligation is not None and obligation.status == "open":
        # Told again while it lasts: whoever called it resolved without healing it meets it again.
        return Tried(later, opened=restated(obligation, {"misses_count": number}, now))
    if canary.obligation_id is not None and obligation is None:
        return Tried(later)
    obligation_id = derived_id("obl", "selftest", canary.canary_key, rfc3339(canary.planted_at), number)
    nobody = derived_id("cmd", "selftest", canary.tenant, canary.system)
    at = rfc3339(now)
    opened = ObligationRow(
        obligation_id=obligation_id,
        tenant=canary.tenant,
        workflow_id=nobody,
        saga_id="",
        kind=ExceptionKind.NEEDS_REVIEW.value,
        failure_class=FailureClass.DEPENDENCY_ERROR.value,
        owner=care.owner,
        opened_at=now,
        deadline_at=now + timedelta(seconds=care.sla_seconds),
        envelope={
            "failure_class": FailureClass.DEPENDENCY_ERROR.value,
            "failure_code": CODE,
            "failure_reason": f"a drift planted at {rfc3339(canary.planted_at)} was not found in time: drift of"
            f" {canary.system} goes unseen",
            "first_failed_at": at,
            "last_failed_at": at,
            "attempt_count": 0,
            "recommended_repair": "look at the reconciler, the adapter and the read credential of this system",
            "human_review_required": True,
            "element": canary.element,
        },
    )
    return Tried(later.evolve(obligation_id=obligation_id), opened=opened)
