"""What must hold in every step (requirement P3) and what must hold once the world is well again.

Rows are judged as they are committed, effects as they happen. The judge knows the ground truth; the services do not.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.memory import Change, MemoryDatabase
from tests.simulation.mending_invariants import MendingJudge
from tests.simulation.moves import moved
from tests.simulation.saga_invariants import SagaJudge
from tests.simulation.verdict import P3, demand, demand_p3
from tests.simulation.world import Effect
from trueup_common.contracts.adapter import Call
from trueup_common.contracts.declaration import target_of
from trueup_common.contracts.events import CaseAnswered
from trueup_common.contracts.history import GENESIS, verify
from trueup_common.contracts.journal import InstanceRow
from trueup_common.contracts.states import (
    ANSWERED,
    INSTANCE_TERMINAL,
    SETTLED,
    Findability,
    InstanceStatus,
    OperationState,
)
from trueup_reconciler.core.element import Stage

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

S: Final = OperationState
PERSONS: Final = frozenset({S.FAILED, S.CONFLICT, S.DEAD_LETTERED, S.NEEDS_REVIEW})
IN_FLIGHT: Final = frozenset({S.DISPATCHING, S.RUNNING})
UNDECIDED: Final = frozenset({S.OUTCOME_UNKNOWN, S.ORPHAN_SUSPECTED, S.RECONCILING})
GOVERNED_WITHIN_SECONDS: Final = 8.0
"""Within how many seconds a revocation or freeze stops new effects: watch delay, start window and send window."""
SEEN_LATE: Final = frozenset({"effects_duplicated"})
"""What may be found out of a case that has ended: an attempt that was held up inside its last write may have a twin."""
BROKEN_WORD: Final = frozenset({"effect_after_failure", "landed_after_cancel"})
"""The same in a world that breaks its word."""
INTENT: Final = (
    "tenant",
    "workflow_id",
    "command_type",
    "target_system",
    "target_resource",
    "payload_sha256",
    "idempotency_key",
    "declaration_sha256",
)


def _object(call: Call) -> tuple[str, ...]:
    """The object that a call writes."""
    target = call.operation.target
    return call.operation.tenant, target.system, target_of(call.declaration, call.operation.payload, target.resource)


class Judge:
    """Watches every commit and every effect."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.sagas = SagaJudge(plane)
        self.mending = MendingJudge(plane)
        self.checks: Counter[str] = Counter()
        self.granted: dict[tuple[str, int], float] = {}
        """(operation, fence) → until when (real) the gateway granted it."""
        self.committed_sent: dict[tuple[str, int], Any] = {}
        self.send_until: dict[tuple[str, int], float] = {}
        """(operation, fence) → until when (seconds, less what clocks were set back) its first byte may leave."""
        self.taken_over: dict[str, dict[str, int]] = {}
        """Case → the fences of its operations when a person took it over."""
        self.written: dict[tuple[str, ...], list[str]] = {}
        """Object of exclusive types → the operations that wrote it, one after the other."""
        self.read: dict[tuple[str, int], int] = {}
        """(operation, fence) → how many had written its object when it read it."""
        self._chain: dict[str, tuple[int, str]] = {}
        self._caused: dict[tuple[str, str], int] = {}

    def hold(self, phrase: P3, holds: bool, text: str) -> None:
        """Demand one of the invariants by name, and count it."""
        self.checks[phrase] += 1
        demand_p3(phrase, holds, text)

    # commits

    def committed(self, database: MemoryDatabase, changes: list[Change]) -> None:
        """Judge one commit."""
        note = []
        touched: dict[str, list[Change]] = {}
        for change in changes:
            note.append(f"{change.table}:{describe(change)}")
            check = _CHECKS.get((database.service, change.table))
            if check is not None:
                check(self, change)
            row = change.after or change.before
            if database.service == "orchestrator" and row is not None and _is_of_case(type(row)):
                touched.setdefault(row.workflow_id, []).append(change)
        if database.service == "repair-planner":
            self.mending.released(changes)
        if note:
            self.plane.engine.note("commit " + ", ".join(note))
        for workflow in sorted(touched):
            self._case(workflow, [item for item in touched[workflow] if item.after is not None])

    def operation(self, change: Change) -> None:
        """A journal row."""
        before, after = change.before, change.after
        demand(after is not None, "a journal row was deleted")
        name = after.command_id
        if before is not None:
            if before.state in SETTLED:
                self.hold(P3.FINAL, after.state is before.state, f"{name}: {before.state} became {after.state}")
            changed = [column for column in INTENT if getattr(before, column) != getattr(after, column)]
            self.hold(P3.INTENT, not changed, f"{name}: the intent changed its {changed}")
            if after.cancel_requested and not before.cancel_requested and after.state is before.state:
                self.plane.coverage["marked"][f"{after.state} × cancel"] += 1  # only marked: it may be out
            moved(self.plane, "compensation", before.compensation_state, after.compensation_state)
            demand(after.fence >= before.fence, f"{name}: the fence fell from {before.fence} to {after.fence}")
            demand(after.attempt_count >= before.attempt_count, f"{name}: attempts were forgotten")
            if before.state in PERSONS and after.state is not before.state:
                acted = after.operator_command_id not in (None, before.operator_command_id)
                demand(acted, f"{name}: {before.state} moved to {after.state} without a person")
        if after.state in IN_FLIGHT:
            leased = after.lease_expires_at is not None and after.lease_owner is not None
            self.hold(P3.LEASE, leased, f"{name}: {after.state} without a lease")
            demand(after.start_by is not None, f"{name}: {after.state} without start_by")
        if after.state is S.RETRY_PENDING or after.state in UNDECIDED:
            self.hold(P3.WAIT, after.wake_at is not None, f"{name}: {after.state} without a timer")
        if after.state is S.QUEUED:
            waits = after.wake_at is not None or after.lease_expires_at is not None
            self.hold(P3.WAIT, waits, f"{name}: QUEUED without a timer")
        if after.state is S.SUCCESS:
            self.hold(P3.RECEIPT, bool(after.result_reference), f"{name}: SUCCESS without a receipt")
        self.hold(P3.WAIT, after.deadline_at is not None, f"{name}: no deadline")
        self.checks["operation"] += 1

    def instance(self, change: Change) -> None:
        """An instance."""
        before, after = change.before, change.after
        demand(after is not None, "an instance was deleted")
        if before is not None and before.status in INSTANCE_TERMINAL:
            same = after.status is before.status
            self.hold(P3.FINAL, same, f"{after.workflow_id}: {before.status} became {after.status}")
        moved(self.plane, "status of a case", before.status if before is not None else "none", after.status)
        if before is not None:
            moved(self.plane, "direction of a case", before.direction, after.direction)
        if after.status in INSTANCE_TERMINAL:
            demand(after.closed_at is not None, f"{after.workflow_id}: {after.status} without closed_at")
            owes = after.owed and after.status is not InstanceStatus.SAFE_STOPPED
            demand(not owes, f"{after.workflow_id}: {after.status} while it owes {after.owed}")
        demand(after.published_seq <= after.history_seq, f"{after.workflow_id}: published more than there is")
        self.checks["instance"] += 1

    def obligation(self, change: Change) -> None:
        """An obligation of the orchestrator or the reconciler."""
        row = change.after
        owned = bool(row.owner) and row.deadline_at is not None
        self.hold(P3.OWNER, owned, f"{row.obligation_id}: no owner or no deadline")
        if change.before is not None and change.before.status == "closed":
            demand(row.status == "closed", f"{row.obligation_id}: opened again")
        self.checks["obligation"] += 1

    def exception(self, change: Change) -> None:
        """An exception of the planner."""
        row = change.after
        owned = bool(row.owner) and row.deadline_at is not None
        self.hold(P3.OWNER, owned, f"{row.exception_id}: no owner or no deadline")
        self.checks["exception"] += 1

    def history(self, change: Change) -> None:
        """A history event: appended, never changed, chained."""
        demand(change.before is None, "a history event was changed")
        event = change.after
        seq, head = self._chain.get(event.workflow_id, (0, GENESIS))
        demand(event.seq == seq + 1, f"{event.workflow_id}: event {event.seq} after {seq}")
        fault = verify([event], prev_hash=head, first_seq=event.seq)
        demand(fault is None, f"{event.workflow_id}: {fault}")
        self._chain[event.workflow_id] = (event.seq, event.hash)
        if event.causation_id is not None:
            commit = self.plane.databases["orchestrator"].commits_count
            first = self._caused.setdefault((event.workflow_id, event.causation_id), commit)
            demand(first == commit, f"{event.workflow_id}: {event.causation_id} was taken in twice")
        self.plane.coverage["events"][event.type] += 1
        self.checks["history"] += 1

    def effect(self, change: Change) -> None:
        """A ledger row."""
        before, after = change.before, change.after
        demand(after is not None, "a ledger row was deleted")
        name, status = after.command_id, after.status.value
        if before is not None:
            demand(after.fence >= before.fence, f"{name}: the ledger's fence fell")
            if before.status.value == "CONFIRMED":
                demand(status == "CONFIRMED", f"{name}: CONFIRMED became {status}")
                demand(after.receipt == before.receipt, f"{name}: a receipt was changed")
            sent_again = status == "SENT" and after.sends_count != before.sends_count
            open_before = before.status.value in ("SENT", "UNKNOWN")
            demand(not (sent_again and open_before), f"{name}: sent again on {before.status.value}")
        moved(self.plane, "status in the ledger", before.status if before is not None else "none", after.status)
        if status == "CONFIRMED":
            self.hold(P3.RECEIPT, after.receipt is not None, f"{name}: CONFIRMED without a receipt")
        operation = self.plane.operation(name)
        if operation is not None:
            told = (operation.payload_sha256, operation.idempotency_key)
            same = told == (after.payload_sha256, after.idempotency_key)
            self.hold(P3.INTENT, same, f"{name}: the ledger holds another intent")
        if status == "SENT":
            self.hold(P3.GRANT, bool(after.grant_id), f"{name}: SENT without a grant")
            for column in ("send_by", "late_until", "attempt_id", "look_at"):
                demand(getattr(after, column) is not None, f"{name}: SENT without {column}")
            self.committed_sent[name, after.sent_fence] = after
            if before is None or before.sent_fence != after.sent_fence:
                left = (after.send_by - after.sent_at).total_seconds()
                engine = self.plane.engine
                self.send_until[name, after.sent_fence] = engine.now + left - engine.step_back_seconds
        self.checks["effect"] += 1

    def settlement(self, change: Change) -> None:
        """A settlement: a wait with a deadline."""
        self.hold(P3.WAIT, change.after.deadline_at is not None, "a settlement without a deadline")
        self.checks["settlement"] += 1

    def _case(self, workflow: str, changes: list[Change]) -> None:
        """Rows of one case that only make sense together."""
        database = self.plane.databases["orchestrator"]
        instance = database.tables["instance"].rows.get((workflow,))
        demand(instance is not None, f"{workflow}: rows without an instance")
        operations = [row for row in database.tables["operation"].rows.values() if row.workflow_id == workflow]
        owing = [
            row
            for row in database.tables["obligation"].rows.values()
            if row.workflow_id == workflow and row.status == "open"
        ]
        seen_late = SEEN_LATE if self.plane.world.honest else SEEN_LATE | BROKEN_WORD
        done = [row for row in owing if row.envelope.get("failure_code") not in seen_late]
        if instance.status is not InstanceStatus.HUMAN_TAKEOVER:
            self.taken_over.pop(workflow, None)
        elif workflow not in self.taken_over:
            self.taken_over[workflow] = {row.command_id: row.fence for row in operations}
        demand(self._chain[workflow] == (instance.history_seq, instance.history_hash), f"{workflow}: head of history")
        self.checks["case"] += 1
        if instance.definition != "command":
            self.sagas.case(instance, operations, owing if instance.closed_at is None else done, changes)
            return
        demand(len(operations) == 1, f"{workflow}: {len(operations)} operations")
        for row in operations:
            if row.state in PERSONS:
                demand(instance.status is InstanceStatus.HUMAN_TAKEOVER, f"{workflow}: {row.state}, {instance.status}")
            if row.state in PERSONS | UNDECIDED:
                self.hold(P3.OWNER, bool(owing), f"{workflow}: {row.state} without owner and deadline")
            if instance.status in INSTANCE_TERMINAL:
                demand(not done, f"{workflow}: {instance.status} with open obligations")
            if instance.status is InstanceStatus.CLOSED:
                demand(row.state is S.SUCCESS, f"{workflow}: closed with {row.state}")
        if instance.status is InstanceStatus.HUMAN_TAKEOVER:
            self.hold(P3.OWNER, bool(owing), f"{workflow}: taken over by nobody")

    # the world

    def transmitted(self, call: Call) -> None:
        """The first byte leaves: there must be a committed SENT of this attempt, a grant, and nobody in charge."""
        name, fence = call.operation.command_id, call.fence
        row = self.committed_sent.get((name, fence))
        demand(row is not None, f"{name}: a byte left before SENT was committed")
        demand(row.attempt_id == call.attempt_id, f"{name}: sent under another attempt's name")
        engine = self.plane.engine
        on_time = engine.now <= self.send_until[name, fence] + engine.step_back_seconds
        demand(on_time, f"{name}: sent after send_by")
        until = self.granted.get((name, fence))
        told = min(engine.now, engine.told_seconds)
        self.hold(P3.GRANT, until is not None, f"{name}: sent without a grant for fence {fence}")
        self.hold(P3.GRANT, told < until + 1 and bool(row.grant_id), f"{name}: sent under an expired grant")
        operation = self.plane.operation(name)
        demand(operation is not None, f"{name}: an effect without a journal row")
        self.hold(P3.INTENT, call.operation.payload_sha256 == operation.payload_sha256, f"{name}: sent another intent")
        over = operation.state in PERSONS | SETTLED
        self.hold(P3.TAKEOVER, not over, f"{name}: a new effect while {operation.state}")
        known = self.taken_over.get(operation.workflow_id)
        late = known is not None and fence > known.get(name, 0)
        self.hold(P3.TAKEOVER, not late, f"{name}: a new effect although a person has the case")
        if self._is_workflow(operation):
            self.sagas.transmitted(operation)
        governs = (
            (f"freeze.frzc_{operation.target_system}",)
            if operation.compensates is not None
            else (
                f"revoked_mandate.{operation.mandate_id}",
                f"revoked_decision.{operation.decision_id}",
                f"freeze.frz_{operation.target_system}",
                f"freeze.frzc_{operation.target_system}",
            )
        )
        for key in governs:
            since = self.plane.governed_at.get(key, self.plane.engine.now)
            within = GOVERNED_WITHIN_SECONDS + engine.step_back_seconds
            demand(engine.now - since < within, f"{name}: a new effect in spite of {key}")
        if call.declaration.exclusive:
            self.read[name, fence] = len(self.written.setdefault(_object(call), []))
        self.checks["transmitted"] += 1

    def _is_workflow(self, operation: Any) -> bool:
        instance = self.plane.databases["orchestrator"].tables["instance"].rows[operation.workflow_id,]
        return bool(instance.definition != "command")

    def happened(self, call: Call, effects: list[Effect]) -> None:
        """Each effect at most once, and nobody's text lost."""
        name = call.operation.command_id
        if self.plane.world.honest:
            demand(len(effects) == 1, f"{name}: happened {len(effects)} times")
        if call.declaration.exclusive:
            written = self.written[_object(call)]
            unread = {writer for writer in written[self.read[name, call.fence] :] if writer != name}
            demand(not (unread and self.plane.world.honest), f"{name} wrote over what it had not read: {unread}")
            written.append(name)
            self.checks["written alone"] += 1
        self.checks["happened"] += 1

    def answered(self, message: Any) -> None:
        """A waiting client hears of ends only."""
        body = CaseAnswered.model_validate_json(message.data)
        demand(body.operation.state in ANSWERED, f"answered while {body.operation.state}")
        self.checks["answered"] += 1

    # the end

    def settled(self) -> str | None:
        """None once nothing moves by itself any more; else what is still going on."""
        plane = self.plane
        orchestrator = plane.databases["orchestrator"]
        if len(orchestrator.tables["instance"].rows) < plane.accepted_count:
            return "a start is missing"
        for instance in orchestrator.tables["instance"].rows.values():
            if instance.status not in INSTANCE_TERMINAL and not self._owned(instance):
                return f"{instance.workflow_id} is {instance.status}"
        open_ = self.sagas.settled()
        if open_ is not None:
            return open_
        for row in plane.databases["adapters"].tables["effect"].rows.values():
            if row.status.value in ("SENT", "INTENT"):
                return f"ledger {row.command_id} is {row.status.value}"
        mending = self._mending() or self.mending.settled()
        if mending is not None:
            return mending
        for name, database in plane.databases.items():
            if database.has_unsent():
                return f"mail of {name} is not sent"
            if not plane.compared(database):
                return f"the relays of {name} have not noticed that a stream was lost"
        if not plane.bus.idle():
            return "messages are on their way"
        return None

    def _mending(self) -> str | None:
        """A drift that may be repaired by itself is, or a person has it: nothing rests in between."""
        for row in self.plane.databases["reconciler"].rows("element"):
            if row.obligation_id is None:
                continue
            if row.visit_id is not None or row.stage in (Stage.VERIFY, Stage.OBSERVING):
                return f"{row.object_key} {row.element} is being looked at"
        return None

    def _owned(self, instance: Any) -> bool:
        """True where a person has the case: taken over, or what it still has to verify has drifted."""
        if instance.status is InstanceStatus.HUMAN_TAKEOVER:
            return self.sagas.rests(instance)
        if self.plane.thorough:
            return False  # whoever is thorough ends it once its time is up
        drifted = set()
        for row in self.plane.databases["reconciler"].rows("element"):
            if row.obligation_id is not None:
                drifted |= {(row.command_id, row.resource, row.element), (row.repaired_by, row.resource, row.element)}
        owed = {(item["command_id"], item["resource"], item["element"]) for item in instance.owed}
        verifies = instance.status is InstanceStatus.VERIFYING
        undoes = instance.status is InstanceStatus.COMPENSATING and self.sagas.rests(instance)
        return (verifies or undoes) and bool(owed) and owed <= drifted

    def final(self) -> None:
        """What must hold once everything came to rest."""
        plane = self.plane
        orchestrator, gateway = plane.databases["orchestrator"], plane.databases["gateway"]
        planner = plane.databases["repair-planner"]
        histories: dict[str, list[Any]] = {}
        for event in orchestrator.tables["history"].rows.values():
            histories.setdefault(event.workflow_id, []).append(event)
        for instance in orchestrator.rows("instance"):
            events = sorted(histories.get(instance.workflow_id, ()), key=lambda item: item.seq)
            fault = verify(events)
            demand(fault is None, f"{instance.workflow_id}: {fault}")
            demand(len(events) == instance.history_seq, f"{instance.workflow_id}: history is not whole")
            view = gateway.tables["case_view"].rows.get((instance.workflow_id,))
            demand(
                view is not None and _shows(view.instance, instance),
                f"{instance.workflow_id}: the view of the case differs",
            )
            seen = [row.event for row in gateway.rows("history_view") if row.workflow_id == instance.workflow_id]
            seen.sort(key=lambda item: item.seq)
            demand(seen == events, f"{instance.workflow_id}: the view shows {len(seen)} of {len(events)} events")
        for row in orchestrator.rows("operation"):
            self._truth(row)
            view = gateway.tables["command_view"].rows.get((row.command_id,))
            demand(view is not None and view.row == row, f"{row.command_id}: the view of the command differs")
        self.sagas.final()
        self._identities(orchestrator)
        self._exceptions(planner, gateway)
        self._elements(gateway)
        self._repairs(self.plane.databases["orchestrator"])
        self.mending.final()
        for row in plane.databases["adapters"].rows("effect"):
            operation = plane.operation(row.command_id)
            if row.status.value == "UNKNOWN" and plane.world.honest:
                settled = operation is not None and operation.resolution_type is not None  # by a person
                demand(
                    settled or (operation is not None and operation.state is S.NEEDS_REVIEW),
                    f"{row.command_id}: the ledger is open and {operation and operation.state}",
                )

    def _truth(self, row: Any) -> None:
        """What the journal says of one operation against what happened."""
        count = len(self.plane.world.live(row.command_id))
        findable = self.plane.declaration(row.command_type).findability is not Findability.NONE
        if not self.plane.world.honest:
            demand(row.state is not S.SUCCESS or count >= 1, f"{row.command_id}: SUCCESS without an effect")
        elif row.state is S.SUCCESS:
            demand(count == 1, f"{row.command_id}: SUCCESS with {count} effects")
        elif row.state in (S.NEEDS_REVIEW, S.RESOLVED):
            demand(count <= 1, f"{row.command_id}: NEEDS_REVIEW with {count} effects")
        else:
            demand(count == 0, f"{row.command_id}: {row.state} with {count} effects ({findable=})")

    def _identities(self, orchestrator: MemoryDatabase) -> None:
        """A business identity has at most one effect, whatever keys were used."""
        landed: Counter[tuple[str, str, Any]] = Counter()
        for row in orchestrator.rows("operation"):
            if self.plane.declaration(row.command_type).identity:
                identity = (row.tenant, row.command_type, row.payload["text"])
                landed[identity] += len(self.plane.world.live(row.command_id))
        once = all(count <= 1 for count in landed.values()) or not self.plane.world.honest
        demand(once, f"a business identity landed twice: {landed}")

    def _exceptions(self, planner: MemoryDatabase, gateway: MemoryDatabase) -> None:
        owed: dict[str, Any] = {}
        for service in ("orchestrator", "reconciler"):
            for row in self.plane.databases[service].rows("obligation"):
                owed[row.obligation_id] = row
        known = {row.obligation_id: row for row in planner.rows("exception") if getattr(row, "obligation_id", None)}
        for obligation_id, row in owed.items():
            exception = known.get(obligation_id)
            demand(exception is not None, f"obligation {obligation_id} ({row.kind}) is no exception")
            demand(
                (exception.status == "open") == (row.status == "open"),
                f"obligation {obligation_id} is {row.status}, its exception {exception.status}",
            )
        for row in planner.rows("exception"):
            view = gateway.tables["exception_view"].rows.get((row.exception_id,))
            demand(view is not None and view.version == row.version, f"{row.exception_id}: the view differs")

        for database in self.plane.databases.values():
            for quarantine_id in database.quarantined:
                demand(quarantine_id in known, f"{database.service}: quarantined {quarantine_id} belongs to nobody")

    def _repairs(self, orchestrator: MemoryDatabase) -> None:
        """However often a stranger changes a value back, repairs of one element by itself stay within its budget.

        The budget starts over only where the element held for long: that often it may be spent in this time. A repair
        that was under way when the case of what it repairs turned back outlives it: then it has a budget of its own.
        """
        budget = self.plane.budget
        terms = 1 + int((self.plane.engine.now + self.plane.engine.offset) / budget.holds_seconds)
        repairs: Counter[tuple[str, str, str]] = Counter()
        owners: Counter[tuple[str, str, str]] = Counter()
        for row in orchestrator.rows("operation"):
            place = row.tenant, row.target_resource, row.command_type
            (owners if row.supersedes is None else repairs)[place] += 1
            owners[place] += self.plane.outlives(row)
        fresh = self.mending.budgets_given_by_people()
        for place, count in repairs.items():
            most = budget.repairs_max * (terms * owners[place] + fresh) + fresh
            demand(count <= most, f"{place}: {count} repairs")

    def _elements(self, gateway: MemoryDatabase) -> None:
        for row in self.plane.databases["reconciler"].rows("element"):
            view = gateway.tables["element_view"].rows.get((row.workflow_id, row.system, row.resource, row.element))
            told = view is not None and (row.visit_id is not None or view.version == row.state_version)
            demand(told and view.phase == row.phase.value, f"{row.object_key}: the view of the element differs")


_CHECKS: Final = {
    ("orchestrator", "operation"): Judge.operation,
    ("orchestrator", "instance"): Judge.instance,
    ("orchestrator", "obligation"): Judge.obligation,
    ("orchestrator", "history"): Judge.history,
    ("orchestrator", "lock"): lambda judge, change: judge.sagas.lock(change),
    ("gateway", "approval"): lambda judge, change: judge.sagas.approval(change),
    ("gateway", "signal"): lambda judge, change: judge.sagas.signal(change),
    ("gateway", "operator_command"): lambda judge, change: judge.mending.act(change),
    ("gateway", "operator_batch_item"): lambda judge, change: judge.mending.batch_item(change),
    ("reconciler", "obligation"): Judge.obligation,
    ("reconciler", "settlement"): Judge.settlement,
    ("repair-planner", "exception"): Judge.exception,
    ("repair-planner", "repair"): lambda judge, change: judge.mending.repair(change),
    ("repair-planner", "incident"): lambda judge, change: judge.mending.incident(change),
    ("adapters", "effect"): Judge.effect,
}


KEPT_BACK: Final = ("input", "mandate", "declarations")
"""What the orchestrator may keep to itself of a case."""


def _shows(view: InstanceRow, instance: InstanceRow) -> bool:
    """True where a view shows a case as it is; of what is kept back nothing else is shown."""
    kept: dict[str, Any] = {name: getattr(view, name) for name in KEPT_BACK if not getattr(view, name)}
    if view.mandate.items() <= instance.mandate.items():
        kept["mandate"] = view.mandate
    held = [{**item, "data": None} for item in instance.held]
    steps = [{name: value for name, value in step.items() if name != "output"} for step in instance.steps]
    same: bool = view == instance.evolve(**kept, held=held, steps=steps)
    return same


@cache
def _told(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which columns of a row say where it stands, and which say what it is."""
    names = kind.model_fields
    states = tuple(name for name in ("state", "status", "phase") if name in names)
    return states, tuple(name for name in ("command_id", "fence", "kind", "type") if name in names)


@cache
def _is_of_case(kind: type[Any]) -> bool:
    return "workflow_id" in kind.model_fields


def describe(change: Change) -> str:
    """One changed row in a few words."""
    row = change.after
    if row is None:
        return "deleted"
    states, names = _told(type(row))
    state = next((value for name in states if (value := getattr(row, name))), "")
    words = [str(getattr(state, "value", state))]
    for column in names:
        value = getattr(row, column)
        if value is not None:
            words.append(f"{column[0]}={str(value)[:12]}")
    return " ".join(words)
