"""A command in the place of another: lineage both ways, one identity that passes on, and how narrow a repairer is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.asks import project
from tests.gateway.edge import EdgeUnderTest, draft, later
from tests.gateway.mending import told_incident, told_repair

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import ExceptionChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.runtime.clock import real_now
from trueup_gateway.policy import DEFAULT_TEXT, PolicyInvalid, PolicySet

REPAIRER = {"sub": "service:repair-planner", "roles": ("repairer",)}
UNKNOWN = "cmd_" + "0" * 32


async def accepted(gateway: EdgeUnderTest, key: str, slug: str) -> str:
    capability = await gateway.capability()
    response = await gateway.submit(capability["capability"], key, draft(slug))
    assert response.status_code == 202, response.text
    return str(response.json()["command_id"])


async def ended(gateway: EdgeUnderTest, command_id: str, state: str) -> None:
    """The read model as it is once the orchestrator told of the end; SQL, for only the state matters here."""
    async with gateway.database.connection() as connection:
        await connection.execute(
            "INSERT INTO gateway.command_view (command_id, tenant, subject, workflow_id, command_type, system, state, "
            'state_version, created_at, "row", undoing) '
            "SELECT command_id, tenant, subject, workflow_id, command_type, system, $2, 9, created_at, "
            "(\"row\"::jsonb || jsonb_build_object('state', $2::text, 'state_version', 9))::json, false "
            "FROM gateway.received WHERE command_id = $1",
            command_id,
            state,
        )
        await connection.execute("DELETE FROM gateway.received WHERE command_id = $1", command_id)


async def offered(gateway: EdgeUnderTest, supersedes: str, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A drift whose exception offers this command as its repair; answers the context of a decision on exactly that."""
    offer = {
        "command_type": body["command_type"],
        "resource": body["target"]["resource"],
        "payload": body["payload"],
        "supersedes": supersedes,
    }
    facts: dict[str, Any] = {
        "exception_id": derived_id("exc", supersedes, digest(offer)),
        "tenant": "acme",
        "kind": "state_drift",
        "status": "open",
        "lifecycle": "assigned",
        "failure_class": "STATE_DRIFT",
        "owner": "operators",
        "deadline_at": later(3600),
        "opened_at": later(-60),
        "envelope": {"repair": offer},
        "version": 1,
    }
    event = ExceptionChanged(**{**facts, **changes})
    await project(gateway, event, tenant=event.tenant)
    return {"supersedes": supersedes, "payload_sha256": digest(body["payload"])}


async def repair_capability(gateway: EdgeUnderTest, supersedes: str, body: dict[str, Any]) -> str:
    context = await offered(gateway, supersedes, body)
    capability = await gateway.capability(body["command_type"], resource="post", context=context, **REPAIRER)
    return str(capability["capability"])


async def read(gateway: EdgeUnderTest, command_id: str) -> dict[str, Any]:
    operator = gateway.headers(sub="operator:ops", roles=("operator",))
    body: dict[str, Any] = (await gateway.client.get(f"/v1/commands/{command_id}", headers=operator)).json()
    return body


async def test_a_repair_takes_the_place_and_the_identity_of_what_succeeded(gateway: EdgeUnderTest) -> None:
    """Requirements: O6, G7, I2"""
    first = await accepted(gateway, "repaired", "repaired")
    await ended(gateway, first, "SUCCESS")
    body = draft("repaired", supersedes=first)
    token = await repair_capability(gateway, first, body)
    response = await gateway.submit(token, "repair:rep_1", body)
    assert response.status_code == 202, response.text
    second = response.json()["command_id"]
    assert (await read(gateway, second))["supersedes"] == first
    shown = await read(gateway, first)
    assert (shown["supersedes"], shown["superseded_by"]) == (None, second)
    start = gateway.publisher.published[-1].message
    assert f'"supersedes":"{first}"'.encode() in start.data
    again = await gateway.submit(token, "repair:rep_1", body)
    assert (again.status_code, again.json()["command_id"]) == (202, second)
    other = await gateway.capability()
    taken = await gateway.submit(other["capability"], "random", draft("repaired"))
    assert (taken.status_code, taken.json()["command_id"]) == (409, second)


@pytest.mark.parametrize("state", ["RECEIVED", "RUNNING", "OUTCOME_UNKNOWN", "RECONCILING", "NEEDS_REVIEW"])
async def test_nothing_takes_the_place_of_what_has_not_ended_or_is_not_known(
    gateway: EdgeUnderTest, state: str
) -> None:
    """Requirements: O6, X4"""
    slug = f"open-{state.lower().replace('_', '-')}"
    first = await accepted(gateway, slug, slug)
    if state != "RECEIVED":
        await ended(gateway, first, state)
    body = draft(slug, supersedes=first)
    token = await repair_capability(gateway, first, body)
    response = await gateway.submit(token, f"repair:{slug}", body)
    assert response.status_code == 409
    assert (response.json()["state"], response.json()["command_id"]) == (state, first)


async def test_an_agent_replaces_what_failed_and_never_what_succeeded(gateway: EdgeUnderTest) -> None:
    """Requirements: O6, I1"""
    failed, done = await accepted(gateway, "edited", "edited"), await accepted(gateway, "stands", "stands")
    await ended(gateway, failed, "DEAD_LETTERED")
    await ended(gateway, done, "SUCCESS")
    capability = await gateway.capability(max_uses=3)
    edited = await gateway.submit(capability["capability"], "edited-2", draft("edited", supersedes=failed))
    assert edited.status_code == 202
    refused = await gateway.submit(capability["capability"], "stands-2", draft("stands", supersedes=done))
    assert (refused.status_code, refused.json()["check"]) == (403, "decision")


async def test_another_tenants_command_and_one_that_does_not_exist_are_the_same_to_a_repair(
    gateway: EdgeUnderTest,
) -> None:
    """Requirements: T1, O6"""
    foreign = await gateway.capability(tenant="globex")
    other = (await gateway.submit(foreign["capability"], "theirs", draft("theirs"))).json()["command_id"]
    answers = []
    for name in (other, UNKNOWN):
        denied = await gateway.decide(resource="post", context={"supersedes": name}, **REPAIRER)
        assert (denied["outcome"], denied["determining_policies"]) == ("denied", [])
        token = (await gateway.capability(context={"supersedes": name}))["capability"]
        response = await gateway.submit(token, f"repair:{name}", draft("x", supersedes=name))
        answers.append((response.status_code, response.json()["errors"]))
    assert answers[0] == answers[1] == (422, [{"pointer": "/supersedes", "detail": "there is no such command"}])


async def test_a_repairers_decision_covers_the_command_it_was_made_about_and_no_other(gateway: EdgeUnderTest) -> None:
    """Requirements: G3, G7"""
    first = await accepted(gateway, "bound", "bound")
    await ended(gateway, first, "SUCCESS")
    token = await repair_capability(gateway, first, draft("bound"))
    for body, check in (
        (draft("bound"), "decision"),
        (draft("bound", supersedes=UNKNOWN), "decision"),
        (draft("elsewhere", supersedes=first), "payload_hash"),
    ):
        refused = await gateway.submit(token, "repair:wide", body)
        assert (refused.status_code, refused.json()["check"]) == (403, check)


async def test_a_repairer_writes_what_an_open_drift_offers_and_nothing_else(gateway: EdgeUnderTest) -> None:
    """The right command, object and command type with a content of one's own is no repair: not while the drift is open,
    not after it, not for another tenant's, and not without any content named.

    Requirements: G7, N, G3
    """
    first = await accepted(gateway, "offered", "offered")
    await ended(gateway, first, "SUCCESS")
    body = draft("offered", supersedes=first)
    mine = {"supersedes": first, "payload_sha256": digest({**body["payload"], "content": "<script>"})}
    exact = {"supersedes": first, "payload_sha256": digest(body["payload"])}

    async def asked(context: dict[str, Any], **who: Any) -> tuple[int, Any]:
        wanted = {
            "action": {"command_types": ["wordpress.create_draft"], "workflow": None},
            "resource": {"system": "wordpress", "resource": "post"},
            "purpose": "test",
            "context": context,
        }
        headers = gateway.headers(**(who or REPAIRER))
        response = await gateway.client.post("/v1/decisions", json=wanted, headers=headers)
        return response.status_code, response.json().get("outcome")

    assert (await asked(exact))[0] == 503, "nothing is offered (yet): asked again later, decided never"
    await offered(gateway, first, draft("offered"), tenant="globex", exception_id="exc_" + "1" * 32)
    await offered(gateway, first, draft("offered"), status="closed", exception_id="exc_" + "2" * 32)
    await offered(gateway, first, draft("offered"), kind="failed", exception_id="exc_" + "3" * 32)
    assert (await asked(exact))[0] == 503
    await offered(gateway, first, draft("offered"))
    assert await asked(exact) == (201, "approved")
    for context in (mine, {"supersedes": first}):
        assert (await asked(context))[0] == 503
    agent = await gateway.decide(resource="post", context=mine)
    assert agent["determining_policies"] == ["agents-act-at-moderate-risk"], "an agent's own content is an agent's"
    both = {**REPAIRER, "roles": ("repairer", "viewer")}
    assert (await asked(mine, **both))[0] == 503


async def test_naming_an_ended_command_makes_no_repair_of_anything_ever_after(gateway: EdgeUnderTest) -> None:
    """A decision that merely names `supersedes` is evaluated again as what it was: policy that lets repairs through
    alone does not let it through.

    Requirements: G5, G7
    """
    first = await accepted(gateway, "dodging", "dodging")
    await ended(gateway, first, "DEAD_LETTERED")
    body = draft("dodging", supersedes=first)
    capability = await gateway.capability(resource="post", context={"supersedes": first}, max_uses=2)
    repair = await repair_capability(gateway, first, body)
    text = (await gateway.gateway.reads.policy()).text  # type: ignore[union-attr]
    only = f'{text}\n@id("only-repairs") forbid (principal, action == Action::"execute", resource)'
    only += "unless { context.repair };"
    headers = gateway.headers(sub="operator:root", roles=("admin",))
    for number, (policies, expected) in enumerate(((only, 403), (text, 202))):
        changed = await gateway.client.put(
            "/v1/policies",
            json={"policies": policies, "reason": "test"},
            headers={**headers, "Idempotency-Key": f"dodge-{number}"},
        )
        assert changed.status_code in (200, 201), changed.text
        if expected == 403:
            refused = await gateway.submit(capability["capability"], "dodging-2", body)
            assert (refused.status_code, refused.json()["check"]) == (403, "policy")
            taken = await gateway.submit(repair, "repair:dodging", body)
            assert taken.status_code == 202, taken.text


async def test_a_repairer_without_something_to_repair_may_do_nothing(gateway: EdgeUnderTest) -> None:
    """Requirements: G7. Every narrow right of the planner's identity, and what it may not."""
    denied = await gateway.decide("wordpress.create_draft", **REPAIRER)
    assert (denied["outcome"], denied["determining_policies"]) == ("denied", [])
    first = await accepted(gateway, "pivot", "pivot")
    await ended(gateway, first, "SUCCESS")
    about = {"context": await offered(gateway, first, draft("pivot"))}
    small = await gateway.decide("wordpress.create_draft", resource="post", **about, **REPAIRER)
    assert (small["outcome"], small["determining_policies"]) == ("approved", ["repairs-act-in-the-place-of-what-ended"])
    for type_, resource in (("wordpress.trash_post", "post"), ("wordpress.create_draft", "post/7")):
        wide = await gateway.decide(type_, resource=resource, **about, **REPAIRER)
        assert (wide["outcome"], wide["determining_policies"]) == ("denied", []), "no repair of that command"
    async with gateway.database.connection() as connection:
        await connection.execute(
            'UPDATE gateway.command_view SET "row" = '
            "(\"row\"::jsonb || jsonb_build_object('command_type', $2::text))::json WHERE command_id = $1",
            first,
            "wordpress.publish_post",
        )
    about = {"context": await offered(gateway, first, draft("pivot", command_type="wordpress.publish_post"))}
    pivot = await gateway.decide("wordpress.publish_post", resource="post", **about, **REPAIRER)
    assert (pivot["outcome"], pivot["approval_id"] is None) == ("approval_required", False)
    headers = gateway.headers(**REPAIRER)
    for path in ("/v1/exceptions/summary", "/v1/controls/freezes", "/v1/policies"):
        assert (await gateway.client.get(path, headers=headers)).status_code == 403, path
    changing = {**headers, "Idempotency-Key": '"x"'}
    freeze = {"scope": {"system": "wordpress"}, "reason": "x"}
    assert (await gateway.client.post("/v1/controls/freezes", json=freeze, headers=changing)).status_code == 403
    path = f"/v1/approvals/{pivot['approval_id']}/decision"
    answer = {"decision": "approve", "nonce": "n", "content_sha256": "0" * 64, "reason": "mine"}
    assert (await gateway.client.post(path, json=answer, headers=changing)).status_code == 403


def test_policies_may_tell_repairs_apart() -> None:
    """Requirements: G2, G7"""
    told = '@id("no-repairs") forbid (principal, action, resource) when { context.repair };'
    assert "no-repairs" in PolicySet(f"{DEFAULT_TEXT}\n{told}").ids
    with pytest.raises(PolicyInvalid, match="repairs"):
        PolicySet(f"{DEFAULT_TEXT}\n{told.replace('context.repair', 'context.repairs')}")


async def test_repairs_and_incidents_are_shown_counted_and_kept_apart_by_tenant(gateway: EdgeUnderTest) -> None:
    """Requirements: Q1, O1, T1"""
    now = real_now()
    repair = told_repair(version=2)
    older = repair.evolve(version=1, status="DONE", ended_at=now)
    over = repair.evolve(repair_id="rep_" + "2" * 32, status="DONE", ended_at=now)
    incident = told_incident(now)
    await project(gateway, repair, older, over, incident)
    operator = gateway.headers(sub="operator:ops", roles=("operator",))

    async def get(path: str, headers: dict[str, str] = operator) -> Any:
        return (await gateway.client.get(path, headers=headers)).json()

    summary = await get("/v1/exceptions/summary")
    assert (summary["repair_queue"], summary["open_incidents"]) == (1, 1)
    items = (await get("/v1/repairs?open=true"))["items"]
    assert [(item["repair_id"], item["status"]) for item in items] == [(repair.repair_id, "PLANNED")]
    assert {item["status"] for item in (await get("/v1/repairs"))["items"]} == {"PLANNED", "DONE"}
    shown = await get(f"/v1/repairs/{repair.repair_id}")
    assert shown["drift"]["element"] == "monitoring.registered" and shown["verification_plan"]
    assert (await get("/v1/incidents?status=open"))["items"][0]["blast_radius"] == {"systems": 1}
    assert (await get(f"/v1/incidents/{incident.incident_id}"))["exceptions_count"] == 5
    globex = gateway.headers(sub="operator:gus", tenant="globex", roles=("operator",))
    assert (await get("/v1/repairs", globex))["items"] == (await get("/v1/incidents", globex))["items"] == []
    assert (await get(f"/v1/repairs/{repair.repair_id}", globex))["status"] == 404
