"""The leases that run longest: one worker dies with a look and a purge of many batches under way, and both go on.

Both leases end at about the same time, so they are waited for together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.system.plane import Plane, eventually
from trueup_devkit.sandbox.systems.cloudflare import ZONES

INSPECT = "wordpress.inspect_post"
POINT = "adapters-wordpress.target_acted"
"""After every look, before anything of it is kept. Each death here costs a lease, so one point stands for all."""
PURGES = "/purge_cache$"


@dataclass
class Died:
    """What was under way when the worker died, and what the world had seen before."""

    plane: Plane
    look: dict[str, Any]
    purge: dict[str, Any]
    slug: str
    posts_count: int
    purged_count: int
    asked_count: int

    def purges(self) -> int:
        """How often the zone was asked to purge by this purge."""
        return len(self.plane.requests("cloudflare", "POST", PURGES)) - self.asked_count


def begun(plane: Plane, command_type: str, resource: str, payload: dict[str, Any], key: str) -> dict[str, Any]:
    """A command that is accepted."""
    answer = plane.submit(plane.capability(command_type, resource), key, command_type, resource, payload)
    assert answer.status in (200, 202), answer
    return dict(answer.body)


@pytest.fixture(scope="module")
def died(plane: Plane) -> Iterator[Died]:
    """The purge is in its third batch, the look has looked: there its process dies."""
    slug = "target-acted"
    draft = plane.draft(slug)
    plane.closed(draft.body["workflow_id"])
    post_id = plane.journal(draft.body["command_id"])["receipt"]["post_id"]
    restarts = plane.process("adapters").restarts
    urls = [f"{plane.systems['wordpress']}/acme/category/topic-{number}/" for number in range(95)]
    # Faults are consumed in their order: the first two batches pass, the third one never gets through.
    plane.fault("delay", method="POST", path=PURGES, system="cloudflare", times=2, seconds=0)
    plane.fault("delay", method="POST", path=PURGES, system="cloudflare", seconds=3000)
    seen = Died(
        plane,
        look={},
        purge={},
        slug=slug,
        posts_count=len(plane.effects("wordpress.post")),
        purged_count=len(plane.effects("cloudflare.purge")),
        asked_count=len(plane.requests("cloudflare", "POST", PURGES)),
    )
    seen.purge = begun(plane, "cloudflare.purge", "zone", {"zone_id": ZONES["acme"], "urls": urls}, "purge:resume")
    eventually(lambda: seen.purges() >= 3 or None, "the third batch is under way")
    plane.arm("adapters", POINT)
    seen.look = begun(plane, INSPECT, f"post/{post_id}", {"post_id": post_id}, "inspect:target-acted")
    eventually(lambda: plane.process("adapters").restarts > restarts or None, "the adapters died and came back")
    yield seen
    eventually(lambda: plane.ready() or None, "everything is ready again")


def test_a_purge_goes_on_where_its_worker_died(died: Died) -> None:
    """95 URLs: two batches confirmed and in the ledger, SIGKILL in the third, then only three and four are sent.

    Requirements: E5, E2, X4, R7
    """
    case = died.plane.closed(died.purge["workflow_id"])
    assert case["steps"][0]["state"] == "SUCCESS"
    assert died.purges() == 5
    assert len(died.plane.effects("cloudflare.purge")) == died.purged_count + 4
    assert died.plane.journal(died.purge["command_id"])["attempt_count"] == 2


def test_death_after_the_look_only_repeats_it(died: Died) -> None:
    """A lost answer of a read is found nowhere, with access proved, so the read is sent again; the case closes.

    Requirements: E1, E2, X4
    """
    died.plane.closed(died.look["workflow_id"])
    row = died.plane.journal(died.look["command_id"])
    assert row["state"] == "SUCCESS"
    assert (row["receipt"]["slug"], row["receipt"]["status"]) == (died.slug, "draft")
    assert row["attempt_count"] == 2
    assert len(died.plane.effects("wordpress.post")) == died.posts_count


def test_a_purge_gets_through_everything_that_an_api_answers(plane: Plane) -> None:
    """One batch refused under 200, one with 503, one with 429, the last answer lost: closed, and every batch applied.

    Requirements: X4, X5, E3, E5
    """
    urls = [f"{plane.systems['wordpress']}/acme/tag/topic-{number}/" for number in range(95)]
    before = len(plane.effects("cloudflare.purge"))
    refused = {"success": False, "errors": [{"code": 10001, "message": "purging failed"}], "result": None}

    def order(fault: str, **params: Any) -> None:
        plane.fault(fault, method="POST", path=PURGES, system="cloudflare", **params)

    order("delay", seconds=0)
    order("status", status=200, body=refused)
    order("status", status=503, body="busy")
    order("delay", seconds=0)
    order("status", status=429, headers={"retry-after": "1"}, body=refused)
    order("delay", seconds=0)
    order("lose_answer")
    purge = begun(plane, "cloudflare.purge", "zone", {"zone_id": ZONES["acme"], "urls": [*urls, *urls]}, "purge:faults")
    plane.closed(purge["workflow_id"])
    assert len(plane.effects("cloudflare.purge")) == before + 4
    assert plane.journal(purge["command_id"])["attempt_count"] == 4
