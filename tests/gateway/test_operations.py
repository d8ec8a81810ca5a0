"""Cancel, pause, resume: asked once under a decision of their own, refused with what is possible, and readable."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.asks import OPERATOR, changed, running_case
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_refusals import problem

from trueup_common.contracts import history
from trueup_common.contracts.events import ControlAsked
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow
from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_common.runtime.clock import real_now
from trueup_gateway.core import control


async def cancel(gateway: EdgeUnderTest, instance: InstanceRow, key: str | None = None, **who: Any) -> httpx.Response:
    url = f"/v1/workflows/{instance.workflow_id}/cancel"
    headers = {**gateway.headers(**who), "Idempotency-Key": key or new_id("msg")}
    return await gateway.client.post(url, json={"reason": "withdrawn"}, headers=headers)


async def operate(gateway: EdgeUnderTest, instance: InstanceRow, action: str, **changes: Any) -> httpx.Response:
    who = changes.pop("who", OPERATOR)
    body = {
        "action": action,
        "target": {"kind": "workflow", "id": instance.workflow_id},
        "reason": "maintenance",
        **changes,
    }
    headers = {**gateway.headers(**who), "Idempotency-Key": new_id("msg")}
    return await gateway.client.post("/v1/operator-commands", json=body, headers=headers)


async def controls(gateway: EdgeUnderTest, instance: InstanceRow) -> list[ControlAsked]:
    """What went out to the orchestrator about a case."""
    await asyncio.gather(*gateway.gateway.sending)
    found = [
        ControlAsked.model_validate_json(item.message.data)
        for item in gateway.publisher.published
        if item.message.type == "ControlAsked"
    ]
    return [item for item in found if item.workflow_id == instance.workflow_id]


def heard(instance: InstanceRow, control_id: str, kind: str = "CancelRequested") -> HistoryEvent:
    """The history event by which a case takes an act up."""
    return history.append(
        workflow_id=instance.workflow_id,
        tenant=instance.tenant,
        seq=1,
        type=kind,
        actor="operator:ops",
        prev_hash=history.GENESIS,
        occurred_at=real_now(),
        recorded_at=real_now(),
        payload={"control_id": control_id},
        causation_id=control_id,
    )


async def state(gateway: EdgeUnderTest, name: str) -> str:
    response = await gateway.client.get(f"/v1/operator-commands/{name}", headers=gateway.headers(**OPERATOR))
    assert response.status_code == 200
    found: str = response.json()["state"]
    return found


async def test_a_cancel_is_asked_once_and_followed_to_its_end(gateway: EdgeUnderTest) -> None:
    """Requested, acknowledged by the case, done once it is settled; twice under a key is one act.

    Requirements: L12, I5, G7
    """
    instance = await running_case(gateway)
    first = await cancel(gateway, instance, "key-1")
    assert first.status_code == 202
    body = first.json()
    assert body["state"] == "requested" and body["actor"] == "agent:publisher" and body["reason"] == "withdrawn"
    again = await cancel(gateway, instance, "key-1")
    assert again.status_code == 202 and again.json() == body and again.headers["idempotent-replayed"] == "true"
    (asked,) = await controls(gateway, instance)
    assert (asked.control_id, asked.action, asked.actor) == (body["operator_command_id"], "cancel", "agent:publisher")
    name = body["operator_command_id"]
    assert await state(gateway, name) == "requested"
    acknowledged = await changed(gateway, instance, heard(instance, name), status=InstanceStatus.CANCEL_PENDING)
    assert await state(gateway, name) == "acknowledged"
    await changed(gateway, acknowledged, status=InstanceStatus.CANCELLED, closed_at=real_now())
    assert await state(gateway, name) == "done"
    trace = await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers())
    assert trace.json()["determining_policies"] == ["agents-cancel-their-own-cases"]
    assert trace.json()["context"] == {"operation": "CANCEL", "own": True}


async def test_an_act_that_did_not_fit_says_so(gateway: EdgeUnderTest) -> None:
    """What the case noted as without effect is not called done.

    Requirements: L12
    """
    instance = await running_case(gateway)
    name = (await operate(gateway, instance, "PAUSE")).json()["operator_command_id"]
    await changed(gateway, instance, heard(instance, name, control.NO_EFFECT_EVENT))
    assert await state(gateway, name) == "without_effect"


async def test_an_act_that_came_too_late_says_so(gateway: EdgeUnderTest) -> None:
    """The case was over before it heard of the act.

    Requirements: L12
    """
    instance = await running_case(gateway)
    name = (await operate(gateway, instance, "PAUSE")).json()["operator_command_id"]
    await changed(gateway, instance, status=InstanceStatus.CLOSED, closed_at=real_now())
    assert await state(gateway, name) == "overtaken"


@pytest.mark.parametrize("status", InstanceStatus)
async def test_what_is_possible_in_each_status(gateway: EdgeUnderTest, status: InstanceStatus) -> None:
    """What the table allows is taken; everything else is 409 with what is allowed, and asks nothing.

    Requirements: L12
    """
    instance = await running_case(gateway, status=status)
    for action in control.AVAILABLE:
        response = await operate(gateway, instance, action)
        if action in control.ALLOWED[status]:
            assert response.status_code == 202
        else:
            body = problem(response, 409, "action-not-available")
            assert body["allowed_actions"] == list(control.ALLOWED[status])
            assert body["workflow_status"] == status.value
    assert [item.action.upper() for item in await controls(gateway, instance)] == [
        action for action in control.AVAILABLE if action in control.ALLOWED[status]
    ]
    assert not control.ALLOWED[status] or status not in INSTANCE_TERMINAL


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "REDRIVE"},
        {"action": "RETRY", "target": {"kind": "command", "id": "cmd_1"}},
        {"target": {"kind": "exception", "id": "exc_1"}},
        {"action": "RESUME", "params": {"from_step": "draft"}},
    ],
)
async def test_what_is_not_built_is_refused_by_name(gateway: EdgeUnderTest, changes: dict[str, Any]) -> None:
    """Known actions that this version does not have are refused with those that it has.

    Requirements: G7
    """
    instance = await running_case(gateway)
    action = changes.get("action", "CANCEL")
    response = await operate(gateway, instance, action, **{k: v for k, v in changes.items() if k != "action"})
    assert problem(response, 409, "action-not-available")["allowed_actions"] == ["CANCEL", "PAUSE", "RESUME"]
    problem(await operate(gateway, instance, "EXPLODE"), 422, "payload-invalid")
    assert await controls(gateway, instance) == []


async def test_who_may_operate(gateway: EdgeUnderTest) -> None:
    """Operators the tenant's cases, agents cancel their own and nothing else; nobody another tenant's.

    Requirements: G7, T1
    """
    instance = await running_case(gateway)
    for who in ({"sub": "agent:other"}, {"tenant": "globex"}, {**OPERATOR, "tenant": "globex"}):
        problem(await cancel(gateway, instance, **who), 404, "not-found")
        problem(await operate(gateway, instance, "PAUSE", who=who), 404, "not-found")
    problem(await operate(gateway, instance, "PAUSE", who={}), 403, "forbidden", "role")
    problem(await cancel(gateway, instance, sub="operator:eye", roles=("viewer",)), 403, "forbidden", "role")
    problem(await cancel(gateway, instance, sub="operator:root", roles=("admin",)), 403, "forbidden", "role")
    url = f"/v1/workflows/{instance.workflow_id}/cancel"
    response = await gateway.client.post(url, json={"reason": "x"}, headers=gateway.headers())
    problem(response, 400, "idempotency-key-missing")
    assert await controls(gateway, instance) == []
    made = (await cancel(gateway, instance, **OPERATOR)).json()
    read = f"/v1/operator-commands/{made['operator_command_id']}"
    for who in ({"tenant": "globex", **OPERATOR}, {"sub": "agent:publisher"}):
        headers = gateway.headers(**who)
        expected = 404 if who.get("tenant") or who["sub"] != "operator:ops" else 200
        assert (await gateway.client.get(read, headers=headers)).status_code == expected
