"""Monitoring on real processes: the adapter dies at every named point, and each check is taken up exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.plane import Plane, eventually

REGISTER = "monitoring.register_check"
REMOVE = "monitoring.remove_check"
POINTS = [
    "adapters-monitoring.fetched",
    "adapters-monitoring.before_commit",
    "adapters-monitoring.committed",
    "adapters-monitoring.acked",
    "adapters-monitoring.before_send",
    "adapters-monitoring.target_acted",
    "adapters-monitoring-outcomes.before_commit",
    "adapters-monitoring-outcomes.committed",
    "adapters-monitoring-outcomes.published",
]


def do(plane: Plane, command_type: str, resource: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command and its closed case."""
    capability = plane.capability(command_type, resource)
    answer = plane.submit(capability, f"{command_type}:{resource}", command_type, resource, payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"], seconds=90)
    return plane.journal(answer.body["command_id"])


def effects(plane: Plane, check_id: str) -> list[str]:
    """What the world did about one check."""
    return [item["action"] for item in plane.effects("monitoring.check") if item["object"] == f"acme/{check_id}"]


@pytest.mark.parametrize("point", POINTS)
def test_death_at_any_point_leaves_one_check(plane: Plane, point: str) -> None:
    """The commit is looked up by the operation's id, never repeated; the case closes once Prometheus lists the check.

    Requirements: E1, E2, X4
    """
    restarts = plane.process("adapters").restarts
    plane.arm("adapters", point)
    name = point.replace("adapters-", "")
    payload = {"name": name, "url": "https://blog.example/a/", "expect": {"status": 200}, "interval_seconds": 60}
    row = do(plane, REGISTER, f"check/{name}", payload)
    assert row["state"] == "SUCCESS"
    assert row["observed_state"] == {"monitoring.registered": row["receipt"]["registered"]}
    eventually(lambda: plane.process("adapters").restarts > restarts or None, "the adapters died and came back")
    assert effects(plane, row["receipt"]["check_id"]) == ["create"]
    eventually(lambda: plane.ready() or None, "everything is ready again", 30)


def test_a_removed_check_is_gone_from_the_world_before_its_case_closes(plane: Plane) -> None:
    """Requirements: E1, R1. Removing establishes the absence, and only the monitoring system's own list proves it."""
    payload = {"name": "short", "url": "https://blog.example/b/", "expect": {"status": 200}, "interval_seconds": 60}
    check_id = do(plane, REGISTER, "check/short", payload)["receipt"]["check_id"]
    row = do(plane, REMOVE, f"check/{check_id}", {"check_id": check_id})
    assert row["observed_state"] == {"monitoring.registered": "removed"}
    assert effects(plane, check_id) == ["create", "remove"]
