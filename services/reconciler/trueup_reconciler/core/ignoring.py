"""Drift that somebody accepts for a while: each rule has a scope, a reason, an owner and an end (requirement R11).

An ignored difference stays a difference: the element does not become healthy and pays nothing that is owed; only nobody
is called. When the rule ends, the next look opens the drift as if it had just been found.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import Field, model_validator

from trueup_common.contracts.compare import same
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import Contract, Instant
from trueup_common.contracts.states import ProbeVerdict
from trueup_reconciler.core.element import ElementRow

LONGEST: Final = timedelta(days=90)


class IgnoreRule(Contract):
    """One rule. `resource` and `element` take `*`; at least one of them says more than "everything".

    `observed` narrows it to one observed value, `missing: true` to an absence: any other difference is drift.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    tenant: str = Field(min_length=1)
    system: str = Field(min_length=1)
    resource: str = "*"
    element: str = "*"
    observed: Any = None
    missing: bool | None = None
    since: Instant
    until: Instant
    reason: str = Field(min_length=3)
    owner: str = Field(min_length=1)

    @model_validator(mode="after")
    def _scoped(self) -> "IgnoreRule":
        if "*" in (self.tenant, self.system):
            raise ValueError(f"{self.id}: tenant and system are named, not matched")
        if not self.resource.strip("*") and not self.element.strip("*"):
            raise ValueError(f"{self.id}: a rule says which resource or which element it is about")
        if not self.since < self.until <= self.since + LONGEST:
            raise ValueError(f"{self.id}: a rule ends, at most {LONGEST.days} days after it begins")
        return self

    def covers(self, row: ElementRow, seen: Observation, now: datetime) -> bool:
        """True where this difference of this element is accepted now."""
        absent = seen.verdict is ProbeVerdict.MISSING
        return (
            self.since <= now < self.until
            and (self.tenant, self.system) == (row.tenant, row.system)
            and fnmatchcase(row.resource, self.resource)
            and fnmatchcase(row.element, self.element)
            and (self.missing is None or self.missing == absent)
            and (self.observed is None or (not absent and same(row.normaliser, self.observed, seen.value)))
        )


class IgnoreRules(Contract):
    """The document of all rules."""

    rules: tuple[IgnoreRule, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> "IgnoreRules":
        names = [rule.id for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("two rules have the same id")
        return self


def accepted(rules: Sequence[IgnoreRule], row: ElementRow, seen: Observation, now: datetime) -> IgnoreRule | None:
    """The rule that accepts this difference for the longest; None where it is drift."""
    covering = [rule for rule in rules if rule.covers(row, seen, now)]
    return max(covering, key=lambda rule: rule.until, default=None)
