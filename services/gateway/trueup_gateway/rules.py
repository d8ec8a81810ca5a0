"""The rules in force: policy set and freezes as of an epoch, read in the transaction that uses them.

Every change of governance raises the epoch in the same commit. So one number, read with the locked rows, tells whether
what this process remembers still holds, and a change has effect with its commit on every replica.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.governance import held_by
from trueup_gateway.core.policy import Act, Answer, Question
from trueup_gateway.core.records import FreezeRow, PolicyRow
from trueup_gateway.policy import PolicySet
from trueup_gateway.store import GatewayTransaction

REMEMBERED_MAX: Final = 10_000


@dataclass(slots=True)
class Rules:
    """Policy set and freezes of one epoch."""

    epoch: int
    version: int
    policies: PolicySet
    freezes: tuple[FreezeRow, ...]
    _answers: dict[Question | Act, Answer]

    @property
    def policy_sha256(self) -> str:
        """The identity of the policy set."""
        return self.policies.sha256

    def ask(self, question: Question | Act) -> Answer:
        """What the policy set says; the same question is evaluated once."""
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= REMEMBERED_MAX:
                self._answers.clear()
            answer = self._answers[question] = self.policies.ask(question)
        return answer

    def freeze_of(self, fields: Mapping[str, Any], now: datetime, *, compensation: bool = False) -> str | None:
        """The id of a freeze that holds back an effect with these fields at this (business) time."""
        if not self.freezes:
            return None
        held = [(row.kind, row.freeze_id, row.scope, row.expires_at) for row in self.freezes]
        return held_by(held, fields, now, compensation=compensation)


class RuleBook:
    """Remembers the rules of the latest epoch seen."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._parsed: dict[str, PolicySet] = {}

    @property
    def latest(self) -> Rules | None:
        """The rules of the latest epoch that this process has seen."""
        return self._rules

    async def at(self, tx: GatewayTransaction, epoch: int) -> Rules:
        """The rules of an epoch that was read in this transaction."""
        rules = self._rules
        if rules is not None and rules.epoch == epoch:
            return rules
        policy = await tx.policy()
        if policy is None:
            raise LookupError("no policy is in force")
        rules = Rules(
            epoch=epoch,
            version=policy.version,
            policies=self._parse(policy),
            freezes=tuple(await tx.active_freezes()),
            _answers={},
        )
        if self._rules is None or self._rules.epoch < epoch:
            self._rules = rules
        return rules

    def _parse(self, policy: PolicyRow) -> PolicySet:
        parsed = self._parsed.get(policy.sha256)
        if parsed is None:
            self._parsed = {policy.sha256: PolicySet(policy.text)}
            parsed = self._parsed[policy.sha256]
        return parsed
