"""The whole plane on the real WordPress: a draft, its publication and its withdrawal, each observed and verified."""

from __future__ import annotations

import time
from typing import Any

from tests.real.wordpress_server import WordPressServer
from tests.system.plane import Plane, http
from trueup_common.contracts.canonical import sha256_hex

CONTENT = "<p>Größe &amp; Wirkung.</p>\n\nMehr & mehr.\n"


def authority(plane: Plane, command_type: str, resource: str) -> str:
    """A capability; where the policy wants an approval first, an editor gives it."""
    bearer = {"authorization": f"Bearer {plane.token()}"}
    intent = {
        "action": {"command_types": [command_type], "workflow": None},
        "resource": {"system": "wordpress", "resource": resource}, "purpose": "test", "evidence": [], "context": {},
    }  # fmt: skip
    decision = http("POST", f"{plane.url}/v1/decisions", intent, headers=bearer).body
    if decision["outcome"] == "approval_required":
        editor = plane.token("operator:ed", roles=("approver",), scopes=("wordpress",))
        asked = plane.get(f"/v1/approvals/{decision['approval_id']}", editor)
        assert asked.status == 200, asked
        given = plane.answer(asked.body, token=editor)
        assert given.status == 200, given
    wanted = {"decision_id": decision["decision_id"], "max_uses": 1, "ttl_seconds": 300}
    made = http("POST", f"{plane.url}/v1/capabilities", wanted, headers=bearer)
    assert made.status == 201, made
    return str(made.body["capability"])


def done(plane: Plane, command_type: str, resource: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command's journal row, once its case has closed."""
    capability = authority(plane, command_type, resource)
    answer = plane.submit(capability, f"{command_type}:{resource}", command_type, resource, payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"], seconds=120)
    row = plane.journal(answer.body["command_id"])
    assert row["state"] == "SUCCESS", row
    return row


def test_a_real_site_is_written_to_once_and_observed(real_plane: Plane, wordpress_server: WordPressServer) -> None:
    """Three commands, three effects, and each case closes only after what it established was read from the site.

    Requirements: E1, R1, I1
    """
    before = len(wordpress_server.order("effects"))
    payload = {"title": "Größe & Wirkung", "content": CONTENT, "slug": f"on-the-plane-{int(time.time())}"}
    draft = done(real_plane, "wordpress.create_draft", "post", payload)
    number = draft["receipt"]["post_id"]
    wanted = {"post_id": number, "content_sha256": sha256_hex(CONTENT.encode())}
    published = done(real_plane, "wordpress.publish_post", f"post/{number}", wanted)
    assert published["observed_state"]["wordpress.status"] == "publish"
    withdrawn = done(real_plane, "wordpress.withdraw_post", f"post/{number}", {"post_id": number})
    assert withdrawn["observed_state"]["wordpress.status"] == "draft"
    happened = wordpress_server.order("effects")[before:]
    assert [(int(item["post"]), item["action"]) for item in happened] == [
        (number, "create"), (number, "publish"), (number, "withdraw"),
    ]  # fmt: skip
    (post,) = [item for item in wordpress_server.order("posts") if item["id"] == number]
    assert (post["slug"], post["status"]) == (payload["slug"], "draft")
    assert post["content"].startswith(CONTENT)
    assert [draft["command_id"] in post["content"], published["command_id"] in post["content"]] == [True, True]
