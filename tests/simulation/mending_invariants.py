"""What must hold of repairs, incidents, operators' acts and batches, and of effects that nobody manages.

Nothing here asks the code under judgement: the judge reads rows, and the world itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.memory import Change
from tests.simulation.verdict import demand
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.operators import CommandState, OperatorAction
from trueup_common.contracts.states import EffectClass, RiskLevel
from trueup_gateway.core.batches import BatchState, ItemState
from trueup_repair_planner.core.incident import Status as IncidentStatus
from trueup_repair_planner.core.repair import RepairRow, Status
from trueup_repair_planner.gateway_client import SUBJECT

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

OVER: Final = frozenset({Status.DONE, Status.WITHDRAWN, Status.ESCALATED})
HOLDING: Final = frozenset({IncidentStatus.OPEN, IncidentStatus.PROBING})
RIGHTS: Final = frozenset({OperatorAction.REDRIVE.value, OperatorAction.RECONCILE.value})
"""All that the planner's own identity may do as an operator."""
TAME: Final = frozenset({EffectClass.READ, EffectClass.COMPENSABLE, EffectClass.RETRYABLE})
CALM: Final = frozenset({RiskLevel.LOW, RiskLevel.MEDIUM})
UNMANAGED: Final = "unmanaged_effect"


def waits_for_a_person(repair: RepairRow) -> bool:
    """True for a repair that only a person lets begin."""
    return repair.status is Status.PLANNED and repair.due_at is None and not repair.held


class MendingJudge:
    """Watches repairs and whoever asks for them."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.checks: Counter[str] = Counter()

    # rows

    def repair(self, change: Change) -> None:
        """A repair."""
        before, after = change.before, change.after
        self.checks["repair"] += 1
        name = after.repair_id
        demand(bool(after.owner), f"{name}: nobody owns it")
        demand(after.in_flight or after.ended_at is not None, f"{name}: {after.status} without an end")
        if after.status is Status.VERIFYING:
            demand(after.verify_until is not None, f"{name}: is verified for ever")
        if before is None:
            return
        if before.status in OVER:
            demand(after.status is before.status, f"{name}: {before.status} became {after.status}")
        if before.status is Status.PLANNED and after.status is Status.EXECUTING:
            self._begins(before)
        if after.status is Status.DONE and before.status is not Status.DONE:
            self._done(after)

    def _begins(self, repair: RepairRow) -> None:
        """By itself a repair begins only where it may, and never beside an incident of its cause."""
        name, by_person = repair.repair_id, repair.operator_command_id is not None
        free = not repair.approval_required or by_person
        demand(free, f"{name}: begins although a person has it")
        demand(not repair.held, f"{name}: begins although it is held")
        incidents = self.plane.databases["repair-planner"].tables["incident"].rows
        incident = incidents.get((repair.incident_id,)) if repair.incident_id is not None else None
        if incident is None or by_person or incident.status not in HOLDING:
            return
        demand(incident.probe_repair_id == name, f"{name}: begins beside {incident.incident_id} ({incident.status})")

    def _done(self, repair: RepairRow) -> None:
        """Verification decides, not the answer: an element was seen to be healthy, an operation to have ended well."""
        exception = self.plane.databases["repair-planner"].tables["exception"].rows[repair.exception_id,]
        if repair.drift is not None:
            seen = exception.resolution_type == "observed_healthy"
            demand(seen, f"{repair.repair_id}: done, and {exception.exception_id} is {exception.resolution_type}")
            return
        looked = repair.repair_action == OperatorAction.RECONCILE
        row = self.plane.operation(exception.command_id) if exception.command_id is not None else None
        if row is not None and not looked:
            well = row.state.value in ("SUCCESS", "RESOLVED") or exception.kind in ("unknown_outcome", "stale_running")
            demand(well, f"{repair.repair_id}: done, and {row.command_id} is {row.state}")

    def incident(self, change: Change) -> None:
        """An incident lets go one to try, then a few at a time."""
        self.checks["incident"] += 1
        demand(bool(change.after.owner), f"{change.after.incident_id}: nobody owns it")
        demand(
            change.before is None or change.before.status is not IncidentStatus.CLOSED or change.after == change.before,
            f"{change.after.incident_id}: opened again",
        )

    def released(self, changes: list[Change]) -> None:
        """How many held repairs one commit lets go."""
        free = [
            item.after
            for item in changes
            if item.table == "repair" and item.before is not None and item.before.held and item.after.in_flight
        ]
        free = [row for row in free if not row.held and row.operator_command_id is None]
        by = Counter(row.incident_id for row in free)
        most = max(by.values(), default=0)
        demand(most <= self.plane.alarm.released_per_second, f"{most} held repairs are let go at once")

    def act(self, change: Change) -> None:
        """An operator's act is kept under a decision; how it ended is said once."""
        before, after = change.before, change.after
        self.checks["act"] += 1
        demand(bool(after.decision_id) and bool(after.reason), f"{after.operator_command_id}: without a decision")
        if after.actor == SUBJECT:
            demand(after.action in RIGHTS, f"the planner asked for {after.action}")
        if before is not None and before.state in (CommandState.DONE, CommandState.REFUSED):
            same = (before.state, before.result) == (after.state, after.result)
            demand(same, f"{after.operator_command_id}: ended twice")

    def batch_item(self, change: Change) -> None:
        """An item ends once, and says why where it did not end well."""
        before, after = change.before, change.after
        self.checks["batch item"] += 1
        ends = (ItemState.DONE, ItemState.FAILED, ItemState.SKIPPED)
        if before is not None and before.state in ends:
            demand(after.state == before.state, f"{after.batch_id}: item {after.position} ended twice")
        if after.state in (ItemState.FAILED, ItemState.SKIPPED):
            demand(bool(after.reason), f"{after.batch_id}: item {after.position} is {after.state} for no reason")
        if before is not None and before.operator_command_id is not None:
            same = after.operator_command_id == before.operator_command_id
            demand(same, f"{after.batch_id}: item {after.position} was asked for twice")

    # the end

    def unfound(self) -> str | None:
        """A forged object that stands and that nobody knows of, or that is gone and still is somebody's trouble. What a
        person looked into and let be is neither."""
        if not self.plane.surveyed:
            return None
        met = {(row.tenant, row.system) for row in self.plane.databases["reconciler"].rows("survey")}
        standing = {
            item.mark.operation_id
            for item in self.plane.world.marks
            if item.forged and (item.tenant, item.system) in met
        }
        owed = {row.command_id for row in self._unmanaged() if row.status == "open"}
        let_be = {row.command_id for row in self._unmanaged() if row.resolution_type == "marked_resolved"}
        wrong = sorted((standing - let_be) ^ owed)
        return wrong[0] if wrong else None

    def _unmanaged(self) -> list[Any]:
        rows = self.plane.databases["reconciler"].rows("obligation")
        return [row for row in rows if row.envelope.get("failure_code") == UNMANAGED]

    def settled(self) -> str | None:
        """None where no repair, act, batch or survey goes on."""
        planner, gateway = self.plane.databases["repair-planner"], self.plane.databases["gateway"]
        now = self.plane.engine.business()
        for repair in planner.tables["repair"].rows.values():
            if repair.in_flight and not waits_for_a_person(repair):
                return f"{repair.repair_id} of {repair.subject_key} is {repair.status}"
        for incident in planner.tables["incident"].rows.values():
            if incident.status in (IncidentStatus.PROBING, IncidentStatus.RECOVERING):
                return f"{incident.incident_id} is {incident.status}"
        for exception in planner.tables["exception"].rows.values():
            if exception.status == "open" and exception.deadline_at <= now:
                return f"{exception.exception_id} is overdue"
        for act in gateway.tables["operator_command"].rows.values():
            if act.state == CommandState.ACCEPTED:
                return f"{act.operator_command_id} ({act.action}) is at work"
        for batch in gateway.tables["operator_batch"].rows.values():
            if batch.ended_at is None:
                return f"{batch.batch_id} is {batch.state}"
        unfound = self.unfound()
        return f"nobody knows of {unfound}" if unfound is not None else None

    def final(self) -> None:
        """Every exception has an owner and a time; every repair is over or a person's; every batch adds up."""
        self._exceptions()
        self._planner_stays_narrow()
        self._asked_once()
        self._batches()
        self._survey()
        self._rewritten_for_ever()

    def _exceptions(self) -> None:
        planner, now = self.plane.databases["repair-planner"], self.plane.engine.business()
        repairs = planner.tables["repair"].rows
        for row in planner.rows("exception"):
            name = row.exception_id
            mine = [item for item in repairs.values() if item.exception_id == name and item.in_flight]
            demand(len(mine) <= 1, f"{name}: {len(mine)} repairs in flight")
            if row.status != "open":
                demand(not mine, f"{name}: closed, and {[item.repair_id for item in mine]} goes on")
                demand(bool(row.resolution_type) and bool(row.resolved_by), f"{name}: left silently")
                continue
            demand(bool(row.owner) and row.deadline_at > now, f"{name}: open without owner and time")
            shown = repairs.get((row.repair_id,)) if row.repair_id is not None else None
            doubt = row.kind in ("unknown_outcome", "stale_running")
            demand(shown is not None or doubt, f"{name}: open, no case undoes it any more, and nothing was planned")
            if shown is not None:
                demand(row.repair_status == shown.status.value, f"{name}: shows {row.repair_status}, is {shown.status}")

    def _planner_stays_narrow(self) -> None:
        """What the planner had done by commands is what its decisions were about, and of no graver kind."""
        gateway = self.plane.databases["gateway"]
        decisions = gateway.tables["decision"].rows
        for mandate in gateway.rows("mandate"):
            if mandate.subject != SUBJECT:
                continue
            decision, row = decisions[mandate.decision_id,], self.plane.operation(mandate.command_id)
            self.checks["repair command"] += 1
            name = f"{mandate.command_id}: the planner's command"
            demand(decision.subject == SUBJECT, f"{name} rests on another's decision")
            demand(
                row is not None and row.supersedes == decision.supersedes is not None, f"{name} replaces another one"
            )
            same = decision.payload_sha256 == digest(row.payload)
            same = same and (decision.system, decision.resource) == (row.target_system, row.target_resource)
            demand(same, f"{name} is not the one that was decided")
            tame = row.effect_class in TAME and decision.risk_level in CALM
            approved = decision.approved_at is not None
            demand(approved or (tame and decision.outcome == "approved"), f"{name} needed a person's approval")

    def _asked_once(self) -> None:
        """A repair has one approval, whoever of the planner died between the question and its answer; another one only
        where the decision behind it became too old."""
        repairs = self.plane.databases["repair-planner"].tables["repair"].rows
        rows = [row for row in self.plane.databases["gateway"].rows("approval") if row.requested_by == SUBJECT]
        asked = Counter(str(row.summary["purpose"]).partition(":")[0] for row in rows)
        for name, count in asked.items():
            self.checks["approval of a repair"] += 1
            most = 1 + repairs[name,].decisions_count
            demand(count <= most, f"{name}: asked {count} people's approvals")

    def _batches(self) -> None:
        gateway = self.plane.databases["gateway"]
        for batch in gateway.rows("operator_batch"):
            items = [row for row in gateway.rows("operator_batch_item") if row.batch_id == batch.batch_id]
            demand(batch.state in (BatchState.DONE, BatchState.STOPPED), f"{batch.batch_id} ended as {batch.state}")
            ended = [row for row in items if row.state in (ItemState.DONE, ItemState.FAILED, ItemState.SKIPPED)]
            demand(len(ended) == batch.total == len(items), f"{batch.batch_id}: {len(ended)} of {batch.total} ended")
            acts = [row.operator_command_id for row in items if row.operator_command_id is not None]
            asked = [row for row in gateway.rows("operator_command") if row.batch_id == batch.batch_id]
            same = sorted(acts) == sorted(row.operator_command_id for row in asked)
            demand(same, f"{batch.batch_id}: asked for {len(asked)}, keeps {len(acts)}")

    def _survey(self) -> None:
        """What is reported as nobody's was forged: nothing of ours is ever called unmanaged."""
        ours = {item.mark.operation_id for item in self.plane.world.marks if not item.forged}
        for row in self._unmanaged():
            demand(row.command_id not in ours, f"{row.command_id} is ours and was called unmanaged")

    def budgets_given_by_people(self) -> int:
        """How often somebody wanted drift repaired, whatever was tried before."""
        acts = self.plane.databases["gateway"].rows("operator_command")
        return sum(row.action == OperatorAction.REPAIR for row in acts)

    def _rewritten_for_ever(self) -> None:
        """A target that keeps what it wants is written to no more often than the budget and people say."""
        plane, stubborn = self.plane, self.plane.world.stubborn
        if not stubborn:
            return
        repairs, owners = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in plane.databases["orchestrator"].rows("operation"):
            declared = plane.declaration(row.command_type).establishes
            if any(item.element in stubborn for item in declared):
                place = (row.tenant, row.target_resource)
                (owners if row.supersedes is None else repairs)[place] += 1
                owners[place] += plane.outlives(row)
        fresh = self.budgets_given_by_people()
        for place, count in repairs.items():
            most = plane.budget.repairs_max * (owners[place] + fresh) + fresh
            demand(count <= most, f"{place}: {count} repairs of what the target rewrites for ever")
