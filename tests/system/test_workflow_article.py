"""The article workflow on real processes: through faults to its end, and how it fails before and after its pivot."""

import contextlib
from collections import Counter
from typing import Any

import pytest

from tests.system.plane import Plane, eventually, http
from trueup_common.contracts.history import verify

LIMITED = {"message": "You have exceeded a secondary rate limit."}
NOT_NOW = {"success": False, "errors": [{"code": 10001, "message": "purging failed"}], "result": None}
FORBIDDEN = {"success": False, "errors": [{"code": 9109, "message": "unauthorized"}], "result": None}
STEPS = ["archive", "draft", "inspect", "validate", "approve", "publish", "purge", "monitor", "record"]
PUBLISHED = {
    ("github.commit", "create"): 1,
    ("wordpress.post", "create"): 1,
    ("wordpress.post", "publish"): 1,
    ("cloudflare.purge", "purge"): 4,
    ("monitoring.check", "create"): 1,
    ("database.publication", "insert"): 1,
}
TAKEN_BACK = {
    ("github.commit", "create"): 1,
    ("wordpress.post", "create"): 1,
    ("wordpress.post", "trash"): 1,
    ("github.branch", "delete"): 1,
}


class World:
    """What the world did since a moment; whatever it is, it belongs to the one case that ran meanwhile."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._after = max([0, *(item["seq"] for item in self._items(0))])

    def _items(self, after: int) -> list[dict[str, Any]]:
        return list(http("GET", f"{self._plane.sandbox_url}/_effects?after={after}").body["items"])

    def did(self) -> Counter[tuple[str, str]]:
        """Effects by kind and action."""
        return Counter((item["kind"], item["action"]) for item in self._items(self._after))

    def comes_to(self, expected: dict[tuple[str, str], int]) -> None:
        """Exactly this happened; Prometheus takes up a check only when it asks for its targets again."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: self.did() == expected or None, "all of it")
        assert self.did() == expected


@pytest.fixture
def world(plane: Plane) -> World:
    """The world from now on."""
    return World(plane)


def states(case: dict[str, Any]) -> dict[str, str]:
    """Steps by id."""
    return {step["id"]: step["state"] for step in case["steps"]}


def test_an_article_is_published_once_through_faults(plane: Plane, world: World) -> None:
    """Every system misbehaves, orchestrator and adapters die; the case closes, and everything happened exactly once.

    Requirements: S1, S5, S6, S7, E1, E5, L4, X4, X5, X6, R1, R7
    """

    def order(system: str, fault: str, method: str, path: str, times: int = 1, **params: Any) -> None:
        plane.fault(fault, method=method, path=path, times=times, system=system, **params)

    order("github", "status", "POST", "/git/refs$", status=403, body=LIMITED)
    order("github", "stale_read", "GET", "/git/ref/heads/articles/", times=4, seconds=60)
    order("wordpress", "lose_answer", "POST", "/posts$")
    order("wordpress", "status", "GET", "search=", status=503, body={})
    order("cloudflare", "status", "POST", "/purge_cache$", status=503, body="busy")
    order("cloudflare", "delay", "POST", "/purge_cache$", seconds=0)
    order("cloudflare", "status", "POST", "/purge_cache$", status=429, headers={"retry-after": "1"}, body=NOT_NOW)
    order("cloudflare", "delay", "POST", "/purge_cache$", seconds=0)
    order("cloudflare", "status", "POST", "/purge_cache$", status=200, body=NOT_NOW)
    order("monitoring", "status", "GET", "/api/v1/targets", status=503, body="")
    order("database", "lose_answer", "COMMIT", "^/acme/")
    site = f"{plane.systems['wordpress']}/acme"
    workflow_id = plane.publishing("main", urls=[f"{site}/category/topic-{number}/" for number in range(94)])
    restarts = {name: plane.process(name).restarts for name in ("orchestrator", "adapters")}
    plane.kill("orchestrator")
    approval = plane.approval(workflow_id)
    assert approval["binds"] == [approval["content_sha256"]]
    assert approval["summary"]["title"] == plane.article("main")["title"]
    plane.arm("adapters", "adapters-wordpress-outcomes.before_commit")
    assert plane.answer(approval).status == 200
    case = plane.status(workflow_id, "CLOSED")
    for name, count in restarts.items():
        eventually(lambda name=name, count=count: plane.process(name).restarts > count or None, f"{name} came back")
    assert [step["id"] for step in case["steps"]] == STEPS
    assert {states(case)[step] for step in STEPS} == {"SUCCESS", "DONE"}
    assert (case["pivot"], case["obligations"], case["compensations"]) == ("passed", [], [])
    assert {item["element"] for item in case["vector"]} == {
        "content.version",
        "github.commit",
        "wordpress.post_id",
        "wordpress.status",
        "wordpress.content",
        "wordpress.fields",
        "wordpress.meta",
        "cloudflare.cache",
        "monitoring.registered",
        "database.publication",
    }
    assert {item["phase"] for item in case["vector"]} == {"HEALTHY"}
    assert all(item["desired"] == item["observed"] for item in case["vector"] if item["element"] != "wordpress.content")
    world.comes_to(PUBLISHED)
    record = plane.journal(next(step["command_id"] for step in case["steps"] if step["id"] == "record"))
    assert record["payload"]["record"]["approved_by"] == "operator:ed"
    events = plane.history(workflow_id)

    forged = [event.evolve(payload={**event.payload, "x": 1}) if event.seq == 3 else event for event in events]
    assert verify(forged) is not None
    told = plane.stream(workflow_id)
    assert [data["seq"] for kind, data in told if kind == "history"] == [event.seq for event in events]
    assert told[-1] == ("end", {"status": "CLOSED"})


def test_what_fails_for_good_before_the_pivot_is_taken_back(plane: Plane, world: World) -> None:
    """403 on publishing: the draft goes to the trash and the branch away, in reverse order, through a lost answer.

    Requirements: S1, S3, S4
    """
    plane.fault("status", method="POST", path=r"/posts/\d+$", status=403, body={"code": "rest_cannot_publish"})
    plane.fault("lose_answer", method="DELETE", path=r"/posts/\d+$")
    workflow_id = plane.publishing("back")
    plane.answer(plane.approval(workflow_id))
    case = plane.status(workflow_id, "COMPENSATED")
    assert states(case)["publish"] == "FAILED"
    assert case["pivot"] == "no"
    undone = [(item["id"], item["state"]) for item in case["compensations"]]
    assert undone == [("draft:undo", "SUCCESS"), ("archive:undo", "SUCCESS")]
    assert {step["compensation_state"] for step in case["steps"] if step["id"] in ("archive", "draft")} == {
        "COMPENSATED"
    }
    for undo in case["compensations"]:
        row = plane.journal(undo["command_id"])
        assert row["compensates"] and row["attempt_count"] >= 1 and row["receipt"]
    world.comes_to(TAKEN_BACK)
    plane.history(workflow_id)
    plane.free_of_exceptions(workflow_id)
    ended = [item for item in about(plane, "/v1/exceptions?status=closed", workflow_id) if item["kind"] == "failed"]
    assert [item["resolution_type"] for item in ended] == ["case_compensated"]
    assert about(plane, "/v1/repairs", workflow_id) == [], "a repair was planned beside the undoing"


def about(plane: Plane, place: str, workflow_id: str) -> list[dict[str, Any]]:
    """Exceptions or repairs of a case."""
    items = plane.get(place, plane.token("operator:olga", roles=("operator",))).body["items"]
    return [item for item in items if workflow_id in (item.get("workflow_id"), item.get("source_workflow"))]


def test_what_fails_for_good_after_the_pivot_is_a_persons_and_the_rest_is_done(plane: Plane, world: World) -> None:
    """403 on the purge: the post stays published, monitoring and record follow, and the failure has an owner.

    Requirements: S3
    """
    plane.fault("status", method="POST", path="/purge_cache$", system="cloudflare", status=403, body=FORBIDDEN)
    workflow_id = plane.publishing("on")
    plane.answer(plane.approval(workflow_id))
    done = {"publish": "SUCCESS", "purge": "FAILED", "monitor": "SUCCESS", "record": "SUCCESS"}
    case = plane.until(workflow_id, lambda case: states(case).items() >= done.items(), "everything but the purge")
    case = plane.status(workflow_id, "HUMAN_TAKEOVER")
    assert (case["pivot"], case["compensations"]) == ("passed", [])
    world.comes_to({key: 1 for key in PUBLISHED if key[0] != "cloudflare.purge"})
    failed = eventually(lambda: plane.exceptions(workflow_id) or None, "an exception that somebody owns")
    assert [(item["kind"], item["owner"]) for item in failed] == [("failed", "operators")]
    assert failed[0]["deadline_at"]


def test_a_compensation_that_is_refused_is_an_owned_exception(plane: Plane, world: World) -> None:
    """403 on the trash: the case waits for a person, the exception says what and until when, nothing is hidden.

    Requirements: S4, Q4
    """
    plane.fault("status", method="DELETE", path=r"/posts/\d+$", status=403, body={"code": "rest_cannot_delete"})
    workflow_id = plane.publishing("stuck")
    assert plane.answer(plane.approval(workflow_id), "reject").status == 200
    case = plane.status(workflow_id, "HUMAN_TAKEOVER")
    draft = next(step for step in case["steps"] if step["id"] == "draft")
    assert draft["compensation_state"] == "COMPENSATION_FAILED"
    found = eventually(lambda: plane.exceptions(workflow_id) or None, "an exception")
    undo = next(item for item in case["compensations"] if item["id"] == "draft:undo")
    assert [(item["kind"], item["owner"], item["command_id"]) for item in found] == [
        ("compensation_failed", "operators", undo["command_id"])
    ]
    assert found[0]["deadline_at"] > found[0]["opened_at"]
    assert found[0]["failure_class"] == "COMPENSATION_FAILURE"
    world.comes_to({("github.commit", "create"): 1, ("wordpress.post", "create"): 1})


def test_a_failure_whose_undoing_is_refused_is_planned_for_with_it(plane: Plane, world: World) -> None:
    """403 on the publishing and on the trash: the case cannot take back what it caused, so both are somebody's at once.

    Requirements: Q4, Q5, S4
    """
    plane.fault("status", method="POST", path=r"/posts/\d+$", status=403, body={"code": "rest_cannot_publish"})
    plane.fault("status", method="DELETE", path=r"/posts/\d+$", status=403, body={"code": "rest_cannot_delete"})
    workflow_id = plane.publishing("neither")
    assert plane.answer(plane.approval(workflow_id)).status == 200
    plane.status(workflow_id, "HUMAN_TAKEOVER")

    def planned() -> dict[str, str] | None:
        found = {item["exception_id"]: item for item in plane.exceptions(workflow_id)}
        repairs = {item["exception_id"]: item["status"] for item in about(plane, "/v1/repairs", workflow_id)}
        kinds = {item["kind"]: repairs.get(name) for name, item in found.items() if item["owner"]}
        return kinds if len(kinds) == 2 and all(kinds.values()) else None

    both = eventually(planned, "a repair of the failure, and one of its undoing")
    assert both == {"failed": "PLANNED", "compensation_failed": "PLANNED"}


def test_two_cases_about_one_article_publish_it_once(plane: Plane, world: World) -> None:
    """The second one is refused by the lock of the object before it does anything; its owner learns why.

    Requirements: X7
    """
    first = plane.publishing("twice")
    second = plane.begun("seo-article-publish", plane.article("twice", version=2, slug="other"), "publish:twice:2")
    refused = plane.status(second, "CANCELLED")
    assert refused["turned"]["reason"] == "object_in_use"
    assert refused["resolution_type"] == "object_in_use"
    assert {step["command_id"] for step in refused["steps"]} == {None}
    plane.answer(plane.approval(first))
    plane.status(first, "CLOSED")
    assert world.did()["wordpress.post", "publish"] == 1
    assert world.did()["wordpress.post", "create"] == 1
    third = plane.begun("seo-article-publish", plane.article("twice", version=3, slug="third"), "publish:twice:3")
    plane.approval(third)  # the lock is free again
    assert plane.cancel(third).status == 202
    plane.status(third, "CANCELLED")


def test_an_article_that_is_not_good_enough_never_reaches_a_person_or_the_public(plane: Plane, world: World) -> None:
    """A broken link in the content: the check fails and the case goes to a person, not on to publish.

    Requirements: S7
    """
    broken = f'<p>See <a href="{plane.systems["wordpress"]}/web/nothing-here">this</a>.</p>'
    workflow_id = plane.publishing("broken", content=plane.article("broken")["content"] + broken)
    case = plane.status(workflow_id, "HUMAN_TAKEOVER")
    assert states(case)["validate"] == "FAILED"
    assert "broken" in next(step["reason"] for step in case["steps"] if step["id"] == "validate")
    assert {states(case)[step] for step in ("approve", "publish", "purge", "monitor", "record")} == {"PENDING"}
    assert [item["kind"] for item in case["obligations"]] == ["needs_review"]
    assert plane.cancel(workflow_id).status == 202
    plane.status(workflow_id, "CANCELLED")
    world.comes_to(TAKEN_BACK)
