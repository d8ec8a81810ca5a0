"""Those who start workflows and those whom they concern: reviewers, senders of events, operators.

They work through the gateway's own code, on whichever replica is alive, and repeat what was not answered. Nobody is
reliable: they answer late, twice, with an old hash, or never.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.bulk import Bulk
from tests.simulation.crashing import SimulatedCrashPoints
from tests.simulation.declarations import DECLARATIONS
from tests.simulation.desks import Caller, Desk, at_gateway
from tests.simulation.engine import Engine, Process, Sleep, Violation
from tests.simulation.verdict import demand
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.operators import CASE, UNVERIFIED, OperatorAction
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.contracts.workflow import StepPhase, WorkflowDocument
from trueup_gateway.api import approvals, operators
from trueup_gateway.api.acts import telling
from trueup_gateway.core.approval import WORKFLOW
from trueup_gateway.core.operators import effects_of
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.workflow_start import StartRequest
from trueup_gateway.signalling import Sending, Taken
from trueup_gateway.store import Reader

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

COMMAND: Final = "command"
BY_HASH: Final = {item.sha256: item for item in DECLARATIONS}
REPAIRS: Final = (
    OperatorAction.RETRY,
    OperatorAction.RECONCILE,
    OperatorAction.REDRIVE,
    OperatorAction.REDRIVE,
    OperatorAction.REPAIR,
    OperatorAction.REPAIR,
    OperatorAction.COMPENSATE,
    OperatorAction.SETTLE,
    OperatorAction.SETTLE,
    OperatorAction.SETTLE,
    OperatorAction.ESCALATE,
    OperatorAction.ASSIGN,
    OperatorAction.MARK_RESOLVED,
)
"""What people do about an exception."""
OPERATORS: Final = ("bob", "eve")
ACTS_MAX: Final = 6
"""How often people try with one exception."""
LATE_SECONDS: Final = 900.0
"""How long after an attempt whoever looks into the target waits before they say what is there."""

Wish = tuple[OperatorAction, dict[str, Any]]
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
            start = partial(self._start, request=self._request(tries), twin=self.engine.chance(0.2))
            answer = await at_gateway(self.plane, start)
            if isinstance(answer, Refused):
                if answer.problem.slug not in TRIES_AGAIN:
                    return None
            elif answer is not None:
                return str(answer.workflow_id)
            tries += 1
            await Sleep(self.engine.between(0.1, 1.0))

    async def _start(self, process: Process, request: StartRequest, *, twin: bool) -> Any:
        """One batch: the request, and with a twin the same request once more under ids of its own."""
        other = replace(request, workflow_id=f"{request.workflow_id}-twin", saga_id=f"{request.saga_id}-twin")
        requests = [request, other] if twin else [request]
        verdicts, outgoing = await self.plane.starters[process.name]._commit(requests)
        SimulatedCrashPoints(self.plane).reach("gateway-start.committed")
        if outgoing:
            await self.plane.gateways[process.name][1].publish(outgoing)
        first = verdicts[0]
        if isinstance(first, Refused):
            return first
        self.plane.engine.note(f"start {request.key}: {first.workflow_id}")
        if twin and verdicts[1:] != [replace(first, replayed=True)]:
            raise Violation(f"two starts in one batch became {verdicts}")
        return first

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
        self._acted: Counter[str] = Counter()
        self.bulk = Bulk(plane)
        self._answers: dict[str, tuple[str, bool]] = {}
        """How an approval is answered, and whether at all: decided when it is first seen."""

    def start(self) -> None:
        """Begin."""
        works = [self._review]
        works += [self._send] if self.of_workflows else []
        works += [self._operate] if self.of_workflows or self.meddling else []
        for work in works:
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
        if not answers and (row.kind == WORKFLOW or not self.plane.healed):
            return  # an approval of a case expires by itself; a repair's is answered at last
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
        """One batch: the signal, at times together with its repetition, or with another event under the same id."""
        engine = self.engine
        sent = Sending(
            sender=Reader(view.tenant),
            actor=f"agent@{view.tenant}",
            workflow_id=view.workflow_id,
            event_id=event_id,
            type=event,
            data=data,
            occurred_at=None,
            traceparent=None,
        )
        sendings = [sent]
        if engine.chance(0.3):
            sendings.append(sent if engine.chance(0.5) else replace(sent, data={"ok": not data["ok"]}))
        engine.injected["a callback twice in one batch"] += len(sendings) > 1
        verdicts, outgoing = await self.plane.takers[process.name]._commit(sendings)
        demand(len(outgoing) <= 1, f"{event_id}: one callback was kept {len(outgoing)} times")
        for sending, verdict in zip(sendings, verdicts, strict=True):
            if isinstance(verdict, Taken):
                demand(verdict.row.fingerprint == sending.fingerprint, f"{event_id}: another event was taken for it")
        SimulatedCrashPoints(self.plane).reach("gateway-signal.committed")
        engine.note(f"signal {event_id} to {view.workflow_id}: {len(outgoing)} new")
        await self.plane.gateways[process.name][1].publish(outgoing)

    # operating

    async def _end_unseen(self) -> None:
        """What nobody could observe in time is ended, with a word about every effect that stands."""
        rows = sorted(self.plane.databases["gateway"].rows("exception_view"), key=lambda row: row.exception_id)
        rows = [row for row in rows if row.status == "open" and row.envelope.get("failure_code") == UNVERIFIED]
        if rows:
            row = rows[self.engine.below(len(rows))]
            params = {"disposition": [_looked_after(name) for name in self._spoken_of(row)]}
            await self._act("exception", row.exception_id, row.tenant, OperatorAction.MARK_RESOLVED, params)

    async def _operate(self) -> None:
        if self.plane.thorough and self.plane.healed:
            await self._end_unseen()
        if self.engine.chance(0.5):
            await self._repair()
            return
        if self.plane.bulk and self.engine.chance(0.15):
            await self.bulk.look()
            return
        cases = sorted(self.plane.databases["gateway"].rows("case_view"), key=lambda row: row.workflow_id)
        cases = [view for view in cases if view.status not in INSTANCE_TERMINAL]
        if not cases:
            return
        view = cases[self.engine.below(len(cases))]
        if view.definition == COMMAND:
            await self._withdraw(view)
            return
        paused = view.status == InstanceStatus.PAUSED
        if self.plane.healed:
            if paused and self.engine.chance(0.9):
                await self._act("workflow", view.workflow_id, view.tenant, OperatorAction.RESUME)
        elif self.engine.chance(0.3 if paused else self.meddling):
            actions = CASE[InstanceStatus(view.status)]
            if actions:
                action = actions[self.engine.below(len(actions))]
                other = actions[self.engine.below(len(actions))]
                params, others = self._params(view, action), self._params(view, other)
                rival = (other, others) if self.engine.chance(0.3) else None
                await self._act("workflow", view.workflow_id, view.tenant, action, params, rival)

    async def _withdraw(self, view: Any) -> None:
        """Somebody cancels a single command."""
        rows = [
            row for row in self.plane.databases["gateway"].rows("command_view") if row.workflow_id == view.workflow_id
        ]
        if rows and not self.plane.healed and self.engine.chance(0.2 * self.meddling):
            rival = (OperatorAction.RETRY, {}) if self.engine.chance(0.3) else None
            await self._act("command", rows[0].command_id, view.tenant, OperatorAction.CANCEL, {}, rival)

    def _params(self, view: Any, action: OperatorAction) -> dict[str, Any]:
        if action is OperatorAction.MARK_RESOLVED:
            views = self.plane.databases["gateway"].rows("command_view")
            rows = [row.row for row in views if row.workflow_id == view.workflow_id]
            return {"disposition": [_looked_after(name) for name in effects_of(rows, BY_HASH)]}
        if action is not OperatorAction.RESUME or view.status == InstanceStatus.PAUSED or not view.instance.steps:
            return {}
        return {"from_step": view.instance.steps[self.engine.below(len(view.instance.steps))]["id"]}

    async def _repair(self) -> None:
        """Somebody looks at an open exception and does one of the things that may be done; often twice, and at times
        somebody else does another one at the same moment."""
        rows = sorted(self.plane.databases["gateway"].rows("exception_view"), key=lambda row: row.exception_id)
        rows = [row for row in rows if row.status == "open"]
        if not rows or not self.engine.chance(0.5 if self.plane.healed else 2 * self.meddling):
            return
        row = rows[self.engine.below(len(rows))]
        if self._acted[row.exception_id] >= ACTS_MAX:
            return
        self._acted[row.exception_id] += 1
        first, second = self._wish(row), self._wish(row)
        if first is not None:
            action, params = first
            rival = second if self.engine.chance(0.3) else None
            await self._act("exception", row.exception_id, row.tenant, action, params, rival)

    def _wish(self, row: Any) -> Wish | None:
        """What somebody would do about an exception; None where they do not know yet."""
        action = REPAIRS[self.engine.below(len(REPAIRS))]
        params: dict[str, Any] | None = {}
        if action is OperatorAction.ASSIGN:
            params = {"owner": f"team-{self.engine.below(2)}"}
        elif action is OperatorAction.MARK_RESOLVED:
            params = {"disposition": [_looked_after(name) for name in self._spoken_of(row)]}
        elif action is OperatorAction.SETTLE and row.command_id is None:
            params = None
        if action in (OperatorAction.SETTLE, OperatorAction.MARK_RESOLVED) and row.command_id is not None:
            found = self._finding(row.command_id)
            params = found if action is OperatorAction.SETTLE or found is None else params
        return (action, params) if params is not None else None

    def _spoken_of(self, row: Any) -> list[str]:
        """What a person speaks about who ends an exception: its operation, or every effect of its case that stands."""
        if row.command_id is not None or not str(row.workflow_id).startswith("wf_"):
            return [row.command_id or row.exception_id]
        views = self.plane.databases["gateway"].rows("command_view")
        return effects_of([view.row for view in views if view.workflow_id == row.workflow_id], BY_HASH)

    def _finding(self, command_id: str) -> dict[str, Any] | None:
        """What a person finds who looks into the target: the truth, once nothing can happen any more."""
        row, now = self.plane.operation(command_id), self.engine.business()
        last = row.last_attempt_at if row is not None else None
        if row is None or (last is not None and now - last < timedelta(seconds=LATE_SECONDS)):
            return None
        effects = self.plane.world.live(command_id)
        if len(effects) == 1 and self.engine.chance(0.8):
            name = effects[0].command_id[:12]
            receipt = {"id": name, "text": row.payload["text"], "created": effects[0].created}
            return {"finding": "EXISTS", "receipt": receipt, "external_resource_id": name}
        if not effects and self.engine.chance(0.8):
            return {"finding": "ABSENT"}
        return {"finding": "CLOSE", "disposition": [_looked_after(command_id)]}

    async def _act(
        self,
        kind: str,
        name: str,
        tenant: str,
        action: OperatorAction,
        params: dict[str, Any] | None = None,
        rival: Wish | None = None,
    ) -> None:
        if rival is not None:  # somebody else, at another replica, without knowing of it
            self.engine.injected["two operators at once"] += 1
            self.engine.injected["two operators who want different things"] += rival[0] is not action
            self.plane.clients.spawn(self._press(kind, name, tenant, rival, OPERATORS[1]), "rival")
        await self._press(kind, name, tenant, (action, params or {}), OPERATORS[0])

    async def _press(self, kind: str, name: str, tenant: str, wish: Wish, who: str) -> None:
        action, params = wish
        wanted = operators.OperatorCommandRequest(
            action=action,
            target=operators.TargetWanted(kind=kind, id=name),
            reason="simulated",
            evidence=["seen in the target"],
            params=params,
        )
        for press in range(2 if self.engine.chance(0.3) else 1):  # pressed twice, under another key
            self.engine.injected["an operator presses twice"] += press
            await at_gateway(self.plane, lambda process: self._ask(process, tenant, wanted, who))

    async def _ask(self, process: Process, tenant: str, wanted: Any, who: str) -> None:
        store, publisher = self.plane.gateways[process.name]
        desk = Desk(self.plane.rules, {}, self.plane.catalog, self.plane.payloads)
        caller = Caller(f"operator:{who}@{tenant}", tenant, ("operator",))
        async with store.transaction() as tx:
            moment = await tx.moment()
            row, asked = await operators.admit(desk, tx, caller, desk, wanted)
            outgoing = telling(asked, "operator", tenant, row.operator_command_id, moment, None)
            await tx.post([outgoing])
        self.plane.coverage["acts"][row.action] += 1
        self.engine.note(f"{asked.action} of {asked.target_kind} {asked.target_id}")
        await publisher.publish([outgoing])


def _looked_after(effect: str) -> dict[str, str]:
    return {"effect": effect, "became": "looked after by hand"}
