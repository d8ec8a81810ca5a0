"""A long case outlives the authority that began it: each effect asks again, at the moment of the effect."""

from typing import Any

import pytest

from tests.system.documents import ASK, PUBLISH
from tests.system.plane import Plane


@pytest.fixture(scope="module", autouse=True)
def registered(plane: Plane) -> None:
    """The documents of this module."""
    for document in (ASK, PUBLISH):
        assert plane.register(document).status in (200, 201)


def state(case: dict[str, Any], step: str) -> str:
    """Where a step stands."""
    return str(next(item["state"] for item in case["steps"] if item["id"] == step))


@pytest.mark.parametrize("what", ["decisions", "capabilities"])
def test_authority_that_is_revoked_during_the_wait_lets_nothing_more_happen(plane: Plane, what: str) -> None:
    """The approval comes after the revocation: publishing is refused at its boundary, and the draft is taken back.

    Requirements: G5, G6
    """
    authority = plane.workflow_authority("publish")
    name = f"revoked-{what}"
    workflow_id = plane.begun("publish", {"id": name}, name, capability=authority["capability"])
    approval = plane.approval(workflow_id)
    named = authority["decision_id" if what == "decisions" else "capability_id"]
    assert plane.operate(f"/v1/{what}/{named}/revoke", {"reason": "withdrawn"}, f"revoke:{name}").status == 200
    assert plane.answer(approval).status == 200
    case = plane.status(workflow_id, "COMPENSATED")
    row = plane.journal(next(item["command_id"] for item in case["steps"] if item["id"] == "publish"))
    assert (row["state"], row["error_code"], row["attempts"]) == ("FAILED", "revoked", [])
    post = plane.journal(case["steps"][0]["command_id"])["external_resource_id"]
    actions = [item["action"] for item in plane.effects("wordpress.post") if item["object"] == f"acme/{post}"]
    assert actions == ["create", "trash"]


def test_a_freeze_of_the_workflow_holds_its_effects_back_until_it_is_lifted(plane: Plane) -> None:
    """Frozen while it waits: the approval is taken, the effect is not granted; lifted, it goes on by itself.

    Requirements: G5, G6
    """
    workflow_id = plane.begun("ask", {"id": "frozen"}, "ask:frozen")
    approval, capability = plane.approval(workflow_id), plane.workflow_capability("ask")
    body = {"scope": {"definition": "ask"}, "reason": "an incident"}
    assert plane.operate("/v1/controls/freezes", body, "freeze:ask").status == 201
    try:
        assert plane.answer(approval).status == 200
        refused = plane.begin("ask", {"id": "new"}, "ask:new", capability=capability)
        assert (refused.status, refused.body["check"]) == (403, "frozen")

        plane.until(workflow_id, lambda case: state(case, "after") == "QUEUED", "the approval is taken")
        other = plane.begun("publish", {"id": "not-frozen"}, "publish:not-frozen")
        plane.approval(other)  # what is not frozen goes on meanwhile
        case = plane.case(workflow_id)
        assert (case["status"], plane.journal(case["steps"][2]["command_id"])["attempts"]) == ("RUNNING", [])
    finally:
        lifted = plane.operate("/v1/controls/freezes", body, "lift:ask", method="DELETE")
    assert lifted.status == 200
    case = plane.status(workflow_id, "CLOSED")
    keys = [item["object"] for item in plane.effects("bench.effect")]
    assert keys.count(case["steps"][2]["command_id"]) == 1
    plane.cancel(other)
