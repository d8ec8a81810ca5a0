"""Repairs under fire: owners that fight, a target that makes something else of each write, a planner that dies.

Whatever happens, the writes are few, the effect is one, and what no machine should go on with is a person's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.system.plane import Plane, eventually, http
from tests.system.test_repairs import REGISTER, done, exceptions, items, mended, one, to_next_visit


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane whose business time the tests move."""
    plane = Plane(tmp_path_factory.mktemp("fire"), clock="virtual").start()
    yield plane
    plane.stop()


def writes(plane: Plane, system: str, method: str, path: str) -> int:
    """How often something was written to a target."""
    return len(plane.requests(system, method, path))


def until_given_up(plane: Plane, row: dict[str, Any], spoil: Callable[[], None]) -> dict[str, Any]:
    """Let the plane repair, and spoil it, until it gives up; bounded, so that an endless fight fails."""
    known: set[str] = set()

    def fresh() -> dict[str, Any] | None:
        found = (item for item in exceptions(plane, command_id=row["command_id"]) if item["exception_id"] not in known)
        new = next(found, None)
        if new is None:
            plane.advance("61s")  # what changed is looked at within a minute, whichever case owns it by now
        return new

    for _ in range(8):
        spoil()
        name = eventually(fresh, "the difference is found")["exception_id"]
        known.add(name)

        def ended(name: str = name) -> dict[str, Any] | None:
            (found,) = exceptions(plane, exception_id=name)
            if found["status"] == "closed" or found["repair_status"] == "ESCALATED":
                return found
            if items(plane, f"/v1/repairs?status=PLANNED&exception_id={name}"):
                plane.advance("70s")  # a later repair waits for its delay
            return None

        over = eventually(ended, "it is repaired or given up")
        if over["status"] == "open":
            return over
    raise AssertionError("the plane still fights")


def test_two_owners_that_fight_over_a_check_are_a_persons_after_few_writes(plane: Plane) -> None:
    """An outsider removes the check after each repair. Every repair is verified, the next one waits longer, and then no
    machine goes on: the duty owner has it, and whatever time passes nothing more is written.

    Requirements: R9, Q4, Q7
    """
    payload = {"name": "fought", "url": "https://blog.example/f", "expect": {"status": 200}, "interval_seconds": 60}
    row = done(plane, REGISTER, "check/fought", payload)
    made = len(plane.effects("monitoring.check", "create"))

    def remove() -> None:
        plane.tamper("monitoring", "acme/fought", {"delete": True})

    over = until_given_up(plane, row, remove)
    assert (over["envelope"]["failure_code"], over["envelope"]["route"]) == ("owners_fight", "ESCALATED")
    assert (over["owner"], over["envelope"]["human_review_required"]) == ("duty-manager", True)
    fought = len(plane.effects("monitoring.check", "create")) - made
    assert fought == 2, "two repairs held and were undone again; the third difference is not repaired"
    plane.advance("3h")
    (still,) = exceptions(plane, exception_id=over["exception_id"])
    assert (still["status"], still["owner"]) == ("open", "duty-manager")
    assert len(plane.effects("monitoring.check", "create")) - made == fought


def test_a_target_that_makes_something_else_of_each_repair_is_given_up_after_few_writes(plane: Plane) -> None:
    """The site stores "pending" whatever status it is sent: no repair holds, and each one that does not counts.

    Requirements: R9, Q7, X6
    """
    answer = plane.draft("rewritten")
    plane.closed(answer.body["workflow_id"])
    row = plane.journal(answer.body["command_id"])
    post_id = row["receipt"]["post_id"]
    plane.fault("rewrite", method="POST", path=f"/posts/{post_id}", times=1000, field="status", replace="pending")
    before = writes(plane, "wordpress", "POST", f"/posts/{post_id}")
    spoilt = []

    def trash_once() -> None:
        if not spoilt:
            spoilt.append(True)
            plane.tamper("wordpress", f"acme/{post_id}", {"status": "trash", "slug": "rewritten__trashed"})

    over = until_given_up(plane, row, trash_once)
    http("DELETE", f"{plane.sandbox_url}/_faults")
    assert over["owner"] == "duty-manager"
    written = writes(plane, "wordpress", "POST", f"/posts/{post_id}") - before
    assert 1 <= written <= 4, "bounded by the budget of repairs"
    plane.advance("3h")
    assert writes(plane, "wordpress", "POST", f"/posts/{post_id}") - before == written


BAD_MOMENTS = ("planner-repairs.decide", "planner-repairs.command", "planner-repairs.before_commit")
"""After the decision and before the command; after the command was accepted; in the commit that would have kept it."""


@pytest.mark.parametrize("moment", BAD_MOMENTS)
def test_a_planner_that_dies_at_a_bad_moment_repairs_once(plane: Plane, moment: str) -> None:
    """Whoever comes after asks again under the same key: one command, one effect, one repair that was verified.

    Requirements: I1, I5, L2, Q7, Q8
    """
    name = f"fragile-{moment.rpartition('.')[2].replace('_', '-')}"
    payload = {"name": name, "url": f"https://blog.example/{name}", "expect": {"status": 200}, "interval_seconds": 60}
    row = done(plane, REGISTER, f"check/{name}", payload)
    made = len(plane.effects("monitoring.check", "create"))
    restarts = plane.process("repair-planner").restarts
    plane.arm("repair-planner", moment)
    plane.tamper("monitoring", f"acme/{name}", {"delete": True})
    to_next_visit(plane, row["workflow_id"])
    eventually(lambda: plane.process("repair-planner").restarts > restarts or None, f"it died at {moment}")
    eventually(lambda: plane.ready() or None, "it is back")
    plane.advance("61s")  # the lease of who died

    over = one(plane, "the drift is over", lambda item: item["status"] == "closed", command_id=row["command_id"])
    assert over["resolution_type"] == "observed_healthy"
    assert mended(plane, over["exception_id"])["owner"]
    assert len(plane.effects("monitoring.check", "create")) == made + 1
