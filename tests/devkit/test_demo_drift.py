"""The drift demo as a user runs it, checked against what the world kept; and what success takes, on made-up trails."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trueup_common.runtime.clock import real_now
from trueup_devkit.children import process_is_alive
from trueup_devkit.demo.drift_causes import COUNT, RECORD
from trueup_devkit.demo.telling import Teller
from trueup_devkit.demo.troubles import Trouble, failure_of, last_line
from trueup_devkit.demo.worker import Worker
from trueup_devkit.state_folder import PlaneState, ProcessState, StateFolder

RUN_SECONDS = 420
COMMAND = [sys.executable, "-m", "trueup_devkit.demo.drift"]
CAUSED = datetime(2026, 1, 1, tzinfo=UTC)


def run(folder: Path) -> tuple[str, dict[str, Any]]:
    """The demo to its end: what it told, and its last line. Nothing of it may still run."""
    done = subprocess.run(
        [*COMMAND, "--state-dir", str(folder)], capture_output=True, text=True, check=False, timeout=RUN_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = StateFolder(folder).read_state()
    assert state is not None
    assert not any(process_is_alive(process.pid) for process in state.processes if process.pid)
    assert not StateFolder(folder).is_running()
    return done.stdout, dict(json.loads(done.stdout.splitlines()[-1]))


def test_what_drifted_died_or_was_refused_is_found_and_healed(tmp_path: Path) -> None:
    """Six causes that nobody tells the plane of; each ends verified, and the world shows each effect exactly once.

    Requirements: G7, Q5, Q7, Q8, R8, I1
    """
    folder = tmp_path / "state"
    output, told = run(folder)
    assert list(told) == ["result", "seconds", "drifts", "found", "repaired", "verified", "open_exceptions"]
    assert told.pop("seconds") > 0
    assert told == {
        "result": "HEALED",
        "drifts": COUNT,
        "found": COUNT,
        "repaired": COUNT,
        "verified": COUNT,
        "open_exceptions": 0,
    }
    world = sqlite3.connect(f"file:{folder}/sandbox/world.sqlite3?mode=ro", uri=True)
    counts = Counter(world.execute("SELECT kind, action FROM effects").fetchall())
    assert counts["wordpress.post", "create"] == 2
    assert counts["wordpress.post", "trash"] == 1
    assert counts["wordpress.post", "restore"] == 1
    assert counts["monitoring.check", "create"] == 2
    assert counts["github.commit", "create"] == 3
    assert counts["github.branch", "delete"] == 1
    assert counts["cloudflare.purge", "purge"] >= 8
    written = world.execute("SELECT object FROM effects WHERE kind = 'database.publication'").fetchall()
    assert [name for (name,) in written].count(f"acme/{RECORD}") == 1
    assert (folder / "logs" / "supervisor.log").read_text().count("ended with exit code -9") >= 2
    for part in ("approves exactly that", "COMPENSATE exc_", "planner, once approved", "operator:olga"):
        assert part in output


def trail(*stages: str) -> list[dict[str, Any]]:
    """One stage a second."""
    return [
        {"turn": "test", "to": stage, "at": (CAUSED + timedelta(seconds=number)).isoformat(), "actor": "test"}
        for number, stage in enumerate(stages, 1)
    ]


WHOLE = ("found", "classified", "assigned", "repaired", "verified", "closed")


def exception(name: str = "exc_1", stages: tuple[str, ...] = WHOLE, **changes: Any) -> dict[str, Any]:
    return {
        "exception_id": name,
        "kind": "state_drift",
        "failure_class": "STATE_DRIFT",
        "status": "closed" if stages[-1] == "closed" else "open",
        "resolution_type": "observed_healthy",
        "resolved_by": "reconciler",
        "envelope": {"target_system": "wordpress", "command_type": "wordpress.publish_post", "trail": trail(*stages)},
        **changes,
    }


def repair(**changes: Any) -> dict[str, Any]:
    return {
        "exception_id": "exc_1",
        "status": "DONE",
        "repair_action": "REPAIR",
        "required_capability": {"command_type": "wordpress.publish_post"},
        "trail": [{"step": "send", "actor": "service:repair-planner"}],
        **changes,
    }


def trouble(exceptions: list[dict[str, Any]], repairs: list[dict[str, Any]] | None = None) -> Trouble:
    made = Trouble("post", "the post is trashed", {"kind": "state_drift", "target_system": "wordpress"}, CAUSED)
    made.take(exceptions, repairs or [])
    return made


def test_times_are_those_of_the_trail() -> None:
    """From the first one found to the last one repaired, since it was caused; others' exceptions do not count."""
    later = [{**entry, "at": (CAUSED + timedelta(seconds=60)).isoformat()} for entry in trail(*WHOLE)]
    again = exception("exc_2", envelope={"target_system": "wordpress", "trail": later})
    other = exception("exc_3", envelope={"target_system": "monitoring", "trail": trail("found")})
    row = trouble([exception(), again, other], [repair(), repair(exception_id="exc_3")]).row()
    assert [row[stage] for stage in ("found", "classified", "repaired", "verified")] == [
        *("1.0 s", "2.0 s", "60.0 s", "60.0 s")
    ]
    assert (row["times"], row["classified as"], row["repair"]) == (2, "STATE_DRIFT x2", "wordpress.publish_post")


@pytest.mark.parametrize(
    ("changes", "hand"),
    [
        ({}, "planner"),
        ({"approval_id": "apr_1"}, "planner, once approved"),
        ({"trail": [{"step": "send", "actor": "operator:olga"}]}, "operator:olga"),
        ({"status": "FAILED"}, "reconciler"),
    ],
)
def test_who_repaired_is_who_sent_it(changes: dict[str, Any], hand: str) -> None:
    """The planner, the planner after an approval, an operator; or nobody had to."""
    assert trouble([exception()], [repair(**changes)]).row()["by"] == hand


@pytest.mark.parametrize(
    ("exceptions", "open_exceptions", "wrong", "reason"),
    [
        ([], [], [], "post was not found"),
        ([exception(stages=WHOLE[:3])], [exception(stages=WHOLE[:3])], [], "post was not repaired"),
        ([exception(stages=WHOLE[:4])], [], [], "post was not verified"),
        ([exception(), exception("exc_2", WHOLE[:2])], [], [], "post was not repaired"),
        ([exception()], [exception("exc_9", kind="needs_review")], [], "exc_9 (needs_review) is open"),
        ([exception()], [], ["the site has no post"], "the site has no post"),
    ],
)
def test_only_what_is_verified_and_closed_is_healed(
    exceptions: list[dict[str, Any]], open_exceptions: list[dict[str, Any]], wrong: list[str], reason: str
) -> None:
    """Each thing that may be missing fails the demo by itself, and is named."""
    assert failure_of([trouble([exception()])], 1, [], []) is None
    assert reason in (failure_of([trouble(exceptions)], 1, open_exceptions, wrong) or "")
    assert "1 of 2 things" in (failure_of([trouble([exception()])], 2, [], []) or "")


def test_the_last_line_counts_what_came_to_each_stage() -> None:
    """Nothing in it is known beforehand."""
    troubles = [trouble([exception()]), trouble([exception(stages=WHOLE[:4])]), trouble([])]
    assert last_line(troubles, 1, 3.456, "why") == {
        "result": "NOT_HEALED",
        "seconds": 3.46,
        "drifts": 3,
        "found": 2,
        "repaired": 2,
        "verified": 1,
        "open_exceptions": 1,
    }
    assert last_line(troubles[:1], 0, 1.0, None)["result"] == "HEALED"


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_worker_is_dead_until_it_is_spared(tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]) -> None:
    """It is killed again as soon as it comes back; once spared, its return is seen and nobody touches it."""
    folder = StateFolder(tmp_path)

    def comes_back() -> subprocess.Popen[bytes]:
        sleepers.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        process = ProcessState("adapters-2", sleepers[-1].pid, ready=True)
        folder.write_state(PlaneState("", "", None, "", "", str(tmp_path), 0, processes=[process]))
        return sleepers[-1]

    first = comes_back()
    worker = Worker("adapters-2", folder, Teller(real_now()))
    worker.kill()
    assert first.wait(30) == -9
    assert comes_back().wait(30) == -9
    worker.look()
    assert (worker.present, worker.deaths) == (False, 2)
    worker.spare()
    third = comes_back()
    worker.look()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        assert third.poll() is None
    assert (worker.present, worker.deaths) == (True, 2)
