"""The whole plane on the real WordPress: a draft, its publication and its withdrawal, each observed and verified."""

from __future__ import annotations

import time
from typing import Any

from tests.real.wordpress_server import WordPressServer
from tests.system.plane import Plane

from trueup_common.contracts.canonical import sha256_hex

CONTENT = "<p>Größe &amp; Wirkung.</p>\n\nMehr & mehr.\n"


def done(plane: Plane, command_type: str, resource: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command's journal row, once its case has closed."""
    answer = plane.submit(
        plane.capability(command_type, resource), f"{command_type}:{resource}", command_type, resource, payload
    )
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
