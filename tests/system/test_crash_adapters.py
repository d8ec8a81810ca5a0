"""SIGKILL at every crash point of every adapter: in steps of workflows, each adapter in a process of its own.

All adapters die at the same time, one point after another, and the cases of earlier points recover meanwhile: waiting
out each lease alone would take half an hour. So one fixture does the dying, and each test looks at one case.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.system.documents import ASK, EFFECTS, PUBLISH, two_steps
from tests.system.plane import REPOSITORY, Plane, eventually
from trueup_devkit.sandbox.systems.cloudflare import ZONES

POINTS = (
    "{0}.target_acted",
    "{0}.before_send",
    "{0}.committed",
    "{0}.acked",
    "{0}.fetched",
    "{0}.before_commit",
    "{0}-outcomes.before_commit",
    "{0}-outcomes.committed",
    "{0}-outcomes.published",
)
"""Those first after which only the end of a lease tells that something is wrong."""

PROCESSES = {
    "adapters": "wordpress",
    "adapters-2": "github",
    "adapters-3": "cloudflare",
    "adapters-4": "database",
    "adapters-5": "monitoring,bench",
}
LAUNCH = f"""
import os
os.environ["TRUEUP_SYSTEMS"] = {PROCESSES!r}[os.environ["TRUEUP_INSTANCE"]]
from trueup_adapters.main import main
main()
"""
DRAFTS, PUBLICATIONS = "wordpress-draft", "wordpress-publish"
WORDPRESS = [
    *((kind, point) for point in POINTS[:4] for kind in (PUBLICATIONS, DRAFTS)),
    (PUBLICATIONS, "{0}-outcomes.before_commit"),
]
"""Drafts that die at the other points, one at a time: test_crash_windows.py."""
LANES = {
    "adapters": WORDPRESS,
    "adapters-2": [("github", point) for point in POINTS],
    "adapters-3": [("cloudflare", point) for point in POINTS],
    "adapters-4": [("database", point) for point in POINTS],
    "adapters-5": [("monitoring", point) for point in POINTS],
}
CASES = [case for lane in LANES.values() for case in lane]
SERVICE_POINTS = [
    ("gateway", "gateway-start.before_commit"),
    ("gateway", "gateway-start.committed"),
    ("gateway", "gateway-start.published"),
    ("gateway", "gateway-approvals.before_commit"),
    ("gateway", "gateway-approvals.committed"),
    ("gateway", "gateway-approvals.acked"),
    ("orchestrator", "orchestrator-commands.before_commit"),
    ("orchestrator", "orchestrator-events.before_commit"),
    ("orchestrator", "orchestrator-events.committed"),
    ("orchestrator", "orchestrator-events.published"),
    ("reconciler", "reconciler-settlements.before_commit"),
    ("reconciler", "reconciler-settlements.committed"),
]


def name_of(system: str, point: str) -> str:
    """What a case is about."""
    return f"{system}-{point.format('').strip('-.')}".replace("_", "-").replace(".", "-")


@dataclass
class Dying:
    """The plane, the case of each death, and what died."""

    plane: Plane
    cases: dict[tuple[str, str], str] = field(default_factory=dict)
    deaths: dict[tuple[str, str], int] = field(default_factory=dict)

    def begin(self, system: str, point: str) -> None:
        """A case that meets an armed point."""
        data = {"id": name_of(system, point)}
        if system in EFFECTS:
            data |= {"site": f"{self.plane.systems['wordpress']}/acme", "zone_id": ZONES["acme"]}
        if system == "cloudflare":  # what is not in the cache is fresh, whether it was purged or not
            old = {"body": "<p>old</p>", "age_seconds": 3600}
            self.plane.tamper("cloudflare", f"{data['site']}/{data['id']}/", old)
        document = f"two-steps-{system}" if system in EFFECTS else "publish"
        self.cases[system, point] = self.plane.begun(document, data, f"crash:{data['id']}")

    def _died(self, process: str, before: int) -> int | None:
        return int(self.plane.process(process).restarts) - before or None

    def round(self, lane: dict[str, tuple[str, str]]) -> None:
        """Arm one point in each process, let the case of each come, and wait until all died and came back."""
        before = {process: self.plane.process(process).restarts for process in lane}
        for process, (system, point) in lane.items():
            self.plane.arm(process, point.format(f"adapters-{system.partition('-')[0]}"))
        for system, point in lane.values():
            if system == PUBLICATIONS:
                assert self.plane.answer(self.plane.approval(self.cases[system, point])).status == 200
            else:
                self.begin(system, point)
        for process, case in lane.items():
            self.deaths[case] = eventually(partial(self._died, process, before[process]), f"{case} was met")
        eventually(lambda: self.plane.ready() or None, "everything is ready again")


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dying]:
    """Every adapter died at every point."""
    programs = {"adapters": [sys.executable, "-c", LAUNCH]}
    plane = Plane(tmp_path_factory.mktemp("dying"), replicas={"adapters": len(PROCESSES)}, programs=programs).start()
    try:
        for document in (ASK, PUBLISH, *(two_steps(system) for system in EFFECTS)):
            assert plane.register(document).status == 201
        dying = Dying(plane)
        publications = [case for case in WORDPRESS if case[0] == PUBLICATIONS]
        for case in publications:
            dying.begin(*case)
        for case in publications:
            plane.approval(dying.cases[case])
        for cases in zip(*LANES.values(), strict=True):
            dying.round(dict(zip(LANES, cases, strict=True)))
        yield dying
    finally:
        plane.stop()


@pytest.mark.parametrize(("service", "point"), SERVICE_POINTS, ids=[point for _, point in SERVICE_POINTS])
def test_death_while_a_person_is_asked_leaves_one_effect(dying: Dying, service: str, point: str) -> None:
    """Start, question and answer survive the death of whoever handles them; the person is asked and heard once.

    Requirements: I5, M1, X4
    """
    plane = dying.plane
    restarts = plane.process(service).restarts
    if "events" not in point:
        plane.arm(service, point)
    if service == "reconciler":
        plane.fault("lose_answer", method="POST", path="/effect$", system="bench")
        plane.fault("deny_reads", method="GET", path="/effect", system="bench")
    workflow_id = plane.begun("ask", {"id": point.replace(".", "-")}, f"ask:{point}")
    approval = plane.approval(workflow_id)
    if "events" in point:
        plane.arm(service, point)
    assert plane.answer(approval).status == 200
    case = plane.status(workflow_id, "CLOSED")
    eventually(lambda: plane.process(service).restarts > restarts or None, f"{service} died and came back")
    types = [event.type for event in plane.history(workflow_id)]
    assert (types.count("ApprovalAsked"), types.count("ApprovalDecided")) == (1, 1)
    keys = [item["object"] for item in plane.effects("bench.effect")]
    assert [keys.count(case["steps"][index]["command_id"]) for index in (0, 2)] == [1, 1]
    eventually(lambda: plane.ready() or None, "everything is ready again")


def objects(plane: Plane, system: str, name: str, effect: dict[str, Any]) -> list[str]:
    """What the world did to the one object of a case."""
    kind, thing = {
        "github": ("github.commit", f"{REPOSITORY}@content/{name}"),
        "database": ("database.publication", f"acme/{name}"),
        "monitoring": ("monitoring.check", f"acme/{(effect['receipt'] or {}).get('check_id')}"),
        "cloudflare": ("cloudflare.purge", ZONES["acme"]),
        DRAFTS: ("wordpress.post", f"acme/{effect['external_resource_id']}"),
        PUBLICATIONS: ("wordpress.post", f"acme/{effect['external_resource_id']}"),
    }[system]
    return [item["action"] for item in plane.effects(kind) if item["object"] == thing]


DONE = {
    "github": ["create"],
    "database": ["insert"],
    "monitoring": ["create"],
    DRAFTS: ["create"],
    PUBLICATIONS: ["create", "publish"],
}


@pytest.mark.parametrize(("system", "point"), CASES, ids=[name_of(*case) for case in CASES])
def test_death_at_any_point_leaves_one_effect(dying: Dying, system: str, point: str) -> None:
    """Whatever its adapter was about to do is done by the successor, once, and the case goes on to its end.

    Requirements: E1, E2, I1, X4, R7
    """
    plane, workflow_id = dying.plane, dying.cases[system, point]
    assert dying.deaths[system, point] >= 1
    if system == DRAFTS:
        plane.approval(workflow_id)
        case = plane.case(workflow_id)
    else:
        case = plane.status(workflow_id, "CLOSED")
        assert case["obligations"] == [] or {item["status"] for item in case["obligations"]} == {"closed"}
    step = {DRAFTS: "draft", PUBLICATIONS: "publish"}.get(system, "effect")
    effect = plane.journal(next(item["command_id"] for item in case["steps"] if item["id"] == step))
    assert effect["state"] == "SUCCESS"
    if system == "cloudflare":  # all cases purge the one zone
        for other in POINTS:
            plane.status(dying.cases[system, other], "CLOSED")
    did = objects(plane, system, name_of(system, point), effect)
    assert did == DONE.get(system, ["purge"] * len(POINTS))
