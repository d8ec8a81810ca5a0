"""Hostile bodies on every route that takes one; the document names the routes, so a new one needs no line here."""

from __future__ import annotations

from typing import Any

from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_strict_json import HOSTILE
from tests.gateway.test_tenants import ROLES, body_of

KEEPS_BYTES = {"/v1/artifacts"}  # any bytes are an artifact; nobody reads them as JSON


def filled(path: str, operation: dict[str, Any]) -> str:
    """The path with the examples of its parameters."""
    for item in operation.get("parameters", ()):
        path = path.replace(f"{{{item['name']}}}", str(item.get("example")))
    return path


async def test_no_route_takes_a_hostile_body(gateway: EdgeUnderTest) -> None:
    """400 as malformed before anything is looked up, from every route and for every body, and no row anywhere.

    Requirements: T3, F1
    """
    document = (await gateway.client.get("/openapi.json")).json()
    capability = (await gateway.capability(max_uses=5))["capability"]
    access = gateway.headers(sub="operator:ops", roles=ROLES, scopes=("*",))["Authorization"]
    taking = [
        (method.upper(), path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation and path not in KEEPS_BYTES
    ]
    assert len(taking) >= 14 and all(body_of(operation) is not None for _, _, operation in taking)
    before = await gateway.rows()
    for method, path, operation in taking:
        for name, content in HOSTILE.items():
            token = f"Bearer {capability}" if operation.get("security") == [{"capability": []}] else access
            headers = {"Authorization": token, "Idempotency-Key": "hostile", "Content-Type": "application/json"}
            answer = await gateway.client.request(method, filled(path, operation), content=content, headers=headers)
            told = answer.json()
            expected = (400, "/problems/body-malformed")
            if name == "empty" and not operation["requestBody"].get("required"):  # a body that may be left out
                expected = (404, "/problems/not-found")
            assert (answer.status_code, told["type"]) == expected, (method, path, name, told)
            assert len(told["detail"]) < 200
        huge = b'{"a":"' + b"x" * 20 * 1024 * 1024 + b'"}'
        answer = await gateway.client.request(method, filled(path, operation), content=huge, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large"), (method, path)
    assert await gateway.rows() == before
