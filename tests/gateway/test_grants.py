"""Grants for proposed attempts: minted only while everything behind them still stands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from tests.gateway.edge import GRANT_KEYS, TRASH, EdgeUnderTest, draft, later
from tests.gateway.test_governance import freeze, lift, set_policy

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import GrantRefused, GrantRequest, StartCase
from trueup_common.contracts.grant import GrantClaims, refusal
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.task import ExecuteTask, Operation
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_gateway.handler import GrantHandler
from trueup_gateway.policy import DEFAULT_TEXT
from trueup_gateway.rules import RuleBook


@dataclass
class Proposing:
    """An accepted command whose attempts are proposed to the worker."""

    gateway: EdgeUnderTest
    start: StartCase
    handler: GrantHandler
    capability_id: str
    decision_id: str

    def request(self, *, start_by: datetime | None = None, **changes: Any) -> GrantRequest:
        start = self.start
        fields = {
            "command_id": start.command_id,
            "workflow_id": start.workflow_id,
            "tenant": start.tenant,
            "command_type": start.command_type,
            "declaration_sha256": start.declaration_sha256,
            "target": start.target,
            "payload": start.payload,
            "payload_sha256": start.payload_sha256,
            "idempotency_key": start.idempotency_key,
        }
        top = {
            name: changes.pop(name) for name in ("mandate_id", "compensation", "compensates_type") if name in changes
        }
        if top.get("compensation"):
            top.setdefault("compensates_type", start.command_type)
            fields |= {"command_type": TRASH.type, "declaration_sha256": TRASH.sha256}
        task = ExecuteTask(
            operation=Operation(**{**fields, **changes}),
            fence=4,
            attempt_id=attempt_id(start.command_id, 4),
            start_by=start_by or later(30),
            lease_expires_at=later(60),
        )
        return GrantRequest(**{"mandate_id": start.mandate.mandate_id, "task": task, **top})

    async def propose(self, request: GrantRequest, *, business: datetime | None = None) -> ExecuteTask | GrantRefused:
        """The worker's answer to one proposal."""
        real = real_now()
        message = Message(
            id="msg_1",
            type="GrantRequest",
            subject="trueup.grant.request.acme",
            tenant=request.task.operation.tenant,
            source="orchestrator",
            time=real,
            data=request.model_dump_json().encode(),
            traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        )
        async with self.gateway.gateway.store.transaction() as tx:
            (outgoing,) = await self.handler.handle(tx, Moment(business or real, real), [message])
        sent = outgoing.message
        assert (sent.causation_id, sent.traceparent, sent.tenant) == (message.id, message.traceparent, message.tenant)
        if sent.type == "ExecuteTask":
            assert (sent.subject, sent.id) == ("trueup.task.wordpress.execute.acme", request.task.attempt_id)
            return ExecuteTask.model_validate_json(sent.data)
        assert (sent.type, sent.subject) == ("GrantRefused", "trueup.evt.gateway.grant-refused.acme")
        return GrantRefused.model_validate_json(sent.data)

    async def refused(self, request: GrantRequest, check: str, *, transient: bool = False, **more: Any) -> None:
        found = await self.propose(request, **more)
        assert isinstance(found, GrantRefused), found
        assert (found.check, found.transient, found.fence) == (check, transient, 4)

    async def granted(self, request: GrantRequest | None = None, **more: Any) -> GrantClaims:
        found = await self.propose(request or self.request(), **more)
        assert isinstance(found, ExecuteTask), found
        claims = GRANT_KEYS.verify("wordpress", found.grant)
        assert isinstance(claims, GrantClaims)
        assert refusal(claims, found, now=real_now(), epoch_min=1) is None
        return claims


@pytest_asyncio.fixture
async def proposing(gateway: EdgeUnderTest, request: pytest.FixtureRequest) -> AsyncIterator[Proposing]:
    slug = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    capability = await gateway.capability()
    response = await gateway.submit(capability["capability"], slug, draft(slug))
    assert response.status_code == 202, response.text
    start = StartCase.model_validate_json(gateway.publisher.published[-1].message.data)
    handler = GrantHandler(rules=RuleBook(), catalog=gateway.gateway.catalog, keys=GRANT_KEYS)
    yield Proposing(gateway, start, handler, capability["capability_id"], capability["decision_id"])


async def test_a_standing_mandate_gets_a_grant_for_exactly_this_attempt(proposing: Proposing) -> None:
    """The grant names operation, fence, payload and decision, and lives as long as the lease.

    Requirements: G5
    """
    request = proposing.request()
    claims = await proposing.granted(request)
    assert (claims.op, claims.fence, claims.decision) == (proposing.start.command_id, 4, proposing.decision_id)
    assert claims.mandate == proposing.start.mandate.mandate_id and claims.capability == proposing.capability_id
    assert claims.exp >= request.task.lease_expires_at.timestamp() - 1


async def test_the_capability_may_expire_but_not_be_revoked(proposing: Proposing) -> None:
    """Expiry ends acceptance, not running work; revocation of capability or decision ends both, but no compensation.

    Requirements: G5, G6
    """
    await proposing.granted(business=later(3000))
    edge = proposing.gateway
    response = await edge.client.post(f"/v1/capabilities/{proposing.capability_id}/revoke", headers=edge.headers())
    assert response.status_code == 200
    await proposing.refused(proposing.request(), "revoked")
    assert (await proposing.granted(proposing.request(compensation=True))).compensation is True


async def test_a_revoked_decision_ends_the_case(proposing: Proposing) -> None:
    """No grant under it any more.

    Requirements: G5, G6
    """
    edge = proposing.gateway
    path = f"/v1/decisions/{proposing.decision_id}/revoke"
    assert (await edge.client.post(path, json={"reason": "x"}, headers=edge.headers())).status_code == 200
    await proposing.refused(proposing.request(), "revoked")


async def test_the_mandate_ends_with_its_deadline(proposing: Proposing) -> None:
    """Business time decides.

    Requirements: G5
    """
    await proposing.refused(proposing.request(), "mandate", business=proposing.start.mandate.expires_at)


async def test_only_what_the_rows_say_counts(proposing: Proposing) -> None:
    """A proposal with a changed operation, payload, type, target or mandate is refused: the message only proposes.

    Requirements: G5, I4, N
    """
    start = proposing.start
    await proposing.refused(proposing.request(command_id="cmd_" + "0" * 32), "operation")
    await proposing.refused(proposing.request(payload_sha256="0" * 64), "payload_hash")
    await proposing.refused(proposing.request(command_type="wordpress.publish_post"), "command_type")
    await proposing.refused(proposing.request(target=start.target.evolve(resource="post/1")), "resource")
    await proposing.refused(proposing.request(target=start.target.evolve(system="bench")), "resource")
    await proposing.refused(proposing.request(workflow_id="wf_" + "0" * 32), "mandate")
    await proposing.refused(proposing.request(mandate_id="man_" + "0" * 32), "mandate")


async def test_a_freeze_makes_it_wait(proposing: Proposing) -> None:
    """Transient: granted again once the freeze is lifted; compensations only wait for a freeze that names them.

    Requirements: G6
    """
    edge = proposing.gateway
    scope = {"system": "wordpress"}
    assert (await freeze(edge, "grant-freeze", scope)).status_code == 201
    await proposing.refused(proposing.request(), "frozen", transient=True)
    await proposing.granted(proposing.request(compensation=True))
    assert (await freeze(edge, "grant-freeze-2", {**scope, "compensation": True})).status_code == 201
    await proposing.refused(proposing.request(compensation=True), "frozen", transient=True)
    for number, lifted in enumerate((scope, {**scope, "compensation": True})):
        assert (await lift(edge, f"grant-lift-{number}", {"scope": lifted})).status_code == 200
    await proposing.granted()


async def test_policy_is_asked_again(proposing: Proposing) -> None:
    """A policy that changed in between refuses the grant; the grant names the policy that admitted it.

    Requirements: G5, G6
    """
    edge = proposing.gateway
    before = await proposing.granted()
    stop = DEFAULT_TEXT + '@id("none") forbid (principal, action == Action::"execute", resource);'
    assert (await set_policy(edge, "grant-stop", stop)).status_code == 200
    await proposing.refused(proposing.request(), "policy")
    changed = await proposing.granted(proposing.request(compensation=True))
    assert changed.policy != before.policy and changed.epoch > before.epoch
    assert (await set_policy(edge, "grant-back", DEFAULT_TEXT)).status_code == 200
    assert (await proposing.granted()).policy == before.policy


async def test_what_may_pass_is_transient(proposing: Proposing) -> None:
    """A start window that is over and a declaration that is not here yet: propose again later."""
    await proposing.refused(proposing.request(start_by=later(-1)), "time", transient=True)
    await proposing.refused(proposing.request(declaration_sha256="0" * 64), "declaration", transient=True)


async def test_a_message_that_is_none_is_unprocessable(proposing: Proposing) -> None:
    """Unreadable, foreign or contradicting messages go to quarantine, they are not guessed at.

    Requirements: M3
    """
    request = proposing.request()
    good = {"id": "m", "subject": "s", "source": "o", "time": real_now()}
    for message in (
        Message(type="GrantRequest", tenant="acme", data=b"{}", **good),
        Message(type="Another", tenant="acme", data=request.model_dump_json().encode(), **good),
        Message(type="GrantRequest", tenant="globex", data=request.model_dump_json().encode(), **good),
        Message(type="GrantRequest", tenant="acme", data=json.dumps(None).encode(), **good),
    ):
        async with proposing.gateway.gateway.store.transaction() as tx:
            with pytest.raises(Unprocessable):
                await proposing.handler.handle(tx, Moment(real_now(), real_now() + timedelta()), [message])
