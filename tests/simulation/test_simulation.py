"""Half of the suite's seeds, single commands: they hold and take every transition; a seed replays exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.simulation import __main__ as simulation
from tests.simulation.broken import resend_what_was_sent
from tests.simulation.crashing import KINDS
from tests.simulation.fixed import COMMANDS, hunt, missing, run_shares
from tests.simulation.report import all_covered
from tests.simulation.run import run_seed
from tests.simulation.verdict import P3

ACTED = ("acted, answer lost", "acted late", "reads lag", "value rewritten", "401 or 403 to a write", "429")
"""What a world does to us."""
FAULTS = (
    *ACTED,
    "publish lost",
    "confirmation lost",
    "message stored twice",
    "delivery delayed",
    "delivered out of order",
    "fetched late and together",
    "delivered again after its ack",
    "delivered again without an ack",
    "stream emptied",
    "publish refused by a full stream",
    "commit kept, answer lost",
    "401 or 403 to a read",
    "crash between any two steps",
    *(f"crash {kind}" for kind in KINDS.values()),
    "business clock jumps ahead",
    "database clock jumps back",
    "database clock jumps ahead",
    "a replica's own clock five minutes off",
    "a replica stands still and comes back",
    "answer held by a slow worker",
    "removed by a stranger",
    "thrown away by a stranger",
    "put back by a stranger",
    "a marked object that nobody manages",
    "a target that rewrites for ever",
    "a difference that is accepted for a while",
    "frozen during a repair",
    "revoked during a repair",
    "two operators at once",
    "two operators who want different things",
    "an operator presses twice",
    "two writers of one object",
    "a batch of acts",
    "a drift is repaired",
    "the planner redrives or reconciles",
)
"""Faults that these seeds have to inject, and what people and repairs have to do about them."""


RUNS = ((7, None, None), (3, "menders", False), (5, "writers", False), (11, "operators", True), (2, "outsiders", True))
"""Seed, theme and whether it is about workflows."""
ELSEWHERE = """
import json, sys
from tests.simulation.run import run_seed
for seed, theme, sagas in map(json.loads, sys.argv[1:]):
    print(run_seed(seed, theme, sagas=sagas).trace_hash)
"""


def test_every_seed_holds_the_invariants_and_takes_every_transition() -> None:
    """Half of the 300 seeds: single commands through every fault, judged after every commit, at rest after healing.

    Every transition that anything built can send for a single command is taken, none that nothing can.

    At rest every exception has an owner and a time, every repair is over or waits for a person, every act and batch has
    ended, and what nobody manages is known.

    Requirements: P1, P3, I1, I5, E2, E3, X4, M1, M2, O5, Q7, Q8, R9, R10, D4, G7
    """
    summary = run_shares(COMMANDS, sagas=False)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    assert summary.ends["SUCCESS"] > 2 * summary.seeds
    assert summary.checks["transmitted"] > 3 * summary.seeds
    assert [fault for fault in FAULTS if not summary.injected[fault]] == []
    assert [phrase for phrase in P3 if summary.checks[phrase] < summary.seeds] == []
    hunt(summary, sagas=False)
    assert [(result.seed, result.violation) for result in summary.failed] == []
    assert missing(summary, sagas=False) == {}
    assert [item.stale for item in all_covered(summary) if item.stale] == []


def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same trace, step by step; another seed another one.

    Requirements: P1
    """
    for seed in range(3):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace_hash == second.trace_hash
        assert first.trace == second.trace
    assert run_seed(0).trace_hash != run_seed(1).trace_hash


def test_a_seed_replays_exactly_in_another_process() -> None:
    """What one process saw, another one sees again, whatever it did before and however it hashes: the same lines, as
    many steps, and the same number next.

    Requirements: P1
    """
    said = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *map(json.dumps, reversed(RUNS))],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        cwd=Path(__file__).parents[2],
    ).stdout
    here = [run_seed(seed, theme, sagas=sagas) for seed, theme, sagas in RUNS]
    assert all("the next number would be" in result.trace[-1] for result in here)
    assert said.split() == [result.trace_hash for result in reversed(here)]


def test_a_failing_seed_prints_itself_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All cores work on the seeds; the first failing one is told with its number, its trace and its command.

    Requirements: P1
    """
    resend_what_was_sent(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "40", "--theme", "orphan", "--show", "1", "--lines", "5"])
    assert simulation.main() == 1
    said = capsys.readouterr().out
    told = json.loads(said.splitlines()[-1])
    seed = told["failed"][0]
    assert f'make sim FROM={seed} ARGS="--trace --theme orphan"' in said
    again = run_seed(seed, "orphan")
    assert again.violation is not None and f"seed {seed}: {again.violation.splitlines()[0]}" in said
    assert again.trace_hash in said and again.trace[-1] in said
