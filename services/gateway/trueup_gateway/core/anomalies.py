"""Security anomalies (requirement V6): a table of rules over sightings, each with a threshold in a window.

One sighting is nothing: a person clicks twice, a worker is slow. So many of one actor within one window are an
exception that a person looks into; while it goes on it is told once per quiet time, not with every look.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.shape import Contract, ForwardContract, Instant, record, rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass

START_BURST: Final = "start_burst"
MASS_APPROVALS: Final = "mass_approvals"
CROSS_TENANT: Final = "cross_tenant_callback"
NONCE_REUSE: Final = "nonce_reuse"
MANY_UNKNOWNS: Final = "many_unknowns"
STALE_WORKER: Final = "stale_worker"


@record
class Meaning:
    """What a rule's exception is, and what is to be done about it."""

    failure: FailureClass
    reason: str
    recommended: str


MEANINGS: Final[Mapping[str, Meaning]] = {
    START_BURST: Meaning(
        FailureClass.BUSINESS_RULE_ERROR,
        "{actor} started {count} cases within {window} s",
        "see whether it is meant; freeze the tenant or revoke the capability where it is not",
    ),
    MASS_APPROVALS: Meaning(
        FailureClass.BUSINESS_RULE_ERROR,
        "{actor} decided {count} approvals within {window} s",
        "see whether each was read; review what was approved",
    ),
    CROSS_TENANT: Meaning(
        FailureClass.PERMISSION_ERROR,
        "{actor} sent {count} events to cases of another tenant within {window} s",
        "revoke the caller's access until it is known why it knows such ids",
    ),
    NONCE_REUSE: Meaning(
        FailureClass.PERMISSION_ERROR,
        "{actor} answered approvals {count} times within {window} s under a nonce that was used or is not theirs",
        "revoke the reviewer's access until it is known who sent it",
    ),
    MANY_UNKNOWNS: Meaning(
        FailureClass.TIMEOUT_UNKNOWN,
        "the outcome of {count} operations became unknown within {window} s",
        "look at the target and at what stands between; freeze the system while it goes on",
    ),
    STALE_WORKER: Meaning(
        FailureClass.CONCURRENCY_CONFLICT,
        "{count} effects were reported within {window} s by attempts of {actor} that had lost their fence",
        "stop the worker that still writes; see whether what it wrote stands twice",
    ),
}
"""Every rule that there is."""


class AnomalyRule(Contract):
    """A threshold: so many sightings of one actor in one window."""

    name: str
    threshold: int = Field(ge=1)
    window_seconds: int = Field(ge=60, le=86400, multiple_of=60)


class AnomalyRules(Contract):
    """The document."""

    quiet_seconds: int = Field(ge=60)
    """What goes on is told again after so long."""
    rules: tuple[AnomalyRule, ...]

    def of(self, name: str) -> AnomalyRule | None:
        """The rule of a name, None where it is switched off."""
        return next((rule for rule in self.rules if rule.name == name), None)


@record
class Sighted:
    """How often something was seen of an actor in the window of its rule."""

    tenant: str
    rule: str
    actor: str
    count: int
    about: str | None = None


class AnomalyRow(ForwardContract):
    """When an anomaly was told last."""

    tenant: str
    rule: str
    actor: str
    told_at: Instant


def read_rules(document: Any) -> AnomalyRules:
    """A document as it was read. Raises ValueError, also for a rule that nobody knows."""
    rules = AnomalyRules.model_validate(document)
    unknown = sorted({rule.name for rule in rules.rules} - MEANINGS.keys())
    if unknown or len({rule.name for rule in rules.rules}) != len(rules.rules):
        raise ValueError(f"unknown or doubled rules: {', '.join(unknown) or 'doubled'}")
    return rules


def anomalies(
    rules: AnomalyRules, sighted: Iterable[Sighted], told: Mapping[tuple[str, str, str], datetime], now: datetime
) -> list[Sighted]:
    """What is over its threshold and was not told within the quiet time."""
    quiet = timedelta(seconds=rules.quiet_seconds)
    found = []
    for item in sighted:
        rule = rules.of(item.rule)
        last = told.get((item.tenant, item.rule, item.actor))
        if rule is not None and item.count >= rule.threshold and (last is None or last + quiet <= now):
            found.append(item)
    return found


def told_rows(found: Sequence[Sighted], now: datetime) -> list[AnomalyRow]:
    """What is remembered of what is told now."""
    return [AnomalyRow(tenant=item.tenant, rule=item.rule, actor=item.actor, told_at=now) for item in found]


def reported(
    item: Sighted, rule: AnomalyRule, *, now: datetime, owner: str, sla_seconds: float, reporter: str
) -> ExceptionReported:
    """An anomaly as the planner takes it in: about no case, so that a person closes it after looking into it."""
    meaning = MEANINGS[item.rule]
    return ExceptionReported(
        reported_by=reporter,
        obligation=ObligationRow(
            obligation_id=derived_id("obl", "anomaly", item.rule, item.tenant, item.actor, rfc3339(now)),
            tenant=item.tenant,
            workflow_id="",
            saga_id="",
            kind=ExceptionKind.NEEDS_REVIEW.value,
            failure_class=meaning.failure.value,
            owner=owner,
            opened_at=now,
            deadline_at=now + timedelta(seconds=sla_seconds),
            envelope={
                "failed_step": "anomaly",
                "failure_code": f"anomaly_{item.rule}",
                "failure_reason": meaning.reason.format(
                    actor=item.actor or "somebody", count=item.count, window=rule.window_seconds
                ),
                "recommended_repair": meaning.recommended,
                "human_review_required": True,
                "actor": item.actor or None,
                "sightings_count": item.count,
                "window_seconds": rule.window_seconds,
                "last_workflow_id": item.about,
            },
        ),
    )
