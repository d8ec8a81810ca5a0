"""Security anomalies (requirement V6): a table of rules over sightings, each with a threshold in a window.

One sighting is nothing: a person clicks twice, a worker is slow. So many of one actor within one window are an
exception that a person looks into; while it goes on it is told once per quiet time, not with every look. What is a
figure ends by itself once it was well for long: well is below half of what it was told for, so that it does not flap.
What somebody did is a person's to end: whoever stops has not explained it.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

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
WELL_AGAIN: Final = "figure_well_again"
"""Resolution of an anomaly whose figure was well for long enough."""

Key = tuple[str, str, str]
"""(tenant, rule, actor)."""


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

ACTS: Final = frozenset({MASS_APPROVALS, CROSS_TENANT, NONCE_REUSE})
"""What somebody did, and not only how much there was of it."""


class AnomalyRule(Contract):
    """A threshold: so many sightings of one actor in one window."""

    name: str
    threshold: int = Field(ge=1)
    window_seconds: int = Field(ge=60, le=86400, multiple_of=60)
    ends: Literal["by_itself", "by_person"] | None = None

    @property
    def ends_by_itself(self) -> bool:
        """True where a figure that is well again is the end of it: said by the rule, else by what it is about."""
        return self.ends == "by_itself" if self.ends is not None else self.name not in ACTS

    @property
    def well_below(self) -> int:
        """Below so many it is well again."""
        return (self.threshold + 1) // 2


class AnomalyRules(Contract):
    """The document."""

    quiet_seconds: int = Field(ge=60)
    """What goes on is told again after so long."""
    calm_seconds: int = Field(default=1800, ge=60)
    """What was well for so long is over."""
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

    @property
    def key(self) -> Key:
        """Whose it is."""
        return self.tenant, self.rule, self.actor


class AnomalyRow(ForwardContract):
    """When an anomaly was told last, and what was told of it that ends by itself: its end is told too."""

    tenant: str
    rule: str
    actor: str
    told_at: Instant
    calm_since: Instant | None = None
    """Since when it is well."""
    reports: list[dict[str, Any]] = Field(default_factory=list)
    """What is open of it; while it goes on, one after each quiet time."""

    @property
    def key(self) -> Key:
        """Whose it is."""
        return self.tenant, self.rule, self.actor


def read_rules(document: Any) -> AnomalyRules:
    """A document as it was read. Raises ValueError, also for a rule that nobody knows."""
    rules = AnomalyRules.model_validate(document)
    unknown = sorted({rule.name for rule in rules.rules} - MEANINGS.keys())
    if unknown or len({rule.name for rule in rules.rules}) != len(rules.rules):
        raise ValueError(f"unknown or doubled rules: {', '.join(unknown) or 'doubled'}")
    return rules


def marks(rules: AnomalyRules, told: Iterable[AnomalyRow]) -> dict[str, int]:
    """From how many sightings on each rule has to know: as long as something of it is open, down to what is well."""
    still = {row.rule for row in told}
    return {rule.name: rule.well_below if rule.name in still else rule.threshold for rule in rules.rules}


def anomalies(
    rules: AnomalyRules, sighted: Iterable[Sighted], told: Mapping[Key, AnomalyRow], now: datetime
) -> list[Sighted]:
    """What is over its threshold and was not told within the quiet time. What is over by itself was told in vain: it is
    told at once when it begins again."""
    quiet = timedelta(seconds=rules.quiet_seconds)
    found = []
    for item in sighted:
        rule, last = rules.of(item.rule), told.get(item.key)
        if rule is None or item.count < rule.threshold:
            continue
        over = last is not None and rule.ends_by_itself and not last.reports
        if last is None or over or last.told_at + quiet <= now:
            found.append(item)
    return found


def told_row(
    item: Sighted, rule: AnomalyRule, report: ExceptionReported, before: AnomalyRow | None, now: datetime
) -> AnomalyRow:
    """What is remembered of what is told now."""
    kept = before.reports if before is not None else []
    reports = [*kept, report.model_dump(mode="json")] if rule.ends_by_itself else []
    return AnomalyRow(tenant=item.tenant, rule=item.rule, actor=item.actor, told_at=now, reports=reports)


def calmed(
    rules: AnomalyRules, told: Iterable[AnomalyRow], sighted: Iterable[Sighted], now: datetime
) -> tuple[list[AnomalyRow], list[ExceptionReported]]:
    """Rows of which something is open, as far as they change, and the ends of what was well for long enough."""
    counts = {item.key: item.count for item in sighted}
    changed: list[AnomalyRow] = []
    ended: list[ExceptionReported] = []
    for row in told:
        rule = rules.of(row.rule)
        if rule is None:
            continue  # switched off: nobody counts it any more, so a person ends what it told
        if counts.get(row.key, 0) >= rule.well_below:
            changed += [row.evolve(calm_since=None)] if row.calm_since is not None else []
        elif row.calm_since is None:
            changed.append(row.evolve(calm_since=now))
        elif row.calm_since + timedelta(seconds=rules.calm_seconds) <= now:
            ended += [_over(report, now) for report in row.reports]
            changed.append(row.evolve(calm_since=None, reports=[]))
    return changed, ended


def _over(told: dict[str, Any], now: datetime) -> ExceptionReported:
    report = ExceptionReported.model_validate(told)
    obligation = report.obligation.evolve(
        status="closed", closed_at=now, resolution_type=WELL_AGAIN, version=report.obligation.version + 1
    )
    over: ExceptionReported = report.evolve(obligation=obligation)
    return over


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
