"""Repairs in the simulated plane: the planner's own execution, over a gateway that answers, refuses, or says nothing.

A repair command is accepted by the gateway's own code, on whichever replica is alive, under the key of its repair; so
an answer that is lost leaves an acceptance that the next call finds again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.crashing import SimulatedCrashPoints
from tests.simulation.declarations import BY_TYPE
from tests.simulation.engine import Process, Sleep
from trueup_common.contracts.canonical import digest, fingerprint
from trueup_common.contracts.ids import command_id
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.core.acceptance import Accepted, Replayed, Submission, identity_of
from trueup_gateway.core.refusal import Refused
from trueup_repair_planner.core.calls import Answer, Call
from trueup_repair_planner.execution import Execution
from trueup_repair_planner.handler import rules_of

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

PAUSE_SECONDS: Final = 1.0
LOST: Final = Answer(0)


class SimulatedExecution(Execution):
    """The planner's own rounds, one repair after another: here is no event loop that could gather them."""

    async def once(self) -> int:
        """One round."""
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

    def __init__(self, plane: Plane, process: Process) -> None:
        self.plane = plane
        self.engine = plane.engine
        self._asker = f"{process.name[-1]}{process.incarnation}"
        self._asked = 0

    async def send(self, asked: Call) -> Answer:
        """One request. Its answer may be lost, whatever it did."""
        await Sleep(self.engine.between(0.01, 0.3))
        if not self.plane.healed and self.engine.strikes("the gateway does not answer a repair", 0.1):
            return LOST
        answer = await self._answer(asked)
        if not self.plane.healed and self.engine.strikes("an answer to a repair is lost", 0.1):
            return LOST
        return answer

    async def _answer(self, asked: Call) -> Answer:
        self._asked += 1
        name = f"{self.engine.seed:x}-{self._asker}-{self._asked}"
        body = asked.body or {}
        match asked.method, asked.path:
            case "POST", "/v1/decisions":
                denied = not self.plane.healed and self.engine.strikes("a repair is denied", 0.08)
                return self._decided(asked.tenant, body, f"dec_r{name}", "denied" if denied else "approved")
            case "POST", "/v1/capabilities":
                return self._allowed(asked.tenant, body["decision_id"], f"cap_r{name}")
            case "POST", "/v1/commands":
                return await self._command(asked, body, name)
            case "GET", path if path.startswith("/v1/commands/"):
                return self._seen(path.rpartition("/")[2])
        return Answer(403, {"type": "about:blank/forbidden", "detail": "repairs act on drift only, here"})

    def _decided(self, tenant: str, body: dict[str, Any], decision_id: str, outcome: str) -> Answer:
        """A decision about exactly this repair, as policy would leave it."""
        (command_type,) = body["action"]["command_types"]
        decisions = self.plane.databases["gateway"].tables["decision"].rows
        like = decisions[f"dec_{tenant}_{command_type}",]
        decisions[decision_id,] = like.evolve(
            decision_id=decision_id, outcome=outcome, supersedes=body["context"]["supersedes"], revoked_at=None
        )
        return Answer(201, {"decision_id": decision_id, "outcome": outcome})

    def _allowed(self, tenant: str, decision_id: str, capability_id: str) -> Answer:
        """A capability for one use."""
        gateway = self.plane.databases["gateway"]
        (command_type,) = gateway.tables["decision"].rows[decision_id,].command_types
        capabilities = gateway.tables["capability"].rows
        like = capabilities[f"cap_{tenant}_{command_type}",]
        capabilities[capability_id,] = like.evolve(
            capability_id=capability_id, decision_id=decision_id, max_uses=1, uses_left=1, revoked_at=None
        )
        return Answer(201, {"capability": capability_id})

    async def _command(self, asked: Call, body: dict[str, Any], name: str) -> Answer:
        gateways = [item for item in self.plane.processes if item.service == "gateway" and item.alive]
        if not gateways or asked.key is None:
            return LOST
        process = gateways[self.engine.below(len(gateways))]
        submission = self._submission(asked, body, name)
        task = process.spawn(self._accept(process, submission), "repair")
        while not task.done:
            await Sleep(0.05)
        verdict = task.result
        if isinstance(verdict, Accepted):
            self.engine.injected["a drift is repaired"] += 1
            return Answer(202, {"command_id": verdict.submission.command_id})
        if isinstance(verdict, Replayed):
            return Answer(200, {"command_id": verdict.edge.command_id})
        if isinstance(verdict, Refused):
            said = {"type": f"about:blank/{verdict.problem.slug}", "detail": verdict.detail, **verdict.extra}
            return Answer(verdict.problem.status, said)
        return LOST

    async def _accept(self, process: Process, submission: Submission) -> Any:
        acceptor, publisher = self.plane.acceptors[process.name]
        try:
            verdicts, outgoing = await acceptor._commit([submission])
        except StoreBusy as busy:
            return Refused("unavailable", str(busy))
        self.engine.note(f"repair {submission.key}: {type(verdicts[0]).__name__}")
        if outgoing:
            await publisher.publish(outgoing)
        return verdicts[0]

    def _submission(self, asked: Call, body: dict[str, Any], name: str) -> Submission:
        declaration, target = BY_TYPE[body["command_type"]], body["target"]
        aim = {"system": target["system"], "resource": target["resource"], "expected_version": None}
        workflow = f"wf_r{name}"
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
            saga_id=f"saga_r{name}",
            command_id=command_id(workflow, "command", 1),
            deadline_at=self.engine.business() + timedelta(seconds=600),
            supersedes=body.get("supersedes"),
        )

    def _seen(self, wanted: str) -> Answer:
        row = self.plane.operation(wanted)
        return Answer(404) if row is None else Answer(200, {"state": row.state.value})


async def carry_out(plane: Plane, process: Process, store: Any, publisher: Any) -> None:
    """What the planner's process does beside its loop: round after round."""
    execution = SimulatedExecution(
        store=store,
        publisher=publisher,
        crash=SimulatedCrashPoints(plane),
        rules=rules_of(),
        gateway=SimulatedGateway(plane, process),
    )
    await Sleep(plane.engine.between(0.0, PAUSE_SECONDS))
    while True:
        try:
            await execution.once()
        except StoreBusy:
            plane.engine.note(f"{process.name}: store busy")
        await Sleep(PAUSE_SECONDS)
