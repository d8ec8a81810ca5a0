"""Crash windows on real processes: a service dies at a named point, and the case still closes with one effect.

The points after which only the end of a lease tells stand in test_crash_adapters.py, for every adapter.
"""

import pytest

from tests.system.plane import Plane, eventually

WINDOWS = [
    ("orchestrator", "orchestrator-commands.fetched"),
    ("orchestrator", "orchestrator-commands.before_commit"),
    ("orchestrator", "orchestrator-commands.committed"),
    ("orchestrator", "orchestrator-commands.published"),
    ("orchestrator", "orchestrator-commands.acked"),
    ("orchestrator", "orchestrator-events.before_commit"),
    ("orchestrator", "orchestrator-events.committed"),
    ("orchestrator", "orchestrator-events.published"),
    ("orchestrator", "orchestrator-events.acked"),
    ("adapters", "adapters-wordpress.fetched"),
    ("adapters", "adapters-wordpress.before_commit"),
    ("adapters", "adapters-wordpress-outcomes.before_commit"),
    ("adapters", "adapters-wordpress-outcomes.committed"),
    ("adapters", "adapters-wordpress-outcomes.published"),
    ("gateway", "gateway-accept.before_commit"),
    ("gateway", "gateway-accept.committed"),
    ("gateway", "gateway-accept.published"),
    ("reconciler", "reconciler-events.before_commit"),
    ("reconciler", "reconciler-events.committed"),
    ("reconciler", "reconciler-events.published"),
    ("gateway", "gateway-views.before_commit"),
    ("gateway", "gateway-views.committed"),
]


@pytest.mark.parametrize(("service", "point"), WINDOWS, ids=[point for _, point in WINDOWS])
def test_death_at_any_point_leaves_one_effect_and_a_closed_case(plane: Plane, service: str, point: str) -> None:
    """Whatever the process was about to do is done by its successor, and nothing is done twice.

    Requirements: I1, E2, M1, M2, X4, R7
    """
    restarts = plane.process(service).restarts
    plane.arm(service, point)
    slug = point.replace(".", "-").replace("_", "-")
    answer = plane.draft(slug)
    assert answer.status in (200, 202)
    case = plane.closed(answer.body["workflow_id"])
    assert case["steps"][0]["state"] == "SUCCESS"
    eventually(lambda: plane.process(service).restarts > restarts or None, f"{service} died and came back")
    assert [post["slug"] for post in plane.posts_of(answer.body["command_id"])] == [slug]
    created = plane.effects("wordpress.post", "create")
    assert len({item["object"] for item in created}) == len(created)
    eventually(lambda: plane.ready() or None, "everything is ready again")
