"""Workflow documents over HTTP: registered once, refused with rule and line, retired only when nothing runs them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.gateway.edge import ARTICLE, EdgeUnderTest
from tests.gateway.test_governance import ADMIN, OPERATOR, VIEWER
from tests.gateway.test_refusals import problem
from tests.gateway.test_workflow_start import ended

from trueup_common.contracts.states import InstanceStatus
from trueup_common.documents.read import read_document

MINE = ARTICLE.replace("name: article", "name: mine")


def named(name: str, version: int = 1) -> str:
    return ARTICLE.replace("name: article", f"name: {name}").replace("version: 1", f"version: {version}")


async def register(gateway: EdgeUnderTest, key: str, text: str, **who: Any) -> httpx.Response:
    headers = {**gateway.headers(**(who or ADMIN)), "Idempotency-Key": key}
    return await gateway.client.post("/v1/definitions", json={"document": text}, headers=headers)


async def retire(gateway: EdgeUnderTest, key: str, name: str, version: int = 1, **who: Any) -> httpx.Response:
    headers = {**gateway.headers(**(who or ADMIN)), "Idempotency-Key": key}
    path = f"/v1/definitions/{name}/{version}/retire"
    return await gateway.client.post(path, json={"reason": "over"}, headers=headers)


async def test_a_document_is_registered_once(gateway: EdgeUnderTest) -> None:
    """201, then 200 for the same content in any spelling, 409 for another; the text is kept as it was sent.

    Requirements: F1
    """
    first = await register(gateway, "once-1", named("once"))
    assert first.status_code == 201 and first.headers["location"] == "/v1/definitions/once/1", first.text
    document = read_document(named("once")).document
    assert first.json()["sha256"] == document.sha256 and first.json()["text"] == named("once")
    replayed = await register(gateway, "once-1", named("once"))
    assert replayed.status_code == 201 and replayed.headers["idempotent-replayed"] == "true"
    bare = {**gateway.headers(**OPERATOR), "Idempotency-Key": "once-2"}
    spelt = await gateway.client.post("/v1/definitions", json=document.dumped(), headers=bare)
    assert spelt.status_code == 200 and spelt.json()["sha256"] == document.sha256
    yaml = {**gateway.headers(**OPERATOR), "Idempotency-Key": "once-3", "Content-Type": "application/yaml"}
    as_yaml = await gateway.client.post("/v1/definitions", content=named("once").encode(), headers=yaml)
    assert as_yaml.status_code == 200
    changed = named("once").replace("P2D", "P3D")
    refused = problem(await register(gateway, "once-4", changed), 409, "conflict")
    assert refused["registered_sha256"] == document.sha256
    assert await gateway.count("definition", "name = 'once'") == 1


async def test_a_built_in_document_is_everyones(gateway: EdgeUnderTest) -> None:
    """Every tenant reads it; nobody registers another content under its name and version.

    Requirements: T1
    """
    for tenant in ("acme", "globex"):
        headers = gateway.headers(sub="agent:reader", tenant=tenant)
        found = (await gateway.client.get("/v1/definitions/article/1", headers=headers)).json()
        assert found["built_in"] is True and found["text"] == ARTICLE and found["created_at"] is None
    problem(await register(gateway, "built-in", ARTICLE.replace("P2D", "P3D")), 409, "conflict")
    assert (await register(gateway, "built-in-2", ARTICLE)).status_code == 200
    headers = {**gateway.headers(**VIEWER), "Accept": "application/yaml"}
    text = await gateway.client.get("/v1/definitions/article/1", headers=headers)
    assert text.text == ARTICLE and text.headers["content-type"].startswith("application/yaml")


async def test_a_document_of_one_tenant_is_not_anothers(gateway: EdgeUnderTest) -> None:
    """Neither read nor started nor listed by another tenant, who may have another one of the same name.

    Requirements: T1
    """
    assert (await register(gateway, "mine", MINE)).status_code == 201
    foreign = gateway.headers(sub="operator:eve", tenant="globex", roles=("operator",))
    problem(await gateway.client.get("/v1/definitions/mine/1", headers=foreign), 404, "not-found")
    listed = (await gateway.client.get("/v1/definitions", headers=foreign)).json()["items"]
    assert [item["name"] for item in listed] == ["article"]
    problem(await gateway.intent("mine", tenant="globex"), 422, "payload-invalid")
    other = await register(
        gateway,
        "mine",
        MINE.replace("P2D", "P9D"),
        sub="admin:eve".replace("admin", "operator"),
        tenant="globex",
        roles=("admin",),
    )
    assert other.status_code == 201, other.text


async def test_lists_are_paged(gateway: EdgeUnderTest) -> None:
    """Newest first, each version once, the built-in ones last."""
    for version in (1, 2, 3):
        assert (await register(gateway, f"paged-{version}", named("paged", version))).status_code == 201
    found: list[tuple[str, int]] = []
    cursor = ""
    while True:
        path = f"/v1/definitions?limit=2{cursor}"
        page = (await gateway.client.get(path, headers=gateway.headers(**VIEWER))).json()
        found += [(item["name"], item["version"]) for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found[:3] == [("paged", 3), ("paged", 2), ("paged", 1)] and len(set(found)) == len(found)
    assert found[-1] == ("article", 1)
    only = (await gateway.client.get("/v1/definitions?name=paged", headers=gateway.headers())).json()["items"]
    assert len(only) == 3


async def test_a_broken_document_is_refused_with_rule_and_line(gateway: EdgeUnderTest) -> None:
    """Every fault with its rule, its place and its line in the text that was sent; nothing is kept.

    Requirements: S2
    """
    doubled = named("broken") + (
        '  - id: again\n    command: wordpress.publish_post\n    with: {post_id: "${steps.draft.post_id}"}\n'
    )
    refused = problem(await register(gateway, "broken-1", doubled), 422, "definition-invalid")
    fault = next(item for item in refused["errors"] if item["rule"] == "two-pivots")
    assert set(fault) == {"pointer", "detail", "line", "rule"} and fault["pointer"].startswith("/")
    assert doubled.splitlines()[fault["line"] - 1].strip(), fault
    misspelt = named("broken").replace("lifetime:", "lifetme:")
    shape = problem(await register(gateway, "broken-2", misspelt), 422, "definition-invalid")
    lines = {item["line"] for item in shape["errors"]}
    assert misspelt.splitlines().index("lifetme: P2D") + 1 in lines
    bare = {**gateway.headers(**ADMIN), "Idempotency-Key": "broken-3"}
    as_object = await gateway.client.post("/v1/definitions", json={"name": "x"}, headers=bare)
    assert all(item["line"] is None for item in problem(as_object, 422, "definition-invalid")["errors"])
    problem(await register(gateway, "broken-4", named("command")), 422, "definition-invalid")
    problem(await register(gateway, "broken-5", "{"), 422, "definition-invalid")
    assert await gateway.count("definition", "name IN ('broken', 'x', 'command')") == 0


@pytest.mark.parametrize(
    "who", [VIEWER, {"sub": "agent:x", "roles": ("agent",)}, {"sub": "operator:x", "roles": ("approver",)}]
)
async def test_only_operators_and_admins_register_and_retire(gateway: EdgeUnderTest, who: dict[str, Any]) -> None:
    """Reading needs no role, changing does."""
    problem(await register(gateway, "roles", named("roles"), **who), 403, "forbidden", "role")
    problem(await retire(gateway, "roles", "article", **who), 403, "forbidden", "role")
    assert (await gateway.client.get("/v1/definitions/article/1", headers=gateway.headers(**who))).status_code == 200


async def test_the_call_itself_is_checked(gateway: EdgeUnderTest) -> None:
    """Media types, keys and bodies."""
    headers = gateway.headers(**ADMIN)
    missing = await gateway.client.post("/v1/definitions", json={"document": named("call")}, headers=headers)
    problem(missing, 400, "idempotency-key-missing")
    keyed = {**headers, "Idempotency-Key": "call"}
    plain = await gateway.client.post(
        "/v1/definitions", content=b"name: x", headers={**keyed, "Content-Type": "text/plain"}
    )
    problem(plain, 415, "media-type-unsupported")
    problem(await gateway.client.post("/v1/definitions", json=[1], headers=keyed), 422, "payload-invalid")
    problem(await gateway.client.post("/v1/definitions", json={"document": 1}, headers=keyed), 422, "payload-invalid")
    assert (await register(gateway, "call-1", named("call"))).status_code == 201
    problem(await register(gateway, "call-1", named("call", 2)), 422, "idempotency-key-reused")


async def test_a_version_with_open_cases_is_not_retired(gateway: EdgeUnderTest) -> None:
    """409 with state, age and next wake-up of each; once they are over it is retired and starts nothing new.

    Requirements: F1
    """
    for version in (1, 2):
        assert (await register(gateway, f"retired-{version}", named("retired", version))).status_code == 201
    capability = (await gateway.start_capability("retired"))["capability"]
    body = {"definition": "retired"}
    case = (await gateway.start(capability, "last", **body)).json()
    refused = problem(await retire(gateway, "retire-1", "retired", 2), 409, "conflict")
    (shown,) = refused["open_cases"]
    assert shown["workflow_id"] == case["workflow_id"] and shown["status"] == "RUNNING"
    assert shown["age_seconds"] >= 0 and shown["next_wake_at"].endswith("Z")
    await ended(gateway, case["workflow_id"], InstanceStatus.CLOSED)
    done = await retire(gateway, "retire-2", "retired", 2)
    assert done.status_code == 200 and done.json()["retired_by"] == ADMIN["sub"], done.text
    problem(await gateway.start(capability, "next", version=2, **body), 409, "conflict")
    older = await gateway.intent("retired")
    trace = await gateway.client.get(f"/v1/decisions/{older.json()['decision_id']}", headers=gateway.headers())
    assert trace.json()["action"]["version"] == 1
    again = await gateway.start(capability, "last", **body)
    assert again.status_code == 200 and again.json()["workflow_id"] == case["workflow_id"], again.text


async def test_a_built_in_document_is_retired_for_one_tenant(gateway: EdgeUnderTest) -> None:
    """The tenant's own rows say so; another tenant goes on starting it.

    Requirements: T1
    """
    who = {"sub": "operator:eve", "tenant": "globex", "roles": ("admin",)}
    assert (await retire(gateway, "retire-built-in", "article", 1, **who)).status_code == 200
    problem(await gateway.intent("article", tenant="globex"), 422, "payload-invalid")
    assert (await gateway.intent("article")).status_code == 201
    problem(await retire(gateway, "retire-nothing", "nothing", 1), 404, "not-found")


async def test_the_example_of_the_document_is_sound(gateway: EdgeUnderTest) -> None:
    """What the docs page sends is registered as it stands, and started as the page shows it.

    Requirements: F1
    """
    found = (await gateway.client.get("/openapi.json")).json()["paths"]["/v1/definitions"]["post"]
    example = found["requestBody"]["content"]["application/json"]["example"]
    assert json.loads(json.dumps(example)) == example
    headers = {**gateway.headers(**ADMIN), "Idempotency-Key": "example"}
    response = await gateway.client.post("/v1/definitions", json=example, headers=headers)
    assert response.status_code == 201, response.text
    name = response.json()["name"]
    capability = (await gateway.start_capability(name))["capability"]
    assert (await gateway.start(capability, "example", definition=name)).status_code == 202


async def test_a_case_whose_lock_has_no_name_is_not_accepted(gateway: EdgeUnderTest) -> None:
    """Locks are named by the input alone, so an input that names none is refused before anything waits for it."""
    text = named("locking").replace("steps:", 'locks: ["title:${input.title.substring(4)}"]\nsteps:', 1)
    assert (await register(gateway, "locking", text)).status_code == 201
    capability = (await gateway.start_capability("locking"))["capability"]
    short = {"slug": "short", "title": "abc"}
    refused = await gateway.start(capability, "short", definition="locking", input=short)
    assert problem(refused, 422, "payload-invalid")["errors"][0]["pointer"] == "/input"
    fits = {"slug": "fits", "title": "abcdef"}
    assert (await gateway.start(capability, "fits", definition="locking", input=fits)).status_code == 202
