"""The emergency stop on real processes: new effects stop at once; what looks, waits or hands over goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.plane import Answer, Plane, eventually, http

SECONDS = 120.0

HELD = """
name: held
version: 1
object: { type: note, id: "${input.id}" }
lifetime: P30D
input: { type: object, required: [id], properties: { id: { type: string } } }
steps:
  - id: first
    command: bench.make
    with: { unit: "${input.id}", step: 1 }
  - id: approve
    approval: { scope: "content:publish", binds: ["${input.id}"], timeout: P1D, owner: editors }
  - id: second
    command: bench.make
    with: { unit: "${input.id}", step: 2 }
    needs: [approve]
  - id: timed
    wait: { event: word.given, timeout: PT2M, owner: editors }
    needs: [approve]
    on: { timeout: continue }
  - id: third
    command: bench.make
    with: { unit: "${input.id}", step: 3 }
    needs: [second, timed]
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane whose business time the tests move."""
    running = Plane(tmp_path_factory.mktemp("freezes"), clock="virtual").start()
    assert running.register(HELD).status == 201
    yield running
    running.stop()


def freeze(plane: Plane, scope: dict[str, Any], key: str) -> str:
    answer = plane.operate("/v1/controls/freezes", {"scope": scope, "reason": "an emergency"}, f"freeze:{key}")
    assert answer.status == 201, answer
    return str(answer.body["freeze_id"])


def lift(plane: Plane, freeze_id: str) -> None:
    answer = plane.operate(f"/v1/controls/freezes/{freeze_id}", {}, f"lift:{freeze_id}", method="DELETE")
    assert answer.status == 200, answer


def post(plane: Plane, key: str, command_type: str = "bench.post", **payload: Any) -> Answer:
    return plane.submit(plane.capability(command_type, "unit"), key, command_type, "unit", payload)


def accepted(plane: Plane, key: str, command_type: str = "bench.post", **payload: Any) -> dict[str, Any]:
    answer = post(plane, key, command_type, **payload)
    assert answer.status in (200, 202), answer
    return dict(answer.body)


def step(case: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(item for item in case["steps"] if item["id"] == name))


def landed(plane: Plane, command_id: str) -> int:
    """How often an operation had its effect."""
    return [item["object"] for item in plane.effects("bench.effect")].count(command_id)


def writes(plane: Plane) -> int:
    return len(plane.requests("bench", "POST", "/effect$"))


def looks(plane: Plane, command_id: str) -> int:
    return len(plane.requests("bench", "GET", f"/effect/{command_id}$"))


def in_doubt(plane: Plane, key: str) -> tuple[str, str]:
    """A command that landed, whose answer was lost, and that nobody can look up for now: its id and its case."""
    plane.fault("lose_answer", method="POST", path="/effect$", system="bench")
    plane.fault("deny_reads", method="GET", path="/effect/", times=10_000, system="bench")
    begun = accepted(plane, key, "bench.post_verified", unit=key)
    command_id = str(begun["command_id"])
    unknown = ("OUTCOME_UNKNOWN", "RECONCILING")
    eventually(lambda: plane.journal(command_id)["state"] in unknown or None, "nobody knows what became of it", SECONDS)
    return command_id, str(begun["workflow_id"])


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("tenant", {}),
        ("system", {"system": "bench"}),
        ("type", {"command_type": "bench.make"}),
        ("definition", {"definition": "held"}),
    ],
)
def test_a_freeze_stops_new_effects_and_nothing_else(plane: Plane, name: str, scope: dict[str, Any]) -> None:
    """In the middle of a saga: no write goes out and none is accepted; finds, probes, timers, approvals and hand-over
    go on; lifted, the saga goes on by itself from where it stood, and every step has happened once.

    Requirements: D2, G6, V4
    """
    seen = accepted(plane, f"seen-{name}", "bench.post_verified", unit=name)
    plane.closed(seen["workflow_id"])
    capability = plane.workflow_capability("held", max_uses=3)
    held = plane.begun("held", {"id": f"held-{name}"}, f"held:{name}", capability=capability)
    other = plane.begun("held", {"id": f"other-{name}"}, f"other:{name}", capability=capability)
    approval = plane.approval(held)
    plane.approval(other)
    doubtful, its_case = in_doubt(plane, f"doubt-{name}")
    makes = plane.capability("bench.make", "unit")

    frozen = freeze(plane, scope, name)
    sent = writes(plane)
    http("DELETE", f"{plane.sandbox_url}/_faults")
    if name == "definition":
        refused = plane.begin("held", {"id": f"new-{name}"}, f"new:{name}", capability=capability)
    else:
        refused = plane.submit(makes, f"new-{name}", "bench.make", "unit", {"unit": name, "step": 1})
    assert (refused.status, refused.body["check"]) == (403, "frozen")
    assert plane.answer(approval).status == 200
    plane.until(held, lambda case: step(case, "second")["state"] == "QUEUED", "the approval is taken up")

    plane.closed(its_case, SECONDS)  # found, settled and verified
    assert (plane.journal(doubtful)["state"], landed(plane, doubtful)) == ("SUCCESS", 1)
    looked = looks(plane, seen["command_id"])
    plane.advance("3m")
    plane.until(held, lambda case: step(case, "timed")["ended_as"] == "timeout", "the timer fires")
    eventually(lambda: looks(plane, seen["command_id"]) > looked or None, "what is healthy is looked at again", SECONDS)
    assert plane.control("TAKE_OVER", other).status == 202
    assert plane.status(other, "HUMAN_TAKEOVER")["cost"]["human_since"]
    assert plane.control("HAND_BACK", other).status == 202
    cost = plane.status(other, "WAITING")["cost"]
    assert cost["human_minutes"] > 0 and cost["human_since"] is None

    second = step(plane.case(held), "second")
    assert (second["state"], plane.journal(second["command_id"])["attempts"]) == ("QUEUED", [])
    assert writes(plane) == sent, "nothing was sent"
    lift(plane, frozen)
    case = plane.closed(held, SECONDS)
    made = [step(case, item)["command_id"] for item in ("first", "second", "third")]
    assert [landed(plane, command_id) for command_id in made] == [1, 1, 1]
    assert writes(plane) == sent + 2
    plane.history(held)
    plane.cancel(other)
    plane.status(other, "CANCELLED")


def test_a_broken_glass_lets_one_scope_through_until_its_time_is_up(plane: Plane) -> None:
    """In a frozen tenant the one type that was named is sent; minutes later it is frozen as before. Who did it, why and
    under which decision stays to be read.

    Requirements: D4, D2
    """
    frozen = freeze(plane, {}, "glass")
    body = {"scope": {"command_type": "bench.post"}, "reason": "the recall must go out", "minutes": 5}
    assert post(plane, "glass-early", unit="a").body["check"] == "frozen"
    broken = plane.operate("/v1/controls/break-glass", body, "glass")
    assert broken.status == 201, broken
    through = accepted(plane, "glass-through", unit="b")
    plane.closed(through["workflow_id"])
    assert landed(plane, through["command_id"]) == 1
    assert post(plane, "glass-other", "bench.make", unit="b", step=1).body["check"] == "frozen"
    plane.advance("6m")
    assert post(plane, "glass-late", unit="c").body["check"] == "frozen"
    auditor = plane.token("operator:audrey", roles=("auditor",))
    trace = plane.get(f"/v1/decisions/{broken.body['decision_id']}", auditor).body
    assert (trace["subject"], trace["context"]["operation"]) == ("operator:olga", "BREAK_GLASS")
    listed = {item["freeze_id"]: item for item in plane.get("/v1/controls/freezes?active=false", auditor).body["items"]}
    entry = listed[broken.body["freeze_id"]]
    assert (entry["kind"], entry["reason"], entry["active"]) == ("break_glass", "the recall must go out", False)
    lift(plane, frozen)
