"""Those who start workflows and those whom they concern: reviewers, senders of events, operators.

They work through the gateway's own code, on whichever replica is alive, and repeat what was not answered. Nobody is
reliable: they answer late, twice, with an old hash, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.crashing import SimulatedCrashPoints
from tests.simulation.engine import Engine, Process, Sleep, Violation
from tests.simulation.verdict import demand
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import ControlAsked, SignalReceived
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.contracts.workflow import StepPhase, WorkflowDocument
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api import approvals, operations
from trueup_gateway.api.acts import telling
from trueup_gateway.core import control
from trueup_gateway.core.person_records import SignalRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.workflow_start import StartRequest
from trueup_gateway.store import Reader

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

TRIES_AGAIN: Final = frozenset({"unavailable", "idempotency-in-flight"})


@dataclass(slots=True)
class Wanted:
    """A workflow that somebody wants to start."""

    number: int
    key: str
    tenant: str
    document: WorkflowDocument
    data: dict[str, Any]
    at: float
    repeats: int
    actions_max: int
    on_terminal: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever calls, as their token says."""

    subject: str
    tenant: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Desk:
    """What the gateway's own code for people's acts needs of the gateway and of a request."""

    rules: Any
    scope: dict[str, Any]


async def at_gateway(plane: Plane, work: Any) -> Any:
    """Let some replica of the gateway do something, as a request would; None where it died meanwhile."""
    gateways = [item for item in plane.processes if item.service == "gateway" and item.alive]
    if not gateways:
        await Sleep(0.2)
        return None
    process = gateways[plane.engine.below(len(gateways))]
    task = process.spawn(_answered(work, process), "request")
    while not task.done:
        await Sleep(0.05)
    return task.result


async def _answered(work: Callable[[Process], Coroutine[Any, Any, Any]], process: Process) -> Any:
    """What comes of a request: its answer, its refusal, or that the store was away."""
    try:
        return await work(process)
    except Refused as refused:
        return refused
    except StoreBusy as busy:
        return Refused("unavailable", str(busy))


class Starter:
    """Somebody who starts a workflow and repeats with the same key until it is answered, sometimes beyond that."""

    def __init__(self, plane: Plane, wanted: Wanted, name: str, answers: list[str]) -> None:
        self.plane = plane
        self.engine: Engine = plane.engine
        self.wanted = wanted
        self.name = name
        self.answers = answers
        self.asked = 0

    async def run(self) -> None:
        """Ask, and ask again."""
        await Sleep(self.wanted.at)
        for _ in range(self.wanted.repeats):
            workflow_id = await self._ask()
            if workflow_id is not None:
                self.answers.append(workflow_id)
            if self.wanted.on_terminal == "return" and len(set(self.answers)) > 1:
                raise Violation(f"one start key was answered with {sorted(set(self.answers))}")
            await Sleep(self.engine.between(0.0, 8.0))

    async def _ask(self) -> str | None:
        self.asked += 1
        tries = 0
        while True:
            request = self._request(tries)
            answer = await at_gateway(self.plane, lambda process, request=request: self._start(process, request))
            if isinstance(answer, Refused):
                if answer.problem.slug not in TRIES_AGAIN:
                    return None
            elif answer is not None:
                return str(answer.workflow_id)
            tries += 1
            await Sleep(self.engine.between(0.1, 1.0))

    async def _start(self, process: Process, request: StartRequest) -> Any:
        started, outgoing = await self.plane.starters[process.name]._committed(request)
        SimulatedCrashPoints(self.plane).reach("gateway-start.committed")
        if outgoing:
            await self.plane.gateways[process.name][1].publish(outgoing)
        self.plane.engine.note(f"start {request.key}: {started.workflow_id}")
        return started

    def _request(self, tries: int) -> StartRequest:
        wanted, document = self.wanted, self.wanted.document
        salt = f"{self.engine.seed:x}-w{wanted.number}{self.name}-{self.asked}-{tries}"
        return StartRequest(
            tenant=wanted.tenant,
            key=wanted.key,
            fingerprint=digest([document.name, wanted.data]),
            capability_id=f"cap_{wanted.tenant}_{document.name}",
            system="*",
            resource="*",
            payload_sha256=None,
            expected_version=None,
            definition=document.name,
            version=None,
            input=wanted.data,
            input_sha256=digest(wanted.data),
            actions_max=wanted.actions_max,
            on_terminal=wanted.on_terminal,
            workflow_id=f"wf_{salt}",
            saga_id=f"saga_{salt}",
        )


class People:
    """A reviewer, a sender of events and an operator for all cases."""

    def __init__(self, plane: Plane, *, pace_seconds: float, meddling: float, of_workflows: bool = True) -> None:
        self.plane = plane
        self.of_workflows = of_workflows
        self.engine: Engine = plane.engine
        self.pace_seconds = pace_seconds
        self.meddling = meddling
        """How likely an operator is to cancel, pause or resume when they look at a case."""
        self._numbers = 0
        self._answers: dict[str, tuple[str, bool]] = {}
        """How an approval is answered, and whether at all: decided when it is first seen."""

    def start(self) -> None:
        """Begin."""
        for work in (self._review, self._send, self._operate) if self.of_workflows else (self._operate,):
            self.plane.clients.spawn(self._again(work), "person")

    async def _again(self, work: Any) -> None:
        while True:
            pace = 2.0 if self.plane.healed else self.pace_seconds
            await Sleep(pace * self.engine.between(0.3, 1.7))
            await work()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # reviewing

    async def _review(self) -> None:
        rows = sorted(self.plane.databases["gateway"].rows("approval"), key=lambda row: row.approval_id)
        rows = [row for row in rows if row.status == "pending" or self.engine.chance(0.1)]
        if not rows:
            return
        row = rows[self.engine.below(len(rows))]
        if row.approval_id not in self._answers:
            said = "approve" if self.engine.chance(0.75) else "reject"
            self._answers[row.approval_id] = said, self.engine.chance(0.85)
        said, answers = self._answers[row.approval_id]
        if not answers:
            return
        if self.engine.chance(0.3):
            await Sleep(self.engine.between(0.0, 10.0))  # reading takes its time; the row may end meanwhile
        content = row.content_sha256 if self.engine.chance(0.9) else digest(["an older text", row.approval_id])
        wanted = approvals.ApprovalDecision(decision=said, nonce=row.nonce, content_sha256=content)
        number = self._number()
        reviewer = row.requested_by if self.engine.chance(0.05) else f"operator:ann@{row.tenant}"
        caller = Caller(reviewer, row.tenant, ("approver",), ("*",))
        for _ in range(2 if self.engine.chance(0.2) else 1):  # pressed twice
            await at_gateway(self.plane, lambda process: self._decide(process, row, wanted, caller, number))

    async def _decide(self, process: Process, row: Any, wanted: Any, caller: Caller, number: int) -> None:
        store, publisher = self.plane.gateways[process.name]
        desk = Desk(self.plane.rules, {})
        outgoing: list[Any] = []
        async with store.transaction() as tx:
            known = await tx.approval(row.tenant, row.approval_id)
            if known is None:
                return
            key = f"decide-{number}"
            said = await approvals._decide(desk, tx, caller, desk, known, wanted, key, outgoing)
        end = said.extra.get("reason") if isinstance(said, Refused) and said.extra else type(said).__name__
        self.engine.note(f"review {row.approval_id}: {wanted.decision} {end}")
        if not isinstance(said, Refused):  # what the person is told is true
            kept = self.plane.databases["gateway"].tables["approval"].rows[row.approval_id,]
            same = (kept.nonce, kept.content_sha256) == (wanted.nonce, wanted.content_sha256)
            demand(same and kept.reviewer == caller.subject, f"{row.approval_id}: decided by somebody else")
            demand(kept.decision == wanted.decision, f"{row.approval_id}: told {wanted.decision}, is {kept.status}")
        if outgoing:
            await publisher.publish(outgoing)

    # events

    async def _send(self) -> None:
        cases = sorted(self.plane.databases["gateway"].rows("case_view"), key=lambda row: row.workflow_id)
        cases = [view for view in cases if view.definition != "command" and self._listens(view)]
        if not cases:
            return
        view = cases[self.engine.below(len(cases))]
        document = self.plane.documents[view.definition]
        expected = [step.wait.event for step in document.steps if step.wait is not None]
        if not expected:
            return
        event = expected[self.engine.below(len(expected))]
        number = self.engine.below(3)  # event ids are few, so that the same one is sent again
        data = {"ok": number != 1}
        for _ in range(2 if self.engine.chance(0.2) else 1):
            await at_gateway(self.plane, lambda process: self._signal(process, view, event, f"{event}-{number}", data))

    def _listens(self, view: Any) -> bool:
        if view.status in INSTANCE_TERMINAL:
            return self.engine.chance(0.1)
        if not self.plane.healed:
            return self.engine.chance(0.7)
        waits = any(item["phase"] == StepPhase.WAITING and item["kind"] == "wait" for item in view.instance.steps)
        return waits and self.engine.chance(0.3)

    async def _signal(self, process: Process, view: Any, event: str, event_id: str, data: Any) -> None:
        store, publisher = self.plane.gateways[process.name]
        async with store.transaction() as tx:
            if await tx.case_of(Reader(view.tenant), view.workflow_id) is None:
                return
            moment = await tx.moment()
            row = SignalRow(
                workflow_id=view.workflow_id,
                event_id=event_id,
                tenant=view.tenant,
                fingerprint=digest([event, data]),
                type=event,
                actor=f"agent@{view.tenant}",
                disposition="pending",
                received_at=moment.business,
            )
            if not await tx.save_signal(row):
                return
            received = SignalReceived(
                event_id=event_id,
                workflow_id=view.workflow_id,
                tenant=view.tenant,
                type=event,
                data=data,
                actor=row.actor,
                received_at=row.received_at,
            )
            name = f"{view.workflow_id}:signal:{event_id}"
            outgoing = telling(received, "signal", view.tenant, name, moment, None)
            await tx.post([outgoing])
        self.engine.note(f"signal {event_id} to {view.workflow_id}")
        await publisher.publish([outgoing])

    # operating

    async def _operate(self) -> None:
        cases = sorted(self.plane.databases["gateway"].rows("case_view"), key=lambda row: row.workflow_id)
        cases = [view for view in cases if view.status not in INSTANCE_TERMINAL]
        if not cases:
            return
        view = cases[self.engine.below(len(cases))]
        paused = view.status == InstanceStatus.PAUSED
        if self.plane.healed:
            if paused and self.engine.chance(0.9):
                await self._control(view, control.RESUME)
        elif self.engine.chance(0.3 if paused else self.meddling):
            actions = control.ALLOWED[InstanceStatus(view.status)]
            if actions:
                await self._control(view, actions[self.engine.below(len(actions))])

    async def _control(self, view: Any, action: str) -> None:
        number = self._number()
        wanted = operations.OperatorCommandRequest(
            action=action,
            target=operations.TargetWanted(kind="workflow", id=view.workflow_id),
            reason="simulated",
        )
        await at_gateway(self.plane, lambda process: self._ask(process, view, wanted, number))

    async def _ask(self, process: Process, view: Any, wanted: Any, number: int) -> None:
        store, publisher = self.plane.gateways[process.name]
        desk = Desk(self.plane.rules, {})
        caller = Caller(f"operator:bob@{view.tenant}", view.tenant, ("operator",))
        async with store.transaction() as tx:
            known = await tx.case_of(Reader(view.tenant), view.workflow_id)
            moment = await tx.moment()
            row = await operations._admit(desk, tx, caller, desk, known, wanted, moment.business)
            asked = ControlAsked(
                control_id=f"opc_{self.engine.seed:x}_{number}",
                workflow_id=view.workflow_id,
                tenant=view.tenant,
                action=row.action.lower(),
                actor=row.actor,
                reason=row.reason,
                at=moment.business,
            )
            outgoing = telling(asked, "control", view.tenant, asked.control_id, moment, None)
            await tx.post([outgoing])
        self.engine.note(f"control {asked.action} of {view.workflow_id}")
        await publisher.publish([outgoing])
