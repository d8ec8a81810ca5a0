"""The judge sees what is missing, what is there twice, and what nobody owns: else a quiet table would prove nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from tests.chaos.fault import Fault
from tests.chaos.field import Field
from tests.chaos.judge import Judge, Truth, Verdict
from tests.chaos.run import Row, rounds
from tests.chaos.traffic import Unit


class StillField:
    """A plane that only answers what the judge asks of a case."""

    def __init__(self, status: str) -> None:
        self.plane = self
        self.status = status

    def case(self, workflow_id: str) -> dict[str, Any]:
        return {"status": self.status, "steps": []}

    def history(self, workflow_id: str) -> list[Any]:
        return []


def truth(*, creates: int = 1, state: str = "SUCCESS", owned: bool = False) -> Truth:
    """One draft's world."""
    posts = [{"id": number} for number in range(1, creates + 1)]
    item = {"kind": "needs_review", "owner": "operators", "envelope": {}}
    return Truth(
        actions={("wordpress.post", f"acme/{post['id']}"): Counter({"create": 1}) for post in posts},
        posts={"cmd_1": posts},
        operations={
            "wf_1": [
                {"workflow_id": "wf_1", "command_id": "cmd_1", "command_type": "wordpress.create_draft", "state": state}
            ]
        },
        exceptions={"wf_1": [item]} if owned else {},
    )


UNIT = Unit("x", "draft", "x-1", 202, {"workflow_id": "wf_1", "command_id": "cmd_1"})


def judged(status: str, found: Truth) -> tuple[int, int, int, int, int]:
    """(recovered, owned, duplicates, of these owned, lost) of the one draft."""
    verdict: Verdict = Judge(cast(Field, StillField(status))).judge([UNIT], found)
    return verdict.recovered, verdict.owned, verdict.duplicates, verdict.duplicates_owned, verdict.lost


@pytest.mark.parametrize(
    ("status", "found", "wanted"),
    [
        ("CLOSED", truth(), (1, 0, 0, 0, 0)),
        ("CLOSED", truth(creates=0), (0, 0, 0, 0, 1)),
        ("CLOSED", truth(creates=2), (1, 0, 1, 0, 0)),
        ("CLOSED", truth(creates=2, owned=True), (1, 0, 1, 1, 0)),
        ("RUNNING", truth(creates=0, state="QUEUED"), (0, 0, 0, 0, 1)),
        ("HUMAN_TAKEOVER", truth(creates=0, state="CONFLICT", owned=True), (0, 1, 0, 0, 0)),
        ("HUMAN_TAKEOVER", truth(creates=0, state="CONFLICT"), (0, 0, 0, 0, 1)),
    ],
    ids=["well", "effect missing", "twin", "twin with an owner", "stuck", "with a person", "with nobody"],
)
def test_every_kind_of_end_is_told_apart(status: str, found: Truth, wanted: tuple[int, ...]) -> None:
    """Lost is what is neither over nor owned, and what says that it succeeded without an effect in the world."""
    assert judged(status, found) == wanted


def test_effects_of_nobody_are_seen() -> None:
    """Also of an operation whose client never heard that it was accepted."""
    judge = Judge(cast(Field, StillField("CLOSED")))
    found = truth(creates=2)
    assert judge.unexplained([UNIT], found) == []
    assert judge.unexplained([], found) == ["twice, and no client knows of it: cmd_1"]
    found.actions["bench.effect", "cmd_9"] = Counter({"create": 1})
    found.posts["cmd_8"] = [{"id": 9}]
    assert len(judge.unexplained([UNIT], found)) == 2


def test_a_fault_fails_for_each_broken_promise() -> None:
    """Not met, lost, a twin that nobody owns, too slow: one reason is enough."""
    row = Row(Fault("f", "", []))
    assert row.failures == []
    row.ready_seconds, row.verdict.lost, row.verdict.duplicates = 31.0, 1, 1
    row.not_met.append("was not reached")
    assert len(row.failures) == 4
    row.verdict.duplicates_owned = 1
    assert len(row.failures) == 3


def test_lanes_share_rounds_and_everything_else_is_alone() -> None:
    """Each injection happens once per run, those of different lanes side by side."""
    nothing = [lambda scene: None] * 2
    faults = [
        Fault("kill a.*", "", nothing, lane="a"),
        Fault("kill b.*", "", nothing[:1], lane="b"),
        Fault("stores gone", "", nothing[:1]),
    ]
    names = [[fault.name for fault, _ in items] for items in rounds(faults, 1)]
    assert names == [["kill a.*", "kill b.*"], ["kill a.*"], ["stores gone"]]
    assert sum(map(len, rounds(faults, 3))) == 12
