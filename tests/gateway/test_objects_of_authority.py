"""Authority names objects: what a payload touches is what the capability, the grant and the approval speak about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.edge import PAGE, RETITLE, TRASH, EdgeUnderTest
from tests.gateway.test_minting import check, draft, undoing
from tests.gateway.test_refusals import problem
from tests.gateway.test_workflow_grants import DECISION, MANDATE, NOW, ask

from trueup_common.contracts.events import GrantRequest
from trueup_common.contracts.grant import GrantClaims
from trueup_common.runtime.clock import real_now
from trueup_gateway.core.grants import Facts, Refusal, mint
from trueup_gateway.core.policy import Answer, Question
from trueup_gateway.core.reduced_payload import reduced

REVIEWER = {"sub": "operator:ed", "roles": ("approver",), "scopes": ("*",)}


def retitle(label: str, post_id: int = 134, **payload: Any) -> dict[str, Any]:
    """A command on one post, under some label."""
    return {
        "command_type": RETITLE.type,
        "target": {"system": "wordpress", "resource": label},
        "payload": {"post_id": post_id, **payload},
    }


def page(label: str, slug: str) -> dict[str, Any]:
    """A command that creates a page, under some label."""
    return {
        "command_type": PAGE.type,
        "target": {"system": "wordpress", "resource": label},
        "payload": {"slug": slug},
    }


@pytest.mark.parametrize(
    ("scope", "label", "post_id", "status"),
    [
        ("post/134", "post/134", 134, 202),
        ("post/*", "post/134", 134, 202),
        ("post/*", "post", 134, 202),
        ("post", "post", 134, 202),
        ("*", "post/134", 134, 202),
        ("post/133", "post/133", 134, 403),
        ("post/133", "post", 134, 403),
        ("post/133", "post/134", 134, 403),
        ("post/133/*", "post/133/x", 134, 403),
        ("post/*", "post/133", 134, 403),
        ("*", "post/133", 134, 403),
        ("*", "post/13", 134, 403),
        ("*", "post/134/meta", 134, 403),
        ("*", "Posts/133", 134, 403),
        ("article/*", "article/0028", 134, 202),
        ("*", "post/../post/133", 134, 403),
    ],
)
async def test_a_capability_for_one_post_reaches_no_other(
    gateway: EdgeUnderTest, scope: str, label: str, post_id: int, status: int
) -> None:
    """The target is the object of the payload or encloses it, and the scope covers it; else nothing is stored.

    Requirements: G3, G4, S6
    """
    capability = await gateway.capability(RETITLE.type, resource=scope)
    key, before = f"{scope} {label}", await gateway.rows()
    title = f"{scope} on {label}"
    response = await gateway.submit(capability["capability"], key, retitle(label, post_id, title=title))
    if status == 403:
        problem(response, 403, "forbidden", "resource")
        assert await gateway.rows() == before
    else:
        assert response.status_code == status, response.text


async def test_every_command_of_a_batch_names_its_own_object(gateway: EdgeUnderTest) -> None:
    """Requirements: G3, G4"""
    capability = await gateway.capability(RETITLE.type, resource="post/*", max_uses=3)
    commands = [
        {"idempotency_key": f"batch-{number}", **retitle("post/7", number, title="batch")} for number in (7, 8, 7)
    ]
    response = await gateway.client.post(
        "/v1/commands:batch",
        json={"commands": commands[:2]},
        headers={"Authorization": f"Bearer {capability['capability']}"},
    )
    assert [item["status"] for item in response.json()["results"]] == [202, 403]
    assert response.json()["results"][1]["check"] == "resource"


async def test_two_labels_of_one_object_are_one_identity(gateway: EdgeUnderTest) -> None:
    """Requirements: I2, G3"""
    capability = (await gateway.capability(RETITLE.type, resource="*", max_uses=5))["capability"]
    first = await gateway.submit(capability, "label-1", retitle("post", 9, title="one"))
    assert first.status_code == 202, first.text
    again = problem(
        await gateway.submit(capability, "label-2", retitle("post/9", 9, title="one")), 409, "identity-in-use"
    )
    assert again["command_id"] == first.json()["command_id"]
    other = await gateway.submit(capability, "label-3", retitle("post", 10, title="one"))
    assert other.status_code == 202, other.text


async def test_what_is_created_has_no_place_of_its_own_choosing(gateway: EdgeUnderTest) -> None:
    """Two labels made two pages under one slug: whatever the label, a type that creates acts on the collection.

    Requirements: I1, I2, S6
    """
    capability = (await gateway.capability(PAGE.type, resource="*", max_uses=5))["capability"]
    assert (await gateway.submit(capability, "twin-1", page("page", "twin"))).status_code == 202
    problem(await gateway.submit(capability, "twin-2", page("page/other", "twin")), 409, "identity-in-use")
    problem(await gateway.submit(capability, "twin-3", page("page", "twin")), 409, "identity-in-use")


async def test_the_catalog_shows_what_a_type_acts_on(gateway: EdgeUnderTest) -> None:
    """Requirements: X8, F1"""
    listed = await gateway.client.get("/v1/catalog/commands", headers=gateway.headers())
    shown = {item["type"]: item["acts_on"] for item in listed.json()["items"]}
    assert (shown[RETITLE.type], shown[PAGE.type]) == ("post/{/payload/post_id}", "page")
    assert shown["bench.post"] is None


def proposal(**changes: Any) -> tuple[GrantRequest, Facts]:
    """A step on one post that is granted."""
    mandate = MANDATE.evolve(
        command_types=[RETITLE.type], declarations={**MANDATE.declarations, RETITLE.type: RETITLE.sha256}
    )
    fields = {"resource": "post/134", "payload": {"post_id": 134}, **changes}
    request, facts = draft(**{"declaration_sha256": RETITLE.sha256, **fields})
    operation = request.task.operation.evolve(command_type=RETITLE.type)
    task = request.task.evolve(operation=operation)
    decision = DECISION.evolve(risks={**DECISION.risks, RETITLE.type: {"score": 0, "level": "low"}})
    return request.evolve(task=task), replace(facts, mandate=mandate, decision=decision, declaration=RETITLE)


@pytest.mark.parametrize(
    ("resource", "payload", "wanted"),
    [
        ("post/134", {"post_id": 134}, None),
        ("post", {"post_id": 134}, None),
        ("post/133", {"post_id": 134}, "resource"),
        ("Posts/133", {"post_id": 134}, "resource"),
        ("article/0028", {"post_id": 134}, None),
        ("post/134", {}, "resource"),
        ("post/134", {"post_id": None}, "resource"),
        ("post/134", "text", "resource"),
    ],
)
def test_a_grant_is_minted_for_the_object_of_its_payload_alone(resource: str, payload: Any, wanted: str | None) -> None:
    """A step of a workflow is refused for good where its target is another object than what it sends.

    Requirements: G5, E2
    """
    request, facts = proposal(resource=resource, payload=payload)
    found = mint(request, facts, now=NOW, real=real_now(), ask=ask)
    if wanted is None:
        assert isinstance(found, GrantClaims) and found.resource == resource
    else:
        assert isinstance(found, Refusal) and (found.check, found.transient) == (wanted, False)


def test_what_undoes_an_effect_names_its_object_as_well() -> None:
    """Requirements: G5, S6"""
    request, facts = undoing(resource="post/133", payload={"post_id": 134})
    undone = TRASH.evolve(acts_on=RETITLE.acts_on, payload_schema=RETITLE.payload_schema)
    assert check(request, facts) is None
    assert check(request, replace(facts, declaration=undone)) == "resource"


def test_policy_is_asked_about_the_object_whatever_the_label() -> None:
    """Requirements: G2, G5"""
    asked: list[Question] = []

    def heard(question: Question) -> Answer:
        asked.append(question)
        return ask(question)

    request, facts = proposal(resource="post")
    mint(request, facts, now=NOW, real=real_now(), ask=heard)
    assert [question.resource for question in asked] == ["post/134"]


def test_a_payload_that_is_kept_elsewhere_still_names_its_object() -> None:
    """Requirements: L16, G5"""
    assert reduced(RETITLE, {"post_id": 7, "note": "x"}) == {"post_id": 7}


async def approved(gateway: EdgeUnderTest, resource: str, **context: Any) -> dict[str, Any]:
    """A decision on publishing that a person approved."""
    decision = await gateway.decide("wordpress.publish_post", resource=resource, context=context)
    assert decision["outcome"] == "approval_required", decision
    url = f"/v1/approvals/{decision['approval_id']}"
    shown = (await gateway.client.get(url, headers=gateway.headers(**REVIEWER))).json()
    body = {"decision": "approve", "nonce": shown["nonce"], "content_sha256": shown["content_sha256"]}
    headers = {**gateway.headers(**REVIEWER), "Idempotency-Key": f'"{decision["approval_id"]}"'}
    answered = await gateway.client.post(f"{url}/decision", json=body, headers=headers)
    assert answered.status_code == 200, answered.text
    return {**decision, "shown": shown}


async def wanted(gateway: EdgeUnderTest, decision: dict[str, Any], max_uses: int) -> Any:
    """A capability under a decision."""
    body = {"decision_id": decision["decision_id"], "max_uses": max_uses, "ttl_seconds": 60}
    return await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers())


async def test_an_approval_of_no_content_is_for_one_use_in_all(gateway: EdgeUnderTest) -> None:
    """The approver read neither number nor content, so one yes is one effect, through however many capabilities.

    Requirements: G3, G5, L10
    """
    decision = await approved(gateway, "post/*")
    assert decision["shown"]["summary"]["binds"] == "uses"
    problem(await wanted(gateway, decision, 1_000_000), 403, "forbidden", "uses")
    problem(await wanted(gateway, decision, 2), 403, "forbidden", "uses")
    first = await wanted(gateway, decision, 1)
    assert first.status_code == 201 and first.json()["max_uses"] == 1
    problem(await wanted(gateway, decision, 1), 403, "forbidden", "uses")
    url = f"/v1/capabilities/{first.json()['capability_id']}/revoke"
    revoked = await gateway.client.post(url, json={"reason": "lost"}, headers=gateway.headers())
    assert revoked.status_code == 200, revoked.text
    again = await wanted(gateway, decision, 1)
    assert again.status_code == 201, "a use that nobody can take any more is given again"
    body = {
        "command_type": "wordpress.publish_post",
        "target": {"system": "wordpress", "resource": "post/7"},
        "payload": {"post_id": 7},
    }
    assert (await gateway.submit(again.json()["capability"], "blank-1", body)).status_code == 202
    problem(await gateway.submit(again.json()["capability"], "blank-2", body), 403, "forbidden", "uses")
    url = f"/v1/capabilities/{again.json()['capability_id']}/revoke"
    assert (await gateway.client.post(url, json={"reason": "x"}, headers=gateway.headers())).status_code == 200
    problem(await wanted(gateway, decision, 1), 403, "forbidden", "uses")


async def test_an_approval_of_exactly_one_content_says_so(gateway: EdgeUnderTest) -> None:
    """Requirements: G3, L10"""
    decision = await approved(gateway, "post/7", payload_sha256="e" * 64)
    assert decision["shown"]["summary"]["binds"] == "payload"
    assert (await wanted(gateway, decision, 3)).status_code == 201


async def test_an_approved_object_is_the_object_that_is_published(gateway: EdgeUnderTest) -> None:
    """Who approved post 133 let nothing happen to post 134.

    Requirements: G3, E2
    """
    capability = await gateway.capability(RETITLE.type, resource="post/133")
    for label in ("post/133", "post", "post/134"):
        refused = await gateway.submit(capability["capability"], f"hijack {label}", retitle(label, 134))
        problem(refused, 403, "forbidden", "resource")


@pytest.mark.parametrize("name", ["a%00b", "%00", "a%ED%A0%80b", "%FF"])
async def test_a_name_that_is_no_text_names_nothing_on_any_route(gateway: EdgeUnderTest, name: str) -> None:
    """Whatever a route looks up by a part of its path: it is 404 before anything is asked, and never a 500.

    Requirements: F1, T3
    """
    paths = [path for path in (await gateway.client.get("/openapi.json")).json()["paths"].items() if "{" in path[0]]
    assert len(paths) > 20
    for path, methods in paths:
        parts = [name if part.startswith("{") else part for part in path.split("/")]
        for method in methods:
            response = await gateway.client.request(method, "/".join(parts), headers=gateway.headers(**REVIEWER))
            assert response.status_code == 404, (method, path, response.text)
