"""Artifacts at the gateway: who keeps, reads and deletes what, and commands whose payload is one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import pytest
from tests.gateway.edge import EdgeUnderTest, draft, edge
from tests.gateway.test_acceptance import advance
from tests.gateway.test_refusals import problem
from tests.servers import Database

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import StartCase
from trueup_common.contracts.states import OperationState

OPERATOR = {"sub": "operator:olga", "roles": ("operator",)}
AUDITOR = {"sub": "operator:ada", "roles": ("auditor",)}
APPROVER = {"sub": "operator:anna", "roles": ("approver",)}
CONTENT = b"any \x00 bytes \xff"


async def keep(gateway: EdgeUnderTest, content: bytes = CONTENT, media_type: str | None = None, **who: Any) -> str:
    headers = gateway.headers(**who) | ({"Content-Type": media_type} if media_type else {})
    response = await gateway.client.post("/v1/artifacts", content=content, headers=headers)
    assert response.status_code == 201, response.text
    assert response.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert response.json()["size"] == len(content)
    assert response.headers["location"] == f"/v1/artifacts/{response.json()['artifact_id']}"
    return str(response.json()["artifact_id"])


async def fetch(gateway: EdgeUnderTest, name: str, headers: dict[str, str] | None = None, **who: Any) -> httpx.Response:
    return await gateway.client.get(f"/v1/artifacts/{name}", headers=gateway.headers(**who) | (headers or {}))


async def delete(gateway: EdgeUnderTest, name: str, **who: Any) -> httpx.Response:
    body = {"reason": "asked to be removed"}
    return await gateway.client.request("DELETE", f"/v1/artifacts/{name}", json=body, headers=gateway.headers(**who))


async def test_bytes_come_back_as_an_attachment_with_their_hash(gateway: EdgeUnderTest) -> None:
    """Whatever type was said, nothing that runs in a browser leaves; the ETag is the hash.

    Requirements: L16, T3, F1
    """
    document = (await gateway.client.get("/openapi.json")).json()
    described = document["paths"]["/v1/artifacts/{artifact_id}"]["get"]["responses"]
    for said, shown in (
        ("application/json", "application/json"),
        ("text/plain; charset=utf-8", "text/plain"),
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("no type at all", "application/octet-stream"),
        (None, "application/octet-stream"),
    ):
        name = await keep(gateway, media_type=said)
        response = await fetch(gateway, name)
        assert (response.status_code, response.content) == (200, CONTENT)
        assert response.headers["content-type"] == shown
        assert shown in described["200"]["content"]
        assert response.headers["content-disposition"].startswith("attachment")
        assert response.headers["x-content-type-options"] == "nosniff"
        etag = response.headers["etag"]
        assert etag == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
        again = await fetch(gateway, name, {"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert "304" in described
    assert name != await keep(gateway)


async def test_who_reads_what(gateway: EdgeUnderTest) -> None:
    """Agents their own, viewers and operators the tenant's, auditors no content, nobody another tenant's.

    Requirements: L16, T1, O4
    """
    name = await keep(gateway)
    for who in (OPERATOR, {"sub": "operator:vera", "roles": ("viewer",)}):
        assert (await fetch(gateway, name, **who)).status_code == 200
        problem(await fetch(gateway, name, tenant="globex", **who), 404, "not-found")
    problem(await fetch(gateway, name, **AUDITOR), 403, "forbidden", "role")
    problem(await fetch(gateway, name, sub="agent:other"), 404, "not-found")
    problem(await fetch(gateway, name, **APPROVER), 403, "forbidden", "role")
    problem(await fetch(gateway, "art_" + "0" * 32), 404, "not-found")
    response = await gateway.client.post("/v1/artifacts", content=b"x", headers=gateway.headers(**AUDITOR))
    problem(response, 403, "forbidden", "role")
    problem(await gateway.client.post("/v1/artifacts", content=b"x"), 401, "unauthorized", "signature")


async def test_too_much_is_refused_and_nothing_stays(gateway_database: Database) -> None:
    """Declared or streamed past the bound: 413, no row, no content; a broker away is 503.

    Requirements: T3
    """
    async with edge(gateway_database, artifact_bytes_max=2048) as small:

        async def stream() -> Any:
            for _ in range(5):
                yield b"x" * 1000

        before = await small.count("artifact")
        for content in (b"x" * 2049, stream()):
            response = await small.client.post("/v1/artifacts", content=content, headers=small.headers())
            problem(response, 413, "too-large")
        small.objects.away = True
        response = await small.client.post("/v1/artifacts", content=b"x", headers=small.headers())
        problem(response, 503, "unavailable")
        assert (small.objects.contents, await small.count("artifact")) == ({}, before)
        small.objects.away = False
        name = await keep(small, b"x" * 2048)
        small.objects.away = True
        problem(await fetch(small, name), 503, "unavailable")
        small.objects.away = False
        small.objects.keep("acme", name, b"changed")
        problem(await fetch(small, name), 500, "internal")


async def test_a_deleted_artifact_leaves_hash_and_reason(gateway: EdgeUnderTest) -> None:
    """Its owner or an operator deletes it; the content is gone, the tombstone stays, and a repetition changes nothing.

    Requirements: L16
    """
    name = await keep(gateway)
    problem(await delete(gateway, name, tenant="globex", **OPERATOR), 404, "not-found")
    problem(await delete(gateway, name, sub="agent:other"), 404, "not-found")
    problem(await delete(gateway, name, **AUDITOR), 403, "forbidden", "role")
    first = await delete(gateway, name)
    assert first.status_code == 200
    told = first.json()
    assert (told["sha256"], told["reason"]) == (hashlib.sha256(CONTENT).hexdigest(), "asked to be removed")
    assert told["deleted_by"] == "agent:publisher"
    assert (await delete(gateway, name, **OPERATOR)).json() == told
    gone = problem(await fetch(gateway, name), 404, "not-found")
    assert gone["tombstone"] == told
    assert ("acme", name) not in gateway.objects.contents
    assert await gateway.count("artifact", f"artifact_id = '{name}' AND deletion_reason IS NOT NULL") == 1
    other = await keep(gateway)
    assert (await delete(gateway, other, **OPERATOR)).json()["deleted_by"] == "operator:olga"


async def test_evidence_names_artifacts_that_exist_with_the_hash_it_says(gateway: EdgeUnderTest) -> None:
    """Unknown, another tenant's, deleted or with another hash: refused with the place. A decision in force holds it.

    Requirements: G2, L16
    """
    name, foreign = await keep(gateway), await keep(gateway, tenant="globex")
    gone = await keep(gateway)
    await delete(gateway, gone)

    async def decide(*evidence: dict[str, Any]) -> httpx.Response:
        body = {
            "action": {"command_types": ["wordpress.create_draft"]},
            "resource": {"system": "wordpress", "resource": "post/*"},
            "purpose": "test",
            "evidence": [{"kind": "gate", **item} for item in evidence],
        }
        return await gateway.client.post("/v1/decisions", json=body, headers=gateway.headers())

    sha256 = hashlib.sha256(CONTENT).hexdigest()
    refused = await decide(
        {"ref": name, "sha256": "0" * 64}, {"ref": foreign}, {"ref": gone}, {"ref": "art_x"}, {"ref": "gate-1"}
    )
    pointers = [error["pointer"] for error in problem(refused, 422, "payload-invalid")["errors"]]
    assert pointers == ["/evidence/0/sha256", "/evidence/1/ref", "/evidence/2/ref", "/evidence/3/ref"]
    decided = await decide({"ref": name, "sha256": sha256}, {"ref": name})
    assert decided.status_code == 201
    kept = problem(await delete(gateway, name), 409, "conflict")
    assert kept["decisions"] == [decided.json()["decision_id"]]
    path = f"/v1/decisions/{decided.json()['decision_id']}/revoke"
    assert (await gateway.client.post(path, json={"reason": "x"}, headers=gateway.headers())).status_code == 200
    assert (await delete(gateway, name)).status_code == 200


def by_reference(slug: str, name: str, **changes: Any) -> dict[str, Any]:
    """The request of `draft(slug)` with its payload in an artifact."""
    wanted = draft(slug, **changes)
    del wanted["payload"]
    return {**wanted, "payload_ref": name}


async def keep_payload(gateway: EdgeUnderTest, value: Any, **who: Any) -> str:
    return await keep(gateway, json.dumps(value, indent=3).encode(), "application/json", **who)


async def test_a_payload_by_reference_is_the_same_intent_as_inline(gateway: EdgeUnderTest) -> None:
    """Same hash, same fingerprint; the message and the row hold the reference and only what the declaration points at.

    Requirements: X1, L16, I1
    """
    capability = (await gateway.capability(max_uses=3))["capability"]
    payload = {"title": "A title", "slug": "kept-1", "content": "Text " * 200_000}
    assert len(payload["content"]) > gateway.gateway.settings.payload_bytes_max
    name = await keep_payload(gateway, payload)
    response = await gateway.submit(capability, "kept-1", by_reference("kept-1", name))
    assert response.status_code == 202, response.text
    start = StartCase.model_validate_json(gateway.publisher.published[-1].message.data)
    assert start.payload == {"slug": "kept-1"}
    assert start.payload_sha256 == digest(payload)
    assert start.payload_ref is not None
    assert (start.payload_ref.artifact_id, start.payload_ref.size) == (name, len(json.dumps(payload, indent=3)))
    assert len(gateway.publisher.published[-1].message.data) < 4000
    row = (await gateway.client.get(response.json()["links"]["self"], headers=gateway.headers())).json()
    assert (row["payload"], row["payload_ref"]["artifact_id"]) == ({"slug": "kept-1"}, name)
    assert await gateway.count("outbox", "octet_length(data) > 10000") == 0

    small = {"title": "A title", "slug": "kept-2", "content": "Text"}
    inline = await gateway.submit(capability, "kept-2", draft("kept-2"))
    same = await gateway.submit(capability, "kept-2", by_reference("kept-2", await keep_payload(gateway, small)))
    assert (same.status_code, same.headers["idempotent-replayed"]) == (202, "true")
    assert same.json()["command_id"] == inline.json()["command_id"]
    other = await keep_payload(gateway, {**small, "title": "Another"})
    problem(await gateway.submit(capability, "kept-2", by_reference("kept-2", other)), 422, "idempotency-key-reused")


async def test_a_capability_that_binds_the_payload_binds_the_whole(gateway: EdgeUnderTest) -> None:
    """Requirements: G5, X1"""
    payload = {"title": "A title", "slug": "bound-1", "content": "c"}
    bound = (await gateway.capability(context={"payload_sha256": digest(payload)}))["capability"]
    other = await keep_payload(gateway, {**payload, "content": "other"})
    problem(await gateway.submit(bound, "bound-1", by_reference("bound-1", other)), 403, "forbidden", "payload_hash")
    same = await keep_payload(gateway, payload)
    assert (await gateway.submit(bound, "bound-1", by_reference("bound-1", same))).status_code == 202


async def test_what_is_wrong_with_a_reference_is_told(gateway: EdgeUnderTest) -> None:
    """Both or none, unknown, another tenant's, deleted, not strict JSON, not fitting the schema: 422 with the place.

    Requirements: X1, T1, T3
    """
    capability = (await gateway.capability())["capability"]
    good = await keep_payload(gateway, {"title": "t", "slug": "s", "content": "c"})
    foreign = await keep_payload(gateway, {"title": "t", "slug": "s", "content": "c"}, tenant="globex")
    gone = await keep_payload(gateway, {})
    await delete(gateway, gone)

    async def pointers(body: dict[str, Any]) -> list[str]:
        response = await gateway.submit(capability, "wrong", body)
        return [error["pointer"] for error in problem(response, 422, "payload-invalid")["errors"]]

    both = draft("s") | {"payload_ref": good}
    none = {key: value for key, value in draft("s").items() if key != "payload"}
    assert await pointers(both) == ["/payload_ref"]
    assert await pointers(none) == ["/payload"]
    for name in (foreign, gone, "art_" + "0" * 32, "art_x", 7):
        assert await pointers(by_reference("s", name)) == ["/payload_ref"]
    for raw in (b"", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff", b'"\\ud800"'):
        assert await pointers(by_reference("s", await keep(gateway, raw))) == ["/payload_ref"]
    unfit = await keep_payload(gateway, {"title": "t", "slug": "NOT A SLUG"})
    assert await pointers(by_reference("s", unfit)) == ["/payload_ref/slug"]
    gateway.objects.away = True
    problem(await gateway.submit(capability, "wrong", by_reference("s", good)), 503, "unavailable")


async def test_nobody_sends_what_another_agent_stored(gateway: EdgeUnderTest) -> None:
    """What an agent may not read it may neither send, alone or in a batch, nor rest a decision on: to it, there is no
    such artifact. Who reads the tenant's may rest a decision on any.

    Requirements: L16, T1, G2
    """
    name = await keep_payload(gateway, {"title": "not yours", "slug": "kept", "content": "c"})
    invalid = await keep(gateway, b"{")
    other = {"sub": "agent:other"}
    theirs = (await gateway.capability(**other))["capability"]
    absent = {"pointer": "/payload_ref", "detail": "there is no such artifact"}
    for ref in (name, invalid):
        refused = problem(await gateway.submit(theirs, "taken", by_reference("kept", ref)), 422, "payload-invalid")
        assert refused["errors"] == [absent]
    body = {"commands": [{"idempotency_key": "taken", **by_reference("kept", name)}]}
    batch = await gateway.client.post("/v1/commands:batch", json=body, headers={"Authorization": f"Bearer {theirs}"})
    assert batch.json()["results"][0]["errors"] == [absent]

    async def rests(**who: Any) -> httpx.Response:
        asked = {
            "action": {"command_types": ["wordpress.create_draft"]},
            "resource": {"system": "wordpress", "resource": "post/*"},
            "purpose": "test",
            "evidence": [{"kind": "gate", "ref": name}],
        }
        return await gateway.client.post("/v1/decisions", json=asked, headers=gateway.headers(**who))

    refused = problem(await rests(**other), 422, "payload-invalid")
    assert [error["pointer"] for error in refused["errors"]] == ["/evidence/0/ref"]
    assert (await rests(**OPERATOR)).status_code == 201
    ours = (await gateway.capability())["capability"]
    assert (await gateway.submit(ours, "kept", by_reference("kept", name))).status_code == 202


async def test_a_kept_payload_is_bounded_too(gateway_database: Database) -> None:
    """Requirements: T3"""
    async with edge(gateway_database, kept_payload_bytes_max=4096, payload_bytes_max=1024) as small:
        capability = (await small.capability())["capability"]
        payload = {"title": "t", "slug": "big", "content": "c" * 5000}
        name = await keep_payload(small, payload)
        problem(await small.submit(capability, "big", by_reference("big", name)), 413, "too-large")
        slug = "s" * 2000  # what the plane itself needs must fit the bus
        name = await keep_payload(small, {"title": "t", "slug": slug})
        problem(await small.submit(capability, "big", by_reference("big", name)), 413, "too-large")


async def test_an_artifact_stays_while_its_command_is_open(gateway: EdgeUnderTest) -> None:
    """409 until the command never changes again; a failed one may still be sent again.

    Requirements: L16
    """
    capability = (await gateway.capability())["capability"]
    name = await keep_payload(gateway, {"title": "t", "slug": "open-1", "content": "c"})
    command_id = (await gateway.submit(capability, "open-1", by_reference("open-1", name))).json()["command_id"]
    for state in (OperationState.RUNNING, OperationState.FAILED):
        await advance(gateway, command_id, state)
        assert problem(await delete(gateway, name, **OPERATOR), 409, "conflict")["commands"] == [command_id]
    await advance(gateway, command_id, OperationState.RESOLVED)
    assert (await delete(gateway, name, **OPERATOR)).status_code == 200


async def test_a_batch_takes_payloads_from_both_places(gateway: EdgeUnderTest) -> None:
    """Requirements: X1"""
    capability = (await gateway.capability(max_uses=3))["capability"]
    name = await keep_payload(gateway, {"title": "t", "slug": "batch-2", "content": "c"})
    items = [draft("batch-1"), by_reference("batch-2", name), by_reference("batch-3", "art_" + "1" * 32)]
    body = {"commands": [{"idempotency_key": f"b-{number}", **item} for number, item in enumerate(items)]}
    headers = {"Authorization": f"Bearer {capability}"}
    results = (await gateway.client.post("/v1/commands:batch", json=body, headers=headers)).json()["results"]
    assert [result["status"] for result in results] == [202, 202, 422]
    starts = [StartCase.model_validate_json(item.message.data) for item in gateway.publisher.published[-2:]]
    assert [start.payload for start in starts] == [items[0]["payload"], {"slug": "batch-2"}]


@pytest.mark.parametrize("again", range(3))
async def test_deletion_and_acceptance_at_once_have_one_winner(gateway: EdgeUnderTest, again: int) -> None:
    """Accepted and kept, or deleted and refused; never accepted and deleted.

    Requirements: L16, X4
    """
    import asyncio

    slug = f"race-{again}"
    capability = (await gateway.capability())["capability"]
    name = await keep_payload(gateway, {"title": "t", "slug": slug, "content": "c"})
    accepted, deleted = await asyncio.gather(
        gateway.submit(capability, slug, by_reference(slug, name)), delete(gateway, name, **OPERATOR)
    )
    assert (accepted.status_code, deleted.status_code) in {(202, 409), (422, 200)}
