"""Glue: load the rows that a batch is about, let the cores decide, save, and answer what is to be sent."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from trueup_common.contracts import survey
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import Established, OperatorCommand, RepairChanged, Retired, SettleRequested
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.operators import PLANNER, OperatorAction
from trueup_common.contracts.states import ExceptionKind, ProbeVerdict
from trueup_common.contracts.task import Found, Observed
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_reconciler.core import drift, order, repairs, settle, visit
from trueup_reconciler.core.element import ElementRow, object_key
from trueup_reconciler.core.retire import LET_GO, let_go, retire
from trueup_reconciler.desk import SERVICE, Desk
from trueup_reconciler.lookout import Lookout
from trueup_reconciler.store import ReconcilerTransaction

Body = SettleRequested | Found | Established | Retired | Observed | RepairChanged | OperatorCommand

MODELS: Final[dict[str, type[Body]]] = {
    "SettleRequested": SettleRequested,
    "Found": Found,
    "Established": Established,
    "Retired": Retired,
    "Observed": Observed,
    "RepairChanged": RepairChanged,
    "OperatorCommand": OperatorCommand,
}
DUE_LIMIT: Final = 200

T = TypeVar("T", bound=ReconcilerTransaction)


def read(message: Message) -> Body:
    """The body of a message. Raises Unprocessable for what cannot be read or speaks for another tenant."""
    model = MODELS.get(message.type)
    if model is None:
        raise Unprocessable(f"unexpected type {message.type}")
    try:
        body = model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable {message.type}: {error.error_count()} errors") from error
    tenant = body.operation.tenant if isinstance(body, SettleRequested) else body.tenant
    if tenant != message.tenant:
        raise Unprocessable("the body speaks for another tenant than its envelope")
    return body


class EventsHandler:
    """Events → settlements and elements. Fences, visit ids and ranks keep duplicates out, so there is no inbox."""

    inbox = False

    def __init__(
        self,
        terms: drift.Terms | None = None,
        pace: visit.Pace | None = None,
        lookout: Lookout | None = None,
    ) -> None:
        self.terms = terms or drift.Terms()
        self.pace = pace or visit.Pace()
        self.lookout = lookout or Lookout()

    async def handle(
        self, tx: ReconcilerTransaction, moment: Moment, messages: Sequence[Message]
    ) -> Sequence[Outgoing]:
        """Fold a batch in the order of delivery."""
        read_messages = [(message, read(message)) for message in messages]
        bodies = [body for _, body in read_messages]
        desk = Desk(moment)
        await _load(tx, desk, bodies)
        await self.lookout.load(tx, desk, bodies)
        for message, body in read_messages:
            self._fold(desk, body, message)
        await _visit(tx, desk, self.pace)
        await tx.save(desk.changes())
        return desk.outgoing()

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""

    def _fold(self, desk: Desk, body: Body, message: Message) -> None:
        match body:
            case SettleRequested():
                self._requested(desk, body, message)
            case Found():
                self._found(desk, body)
            case Established():
                self._established(desk, body, message)
            case Retired():
                self._retired(desk, body, message)
            case Observed():
                self._observed(desk, body)
            case RepairChanged():
                self._repaired(desk, body)
            case OperatorCommand():
                self._asked(desk, body, message)

    def _requested(self, desk: Desk, body: SettleRequested, message: Message) -> None:
        moment, row = desk.moment, desk.settlements.get(body.operation.command_id)
        if row is not None and row.tenant != body.operation.tenant:
            raise Unprocessable("the operation belongs to another tenant")
        first = None
        if settle.is_new(row, body):
            first = desk.slot(visit.find_pace_key(body.operation.tenant, body.operation.target.system), self.pace)
        step = settle.request(
            row,
            body,
            business=moment.business,
            real=moment.real,
            traceparent=message.traceparent,
            not_before=first,
        )
        desk.settled(step, message.id)

    def _found(self, desk: Desk, body: Found) -> None:
        row = desk.settlements.get(body.command_id)
        if row is None:
            return
        if row.tenant != body.tenant:
            raise Unprocessable("the operation belongs to another tenant")
        desk.settled(settle.found(row, body, business=desk.moment.business, real=desk.moment.real))

    def _established(self, desk: Desk, body: Established, message: Message) -> None:
        for item in body.elements:
            row = desk.elements.get((object_key(body.tenant, body.system, item.resource), item.element))
            now = desk.moment.business
            turned = drift.establish(row, body, item, now=now, traceparent=message.traceparent)
            desk.turned(turned)
            self.lookout.met(desk, turned.row)

    def _retired(self, desk: Desk, body: Retired, message: Message) -> None:
        for resource, element in body.elements:
            row = desk.elements.get((object_key(body.tenant, body.system, resource), element))
            desk.turned(retire(row, body, resource, element, traceparent=message.traceparent))

    def _observed(self, desk: Desk, body: Observed) -> None:
        if body.resource == survey.RESOURCE:
            self.lookout.listed(desk, body)
            return
        key = object_key(body.tenant, body.system, body.resource)
        by_element = {seen.element: seen for seen in body.observations}
        for row in [row for (owner, _), row in desk.elements.items() if owner == key]:
            if row.visit_id != body.visit_id:
                continue
            seen = by_element.get(row.element) or Observation(
                element=row.element,
                verdict=ProbeVerdict.UNKNOWN,
                observed_at=body.observed_at,
                source=body.system,
                reason="not_in_answer",
            )
            if self.lookout.takes(desk, row, seen):
                continue
            now = desk.moment.business
            others = desk.elements.values() if row.downstream_of else ()
            first = order.ahead(row, seen.observed_at, others, now)
            turned = drift.observe(row, seen, now=now, terms=self.terms, ahead=first.names)
            desk.turned(turned)
            if turned.row.waits_for:
                desk.awaited(first.to_look)

    def _repaired(self, desk: Desk, body: RepairChanged) -> None:
        row = _element(desk, body.tenant, body.drift)
        if row is not None:
            desk.turned(repairs.heard(row, body, now=desk.moment.business, budget=self.terms.budget))

    def _asked(self, desk: Desk, body: OperatorCommand, message: Message) -> None:
        row, now = _element(desk, body.tenant, body.element), desk.moment.business
        if body.action == OperatorAction.REPAIR and body.exception_kind == ExceptionKind.STATE_DRIFT:
            if row is not None:
                desk.turned(repairs.allowed_again(row, now, self.terms.budget))
        elif body.action == OperatorAction.RECONCILE and body.performer == SERVICE:
            if row is None or row.next_visit_at is None:
                desk.refuse(body, "nothing is desired of this element", message.traceparent)
                return
            look = {"operator_command_id": body.operator_command_id, "traceparent": message.traceparent or ""}
            desk.turned(repairs.asked(row, look, now))
        elif body.action == OperatorAction.MARK_RESOLVED and body.performer == SERVICE:
            if row is None or row.obligation_id is None:
                desk.refuse(body, "it has not drifted any more", message.traceparent)
                return
            desk.turned(let_go(row, body))
            desk.ended(
                body.operator_command_id,
                body.tenant,
                result={"resolution_type": LET_GO},
                traceparent=message.traceparent,
            )
        elif body.action == OperatorAction.MARK_RESOLVED and body.performer == PLANNER and body.obligation_id:
            desk.marked(body.obligation_id, body.actor)


class Ticks:
    """What the reconciler does by itself when time has come."""

    def __init__(self, pace: visit.Pace | None = None) -> None:
        self.pace = pace or visit.Pace()

    async def settlements(self, tx: ReconcilerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Look again for outcomes that are still unknown, or give up."""
        desk = Desk(moment)
        rows = await tx.due_settlements(moment.business, DUE_LIMIT)
        desk.load_settlements(rows)
        keys = sorted({visit.find_pace_key(row.tenant, row.system) for row in rows})
        desk.load_paces(await tx.paces(keys) if keys else [])
        for row in rows:
            looks = settle.will_look(row, business=moment.business, real=moment.real)
            at = desk.slot(visit.find_pace_key(row.tenant, row.system), self.pace) if looks else moment.business
            if at > moment.business:
                desk.settlements[row.command_id] = row.evolve(next_at=at)
            else:
                desk.settled(settle.due(row, business=moment.business, real=moment.real))
        await tx.save(desk.changes())
        return desk.outgoing()

    async def visits(self, tx: ReconcilerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Visit objects whose elements are due, one probe per object."""
        desk = Desk(moment)
        desk.load_elements(await tx.due_elements(moment.business, DUE_LIMIT))
        await _visit(tx, desk, self.pace)
        await tx.save(desk.changes())
        return desk.outgoing()


def _element(desk: Desk, tenant: str, named: dict[str, Any] | None) -> ElementRow | None:
    """The element that a repair or an operator names."""
    place = _place(tenant, named)
    return desk.elements.get(place) if place is not None else None


def _place(tenant: str, named: dict[str, Any] | None) -> tuple[str, str] | None:
    parts = [named.get(part) for part in ("system", "resource", "element")] if named is not None else []
    if not parts or not all(isinstance(part, str) and part for part in parts):
        return None
    system, resource, element = map(str, parts)
    return object_key(tenant, system, resource), element


async def _load(tx: ReconcilerTransaction, desk: Desk, bodies: Sequence[Body]) -> None:
    commands: set[str] = set()
    objects: set[str] = set()
    for body in bodies:
        if isinstance(body, SettleRequested):
            commands.add(body.operation.command_id)
        elif isinstance(body, Found):
            commands.add(body.command_id)
        elif isinstance(body, Observed):
            objects.add(object_key(body.tenant, body.system, body.resource))
        elif isinstance(body, Retired):
            objects.update(object_key(body.tenant, body.system, resource) for resource, _ in body.elements)
        elif isinstance(body, RepairChanged | OperatorCommand):
            place = _place(body.tenant, body.drift if isinstance(body, RepairChanged) else body.element)
            objects.update(() if place is None else (place[0],))
        else:
            objects.update(object_key(body.tenant, body.system, item.resource) for item in body.elements)
    marked = [body.obligation_id for body in bodies if isinstance(body, OperatorCommand) and body.obligation_id]
    if marked:
        desk.load_obligations(await tx.obligations(sorted(set(marked))))
    if commands:
        desk.load_settlements(await tx.settlements(sorted(commands)))
    asked = [body.operation for body in bodies if isinstance(body, SettleRequested)]
    if asked:
        keys = {visit.find_pace_key(operation.tenant, operation.target.system) for operation in asked}
        desk.load_paces(await tx.paces(sorted(keys)))
    if objects:
        desk.load_elements(await tx.elements(sorted(objects)))
        await _load_siblings(tx, desk)
        open_drifts = {row.obligation_id for row in desk.elements.values() if row.obligation_id is not None}
        if open_drifts:
            desk.load_obligations(await tx.obligations(sorted(open_drifts)))


async def _load_siblings(tx: ReconcilerTransaction, desk: Desk) -> None:
    """The rest of the business objects in which one element's end may matter to another."""
    objects = {
        (row.tenant, row.object_type or "", row.object_id)
        for row in desk.elements.values()
        if row.object_id is not None and order.concerns(row)
    }
    if objects:
        desk.load_elements(await tx.siblings(sorted(objects)))


async def _visit(tx: ReconcilerTransaction, desk: Desk, pace: visit.Pace) -> None:
    now = desk.moment.business
    due = [row for row in desk.elements.values() if row.next_visit_at is not None and row.next_visit_at <= now]
    if not due:
        return
    paces = await tx.paces(sorted({visit.pace_key(row) for row in due}))
    desk.visited(visit.plan(due, {row.pace_key: row for row in paces}, pace, now))
