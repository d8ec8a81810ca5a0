"""Monitoring on real processes: what is removed is gone; deaths stand in test_crash_adapters.py."""

from __future__ import annotations

from typing import Any

from tests.system.plane import Plane

REGISTER = "monitoring.register_check"
REMOVE = "monitoring.remove_check"


def do(plane: Plane, command_type: str, resource: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command and its closed case."""
    capability = plane.capability(command_type, resource)
    answer = plane.submit(capability, f"{command_type}:{resource}", command_type, resource, payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"])
    return plane.journal(answer.body["command_id"])


def effects(plane: Plane, check_id: str) -> list[str]:
    """What the world did about one check."""
    return [item["action"] for item in plane.effects("monitoring.check") if item["object"] == f"acme/{check_id}"]


def test_a_removed_check_is_gone_from_the_world_before_its_case_closes(plane: Plane) -> None:
    """Requirements: E1, R1. Removing establishes the absence, and only the monitoring system's own list proves it."""
    payload = {"name": "short", "url": "https://blog.example/b/", "expect": {"status": 200}, "interval_seconds": 60}
    check_id = do(plane, REGISTER, "check/short", payload)["receipt"]["check_id"]
    row = do(plane, REMOVE, f"check/{check_id}", {"check_id": check_id})
    assert row["observed_state"] == {"monitoring.registered": "removed"}
    assert effects(plane, check_id) == ["create", "remove"]
