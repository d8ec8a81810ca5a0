"""People in a case, over HTTP: who may approve what, once and in which words; signals; pause, resume and cancel."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.system.documents import ASK, PUBLISH, WAIT
from tests.system.plane import Answer, Plane, eventually

NOBODY = "apr_" + "0" * 32


@pytest.fixture(scope="module", autouse=True)
def registered(plane: Plane) -> None:
    """The documents of this module."""
    for document in (ASK, PUBLISH, WAIT):
        answer = plane.register(document)
        assert answer.status in (200, 201), answer


def asking(plane: Plane, name: str) -> tuple[str, dict[str, Any]]:
    """A case that waits for its approval, and the approval."""
    workflow_id = plane.begun("ask", {"id": name}, f"ask:{name}")
    return workflow_id, plane.approval(workflow_id)


def bench_effects(plane: Plane, case: dict[str, Any]) -> dict[str, int]:
    """How often each step's operation had its effect in the world."""
    keys = [item["object"] for item in plane.effects("bench.effect")]
    return {step["id"]: keys.count(step["command_id"]) for step in case["steps"] if step["command_id"]}


def reason(answer: Answer) -> tuple[int, str]:
    """Status and machine-readable reason of a refusal."""
    return answer.status, answer.body.get("reason") or answer.body.get("check")


def test_only_an_entitled_person_approves_exactly_this_content(plane: Plane) -> None:
    """Unknown, foreign, unentitled, own, wrong nonce, changed hash: refused, and the case still waits; then approved.

    Requirements: S6, L10, G4, T1
    """
    workflow_id, approval = asking(plane, "entitled")
    before = {**approval, "approval_id": NOBODY}
    assert plane.answer(before).status == 404  # nobody has asked for it yet
    answers = {
        "tenant": plane.answer(approval, token=plane.editor("globex"), key="k1"),
        "admin": plane.answer(approval, token=plane.token("operator:ada", roles=("admin", "operator")), key="k2"),
        "agent": plane.answer(
            approval, token=plane.token("agent:other", roles=("approver",), scopes=("content:publish",)), key="k3"
        ),
        "own": plane.answer(
            approval,
            token=plane.token("agent:publisher", roles=("agent", "approver"), scopes=("content:publish",)),
            key="k4",
        ),
        "scope": plane.answer(
            approval, token=plane.token("operator:ed", roles=("approver",), scopes=("content:draft",)), key="k5"
        ),
        "nonce": plane.answer(approval, key="k6", nonce="0" * 32),
        "content": plane.answer(approval, key="k7", content_sha256="0" * 64),
    }
    assert {name: answer.status for name, answer in answers.items()} == {
        "tenant": 404,
        "admin": 403,
        "agent": 403,
        "own": 403,
        "scope": 403,
        "nonce": 409,
        "content": 409,
    }
    assert reason(answers["nonce"]) == (409, "nonce")
    assert reason(answers["content"]) == (409, "content")
    assert plane.case(workflow_id)["status"] == "WAITING"
    wait = plane.case(workflow_id)["wait"]
    assert (wait["owner"], wait["backup_owner"], wait["expects"]) == ("editors", "lead", "content:publish")
    assert plane.answer(approval).status == 200
    case = plane.status(workflow_id, "CLOSED")
    assert bench_effects(plane, case) == {"before": 1, "after": 1}
    decided = next(event for event in plane.history(workflow_id) if event.type == "ApprovalDecided")
    assert decided.actor == "operator:ed"
    assert decided.payload["decision_id"].startswith("dec_")
    assert decided.payload["content_sha256"] == approval["content_sha256"]


def test_the_requester_cannot_approve_as_a_person_either(plane: Plane) -> None:
    """A person who started the case may not review it, whatever roles the token has.

    Requirements: L10
    """
    both = plane.token("operator:pat", roles=("agent", "approver"), scopes=("content:publish",))
    workflow_id = plane.begun(
        "ask", {"id": "mine"}, "ask:mine", capability=plane.workflow_capability("ask", token=both)
    )
    approval = plane.approval(workflow_id, token=both)
    assert approval["requested_by"] == "operator:pat"
    assert reason(plane.answer(approval, token=both)) == (403, "approval")
    assert plane.cancel(workflow_id).status == 202
    plane.status(workflow_id, "CANCELLED")
    plane.withdrawn(approval)
    assert reason(plane.answer(approval)) == (409, "superseded")


def test_ten_clicks_are_one_approval(plane: Plane) -> None:
    """Ten at once and one later: every answer is the same decision, the step goes on once.

    Requirements: I5
    """
    workflow_id, approval = asking(plane, "clicks")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda n: plane.answer(approval, key=f"click-{n % 2}:{workflow_id}"), range(10)))
    assert {answer.status for answer in answers} <= {200, 409}
    assert {answer.body["type"] for answer in answers if answer.status == 409} <= {"/problems/idempotency-in-flight"}
    case = plane.status(workflow_id, "CLOSED")
    again = plane.answer(approval, key=f"click-1:{workflow_id}")
    assert again.status == 200
    assert len({answer.body["decision_id"] for answer in [*answers, again] if answer.status == 200}) == 1
    assert reason(plane.answer(approval, "reject", key="too-late")) == (409, "decided")
    assert bench_effects(plane, case) == {"before": 1, "after": 1}
    decided = [event for event in plane.history(workflow_id) if event.type == "ApprovalDecided"]
    assert len(decided) == 1


def test_a_rejection_takes_back_what_was_done(plane: Plane) -> None:
    """Requirements: S3, S6. Rejected: nothing after it is begun, what stood before it is undone."""
    workflow_id, approval = asking(plane, "rejected")
    assert plane.answer(approval, "reject").status == 200
    case = plane.status(workflow_id, "COMPENSATED")
    assert [(item["id"], item["state"]) for item in case["compensations"]] == [("before:undo", "SUCCESS")]
    assert bench_effects(plane, case) == {"before": 1}
    assert case["turned"]["reason"] == "approve_rejected"


def test_a_signal_waits_for_its_wait_and_counts_once(plane: Plane) -> None:
    """Early: held, then taken by its wait. Twice: duplicate. One that does not match: held. After it all: late.

    Requirements: L7, L8, L9
    """
    capability = plane.workflow_capability("wait", max_uses=2)
    blocker = plane.begun("wait", {"id": "one", "run": 1}, "wait:1", capability=capability)
    plane.status(blocker, "WAITING")
    workflow_id = plane.begun("wait", {"id": "one", "run": 2}, "wait:2", capability=capability)
    queued = plane.until(workflow_id, lambda case: (case["wait"] or {}).get("reason") == "lock", "it queues")
    assert queued["status"] == "WAITING"
    assert plane.signal(workflow_id, "early", "word.given", {"number": 7}) == "held"
    assert plane.signal(workflow_id, "early", "word.given", {"number": 7}) == "duplicate"
    assert plane.signal(blocker, "low", "word.given", {"number": 3}) == "held"
    waiting = plane.case(blocker)
    assert (waiting["status"], waiting["wait"]["expects"], waiting["wait"]["owner"]) == (
        "WAITING",
        "word.given",
        "editors",
    )
    assert plane.signal(blocker, "high", "word.given", {"number": 4}) == "accepted"
    first = plane.status(blocker, "CLOSED")
    second = plane.status(workflow_id, "CLOSED")
    assert plane.journal(second["steps"][2]["command_id"])["payload"] == {"number": 7}
    assert plane.journal(first["steps"][2]["command_id"])["payload"] == {"number": 4}
    assert plane.signal(workflow_id, "again", "word.given", {"number": 9}) == "late"
    token = plane.token("operator:olga", roles=("operator",))
    row = plane.get(f"/v1/workflows/{workflow_id}/signals/early", token)
    assert row.body["disposition"] == "accepted"
    assert bench_effects(plane, second) == {"before": 1, "after": 1}


def test_a_paused_case_starts_nothing_until_it_is_resumed(plane: Plane) -> None:
    """The approval comes while the case is paused: taken, but no effect follows before somebody resumes.

    Requirements: S5
    """
    workflow_id, approval = asking(plane, "paused")
    assert plane.control("PAUSE", workflow_id).status == 202
    plane.status(workflow_id, "PAUSED")
    assert plane.answer(approval).status == 200
    case = plane.until(workflow_id, lambda case: case["steps"][1]["phase"] == "DONE", "the approval is taken")
    assert (case["status"], bench_effects(plane, case)["before"]) == ("PAUSED", 1)
    other, _ = asking(plane, "meanwhile")  # a whole case begins and does its first effect meanwhile
    case = plane.case(workflow_id)
    assert case["status"] == "PAUSED"
    assert bench_effects(plane, case).get("after", 0) == 0
    refused = plane.control("PAUSE", workflow_id, "pause-again")
    assert (refused.status, refused.body["allowed_actions"]) == (409, ["RESUME", "CANCEL", "TAKE_OVER"])
    assert plane.control("RESUME", workflow_id).status == 202
    assert bench_effects(plane, plane.status(workflow_id, "CLOSED")) == {"before": 1, "after": 1}
    plane.cancel(other)


def test_cancel_before_the_pivot_leaves_a_clean_world_and_twice_is_once(plane: Plane) -> None:
    """Asked, acknowledged, settled: the draft goes to the trash, the approval is withdrawn.

    Requirements: L12, S3, I5
    """
    workflow_id = plane.begun("publish", {"id": "cancelled"}, "publish:cancelled")
    approval = plane.approval(workflow_id)
    asked = plane.cancel(workflow_id)
    again = plane.cancel(workflow_id)
    assert (asked.status, again.status) == (202, 202)
    assert asked.body["operator_command_id"] == again.body["operator_command_id"]
    case = plane.status(workflow_id, "CANCELLED")
    assert [item["id"] for item in case["compensations"]] == ["draft:undo"]
    post = plane.journal(case["steps"][0]["command_id"])["external_resource_id"]
    actions = [item["action"] for item in plane.effects("wordpress.post") if item["object"] == f"acme/{post}"]
    assert actions == ["create", "trash"]
    plane.withdrawn(approval)
    assert reason(plane.answer(approval)) == (409, "superseded")
    assert plane.cancel(workflow_id, "other-key").status == 409
    token = plane.token("operator:olga", roles=("operator",))
    place = f"/v1/operator-commands/{asked.body['operator_command_id']}"
    act = eventually(lambda: (found := plane.get(place, token).body)["state"] == "DONE" and found, "the cancel ended")
    assert act["result"] == {"status": "CANCELLED"}


def test_cancel_while_publishing_is_in_flight_and_lands(plane: Plane) -> None:
    """The case waits in CANCEL_PENDING until it knows: the post is public, so nothing is undone; a person takes over.

    Requirements: L12, S3
    """
    plane.fault("delay", method="POST", path=r"/posts/\d+$", seconds=12, when="after")
    workflow_id = plane.begun("publish", {"id": "landed"}, "publish:landed")
    assert plane.answer(plane.approval(workflow_id)).status == 200
    eventually(lambda: plane.posts("landed", "publish") or None, "the post is public, its answer hangs")
    assert plane.cancel(workflow_id).status == 202
    pending = plane.status(workflow_id, "CANCEL_PENDING")
    assert pending["pivot"] == "unknown"
    assert pending["compensations"] == []
    case = plane.status(workflow_id, "HUMAN_TAKEOVER")
    assert (case["pivot"], case["compensations"]) == ("passed", [])
    assert case["turned"]["reason"] == "cancelled_after_pivot"
    assert [item["status"] for item in plane.posts("landed", "any")] == ["publish"]
    assert {item["owner"] for item in case["obligations"] if item["status"] == "open"} == {"operators"}


@pytest.mark.parametrize(
    ("rule", "change", "place", "pointer"),
    [
        (
            "two-pivots",
            PUBLISH
            + """  - id: again
    command: wordpress.publish_post
    with: { post_id: "${steps.draft.post_id}", content_sha256: "${steps.draft.content_sha256}" }
""",
            "    command: wordpress.publish_post",
            "/steps/3/command",
        ),
        ("cannot-be-undone", ASK.replace("bench.make", "bench.post", 1), "    command: bench.post", "/steps/0/command"),
    ],
)
def test_a_document_that_could_not_be_taken_back_is_refused_with_its_line(
    plane: Plane, rule: str, change: str, place: str, pointer: str
) -> None:
    """Two pivots without a reason; an effect that nothing undoes before a step that may fail backwards.

    Requirements: S2
    """
    text = change.replace("version: 1", "version: 2")
    answer = plane.register(text)
    assert answer.status == 422, answer
    lines = text.splitlines()
    line = len(lines) - lines[::-1].index(place)
    assert [(item["rule"], item["pointer"], item["line"]) for item in answer.body["errors"]] == [(rule, pointer, line)]
    name = lines[1].partition(": ")[2]
    token = plane.token("operator:olga", roles=("operator",))
    assert plane.get(f"/v1/definitions/{name}/2", token).status == 404
