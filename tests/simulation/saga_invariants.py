"""What must hold of workflows in every step, and at their end. The judge looks at documents, rows and the world itself.

It works out for itself what may be undone, and in which order; nothing here asks the code under judgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.declarations import BY_TYPE
from tests.simulation.memory import Change
from tests.simulation.moves import moved
from tests.simulation.verdict import P3, demand, demand_p3
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    SETTLED,
    CompensationState,
    EffectClass,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.workflow import Direction, Reaction, StepPhase, WorkflowDocument

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

S: Final = OperationState
PIVOTAL: Final = frozenset({EffectClass.PIVOT, EffectClass.IRREVERSIBLE})
PERSONS: Final = frozenset({S.FAILED, S.CONFLICT, S.DEAD_LETTERED, S.NEEDS_REVIEW})
OUT: Final = frozenset({S.DISPATCHING, S.RUNNING, S.OUTCOME_UNKNOWN, S.ORPHAN_SUSPECTED, S.RECONCILING})
"""An attempt is out, or nobody knows."""
UNDONE: Final = frozenset({InstanceStatus.COMPENSATED, InstanceStatus.CANCELLED})
TURNS: Final = {
    (Direction.BACKWARD, Direction.PERSON),  # the pivot landed after all
    (Direction.PERSON, Direction.BACKWARD),  # cancelled or undone out of a person's hands, before any pivot
    (Direction.PERSON, Direction.FORWARD),  # handed back
}


def is_out(row: JournalRow) -> bool:
    """True while an attempt may be under way: proposed, in flight or unknown."""
    return row.state in OUT or row.proposed


def on_its_way(row: JournalRow) -> bool:
    """True while something may still happen by itself."""
    return row.state not in SETTLED and row.state not in PERSONS


def own(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """The steps' own operations."""
    return [row for row in rows if row.compensates is None]


def is_replaced(row: JournalRow, rows: Iterable[JournalRow]) -> bool:
    """True for an operation without effect whose step began anew."""
    return row.state in (S.FAILED, S.CANCELLED) and any(other.supersedes == row.command_id for other in rows)


def needs(document: WorkflowDocument, step_id: str) -> set[str]:
    """All steps that come before a step."""
    found: set[str] = set()
    ahead = list(document.needs[step_id])
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += document.needs[each]
    return found


def _begins(before: Mapping[str, Any] | None, state: Mapping[str, Any]) -> bool:
    """True where a step has just begun, for the first time or anew."""
    if state["phase"] not in (StepPhase.RUNNING, StepPhase.DONE, StepPhase.WAITING):
        return False
    idle = before is None or before["phase"] not in (StepPhase.RUNNING, StepPhase.DONE, StepPhase.WAITING)
    return idle or (before is not None and before["generation"] != state["generation"])


class SagaJudge:
    """Watches workflows."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def _hold(self, phrase: P3, holds: bool, text: str) -> None:
        self.plane.judge.checks[phrase] += 1
        demand_p3(phrase, holds, text)

    # rows

    def case(
        self, instance: InstanceRow, rows: Sequence[JournalRow], owing: Sequence[Any], changes: Sequence[Change]
    ) -> None:
        """One case after one commit."""
        name, document = instance.workflow_id, self.plane.documents[instance.definition]
        before = next((item.before for item in changes if item.table == "instance"), instance)
        demand(sorted(instance.operations) == sorted(row.command_id for row in rows), f"{name}: other operations")
        self._status(instance, rows, owing)
        if instance.status is InstanceStatus.CLOSED and before is not None and before.status != instance.status:
            self._relied_on(instance)
        self._direction(before, instance, rows)
        self._steps(before, instance, document, rows)
        if before is not None and before is not instance:
            known = {item["id"]: item["phase"] for item in before.steps}
            for item in instance.steps:
                moved(self.plane, "phase of a step", known[item["id"]], item["phase"])
        self._backward(instance, rows)
        for change in changes:
            if change.table == "operation":
                self._sent(before, instance, change, rows)
        self.plane.coverage["cases"][instance.status.value] += 1

    def _status(self, instance: InstanceRow, rows: Sequence[JournalRow], owing: Sequence[Any]) -> None:
        name, status = instance.workflow_id, instance.status
        moving = [row for row in rows if on_its_way(row)]
        if status is InstanceStatus.WAITING:
            wait = instance.wait or {}
            owned = bool(wait.get("owner")) and bool(wait.get("deadline")) and instance.wake_at is not None
            self._hold(P3.WAIT, owned, f"{name}: waits without owner, deadline or timer")
        if status is InstanceStatus.HUMAN_TAKEOVER and not moving:
            self._hold(P3.OWNER, bool(owing), f"{name}: taken over by nobody")
        if status in INSTANCE_TERMINAL or (instance.direction != Direction.FORWARD and not instance.locked):
            held = [row for row in self.plane.databases["orchestrator"].rows("lock") if row.workflow_id == name]
            demand(not held, f"{name}: {status} and still at a lock")
        if status in INSTANCE_TERMINAL:
            demand(not moving, f"{name}: {status} while {[row.step_id for row in moving]} go on")
        if status is InstanceStatus.CLOSED:
            demand(not owing, f"{name}: closed with open obligations")
            well = [row for row in rows if row.state not in (S.SUCCESS, S.RESOLVED) and not is_replaced(row, rows)]
            demand(not well, f"{name}: closed without success of {[row.step_id for row in well]}")
            demand(all(row.compensates is None for row in rows), f"{name}: closed and undone")
            document = self.plane.documents[instance.definition]
            for item in instance.steps:
                step, failed = document.by_id[item["id"]], item["phase"] == StepPhase.FAILED
                waived = failed and step.command is None and step.on.get(item.get("outcome")) is Reaction.CONTINUE
                well = item["phase"] in (StepPhase.DONE, StepPhase.SKIPPED)
                demand(well or waived, f"{name}: closed with {step.id} {item['phase']}")
        for row in rows:
            kept = row.state in PERSONS and not (status in UNDONE and row.state is S.FAILED)
            kept = kept and not is_replaced(row, rows)
            if kept or row.state in OUT - {S.DISPATCHING, S.RUNNING}:
                mine = [item for item in owing if item.command_id == row.command_id]
                self._hold(P3.OWNER, bool(mine), f"{name}: {row.step_id} is {row.state} without owner and deadline")

    def _relied_on(self, instance: InstanceRow) -> None:
        """What other cases caused for this one stands when it closes."""
        for state in instance.steps:
            if state.get("attached") and state["phase"] == StepPhase.DONE and self.plane.world.honest:
                operation = self.plane.operation(state["command_id"])
                if operation is not None and operation.state is S.RESOLVED:
                    continue  # a person said what became of it
                stands = self.plane.world.stands(state["command_id"])
                demand(stands, f"{instance.workflow_id}: closed, and what {state['id']} relies on is gone")

    def _direction(self, before: InstanceRow | None, after: InstanceRow, rows: Sequence[JournalRow]) -> None:
        name = after.workflow_id
        if before is not None and before.direction != after.direction and before.direction != Direction.FORWARD:
            turn = (Direction(before.direction), Direction(after.direction))
            demand(turn in TURNS, f"{name}: turned from {before.direction} to {after.direction}")
        passed = any(row.effect_class in PIVOTAL and row.state is S.SUCCESS for row in own(rows))
        if passed:
            demand(after.direction != Direction.BACKWARD, f"{name}: backward after the pivot")
            demand(after.status not in UNDONE, f"{name}: {after.status} after the pivot")
            demand(after.pivot == "passed", f"{name}: the pivot passed and is said to be {after.pivot}")

    def _steps(
        self,
        before: InstanceRow | None,
        instance: InstanceRow,
        document: WorkflowDocument,
        rows: Sequence[JournalRow],
    ) -> None:
        """Steps begin after what they need; a person's word counts only as the gateway's row has it."""
        name, states = instance.workflow_id, {item["id"]: item for item in instance.steps}
        known = {item["id"]: item for item in before.steps} if before is not None else {}
        for step in document.steps:
            state = states[step.id]
            if _begins(known.get(step.id), state):  # what it needed may be begun anew later, by a person who resumes
                for needed in document.needs[step.id]:
                    other = states[needed]
                    tried = any(row.command_id == other.get("command_id") and row.operator_command_id for row in rows)
                    goes_on = tried or document.by_id[needed].on.get(other.get("outcome")) is Reaction.CONTINUE
                    over = other["phase"] in (StepPhase.DONE, StepPhase.SKIPPED) or goes_on
                    demand(over, f"{name}: {step.id} is {state['phase']} although {needed} is {other['phase']}")
            if step.approval is not None and state["phase"] == StepPhase.DONE:
                self._approved(instance, state["approval_id"])
            if step.wait is not None and state["phase"] == StepPhase.WAITING:
                lost = [item["event_id"] for item in instance.held if item["type"] == step.wait.event]
                ignored = step.wait.match is None and lost and instance.status not in INSTANCE_TERMINAL
                demand(not ignored, f"{name}: {step.id} waits although {lost} came")
            if state.get("attached"):
                demand(state["command_id"] not in instance.operations, f"{name}: attached to itself")

    def _approved(self, instance: InstanceRow, approval_id: str) -> None:
        row = self.plane.databases["gateway"].tables["approval"].rows.get((approval_id,))
        demand(row is not None, f"{instance.workflow_id}: goes on without an approval row")
        known = row.reviewer is not None and row.status in ("approved", "superseded")
        demand(known, f"{instance.workflow_id}: goes on although {approval_id} is {row.status}")
        wanted = digest([instance.input["sha"]]) if len(instance.input["sha"]) != 64 else instance.input["sha"]
        demand(row.content_sha256 == wanted, f"{instance.workflow_id}: the approval is for other content")

    def _backward(self, instance: InstanceRow, rows: Sequence[JournalRow]) -> None:
        """One backward step at a time, in reverse, beside nothing else."""
        name, by_id = instance.workflow_id, {row.command_id: row for row in rows}
        undos = [row for row in rows if row.compensates is not None]
        for row in undos:
            demand(row.compensates in by_id, f"{name}: undoes what it did not cause")
        begun = [row for row in undos if on_its_way(row)]
        demand(len(begun) <= 1, f"{name}: {len(begun)} backward steps at once")
        if begun:
            beside = [row for row in own(rows) if on_its_way(row) or row.state is S.NEEDS_REVIEW]
            names = [f"{row.step_id} ({row.state})" for row in beside]
            demand(not beside, f"{name}: {begun[0].step_id} runs backward beside {names}")
            undone = by_id[str(begun[0].compensates)]
            for row in own(rows):
                later = row.dispatch_sequence > undone.dispatch_sequence and self.is_to_undo(row)
                demand(not later, f"{name}: {undone.step_id} is undone before {row.step_id}")

    def is_to_undo(self, row: JournalRow) -> bool:
        """True for a succeeded operation that an undoing case has to take back and has not yet."""
        mapping = BY_TYPE[row.command_type].compensation
        if mapping is None or row.state is not S.SUCCESS:
            return False
        if mapping.only_if is not None and not (row.receipt or {}).get("created"):
            return False
        return row.compensation_state is not CompensationState.COMPENSATED

    def _sent(
        self, before: InstanceRow | None, instance: InstanceRow, change: Change, rows: Sequence[JournalRow]
    ) -> None:
        """An operation that this commit dispatched was one that the case may still begin."""
        row, old = change.after, change.before
        if row.dispatch_sequence == (old.dispatch_sequence if old is not None else 0) or before is None:
            return
        name = f"{instance.workflow_id}: {row.step_id}"
        if row.compensates is not None:
            demand(instance.direction == Direction.BACKWARD, f"{name} was sent in direction {instance.direction}")
            return
        forward = Direction.FORWARD in (before.direction, instance.direction)  # handed back, and sent at once
        demand(forward, f"{name} was sent after the case turned {before.direction}")
        demand(before.cancel is None or instance.cancel is None, f"{name} was sent after the cancel")
        demand(before.paused is None or instance.paused is None, f"{name} was sent while paused")
        demand(instance.locked, f"{name} was sent without the locks")
        begun = [other.step_id for other in own(rows) if other.dispatch_sequence]
        demand(len(begun) <= instance.actions_max, f"{name} is one effect more than {instance.actions_max}: {begun}")
        self._unlocked(instance)

    def _unlocked(self, instance: InstanceRow) -> None:
        for other in self.plane.databases["orchestrator"].rows("instance"):
            shared = other.tenant == instance.tenant and set(other.locks) & set(instance.locks)
            if shared and other.locked and other.closed_at is None and other.definition != "command":
                same = other.workflow_id == instance.workflow_id
                demand(same, f"{other.workflow_id} and {instance.workflow_id} both hold {sorted(shared or ())}")

    def lock(self, change: Change) -> None:
        """Nobody holds what another holds."""
        row = change.after
        if row is not None and row.held:
            holders = [
                other.workflow_id
                for other in self.plane.databases["orchestrator"].rows("lock")
                if other.held and (other.tenant, other.key) == (row.tenant, row.key)
            ]
            demand(len(holders) == 1, f"{row.key} is held by {holders}")

    def approval(self, change: Change) -> None:
        """A row leaves `pending` once, for the reason it says."""
        before, after = change.before, change.after
        name = after.approval_id
        moved(self.plane, "approval", before.status if before is not None else "none", after.status)
        owned = bool(after.owner) and after.expires_at is not None
        self._hold(P3.WAIT, owned, f"{name}: waits without owner and deadline")
        if before is None or before.status == after.status:
            return
        void = before.status == "approved" and after.status == "superseded"
        demand(before.status == "pending" or void, f"{name}: {before.status} became {after.status}")
        demand(before.content_sha256 == after.content_sha256, f"{name}: asks for other content now")
        if after.status == "expired":
            slack = timedelta(seconds=self.plane.engine.step_back_seconds)
            demand(self.plane.engine.business() + slack >= after.expires_at, f"{name}: expired too early")
        if after.status in ("approved", "rejected"):
            demand(after.decided_at < after.expires_at, f"{name}: decided after its time")
            demand(after.reviewer not in (None, after.requested_by), f"{name}: decided by {after.reviewer}")

    def signal(self, change: Change) -> None:
        """What became of an event is said once; only what was held may still be accepted, or come to nothing."""
        before, after = change.before, change.after
        told = before.disposition if before is not None else "none"
        moved(self.plane, "event from outside", told, after.disposition)
        if before is None or before.disposition == after.disposition:
            return
        turn = (before.disposition, after.disposition)
        known = turn[0] == "pending" or turn in (("held", "accepted"), ("held", "late"))
        demand(known, f"{after.event_id}: {turn[0]} became {turn[1]}")

    # the world

    def transmitted(self, row: JournalRow) -> None:
        """The first byte of a workflow's operation leaves."""
        orchestrator, world = self.plane.databases["orchestrator"], self.plane.world
        instance = orchestrator.tables["instance"].rows[row.workflow_id,]
        document = self.plane.documents[instance.definition]
        rows = [orchestrator.tables["operation"].rows[name,] for name in instance.operations]
        name = f"{row.workflow_id}: {row.step_id}"
        self._unlocked(instance)
        if row.compensates is None:
            back = [other.step_id for other in rows if other.compensates and world.live(other.command_id)]
            demand(not back or not world.honest, f"{name} goes forward after {back}")
            if row.effect_class in PIVOTAL:
                self._admitted(instance, document, row)
            return
        target = orchestrator.tables["operation"].rows[str(row.compensates),]
        demand(target.workflow_id == row.workflow_id, f"{name} undoes another case's effect")
        if not world.honest:
            return
        pivots = [
            other.step_id for other in own(rows) if other.effect_class in PIVOTAL and world.live(other.command_id)
        ]
        demand(not pivots, f"{name} is sent although {pivots} happened")
        demand(bool(world.live(target.command_id)), f"{name} undoes what did not happen")
        mapping = BY_TYPE[target.command_type].compensation
        if mapping is not None and mapping.only_if is not None:
            demand(world.live(target.command_id)[0].created, f"{name} undoes what was there before")
        for other in own(rows):
            later = target.step_id in needs(document, other.step_id)
            stands = world.stands(other.command_id) and self.is_to_undo(other)
            demand(not (later and stands), f"{name} is undone before {other.step_id}, which rests on it")

    def _admitted(self, instance: InstanceRow, document: WorkflowDocument, row: JournalRow) -> None:
        """What cannot be taken back happens only with the approval that its document asks for."""
        states = {item["id"]: item for item in instance.steps}
        asks = [
            step for step in needs(document, row.step_id)
            if document.by_id[step].approval is not None and states[step]["phase"] != StepPhase.SKIPPED
        ]  # fmt: skip
        told = [step for step in asks if states[step]["phase"] == StepPhase.DONE]
        if told:
            approved = {states[step]["approval_id"] for step in told}
            demand(row.approval_id in approved, f"{instance.workflow_id}: {row.step_id} names no approval")
            self._approved(instance, str(row.approval_id))

    # the end

    def settled(self) -> str | None:
        """None where all workflows rest."""
        gateway = self.plane.databases["gateway"]
        pending = [row.approval_id for row in gateway.rows("approval") if row.status == "pending" and row.workflow_id]
        if pending:
            return f"{pending[0]} is pending"
        unheard = [row.event_id for row in gateway.rows("signal") if row.disposition == "pending"]
        return f"nobody disposed of {unheard[0]}" if unheard else None

    def rests(self, instance: InstanceRow) -> bool:
        """True where a person has the case and nothing of it goes on by itself."""
        operations = self.plane.databases["orchestrator"].tables["operation"].rows
        return not any(on_its_way(operations[name,]) for name in instance.operations)

    def final(self) -> None:
        """The world matches what each case came to."""
        orchestrator, world = self.plane.databases["orchestrator"], self.plane.world
        histories: dict[str, list[Any]] = {}
        for event in orchestrator.rows("history"):
            histories.setdefault(event.workflow_id, []).append(event)
        for instance in orchestrator.rows("instance"):
            if instance.definition == "command":
                continue
            name = instance.workflow_id
            rows = [orchestrator.tables["operation"].rows[key,] for key in instance.operations]
            late = instance.wake_at is not None and instance.wake_at < self.plane.engine.business() - timedelta(
                minutes=1
            )
            demand(not late or instance.closed_at is not None, f"{name}: is woken for nothing, again and again")
            leased = [row.step_id for row in rows if row.lease_expires_at is not None]
            demand(not leased, f"{name}: at rest with leases of {leased}")
            self.plane.coverage["ends"][instance.status.value] += 1
            self._events(name, histories[name])
            if not world.honest:
                continue
            undone = [row.step_id for row in own(rows) if row.command_id in world.undone]
            pivots = [row.step_id for row in own(rows) if row.effect_class in PIVOTAL and world.live(row.command_id)]
            demand(not (pivots and undone), f"{name}: {undone} were undone although {pivots} happened")
            if instance.status is InstanceStatus.CLOSED:
                self._closed(instance)
            elif instance.status in UNDONE:
                demand(not pivots, f"{name}: {instance.status} although {pivots} happened")
                settled = [row for row in rows if row.state is S.RESOLVED]  # as a person said
                by_hand = {row.compensates or row.command_id for row in settled}
                left = [row for row in own(rows) if world.stands(row.command_id) and row.command_id not in by_hand]
                stands = [row.step_id for row in left if self._takes_back(row)]
                demand(not stands, f"{name}: {instance.status} although {stands} stand")

    def _takes_back(self, row: JournalRow) -> bool:
        mapping = BY_TYPE[row.command_type].compensation
        if mapping is None:
            return False
        return mapping.only_if is None or self.plane.world.live(row.command_id)[0].created

    def _closed(self, instance: InstanceRow) -> None:
        name, document = instance.workflow_id, self.plane.documents[instance.definition]
        for state in instance.steps:
            if document.by_id[state["id"]].command is None or state["phase"] != StepPhase.DONE:
                continue
            command_id = state["command_id"]
            known = state.get("attached") or command_id in instance.operations
            demand(known, f"{name}: {state['id']} has no operation")
            count = len(self.plane.world.live(command_id))
            operation = self.plane.operation(command_id)
            if operation is not None and operation.state is S.RESOLVED:
                continue  # a person said what became of it
            demand(count == 1, f"{name}: {state['id']} happened {count} times")
            if not state.get("attached"):
                demand(self.plane.world.stands(command_id), f"{name}: {state['id']} does not stand")

    def _events(self, name: str, events: Sequence[Any]) -> None:
        """Each event from outside was taken at most once."""
        taken = [event.payload["event_id"] for event in events if event.type == "SignalAccepted"]
        demand(len(taken) == len(set(taken)), f"{name}: took {taken}")
        known = {
            row.event_id: row.disposition
            for row in self.plane.databases["gateway"].rows("signal")
            if row.workflow_id == name
        }
        for event_id in taken:
            demand(known.get(event_id) == "accepted", f"{name}: took {event_id}, told as {known.get(event_id)}")
        told = {event_id for event_id, disposition in known.items() if disposition == "accepted"}
        demand(told == set(taken), f"{name}: told {sorted(told)} as accepted, took {sorted(set(taken))}")
