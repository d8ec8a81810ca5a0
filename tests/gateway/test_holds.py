"""Legal holds: what is held is not deleted; auditors or admins place and lift them, each under its own decision."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from tests.gateway.asks import OPERATOR, running_case
from tests.gateway.edge import EdgeUnderTest, draft, later
from tests.gateway.test_artifacts import delete, keep
from tests.gateway.test_refusals import problem
from tests.gateway.test_supersedes import ended

from trueup_common.contracts.ids import new_id

AUDITOR = {"sub": "operator:ada", "roles": ("auditor",)}
ADMIN = {"sub": "operator:root", "roles": ("admin",)}


async def hold(
    gateway: EdgeUnderTest, workflow_id: str, method: str = "POST", *, key: str | None = None, **who: Any
) -> httpx.Response:
    body = {"reason": who.pop("reason", "claim 114")}
    headers = {**gateway.headers(**(who or AUDITOR)), "Idempotency-Key": key or new_id("msg")}
    return await gateway.client.request(method, f"/v1/workflows/{workflow_id}/legal-hold", json=body, headers=headers)


async def test_a_hold_is_placed_once_and_lifted_on_purpose(gateway: EdgeUnderTest) -> None:
    """By an auditor or an admin, with a reason and a decision; pressed twice it is one hold; the case shows it.

    Requirements: L16, O3, I5
    """
    instance = await running_case(gateway)
    first = await hold(gateway, instance.workflow_id, key="hold-1")
    assert first.status_code == 201, first.text
    body = first.json()
    again = await hold(gateway, instance.workflow_id, key="hold-1")
    assert again.json() == body and again.headers["idempotent-replayed"] == "true"
    problem(
        await hold(gateway, instance.workflow_id, key="hold-1", reason="x", **AUDITOR), 422, "idempotency-key-reused"
    )
    held = problem(await hold(gateway, instance.workflow_id, **ADMIN), 409, "conflict")
    assert held["hold_id"] == body["hold_id"]
    case = f"/v1/workflows/{instance.workflow_id}"
    shown = (await gateway.client.get(case, headers=gateway.headers(**OPERATOR))).json()
    assert shown["legal_hold"]["hold_id"] == body["hold_id"] and shown["legal_hold"]["reason"] == "claim 114"
    trace = (
        await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers(**AUDITOR))
    ).json()
    assert trace["context"] == {"operation": "LEGAL_HOLD", "own": False, "reason": "claim 114"}
    assert trace["determining_policies"] == ["auditors-and-admins-hold-cases"]
    lifted = await hold(gateway, instance.workflow_id, "DELETE", key="lift-1", reason="settled", **ADMIN)
    assert (lifted.status_code, lifted.json()["lifted_by"]) == (200, "operator:root")
    again = await hold(gateway, instance.workflow_id, "DELETE", key="lift-1", reason="settled", **ADMIN)
    assert again.json() == lifted.json()
    problem(await hold(gateway, instance.workflow_id, "DELETE"), 404, "not-found")
    assert (await gateway.client.get(case, headers=gateway.headers(**OPERATOR))).json()["legal_hold"] is None
    assert (await hold(gateway, instance.workflow_id)).status_code == 201, "held again, as another hold"


async def test_who_may_hold(gateway: EdgeUnderTest) -> None:
    """Requirements: L16, T1, O4"""
    instance = await running_case(gateway)
    for who in (OPERATOR, {"sub": "operator:eye", "roles": ("viewer",)}, {"sub": "agent:publisher"}):
        for method in ("POST", "DELETE"):
            problem(await hold(gateway, instance.workflow_id, method, **who), 403, "forbidden", "role")
    problem(await hold(gateway, instance.workflow_id, tenant="globex", **AUDITOR), 404, "not-found")
    problem(await hold(gateway, new_id("wf")), 404, "not-found")
    many = await asyncio.gather(*(hold(gateway, instance.workflow_id) for _ in range(5)))
    assert sorted(item.status_code for item in many) == [201, 409, 409, 409, 409]


async def test_nothing_of_a_held_case_is_deleted(gateway: EdgeUnderTest) -> None:
    """The artifact that a payload is kept in, and one that the case only names as evidence; both go once it is lifted,
    and another case's go meanwhile.

    Requirements: L16
    """
    await keep(gateway)
    payload = await keep(gateway, b'{"title": "A", "slug": "kept-by-hold", "content": "x"}', "application/json")
    named, free = await keep(gateway, b"evidence"), await keep(gateway, b"free")
    capability = await gateway.capability(max_uses=2)
    body = {**draft("kept-by-hold"), "payload_ref": payload}
    del body["payload"]
    accepted = await gateway.submit(capability["capability"], "kept-by-hold", body)
    assert accepted.status_code == 202, accepted.text
    workflow_id = accepted.json()["workflow_id"]
    other = await running_case(gateway, turned={"reason": "evidence", "detail": named, "at": later(0).isoformat()})
    assert (await hold(gateway, workflow_id)).status_code == 201
    assert (await hold(gateway, other.workflow_id)).status_code == 201
    for name, case in ((payload, workflow_id), (named, other.workflow_id)):
        refused = problem(await delete(gateway, name, **OPERATOR), 409, "conflict")
        assert refused["workflows"] == [case] and "legal hold" in refused["detail"]
    assert (await delete(gateway, free, **OPERATOR)).status_code == 200
    for case in (workflow_id, other.workflow_id):
        assert (await hold(gateway, case, "DELETE")).status_code == 200
    await ended(gateway, accepted.json()["command_id"], "SUCCESS")
    for name in (payload, named):
        assert (await delete(gateway, name, **OPERATOR)).status_code == 200
