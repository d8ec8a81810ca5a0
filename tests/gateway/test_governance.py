"""Decisions with their trace, revocation, freezes and policy changes: each has effect with its commit."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.edge import DRAFT, EdgeUnderTest, draft, edge, later
from tests.gateway.test_refusals import problem
from tests.servers import Database

from trueup_common.contracts.governance import BREAK_GLASS, FREEZE, FreezeScope, Held, held_by, key_of
from trueup_common.contracts.shape import rfc3339
from trueup_gateway.policy import DEFAULT_TEXT, PolicySet

OPERATOR = {"sub": "operator:ops", "roles": ("operator",)}
ADMIN = {"sub": "operator:root", "roles": ("admin",)}
VIEWER = {"sub": "operator:eye", "roles": ("viewer",)}


async def freeze(gateway: EdgeUnderTest, key: str, scope: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"scope": scope, "reason": "test", **more}
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": key}
    return await gateway.client.post("/v1/controls/freezes", json=body, headers=headers)


async def lift(gateway: EdgeUnderTest, key: str, body: dict[str, Any]) -> httpx.Response:
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": key}
    return await gateway.client.request("DELETE", "/v1/controls/freezes", json=body, headers=headers)


async def set_policy(gateway: EdgeUnderTest, key: str, text: str, **who: Any) -> httpx.Response:
    headers = {**gateway.headers(**(who or ADMIN)), "Idempotency-Key": key}
    return await gateway.client.put("/v1/policies", json={"policies": text, "reason": "test"}, headers=headers)


async def test_a_decision_keeps_its_whole_trace(gateway: EdgeUnderTest) -> None:
    """Subject, action, resource, evidence with hashes, risk with factors, policy with hash, outcome, expiry.

    Requirements: G2
    """
    body = {
        "action": {"command_types": ["wordpress.create_draft"], "workflow": None},
        "resource": {"system": "wordpress", "resource": "post/*"},
        "purpose": "publish article 0028",
        "evidence": [{"kind": "quality_gate", "ref": "gate-1", "sha256": "a" * 64, "observed_at": rfc3339(later(-60))}],
        "context": {"payload_sha256": "b" * 64, "expected_version": None, "supersedes": None},
        "agent_version": "writer 7",
    }
    created = await gateway.client.post("/v1/decisions", json=body, headers=gateway.headers())
    assert created.status_code == 201
    answer = created.json()
    assert answer["outcome"] == "approved" and answer["risk"]["level"] == "low"
    assert answer["determining_policies"] == ["agents-act-at-moderate-risk"] and answer["approval_id"] is None
    assert answer["policy"]["sha256"] == PolicySet.default().sha256
    trace = (await gateway.client.get(created.headers["location"], headers=gateway.headers())).json()
    assert {name: trace[name] for name in answer} == answer
    assert trace["subject"] == "agent:publisher" and trace["agent_version"] == "writer 7"
    assert trace["evidence"][0]["sha256"] == "a" * 64 and trace["context"] == body["context"]
    assert trace["action"] == body["action"] and trace["resource"] == body["resource"]
    assert trace["declarations"] == {"wordpress.create_draft": DRAFT.sha256}
    assert sum(factor["points"] for factor in trace["risk_factors"]) == answer["risk"]["score"]
    for reader, status in (
        (VIEWER, 200),
        ({"sub": "agent:other"}, 404),
        ({"tenant": "globex", **VIEWER}, 404),
        (ADMIN, 403),
    ):
        response = await gateway.client.get(created.headers["location"], headers=gateway.headers(**reader))
        assert response.status_code == status


async def test_outcomes_of_the_default_policy(gateway: EdgeUnderTest) -> None:
    """A pivot needs an approval and gets no capability; an unknown role is denied; both are recorded.

    Requirements: G2, G3
    """
    pivot = await gateway.decide("wordpress.publish_post")
    assert pivot["outcome"] == "approval_required" and pivot["approval_id"].startswith("apr_") and pivot["obligations"]
    denied = await gateway.decide(roles=("wizard",))
    assert denied["outcome"] == "denied"
    for decision, check, roles in ((pivot, "approval", ("agent",)), (denied, "decision", ("wizard",))):
        response = await gateway.client.post(
            "/v1/capabilities", json={"decision_id": decision["decision_id"]}, headers=gateway.headers(roles=roles)
        )
        problem(response, 403, "forbidden", check)
        assert await gateway.count("capability", f"decision_id = '{decision['decision_id']}'") == 0


async def test_a_decision_belongs_to_its_subject_and_tenant(gateway: EdgeUnderTest) -> None:
    """Nobody else turns it into a capability; for another tenant it does not exist.

    Requirements: G3, T1
    """
    decision = await gateway.decide()
    body = {"decision_id": decision["decision_id"]}
    other = await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers(sub="agent:other"))
    problem(other, 403, "forbidden", "decision")
    foreign = await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers(tenant="globex"))
    problem(foreign, 404, "not-found")


@pytest.mark.parametrize(
    ("changes", "status", "slug"),
    [
        ({"action": {"command_types": ["wordpress.nonsense"]}}, 422, "unknown-command-type"),
        ({"action": {"command_types": []}}, 422, "payload-invalid"),
        ({"action": {"command_types": ["bench.post"]}}, 422, "payload-invalid"),
        ({"action": {"command_types": ["wordpress.create_draft"], "workflow": "seo"}}, 422, "payload-invalid"),
        ({"resource": {"system": "nowhere", "resource": "post"}}, 422, "unknown-system"),
        ({"resource": {"system": "wordpress", "resource": "a b"}}, 422, "payload-invalid"),
        ({"purpose": ""}, 422, "payload-invalid"),
        ({"evidence": [{"kind": "x", "sha256": "short"}]}, 422, "payload-invalid"),
        ({"more": 1}, 422, "payload-invalid"),
    ],
)
async def test_an_intent_that_names_nothing_known_is_refused(
    gateway: EdgeUnderTest, changes: dict[str, Any], status: int, slug: str
) -> None:
    """Unknown types and systems are told as such, and leave no decision.

    Requirements: F1
    """
    body = {
        "action": {"command_types": ["wordpress.create_draft"]},
        "resource": {"system": "wordpress", "resource": "post"},
        "purpose": "x",
        **changes,
    }
    before = await gateway.rows()
    problem(await gateway.client.post("/v1/decisions", json=body, headers=gateway.headers()), status, slug)
    assert await gateway.rows() == before


async def test_wrong_capability_requests_are_refused(gateway: EdgeUnderTest) -> None:
    """Bounds of the request itself, and bindings that this version does not verify.

    Requirements: G3
    """
    decision_id = (await gateway.decide())["decision_id"]
    before = await gateway.rows()
    for changes in (
        {"max_uses": 0},
        {"max_uses": True},
        {"max_uses": 1.5},
        {"max_uses": "1"},
        {"ttl_seconds": 0},
        {"ttl_seconds": 90000},
        {"cnf_jkt": "thumbprint"},
        {"payload_sha256": "x"},
        {"decision_id": None},
        {"more": 1},
    ):
        body = {"decision_id": decision_id, **changes}
        problem(
            await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers()), 422, "payload-invalid"
        )
    for changes, check in (
        ({"command_types": ["wordpress.update_post"]}, "command_type"),
        ({"resource": "*"}, "resource"),
    ):
        body = {"decision_id": decision_id, **changes}
        problem(
            await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers()), 403, "forbidden", check
        )
    assert await gateway.rows() == before


async def test_a_revocation_has_effect_at_once_on_every_replica(gateway_database: Database) -> None:
    """Capability or decision: the next request is refused, also a repetition of an accepted key, also elsewhere.

    Requirements: G4, G6, I2
    """
    async with edge(gateway_database) as one, edge(gateway_database) as two:
        for kind in ("capability", "decision"):
            capability = await one.capability(max_uses=9)
            first = await two.submit(capability["capability"], f"before-{kind}", draft(f"before-{kind}"))
            assert first.status_code == 202
            path = f"/v1/{'capabilities' if kind == 'capability' else 'decisions'}/{capability[f'{kind}_id']}/revoke"
            revoked = await one.client.post(path, json={"reason": "withdrawn"}, headers=one.headers())
            assert revoked.status_code == 200 and revoked.json()["reason"] == "withdrawn"
            for replica in (one, two):
                for key in (f"before-{kind}", f"after-{kind}"):
                    refused = await replica.submit(capability["capability"], key, draft(key))
                    problem(refused, 403, "forbidden", "revoked")
            again = await one.client.post(path, json={"reason": "twice"}, headers=one.headers())
            assert again.json() == revoked.json()
            async with one.gateway.store.transaction() as tx:
                keys = {key_of(entry) for entry in await tx.entries()}
            assert f"revoked_{kind}.{capability[f'{kind}_id']}" in keys


async def test_who_may_revoke(gateway: EdgeUnderTest) -> None:
    """The agent itself, an operator or an admin of its tenant; nobody else.

    Requirements: G6, T1
    """
    capability = await gateway.capability()
    path = f"/v1/capabilities/{capability['capability_id']}/revoke"
    for who, status in (
        ({"sub": "agent:other"}, 403),
        (VIEWER, 403),
        ({"tenant": "globex"}, 404),
        ({"tenant": "globex", **OPERATOR}, 404),
        (ADMIN, 200),
    ):
        assert (await gateway.client.post(path, headers=gateway.headers(**who))).status_code == status
    decision = await gateway.decide()
    path = f"/v1/decisions/{decision['decision_id']}/revoke"
    problem(await gateway.client.post(path, json={}, headers=gateway.headers()), 422, "payload-invalid")
    assert (
        await gateway.client.post(path, json={"reason": "x"}, headers=gateway.headers(**OPERATOR))
    ).status_code == 200


async def test_a_freeze_holds_back_its_scope_until_it_is_lifted(gateway_database: Database) -> None:
    """Only the scope, on every replica, at once; other tenants are untouched; lifting opens the way again.

    Requirements: G6
    """
    async with edge(gateway_database) as one, edge(gateway_database) as two:
        ours = (await one.capability(max_uses=9))["capability"]
        theirs = (await one.capability(max_uses=9, tenant="globex"))["capability"]
        frozen = await freeze(one, "f1", {"system": "wordpress", "command_type": "wordpress.create_draft"})
        assert frozen.status_code == 201 and frozen.json()["active"] is True
        assert frozen.json()["scope"]["tenant"] == "acme"
        refused = await two.submit(ours, "frozen", draft("frozen"))
        assert frozen.json()["freeze_id"] in problem(refused, 403, "forbidden", "frozen")["detail"]
        assert (await two.submit(theirs, "frozen", draft("frozen"))).status_code == 202
        listed = (await one.client.get("/v1/controls/freezes", headers=one.headers(**VIEWER))).json()["items"]
        assert [item["freeze_id"] for item in listed] == [frozen.json()["freeze_id"]]
        lifted = await lift(two, "l1", {"scope": {"system": "wordpress", "command_type": "wordpress.create_draft"}})
        assert lifted.status_code == 200 and lifted.json()["items"][0]["lifted_by"] == "operator:ops"
        assert (await one.submit(ours, "frozen", draft("frozen"))).status_code == 202
        assert (await one.client.get("/v1/controls/freezes", headers=one.headers(**VIEWER))).json()["items"] == []
        everything = await one.client.get("/v1/controls/freezes?active=false", headers=one.headers(**VIEWER))
        assert [item["active"] for item in everything.json()["items"]] == [False]


async def test_freezes_are_idempotent_and_guarded(gateway: EdgeUnderTest) -> None:
    """A key per change; a repetition changes nothing; roles, tenants and nonsense are refused.

    Requirements: T1, F1
    """
    scope = {"command_type": "wordpress.update_post"}
    first, again = [await freeze(gateway, "same", scope) for _ in range(2)]
    assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"
    assert await gateway.count("freeze", f"freeze_id = '{first.json()['freeze_id']}'") == 1
    before = await gateway.rows()
    problem(await freeze(gateway, "same", {"system": "bench"}), 422, "idempotency-key-reused")
    problem(await freeze(gateway, "t", {"tenant": "globex"}), 403, "forbidden", "tenant")
    problem(await freeze(gateway, "p", scope, expires_at=rfc3339(later(-5))), 422, "payload-invalid")
    problem(await lift(gateway, "n", {"scope": {"system": "bench"}}), 404, "not-found")
    problem(await lift(gateway, "n", {}), 422, "payload-invalid")
    problem(await lift(gateway, "n", {"scope": {}, "freeze_id": "frz_1"}), 422, "payload-invalid")
    body = {"scope": scope, "reason": "x"}
    keyless = await gateway.client.post("/v1/controls/freezes", json=body, headers=gateway.headers(**OPERATOR))
    problem(keyless, 400, "idempotency-key-missing")
    headers = {**gateway.headers(), "Idempotency-Key": "agent"}
    problem(await gateway.client.post("/v1/controls/freezes", json=body, headers=headers), 403, "forbidden", "role")
    assert await gateway.rows() == before
    path = f"/v1/controls/freezes/{first.json()['freeze_id']}"
    headers = {**gateway.headers(tenant="globex", **OPERATOR), "Idempotency-Key": "mine"}
    problem(await gateway.client.delete(path, headers=headers), 404, "not-found")
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": "mine"}
    assert (await gateway.client.delete(path, headers=headers)).status_code == 200


async def test_a_policy_change_judges_the_next_effect(gateway_database: Database) -> None:
    """A new version counts at once on every replica: capabilities of earlier decisions are judged again.

    Requirements: G5, G6
    """
    async with edge(gateway_database) as one, edge(gateway_database) as two:
        capability = (await one.capability(max_uses=9))["capability"]
        nobody = '@id("none") forbid (principal, action, resource);'
        changed = await set_policy(one, "stop", DEFAULT_TEXT + nobody)
        assert changed.status_code == 200 and "none" in changed.json()["ids"]
        problem(await two.submit(capability, "stopped", draft("stopped")), 403, "forbidden", "policy")
        assert (await two.decide())["outcome"] == "denied"
        read = (await two.client.get("/v1/policies", headers=two.headers(**ADMIN))).json()
        assert read == changed.json()
        back = await set_policy(two, "back", DEFAULT_TEXT)
        assert back.json()["version"] == changed.json()["version"] + 1
        assert (await one.submit(capability, "stopped", draft("stopped"))).status_code == 202
        again = await set_policy(two, "back", DEFAULT_TEXT)
        assert again.json() == back.json() and again.headers["idempotent-replayed"] == "true"


async def test_a_policy_set_must_hold_water(gateway: EdgeUnderTest) -> None:
    """Invalid sets are refused with reasons and change nothing; only an admin changes policy.

    Requirements: G6
    """
    before = await gateway.rows()
    for text in (
        "nonsense",
        "permit (principal, action, resource);",
        '@id("a") permit (principal, action, resource) when { context.x };',
    ):
        found = problem(await set_policy(gateway, "bad", text), 422, "payload-invalid")
        assert found["errors"][0]["pointer"] == "/policies"
    for who in (OPERATOR, VIEWER, {"roles": ("agent",)}):
        problem(await set_policy(gateway, "bad", DEFAULT_TEXT, **who), 403, "forbidden", "role")
    problem(await gateway.client.get("/v1/policies", headers=gateway.headers()), 403, "forbidden", "role")
    assert await gateway.rows() == before


async def test_a_broken_glass_lets_one_scope_through_for_a_while(gateway: EdgeUnderTest) -> None:
    """A person with a reason, for some minutes, under a decision of its own; the freeze itself stays, and holds again.

    Requirements: D4, G6
    """
    ours = (await gateway.capability(max_uses=9))["capability"]
    frozen = await freeze(gateway, "glass-freeze", {})
    assert frozen.status_code == 201
    problem(await gateway.submit(ours, "glass-1", draft("glass-1")), 403, "forbidden", "frozen")

    async def break_glass(key: str, **changes: Any) -> Any:
        who = changes.pop("who", OPERATOR)
        body = {"scope": {"system": "wordpress"}, "reason": "the recall must go out", "minutes": 15, **changes}
        headers = {**gateway.headers(**who), "Idempotency-Key": key}
        return await gateway.client.post("/v1/controls/break-glass", json=body, headers=headers)

    for who in ({}, {"sub": "operator:root", "roles": ("admin",)}, {"sub": "service:x", "roles": ("operator",)}):
        problem(await break_glass("glass-who", who=who), 403, "forbidden", "role")
    for wrong in ({"minutes": 0}, {"minutes": 241}, {"minutes": 1.5}, {"reason": ""}):
        problem(await break_glass("glass-wrong", **wrong), 422, "payload-invalid")
    problem(await break_glass("glass-theirs", scope={"tenant": "globex"}), 403, "forbidden", "tenant")
    problem(await gateway.submit(ours, "glass-1", draft("glass-1")), 403, "forbidden", "frozen")
    broken = (await break_glass("glass", scope={"command_type": "wordpress.create_draft"})).json()
    assert (broken["kind"], broken["active"], broken["created_by"]) == ("break_glass", True, "operator:ops")
    again = await break_glass("glass", scope={"command_type": "wordpress.create_draft"})
    assert again.json() == broken and again.headers["idempotent-replayed"] == "true"
    assert (await gateway.submit(ours, "glass-1", draft("glass-1"))).status_code == 202
    trace = await gateway.client.get(f"/v1/decisions/{broken['decision_id']}", headers=gateway.headers(**OPERATOR))
    assert trace.json()["context"]["operation"] == "BREAK_GLASS" and trace.json()["subject"] == "operator:ops"
    listed = await gateway.client.get("/v1/controls/freezes", headers=gateway.headers(**OPERATOR))
    assert {item["kind"] for item in listed.json()["items"]} >= {"freeze", "break_glass"}
    other = (await gateway.capability("bench.post", system="bench", resource="*"))["capability"]
    elsewhere = await gateway.submit(
        other, "glass-2", {"command_type": "bench.post", "target": {"system": "bench", "resource": "x"}, "payload": {}}
    )
    problem(elsewhere, 403, "forbidden", "frozen")
    for name, status in ((broken["freeze_id"], 403), (frozen.json()["freeze_id"], 202)):  # lifted, one after the other
        headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": f"lift {name}"}
        lifted = await gateway.client.delete(f"/v1/controls/freezes/{name}", headers=headers)
        assert lifted.status_code == 200, lifted.text
        assert (await gateway.submit(ours, "glass-3", draft("glass-3"))).status_code == status


def test_a_broken_glass_ends_by_itself_and_covers_its_scope_only() -> None:
    """Requirements: D4"""
    now = later(0)
    freeze_all: Held = (FREEZE, "frz_1", FreezeScope(tenant="acme"), None)
    broken: Held = (BREAK_GLASS, "frz_2", FreezeScope(tenant="acme", system="wordpress"), later(60))
    fields = {"tenant": "acme", "system": "wordpress", "command_type": "wordpress.create_draft"}
    for held in ((freeze_all, broken), (broken, freeze_all)):
        assert held_by(held, fields, now) is None
        assert held_by(held, {**fields, "system": "bench"}, now) == "frz_1"
        assert held_by(held, fields, later(61)) == "frz_1"
        assert held_by(held, fields, now, compensation=True) is None, "a freeze that names no compensation holds none"
    naming: Held = (FREEZE, "frz_3", FreezeScope(tenant="acme", compensation=True), None)
    assert held_by((naming, broken), fields, now, compensation=True) == "frz_3"


PERMIT_ALL = '@id("all") permit (principal, action, resource);'


async def test_one_tenant_makes_the_policies_of_all(gateway_database: Database) -> None:
    """Another tenant's admin neither changes what holds for everybody nor reads who did, and why.

    Requirements: T1, G2
    """
    globex = {**ADMIN, "tenant": "globex"}
    async with edge(gateway_database, policy_tenant="globex") as plane:
        answer = await set_policy(plane, "p1", PERMIT_ALL)
        problem(answer, 403, "forbidden", "tenant")
        assert "TRUEUP_POLICY_TENANT" in answer.json()["detail"]
        assert (await set_policy(plane, "p2", PERMIT_ALL, **globex)).status_code == 200
        told = (await plane.client.get("/v1/policies", headers=plane.headers(**globex))).json()
        assert (told["created_by"], told["reason"]) == ("operator:root", "test")
        held = (await plane.client.get("/v1/policies", headers=plane.headers(**ADMIN))).json()
        assert (held["created_by"], held["reason"], held["ids"]) == (None, None, ["all"])
        assert (await set_policy(plane, "p3", DEFAULT_TEXT, **globex)).status_code == 200


async def test_in_production_nobody_makes_policies_until_a_tenant_is_named(gateway_database: Database) -> None:
    """Requirements: T1, G2"""
    async with edge(gateway_database) as plane:
        object.__setattr__(plane.gateway.settings, "mode", "production")
        problem(await set_policy(plane, "p1", PERMIT_ALL), 403, "forbidden", "tenant")
