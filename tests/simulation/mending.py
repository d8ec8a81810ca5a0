"""Repairs in the simulated plane: the planner's own execution, over a gateway that answers, refuses, or says nothing.

The planner calls under its own narrow identity, and everything it asks for goes the gateway's own way, on whichever
replica is alive: decision, capability, acceptance, operator command, each under the policy set that ships with the
product. Only HTTP and signatures are missing: a capability's row stands for its token.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.crashing import SimulatedCrashPoints
from tests.simulation.declarations import BY_TYPE
from tests.simulation.desks import Caller, Desk, at_gateway
from tests.simulation.engine import Process, Sleep
from tests.simulation.naming import next_id
from trueup_common.contracts.canonical import digest, fingerprint
from trueup_common.contracts.ids import command_id
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api import approvals, decisions, operators
from trueup_gateway.api.acts import telling
from trueup_gateway.api.decisions import DecisionRequest
from trueup_gateway.api.intents import Intent, declarations_of
from trueup_gateway.core.acceptance import Accepted, Replayed, Submission, identity_of
from trueup_gateway.core.capability import Request, Wanted, check_request, narrow
from trueup_gateway.core.policy import Act, Question
from trueup_gateway.core.policy import Answer as Ruling
from trueup_gateway.core.questions import summary_of
from trueup_gateway.core.records import CallRow, CapabilityRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.policy import PolicySet
from trueup_repair_planner.core.calls import Answer, Call
from trueup_repair_planner.execution import Execution
from trueup_repair_planner.gateway_client import ROLE, SUBJECT

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

PAUSE_SECONDS: Final = 1.0
LOST: Final = Answer(0)
COMMAND_SECONDS: Final = 600


@lru_cache(maxsize=1)
def _shipped() -> PolicySet:
    return PolicySet.default()


@lru_cache(maxsize=10_000)
def ruled(question: Question | Act) -> Ruling:
    """What the policy set that ships with the product says to the planner: it has no rights beyond it."""
    return _shipped().ask(question)


class SimulatedExecution(Execution):
    """The planner's own rounds, one repair after another: here is no event loop that could gather them."""

    async def once(self) -> int:
        """One round, where there is anything to do."""
        assert self._due is not None
        if not await self._due():
            return 0
        claimed = await self._claim()
        if not claimed:
            return 0
        self._crash.reach("planner-repairs.claimed")
        turns = [await self._turn(repair) for repair in claimed]
        self._crash.reach("planner-repairs.asked")
        await self._settle(turns)
        return len(turns)


class SimulatedGateway:
    """The gateway behind the planner's port."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.engine = plane.engine

    async def send(self, asked: Call) -> Answer:
        """One request. Its answer may be lost, whatever it did."""
        await Sleep(self.engine.between(0.01, 0.3))
        if not self.plane.healed and self.engine.strikes("the gateway does not answer a repair", 0.1):
            return LOST
        answer = await at_gateway(self.plane, lambda process: self._answered(process, asked))
        if isinstance(answer, Refused):
            said = {"type": f"about:blank/{answer.problem.slug}", "detail": answer.detail, **answer.extra}
            if answer.check is not None:
                said["check"] = answer.check
            self.engine.note(f"repair refused: {answer.problem.slug} {answer.check or ''}")
            answer = Answer(answer.problem.status, said)
        if answer is None or (not self.plane.healed and self.engine.strikes("an answer to a repair is lost", 0.1)):
            return LOST
        return answer

    async def _answered(self, process: Process, asked: Call) -> Answer:
        match asked.method, asked.path:
            case "POST", "/v1/decisions":
                return await self._decided(process, asked)
            case "POST", "/v1/capabilities":
                return await self._allowed(process, asked)
            case "POST", "/v1/commands":
                return await self._accepted(process, asked)
            case "POST", "/v1/operator-commands":
                return await self._operated(process, asked)
            case "GET", path if path.startswith("/v1/commands/"):
                return self._seen(path.rpartition("/")[2])
            case "GET", path if path.startswith("/v1/approvals/"):
                return self._reviewed(path.rpartition("/")[2])
        return Answer(404, {})

    def _desk(self) -> Desk:
        return Desk(self.plane.rules, {}, self.plane.catalog, self.plane.payloads)

    def _caller(self, tenant: str) -> Caller:
        return Caller(SUBJECT, tenant, (ROLE,))

    async def _decided(self, process: Process, asked: Call) -> Answer:
        wanted, desk = DecisionRequest.model_validate(asked.body), self._desk()
        resource = wanted.resource
        assert resource is not None
        declared = declarations_of(desk, asked.tenant, wanted.action.command_types, resource.system)  # type: ignore[arg-type]
        intent = Intent(tuple(declared), resource.system, resource.resource)
        store, _ = self.plane.gateways[process.name]
        async with store.transaction() as tx:
            earlier = await self._earlier(tx, asked)
            if earlier is not None:
                return earlier
            row = await decisions._decide(desk, tx, self._caller(asked.tenant), wanted, intent, None)  # type: ignore[arg-type]
            row = await approvals.ask(tx, row, summary_of(row, {item.type: item for item in declared}))
            body = {"decision_id": row.decision_id, "outcome": row.outcome, "approval_id": row.approval_id}
            await self._keep(tx, asked, 201, body)
        self.engine.note(f"decision {row.decision_id} for {asked.tenant}: {row.outcome}")
        return Answer(201, body)

    async def _earlier(self, tx: Any, asked: Call) -> Answer | None:
        """What was answered under the key of a call before. Raises Refused where it stands for another one."""
        earlier = await tx.call(asked.tenant, str(asked.key))
        if earlier is None:
            return None
        if earlier.fingerprint != digest(asked.body):
            raise Refused("idempotency-key-reused", "This key stands for another call.")
        self.engine.injected["the planner asks again under its key"] += 1
        return Answer(earlier.status, earlier.body)

    async def _keep(self, tx: Any, asked: Call, status: int, body: dict[str, Any]) -> None:
        """Keep what is answered under the key of a call."""
        await tx.save_call(
            CallRow(
                tenant=asked.tenant,
                key=str(asked.key),
                fingerprint=digest(asked.body),
                status=status,
                body=body,
                created_at=(await tx.moment()).business,
            )
        )

    async def _allowed(self, process: Process, asked: Call) -> Answer:
        """A capability for one use, as wide as its decision and no wider."""
        body, engine = asked.body or {}, self.engine
        store, _ = self.plane.gateways[process.name]
        async with store.transaction() as tx:
            decision, now = await tx.decision(body["decision_id"]), (await tx.moment()).business
            assert decision is not None and decision.subject == SUBJECT
            bounds = narrow(decision, Wanted(max_uses=body["max_uses"], ttl_seconds=body["ttl_seconds"]), now)
            row = CapabilityRow(
                capability_id=next_id(engine, "cap"),
                tenant=decision.tenant,
                decision_id=decision.decision_id,
                subject=decision.subject,
                command_types=list(bounds.command_types),
                system=bounds.system,
                resource=bounds.resource,
                payload_sha256=bounds.payload_sha256,
                expected_version=bounds.expected_version,
                max_uses=body["max_uses"],
                uses_left=body["max_uses"],
                created_at=now,
                expires_at=bounds.expires_at,
            )
            await tx.save_capability(row)
        return Answer(201, {"capability": row.capability_id})

    async def _accepted(self, process: Process, asked: Call) -> Answer:
        submission = self._submission(asked, asked.body or {})
        acceptor, publisher = self.plane.acceptors[process.name]
        verdicts, outgoing = await acceptor._commit([submission])
        (verdict,) = verdicts
        self.engine.note(f"repair {submission.key}: {type(verdict).__name__}")
        if outgoing:
            await publisher.publish(outgoing)
        if isinstance(verdict, Accepted):
            self.engine.injected["a drift is repaired"] += 1
            return Answer(202, {"command_id": verdict.submission.command_id})
        if isinstance(verdict, Replayed):
            return Answer(200, {"command_id": verdict.edge.command_id})
        raise verdict

    def _submission(self, asked: Call, body: dict[str, Any]) -> Submission:
        """What the gateway makes of a request, after the checks that a token and a schema allow. Raises Refused."""
        declaration, target = BY_TYPE[body["command_type"]], body["target"]
        aim = {"system": target["system"], "resource": target["resource"], "expected_version": None}
        bounds = self.plane.databases["gateway"].tables["capability"].rows[str(asked.capability),]
        refused = check_request(
            permissions=[BY_TYPE[name].permission for name in bounds.command_types],
            command_types=bounds.command_types,
            system=bounds.system,
            resource=bounds.resource,
            payload_sha256=bounds.payload_sha256,
            expected_version=bounds.expected_version,
            request=Request(
                tenant=asked.tenant,
                command_type=declaration.type,
                permission=declaration.permission,
                system=aim["system"],
                resource=aim["resource"],
                payload_sha256=digest(body["payload"]),
                expected_version=None,
            ),
        )
        if refused is not None:
            raise refused
        workflow = next_id(self.engine, "wf")
        return Submission(
            tenant=asked.tenant,
            key=str(asked.key),
            fingerprint=fingerprint(declaration.type, aim, body["payload"]),
            identity=identity_of(declaration, aim, body["payload"]),
            capability_id=str(asked.capability),
            command_type=declaration.type,
            declaration=declaration,
            system=target["system"],
            resource=target["resource"],
            expected_version=None,
            payload=body["payload"],
            payload_sha256=digest(body["payload"]),
            workflow_id=workflow,
            saga_id=next_id(self.engine, "saga"),
            command_id=command_id(workflow, "command", 1),
            deadline_at=self.engine.business() + timedelta(seconds=COMMAND_SECONDS),
            supersedes=body.get("supersedes"),
        )

    async def _operated(self, process: Process, asked: Call) -> Answer:
        """An operator command of the planner's own, once per key."""
        wanted, desk = operators.OperatorCommandRequest.model_validate(asked.body), self._desk()
        caller = self._caller(asked.tenant)
        outgoing: list[Any] = []
        store, publisher = self.plane.gateways[process.name]
        async with store.transaction() as tx:
            earlier = await self._earlier(tx, asked)
            if earlier is not None:
                return earlier
            row, command = await operators.admit(desk, tx, caller, desk, wanted)  # type: ignore[arg-type]
            moment = await tx.moment()
            outgoing.append(telling(command, "operator", row.tenant, row.operator_command_id, moment, None))
            await tx.post(outgoing)
            body = {"operator_command_id": row.operator_command_id, "decision_id": row.decision_id}
            await self._keep(tx, asked, 202, body)
        self.engine.injected["the planner redrives or reconciles"] += 1
        self.engine.note(f"planner: {command.action} of {command.target_kind} {command.target_id}")
        await publisher.publish(outgoing)
        return Answer(202, body)

    def _seen(self, wanted: str) -> Answer:
        row = self.plane.operation(wanted)
        return Answer(404) if row is None else Answer(200, {"state": row.state.value, "error_code": row.error_code})

    def _reviewed(self, wanted: str) -> Answer:
        row = self.plane.databases["gateway"].tables["approval"].rows[wanted,]
        return Answer(200, {"status": row.status, "reason": row.reason})


async def any_due(plane: Plane) -> bool:
    """What the planner's process asks without a transaction: whether any repair is due."""
    now = plane.engine.business()
    rows = plane.databases["repair-planner"].tables["repair"].rows.values()
    return any(row.due_at is not None and row.due_at <= now and row.in_flight for row in rows)


async def carry_out(plane: Plane, process: Process, store: Any, publisher: Any) -> None:
    """What the planner's process does beside its loop: round after round."""
    execution = SimulatedExecution(
        store=store,
        publisher=publisher,
        crash=SimulatedCrashPoints(plane),
        rules=plane.planning,
        gateway=SimulatedGateway(plane),
        due=lambda: any_due(plane),
    )
    await Sleep(plane.engine.between(0.0, PAUSE_SECONDS))
    while True:
        try:
            await execution.once()
        except StoreBusy:
            plane.engine.note(f"{process.name}: store busy")
        await Sleep(PAUSE_SECONDS)
