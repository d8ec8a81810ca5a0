"""Payloads by reference on real processes: a long article becomes a draft, and a tampered one never leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.plane import Answer, Plane, eventually, http
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.topology import ARTIFACTS_BUCKET
from trueup_common.runtime.bus import connect_admin

CREATE = "wordpress.create_draft"
PARAGRAPH = (
    "<p>Twenty-one words of an article that goes on for so long that no message of the bus could carry it whole.</p>\n"
)
CONTENT = PARAGRAPH * (2 * 1024**2 // len(PARAGRAPH) + 1)


def keep(plane: Plane, payload: dict[str, Any]) -> dict[str, Any]:
    """Keep a payload as an artifact."""
    raw = json.dumps(payload).encode()
    headers = {"authorization": f"Bearer {plane.token()}", "content-type": "application/json"}
    answer = http("POST", f"{plane.url}/v1/artifacts", raw, headers=headers)
    assert answer.status == 201, answer
    assert answer.body["sha256"] == hashlib.sha256(raw).hexdigest()
    return dict(answer.body)


def submit(plane: Plane, slug: str, artifact_id: str) -> Answer:
    """A draft whose payload is an artifact."""
    headers = {
        "authorization": f"Bearer {plane.capability(CREATE, 'post')}",
        "idempotency-key": f'"draft:{slug}"',
        "prefer": "wait=60",
    }
    body = {
        "command_type": CREATE,
        "target": {"system": "wordpress", "resource": "post"},
        "payload_ref": artifact_id,
    }
    return http("POST", f"{plane.url}/v1/commands", body, headers=headers, timeout_seconds=PATIENCE_SECONDS)


def tamper(plane: Plane, artifact_id: str, content: bytes) -> None:
    """Change an object behind everyone's back, as whoever owns the broker's disk could."""

    async def work() -> None:
        client = await connect_admin(plane.nats_url)
        try:
            bucket = await client.jetstream().object_store(ARTIFACTS_BUCKET)
            await bucket.put(f"acme/{artifact_id}", content)
        finally:
            await client.close()

    asyncio.run(work())


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_a_long_article_is_published_as_a_draft_by_reference(plane: Plane, lost: bool) -> None:
    """Two MiB from the artifact to the site, whole; journal, case and history stay small. Also where it is looked up.

    Requirements: L16, X1, X4
    """
    slug = "long-lost" if lost else "long"
    payload = {"title": f"A {slug} read", "slug": slug, "content": CONTENT}
    kept = keep(plane, payload)
    if lost:
        plane.fault("lose_answer", method="POST", path="/posts$")
    answer = submit(plane, slug, kept["artifact_id"])
    assert answer.status in (200, 202), answer
    case = plane.closed(answer.body["workflow_id"])
    row = plane.journal(answer.body["command_id"])
    assert (row["state"], row["attempt_count"]) == ("SUCCESS", 1)
    assert row["payload"] == {"slug": slug}
    assert row["payload_sha256"] == digest(payload)
    assert row["payload_ref"]["artifact_id"] == kept["artifact_id"]
    (post,) = plane.posts_of(row["command_id"])
    assert post["content"]["raw"].startswith(CONTENT.rstrip())
    assert row["receipt"]["content_sha256"] == hashlib.sha256(CONTENT.encode()).hexdigest()
    history = plane.get(f"/v1/workflows/{row['workflow_id']}/history").body
    assert all(PARAGRAPH[:40] not in json.dumps(told) for told in (row, case, history))


def test_a_tampered_payload_is_refused_before_anything_is_sent(plane: Plane) -> None:
    """The bytes change after acceptance: permanent, owned by somebody, and the site never hears of it.

    Requirements: L16, X5, T1
    """
    slug = "tampered"
    payload = {"title": "Good", "slug": slug, "content": "<p>What was accepted.</p>"}
    kept = keep(plane, payload)
    with plane.stopped("adapters"):  # it takes the task after the tampering
        first = submit_without_waiting(plane, slug, kept["artifact_id"])
        tamper(plane, kept["artifact_id"], json.dumps({**payload, "content": "<p>What was not.</p>"}).encode())
    row = eventually(lambda: ended(plane, first.body["command_id"]), "the command ended")
    assert (row["state"], row["error_class"], row["error_code"]) == ("FAILED", "permanent", "payload_invalid")
    assert not [item for item in plane.effects("wordpress.post") if slug in json.dumps(item)]
    operator = plane.token("operator:olga", roles=("operator", "viewer"))

    def listed() -> dict[str, Any] | None:
        items = plane.get("/v1/exceptions?status=open", operator).body["items"]
        return next((item for item in items if item["command_id"] == row["command_id"]), None)

    assert eventually(listed, "the exception is listed")["owner"] == "operators"
    read = plane.get(f"/v1/artifacts/{kept['artifact_id']}")
    assert read.status == 500
    again = submit(plane, "tampered-again", kept["artifact_id"])
    assert again.status == 500


def submit_without_waiting(plane: Plane, slug: str, artifact_id: str) -> Answer:
    """The same, answered at once."""
    headers = {
        "authorization": f"Bearer {plane.capability(CREATE, 'post')}",
        "idempotency-key": f'"draft:{slug}"',
    }
    body = {"command_type": CREATE, "target": {"system": "wordpress", "resource": "post"}, "payload_ref": artifact_id}
    answer = http("POST", f"{plane.url}/v1/commands", body, headers=headers)
    assert answer.status == 202, answer
    return answer


def ended(plane: Plane, command_id: str) -> dict[str, Any] | None:
    """The journal row once it failed or succeeded."""
    row = plane.journal(command_id)
    return row if row["state"] in ("SUCCESS", "FAILED", "NEEDS_REVIEW", "DEAD_LETTERED", "CONFLICT") else None
