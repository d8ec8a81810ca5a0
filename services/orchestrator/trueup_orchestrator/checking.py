"""The checker: looks whether the invariants hold, and tells what does not as an exception, and when it does again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.ports import Moment
from trueup_orchestrator.check_store import CheckTransaction
from trueup_orchestrator.core import invariants
from trueup_orchestrator.core.case import Terms
from trueup_orchestrator.core.fold import SOURCE

BREACHES_MAX: Final = 200


class Checker:
    """One per process. Whom it suspects is in its memory; what it told is in the store, for all replicas."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._suspects: dict[str, datetime] = {}

    async def check(self, tx: CheckTransaction, moment: Moment) -> Sequence[Outgoing]:
        """One look."""
        seen = await tx.breaches(BREACHES_MAX)
        self._suspects, standing = invariants.standing(self._suspects, seen, moment.real)
        told = await tx.told()
        known = {row.breach_id for row in told}
        fresh = [breach for breach in standing if breach.obligation_id not in known]
        reports = [
            invariants.reported(
                breach,
                now=moment.business,
                owner=self._terms.exception_owner,
                sla_seconds=self._terms.exception_sla_seconds,
                reporter=SOURCE,
            )
            for breach in fresh
        ]
        new = await tx.remember(invariants.rows_of(fresh, reports, moment.business)) if fresh else set()
        still = await tx.still(told) if told else set()
        over = [row for row in told if row.breach_id not in still]
        ended = await tx.forget([row.breach_id for row in over]) if over else set()
        return [
            *(_telling(report, moment) for report in reports if report.obligation.obligation_id in new),
            *(_telling(invariants.restored(row, moment.business), moment) for row in over if row.breach_id in ended),
        ]


def _telling(report: ExceptionReported, moment: Moment) -> Outgoing:
    obligation = report.obligation
    return Outgoing(
        Message(
            id=f"{obligation.obligation_id}:{obligation.version}",
            type="ExceptionReported",
            subject=event_subject(SOURCE, "exception", obligation.tenant),
            tenant=obligation.tenant,
            source=SOURCE,
            time=moment.real,
            data=report.model_dump_json().encode(),
        )
    )
