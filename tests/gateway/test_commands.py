"""Submitting commands through the real application on a real database."""

from __future__ import annotations

from tests.gateway.edge import EdgeUnderTest, draft


async def test_a_command_is_accepted_and_found_at_once(gateway: EdgeUnderTest) -> None:
    """Decision → capability → command: 202 with the ids, and a read after it shows the row.

    Requirements: G1, G3, X1
    """
    capability = await gateway.capability()
    response = await gateway.submit(capability["capability"], "first", draft("first"))
    assert response.status_code == 202, response.text
    body = response.json()
    assert body["state"] == "RECEIVED"
    assert response.headers["location"] == f"/v1/commands/{body['command_id']}" == body["links"]["self"]
    row = (await gateway.client.get(body["links"]["self"], headers=gateway.headers())).json()
    assert row["workflow_id"] == body["workflow_id"] and row["saga_id"] == body["saga_id"]
    assert row["decision_id"] == capability["decision_id"]
    assert row["idempotency_key"] == "first" and row["target_resource"] == "post"
