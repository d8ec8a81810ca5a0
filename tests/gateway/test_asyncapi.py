"""The gateway shows the messages of the bus as it shows its own API."""

from __future__ import annotations

from tests.contract.witness import DOCUMENT
from tests.gateway.edge import EdgeUnderTest


async def test_the_gateway_serves_the_document(gateway: EdgeUnderTest) -> None:
    """Without a token, whole, and the same that is committed.

    Requirements: M4
    """
    answer = await gateway.client.get("/asyncapi.json")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT
