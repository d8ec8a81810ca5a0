"""Signals: taken once per event id of a case, bounded, and answered with what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.asks import OPERATOR, disposed, project, running_case
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_refusals import problem

from trueup_common.contracts.events import SignalReceived
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.journal import InstanceRow
from trueup_gateway import signalling
from trueup_gateway.api import signals


async def signal(gateway: EdgeUnderTest, instance: InstanceRow, event_id: Any, **changes: Any) -> httpx.Response:
    who = changes.pop("who", {})
    body = {"event_id": event_id, "type": "partner.reply", "data": {"accepted": True}, **changes}
    url = f"/v1/workflows/{instance.workflow_id}/signals"
    return await gateway.client.post(url, json=body, headers=gateway.headers(**who))


async def outcome(gateway: EdgeUnderTest, instance: InstanceRow, event_id: str, **who: Any) -> httpx.Response:
    url = f"/v1/workflows/{instance.workflow_id}/signals/{event_id}"
    return await gateway.client.get(url, headers=gateway.headers(**who))


async def received(gateway: EdgeUnderTest, instance: InstanceRow) -> list[SignalReceived]:
    """What went out to the orchestrator about a case."""
    await asyncio.gather(*gateway.gateway.sending)
    found = [
        SignalReceived.model_validate_json(item.message.data)
        for item in gateway.publisher.published
        if item.message.type == "SignalReceived"
    ]
    return [item for item in found if item.workflow_id == instance.workflow_id]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers in this test: the call does not wait long for it."""
    monkeypatch.setattr(signals, "WAIT_SECONDS", 0.05)


@pytest.mark.parametrize("disposition", ["accepted", "held", "late"])
async def test_the_call_waits_for_what_becomes_of_it(gateway: EdgeUnderTest, disposition: str) -> None:
    """The orchestrator's answer arrives while the call waits; a repetition is a duplicate with the earlier outcome.

    Requirements: L9
    """
    instance = await running_case(gateway)
    call = asyncio.create_task(signal(gateway, instance, "evt/1 é"))
    while not (told := await received(gateway, instance)):
        await asyncio.sleep(0)
    assert (told[0].event_id, told[0].actor, told[0].data) == ("evt/1 é", "agent:publisher", {"accepted": True})
    await project(gateway, disposed(instance, "evt/1 é", disposition, reason="why"))
    response = await call
    assert response.status_code == 202 and response.json()["disposition"] == disposition
    again = await signal(gateway, instance, "evt/1 é")
    assert again.status_code == 202 and again.headers["idempotent-replayed"] == "true"
    assert (again.json()["disposition"], again.json()["outcome"]) == ("duplicate", disposition)
    read = await outcome(gateway, instance, "evt%2F1%20%C3%A9")
    assert (read.json()["disposition"], read.json()["reason"]) == (disposition, "why")
    assert len(await received(gateway, instance)) == 1


async def test_many_at_once_are_one(gateway: EdgeUnderTest, impatient: None) -> None:
    """The same event from many senders at the same moment goes out once, and all hear that it is kept.

    Requirements: L9, I5
    """
    instance = await running_case(gateway)
    responses = await asyncio.gather(*(signal(gateway, instance, "same") for _ in range(12)))
    assert {response.status_code for response in responses} == {202}
    assert {response.json()["disposition"] for response in responses} == {"pending"}
    assert len(await received(gateway, instance)) == 1
    assert await gateway.count("signal", f"workflow_id = '{instance.workflow_id}'") == 1
    assert (await signal(gateway, await running_case(gateway), "same")).status_code == 202


async def test_another_body_under_the_same_id_is_refused(gateway: EdgeUnderTest, impatient: None) -> None:
    """An event id stands for one event of a case.

    Requirements: L9
    """
    instance = await running_case(gateway)
    assert (await signal(gateway, instance, "e")).status_code == 202
    for changes in ({"data": {"accepted": False}}, {"type": "partner.other"}, {"occurred_at": "2026-11-01T00:00:00Z"}):
        problem(await signal(gateway, instance, "e", **changes), 422, "idempotency-key-reused")


async def test_a_later_disposition_replaces_an_earlier_one_and_never_the_other_way(
    gateway: EdgeUnderTest, impatient: None
) -> None:
    """Held, then accepted, told in any order and twice: the newest version counts.

    Requirements: L9, M2
    """
    instance = await running_case(gateway)
    await signal(gateway, instance, "e")
    await project(
        gateway,
        disposed(instance, "e", "accepted", version=2),
        disposed(instance, "e", "held", version=1),
        disposed(instance, "unknown", "late"),
    )
    await project(gateway, disposed(instance, "e", "held", version=1))
    assert (await outcome(gateway, instance, "e")).json()["disposition"] == "accepted"
    await project(gateway, disposed(instance.evolve(tenant="globex"), "e", "late", version=9), tenant="globex")
    assert (await outcome(gateway, instance, "e")).json()["disposition"] == "accepted"


async def test_who_may_signal(gateway: EdgeUnderTest, impatient: None) -> None:
    """Agents their own cases, operators the tenant's; nobody another tenant's, and no unknown case.

    Requirements: T1, L9
    """
    instance = await running_case(gateway)
    for who in ({"sub": "agent:other"}, {"tenant": "globex"}, {**OPERATOR, "tenant": "globex"}):
        problem(await signal(gateway, instance, "e", who=who), 404, "not-found")
    for roles in (("viewer",), ("approver",), ("admin",), ("auditor",)):
        problem(await signal(gateway, instance, "e", who={"roles": roles}), 403, "forbidden", "role")
    unknown = instance.evolve(workflow_id=new_id("wf"))
    problem(await signal(gateway, unknown, "e"), 404, "not-found")
    assert await received(gateway, instance) == []
    assert (await signal(gateway, instance, "e", who=OPERATOR)).status_code == 202
    problem(await outcome(gateway, instance, "other"), 404, "not-found")
    problem(await outcome(gateway, instance, "e", tenant="globex"), 404, "not-found")


@pytest.mark.parametrize(
    ("changes", "status", "slug"),
    [
        ({"event_id": None}, 422, "payload-invalid"),
        ({"event_id": ""}, 422, "payload-invalid"),
        ({"event_id": "x" * 201}, 422, "payload-invalid"),
        ({"type": "Not A Type"}, 422, "payload-invalid"),
        ({"more": 1}, 422, "payload-invalid"),
        ({"occurred_at": "yesterday"}, 422, "payload-invalid"),
        ({"data": "x" * 65_536}, 413, "too-large"),
    ],
)
async def test_bounds(gateway: EdgeUnderTest, changes: dict[str, Any], status: int, slug: str) -> None:
    """Id, type and size are bounded, and what is refused leaves nothing.

    Requirements: L9
    """
    instance = await running_case(gateway)
    problem(await signal(gateway, instance, **{"event_id": "e", **changes}), status, slug)
    assert await received(gateway, instance) == []
    assert await gateway.count("signal", f"workflow_id = '{instance.workflow_id}'") == 0


async def test_depth_is_bounded(gateway: EdgeUnderTest) -> None:
    """Nesting beyond the bound of every body is refused.

    Requirements: L9
    """
    instance = await running_case(gateway)
    deep: Any = 1
    for _ in range(33):
        deep = [deep]
    problem(await signal(gateway, instance, "e", data=deep), 400, "body-malformed")


async def test_a_case_holds_a_bounded_number(
    gateway: EdgeUnderTest, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound of undisposed events a new one is refused, an old one still answered.

    Requirements: L9
    """
    monkeypatch.setattr(signalling, "OPEN_MAX", 2)
    instance = await running_case(gateway)
    for name in ("a", "b"):
        assert (await signal(gateway, instance, name)).status_code == 202
    problem(await signal(gateway, instance, "c"), 429, "rate-limited")
    assert (await signal(gateway, instance, "a")).status_code == 202
    await project(gateway, disposed(instance, "a", "accepted"))
    assert (await signal(gateway, instance, "c")).status_code == 202
