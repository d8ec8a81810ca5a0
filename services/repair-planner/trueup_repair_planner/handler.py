"""Glue: reports of exceptions become rows with owner, deadline and repair; every change of a row is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ExceptionReported,
    MessageQuarantined,
    OperatorCommand,
    OperatorCommandEnded,
)
from trueup_common.contracts.states import ExceptionKind
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_repair_planner import playbooks
from trueup_repair_planner.core import course, lifecycle
from trueup_repair_planner.core.classify import class_of, envelope_of, envelope_of_message
from trueup_repair_planner.core.incident import Alarm, causes_of
from trueup_repair_planner.core.lifecycle import Duty
from trueup_repair_planner.core.plan import left_to_case, subject_of, subject_of_row
from trueup_repair_planner.core.playbook import Playbooks, read_playbooks
from trueup_repair_planner.core.repair import RepairRow
from trueup_repair_planner.desk import Desk, Rules
from trueup_repair_planner.store import PlannerTransaction

DUE_LIMIT: Final = 200
INCIDENT_LIMIT: Final = 20

Body = ExceptionReported | MessageQuarantined | OperatorCommand | OperatorCommandEnded

MODELS: Final[dict[str, type[Body]]] = {
    "ExceptionReported": ExceptionReported,
    "MessageQuarantined": MessageQuarantined,
    "OperatorCommand": OperatorCommand,
    "OperatorCommandEnded": OperatorCommandEnded,
}


@lru_cache(maxsize=1)
def shipped() -> Playbooks:
    """The playbooks that ship with the product, linted once. Raises PlaybooksInvalid."""
    return read_playbooks(playbooks.texts())


def rules_of(duty: Duty | None = None, alarm: Alarm | None = None) -> Rules:
    """The rules with the playbooks that ship with the product. Raises PlaybooksInvalid."""
    return Rules(duty or Duty(), shipped(), alarm or Alarm())


def read(message: Message) -> Body:
    """The body of a message. Raises Unprocessable for what cannot be read or speaks for another tenant."""
    model = MODELS.get(message.type)
    if model is None:
        raise Unprocessable(f"unexpected type {message.type}")
    try:
        body = model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable {message.type}: {error.error_count()} errors") from error
    tenant = body.obligation.tenant if isinstance(body, ExceptionReported) else body.tenant
    if tenant != message.tenant:
        raise Unprocessable("the body speaks for another tenant than its envelope")
    if isinstance(body, ExceptionReported) and body.obligation.kind not in set(ExceptionKind):
        raise Unprocessable(f"unknown kind of exception {body.obligation.kind}")
    return body


@dataclass(slots=True)
class _Wanted:
    """What a batch is about: what has to be on the desk before it is folded."""

    exceptions: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    operator_commands: set[str] = field(default_factory=set)
    causes: set[tuple[str, str]] = field(default_factory=set)

    def add(self, body: Body) -> None:
        match body:
            case ExceptionReported():
                self.exceptions.add(lifecycle.exception_id(body.obligation.obligation_id))
                self.subjects.add(subject_of(body))
                self.causes |= _causes(body.obligation.tenant, envelope_of(body, class_of(body)))
            case MessageQuarantined():
                self.exceptions.add(lifecycle.exception_id(body.quarantine_id))
                self.causes |= _causes(body.tenant, envelope_of_message(body))
            case OperatorCommand():
                self.exceptions |= {body.exception_id} if body.exception_id is not None else set()
                self.operator_commands.add(body.operator_command_id)
            case OperatorCommandEnded():
                self.operator_commands.add(body.operator_command_id)


def _causes(tenant: str, envelope: dict[str, object]) -> set[tuple[str, str]]:
    return {(tenant, cause.key()) for cause in causes_of(envelope)}


class EventsHandler:
    """Reports → exceptions and their repairs. Versions keep duplicates and old reports out, so there is no inbox."""

    inbox = False

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or rules_of()

    async def handle(self, tx: PlannerTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Fold a batch in the order of delivery."""
        bodies = [(message, read(message)) for message in messages]
        desk = Desk(moment, self.rules)
        await self._load(tx, desk, [body for _, body in bodies])
        for message, body in bodies:
            self._check_tenant(desk, message, body)
            match body:
                case ExceptionReported():
                    desk.report(body, message.traceparent)
                case MessageQuarantined():
                    desk.quarantined(body, message.traceparent)
                case OperatorCommand():
                    desk.operate(body)
                case OperatorCommandEnded():
                    desk.operator_ended(body)
        await hold(tx, desk)
        return await keep(tx, desk)

    async def _load(self, tx: PlannerTransaction, desk: Desk, bodies: Sequence[Body]) -> None:
        wanted = _Wanted()
        for body in bodies:
            wanted.add(body)
        # Exceptions are read before their repairs: whatever moves a repair moves its exception, too, so what another
        # replica commits in between makes the exception stale, and saving tells. The other way round a repair that
        # was planned in between would be on no desk, and would outlive its exception.
        told = await self._told_of(tx, bodies, wanted)
        names = wanted.exceptions | {repair.exception_id for repair in told if repair.in_flight}
        exceptions = await tx.exceptions(sorted(names))
        names |= {row.exception_id for row in exceptions}
        subjects = wanted.subjects | {subject_of_row(row) for row in exceptions} | {item.subject_key for item in told}
        repairs = await tx.related_repairs(sorted(subjects), sorted(names), sorted(wanted.operator_commands))
        wanted.causes |= {cause for row in exceptions for cause in _causes(row.tenant, row.envelope)}
        desk.load(exceptions, [*repairs, *told], await tx.incidents_of(sorted(wanted.causes)))

    @staticmethod
    async def _told_of(tx: PlannerTransaction, bodies: Sequence[Body], wanted: _Wanted) -> list[RepairRow]:
        """Repairs that messages name by themselves or by the operator command that they wait for."""
        named = [body.repair_id for body in bodies if isinstance(body, OperatorCommand) and body.repair_id is not None]
        repairs = await tx.repairs(sorted(named)) if named else []
        if wanted.operator_commands:
            repairs += await tx.related_repairs([], [], sorted(wanted.operator_commands))
        return repairs

    @staticmethod
    def _check_tenant(desk: Desk, message: Message, body: Body) -> None:
        if not isinstance(body, ExceptionReported | MessageQuarantined):
            return
        name = body.quarantine_id if isinstance(body, MessageQuarantined) else body.obligation.obligation_id
        row = desk.exceptions.get(lifecycle.exception_id(name))
        if row is not None and row.tenant != message.tenant:
            raise Unprocessable("the exception belongs to another tenant")

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""


class Ticks:
    """What the planner does by itself when time has come."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or rules_of()

    async def deadlines(self, tx: PlannerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Escalate exceptions whose deadline passed."""
        desk = Desk(moment, self.rules)
        late = await tx.overdue_exceptions(moment.business, DUE_LIMIT)
        desk.load(late)
        left = [row for row in late if left_to_case(row)]
        if left:  # what nobody planned so far is planned now
            subjects, names = {subject_of_row(row) for row in left}, {row.exception_id for row in left}
            causes = {cause for row in left for cause in _causes(row.tenant, row.envelope)}
            repairs = await tx.related_repairs(sorted(subjects), sorted(names))
            desk.load((), repairs, await tx.incidents_of(sorted(causes)))
        for row in late:
            desk.overdue(row)
        return await keep(tx, desk)

    async def verifications(self, tx: PlannerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Repairs that nobody saw to hold within their time."""
        late = await tx.unverified_repairs(moment.business, DUE_LIMIT)
        if not late:
            return ()
        desk = await desk_of(tx, moment, self.rules, late)
        for repair in late:
            row = desk.exceptions.get(repair.exception_id)
            if row is not None:
                desk.fail(row, repair, course.UNVERIFIED)
        return await keep(tx, desk)

    async def incidents(self, tx: PlannerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Try out whether an incident is over, and let go what it held, a few at a time."""
        due = await tx.due_incidents(moment.business, INCIDENT_LIMIT)
        if not due:
            return ()
        desk = Desk(moment, self.rules)
        counts = await tx.incident_counts([item.incident_id for item in due])
        probes = await tx.repairs([item.probe_repair_id for item in due if item.probe_repair_id is not None])
        desk.load((), probes, due)
        for item in due:
            held = await tx.held_repairs(item.incident_id, self.rules.alarm.released_per_second)
            desk.load((), held)
            desk.try_out(item, counts[item.incident_id], held)
        return await keep(tx, desk)


async def desk_of(tx: PlannerTransaction, moment: Moment, rules: Rules, due: Sequence[RepairRow]) -> Desk:
    """The desk with what a round of repairs may need: their exceptions, and all that was tried there before."""
    desk = Desk(moment, rules)
    exceptions = await tx.exceptions(sorted({repair.exception_id for repair in due}))
    subjects = {repair.subject_key for repair in due} | {subject_of_row(row) for row in exceptions}
    desk.load((), due)
    if due:
        causes = {cause for row in exceptions for cause in _causes(row.tenant, row.envelope)}
        desk.load(exceptions, await tx.related_repairs(sorted(subjects), []), await tx.incidents_of(sorted(causes)))
    return desk


async def hold(tx: PlannerTransaction, desk: Desk) -> None:
    """Incidents that opened in this transaction reach back for what was planned before them."""
    for name in desk.opened:
        members = desk.incidents[name].exceptions
        desk.load(await tx.exceptions(members), await tx.related_repairs([], members))
        desk.hold(name)
    desk.opened.clear()


async def keep(tx: PlannerTransaction, desk: Desk) -> list[Outgoing]:
    """Save what changed, each row by one version; answers what is to be told."""
    changes = desk.changes()
    if any(rows for pair in (changes.exceptions, changes.repairs, changes.incidents) for rows in pair):
        await tx.save(changes.exceptions, changes.repairs, changes.incidents)
    return desk.outgoing(changes)
