"""The desk: the rows one transaction works on and what it wants to tell, so that each row is saved and told once.

Deterministic bookkeeping between the pure cores and the store: no I/O, no clock.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ElementChanged,
    ElementVerified,
    ExceptionReported,
    OperatorCommand,
    OperatorCommandEnded,
)
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import Phase
from trueup_common.contracts.topology import event_subject, task_subject
from trueup_common.runtime.ports import Moment
from trueup_reconciler.core import order
from trueup_reconciler.core.canary import CanaryRow, Tried, is_canary
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.report import close, restated
from trueup_reconciler.core.retire import LET_GO
from trueup_reconciler.core.settle import Step
from trueup_reconciler.core.settlement import Act, SettlementRow, SettlementState
from trueup_reconciler.core.survey import Surveyed, SurveyRow
from trueup_reconciler.core.turned import Turned
from trueup_reconciler.core.visit import Pace, PaceRow, Round, admit
from trueup_reconciler.store import Changed, Changes

SERVICE: Final = "reconciler"
ElementKey = tuple[str, str]
K = TypeVar("K")
V = TypeVar("V", SettlementRow, ElementRow, CanaryRow, SurveyRow)
R = TypeVar("R", SettlementRow, ElementRow, ObligationRow, CanaryRow, SurveyRow)


class Desk:
    """Rows as loaded, as they stand now, and the messages that follow."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.settlements: dict[str, SettlementRow] = {}
        self.elements: dict[ElementKey, ElementRow] = {}
        self.obligations: dict[str, ObligationRow] = {}
        self.canaries: dict[str, CanaryRow] = {}
        self.surveys: dict[str, SurveyRow] = {}
        self._stored_canaries: dict[str, CanaryRow] = {}
        self._stored_surveys: dict[str, SurveyRow] = {}
        self._stored_settlements: dict[str, SettlementRow] = {}
        self._stored_elements: dict[ElementKey, ElementRow] = {}
        self._stored_obligations: dict[str, ObligationRow] = {}
        self._paces: dict[str, PaceRow] = {}
        self._ahead: dict[str, PaceRow] = {}
        self._seen: set[ElementKey] = set()
        self._displaced: list[ElementRow] = []
        self._marked: list[str] = []
        self._reports: dict[str, tuple[ExceptionReported, str | None]] = {}
        self._outgoing: list[Outgoing] = []

    def load_settlements(self, rows: Iterable[SettlementRow]) -> None:
        """Take loaded settlements."""
        _take(((row.command_id, row) for row in rows), self._stored_settlements, self.settlements)

    def load_elements(self, rows: Iterable[ElementRow]) -> None:
        """Take loaded elements."""
        _take((((row.object_key, row.element), row) for row in rows), self._stored_elements, self.elements)

    def load_obligations(self, rows: Iterable[ObligationRow]) -> None:
        """Take loaded obligations."""
        _take(((row.obligation_id, row) for row in rows), self._stored_obligations, self.obligations)

    def load_canaries(self, rows: Iterable[CanaryRow]) -> None:
        """Take loaded canaries."""
        _take(((row.canary_key, row) for row in rows), self._stored_canaries, self.canaries)

    def load_surveys(self, rows: Iterable[SurveyRow]) -> None:
        """Take loaded surveys."""
        _take(((row.survey_key, row) for row in rows), self._stored_surveys, self.surveys)

    def surveyed(self, surveyed: Surveyed) -> None:
        """Take what a page of a survey came to."""
        self.surveys[surveyed.row.survey_key] = surveyed.row
        for obligation in (*surveyed.opened, *surveyed.closed):
            self._report_of_pair(obligation, surveyed.row.system)

    def marked(self, name: str, actor: str) -> None:
        """A person ended the exception that stands for one of these, and the planner told so: it is owed no longer."""
        obligation = self.obligations.get(name)
        if obligation is not None and obligation.status == "open":
            self.obligations[name] = close(obligation, LET_GO, self.moment.business, by=actor)
            self._marked.append(name)

    def planted(self, canary: CanaryRow, element: ElementRow) -> None:
        """Take a planted drift. Nobody is told of it."""
        self.canaries[canary.canary_key] = canary
        self.elements.setdefault((element.object_key, element.element), element)

    def tried(self, tried: Tried) -> None:
        """Take what a try of the detector came to."""
        self.canaries[tried.canary.canary_key] = tried.canary
        for obligation in (tried.opened, tried.closed):
            if obligation is not None:
                self._report_of_pair(obligation, tried.canary.system)

    def load_paces(self, rows: Iterable[PaceRow]) -> None:
        """Take loaded paces."""
        self._ahead.update((row.pace_key, row) for row in rows)

    def slot(self, key: str, pace: Pace) -> datetime:
        """When one more may go at this pace: now, or later. Only what goes now is paid for."""
        now = self.moment.business
        before = self._ahead.get(key) or PaceRow(pace_key=key, spent_until=now, state_version=0)
        self._ahead[key], at = admit(before, pace, now)
        if at <= now:
            self._paces[key] = self._ahead[key]
        return at

    def settled(self, step: Step, cause: str = "") -> None:
        """Take what a message did to a settlement; a repeated result goes out under the question's id."""
        row = step.row
        self.settlements[row.command_id] = row
        if step.find is not None:
            subject = task_subject(row.system, "find", row.tenant)
            self.send(step.find.find_id, step.find, subject, row.tenant, row.traceparent)
        for told in step.told:
            kind = "finished" if told.finished else "started"
            again = f":{cause}" if step.act is Act.REPEAT_RESULT else ""
            message_id = f"{row.settlement_id}:{row.round}:{kind}{again}"
            subject = event_subject(SERVICE, "settlement", row.tenant)
            self.send(message_id, told, subject, row.tenant, row.traceparent)

    def turned(self, turned: Turned) -> None:
        """Take what a message did to an element."""
        row = turned.row
        key = (row.object_key, row.element)
        before = self.elements.get(key)
        if turned.changed:
            self.elements[key] = row
            self._seen.add(key)
            if before is not None and order.concerns(before):
                others = list(self.elements.values())
                self.awaited(order.following(before, row, others, self.moment.business))
        if turned.displaced is not None:
            self._displaced.append(turned.displaced)
        for paid in turned.paid:
            event = ElementVerified(
                command_id=paid.command_id,
                workflow_id=paid.workflow_id,
                tenant=row.tenant,
                system=row.system,
                resource=paid.resource,
                element=paid.element,
                phase=paid.phase,
                superseded_by=paid.superseded_by,
                observation=paid.observation,
                at=self.moment.business,
            )
            message_id = derived_id("msg", "verified", paid.command_id, paid.resource, paid.element)
            self.send(message_id, event, event_subject(SERVICE, "verified", row.tenant), row.tenant, row.traceparent)
        if turned.opened is not None:
            self._report(turned.opened, row)
        if turned.restated is not None:
            obligation = self.obligations.get(turned.restated[0])
            if obligation is not None and obligation.status == "open":
                self._report(restated(obligation, turned.restated[1], self.moment.business), row)
        for look in turned.looked:
            self._looked(look, row)
        if turned.closed is not None:
            obligation = self.obligations.get(turned.closed[0])
            if obligation is not None and obligation.status == "open":
                closed = close(obligation, turned.closed[1], self.moment.business, by=turned.closed_by)
                self._report(closed, turned.closed_for or row)

    def awaited(self, rows: Iterable[ElementRow]) -> None:
        """Elements that are to be looked at now because of another one. Nobody is told of that."""
        self.elements.update(((row.object_key, row.element), row) for row in rows)

    def _looked(self, look: dict[str, str], row: ElementRow) -> None:
        """An operator asked for a look: this is what was seen."""
        result = {
            "system": row.system,
            "resource": row.resource,
            "element": row.element,
            "phase": Phase(row.phase).value,
            "observed": row.observed,
            "reason": row.reason,
            "observed_at": rfc3339(row.observed_at) if row.observed_at is not None else None,
        }
        self.ended(look["operator_command_id"], row.tenant, result=result, traceparent=look.get("traceparent"))

    def refuse(self, command: OperatorCommand, detail: str, traceparent: str | None) -> None:
        """Nothing of what an operator asked for can be done."""
        opc = command.operator_command_id
        self.ended(opc, command.tenant, state="REFUSED", detail=detail, traceparent=traceparent)

    def ended(
        self,
        operator_command_id: str,
        tenant: str,
        *,
        state: str = "DONE",
        detail: str | None = None,
        result: dict[str, Any] | None = None,
        traceparent: str | None = None,
    ) -> None:
        """Tell how an operator command ended."""
        event = OperatorCommandEnded(
            operator_command_id=operator_command_id,
            tenant=tenant,
            state=state,
            detail=detail,
            result=result or {},
            ended_by=SERVICE,
            at=self.moment.business,
        )
        subject = event_subject(SERVICE, "operator-ended", tenant)
        self.send(f"{operator_command_id}:ended", event, subject, tenant, traceparent)

    def visited(self, planned: Round) -> None:
        """Take planned visits."""
        self.elements.update(((row.object_key, row.element), row) for row in planned.elements)
        self._paces.update((row.pace_key, row) for row in planned.paces)
        for probe in planned.probes:
            subject = task_subject(probe.system, "probe", probe.tenant)
            self.send(probe.visit_id, probe, subject, probe.tenant, None)

    def changes(self) -> Changes:
        """What is to be saved; every changed row moves by one version, however many messages it took."""
        elements = _moved(self.elements, self._stored_elements)
        for row in (*elements.new, *elements.moved):
            if (row.object_key, row.element) in self._seen:
                self._tell(row)
                self._tell_displaced(row)
        return Changes(
            settlements=_moved(self.settlements, self._stored_settlements),
            elements=elements,
            obligations=self._owed(),
            paces=Changed(
                new=tuple(row.evolve(state_version=1) for row in self._paces.values() if not row.state_version),
                moved=tuple(
                    row.evolve(state_version=row.state_version + 1) for row in self._paces.values() if row.state_version
                ),
            ),
            canaries=_moved(self.canaries, self._stored_canaries),
            surveys=_moved(self.surveys, self._stored_surveys),
            finished=tuple(self._finished()),
            turned=tuple(self._phases()),
        )

    def _owed(self) -> Changed[ObligationRow]:
        """Obligations as they stand after the batch, each told once, whatever it went through within it."""
        new: list[ObligationRow] = []
        moved: list[ObligationRow] = []
        for name in dict.fromkeys((*self._reports, *self._marked)):
            stored = self._stored_obligations.get(name)
            obligation = self.obligations[name].evolve(version=1 if stored is None else stored.version + 1)
            (new if stored is None else moved).append(obligation)
            if name not in self._reports:
                continue
            event, traceparent = self._reports[name]
            subject = event_subject(SERVICE, "exception", obligation.tenant)
            told = event.evolve(obligation=obligation)
            self.send(f"{name}:{obligation.version}", told, subject, obligation.tenant, traceparent)
        return Changed(tuple(new), tuple(moved))

    def _finished(self) -> Iterator[SettlementRow]:
        for row in self.settlements.values():
            before = self._stored_settlements.get(row.command_id)
            if row.state is SettlementState.DONE and (before is None or before.state is not SettlementState.DONE):
                yield row

    def _phases(self) -> Iterator[ElementRow]:
        for key, row in self.elements.items():
            before = self._stored_elements.get(key)
            if (before is None or before.phase is not row.phase) and not is_canary(row):
                yield row

    def outgoing(self) -> list[Outgoing]:
        """What is to be sent, after `changes`."""
        return self._outgoing

    def send(self, message_id: str, body: BaseModel, subject: str, tenant: str, traceparent: str | None) -> None:
        """Put a message on the desk."""
        message = Message(
            id=message_id,
            type=type(body).__name__,
            subject=subject,
            tenant=tenant,
            source=SERVICE,
            time=self.moment.real,
            data=body.model_dump_json().encode(),
            traceparent=traceparent,
        )
        self._outgoing.append(Outgoing(message))

    def _report(self, obligation: ObligationRow, row: ElementRow) -> None:
        event = ExceptionReported(
            reported_by=SERVICE,
            obligation=obligation,
            command_type=row.command_type,
            target_system=row.system,
            target_resource=row.resource,
            trace_id=row.origin.get("trace_id"),
        )
        self._reported(event, row.traceparent)

    def _report_of_pair(self, obligation: ObligationRow, system: str) -> None:
        """An exception that is about a whole (tenant, system)."""
        self._reported(ExceptionReported(reported_by=SERVICE, obligation=obligation, target_system=system), None)

    def _reported(self, event: ExceptionReported, traceparent: str | None) -> None:
        name = event.obligation.obligation_id
        self.obligations[name] = event.obligation
        self._reports[name] = (event, traceparent)

    def _tell_displaced(self, owner: ElementRow) -> None:
        """Cases that no longer own the element hear of it under the same version, so that none shows an old truth."""
        for row in self._displaced:
            same = (row.object_key, row.element) == (owner.object_key, owner.element)
            if same and row.workflow_id != owner.workflow_id:
                reason = f"superseded by {owner.command_id}"
                self._tell(row.evolve(state_version=owner.state_version, reason=reason, next_visit_at=None))

    def _tell(self, row: ElementRow) -> None:
        event = ElementChanged(
            tenant=row.tenant,
            system=row.system,
            resource=row.resource,
            element=row.element,
            command_id=row.command_id,
            workflow_id=row.workflow_id,
            version=row.state_version,
            desired=row.desired,
            recorded=row.recorded,
            observed=row.observed,
            verdict=row.verdict,
            phase=Phase(row.phase),
            reason=row.reason,
            observed_at=row.observed_at,
            source=row.source,
            observed_version=row.observed_version,
            next_visit_at=row.next_visit_at,
            object_type=row.object_type,
            object_id=row.object_id,
            retired=row.retired_by is not None,
        )
        message_id = derived_id("msg", "element", row.object_key, row.element, row.workflow_id, row.state_version)
        self.send(message_id, event, event_subject(SERVICE, "element", row.tenant), row.tenant, row.traceparent)


def _take(rows: Iterable[tuple[K, R]], stored: dict[K, R], now: dict[K, R]) -> None:
    """Take loaded rows. What is on the desk already stays as it stands, however often it is loaded."""
    for key, row in rows:
        if key not in stored:
            stored[key] = now[key] = row


def _moved(now: dict[K, V], stored: dict[K, V]) -> Changed[V]:
    new = [row.evolve(state_version=1) for key, row in now.items() if key not in stored]
    moved = [
        row.evolve(state_version=stored[key].state_version + 1)
        for key, row in now.items()
        if key in stored and row is not stored[key]
    ]
    return Changed(tuple(new), tuple(moved))
