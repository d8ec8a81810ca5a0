"""The closed loop on real processes: what drifted or died is found, repaired under governance, verified and closed.

Nobody touches it: the only hands here are an outsider's, and those of the world that fails and comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.system.plane import Plane, eventually, http
from trueup_devkit.sandbox.systems.cloudflare import ZONES

REGISTER = "monitoring.register_check"
PURGE = "cloudflare.purge"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane whose business time the tests move, and for which three make an incident."""
    environment = {"TRUEUP_INCIDENT_EXCEPTIONS": "3", "TRUEUP_INCIDENT_PROBE_SECONDS": "30"}
    plane = Plane(tmp_path_factory.mktemp("repairs"), clock="virtual", environment=environment).start()
    yield plane
    plane.stop()


def operator(plane: Plane) -> str:
    return plane.token("operator:olga", roles=("operator",))


def items(plane: Plane, path: str) -> list[dict[str, Any]]:
    answer = plane.get(path, operator(plane))
    assert answer.status == 200, answer
    return list(answer.body["items"])


def exceptions(plane: Plane, **wanted: str) -> list[dict[str, Any]]:
    """All exceptions whose members have these values."""
    found = items(plane, "/v1/exceptions?limit=200")
    return [item for item in found if all(item[name] == value for name, value in wanted.items())]


def one(plane: Plane, what: str, fits: Callable[[dict[str, Any]], bool], **wanted: str) -> dict[str, Any]:
    """Wait for the exception that fits."""
    return eventually(lambda: next(filter(fits, exceptions(plane, **wanted)), None), what)


def done(plane: Plane, command_type: str, resource: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command and its closed case."""
    capability = plane.capability(command_type, resource)
    answer = plane.submit(capability, f"{command_type}:{resource}", command_type, resource, payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"])
    return plane.journal(answer.body["command_id"])


def to_next_visit(plane: Plane, workflow_id: str) -> None:
    """Business time to when the reconciler looks at the case's elements again, once it has told when that is."""

    def planned(case: dict[str, Any]) -> bool:
        return bool(case["vector"]) and all(item["next_visit_at"] for item in case["vector"])

    case = plane.until(workflow_id, planned, "the next look at every element is planned")
    visits = [item["next_visit_at"] for item in case["vector"]]
    plane.advance_to(datetime.fromisoformat(min(visits)) + timedelta(seconds=1))


def mended(plane: Plane, exception_id: str) -> dict[str, Any]:
    """Wait until the one repair of an exception is shown as done; it."""

    def look() -> dict[str, Any] | None:
        (repair,) = items(plane, f"/v1/repairs?exception_id={exception_id}")
        return repair if repair["status"] == "DONE" else None

    return eventually(look, f"the repair of {exception_id} is done")


def repaired(plane: Plane, row: dict[str, Any]) -> dict[str, Any]:
    """The drift of a command is found, repaired, verified and closed by nobody; its repair."""
    to_next_visit(plane, row["workflow_id"])
    exception = one(plane, "the drift is over", lambda item: item["status"] == "closed", command_id=row["command_id"])
    assert (exception["kind"], exception["resolution_type"]) == ("state_drift", "observed_healthy")
    assert [entry["to"] for entry in exception["envelope"]["trail"]][-3:] == ["repaired", "verified", "closed"]
    repair = mended(plane, exception["exception_id"])
    assert repair["planned_by"] == "service:repair-planner"
    return repair


def governed(plane: Plane, repair: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The repair went the way of every intent, and stands in the lineage of what it repaired; its command."""
    decision = plane.get(f"/v1/decisions/{repair['decision_id']}", operator(plane)).body
    assert (decision["subject"], decision["roles"]) == ("service:repair-planner", ["repairer"])
    assert decision["determining_policies"] == ["repairs-act-in-the-place-of-what-ended"]
    assert {item["kind"] for item in decision["evidence"]} == {"exception", "observation"}
    # The planner hears of the end by itself; what the gateway shows follows it by a message of its own.
    command = plane.command(repair["command_id"], "SUCCESS")
    assert command["supersedes"] == row["command_id"]
    assert command["idempotency_key"] == f"repair:{repair['repair_id']}"
    older = plane.get(f"/v1/commands/{row['command_id']}", operator(plane)).body
    assert older["superseded_by"] == repair["command_id"]
    return command


def test_a_removed_check_is_found_registered_again_and_closed_by_nobody(plane: Plane) -> None:
    """Requirements: G7, Q5, Q7, Q8, R3, R8, O6"""
    payload = {"name": "home", "url": "https://blog.example/", "expect": {"status": 200}, "interval_seconds": 60}
    row = done(plane, REGISTER, "check/home", payload)
    plane.tamper("monitoring", "acme/home", {"delete": True})
    command = governed(plane, repaired(plane, row), row)
    assert [item["object"] for item in plane.effects("monitoring.check", "create")] == [
        f"acme/{row['receipt']['check_id']}",
        f"acme/{command['receipt']['check_id']}",
    ]


def test_a_stale_page_is_found_purged_and_seen_to_be_fresh_by_nobody(plane: Plane) -> None:
    """Requirements: G7, Q7, R3, R8"""
    url = f"{plane.systems['wordpress']}/acme/category/fresh/"
    row = done(plane, PURGE, "zone", {"zone_id": ZONES["acme"], "urls": [url]})
    purges = len(plane.effects("cloudflare.purge"))
    plane.tamper("cloudflare", url, {"body": "<p>yesterday</p>", "age_seconds": 60})
    governed(plane, repaired(plane, row), row)
    assert len(plane.effects("cloudflare.purge")) == purges + 1


def test_a_trashed_post_is_published_again_only_after_a_person_approved_exactly_that(plane: Plane) -> None:
    """A pivot is no repair that runs by itself: it is planned, asked for, approved, and then seen to hold.

    Requirements: Q5, G7, R8, S6
    """
    workflow_id = plane.publishing("0077")
    plane.answer(plane.approval(workflow_id))
    plane.closed(workflow_id)
    publish = next(step for step in plane.case(workflow_id)["steps"] if step["id"] == "publish")
    post_id = plane.get(f"/v1/commands/{publish['command_id']}", operator(plane)).body["receipt"]["post_id"]
    plane.tamper("wordpress", f"acme/{post_id}", {"status": "trash", "slug": "article-0077__trashed"})
    to_next_visit(plane, workflow_id)
    repair = eventually(
        lambda: next(iter(items(plane, "/v1/repairs?status=WAITING_APPROVAL")), None), "an approval is asked for"
    )
    assert repair["required_capability"]["command_type"] == "wordpress.publish_post"
    editor = plane.token("operator:ed", roles=("approver",), scopes=("*",))
    approval = plane.get(f"/v1/approvals/{repair['approval_id']}", editor).body
    assert approval["requested_by"] == "service:repair-planner"
    assert plane.answer(approval, token=editor).status == 200

    def mine() -> list[dict[str, Any]]:
        return exceptions(plane, workflow_id=workflow_id)

    eventually(lambda: all(item["status"] == "closed" for item in mine()) or None, "everything of it is over")
    assert {item["resolution_type"] for item in mine()} == {"observed_healthy"}
    place = f"/v1/repairs/{repair['repair_id']}"
    eventually(lambda: plane.get(place, operator(plane)).body["status"] == "DONE" or None, "its repair is done")


def buried(plane: Plane, *slugs: str) -> list[dict[str, Any]]:
    """Drafts that the site refused for longer than they could wait; their dead letters."""
    asked = len(plane.requests("wordpress", "POST", "/posts$"))
    plane.fault("status", method="POST", path="/posts$", times=1000, status=503, body="busy")
    deadline = (plane.now() + timedelta(seconds=90)).isoformat().replace("+00:00", "Z")
    commands = []
    for slug in slugs:
        answer = plane.draft(slug, deadline=deadline)
        assert answer.status == 202, answer
        commands.append(answer.body["command_id"])
    for name in commands:
        plane.command(name, "RETRY_PENDING", "DEAD_LETTERED")
    assert len(plane.requests("wordpress", "POST", "/posts$")) >= asked + len(slugs)
    plane.advance("2m")
    found = [
        one(plane, f"{name} is dead", lambda item: item["status"] == "open", command_id=name, kind="dead_letter")
        for name in commands
    ]
    http("DELETE", f"{plane.sandbox_url}/_faults")
    return found


def finds(plane: Plane, command_id: str) -> int:
    """How often the reconciler looked for an operation's effect."""

    async def ask() -> int:
        connection = await asyncpg.connect(plane.database_url)
        try:
            query = "SELECT finds_count FROM reconciler.settlement WHERE command_id = $1"
            return int(await connection.fetchval(query, command_id) or 0)
        finally:
            await connection.close()

    return asyncio.run(ask())


def verified(plane: Plane, exception: dict[str, Any]) -> None:
    """The dead letter ended as a success that was seen, once in the world."""
    name = exception["exception_id"]
    over = one(plane, f"{name} is over", lambda item: item["status"] == "closed", exception_id=name)
    assert (over["resolution_type"], over["lifecycle"]) == ("operation_success", "closed")
    assert mended(plane, name)["repair_action"] == "REDRIVE"
    plane.command(exception["command_id"], "SUCCESS")
    assert len(plane.posts_of(exception["command_id"])) == 1
    assert finds(plane, exception["command_id"]) <= 2, "the site itself had answered: no late window is sat out"


def test_an_outage_is_one_incident_whose_letters_follow_a_probe_each_judged_again(plane: Plane) -> None:
    """Four letters of one outage: held, one goes ahead, the others follow; the one that was revoked is not sent.

    Requirements: Q1, Q6, Q7, Q8, D4, O5
    """
    dead = buried(plane, *(f"many-{number}" for number in range(4)))
    found = eventually(lambda: next(iter(items(plane, "/v1/incidents?status=open")), None), "an incident")
    assert found["cause"]["value"] == "wordpress" and found["exceptions_count"] >= 3

    def counted() -> bool | None:
        summary = plane.get("/v1/exceptions/summary", operator(plane)).body
        return (summary["open_incidents"], summary["repair_queue"], summary["dead_letters"]) == (1, 4, 4) or None

    eventually(counted, "one incident, four repairs and four dead letters are counted")
    held = items(plane, "/v1/repairs?status=PLANNED")
    youngest = max(held, key=lambda item: (item["created_at"], item["repair_id"]))["exception_id"]  # let go last
    last = next(item for item in dead if item["exception_id"] == youngest)
    revoked = plane.operate(f"/v1/decisions/{last['envelope']['decision_id']}/revoke", {"reason": "test"}, "revoke")
    assert revoked.status == 200, revoked
    plane.advance("31s")
    for exception in dead:
        if exception is not last:
            verified(plane, exception)

    def tried_out() -> list[str] | None:
        (incident,) = (item for item in items(plane, "/v1/incidents") if item["incident_id"] == found["incident_id"])
        events = [entry["event"] for entry in incident["trail"]]
        return events if "probe_held" in events else None

    assert eventually(tried_out, "a probe held")[:3] == ["many", "probe", "probe_held"]
    name = last["exception_id"]
    refused = eventually(
        lambda: next((item for item in items(plane, f"/v1/repairs?exception_id={name}") if item["ended_at"]), None),
        "the revoked one was refused",
    )
    assert (refused["status"], refused["error_code"]) == ("FAILED", "action-not-available")
    assert plane.journal(last["command_id"])["state"] == "DEAD_LETTERED"
    assert plane.posts_of(last["command_id"]) == []
