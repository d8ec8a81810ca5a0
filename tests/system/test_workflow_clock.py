"""Approvals and waits against their timers, on a plane whose business time the test moves."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.system.documents import ASK, WAIT
from tests.system.plane import Answer, Plane, eventually

RACES = 24
LEAD = timedelta(seconds=3)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane with a virtual clock that knows the documents of this module."""
    plane = Plane(tmp_path_factory.mktemp("clock"), clock="virtual").start()
    try:
        for document in (ASK, WAIT):
            assert plane.register(document).status == 201
        yield plane
    finally:
        plane.stop()


def effects(plane: Plane, case: dict[str, Any], step: str) -> int:
    """How often a step's operation had its effect."""
    command_id = next(item["command_id"] for item in case["steps"] if item["id"] == step)
    return [item["object"] for item in plane.effects("bench.effect")].count(command_id) if command_id else 0


def test_an_approval_that_comes_too_late_changes_nothing(late: Plane) -> None:
    """After 59 minutes it still counts; after an hour it is expired, which is not denied, and tells so.

    Requirements: L7, L8, L10
    """
    in_time = late.begun("ask", {"id": "in-time"}, "ask:in-time")
    too_late = late.begun("ask", {"id": "too-late"}, "ask:too-late")
    first, second = late.approval(in_time), late.approval(too_late)
    wait = late.case(too_late)["wait"]
    assert (wait["deadline"], wait["next_wake_at"]) == (second["expires_at"], second["expires_at"])
    late.advance("59m")
    assert late.case(too_late)["status"] == "WAITING"
    assert late.answer(first).status == 200
    assert effects(late, late.status(in_time, "CLOSED"), "after") == 1
    late.advance("2m")
    case = late.status(too_late, "CANCELLED")
    assert next(step["ended_as"] for step in case["steps"] if step["id"] == "approve") == "timeout"
    answer = late.answer(second)
    assert (answer.status, answer.body["reason"], answer.body["approval_status"]) == (409, "expired", "expired")
    assert effects(late, case, "after") == 0
    assert [item["id"] for item in case["compensations"]] == ["before:undo"]
    late.history(too_late)


@pytest.mark.parametrize("point", ["orchestrator-due.before_commit", "orchestrator-due.committed"])
def test_a_timer_outlives_the_process_that_watched_it(late: Plane, point: str) -> None:
    """The process dies in the very tick in which the timer is due; its successor takes it up, once.

    Requirements: L7, L8, R7
    """
    workflow_id = late.begun("ask", {"id": point.replace(".", "-")}, f"ask:{point}")
    late.approval(workflow_id)
    restarts = late.process("orchestrator").restarts
    late.arm("orchestrator", point)
    late.advance("61m")
    case = late.status(workflow_id, "CANCELLED")
    eventually(lambda: late.process("orchestrator").restarts > restarts or None, "it died and came back")
    assert [item["id"] for item in case["compensations"]] == ["before:undo"]
    assert [event.type for event in late.history(workflow_id)].count("ApprovalDecided") == 1


def test_a_wait_ends_by_its_timer_and_the_late_event_is_noted_as_late(late: Plane) -> None:
    """Requirements: L8. Two days without a word: the timer wins, what comes then is late and changes nothing."""
    workflow_id = late.begun("wait", {"id": "silent", "run": 1}, "wait:silent")
    late.status(workflow_id, "WAITING")
    late.advance("2d")
    case = late.status(workflow_id, "CANCELLED")
    assert late.signal(workflow_id, "word", "word.given", {"number": 8}) == "late"
    again = late.case(workflow_id)
    assert (again["status"], effects(late, again, "after")) == ("CANCELLED", 0)
    assert again["steps"] == case["steps"]


def test_person_and_timer_at_the_same_moment_have_one_winner_and_the_person_hears_which(late: Plane) -> None:
    """Answers around the very millisecond of expiry: who is told yes sees it done, who is told no sees nothing done.

    Requirements: L5, L8
    """
    capability = late.workflow_capability("ask", max_uses=RACES)
    cases = [late.begun("ask", {"id": f"race-{n}"}, f"ask:race-{n}", capability=capability) for n in range(RACES)]
    approvals = [late.approval(workflow_id) for workflow_id in cases]
    expiries = [datetime.fromisoformat(approval["expires_at"]) for approval in approvals]
    start = min(expiries) - LEAD
    in_time = late.answer(approvals[0])
    late.status(cases[0], "CLOSED")  # an effect that is under way does not outlive an hour's leap
    late.advance_to(start)
    moved, token = time.monotonic(), late.editor()

    def answer(number: int) -> Answer:
        """One person, some milliseconds before or after the expiry of this approval; the last one is clearly late."""
        offset_ms = {RACES - 1: 400}.get(number, (number - RACES // 2) * 2)
        at = moved + (expiries[number] - start).total_seconds() + offset_ms / 1000
        time.sleep(max(0.0, at - time.monotonic()))
        return late.answer(approvals[number], token=token)

    with ThreadPoolExecutor(RACES) as pool:
        answers = [in_time, *pool.map(answer, range(1, RACES))]
    assert {item.status for item in answers} == {200, 409}
    for workflow_id, told in zip(cases, answers, strict=True):
        case = late.status(workflow_id, "CLOSED", "CANCELLED")
        won = told.status == 200
        assert case["status"] == ("CLOSED" if won else "CANCELLED")
        assert effects(late, case, "after") == (1 if won else 0)
        if not won:
            assert told.body["reason"] == "expired"
        outcomes = [event.payload["outcome"] for event in late.history(workflow_id) if event.type == "ApprovalDecided"]
        assert outcomes == ["approved" if won else "expired"]
