"""Every refusal of the HTTP contract, with its status and check; none leaves a row behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.gateway.edge import EdgeUnderTest, draft, later
from tests.gateway.test_strict_json import HOSTILE

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.problems import PROBLEMS
from trueup_common.contracts.shape import rfc3339
from trueup_common.runtime.catalog import Catalog
from trueup_gateway.api.bodies import IN_HAND_BYTES_MAX, SMALL_BYTES

Send = Callable[[EdgeUnderTest, str], Awaitable[httpx.Response]]


def problem(response: httpx.Response, status: int, slug: str, check: str | None = None) -> dict[str, Any]:
    """The response is exactly this problem, in the shape of RFC 9457."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["type"] == f"/problems/{slug}", body
    assert body["status"] == status and body["title"] == PROBLEMS[slug].title and body["detail"]
    assert body["instance"].startswith("urn:trueup:request:") and body["advice"]
    assert body.get("check") == check, body
    return body


def sending(body: Any, key: str | None = "k", **headers: str) -> Send:
    async def send(gateway: EdgeUnderTest, capability: str) -> httpx.Response:
        return await gateway.submit(capability, key, body, **headers)

    return send


def raw(content: bytes, **headers: str) -> Send:
    return sending(content, "k", **headers)


def keyed(value: str) -> Send:
    async def send(gateway: EdgeUnderTest, capability: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {capability}", "Idempotency-Key": value}
        return await gateway.client.post("/v1/commands", json=draft("a"), headers=headers)

    return send


def twice(name: str, first: str, second: str) -> Send:
    async def send(gateway: EdgeUnderTest, capability: str) -> httpx.Response:
        headers = [("authorization", f"Bearer {capability}"), ("idempotency-key", "k")]
        headers = [pair for pair in headers if pair[0] != name] + [(name, first), (name, second)]
        return await gateway.client.post("/v1/commands", json=draft("a"), headers=headers)

    return send


def target(**changes: Any) -> dict[str, Any]:
    base = draft("a")
    return {**base, "target": {**base["target"], **changes}}


def payload(**changes: Any) -> dict[str, Any]:
    base = draft("a")
    return {**base, "payload": {**base["payload"], **changes}}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in draft("a").items() if key != name}


REFUSALS: dict[str, tuple[Send, int, str, str | None]] = {
    "no key": (sending(draft("a"), None), 400, "idempotency-key-missing", None),
    "empty key": (keyed("  "), 400, "idempotency-key-missing", None),
    "empty quoted key": (keyed('""'), 400, "idempotency-key-invalid", None),
    "open quote": (keyed('"abc'), 400, "idempotency-key-invalid", None),
    "quote within": (keyed('"a"b"'), 400, "idempotency-key-invalid", None),
    "long key": (keyed("k" * 256), 400, "idempotency-key-invalid", None),
    "two keys": (twice("idempotency-key", "a", "b"), 400, "idempotency-key-invalid", None),
    "no content type": (raw(b"{}", **{"Content-Type": ""}), 415, "media-type-unsupported", None),
    "form": (raw(b"a=1", **{"Content-Type": "application/x-www-form-urlencoded"}), 415, "media-type-unsupported", None),
    "text": (raw(b"{}", **{"Content-Type": "text/plain"}), 415, "media-type-unsupported", None),
    "other charset": (
        raw(b"{}", **{"Content-Type": "application/json; charset=utf-16"}),
        415,
        "media-type-unsupported",
        None,
    ),
    "gzip": (raw(b"\x1f\x8b", **{"Content-Encoding": "gzip"}), 415, "media-type-unsupported", None),
    "body too large": (raw(b'{"a":"' + b"x" * 1024 * 1024 + b'"}'), 413, "too-large", None),
    "payload too large": (sending(payload(content="x" * 300_000)), 413, "too-large", None),
    "a list": (sending([draft("a")]), 422, "payload-invalid", None),
    "a number": (raw(b"5"), 422, "payload-invalid", None),
    "no payload": (sending(without("payload")), 422, "payload-invalid", None),
    "no target": (sending(without("target")), 422, "payload-invalid", None),
    "no type": (sending(without("command_type")), 422, "payload-invalid", None),
    "misspelt member": (sending({**draft("a"), "deadine": None}), 422, "payload-invalid", None),
    "type that is a number": (sending({**draft("a"), "command_type": 5}), 422, "payload-invalid", None),
    "naive deadline": (sending(draft("a", deadline="2099-01-01T00:00:00")), 422, "payload-invalid", None),
    "deadline before the calendar": (
        sending(draft("a", deadline="0001-01-01T00:00:00+14:00")),
        422,
        "payload-invalid",
        None,
    ),
    "deadline as a number": (sending(draft("a", deadline=4102444800)), 422, "payload-invalid", None),
    "deadline in the past": (sending(draft("a", deadline=rfc3339(later(-1)))), 422, "payload-invalid", None),
    "wildcard target": (sending(target(resource="post/*")), 422, "payload-invalid", None),
    "payload against its schema": (sending(payload(slug="Not A Slug")), 422, "payload-invalid", None),
    "payload member too many": (sending(payload(more=1)), 422, "payload-invalid", None),
    "unknown type": (sending({**draft("a"), "command_type": "wordpress.nonsense"}), 422, "unknown-command-type", None),
    "unknown system": (sending(target(system="nowhere")), 422, "unknown-system", None),
    "type outside the capability": (
        sending({**draft("a"), "command_type": "wordpress.update_post"}),
        403,
        "forbidden",
        "command_type",
    ),
    "other resource": (sending(target(resource="page/1")), 403, "forbidden", "resource"),
    "resource with a like name": (sending(target(resource="posts")), 403, "forbidden", "resource"),
    "resource that climbs": (sending(target(resource="post/../page")), 403, "forbidden", "resource"),
    "other system": (sending(target(system="bench")), 403, "forbidden", "resource"),
    "two tokens": (twice("authorization", "Bearer a", "Bearer b"), 401, "unauthorized", "signature"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_says_what_failed_and_leaves_no_row(gateway: EdgeUnderTest, name: str) -> None:
    """Status, problem type and check, and all tables as before.

    Requirements: G4, I2, T3, F1
    """
    send, status, slug, check = REFUSALS[name]
    capability = (await gateway.capability())["capability"]
    before = await gateway.rows()
    problem(await send(gateway, capability), status, slug, check)
    assert await gateway.rows() == before
    assert not gateway.publisher.published


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_is_400_and_leaves_no_row(gateway: EdgeUnderTest, name: str) -> None:
    """On the command path and on an ordinary one.

    Requirements: T3
    """
    capability = (await gateway.capability())["capability"]
    before = await gateway.rows()
    problem(await gateway.submit(capability, "k", HOSTILE[name]), 400, "body-malformed")
    response = await gateway.client.post(
        "/v1/decisions", content=HOSTILE[name], headers={**gateway.headers(), "Content-Type": "application/json"}
    )
    problem(response, 400, "body-malformed")
    assert await gateway.rows() == before


async def test_pointers_name_every_place_and_show_no_value(gateway: EdgeUnderTest) -> None:
    """All errors at once, as RFC 6901 pointers; the refused values themselves stay out of the answer.

    Requirements: F1, T3
    """
    capability = (await gateway.capability())["capability"]
    body = payload(title="s3cret" * 100, slug="S3CRET!", **{"a/b~c": "s3cret"})
    found = problem(await gateway.submit(capability, "k", body), 422, "payload-invalid")
    assert {error["pointer"] for error in found["errors"]} == {"/payload", "/payload/title", "/payload/slug"}
    assert "s3cret" not in json.dumps(found).lower()
    body = {**draft("a"), "target": {"system": 5, "resource": "post", "x/y": 1}}
    found = problem(await gateway.submit(capability, "k", body), 422, "payload-invalid")
    assert {error["pointer"] for error in found["errors"]} == {"/target/system", "/target/x~1y"}


@pytest.mark.parametrize(
    ("header", "check"),
    [
        (None, "signature"),
        ("", "signature"),
        ("Bearer", "signature"),
        ("Bearer ", "signature"),
        ("Basic YTpi", "signature"),
        ("DPoP abc", "holder"),
        ("Bearer a.b.c", "signature"),
        ("Bearer ÿ", "signature"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/commands", "/v1/decisions", "/v1/policies"])
async def test_without_a_token_nothing_is_read(
    gateway: EdgeUnderTest, header: str | None, check: str, path: str
) -> None:
    """Authentication comes before the body: even a hostile one is answered with 401.

    Requirements: G4
    """
    headers = {"Content-Type": "application/json"}
    if header is not None:
        headers["Authorization"] = header
    method = "PUT" if path == "/v1/policies" else "POST"
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    response = await gateway.client.request(method, path, content=b"{nonsense", headers=encoded)
    problem(response, 401, "unauthorized", check)
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_an_access_token_is_no_capability(gateway: EdgeUnderTest) -> None:
    """401, and the other way round; the answer says which kind the call needs.

    Requirements: G1, G4, F1
    """
    refused = problem(await gateway.submit(gateway.access(), "k", draft("a")), 401, "unauthorized", "audience")
    assert "needs a capability" in refused["detail"]
    capability = (await gateway.capability())["capability"]
    response = await gateway.client.get("/v1/commands", headers={"Authorization": f"Bearer {capability}"})
    assert "needs an access token" in problem(response, 401, "unauthorized", "audience")["detail"]


@pytest.mark.parametrize(("header", "fault"), [(None, ""), ("Basic YTpi", ""), ("Bearer x", ', error="invalid_token"')])
async def test_who_sends_no_credentials_did_not_send_a_wrong_token(
    gateway: EdgeUnderTest, header: str | None, fault: str
) -> None:
    """RFC 6750: the challenge names a fault only where there was a token. Requirements: G4, F1"""
    headers = {} if header is None else {"Authorization": header}
    response = await gateway.client.get("/v1/commands", headers=headers)
    advice = problem(response, 401, "unauthorized", "signature")["advice"]
    assert response.headers["www-authenticate"] == f'Bearer realm="trueup"{fault}'
    assert ("Authorization: Bearer" in advice) == (not fault)


async def test_a_refused_filter_names_the_values_that_there_are(gateway: EdgeUnderTest) -> None:
    """Requirements: F1"""
    response = await gateway.client.get("/v1/workflows?status=WAITNG", headers=gateway.headers())
    (error,) = problem(response, 400, "parameter-invalid")["errors"]
    assert "WAITING" in error["detail"] and "HUMAN_TAKEOVER" in error["detail"]


async def test_a_pending_approval_is_named_with_the_way_on(gateway: EdgeUnderTest) -> None:
    """Who asks for a capability too early learns which approval is missing, and which decision to ask with again.

    Requirements: G3, F1
    """
    decision = await gateway.decide("wordpress.publish_post")
    body = {"decision_id": decision["decision_id"]}
    response = await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers())
    refused = problem(response, 403, "forbidden", "approval")
    assert (refused["decision_id"], refused["approval_id"]) == (decision["decision_id"], decision["approval_id"])
    assert "POST /v1/capabilities" in refused["advice"]


async def test_bounds_of_a_capability_hold(gateway: EdgeUnderTest) -> None:
    """Payload hash and resource version are part of what was decided.

    Requirements: G3, G4
    """
    wanted = draft("bound")
    bound = await gateway.capability(context={"payload_sha256": digest(wanted["payload"])})
    other = draft("bound", payload={**wanted["payload"], "title": "Another"})
    problem(await gateway.submit(bound["capability"], "b1", other), 403, "forbidden", "payload_hash")
    assert (await gateway.submit(bound["capability"], "b1", wanted)).status_code == 202
    versioned = await gateway.capability("wordpress.update_post", context={"expected_version": "v1"})
    update = {
        "command_type": "wordpress.update_post",
        "target": {"system": "wordpress", "resource": "post/1", "expected_version": "v2"},
        "payload": {},
    }
    problem(await gateway.submit(versioned["capability"], "b2", update), 403, "forbidden", "resource_version")
    update["target"]["expected_version"] = None  # type: ignore[index]
    problem(await gateway.submit(versioned["capability"], "b2", update), 403, "forbidden", "resource_version")
    update["target"]["expected_version"] = "v1"  # type: ignore[index]
    assert (await gateway.submit(versioned["capability"], "b2", update)).status_code == 202


async def test_a_required_version_must_be_given(gateway: EdgeUnderTest) -> None:
    """A type that binds a version is not accepted without one."""
    capability = await gateway.capability("wordpress.update_post")
    update = {
        "command_type": "wordpress.update_post",
        "target": {"system": "wordpress", "resource": "post/1"},
        "payload": {},
    }
    found = problem(await gateway.submit(capability["capability"], "v1", update), 422, "payload-invalid")
    assert found["errors"][0]["pointer"] == "/target/expected_version"


async def test_a_full_queue_is_429_and_a_retry_later_works(gateway: EdgeUnderTest) -> None:
    """Requests past the bound are refused at once, with the time to come back.

    Requirements: T3
    """
    capability = (await gateway.capability(max_uses=100))["capability"]
    gateway.gateway.acceptor._queue_max = 3
    responses = await asyncio.gather(
        *(gateway.submit(capability, f"full-{number}", draft(f"full-{number}")) for number in range(12))
    )
    refused = [response for response in responses if response.status_code == 429]
    assert refused and any(response.status_code == 202 for response in responses)
    for response in refused:
        problem(response, 429, "rate-limited")
        assert int(response.headers["retry-after"]) >= 1
    gateway.gateway.acceptor._queue_max = 100
    number = responses.index(refused[0])
    assert (await gateway.submit(capability, f"full-{number}", draft(f"full-{number}"))).status_code == 202


async def test_bodies_in_hand_are_bounded_by_bytes_and_small_ones_always_taken(gateway: EdgeUnderTest) -> None:
    """However few they are, large requests do not fill this process; and each gives back what it held, refused or not.

    Requirements: B5, T3
    """
    bodies = gateway.gateway.bodies
    capability = (await gateway.capability(max_uses=100))["capability"]

    def large(name: str) -> dict[str, Any]:
        return draft(name, payload={"title": "A title", "slug": name, "content": "x" * 2 * SMALL_BYTES})

    assert (await gateway.submit(capability, "large", large("large"))).status_code == 202
    assert bodies.in_hand_bytes == 0
    bodies.in_hand_bytes = IN_HAND_BYTES_MAX
    refused = await gateway.submit(capability, "larger", large("larger"))
    problem(refused, 429, "rate-limited")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await gateway.submit(capability, "small", draft("small"))).status_code == 202
    assert bodies.in_hand_bytes == IN_HAND_BYTES_MAX
    bodies.in_hand_bytes = 0


async def test_unknown_paths_methods_and_ids_are_problems(gateway: EdgeUnderTest) -> None:
    """404 and 405 are problem documents too, and an id that is none names nothing.

    Requirements: F1
    """
    problem(await gateway.client.get("/v1/nothing"), 404, "not-found")
    response = await gateway.client.delete("/v1/commands")
    problem(response, 405, "method-not-allowed")
    for path in (
        "/v1/commands/cmd_1",
        "/v1/commands/%00",
        "/v1/commands/cmd_" + "0" * 32,
        "/v1/commands/" + "x" * 5000,
        "/v1/workflows/wf_%27%20or%201=1",
        "/v1/workflows/wf_" + "0" * 32 + "/history",
        "/v1/decisions/dec_" + "0" * 32,
        "/v1/exceptions/exc_" + "f" * 32,
        "/v1/workflows/cmd_" + "0" * 32,
    ):
        problem(await gateway.client.get(path, headers=gateway.headers()), 404, "not-found")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=-1",
        "limit=1&limit=2",
        "cursor=!!!",
        "cursor=bm9uc2Vuc2U",
        "cursor=MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMHx4",  # 0001-01-01T00:00:00+14:00: no instant of UTC
        "cursor=OTk5OS0xMi0zMVQyMzo1OTo1OS0xNDowMHx4",  # 9999-12-31T23:59:59-14:00
        "status=NONSENSE",
        "overdue=yes",
        "definition=%00",
        "limit=99999999999999999999",
    ],
)
async def test_a_parameter_that_makes_no_sense_is_400(gateway: EdgeUnderTest, query: str) -> None:
    """The parameter is named.

    Requirements: T3
    """
    found = problem(
        await gateway.client.get(f"/v1/workflows?{query}", headers=gateway.headers()), 400, "parameter-invalid"
    )
    assert found["errors"][0]["pointer"] == "/" + query.partition("=")[0]


async def test_a_failure_inside_tells_nothing(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 500 carries the trace and no word of the failure.

    Requirements: F1, T3
    """

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(type(gateway.gateway.reads), "command_row", broken)
    response = await gateway.client.get("/v1/commands/cmd_" + "0" * 32, headers=gateway.headers())
    problem(response, 500, "internal")
    assert "hunter2" not in response.text and "RuntimeError" not in response.text


async def test_a_store_that_is_away_is_503(gateway: EdgeUnderTest) -> None:
    """Reads and submissions say when to come back; nothing hangs.

    Requirements: M2
    """
    capability = (await gateway.capability())["capability"]
    await gateway.database.close()
    for response in (
        await gateway.submit(capability, "away", draft("away")),
        await gateway.client.get("/v1/commands", headers=gateway.headers()),
        await gateway.client.post(
            "/v1/decisions",
            headers=gateway.headers(),
            json={
                "action": {"command_types": ["wordpress.create_draft"]},
                "purpose": "x",
                "resource": {"system": "wordpress", "resource": "post"},
            },
        ),
    ):
        problem(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1
    ready = await gateway.client.get("/readyz")
    assert ready.status_code == 503 and "database" in ready.json()["missing"][0]
    assert (await gateway.client.get("/livez")).status_code == 200


async def test_what_the_catalog_lacks_is_final_only_once_the_catalog_is_here(
    gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that has just started does not know yet: the client is asked to come again.

    Requirements: T3
    """
    capability = (await gateway.capability())["capability"]
    wanted = {"action": {"command_types": ["wordpress.create_draft"]}, "purpose": "test"}
    wanted["resource"] = {"system": "wordpress", "resource": "post"}
    monkeypatch.setattr(gateway.gateway, "catalog", Catalog())
    problem(await gateway.submit(capability, "k", draft("k")), 422, "unknown-command-type")
    monkeypatch.setattr(Catalog, "is_loaded", False)
    submitted = await gateway.submit(capability, "k", draft("k"))
    decided = await gateway.client.post("/v1/decisions", json=wanted, headers=gateway.headers())
    for response in (submitted, decided):
        problem(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"
