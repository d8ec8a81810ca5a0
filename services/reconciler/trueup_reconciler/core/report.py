"""What an open drift says to the planner and to people: the exception, and when it has to be told again."""

from datetime import datetime, timedelta
from typing import Any

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass, ProbeVerdict
from trueup_reconciler.core.budget import Route, Way
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.turned import Care


def offer(row: ElementRow, seen: Observation) -> dict[str, Any] | None:
    """The repair command as it would be sent now: what it binds comes from this observation."""
    if row.repair is None:
        return None
    bound = {name: getattr(seen, source) for name, source in row.repair.get("binds", {}).items()}
    payload = {**row.repair["payload"], **{name: value for name, value in bound.items() if value is not None}}
    return {
        "command_type": row.repair["command_type"],
        "resource": row.repair["resource"],
        "payload": payload,
        "supersedes": row.repaired_by or row.command_id,
        "verification": row.repair.get("verification", ""),
    }


def of_observation(row: ElementRow, seen: Observation, route: Route) -> dict[str, Any]:
    """The part of the envelope that an observation and the route decide."""
    missing = seen.verdict is ProbeVerdict.MISSING
    by_person = route.way in (Way.MANUAL, Way.ESCALATED)
    return {
        "failure_class": failure_of(seen).value,
        "failure_code": route.code,
        "failure_reason": f"{row.element} of {row.system}:{row.resource} is {'missing' if missing else 'different'}",
        "recommended_repair": "REPAIR",
        "human_review_required": by_person,
        "desired": row.desired,
        "observed": seen.value,
        "observed_at": rfc3339(seen.observed_at),
        "observed_version": seen.version,
        "observed_etag": seen.etag,
        "route": route.way.value,
        "repair": offer(row, seen) if route.way is not Way.MANUAL else None,
        "repair_not_before": rfc3339(route.not_before) if route.not_before is not None else None,
        "repairs_count": row.repairs_count,
        "held": row.repairs_count == 0,
        "waits_for": row.waits_for,
    }


def failure_of(seen: Observation) -> FailureClass:
    """The class of a drift."""
    return FailureClass.RESOURCE_MISSING if seen.verdict is ProbeVerdict.MISSING else FailureClass.STATE_DRIFT


def said(facts: dict[str, Any]) -> str:
    """A digest of what matters of a report: the same again is not told again, however often it is looked at."""
    return digest({name: value for name, value in facts.items() if name != "observed_at"})


def opened(row: ElementRow, seen: Observation, facts: dict[str, Any], *, now: datetime, care: Care) -> ObligationRow:
    """The obligation of a drift that is found now."""
    at = rfc3339(now)
    return ObligationRow(
        obligation_id=derived_id("obl", row.object_key, row.element, row.command_id, row.drifts_count),
        tenant=row.tenant,
        workflow_id=row.workflow_id,
        saga_id=row.saga_id,
        command_id=row.command_id,
        kind=ExceptionKind.STATE_DRIFT.value,
        failure_class=failure_of(seen).value,
        owner=care.owner,
        opened_at=now,
        deadline_at=now + timedelta(seconds=care.sla_seconds),
        envelope={
            "command_id": row.command_id,
            "workflow_id": row.workflow_id,
            "saga_id": row.saga_id,
            "failed_step": row.origin.get("step_id"),
            "first_failed_at": at,
            "last_failed_at": at,
            "attempt_count": row.origin.get("attempt_count"),
            "last_external_status": row.origin.get("external_status"),
            "payload_reference": row.origin.get("payload_sha256"),
            "decision_id": row.origin.get("decision_id"),
            "capability_id": row.origin.get("capability_id"),
            "element": row.element,
            "target_resource": row.resource,
            "last_known_good_at": rfc3339(row.healthy_at) if row.healthy_at is not None else None,
            **facts,
        },
    )


def restated(obligation: ObligationRow, facts: dict[str, Any], now: datetime) -> ObligationRow:
    """The same obligation with what has become of it, one version on."""
    changed: ObligationRow = obligation.evolve(
        failure_class=facts.get("failure_class", obligation.failure_class),
        envelope={**obligation.envelope, **facts, "last_failed_at": rfc3339(now)},
        version=obligation.version + 1,
    )
    return changed


def close(obligation: ObligationRow, resolution: str, now: datetime, *, by: str | None = None) -> ObligationRow:
    """An obligation that is no longer open."""
    told = obligation.envelope if by is None else {**obligation.envelope, "resolved_by": by}
    closed: ObligationRow = obligation.evolve(
        status="closed", closed_at=now, resolution_type=resolution, version=obligation.version + 1, envelope=told
    )
    return closed
