"""The lookout: tries out whether drift is seen at all, and surveys systems for effects that nobody manages.

Glue like the handler, which hands over what it meets: each new (tenant, system) gets a planted drift and a survey.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import Established
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import Phase
from trueup_common.contracts.survey import RESOURCE
from trueup_common.contracts.task import Observed
from trueup_common.contracts.topology import task_subject
from trueup_common.runtime.ports import Moment
from trueup_reconciler.core import canary, survey
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.order import soon
from trueup_reconciler.core.turned import Care
from trueup_reconciler.desk import Desk
from trueup_reconciler.store import Listed, ReconcilerTransaction

DUE_LIMIT: Final = 50


class Lookout:
    """What one process plants, surveys and hears of it. Without a watch or rounds it does nothing of that kind."""

    def __init__(
        self,
        care: Care | None = None,
        watch: canary.Watch | None = None,
        rounds: survey.Rounds | None = None,
    ) -> None:
        self.care = care or Care()
        self.watch = watch
        self.rounds = rounds
        self._met: set[str] = set()
        """Pairs whose canary and survey are stored for sure."""
        self._since: datetime | None = None

    async def load(self, tx: ReconcilerTransaction, desk: Desk, bodies: Iterable[Any]) -> None:
        """What answers are about, and what there is of pairs that are new to this process."""
        met, canaries, surveys = set(), set(), set()
        for body in bodies:
            if isinstance(body, Established):
                met.add(canary.canary_key(body.tenant, body.system))
            elif isinstance(body, Observed) and body.resource == canary.RESOURCE:
                canaries.add(canary.canary_key(body.tenant, body.system))
            elif isinstance(body, Observed) and body.resource == RESOURCE:
                surveys.add(survey.survey_key(body.tenant, body.system))
        new = met - self._met
        if self.watch is not None and (new or canaries):
            desk.load_canaries(await tx.canaries(sorted(new | canaries)))
        if self.rounds is not None and (new or surveys):
            desk.load_surveys(await tx.surveys(sorted(new | surveys)))
        self._met.update(key for key in new if self._is_known(desk, key))
        await self._compare(tx, desk, bodies)
        names = {row.obligation_id for row in desk.canaries.values() if row.obligation_id is not None}
        for body in bodies:
            row = desk.surveys.get(survey.survey_key(body.tenant, body.system)) if isinstance(body, Observed) else None
            if row is not None and isinstance(body, Observed):
                names.update(*(survey.obligations_of(row, seen) for seen in body.observations))
        desk.load_obligations(await tx.obligations(sorted(names)) if names else [])

    async def _compare(self, tx: ReconcilerTransaction, desk: Desk, bodies: Iterable[Any]) -> None:
        """What is listed is there; what was listed by an earlier round and is not any more may be gone: look, now."""
        for body in bodies:
            if not isinstance(body, Observed) or body.resource != RESOURCE or len(body.observations) != 1:
                continue
            row = desk.surveys.get(survey.survey_key(body.tenant, body.system))
            page = survey.page_in(row, body.visit_id, body.observations[0]) if row is not None else None
            if row is None or page is None:
                continue
            now = desk.moment.business
            await tx.listed(Listed(row.tenant, row.system, page.operations, page.resources), now)
            if page.next_cursor is None:
                desk.load_elements(await tx.unlisted(row.tenant, row.system, row.begun_at, survey.UNLISTED_MAX))
                self._look_at_what_is_not_listed(desk, row)

    @staticmethod
    def _look_at_what_is_not_listed(desk: Desk, row: survey.SurveyRow) -> None:
        """Asked once: until it is listed again, no survey says anything of it."""
        gone = [
            element
            for element in desk.elements.values()
            if (element.tenant, element.system) == (row.tenant, row.system)
            and element.surveyed_at is not None
            and element.surveyed_at < row.begun_at
            and element.next_visit_at is not None
        ]
        desk.awaited(soon(element, desk.moment.business).evolve(surveyed_at=None) for element in gone)

    def _is_known(self, desk: Desk, key: str) -> bool:
        return (self.watch is None or key in desk.canaries) and (self.rounds is None or key in desk.surveys)

    def met(self, desk: Desk, row: ElementRow) -> None:
        """An element of a pair that may be new."""
        key, moment = canary.canary_key(row.tenant, row.system), desk.moment
        if key in self._met or row.retired_by is not None:
            return
        if self.watch is not None and key not in desk.canaries:
            desk.planted(*canary.plant(row, now=moment.business, real=moment.real, watch=self.watch))
        if self.rounds is not None and key not in desk.surveys:
            desk.surveys[key] = survey.begin(row.tenant, row.system, moment.business, self.rounds)

    def takes(self, desk: Desk, row: ElementRow, seen: Observation) -> bool:
        """An answer about an element: True where it is a planted one, about which nobody else hears."""
        if not canary.is_canary(row):
            return False
        moment, watch = desk.moment, self.watch or canary.Watch()
        looked = canary.observed(row, seen, moment.business, watch)
        desk.elements[row.object_key, row.element] = looked
        held = desk.canaries.get(canary.canary_key(row.tenant, row.system))
        if held is not None and looked.phase is Phase.DRIFT:
            obligation = desk.obligations.get(held.obligation_id or "")
            desk.tried(canary.found(held, obligation, now=moment.business, real=moment.real, watch=watch))
        return True

    def listed(self, desk: Desk, body: Observed) -> None:
        """A page of a survey. Only the page that was asked for last counts."""
        row = desk.surveys.get(survey.survey_key(body.tenant, body.system))
        if row is None or row.visit_id != body.visit_id or len(body.observations) != 1:
            return
        rounds, now = self.rounds or survey.Rounds(), desk.moment.business
        (seen,) = body.observations
        desk.surveyed(survey.answered(row, seen, desk.obligations, now=now, care=self.care, rounds=rounds))

    async def canaries(self, tx: ReconcilerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Report detectors that did not find what was planted for them; a process that just began gives them time."""
        watch = self.watch or canary.Watch()
        self._since = self._since or moment.real
        if moment.real < self._since + timedelta(seconds=watch.period_seconds):
            return []
        desk = Desk(moment)
        overdue = await tx.due_canaries(moment.real, DUE_LIMIT)
        desk.load_canaries(overdue)
        reported = [row.obligation_id for row in overdue if row.obligation_id is not None]
        desk.load_obligations(await tx.obligations(sorted(reported)) if reported else [])
        for row in overdue:
            obligation = desk.obligations.get(row.obligation_id or "")
            tried = canary.missed(row, obligation, now=moment.business, real=moment.real, care=self.care, watch=watch)
            desk.tried(tried)
        await tx.save(desk.changes())
        return desk.outgoing()

    async def surveys(self, tx: ReconcilerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Ask for the next page of each survey that is due: one per pair, and no faster than its rounds say."""
        desk = Desk(moment)
        rows = await tx.due_surveys(moment.business, DUE_LIMIT)
        desk.load_surveys(rows)
        for row in rows:
            asked, task = survey.due(row, moment.business, self.rounds or survey.Rounds())
            desk.surveys[row.survey_key] = asked
            desk.send(task.visit_id, task, task_subject(task.system, "probe", task.tenant), task.tenant, None)
        await tx.save(desk.changes())
        return desk.outgoing()
