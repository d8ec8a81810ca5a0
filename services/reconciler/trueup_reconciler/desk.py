"""The desk: the rows one transaction works on and what it wants to tell, so that each row is saved and told once.

Deterministic bookkeeping between the pure cores and the store: no I/O, no clock.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ElementChanged, ElementVerified, ExceptionReported
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.states import Phase
from trueup_common.contracts.topology import event_subject, task_subject
from trueup_common.runtime.ports import Moment
from trueup_reconciler.core.drift import Turned, close
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.settle import Step
from trueup_reconciler.core.settlement import Act, SettlementRow, SettlementState
from trueup_reconciler.core.visit import PaceRow, Round
from trueup_reconciler.store import Changed, Changes

SERVICE: Final = "reconciler"
ElementKey = tuple[str, str]
K = TypeVar("K")
V = TypeVar("V", SettlementRow, ElementRow)


class Desk:
    """Rows as loaded, as they stand now, and the messages that follow."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.settlements: dict[str, SettlementRow] = {}
        self.elements: dict[ElementKey, ElementRow] = {}
        self.obligations: dict[str, ObligationRow] = {}
        self._stored_settlements: dict[str, SettlementRow] = {}
        self._stored_elements: dict[ElementKey, ElementRow] = {}
        self._stored_obligations: dict[str, ObligationRow] = {}
        self._paces: tuple[PaceRow, ...] = ()
        self._seen: set[ElementKey] = set()
        self._displaced: list[ElementRow] = []
        self._outgoing: list[Outgoing] = []

    def load_settlements(self, rows: Iterable[SettlementRow]) -> None:
        """Take loaded settlements."""
        self._stored_settlements.update((row.command_id, row) for row in rows)
        self.settlements.update(self._stored_settlements)

    def load_elements(self, rows: Iterable[ElementRow]) -> None:
        """Take loaded elements."""
        self._stored_elements.update(((row.object_key, row.element), row) for row in rows)
        self.elements.update(self._stored_elements)

    def load_obligations(self, rows: Iterable[ObligationRow]) -> None:
        """Take loaded obligations."""
        self._stored_obligations.update((row.obligation_id, row) for row in rows)
        self.obligations.update(self._stored_obligations)

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
        if turned.changed:
            self.elements[key] = row
            self._seen.add(key)
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
        if turned.closed is not None:
            obligation = self.obligations.get(turned.closed[0])
            if obligation is not None and obligation.status == "open":
                closed = close(obligation, turned.closed[1], self.moment.business)
                self._report(closed, turned.closed_for or row)

    def visited(self, planned: Round) -> None:
        """Take planned visits."""
        self.elements.update(((row.object_key, row.element), row) for row in planned.elements)
        self._paces = planned.paces
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
            obligations=_split(self.obligations, self._stored_obligations),
            paces=Changed(
                new=tuple(row.evolve(state_version=1) for row in self._paces if row.state_version == 0),
                moved=tuple(
                    row.evolve(state_version=row.state_version + 1) for row in self._paces if row.state_version > 0
                ),
            ),
            finished=tuple(self._finished()),
            turned=tuple(self._phases()),
        )

    def _finished(self) -> Iterator[SettlementRow]:
        for row in self.settlements.values():
            before = self._stored_settlements.get(row.command_id)
            if row.state is SettlementState.DONE and (before is None or before.state is not SettlementState.DONE):
                yield row

    def _phases(self) -> Iterator[ElementRow]:
        for key, row in self.elements.items():
            before = self._stored_elements.get(key)
            if before is None or before.phase is not row.phase:
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
        self.obligations[obligation.obligation_id] = obligation
        event = ExceptionReported(
            reported_by=SERVICE,
            obligation=obligation,
            command_type=row.command_type,
            target_system=row.system,
            target_resource=row.resource,
            trace_id=row.origin.get("trace_id"),
        )
        message_id = f"{obligation.obligation_id}:{obligation.version}"
        self.send(message_id, event, event_subject(SERVICE, "exception", row.tenant), row.tenant, row.traceparent)

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


def _moved(now: dict[K, V], stored: dict[K, V]) -> Changed[V]:
    new = [row.evolve(state_version=1) for key, row in now.items() if key not in stored]
    moved = [
        row.evolve(state_version=stored[key].state_version + 1)
        for key, row in now.items()
        if key in stored and row is not stored[key]
    ]
    return Changed(tuple(new), tuple(moved))


def _split(now: dict[str, ObligationRow], stored: dict[str, ObligationRow]) -> Changed[ObligationRow]:
    new = tuple(row for key, row in now.items() if key not in stored)
    moved = tuple(row for key, row in now.items() if key in stored and row is not stored[key])
    return Changed(new, moved)
