"""Accepted once: repetitions, races over two replicas, uses, identities and waiting, on a real database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import asyncpg
import pytest
from tests.gateway.asks import told
from tests.gateway.edge import GRANT_KEYS, EdgeUnderTest, draft, edge, later
from tests.gateway.test_refusals import problem
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import CaseChanged, StartCase
from trueup_common.contracts.grant import GrantClaims, refusal
from trueup_common.contracts.ids import attempt_id, command_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.contracts.task import ExecuteTask, Operation
from trueup_common.runtime.clock import real_now
from trueup_gateway.accept import Acceptor
from trueup_gateway.core import case_body, projection
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import GatewayTransaction, Reader

IDS = ("command_id", "workflow_id", "saga_id")


async def advance(gateway: EdgeUnderTest, name: str, state: OperationState, **changes: Any) -> JournalRow:
    """Project a later state of a command, as the worker does."""
    row = await gateway.gateway.reads.command_row(Reader("acme"), name)
    assert row is not None
    operation = JournalRow.model_validate(row)
    operation = operation.evolve(state=state, state_version=operation.state_version + 1, **changes)
    view = await gateway.gateway.reads.case(Reader("acme"), operation.workflow_id)
    assert view is not None
    instance: InstanceRow = view.instance.evolve(
        state_version=view.instance.state_version + 1, status=changes.get("status", InstanceStatus.RUNNING)
    )
    change = told(CaseChanged(instance=instance, operations=(operation,)))
    async with gateway.gateway.store.transaction() as tx:
        await tx.save_views(commands=projection.command_views([change]), cases=projection.case_views([change]))
        await tx.free_identities(projection.freed([change]))
    return operation


async def test_the_message_carries_everything_that_the_orchestrator_needs(gateway: EdgeUnderTest) -> None:
    """One outbox row per command: StartCase with mandate, hashes, deadline and a grant that covers the first attempt.

    Requirements: X1, G5
    """
    capability = await gateway.capability()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    wanted = draft("message", correlation_id="order 7", deadline=rfc3339(later(600)))
    body = (await gateway.submit(capability["capability"], "message", wanted, traceparent=trace)).json()
    (outgoing,) = gateway.publisher.published
    message = outgoing.message
    assert (message.id, message.type, message.subject) == (body["workflow_id"], "StartCase", "trueup.cmd.acme")
    assert message.traceparent == trace and message.reply_to is None
    start = StartCase.model_validate_json(message.data)
    assert start.command_id == body["command_id"] == command_id(start.workflow_id, "command", 1)
    assert start.trace_id == "0af7651916cd43dd8448eb211c80319c" and start.correlation_id == "order 7"
    assert start.payload == wanted["payload"] and start.payload_sha256 == digest(wanted["payload"])
    assert start.mandate.capability_id == capability["capability_id"] and start.mandate.effects_max == 1
    assert start.mandate.command_types == ("wordpress.create_draft",)
    claims = GRANT_KEYS.verify("wordpress", start.grant)
    assert isinstance(claims, GrantClaims)
    operation = Operation(
        command_id=start.command_id,
        workflow_id=start.workflow_id,
        tenant="acme",
        command_type=start.command_type,
        declaration_sha256=start.declaration_sha256,
        target=start.target,
        payload=start.payload,
        payload_sha256=start.payload_sha256,
        idempotency_key=start.idempotency_key,
    )
    task = ExecuteTask(
        operation=operation,
        fence=1,
        attempt_id=attempt_id(start.command_id, 1),
        start_by=later(30),
        lease_expires_at=later(60),
    )
    assert refusal(claims, task, now=real_now(), epoch_min=1) is None
    assert refusal(claims, task.evolve(fence=2), now=real_now(), epoch_min=1) == "fence"
    assert start.grant_expires_at is not None and start.grant_expires_at >= later(60)
    assert await gateway.count("outbox", f"message_id = '{message.id}'") == 1


async def test_a_repetition_gets_the_same_ids_and_consumes_nothing(gateway: EdgeUnderTest) -> None:
    """202 while it runs, 200 with the stored result once it is over; a quoted and a bare key are the same key.

    Requirements: I1, I2
    """
    capability = (await gateway.capability(max_uses=1))["capability"]
    first = await gateway.submit(capability, "again", draft("again"))
    assert first.status_code == 202 and "idempotent-replayed" not in first.headers
    second = await gateway.submit(capability, "again", draft("again", deadline=rfc3339(later(99)), correlation_id="x"))
    assert second.status_code == 202 and second.headers["idempotent-replayed"] == "true"
    assert [second.json()[name] for name in IDS] == [first.json()[name] for name in IDS]
    await advance(gateway, first.json()["command_id"], OperationState.RUNNING)
    headers = {"Authorization": f"Bearer {capability}", "Idempotency-Key": "again"}
    bare = await gateway.client.post("/v1/commands", json=draft("again"), headers=headers)
    assert bare.status_code == 202 and bare.json()["state"] == "RUNNING"
    receipt = {"post_id": 7, "slug": "again"}
    await advance(gateway, first.json()["command_id"], OperationState.SUCCESS, receipt=receipt)
    over = await gateway.submit(capability, "again", draft("again"))
    assert over.status_code == 200 and over.headers["idempotent-replayed"] == "true"
    assert over.json()["state"] == "SUCCESS" and over.json()["receipt"] == receipt
    assert [over.json()[name] for name in IDS] == [first.json()[name] for name in IDS]
    assert len(gateway.publisher.published) == 1 and await gateway.count("edge", "key = 'again'") == 1


async def test_another_agent_with_the_same_intent_learns_names_and_state_alone(gateway: EdgeUnderTest) -> None:
    """One key is one command whoever asks: the same ids, 202 and then 200. What was sent, under which authority, and
    what came back stays with the agent whose command it is, waiting or not, alone or in a batch.

    Requirements: I1, I2, T1, G5
    """
    ours = (await gateway.capability())["capability"]
    theirs = (await gateway.capability(sub="agent:other"))["capability"]
    wanted = draft("shared-intent")
    first = (await gateway.submit(ours, "shared-intent", wanted)).json()
    running = await gateway.submit(theirs, "shared-intent", wanted)
    assert (running.status_code, running.json()) == (202, first)
    receipt = {"post_id": 7, "slug": "shared-intent"}

    async def end() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not gateway.gateway.answers._waits:
                await asyncio.sleep(0.01)
        row = await advance(gateway, first["command_id"], OperationState.SUCCESS, receipt=receipt)
        gateway.gateway.answers.tell(row.model_dump(mode="json"))

    waited, _ = await asyncio.gather(gateway.submit(theirs, "shared-intent", wanted, Prefer="wait=10"), end())
    plain = await gateway.submit(theirs, "shared-intent", wanted)
    late = await gateway.submit(theirs, "shared-intent", wanted, Prefer="wait=10")
    for response in (waited, plain, late):
        assert (response.status_code, response.headers["idempotent-replayed"]) == (200, "true")
        assert response.json() == {**first, "state": "SUCCESS"}
    body = {"commands": [{"idempotency_key": "shared-intent", **wanted}]}
    batch = await gateway.client.post("/v1/commands:batch", json=body, headers={"Authorization": f"Bearer {theirs}"})
    (result,) = batch.json()["results"]
    assert result == {
        "status": 200,
        **first,
        "state": "SUCCESS",
        "replayed": True,
        "idempotency_key": "shared-intent",
    }
    mine = await gateway.submit(ours, "shared-intent", wanted)
    assert (mine.status_code, mine.json()["receipt"]) == (200, receipt)


async def test_a_key_with_another_payload_is_422(gateway: EdgeUnderTest) -> None:
    """Whatever differs in type, target or payload makes it another request, and leaves no row.

    Requirements: I2, I4
    """
    capability = (await gateway.capability(max_uses=5))["capability"]
    await gateway.submit(capability, "other", draft("other"))
    before = await gateway.rows()
    changed = draft("other")
    changed["payload"]["title"] = "Another title"
    elsewhere = draft("other")
    elsewhere["target"]["resource"] = "post/1"
    for body in (changed, elsewhere):
        problem(await gateway.submit(capability, "other", body), 422, "idempotency-key-reused")
    assert await gateway.rows() == before


async def test_tenants_do_not_share_keys(gateway: EdgeUnderTest) -> None:
    """The same key and slug of two tenants are two commands.

    Requirements: T1, I2
    """
    ours = await gateway.capability()
    theirs = await gateway.capability(tenant="globex")
    first = await gateway.submit(ours["capability"], "shared", draft("shared"))
    second = await gateway.submit(theirs["capability"], "shared", draft("shared"))
    assert first.status_code == second.status_code == 202
    assert first.json()["command_id"] != second.json()["command_id"]


async def test_fifty_at_once_over_two_replicas_are_one_command(gateway_database: Database) -> None:
    """The same key 50 times at the same moment, on two gateways and under two capabilities: one row, one message.

    Requirements: I1, I2, N
    """
    async with edge(gateway_database) as one, edge(gateway_database) as two:
        capabilities = [(await one.capability(max_uses=3))["capability"] for _ in range(2)]
        responses = await asyncio.gather(
            *(
                (one, two)[number % 2].submit(capabilities[number // 2 % 2], "race", draft("race"))
                for number in range(50)
            )
        )
        assert {response.status_code for response in responses} <= {202, 409}
        accepted = [response for response in responses if response.status_code == 202]
        assert len({response.json()["command_id"] for response in accepted}) == 1
        assert sum("idempotent-replayed" not in response.headers for response in accepted) == 1
        assert len(one.publisher.published) + len(two.publisher.published) == 1
        assert await one.count("edge", "key = 'race'") == 1
        async with one.database.connection() as connection:
            used = await connection.fetchval(
                "SELECT sum(max_uses - uses_left) FROM gateway.capability WHERE max_uses = 3"
            )
        assert used == 1


async def test_exactly_as_many_as_uses_are_accepted(gateway_database: Database) -> None:
    """Of 60 different commands at once on a capability of 7 uses, over two replicas, 7 are accepted.

    Requirements: G3, G4
    """
    async with edge(gateway_database) as one, edge(gateway_database) as two:
        capability = await one.capability("bench.post", system="bench", resource="*", max_uses=7)
        body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
        responses = await asyncio.gather(
            *((one, two)[number % 2].submit(capability["capability"], f"use-{number}", body) for number in range(60))
        )
        assert Counter(response.status_code for response in responses) == {202: 7, 403: 53}
        for response in responses:
            if response.status_code == 403:
                problem(response, 403, "forbidden", "uses")
        where = f"capability_id = '{capability['capability_id']}'"
        assert await one.count("edge", where) == await one.count("mandate", where) == 7
        assert await one.count("capability", f"{where} AND uses_left = 0") == 1


@pytest.mark.parametrize(
    ("change", "status", "code", "check"),
    [
        ("revoked_at = now()", 403, "forbidden", "revoked"),
        ("uses_left = 0", 403, "forbidden", "uses"),
        ("expires_at = trueup.now() - interval '1 s'", 401, "unauthorized", "time"),
    ],
)
async def test_what_was_read_of_a_capability_is_checked_where_its_use_is_counted(
    gateway: EdgeUnderTest, change: str, status: int, code: str, check: str
) -> None:
    """It is read without a lock. What happens to it after that, and before the write, still ends the acceptance.

    Requirements: G3, G4
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=3)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    acceptor, seen = gateway.gateway.acceptor, 0
    rules = acceptor._rules
    where = f"capability_id = '{capability['capability_id']}'"

    class Meanwhile(RuleBook):
        async def at(self, tx: Any, epoch: int) -> Rules:
            nonlocal seen
            seen += 1
            if seen == 1:
                async with gateway.database.connection() as connection:
                    await connection.execute(f"UPDATE gateway.capability SET {change} WHERE {where}")
            return await rules.at(tx, epoch)

    acceptor._rules = Meanwhile()
    try:
        response = await gateway.submit(capability["capability"], "late", body)
    finally:
        acceptor._rules = rules
    problem(response, status, code, check)
    assert seen == 2 and await gateway.count("edge", where) == await gateway.count("mandate", where) == 0


@pytest.fixture
def heard_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that was heard once is counted on from for as long as a slow machine needs."""
    monkeypatch.setattr("trueup_common.runtime.clock.HEARD_SECONDS", 3600.0)
    monkeypatch.setattr("trueup_common.runtime.clock.ANSWER_SECONDS", 3600.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each read of an acceptance was for."""
    counted: list[int] = []
    read = GatewayTransaction.accept_rows

    async def counting(tx: GatewayTransaction, capability_ids: Any, *rest: Any, **named: Any) -> Any:
        counted.append(len(capability_ids))
        return await read(tx, capability_ids, *rest, **named)

    monkeypatch.setattr(GatewayTransaction, "accept_rows", counting)
    return counted


@pytest.mark.usefixtures("heard_for_long")
@pytest.mark.parametrize(
    ("change", "status", "code", "check"),
    [
        ("capability SET revoked_at = now()", 403, "forbidden", "revoked"),
        ("capability SET uses_left = 0", 403, "forbidden", "uses"),
        ("capability SET expires_at = trueup.now() - interval '1 s'", 401, "unauthorized", "time"),
        ("decision SET revoked_at = now()", 403, "forbidden", "revoked"),
    ],
)
async def test_what_is_presumed_of_a_known_capability_is_checked_where_it_is_used(
    gateway: EdgeUnderTest, reads: list[int], change: str, status: int, code: str, check: str
) -> None:
    """A new request under a known capability is accepted without a read. Whatever changed meanwhile, by whomever,
    governance included, lets the write fail, and then it is read and refused; a taken key is found like that, too.

    Requirements: G3, G4, G6, I2, B3
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=9)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    kind = change.split()[0]
    first, second, late = (f"{name}-{kind}-{check}" for name in ("first", "second", "late"))
    assert (await gateway.submit(capability["capability"], first, body)).status_code == 202
    assert reads == [1]
    assert (await gateway.submit(capability["capability"], second, body)).status_code == 202
    assert reads == [1], "known by now"
    repeated = await gateway.submit(capability["capability"], first, body)
    assert repeated.status_code == 202 and repeated.headers["idempotent-replayed"] == "true"
    assert reads == [1, 1]
    async with gateway.database.connection() as connection:
        await connection.execute(f"UPDATE gateway.{change} WHERE {kind}_id = '{capability[f'{kind}_id']}'")
        if kind == "decision":  # as every change of governance does
            await connection.execute("UPDATE gateway.governance SET epoch = epoch + 1")
    problem(await gateway.submit(capability["capability"], late, body), status, code, check)
    assert reads == [1, 1, 1] and await gateway.count("edge", f"key = '{late}'") == 0


async def test_requests_that_wait_together_share_a_transaction(gateway: EdgeUnderTest) -> None:
    """100 requests at once need far fewer than 100 commits."""
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=200)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    responses = await asyncio.gather(
        *(gateway.submit(capability["capability"], f"batch-{number}", body) for number in range(100))
    )
    assert {response.status_code for response in responses} == {202}
    acceptor = gateway.gateway.acceptor
    assert acceptor.accepted_count == 100 and acceptor.batches_count < 40


async def test_another_key_for_a_taken_identity_is_409(gateway: EdgeUnderTest) -> None:
    """A random key per attempt cannot double an effect; the owner is named, and a failed owner lets go.

    Requirements: I2, N
    """
    capability = (await gateway.capability(max_uses=9))["capability"]
    first = (await gateway.submit(capability, "one", draft("taken"))).json()
    found = problem(await gateway.submit(capability, "two", draft("taken")), 409, "identity-in-use")
    assert found["command_id"] == first["command_id"] and found["identity"] == {"/payload/slug": "taken"}
    responses = await asyncio.gather(
        *(gateway.submit(capability, f"random-{number}", draft("contested")) for number in range(6))
    )
    assert sorted(response.status_code for response in responses) == [202] + [409] * 5
    await advance(gateway, first["command_id"], OperationState.FAILED, identity=None)
    assert (await gateway.submit(capability, "three", draft("taken"))).status_code == 202
    await advance(gateway, first["command_id"], OperationState.FAILED, identity=None)
    problem(await gateway.submit(capability, "four", draft("taken")), 409, "identity-in-use")


async def test_a_key_in_another_transaction_is_409_in_flight(gateway: EdgeUnderTest) -> None:
    """Whoever holds the key uncommitted makes others wait for a bounded time; neighbours are accepted.

    Requirements: I2
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=9)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    holder: asyncpg.Connection = await gateway.database.pool.acquire()
    transaction = holder.transaction()
    await transaction.start()
    try:
        await holder.execute(
            "INSERT INTO gateway.edge (tenant, key, fingerprint, command_id, workflow_id, saga_id, capability_id, "
            "created_at, expires_at) VALUES ('acme', 'held', 'f', 'c', 'w', 's', 'p', now(), now())"
        )
        held, free = await asyncio.gather(
            gateway.submit(capability["capability"], "held", body),
            gateway.submit(capability["capability"], "free", body),
        )
    finally:
        await transaction.rollback()
        await gateway.database.pool.release(holder)
    problem(held, 409, "idempotency-in-flight")
    assert int(held.headers["retry-after"]) >= 1
    assert free.status_code == 202
    assert (await gateway.submit(capability["capability"], "held", body)).status_code == 202


async def test_a_client_may_wait_for_the_end(gateway: EdgeUnderTest) -> None:
    """`Prefer: wait` answers with the final row when the nudge comes, or the read model shows it; else 202 in time.

    Requirements: F1
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=9)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}

    async def finish(nudge: bool) -> None:
        while not gateway.publisher.published:
            await asyncio.sleep(0.01)
        message = gateway.publisher.published.pop().message
        assert message.reply_to == "trueup.answer.gateway-test"
        start = StartCase.model_validate_json(message.data)
        row = await advance(gateway, start.command_id, OperationState.SUCCESS, receipt={"ref": "r1"})
        if nudge:
            answered = {"instance": {}, "operation": row.model_dump(mode="json")}
            gateway.gateway.answers.nudge(type("Raw", (), {"data": json.dumps(answered).encode()})())

    for nudge in (True, False):
        waited, _ = await asyncio.gather(
            gateway.submit(capability["capability"], f"wait-{nudge}", body, Prefer="respond-async, wait=10"),
            finish(nudge),
        )
        assert waited.status_code == 200, waited.text
        assert waited.headers["preference-applied"] == "wait=10"
        assert waited.json()["state"] == "SUCCESS" and waited.json()["receipt"] == {"ref": "r1"}
    late = await gateway.submit(capability["capability"], "wait-late", body, Prefer="wait=1")
    assert late.status_code == 202 and late.json()["state"] == "RECEIVED"
    again = await gateway.submit(capability["capability"], "wait-True", body, Prefer="wait=10")
    assert again.status_code == 200 and again.headers["idempotent-replayed"] == "true"
    assert not gateway.gateway.answers._waits


async def test_who_heard_the_end_never_reads_an_earlier_state(gateway: EdgeUnderTest) -> None:
    """Between nudge and projection, reads and repetitions show what was told; a newer view then counts again.

    Requirements: I2
    """
    capability = (await gateway.capability())["capability"]
    accepted = (await gateway.submit(capability, "heard", draft("heard"))).json()
    row = await gateway.gateway.reads.command_row(Reader("acme"), accepted["command_id"])
    view = await gateway.gateway.reads.case(Reader("acme"), accepted["workflow_id"])
    assert row is not None and view is not None
    told = {**row, "state": "FAILED", "state_version": 3, "error_code": "payload_invalid"}
    instance = view.instance.evolve(status=InstanceStatus.HUMAN_TAKEOVER, state_version=3)
    answered = {"instance": instance.model_dump(mode="json"), "operation": told}
    gateway.gateway.answers.nudge(type("Raw", (), {"data": json.dumps(answered).encode()})())

    async def seen() -> tuple[str, str, int, str]:
        read = await gateway.client.get(accepted["links"]["self"], headers=gateway.headers())
        case = (await gateway.client.get(accepted["links"]["workflow"], headers=gateway.headers())).json()
        again = await gateway.submit(capability, "heard", draft("heard"))
        return read.json()["state"], case["status"], again.status_code, case["steps"][0]["state"]

    assert await seen() == ("FAILED", "HUMAN_TAKEOVER", 200, "FAILED")
    for _ in range(4):
        await advance(gateway, accepted["command_id"], OperationState.QUEUED)
    assert await seen() == ("QUEUED", "RUNNING", 202, "QUEUED")


async def test_a_batch_answers_for_each_command(gateway: EdgeUnderTest) -> None:
    """Accepted, repeated, refused and malformed items side by side, each with its own status.

    Requirements: F1, I2
    """
    capability = (await gateway.capability(max_uses=3))["capability"]
    items: list[Any] = [
        {"idempotency_key": "b1", **draft("b1")},
        {"idempotency_key": "b1", **draft("b1")},
        {"idempotency_key": "b1", **draft("other")},
        {"idempotency_key": "b2", **draft("b1")},
        draft("b3"),
        "nonsense",
        {"idempotency_key": "b4", **draft("Not A Slug")},
        {"idempotency_key": '"b5"', **draft("b5")},
        {"idempotency_key": "b6", **draft("b6")},
        {"idempotency_key": "b7", **draft("b7")},
    ]
    headers = {"Authorization": f"Bearer {capability}"}
    response = await gateway.client.post("/v1/commands:batch", json={"commands": items}, headers=headers)
    assert response.status_code == 207
    results = response.json()["results"]
    assert [result["status"] for result in results] == [202, 202, 422, 409, 400, 422, 422, 202, 202, 403]
    assert results[0]["command_id"] == results[1]["command_id"] and results[1]["replayed"] is True
    assert results[2]["type"] == "/problems/idempotency-key-reused" and results[9]["check"] == "uses"
    single = await gateway.submit(capability, "b5", draft("b5"))
    assert single.json()["command_id"] == results[7]["command_id"]
    for broken in ({}, {"commands": []}, {"commands": items * 51}, {"commands": {}}, [], {"commands": items, "x": 1}):
        problem(await gateway.client.post("/v1/commands:batch", json=broken, headers=headers), 422, "payload-invalid")


@pytest.mark.parametrize("deadline", [None, rfc3339(later(400 * 86400))], ids=["none given", "too far away"])
async def test_deadlines_have_a_default_and_a_bound(gateway: EdgeUnderTest, deadline: str | None) -> None:
    """One hour where none is given; never later than policy allows."""
    capability = (await gateway.capability())["capability"]
    name = f"deadline-{deadline is None}".lower()
    response = await gateway.submit(capability, name, draft(name, deadline=deadline))
    start = StartCase.model_validate_json(gateway.publisher.published[-1].message.data)
    assert response.status_code == 202
    seconds = (start.deadline_at - start.accepted_at).total_seconds()
    assert seconds == (3600 if deadline is None else 30 * 86400)
    assert start.mandate.expires_at == start.deadline_at


X3 = """tenant step_id state_version execution_id supersedes command_id workflow_id saga_id decision_id capability_id
command_type target_system target_resource idempotency_key request_fingerprint state desired_state recorded_state
observed_state attempt_count lease_owner lease_acquired_at lease_expires_at heartbeat_at fence external_resource_id
external_version result_reference error_class error_code created_at started_at last_attempt_at last_transition_at
completed_at next_retry_at deadline_at compensation_command compensation_state last_reconciled_at reconciliation_status
reconciliation_result drift_type dead_lettered_at dead_letter_reason repair_id repair_status repair_owner
operator_status operator_action human_review_required resolved_at resolution_type correlation_id trace_id""".split()


async def test_an_answer_is_the_whole_journal_row(gateway: EdgeUnderTest) -> None:
    """Every column of the journal is in it, whether it was read, waited for, or told by a message that left out blanks.

    Requirements: X3
    """
    capability = (await gateway.capability())["capability"]
    response = await gateway.submit(capability, "whole-row", draft("whole-row"))
    row = await advance(gateway, response.json()["command_id"], OperationState.SUCCESS)
    read = await gateway.client.get(response.json()["links"]["self"], headers=gateway.headers())
    replayed = await gateway.submit(capability, "whole-row", draft("whole-row"))
    told = case_body.command_body(json.loads(row.model_dump_json(exclude_none=True)))
    for body in (read.json(), replayed.json(), told):
        assert not set(X3) - set(body)
        assert {"receipt", "observation", "attempts", "payload"} <= set(body)
        assert "reply_to" not in body and "traceparent" not in body


@pytest.mark.parametrize(
    ("spelled", "key"),
    [
        ('"a b"', "a b"),
        ("a b", "a b"),
        (' "x" ', "x"),
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', "a\\b"),
        ("article:0028:v1", "article:0028:v1"),
        ('"' + "k" * 255 + '"', "k" * 255),
    ],
)
async def test_a_key_is_what_its_spelling_means(gateway: EdgeUnderTest, spelled: str, key: str) -> None:
    """A structured-field string or bare text; quotes and escapes are not part of the key."""
    capability = await gateway.capability("bench.post", system="bench", resource="*")
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    headers = {"Authorization": f"Bearer {capability['capability']}", "Idempotency-Key": spelled}
    response = await gateway.client.post("/v1/commands", json=body, headers=headers)
    assert response.status_code == 202, response.text
    async with gateway.database.connection() as connection:
        assert (
            await connection.fetchval("SELECT count(*) FROM gateway.edge WHERE tenant = 'acme' AND key = $1", key) == 1
        )


async def test_one_broken_request_does_not_take_its_neighbours(
    gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure inside a batch is found alone; the others of the batch are accepted, each once.

    Requirements: M3
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=20)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    proper = Acceptor._case

    def failing(self: Acceptor, accepted: Any, *rest: Any) -> Any:
        if accepted.submission.key == "broken-5":
            raise RuntimeError("broken")
        return proper(self, accepted, *rest)

    monkeypatch.setattr(Acceptor, "_case", failing)
    responses = await asyncio.gather(
        *(gateway.submit(capability["capability"], f"broken-{number}", body) for number in range(10))
    )
    assert [response.status_code for response in responses] == [202] * 5 + [500] + [202] * 4
    assert await gateway.count("edge", "key LIKE 'broken-%'") == 9
    where = f"capability_id = '{capability['capability_id']}' AND uses_left = 11"
    assert await gateway.count("capability", where) == 1
