"""A person who approves a repair sees what it sends, behind the hash, and the drift that it is for."""

from __future__ import annotations

from typing import Any

from tests.gateway.asks import EDITOR, project
from tests.gateway.edge import EdgeUnderTest, draft, later
from tests.gateway.mending import told_repair
from tests.gateway.test_supersedes import REPAIRER, accepted, ended, offered

from trueup_common.contracts.canonical import digest

REVIEWER = {**EDITOR, "scopes": ("*",)}
AUDITOR = {"sub": "operator:ada", "roles": ("auditor",)}
PUBLISH = "wordpress.publish_post"


async def question(gateway: EdgeUnderTest, key: str, **payload: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A repair that needs approval: its decision, what was offered, and the exception that offers it."""
    first = await accepted(gateway, key, key)
    await ended(gateway, first, "SUCCESS")
    async with gateway.database.connection() as connection:
        await connection.execute(
            'UPDATE gateway.command_view SET "row" = '
            "(\"row\"::jsonb || jsonb_build_object('command_type', $2::text))::json WHERE command_id = $1",
            first,
            PUBLISH,
        )
    body = draft(key, command_type=PUBLISH, payload={"post_id": 28, "content_sha256": "ab" * 32, **payload})
    drift = {"element": "wordpress.status", "desired": "publish", "observed": "draft", "target_system": "wordpress"}
    offer = {
        **{"command_type": PUBLISH, "resource": body["target"]["resource"], "payload": body["payload"]},
        **{"supersedes": first, "verification": "wordpress.status is observed as publish"},
    }
    envelope = {**drift, "target_resource": "post/28", "repair": offer, "observed_at": "2026-11-30T09:00:00Z"}
    name = f"exc_{digest(key)[:32]}"
    context = await offered(gateway, first, body, envelope=envelope, exception_id=name)
    decision = await gateway.decide(PUBLISH, resource="post", context=context, **REPAIRER)
    assert decision["outcome"] == "approval_required", decision
    return decision, {**envelope, "body": body}, name


async def read(gateway: EdgeUnderTest, path: str, **who: Any) -> dict[str, Any]:
    response = await gateway.client.get(path, headers=gateway.headers(**who))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_the_approver_of_a_repair_reads_the_payload_behind_the_hash(gateway: EdgeUnderTest) -> None:
    """What is sent, with the hash that is approved; the element, desired beside observed; risk with its factors; what
    the command can do, and what takes it back. Somebody who may read nothing but approvals sees all of it.

    Requirements: Q5, O2, O3, S6
    """
    decision, offer, exception_id = await question(gateway, "hash")
    path = f"/v1/approvals/{decision['approval_id']}"
    shown = await read(gateway, path, **REVIEWER)
    summary = shown["summary"]
    assert summary["payload"] == offer["body"]["payload"]
    assert digest(summary["payload"]) == shown["content_sha256"] == shown["binds"][0]
    drift = summary["drift"]
    assert [drift[name] for name in ("element", "desired", "observed")] == ["wordpress.status", "publish", "draft"]
    assert (drift["exception_id"], drift["system"], drift["resource"]) == (exception_id, "wordpress", "post/28")
    assert drift["observed_at"] and summary["verification"] == "wordpress.status is observed as publish"
    assert summary["effect_class"] == "PIVOT" and summary["taken_back_by"] == {PUBLISH: None}, "nothing takes it back"
    factors = summary["risk_factors"]
    assert summary["risk_score"] == sum(item["points"] for item in factors) > 0, factors
    assert shown["repair"] is None, "the planner has not told of it yet"


async def test_its_plan_stands_beside_it_once_the_planner_told_of_it(gateway: EdgeUnderTest) -> None:
    """Why, by which playbook, how it will be verified and what takes it back; of this approval and of no other repair.

    Requirements: Q5, O2
    """
    decision, _, exception_id = await question(gateway, "planned")
    plan = told_repair(version=4).evolve(
        repair_id="rep_" + "7" * 32,
        exception_id=exception_id,
        status="WAITING_APPROVAL",
        approval_id=decision["approval_id"],
        decision_id=decision["decision_id"],
    )
    earlier = plan.evolve(repair_id="rep_" + "8" * 32, status="FAILED", approval_id=None, ended_at=later(-5))
    await project(gateway, plan, earlier)
    path = f"/v1/approvals/{decision['approval_id']}"
    told = (await read(gateway, path, **REVIEWER))["repair"]
    assert (told["repair_id"], told["playbook"]) == (plan.repair_id, plan.playbook)
    assert told["verification_plan"] and told["rollback_or_compensation"] and told["explanation"]
    (listed,) = [
        item
        for item in (await read(gateway, "/v1/approvals?status=pending", **REVIEWER))["items"]
        if item["approval_id"] == decision["approval_id"]
    ]
    assert listed["repair"]["repair_id"] == plan.repair_id
    seen = await read(gateway, path, **AUDITOR)
    assert (seen["summary"], seen["binds"], seen["repair"]["root_cause"]) == (None, None, None)
    assert seen["repair"]["playbook"] == plan.playbook and seen["content_sha256"]


async def test_what_is_approved_stays_what_it_was_when_the_drift_moves_on(gateway: EdgeUnderTest) -> None:
    """The drift is looked at again and offers something else: the approval still shows what its hash stands for.

    Requirements: S6, Q5
    """
    decision, offer, exception_id = await question(gateway, "moved")
    body = draft("moved", command_type=PUBLISH, payload={"post_id": 29, "content_sha256": "cd" * 32})
    changed = {**offer["repair"], "payload": body["payload"]}
    envelope = {"element": "wordpress.status", "observed": "trash", "repair": changed}
    await offered(gateway, offer["repair"]["supersedes"], body, envelope=envelope, exception_id=exception_id, version=2)
    shown = await read(gateway, f"/v1/approvals/{decision['approval_id']}", **REVIEWER)
    assert shown["summary"]["drift"]["observed"] == "draft"
    assert digest(shown["summary"]["payload"]) == shown["content_sha256"] != digest(body["payload"])


async def test_an_agents_question_shows_what_it_named_and_no_payload(gateway: EdgeUnderTest) -> None:
    """The gateway never saw more than a hash of it, and does not make anything up.

    Requirements: G2, O2
    """
    context = {"payload_sha256": "e" * 64}
    decision = await gateway.decide("wordpress.create_draft", PUBLISH, resource="post/28", context=context)
    shown = await read(gateway, f"/v1/approvals/{decision['approval_id']}", **REVIEWER)
    assert shown["content_sha256"] == "e" * 64 and "payload" not in shown["summary"] and shown["repair"] is None
    assert shown["summary"]["taken_back_by"] == {"wordpress.create_draft": "wordpress.trash_post", PUBLISH: None}
