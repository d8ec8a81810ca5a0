"""The gateway as real processes: two replicas on one port, on a real bus and database with its own rights only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest
import pytest_asyncio
from tests.gateway.asks import question_of, waiting_case
from tests.gateway.edge import CONNECTIONS, DECLARATIONS, ISSUER, SIGNING, draft, later
from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer, Database, run_apart

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ApprovalDecided,
    CaseAnswered,
    CaseChanged,
    GrantRequest,
    OperatorCommand,
    SignalDisposed,
    SignalReceived,
    StartCase,
)
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.contracts.task import ExecuteTask, Operation
from trueup_common.contracts.topology import CONSUMERS, event_subject, grant_subject, task_consumer
from trueup_common.runtime.bootstrap import load_catalog
from trueup_common.runtime.bus import Bus, BusPublisher, ConsumerSource
from trueup_common.runtime.clock import monotonic, real_now
from trueup_common.runtime.governance import GovernanceWatch
from trueup_common.runtime.objects import ObjectStore
from trueup_devkit.children import free_port
from trueup_gateway.tokens import SigningKey

SECONDS_OF_GOVERNANCE_MAX = 15.0
"""A second where nothing else runs; the rest is for a slow machine."""


def private_jwk(key: SigningKey) -> str:
    return json.dumps({**key.key.as_dict(private=True), "kid": key.kid})


async def eventually(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    end = monotonic() + PATIENCE_SECONDS
    while monotonic() < end:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not in time: {what}")


@dataclass
class Running:
    """Replicas, a client, and the outside as orchestrator and adapter see it."""

    port: int
    client: httpx.AsyncClient
    environment: dict[str, str]
    orchestrator: Bus
    adapters: Bus
    commands: ConsumerSource
    log: BinaryIO
    replicas: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def spawn(self, name: str, **changes: str) -> asyncio.subprocess.Process:
        environment = {**self.environment, "TRUEUP_INSTANCE": name, **changes}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trueup_gateway.main",
            env=environment,
            stdout=self.log,
            stderr=asyncio.subprocess.PIPE,
        )
        self.replicas.append(process)
        return process

    async def ready(self, health_port: int | None = None) -> None:
        """Wait until a replica is ready: whichever takes the connection, or the one that tells its health there."""
        place = "/readyz" if health_port is None else f"http://127.0.0.1:{health_port}/readyz"

        async def look() -> bool:
            try:
                return (await self.client.get(place)).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(look, "ready")

    async def token(self, **changes: Any) -> dict[str, str]:
        body = {"sub": "agent:publisher", "tenant": "acme", "roles": ["agent"], **changes}
        response = await self.client.post("/dev/token", json=body)
        return {"Authorization": f"Bearer {response.json()['access_token']}"}

    async def capability(self, max_uses: int = 1) -> dict[str, Any]:
        headers = await self.token()
        body = {
            "action": {"command_types": ["wordpress.create_draft"]},
            "purpose": "test",
            "resource": {"system": "wordpress", "resource": "post/*"},
        }
        decision = (await self.client.post("/v1/decisions", json=body, headers=headers)).json()
        wanted = {"decision_id": decision["decision_id"], "max_uses": max_uses}
        found: dict[str, Any] = (await self.client.post("/v1/capabilities", json=wanted, headers=headers)).json()
        return found

    async def next_start(self, key: str) -> StartCase:
        """The StartCase of a key, as the orchestrator receives it."""

        async def look() -> StartCase | None:
            for delivery in await self.commands.fetch(10):
                await delivery.ack()
                start = StartCase.model_validate_json(delivery.message.data)
                if start.idempotency_key == key:
                    self.reply_to = delivery.message.reply_to
                    return start
            return None

        found: StartCase = await eventually(look, f"StartCase of {key}")
        return found

    async def say(self, body: Any, subject: str, message_id: str, *, core: bool = False) -> None:
        message = Message(
            id=message_id,
            type=type(body).__name__,
            subject=subject,
            tenant="acme",
            source="orchestrator",
            time=real_now(),
            data=body.model_dump_json().encode(),
        )
        await BusPublisher(self.orchestrator).publish([Outgoing(message, durable=not core, core=core)])


@pytest.fixture(scope="module")
def bus_with_catalog(plane_bus: BusServer) -> BusServer:
    run_apart(lambda: load_catalog(plane_bus.admin_url, DECLARATIONS, CONNECTIONS))
    return plane_bus


@pytest_asyncio.fixture
async def running(gateway_database: Database, bus_with_catalog: BusServer, tmp_path: Path) -> AsyncIterator[Running]:
    log = tmp_path / "gateway.log"
    port = free_port()
    secrets = {"SIGNING_KEY": private_jwk(SIGNING), "DEV_ISSUER_KEY": private_jwk(ISSUER)}
    secrets["GRANT_KEYS"] = json.dumps({"wordpress": "a" * 43, "bench": "b" * 43})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUEUP_")}
    for name, value in secrets.items():
        path = tmp_path / name.lower()
        path.write_text(value)
        environment[f"TRUEUP_{name}_FILE"] = str(path)
    environment |= {
        "TRUEUP_MODE": "development",
        "TRUEUP_PORT": str(port),
        "TRUEUP_DATABASE_URL": gateway_database.url("gateway"),
        "TRUEUP_NATS_URL": bus_with_catalog.url("gateway"),
    }
    orchestrator = await Bus.connect(bus_with_catalog.url("orchestrator"), service="orchestrator", name="test")
    adapters = await Bus.connect(bus_with_catalog.url("adapters"), service="adapters", name="test")
    commands = ConsumerSource(orchestrator, next(c for c in CONSUMERS if c.durable == "orchestrator-commands"))
    await commands.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
        with log.open("wb") as told:
            found = Running(port, client, environment, orchestrator, adapters, commands, told)
            yield found
            for process in found.replicas:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    await commands.stop()
    await orchestrator.close()
    await adapters.close()


async def test_from_the_token_to_the_final_answer(running: Running) -> None:
    """Command out, grant minted, views projected, waiting client answered; a SIGTERM drains with exit code 0.

    Requirements: G1, G5, M1
    """
    process = await running.spawn("gateway")
    await running.ready()
    capability = await running.capability()
    headers = {
        "Authorization": f"Bearer {capability['capability']}",
        "Idempotency-Key": '"whole"',
        "Prefer": "wait=60",
    }
    asked = asyncio.create_task(running.client.post("/v1/commands", json=draft("whole"), headers=headers))
    start = await running.next_start("whole")
    reader = await running.token()
    received = (await running.client.get(f"/v1/commands/{start.command_id}", headers=reader)).json()
    assert received["state"] == "RECEIVED"

    await running.say(_proposal(start), grant_subject("acme"), "proposal-1")
    tasks = ConsumerSource(running.adapters, task_consumer("wordpress"))
    await tasks.start()

    async def task() -> ExecuteTask | None:
        for delivery in await tasks.fetch(5):
            await delivery.ack()
            return ExecuteTask.model_validate_json(delivery.message.data)
        return None

    granted = await eventually(task, "the granted task")
    assert granted.grant and granted.fence == 2
    await tasks.stop()

    row = JournalRow.model_validate(
        {**received, "state": OperationState.SUCCESS, "state_version": 5, "receipt": {"post_id": 7}, "subject": None}
    )
    instance = _instance(start)
    await running.say(CaseAnswered(instance=instance, operation=row), running.reply_to, "answer-1", core=True)
    answered = await asked
    assert answered.status_code == 200 and answered.json()["receipt"] == {"post_id": 7}
    await running.say(
        CaseChanged(instance=instance, operations=(row,)), event_subject("orchestrator", "case", "acme"), "case-1"
    )

    async def projected() -> bool:
        case = await running.client.get(f"/v1/workflows/{start.workflow_id}", headers=reader)
        return bool(case.json()["status"] == "CLOSED")

    await eventually(projected, "the projected case")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0


async def test_people_and_the_orchestrator_hear_of_each_other(running: Running) -> None:
    """Over the real bus with each service's own rights: a question is asked, answered by a person and heard; a signal
    and a cancel go out, and what became of the signal comes back.

    Requirements: L9, L10, L12
    """
    await running.spawn("gateway")
    await running.ready()
    events, signals = (
        ConsumerSource(running.orchestrator, next(c for c in CONSUMERS if c.durable == name))
        for name in ("orchestrator-events", "orchestrator-signals")
    )
    for source in (events, signals):
        await source.start()
    heard: dict[str, Message] = {}

    async def hear(kind: str) -> Message:
        async def look() -> Message | None:
            for delivery in await (signals if kind == "SignalReceived" else events).fetch(5):
                await delivery.ack()
                heard[delivery.message.type] = delivery.message
            return heard.get(kind)

        found: Message = await eventually(look, kind)
        return found

    now = real_now()
    case = waiting_case(now)
    await running.say(
        CaseChanged(instance=case, operations=()), event_subject("orchestrator", "case", "acme"), "case-9"
    )
    asked = question_of(case, now)
    await running.say(asked, event_subject("orchestrator", "approval", "acme"), "ask-9")
    reviewer = await running.token(sub="operator:editor", roles=["approver"], scopes=["content:*"])
    place = f"/v1/approvals/{asked.approval_id}"

    async def shown() -> dict[str, Any] | None:
        response = await running.client.get(place, headers=reviewer)
        return response.json() if response.status_code == 200 else None

    approval = await eventually(shown, "the approval")
    body = {"decision": "approve", "nonce": approval["nonce"], "content_sha256": approval["content_sha256"]}
    headers = {**reviewer, "Idempotency-Key": "once"}
    response = await running.client.post(f"{place}/decision", json=body, headers=headers)
    assert response.status_code == 200, response.text
    end = ApprovalDecided.model_validate_json((await hear("ApprovalDecided")).data)
    assert (end.approval_id, end.outcome, end.reviewer) == (asked.approval_id, "approved", "operator:editor")

    agent = await running.token()
    event = {"event_id": "evt 1", "type": "partner.reply", "data": 1}
    url = f"/v1/workflows/{case.workflow_id}"
    sent = asyncio.create_task(running.client.post(f"{url}/signals", json=event, headers=agent))
    assert SignalReceived.model_validate_json((await hear("SignalReceived")).data).event_id == "evt 1"
    told = SignalDisposed(
        event_id="evt 1", workflow_id=case.workflow_id, tenant="acme", disposition="held", at=real_now()
    )
    await running.say(told, event_subject("orchestrator", "signal", "acme"), "signal-9")
    assert (await sent).json()["disposition"] in ("held", "pending")

    async def disposed() -> bool:
        found = await running.client.get(f"{url}/signals/evt%201", headers=agent)
        return bool(found.json()["disposition"] == "held")

    await eventually(disposed, "the signal's disposition")
    headers = {**agent, "Idempotency-Key": "end-it"}
    assert (await running.client.post(f"{url}/cancel", json={"reason": "x"}, headers=headers)).status_code == 202
    command = OperatorCommand.model_validate_json((await hear("OperatorCommand")).data)
    assert (command.action, command.workflow_id) == ("CANCEL", case.workflow_id)
    for source in (events, signals):
        await source.stop()


def _proposal(start: StartCase) -> GrantRequest:
    operation = Operation(
        command_id=start.command_id,
        workflow_id=start.workflow_id,
        tenant=start.tenant,
        command_type=start.command_type,
        declaration_sha256=start.declaration_sha256,
        target=start.target,
        payload=start.payload,
        payload_sha256=start.payload_sha256,
        idempotency_key=start.idempotency_key,
    )
    task = ExecuteTask(
        operation=operation,
        fence=2,
        attempt_id=attempt_id(start.command_id, 2),
        start_by=later(PATIENCE_SECONDS),
        lease_expires_at=later(2 * PATIENCE_SECONDS),
    )
    return GrantRequest(mandate_id=start.mandate.mandate_id, task=task)


def _instance(start: StartCase) -> InstanceRow:
    return InstanceRow(
        workflow_id=start.workflow_id,
        saga_id=start.saga_id,
        tenant="acme",
        definition="command",
        sha256="s",
        status=InstanceStatus.CLOSED,
        state_version=5,
        object_type="wordpress",
        object_id="post",
        subject=start.mandate.subject,
        mandate={},
        created_at=start.accepted_at,
        deadline_at=start.deadline_at,
        closed_at=later(0),
    )


async def test_one_key_over_two_replicas_on_one_port(running: Running) -> None:
    """50 requests with the same key over connections to both replicas are one command; killing one loses nothing.

    Requirements: I1, I2, N
    """
    places = {"gateway": free_port(), "gateway-2": free_port()}
    first, _ = [await running.spawn(name, TRUEUP_HEALTH_PORT=str(port)) for name, port in places.items()]
    for port in places.values():
        await running.ready(port)
    capability = await running.capability(max_uses=5)
    headers = {
        "Authorization": f"Bearer {capability['capability']}",
        "Idempotency-Key": '"port"',
        "Connection": "close",
    }
    responses = await asyncio.gather(
        *(running.client.post("/v1/commands", json=draft("port"), headers=headers) for _ in range(50))
    )
    accepted = [response for response in responses if response.status_code == 202]
    assert {response.status_code for response in responses} <= {202, 409, 503}
    busy = [response for response in responses if response.status_code == 503]  # where fifty are too many at once
    assert all(response.headers["retry-after"] for response in busy)
    firsts = sum("idempotent-replayed" not in response.headers for response in accepted)
    assert firsts == 1 or (firsts == 0 and busy), "the first may have been told 503, and nobody is told twice"
    assert len({response.json()["command_id"] for response in accepted}) == 1
    assert (await running.next_start("port")).command_id == accepted[0].json()["command_id"]
    first.kill()
    await first.wait()

    async def again() -> bool:
        try:
            response = await running.client.post("/v1/commands", json=draft("port"), headers=headers)
        except httpx.TransportError:
            return False
        return response.status_code == 202 and response.json()["command_id"] == accepted[0].json()["command_id"]

    await eventually(again, "the same answer from the other replica")


async def test_governance_reaches_every_service_within_seconds(running: Running) -> None:
    """Revocations and freezes stand in the bucket, and the beat confirms the set, so that nobody is stale.

    Requirements: G6
    """
    await running.spawn("gateway")
    await running.ready()
    watch = GovernanceWatch()
    await watch.follow(running.adapters)
    capability = await running.capability()
    path = f"/v1/capabilities/{capability['capability_id']}/revoke"
    begun = monotonic()
    assert (await running.client.post(path, headers=await running.token())).status_code == 200
    operator = {**await running.token(sub="operator:ops", roles=["operator"]), "Idempotency-Key": "watch"}
    body = {"scope": {"system": "bench"}, "reason": "test"}
    frozen = await running.client.post("/v1/controls/freezes", json=body, headers=operator)
    fields = {"tenant": "acme", "system": "bench", "command_type": "bench.post"}

    async def known() -> bool:
        return (
            watch.revoked("capability", capability["capability_id"])
            and watch.freeze_of(fields) is not None
            and not watch.stale
        )

    await eventually(known, "revocation and freeze in the watch")
    assert monotonic() - begun < SECONDS_OF_GOVERNANCE_MAX
    assert watch.freeze_of({**fields, "tenant": "globex"}) is None and watch.policy_sha256
    path = f"/v1/controls/freezes/{frozen.json()['freeze_id']}"
    await running.client.delete(path, headers={**operator, "Idempotency-Key": "unwatch"})

    async def lifted() -> bool:
        return watch.freeze_of(fields) is None and not watch.stale

    await eventually(lifted, "the lifted freeze")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TRUEUP_MODE": "production", "TRUEUP_DEV_ISSUER": "1"}, "TRUEUP_DEV_ISSUER"),
        ({"TRUEUP_MODE": "production", "TRUEUP_SIGNING_KEY_FILE": ""}, "TRUEUP_SIGNING_KEY"),
        ({"TRUEUP_SIGNING_KEY": "nonsense", "TRUEUP_SIGNING_KEY_FILE": ""}, "TRUEUP_SIGNING_KEY"),
        ({"TRUEUP_ROLES": "api,wizard"}, "TRUEUP_ROLES"),
        ({"TRUEUP_GRANT_KEYS": '{"wordpress": "nonsense"}', "TRUEUP_GRANT_KEYS_FILE": ""}, "grant keys"),
    ],
)
async def test_unsafe_settings_refuse_to_start(running: Running, changes: dict[str, str], words: str) -> None:
    """A production gateway never carries the development issuer; unusable keys and roles end the process, told."""
    process = await running.spawn("gateway", **changes)
    _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode not in (0, None)
    assert words in errors.decode() and "nonsense" not in errors.decode().replace("TRUEUP", "")


async def test_production_mode_serves_no_development_token(running: Running) -> None:
    """The same keys, the other mode: no issuer, and its tokens count for nothing."""
    await running.spawn("gateway", TRUEUP_MODE="production")
    await running.ready()
    body = {"sub": "agent:x", "tenant": "acme", "roles": ["agent"]}
    assert (await running.client.post("/dev/token", json=body)).status_code == 404
    from trueup_gateway.tokens import sign_access

    token = sign_access(
        ISSUER, subject="agent:x", tenant="acme", roles=["agent"], scopes=[], ttl_seconds=60, real=real_now()
    )
    response = await running.client.get("/v1/commands", headers={"Authorization": f"Bearer {token}"})
    assert response.status_code == 401 and response.json()["check"] == "signature"


async def test_the_wire_is_bounded(running: Running) -> None:
    """A body without an end is cut off with 413 after its bound, and the next connection is served as before.

    Requirements: T3
    """
    await running.spawn("gateway")
    await running.ready()
    capability = (await running.capability())["capability"]
    head = (
        f"POST /v1/commands HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {capability}\r\nIdempotency-Key: wire\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
    loop = asyncio.get_running_loop()
    # A bare socket: what arrived before a reset can still be read from it, where asyncio's streams throw it away.
    with socket.socket() as wire:
        wire.setblocking(False)
        await loop.sock_connect(wire, ("127.0.0.1", running.port))
        await loop.sock_sendall(wire, head.encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                await loop.sock_sendall(wire, chunk)
        status = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while b"\r\n" not in status and (more := await loop.sock_recv(wire, 4096)):
                status += more
    assert status.split()[1] == b"413", status
    headers = {"Authorization": f"Bearer {capability}", "Idempotency-Key": "wire"}
    assert (await running.client.post("/v1/commands", json=draft("wire"), headers=headers)).status_code == 202


async def test_a_payload_that_is_kept_on_the_bus_reaches_the_adapters_by_reference(running: Running) -> None:
    """Two MiB go up as an artifact and come back whole; the command's message names them, and adapters read them.

    Requirements: L16, X1, T1
    """
    await running.spawn("gateway")
    await running.ready()
    headers = await running.token()
    payload = {"title": "Long", "slug": "long-1", "content": "word " * 420_000}
    raw = json.dumps(payload).encode()
    made = await running.client.post("/v1/artifacts", content=raw, headers=headers)
    assert made.status_code == 201, made.text
    name, sha256 = made.json()["artifact_id"], made.json()["sha256"]
    back = await running.client.get(f"/v1/artifacts/{name}", headers=headers)
    assert (back.content, back.headers["etag"]) == (raw, f'"{sha256}"')
    capability = await running.capability()
    body = {key: value for key, value in draft("long-1").items() if key != "payload"} | {"payload_ref": name}
    sent = {"Authorization": f"Bearer {capability['capability']}", "Idempotency-Key": '"long-1"'}
    accepted = await running.client.post("/v1/commands", json=body, headers=sent)
    assert accepted.status_code == 202, accepted.text
    start = await running.next_start("long-1")
    assert (start.payload, start.payload_sha256) == ({"slug": "long-1"}, digest(payload))
    assert start.payload_ref is not None
    assert await ObjectStore(running.adapters).get("acme", start.payload_ref.artifact_id, sha256) == raw
    refused = await running.client.delete(f"/v1/artifacts/{name}", headers=headers)
    assert refused.status_code == 409
    other = (await running.client.post("/v1/artifacts", content=b"x" * 200_000, headers=headers)).json()
    assert (await running.client.delete(f"/v1/artifacts/{other['artifact_id']}", headers=headers)).status_code == 200
    assert await ObjectStore(running.adapters).get("acme", other["artifact_id"], other["sha256"]) is None
    oversized = await running.client.post("/v1/artifacts", content=b"x" * (16 * 1024**2 + 1), headers=headers)
    assert oversized.status_code == 413
