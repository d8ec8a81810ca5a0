"""The desk: exceptions, repairs and incidents of one transaction, moved together, each saved and told once.

Deterministic bookkeeping between the pure cores and the store: no I/O, no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ExceptionReported,
    MessageQuarantined,
    OperatorCommand,
    OperatorCommandEnded,
)
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.ports import Moment
from trueup_repair_planner.core import course, incident, lifecycle, operators
from trueup_repair_planner.core import repair as repairs
from trueup_repair_planner.core.incident import HOLDING, Alarm, IncidentRow, causes_of
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow, Stage
from trueup_repair_planner.core.plan import (
    PLANNER,
    asked,
    in_its_turn,
    left_to_case,
    plan,
    routed,
    subject_of_row,
    waits,
)
from trueup_repair_planner.core.playbook import Action, Playbooks, facts_of
from trueup_repair_planner.core.probe import Standing, turn
from trueup_repair_planner.core.repair import UNSENT, RepairRow, Status
from trueup_repair_planner.core.telling import exception_told

SOURCE: Final = "planner"
DID_NOT_HOLD: Final = "did_not_hold"
R = TypeVar("R", ExceptionRow, RepairRow, IncidentRow)


@dataclass(frozen=True, slots=True)
class Rules:
    """By what the planner goes: who owns what nobody was named for, the playbooks, and when many are one."""

    duty: Duty
    playbooks: Playbooks
    alarm: Alarm


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be saved, each as (new, moved)."""

    exceptions: tuple[list[ExceptionRow], list[ExceptionRow]]
    repairs: tuple[list[RepairRow], list[RepairRow]]
    incidents: tuple[list[IncidentRow], list[IncidentRow]]


class Desk:
    """Rows as loaded, as they stand now, and the messages that follow."""

    def __init__(self, moment: Moment, rules: Rules) -> None:
        self.moment = moment
        self.now = moment.business
        self.rules = rules
        self.exceptions: dict[str, ExceptionRow] = {}
        self.repairs: dict[str, RepairRow] = {}
        self.incidents: dict[str, IncidentRow] = {}
        self.opened: list[str] = []
        """Incidents that opened just now: what they hold may have to be loaded."""
        self._stored: dict[str, Any] = {}
        self._ended: list[OperatorCommandEnded] = []

    def load(
        self,
        exceptions: Iterable[ExceptionRow] = (),
        repairs_: Iterable[RepairRow] = (),
        incidents: Iterable[IncidentRow] = (),
    ) -> None:
        """Take loaded rows. What is on the desk already stays as it stands, what is new on it too: where another
        replica stored that first, saving tells."""
        for row in exceptions:
            if row.exception_id not in self.exceptions:
                self.exceptions[row.exception_id] = self._stored[row.exception_id] = row
        for repair in repairs_:
            if repair.repair_id not in self.repairs:
                self.repairs[repair.repair_id] = self._stored[repair.repair_id] = repair
        for item in incidents:
            if item.incident_id not in self.incidents:
                self.incidents[item.incident_id] = self._stored[item.incident_id] = item

    # -- what is told -----------------------------------------------------------------------------------------------

    def report(self, event: ExceptionReported, traceparent: str | None) -> None:
        """An exception was found, is known better, or is over."""
        name = lifecycle.exception_id(event.obligation.obligation_id)
        before = self.exceptions.get(name)
        row = lifecycle.report(before, event, now=self.now, duty=self.rules.duty, traceparent=traceparent)
        if row is not before:
            self.exceptions[name] = row
            self._follow(before, row)

    def quarantined(self, event: MessageQuarantined, traceparent: str | None) -> None:
        """A message that nobody could process."""
        name = lifecycle.exception_id(event.quarantine_id)
        before = self.exceptions.get(name)
        row = lifecycle.quarantined(before, event, now=self.now, duty=self.rules.duty, traceparent=traceparent)
        if row is not before:
            self.exceptions[name] = row
            self._follow(before, row)

    def operate(self, command: OperatorCommand) -> None:
        """An operator command that this service performs, or that it must know of."""
        repair = self._named(command)
        name = command.exception_id or (repair.exception_id if repair is not None else "")
        operators.take(self, command, self.exceptions.get(name), repair)

    def operator_ended(self, ended: OperatorCommandEnded) -> None:
        """How an operator command ended that some repair waits for."""
        for repair in [item for item in self.repairs.values() if item.operator_command_id == ended.operator_command_id]:
            row = self.exceptions.get(repair.exception_id)
            if row is not None and repair.status is Status.VERIFYING and repair.request is None:
                operators.heard_end(self, row, repair, ended)

    def overdue(self, row: ExceptionRow) -> None:
        """The deadline of an exception passed: what was left to its case is so no more."""
        late = lifecycle.overdue(row, now=self.now, duty=self.rules.duty)
        self.exceptions[row.exception_id] = late
        if left_to_case(row) and not left_to_case(late):
            self.plan(late)

    @property
    def duty(self) -> Duty:
        """Who owns what nobody was named for."""
        return self.rules.duty

    # -- moves ------------------------------------------------------------------------------------------------------

    def put(self, row: ExceptionRow, repair: RepairRow | None = None) -> None:
        """Both as they stand now; a repair that ended is told to the person who asked for it."""
        self.exceptions[row.exception_id] = row
        if repair is None:
            return
        before = self.repairs.get(repair.repair_id)
        self.repairs[repair.repair_id] = repair
        waited_for = repair.operator_command_id if repair.request is not None else None
        if waited_for is not None and not repair.in_flight and (before is None or before.in_flight):
            self.end(waited_for, repair.tenant, operators.result_of(repair), repair.error_detail)

    def fail(self, row: ExceptionRow, repair: RepairRow, code: str, detail: str | None = None) -> None:
        """A repair was refused or did not hold: the next one is planned, or a person gets it."""
        row, repair = course.failed(row, repair, code, detail, self.now)
        self.put(row, repair)
        if row.status == "open":
            self.plan(row)

    def escalate(self, row: ExceptionRow, repair: RepairRow) -> None:
        """A repair that governance refused: another try would be refused as well."""
        if row.status == "open" and repair.status is Status.FAILED:
            repair = repairs.advance(repair, repairs.Step.ESCALATE, self.now, PLANNER, {"reason": repair.error_code})
            row, repair = course.planned(row, repair, now=self.now, duty=self.rules.duty)
            self.put(row, repair)

    def plan(self, row: ExceptionRow) -> None:
        """Plan the next repair of an open exception that has none in flight."""
        known = list(self.repairs.values())
        if row.status != "open" or row.lifecycle is not Stage.ASSIGNED:
            return
        if any(item.exception_id == row.exception_id and item.in_flight for item in known):
            return
        subject = subject_of_row(row)
        history = [item for item in known if item.tenant == row.tenant and item.subject_key == subject]
        planned = plan(row, history, self.rules.playbooks, now=self.now).repair
        if planned is None or planned.status.value == row.repair_status == Status.ESCALATED.value:
            return  # nothing to do, or a person has it already
        holding = self._holding(row)
        if holding is not None:
            waits = planned.status is Status.PLANNED and not planned.approval_required
            held = {"held": True, "due_at": None} if waits else {}
            planned = planned.evolve(incident_id=holding.incident_id, **held)
        self.put(*course.planned(row, planned, now=self.now, duty=self.rules.duty))

    def by_person(self, row: ExceptionRow, action: str, actor: str) -> RepairRow:
        """A repair that a person asks for beyond what was planned; not put on the desk yet."""
        subject = subject_of_row(row)
        known = [item for item in self.repairs.values() if item.tenant == row.tenant]
        history = [item for item in known if item.subject_key == subject]
        return asked(row, history, self.rules.playbooks, action=action, actor=actor, now=self.now)

    def hold(self, name: str) -> None:
        """An incident opened: what it is about shows it, and automatic repairs that have not begun wait."""
        item = self.incidents[name]
        for row in [row for row in self.exceptions.values() if row.exception_id in item.exceptions]:
            if row.status == "open":
                self.exceptions[row.exception_id] = row.evolve(incident_id=name)
        for repair in list(self.repairs.values()):
            if repair.exception_id in item.exceptions and repair.status is Status.PLANNED and not repair.held:
                held = {} if repair.approval_required else {"held": True, "due_at": None}
                self.repairs[repair.repair_id] = repair.evolve(incident_id=name, **held)

    def try_out(self, item: IncidentRow, counts: tuple[int, int, int], held: Sequence[RepairRow]) -> None:
        """An incident whose time has come; what it lets go is due at once."""
        probe = self.repairs.get(item.probe_repair_id or "")
        standing = Standing(*counts, held=held, probe=probe)
        moved, released = turn(item, standing, self.now, self.rules.alarm)
        self.incidents[item.incident_id] = moved
        self.repairs.update((repair.repair_id, repair) for repair in released)

    def end(
        self, command_id: str, tenant: str, result: dict[str, Any], detail: str | None, state: str = "DONE"
    ) -> None:
        """Tell how an operator command ended."""
        self._ended.append(
            OperatorCommandEnded(
                operator_command_id=command_id,
                tenant=tenant,
                state=state,
                detail=detail,
                result=result,
                ended_by="repair-planner",
                at=self.now,
            )
        )

    def _follow(self, before: ExceptionRow | None, row: ExceptionRow) -> None:
        mine = [item for item in self.repairs.values() if item.exception_id == row.exception_id and item.in_flight]
        if row.status == "closed":
            for repair in mine:
                self.put(*course.closed(self.exceptions[row.exception_id], repair, self.now))
            return
        fresh = before is None or before.status == "closed"
        if fresh:
            self._count_in(row)
            self._overtake(row)
        elif before is not None and not self._changed(before, row, mine):
            return
        self.plan(self.exceptions[row.exception_id])

    def _changed(self, before: ExceptionRow, row: ExceptionRow, mine: Sequence[RepairRow]) -> bool:
        """True where an open exception is known differently, so that what was planned for it is planned anew."""
        did_not_hold = row.envelope.get("held") is False
        missed = [item for item in mine if item.status is Status.VERIFYING and did_not_hold]
        for repair in missed:
            self.put(*course.failed(self.exceptions[row.exception_id], repair, DID_NOT_HOLD, None, self.now))
        anew = before.failure_class != row.failure_class or routed(before) != routed(row)
        for repair in (item for item in mine if item.status in UNSENT and anew):
            note = {"reason": "classified_anew"}
            gone = repairs.advance(repair, repairs.Step.WITHDRAW, self.now, PLANNER, note)
            self.put(course.mirror(self.exceptions[row.exception_id], gone), gone)
        if not anew and bool(waits(before)) != bool(waits(row)):
            for repair in (item for item in mine if item.runs_by_itself):
                self.put(self.exceptions[row.exception_id], in_its_turn(repair, row, self.now))
        taken_up = left_to_case(before) and not left_to_case(row)
        return bool(missed) or anew or taken_up

    def _overtake(self, row: ExceptionRow) -> None:
        """The same work is in trouble again: what was sent to mend it did not hold."""
        subject = subject_of_row(row)
        same = [item for item in self.repairs.values() if item.tenant == row.tenant and item.subject_key == subject]
        sent = [item for item in same if item.status is Status.VERIFYING and item.exception_id != row.exception_id]
        facts = facts_of(row.kind, row.failure_class, row.envelope, 0)
        if not sent or self.rules.playbooks.choose(facts).action is Action.NONE:
            return
        for repair in sent:
            other = self.exceptions.get(repair.exception_id)
            if other is not None:
                code = str(row.envelope.get("failure_code") or row.kind)
                self.put(*course.failed(other, repair, code, None, self.now))

    def _count_in(self, row: ExceptionRow) -> None:
        named = {
            "exception_id": row.exception_id,
            "tenant": row.tenant,
            "system": row.envelope.get("target_system"),
            "command_type": row.envelope.get("command_type"),
            "workflow_id": row.workflow_id,
        }
        for cause in causes_of(row.envelope):
            before = self._incident(row.tenant, cause.key())
            item = incident.heard(before, cause, named, self.now, self.rules.alarm, self.rules.duty.escalation_owner)
            self.incidents[item.incident_id] = item
            if item.status in HOLDING and (before is None or before.status not in HOLDING):
                self.opened.append(item.incident_id)
            if item.status in incident.ONGOING:
                self.exceptions[row.exception_id] = self.exceptions[row.exception_id].evolve(
                    incident_id=item.incident_id
                )

    def _incident(self, tenant: str, key: str) -> IncidentRow | None:
        found = [item for item in self.incidents.values() if (item.tenant, item.cause_key) == (tenant, key)]
        return max(found, key=lambda item: item.number, default=None)

    def _holding(self, row: ExceptionRow) -> IncidentRow | None:
        found = (self._incident(row.tenant, cause.key()) for cause in causes_of(row.envelope))
        return next((item for item in found if item is not None and item.status in HOLDING), None)

    def _named(self, command: OperatorCommand) -> RepairRow | None:
        """The repair that an operator command is about: the one in flight for its exception, else the one it names.

        Word of a command may come when the repair that asked for it is over and the next one is planned.
        """
        named = self.repairs.get(command.repair_id or "")
        if named is not None and named.in_flight:
            return named
        name = command.exception_id or (named.exception_id if named is not None else None)
        mine = (item for item in self.repairs.values() if item.exception_id == name)
        return next((item for item in mine if item.in_flight), named)

    # -- what follows -----------------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """What is to be saved; every changed row moves by one version."""
        return Changes(
            exceptions=self._moved(self.exceptions),
            repairs=self._moved(self.repairs),
            incidents=self._moved(self.incidents),
        )

    def _moved(self, rows: dict[str, R]) -> tuple[list[R], list[R]]:
        new: list[R] = []
        moved: list[R] = []
        for name, row in rows.items():
            before = self._stored.get(name)
            if before is None:
                new.append(row.evolve(version=1))
            elif row is not before:
                moved.append(row.evolve(version=before.version + 1))
        return new, moved

    def outgoing(self, changes: Changes) -> list[Outgoing]:
        """What is to be told of the changes."""
        told = [
            self._message("exception", f"{row.exception_id}:{row.version}", exception_told(row), row.traceparent)
            for rows in changes.exceptions
            for row in rows
        ]
        told += [
            self._message("repair", f"{row.repair_id}:{row.version}", repairs.told(row), row.traceparent)
            for rows in changes.repairs
            for row in rows
            if self._is_news(row)
        ]
        told += [
            self._message("incident", f"{row.incident_id}:{row.version}", incident.told(row), None)
            for rows in changes.incidents
            for row in rows
            if row.status is not incident.Status.WATCHED
        ]
        told += [
            self._message("operator-ended", f"{item.operator_command_id}:ended", item, None) for item in self._ended
        ]
        return told

    def _is_news(self, row: RepairRow) -> bool:
        """False where only the next look at it was put off."""
        before = self._stored.get(row.repair_id)
        if before is None:
            return True
        silent = {"due_at": None, "calls_count": 0, "version": 0}
        return bool(row.evolve(**silent) != before.evolve(**silent))

    def _message(self, kind: str, message_id: str, body: BaseModel, traceparent: str | None) -> Outgoing:
        tenant = str(getattr(body, "tenant"))  # noqa: B009 - every event of the planner has one
        return Outgoing(
            Message(
                id=message_id,
                type=type(body).__name__,
                subject=event_subject(SOURCE, kind, tenant),
                tenant=tenant,
                source=SOURCE,
                time=self.moment.real,
                data=json_bytes(body),
                traceparent=traceparent,
            )
        )
