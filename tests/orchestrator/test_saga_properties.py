"""Random documents, random outcomes, cancels and approvals at any moment: every case ends well or in a person's hands.

The laws after every commit stand in `Run.check`; here is what must hold at the end.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.orchestrator.sagas import Run, approval, document, effect, make

from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    EffectClass,
    ErrorClass,
    FindVerdict,
    InstanceStatus,
    OperationState,
    ReceiptStatus,
)
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_orchestrator.core.operation import IN_FLIGHT, UNDECIDED

SEEDS = 400
MOVES = 60


def random_document(rng: random.Random) -> WorkflowDocument:
    """A legal order: what can be undone, checks, people and events first, then perhaps a pivot, then what goes on."""
    steps: list[dict[str, Any]] = []
    for number in range(rng.randint(1, 5)):
        kind = rng.choice(["make", "make", "check", "approval", "wait"])
        name = f"s{number}"
        if kind == "make":
            step = make(name)
            if rng.random() < 0.3:
                step["on"] = {rng.choice(["failed", "conflict", "exhausted"]): rng.choice(["compensate", "takeover"])}
        elif kind == "check":
            step = {"id": name, "check": ["input.id == '7'" if rng.random() < 0.8 else "input.id == '8'"]}
        elif kind == "approval":
            step = approval(name)
            if rng.random() < 0.3:
                step["on"] = {"timeout": rng.choice(["compensate", "cancel", "safe_stop"])}
        else:
            step = {"id": name, "wait": {"event": f"ev{number}", "timeout": "PT8H", "owner": "shift"}}
        if steps and rng.random() < 0.3:
            step["needs"] = rng.sample([item["id"] for item in steps], k=1)
        steps.append(step)
    if rng.random() < 0.7:
        before = [item["id"] for item in steps]
        steps.append(effect("pivot", "site.publish", needs=before))
        for number in range(rng.randint(0, 3)):
            on = {"failed": "continue"} if rng.random() < 0.5 else {}
            steps.append(effect(f"after{number}", rng.choice(["site.purge", "site.show"]), needs=["pivot"], on=on))
    return document(*steps)


class Player:
    """Plays one case at random and remembers what may still come of what is out."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.run = Run(random_document(self.rng))
        self.events = 0

    def out(self) -> list[str]:
        return [row.step_id for row in self.run.case.operations if row.state in IN_FLIGHT or row.proposed]

    def unknown(self) -> list[str]:
        return [row.step_id for row in self.run.case.operations if row.state in UNDECIDED]

    def waiting(self, kind: str) -> list[str]:
        steps = self.run.case.instance.steps
        return [item["id"] for item in steps if item["phase"] == "WAITING" and item["kind"] == kind]

    def landed(self, step_id: str) -> bool:
        row = self.run.row(step_id)
        if row.compensates is not None:
            return row.command_id in self.run.world.undone
        return self.run.world.standing[row.command_id] > 0

    def move(self, *, kind: bool = False) -> None:
        """One random thing happens; `kind` lets only good and truthful things happen."""
        choices: list[Any] = [self.time]
        choices += [lambda step=step: self.answer(step, kind=kind) for step in self.out()] * 3
        choices += [lambda step=step: self.found(step) for step in self.unknown()] * 3
        choices += [lambda step=step: self.person(step, kind=kind) for step in self.waiting("approval")]
        choices += [self.event] if self.run.case.instance.steps else []
        if not kind and self.rng.random() < 0.05:
            choices += [lambda: self.run.control(self.rng.choice(["cancel", "pause", "resume"]))] * 5
        if self.run.case.instance.paused and (kind or self.rng.random() < 0.3):
            choices = [lambda: self.run.control("resume")]
        if self.run.case.instance.owed and self.rng.random() < 0.5:
            choices += [self.observe]
        self.rng.choice(choices)()

    def time(self) -> None:
        self.run.tick(self.rng.choice([0.5, 5, 60, 3600]))

    def event(self) -> None:
        self.events += 1
        self.run.signal(f"ev{self.rng.randint(0, 4)}", {"n": self.events}, f"e{self.rng.randint(0, 30)}")

    def observe(self) -> None:
        owed = self.run.case.instance.owed[0]["command_id"]
        row = next(row for row in self.run.case.operations if row.command_id == owed)
        self.run.verified(row.step_id)

    def answer(self, step_id: str, *, kind: bool) -> None:
        what = (
            "succeed"
            if kind
            else self.rng.choice(
                "succeed succeed succeed permanent transient conflict doubt doubt "
                "unsent refuse refuse_later silence".split()
            )
        )
        run, row = self.run, self.run.row(step_id)
        match what:
            case "succeed":
                run.succeed(step_id)
            case "permanent":
                run.fail(step_id)
            case "transient":
                run.fail(step_id, ErrorClass.TRANSIENT, "unavailable")
            case "conflict":
                run.fail(step_id, ErrorClass.BUSINESS, "foreign_object")
            case "doubt":
                run.doubt(step_id, landed=self.rng.random() < 0.5)
            case "unsent":
                run.hear(run.receipt(row, ReceiptStatus.NOT_SENT, ErrorClass.TRANSIENT, "no_slot"))
            case "refuse" | "refuse_later" if row.proposed:
                run.refuse(step_id, transient=what == "refuse_later")
            case _:
                if self.rng.random() < 0.5:
                    run.world.apply(row)
                run.tick(120)  # the lease runs out

    def found(self, step_id: str) -> None:
        if self.rng.random() < 0.1:
            self.run.settle(step_id, FindVerdict.AMBIGUOUS)
        else:
            self.run.settle(step_id, FindVerdict.CONFIRMED if self.landed(step_id) else FindVerdict.MISSING)

    def person(self, step_id: str, *, kind: bool) -> None:
        outcome = "approved" if kind else self.rng.choice(["approved", "approved", "rejected", "expired"])
        self.run.decide(step_id, outcome)

    def at_rest(self) -> bool:
        return self.run.over or (
            self.run.status is InstanceStatus.HUMAN_TAKEOVER
            and not self.out()
            and not self.unknown()
            and not any(
                row.state in (OperationState.QUEUED, OperationState.RETRY_PENDING) for row in self.run.case.operations
            )
        )


def check_end(run: Run) -> None:
    """What the world must look like at the end that the case came to."""
    own = [row for row in run.case.operations if row.compensates is None]
    standing = {row.command_id: run.world.standing[row.command_id] for row in own}
    assert all(count <= 1 for count in standing.values()), "no effect stands twice"
    pivots = [row for row in own if row.effect_class is EffectClass.PIVOT and standing[row.command_id]]
    if run.status is InstanceStatus.CLOSED:
        assert all(standing[row.command_id] == 1 for row in own if row.state is OperationState.SUCCESS)
        assert all(item["phase"] in ("DONE", "SKIPPED") for item in run.case.instance.steps)
        assert not run.kinds
    elif run.status in (InstanceStatus.COMPENSATED, InstanceStatus.CANCELLED):
        assert not pivots, "undone although the pivot stands"
        assert all(
            count == 0 for row, count in zip(own, standing.values(), strict=True) if row.command_type == "site.make"
        )
        assert set(run.kinds) <= {"dead_letter", "conflict"}, "those stay a person's although the case is undone"
    else:
        assert run.status in (InstanceStatus.HUMAN_TAKEOVER, InstanceStatus.SAFE_STOPPED)
        assert run.kinds, "owned by nobody"
    if pivots:
        undone = [row for row in run.case.operations if row.compensates == pivots[0].command_id]
        assert not undone, "the pivot was undone"


@pytest.mark.parametrize("block", range(8))
def test_every_case_ends_well_or_in_a_persons_hands(block: int) -> None:
    """Whatever happens, a case ends closed, compensated, cancelled, stopped, or owned; and so does the world.

    Requirements: S1, S3, S4, S5, P3
    """
    ends: set[InstanceStatus] = set()
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        player = Player(seed)
        try:
            for _ in range(MOVES):
                if player.at_rest():
                    break
                player.move()
            for _ in range(400):
                if player.at_rest():
                    break
                player.move(kind=True)
            assert player.at_rest(), f"not at rest: {player.run.status}"
            check_end(player.run)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ends.add(player.run.status)
    assert len(ends & INSTANCE_TERMINAL) >= 2, "the seeds reach too few ends to prove anything"
