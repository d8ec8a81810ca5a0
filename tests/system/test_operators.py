"""Operators on real processes: redrive, settle, take over and hand back, resume, undo again; and press twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.plane import Answer, Plane, eventually, http

SECONDS = PATIENCE_SECONDS

TWO = """
name: two
version: 1
object: { type: note, id: "${input.id}" }
lifetime: P1D
input: { type: object, required: [id], properties: { id: { type: string } } }
steps:
  - id: first
    command: bench.make
    with: { unit: "${input.id}", step: 1 }
  - id: approve
    approval: { scope: "content:publish", binds: ["${input.id}"], timeout: PT1H, owner: editors }
  - id: second
    command: bench.make
    with: { unit: "${input.id}", step: 2 }
    on: { failed: takeover }
  - id: third
    command: bench.make
    with: { unit: "${input.id}", step: 3 }
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane whose business time the tests move: an unknown is looked for an hour before it becomes a person's."""
    running = Plane(tmp_path_factory.mktemp("operators"), clock="virtual").start()
    assert running.register(TWO).status == 201
    yield running
    running.stop()


def operate(plane: Plane, kind: str, name: str, action: str, key: str, **more: Any) -> Answer:
    body = {"action": action, "target": {"kind": kind, "id": name}, "reason": "test", "evidence": [], "params": {}}
    return plane.operate("/v1/operator-commands", {**body, **more}, key)


def ended(plane: Plane, asked: Answer) -> dict[str, Any]:
    """The operator command once it has ended."""
    assert asked.status == 202, asked
    token = plane.token("operator:olga", roles=("operator",))
    place = f"/v1/operator-commands/{asked.body['operator_command_id']}"

    def look() -> dict[str, Any] | None:
        found = plane.get(place, token).body
        return dict(found) if found["state"] in ("DONE", "REFUSED") else None

    return eventually(look, f"{asked.body['action']} ended", SECONDS)


def exception_of(plane: Plane, workflow_id: str, kind: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        return next((item for item in plane.exceptions(workflow_id) if item["kind"] == kind), None)

    return eventually(look, f"a {kind} of {workflow_id}", SECONDS)


def posted(plane: Plane, key: str, **fault: Any) -> tuple[str, str]:
    """A command on the bench that meets a fault: its id and its case."""
    named = {"method": "POST", "path": "/effect$", "system": "bench", **fault}
    plane.fault(named.pop("fault"), **named)
    capability = plane.capability("bench.post", "unit")
    accepted = plane.submit(capability, key, "bench.post", "unit", {"unit": key})
    assert accepted.status == 202, accepted
    return accepted.body["command_id"], accepted.body["workflow_id"]


def count_of(plane: Plane, command_id: str) -> int:
    return [item["object"] for item in plane.effects("bench.effect")].count(command_id)


def test_what_failed_is_redriven_and_only_its_success_closes_the_exception(plane: Plane) -> None:
    """Looked for first, sent once more on the operator's decision, done once; every other click has no effect.

    Requirements: O3, Q6, I5, I1, O6
    """
    command_id, workflow_id = posted(plane, "redriven", fault="status", status=403, body={})
    letter = exception_of(plane, workflow_id, "failed")
    assert {"REDRIVE", "RECONCILE", "SETTLE"} <= set(letter["allowed_actions"])
    assert plane.journal(command_id)["allowed_actions"] == ["RECONCILE", "REDRIVE", "MARK_RESOLVED", "SETTLE"]
    with plane.stopped("orchestrator"):  # it is at work while others click
        first = operate(plane, "exception", letter["exception_id"], "REDRIVE", "redrive-1")
        again = operate(plane, "exception", letter["exception_id"], "REDRIVE", "redrive-1")
        other = operate(plane, "command", command_id, "REDRIVE", "redrive-2")
    assert again.status == 202 and again.body == first.body
    assert (other.status, other.body["operator_command_id"]) == (409, first.body["operator_command_id"])
    assert ended(plane, first)["result"]["state"] == "SUCCESS"
    assert count_of(plane, command_id) == 1
    case = plane.closed(workflow_id)
    assert case["allowed_actions"] == []
    plane.free_of_exceptions(workflow_id)
    row = plane.journal(command_id)
    assert (row["operator_action"], row["operator_status"]) == ("REDRIVE", "done")
    acted = [event for event in plane.history(workflow_id) if event.type == "OperatorActed"]
    assert [event.payload["operator_command_id"] for event in acted] == [first.body["operator_command_id"]]
    late = operate(plane, "command", command_id, "REDRIVE", "redrive-3")
    assert (late.status, late.body["allowed_actions"]) == (409, [])


UNDECIDABLE = {"EXISTS": "lose_answer", "ABSENT": "drop_before", "CLOSE": "lose_answer"}
"""What a person will find, and how the answer was lost."""


@pytest.fixture(scope="module")
def undecidable(plane: Plane) -> dict[str, tuple[str, str]]:
    """Commands whose answer was lost and whose target nobody may read, once they are a person's."""
    plane.fault("deny_reads", method="GET", path="/effect", system="bench", times=10_000)
    found = {}
    for finding, fault in UNDECIDABLE.items():
        found[finding] = posted(plane, f"settled-{finding.lower()}", fault=fault)
        plane.command(found[finding][0], "RECONCILING")
    plane.advance_to(plane.now() + timedelta(hours=1))
    for command_id, _ in found.values():
        plane.command(command_id, "NEEDS_REVIEW")
    http("DELETE", f"{plane.sandbox_url}/_faults")
    return found


@pytest.mark.parametrize(
    ("params", "state"),
    [
        ({"finding": "EXISTS", "receipt": {"ref": "seen-in-the-log"}}, "SUCCESS"),
        ({"finding": "ABSENT"}, "FAILED"),
        ({"finding": "CLOSE", "disposition": [{"effect": "the post", "became": "removed"}]}, "RESOLVED"),
    ],
)
def test_a_person_settles_what_nobody_could_find_out(
    plane: Plane, undecidable: dict[str, tuple[str, str]], params: dict[str, Any], state: str
) -> None:
    """The answer is lost and nobody may read: the unknown becomes a person's, who settles it with evidence.

    Requirements: E3, G7
    """
    finding = params["finding"]
    command_id, workflow_id = undecidable[finding]
    unknown = exception_of(plane, workflow_id, "needs_review")
    refused = operate(plane, "exception", unknown["exception_id"], "SETTLE", f"bare-{finding}", params=params)
    assert refused.status == (202 if finding == "CLOSE" else 422), refused
    if finding != "CLOSE":
        proof = [{"kind": "audit_log", "ref": "line 12"}]
        refused = operate(
            plane, "exception", unknown["exception_id"], "SETTLE", f"settle-{finding}", params=params, evidence=proof
        )
    assert ended(plane, refused)["result"]["state"] == state
    plane.command(command_id, state)
    if state == "FAILED":
        refused = operate(plane, "command", command_id, "REDRIVE", "absent-again")
        assert refused.status == 409 and "REDRIVE" not in refused.body["allowed_actions"]
    assert count_of(plane, command_id) == (0 if finding == "ABSENT" else 1)


def test_a_case_is_taken_over_and_comes_back_only_on_purpose(plane: Plane) -> None:
    """Taken over, the approval that it waited for is withdrawn; handed back, it is asked anew, and the case goes on.

    Requirements: L14, O3
    """
    workflow_id = plane.begun("two", {"id": "handed"}, "two:handed")
    approval = plane.approval(workflow_id)
    assert ended(plane, plane.control("TAKE_OVER", workflow_id))["state"] == "DONE"
    case = plane.status(workflow_id, "HUMAN_TAKEOVER")
    assert case["turned"]["reason"] == "taken_over" and case["direction"] == "person"
    assert {"HAND_BACK", "COMPENSATE", "RESUME"} <= set(case["allowed_actions"])
    eventually(lambda: plane.exceptions(workflow_id) or None, "its exception", SECONDS)
    package = plane.get(f"/v1/workflows/{workflow_id}/handover", plane.token("operator:olga", roles=("operator",))).body
    assert package["automation"]["frozen"] and package["allowed_actions"] == case["allowed_actions"]
    assert [(item["step_id"], item["outcome"]) for item in package["effects"]] == [("first", "done")]
    assert package["open_questions"] and package["exceptions"] and package["history"]
    assert package["evidence"]["decisions"] and package["evidence"]["approvals"]
    plane.withdrawn(approval)
    assert plane.answer(approval).status == 409
    again = plane.control("TAKE_OVER", workflow_id, "again")
    assert again.status == 409
    assert ended(plane, plane.control("HAND_BACK", workflow_id))["state"] == "DONE"
    plane.status(workflow_id, "WAITING")

    def anew() -> dict[str, Any] | None:
        found = plane.approval(workflow_id)
        return found if found["approval_id"] != approval["approval_id"] else None

    assert plane.answer(eventually(anew, "the question is asked again")).status == 200
    case = plane.closed(workflow_id)
    assert {count_of(plane, step["command_id"]) for step in case["steps"] if step["command_id"]} == {1}


def asked_of(plane: Plane, workflow_id: str) -> set[str]:
    """The approvals of a case that are or were asked for."""
    answer = plane.get(f"/v1/approvals?workflow_id={workflow_id}", plane.editor())
    assert answer.status == 200, answer
    return {item["approval_id"] for item in answer.body["items"]}


def forbidden(plane: Plane) -> None:
    """The next effect on the bench is refused for good."""
    plane.fault("status", method="POST", path="/effect$", system="bench", status=403, body={})


def stuck(plane: Plane, name: str) -> str:
    """A case whose second step was forbidden: a person has it."""
    workflow_id = plane.begun("two", {"id": name}, f"two:{name}")
    approval = plane.approval(workflow_id)
    forbidden(plane)
    assert plane.answer(approval).status == 200
    plane.status(workflow_id, "HUMAN_TAKEOVER")
    return workflow_id


def test_a_failed_case_resumes_from_a_step_after_a_preview(plane: Plane) -> None:
    """The preview names what runs again and what is kept; resuming does exactly that, and says what it follows.

    Requirements: O7, O6
    """
    workflow_id = stuck(plane, "resumed")
    failed = next(step for step in plane.case(workflow_id)["steps"] if step["id"] == "second")
    wanted = {"params": {"from_step": "first", "dry_run": True}}
    preview = operate(plane, "workflow", workflow_id, "RESUME", "preview", **wanted)
    assert (preview.status, preview.body["again"], preview.body["kept"]) == (
        200,
        ["approve", "second", "third"],
        ["first"],
    )
    assert plane.case(workflow_id)["status"] == "HUMAN_TAKEOVER"
    before = asked_of(plane, workflow_id)
    act = ended(plane, operate(plane, "workflow", workflow_id, "RESUME", "resume", params={"from_step": "first"}))
    assert (act["result"]["again"], act["result"]["kept"]) == (preview.body["again"], preview.body["kept"])
    approval = eventually(lambda: next(iter(asked_of(plane, workflow_id) - before), None), "it is asked again")
    assert approval not in before
    assert plane.answer(plane.approval(workflow_id)).status == 200
    case = plane.closed(workflow_id)
    newer = next(step for step in case["steps"] if step["id"] == "second")
    assert plane.journal(newer["command_id"])["supersedes"] == failed["command_id"]
    assert {count_of(plane, step["command_id"]) for step in case["steps"] if step["command_id"]} == {1}
    assert count_of(plane, failed["command_id"]) == 0


def pressed(plane: Plane, kind: str, name: str, action: str, *, once: bool = True, **more: Any) -> dict[str, Any]:
    """One act, asked for by three clicks at the same moment, one more while it is at work and one when it is over: it
    is one, and has one end. Another act of the kind beside it (`once`) is refused, at once or by the case itself."""
    key = f"{action}:{name}"

    def press(_: int) -> Answer:
        return operate(plane, kind, name, action, key, **more)

    with plane.stopped("orchestrator"):
        with ThreadPoolExecutor(3) as fingers:
            clicks = list(fingers.map(press, range(3)))
        clicks.append(press(3))
        beside = operate(plane, kind, name, action, f"{key}:beside", **more) if once else None
    taken = [click for click in clicks if click.status == 202]
    assert taken and {click.status for click in clicks} <= {202, 409}, clicks
    if beside is not None and beside.status != 409:
        assert ended(plane, beside)["state"] == "REFUSED", beside
    act = ended(plane, taken[0])
    assert act["state"] == "DONE", act
    taken.append(press(4))
    assert {click.body["operator_command_id"] for click in taken} == {act["operator_command_id"]}, taken
    token = plane.token("operator:olga", roles=("operator",))
    assert plane.get(f"/v1/decisions/{act['decision_id']}", token).body["subject"] == "operator:olga"
    listed = plane.get(f"/v1/operator-commands?target={name}", token).body["items"]
    assert [item["state"] for item in listed if item["action"] == action].count("DONE") == 1
    return act


def test_every_action_on_an_operation_is_one_effect_however_often_it_is_pressed(plane: Plane) -> None:
    """RETRY now instead of in a minute, RECONCILE looks only, REPAIR and REDRIVE look and send once, SETTLE and
    MARK_RESOLVED end it, ASSIGN and ESCALATE give it to somebody: each under one decision, with one effect.

    Requirements: O3, I5, G7
    """
    waiting, _ = posted(plane, "pressed-retry", fault="status", status=503, body={}, headers={"Retry-After": "50"})
    plane.command(waiting, "RETRY_PENDING")
    assert pressed(plane, "command", waiting, "RETRY")["result"]["state"] == "SUCCESS"
    assert count_of(plane, waiting) == 1
    ends = {
        "RECONCILE": ({}, "FAILED", 0),
        "REPAIR": ({}, "SUCCESS", 1),
        "SETTLE": (
            {"params": {"finding": "ABSENT"}, "evidence": [{"kind": "audit_log", "ref": "line 1"}]},
            "FAILED",
            0,
        ),
        "MARK_RESOLVED": ({}, "RESOLVED", 0),
    }
    for action, (more, state, effects) in ends.items():
        name, case = posted(plane, f"pressed-{action.lower()}", fault="status", status=403, body={})
        letter = exception_of(plane, case, "failed")["exception_id"]
        assert pressed(plane, "exception", letter, "ASSIGN", once=False, params={"owner": "editors"})["state"] == "DONE"
        owners = {item["exception_id"]: item["owner"] for item in plane.exceptions(case)}
        assert owners[letter] == "editors"
        pressed(plane, "exception", letter, "ESCALATE", once=False, params={"owner": "director"})
        said = {"params": {"disposition": [{"effect": name, "became": "never happened"}]}}
        given = said if action == "MARK_RESOLVED" else more
        act = pressed(plane, "exception", letter, action, **given)
        assert act["result"]["state"] == state, (action, act)
        assert count_of(plane, name) == effects, action


def test_every_action_on_a_case_is_one_effect_however_often_it_is_pressed(plane: Plane) -> None:
    """PAUSE, RESUME, TAKE_OVER, HAND_BACK, CANCEL, COMPENSATE and MARK_RESOLVED on a workflow, each pressed by many.

    Requirements: O3, I5, L12, L14
    """
    workflow_id = plane.begun("two", {"id": "pressed"}, "two:pressed")
    plane.approval(workflow_id)
    for action, status in (
        ("PAUSE", "PAUSED"),
        ("RESUME", "WAITING"),
        ("TAKE_OVER", "HUMAN_TAKEOVER"),
        ("HAND_BACK", "WAITING"),
        ("CANCEL", "CANCELLED"),
    ):
        pressed(plane, "workflow", workflow_id, action)
        plane.status(workflow_id, status)
    kinds = [event.type for event in plane.history(workflow_id)]
    for kind in ("CasePaused", "CaseResumed", "CaseTakenOver", "CaseHandedBack", "CancelRequested"):
        assert kinds.count(kind) == 1, kind
    undone = stuck(plane, "pressed-undone")
    pressed(plane, "workflow", undone, "COMPENSATE")
    assert len(plane.status(undone, "COMPENSATED")["compensations"]) == 1
    closed = stuck(plane, "pressed-closed")
    case = plane.case(closed)
    first = next(step["command_id"] for step in case["steps"] if step["id"] == "first")
    assert case["standing"] == [first]
    for names in ([], [first, "cmd_" + "0" * 32]):
        wrong = {"params": {"disposition": [{"effect": name, "became": "kept"} for name in names]}}
        assert operate(plane, "workflow", closed, "MARK_RESOLVED", f"wrong-{len(names)}", **wrong).status == 422
    said = {"params": {"disposition": [{"effect": first, "became": "kept by the editor"}]}}
    pressed(plane, "workflow", closed, "MARK_RESOLVED", **said)
    plane.status(closed, "RESOLVED")
    plane.free_of_exceptions(closed)


def test_a_failed_case_goes_on_by_a_corrected_version(plane: Plane) -> None:
    """The second version corrects a payload and asks one thing more: the first effect stays the one it was, the failed
    one is done once by the new document, and the history says from which document to which.

    Requirements: O7, L13, I5
    """
    workflow_id = stuck(plane, "corrected")
    failed = next(step for step in plane.case(workflow_id)["steps"] if step["id"] == "second")
    done = next(step for step in plane.case(workflow_id)["steps"] if step["id"] == "first")
    text = TWO.replace("version: 1", "version: 2")
    fits = text.replace('with: { unit: "${input.id}", step: 2 }', 'with: { unit: "${input.id}", step: 22 }')
    unfit = text.replace("version: 2", "version: 3").replace("id: first", "id: other")
    for document in (fits, unfit):
        assert plane.register(document).status == 201
    wanted = {"from_step": "second", "version": 3}
    refused = operate(plane, "workflow", workflow_id, "RESUME", "by-3", params=wanted)
    assert refused.status == 409 and refused.body["misfits"][0]["step"] == "first", refused
    wanted["version"] = 2
    preview = operate(plane, "workflow", workflow_id, "RESUME", "by-2-dry", params={**wanted, "dry_run": True})
    assert (preview.status, preview.body["kept"]) == (200, ["first"]), preview
    assert preview.body["again"] == ["approve", "second", "third"]
    before = asked_of(plane, workflow_id)
    act = pressed(plane, "workflow", workflow_id, "RESUME", params=wanted)
    assert (act["result"]["again"], act["result"]["version"]) == (preview.body["again"], 2)
    eventually(lambda: asked_of(plane, workflow_id) - before or None, "it is asked again, for the new document")
    assert plane.answer(plane.approval(workflow_id)).status == 200
    case = plane.closed(workflow_id)
    assert (case["version"], case["sha256"]) == (2, preview.body["sha256"])
    steps = {step["id"]: step["command_id"] for step in case["steps"] if step["command_id"]}
    assert steps["first"] == done["command_id"] and {count_of(plane, name) for name in steps.values()} == {1}
    newer = plane.journal(steps["second"])
    assert (newer["supersedes"], newer["payload"]["step"]) == (failed["command_id"], 22)
    (moved,) = [event for event in plane.history(workflow_id) if event.type == "CaseMigrated"]
    assert (moved.payload["from_sha256"], moved.payload["to_sha256"]) == (
        preview.body["from_sha256"],
        preview.body["sha256"],
    )
    assert moved.actor == "operator:olga"


def test_a_compensation_that_failed_is_tried_again_by_a_person(plane: Plane) -> None:
    """A person decides to undo; the undoing is refused, becomes an exception, and is tried again until it holds.

    Requirements: S4, O3
    """
    workflow_id = stuck(plane, "undone")
    forbidden(plane)
    assert ended(plane, plane.control("COMPENSATE", workflow_id))["state"] == "DONE"
    failed = exception_of(plane, workflow_id, "compensation_failed")
    assert "COMPENSATE" in failed["allowed_actions"]
    again = operate(plane, "exception", failed["exception_id"], "COMPENSATE", "undo-again")
    assert ended(plane, again)["result"]["state"] == "SUCCESS"
    case = plane.status(workflow_id, "COMPENSATED")
    assert [item["outcome"] for item in case["compensations"]] == ["done"]
    plane.free_of_exceptions(workflow_id)


def test_an_exception_ends_with_the_case_that_a_person_takes_back(plane: Plane) -> None:
    """COMPENSATE has ended when the case has; the exception then closes as undone, by who decided, and its repair held.

    Requirements: Q7, Q8, S4
    """
    workflow_id = plane.begun("two", {"id": "taken-back"}, "two:taken-back", max_actions=1)
    assert plane.answer(plane.approval(workflow_id)).status == 200
    plane.status(workflow_id, "HUMAN_TAKEOVER")
    found = exception_of(plane, workflow_id, "needs_review")
    assert found["envelope"]["failure_code"] == "actions_exhausted"
    asked = operate(plane, "exception", found["exception_id"], "COMPENSATE", "take-back")
    assert ended(plane, asked)["result"] == {"status": "COMPENSATED"}
    plane.status(workflow_id, "COMPENSATED")
    plane.free_of_exceptions(workflow_id)
    token = plane.token("operator:olga", roles=("operator",))
    closed = plane.get(f"/v1/exceptions/{found['exception_id']}", token).body
    assert (closed["resolution_type"], closed["resolved_by"]) == ("undone", "operator:olga")

    def held() -> bool | None:
        repairs = plane.get("/v1/repairs?limit=200", token).body["items"]
        return [item["status"] for item in repairs if item["exception_id"] == found["exception_id"]] == ["DONE"] or None

    eventually(held, "the repair held")


def test_all_that_failed_of_one_cause_is_redriven_as_a_batch(plane: Plane) -> None:
    """Previewed, started, worked off by the gateway's worker at its rate: each effect once, a reason per item.

    Requirements: O5, D4, I5
    """
    failed = [posted(plane, f"bulk-{number}", fault="status", status=403, body={}) for number in range(3)]
    for _, workflow_id in failed:
        exception_of(plane, workflow_id, "failed")
    wanted = {"kind": "failed", "system": "bench", "cause": "forbidden"}
    body = {"action": "REDRIVE", "filter": wanted, "reason": "the target lets us in again", "rate_per_second": 5}
    preview = plane.operate("/v1/operator-batches", body, "bulk")
    assert preview.status == 201 and preview.body["total"] >= 3, preview
    assert plane.operate("/v1/operator-batches", body, "bulk").body == preview.body
    place = f"/v1/operator-batches/{preview.body['batch_id']}"
    assert {count_of(plane, command_id) for command_id, _ in failed} == {0}
    assert plane.operate(f"{place}/start", {}, "bulk-start").status == 200
    token = plane.token("operator:olga", roles=("operator",))

    def over() -> dict[str, Any] | None:
        found = plane.get(place, token).body
        return dict(found) if found["state"] == "DONE" else None

    batch = eventually(over, "the batch is done", SECONDS)
    assert batch["done"] + batch["failed"] + batch["skipped"] == batch["total"]
    items = {item["command_id"]: item for item in plane.get(f"{place}/items", token).body["items"]}
    assert [items[command_id]["state"] for command_id, _ in failed] == ["DONE"] * 3, items
    for command_id, workflow_id in failed:
        plane.closed(workflow_id)
        assert count_of(plane, command_id) == 1


@pytest.mark.parametrize("point", ["gateway-batches.before_commit", "gateway-batches.committed"])
def test_a_gateway_that_dies_amid_a_batch_finishes_every_item_once(plane: Plane, point: str) -> None:
    """Killed before the item's commit, or after it and before anything was published: the restarted gateway goes on,
    every item is asked for once and has one effect.

    Requirements: O5, I5, I1, M2
    """
    failed = [posted(plane, f"{point}-{number}", fault="status", status=403, body={}) for number in range(3)]
    for _, workflow_id in failed:
        letter = exception_of(plane, workflow_id, "failed")
        assert (
            operate(
                plane, "exception", letter["exception_id"], "ASSIGN", f"{workflow_id}:mine", params={"owner": point}
            ).status
            == 202
        )
        eventually(
            lambda name=workflow_id: plane.exceptions(name)[0]["owner"] == point or None, "it is assigned", SECONDS
        )
    body = {"action": "REDRIVE", "filter": {"owner": point}, "reason": "back", "rate_per_second": 2}
    preview = plane.operate("/v1/operator-batches", body, f"killed-{point}")
    assert (preview.status, preview.body["total"]) == (201, 3), preview
    pid = plane.process("gateway").pid
    plane.arm("gateway", f"{point}:2")
    place = f"/v1/operator-batches/{preview.body['batch_id']}"
    assert plane.operate(f"{place}/start", {"reason": "go"}, f"start-{point}").status == 200
    eventually(
        lambda: (plane.ready() and plane.process("gateway").pid != pid) or None, "it died and came back", SECONDS
    )
    token = plane.token("operator:olga", roles=("operator",))

    def over() -> dict[str, Any] | None:
        found = plane.get(place, token).body
        return dict(found) if found["state"] == "DONE" else None

    batch = eventually(over, "the batch is done", SECONDS)
    assert (batch["done"], batch["failed"], batch["skipped"]) == (3, 0, 0), batch
    assert [(entry["turn"], entry["reason"], entry["actor"]) for entry in batch["trail"]] == [
        ("start", "go", "operator:olga")
    ]
    for command_id, workflow_id in failed:
        plane.closed(workflow_id)
        assert count_of(plane, command_id) == 1
        acts = [event for event in plane.history(workflow_id) if event.type == "OperatorActed"]
        assert len(acts) == 1
