"""Inspections on real processes: the adapter dies after the look, and the look is simply taken again."""

from __future__ import annotations

from tests.system.plane import Plane, eventually

INSPECT = "wordpress.inspect_post"
POINT = "adapters-wordpress.target_acted"
"""After every look, before anything of it is kept. Each death here costs a lease, so one point stands for all."""


def test_death_after_the_look_only_repeats_it(plane: Plane) -> None:
    """A lost answer of a read is found nowhere, with access proved, so the read is sent again; the case closes.

    Requirements: E1, E2, X4
    """
    point = POINT
    name = point.replace("adapters-", "").replace(".", "-").replace("_", "-")
    draft = plane.draft(name)
    plane.closed(draft.body["workflow_id"], seconds=90)
    post_id = plane.journal(draft.body["command_id"])["receipt"]["post_id"]
    before = len(plane.effects("wordpress.post"))
    restarts = plane.process("adapters").restarts
    plane.arm("adapters", point)
    resource = f"post/{post_id}"
    answer = plane.submit(
        plane.capability(INSPECT, resource), f"inspect:{name}", INSPECT, resource, {"post_id": post_id}
    )
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"], seconds=120)
    eventually(lambda: plane.process("adapters").restarts > restarts or None, "the adapters died and came back")
    row = plane.journal(answer.body["command_id"])
    assert row["state"] == "SUCCESS"
    assert (row["receipt"]["slug"], row["receipt"]["status"]) == (name, "draft")
    assert len(plane.effects("wordpress.post")) == before
    eventually(lambda: plane.ready() or None, "everything is ready again", 30)
