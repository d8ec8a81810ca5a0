"""The demo as a user runs it, checked against what the world kept; and what it takes for success, on made-up facts."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trueup_devkit.children import process_is_alive
from trueup_devkit.demo.facts import Facts
from trueup_devkit.demo.telling import sentence
from trueup_devkit.state_folder import StateFolder

RUN_SECONDS = 180
COMMAND = [sys.executable, "-m", "trueup_devkit.demo"]


def world(folder: Path) -> sqlite3.Connection:
    """The world's own memory, after the sandbox has ended."""
    return sqlite3.connect(f"file:{folder}/sandbox/world.sqlite3?mode=ro", uri=True)


def recorded_pids(folder: Path) -> list[int]:
    state = StateFolder(folder).read_state()
    assert state is not None
    return [state.supervisor_pid, *(process.pid for process in state.processes if process.pid)]


def test_the_demo_closes_with_exactly_one_post(tmp_path: Path) -> None:
    """Answer lost after the effect, look-ups refused, orchestrator killed: one post, and every number is the world's.

    Requirements: X4, I1
    """
    folder = tmp_path / "state"
    done = subprocess.run(
        [*COMMAND, "--state-dir", str(folder)], capture_output=True, text=True, check=False, timeout=RUN_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    effects = world(folder).execute("SELECT system, kind, action FROM effects").fetchall()
    assert effects == [("wordpress", "wordpress.post", "create")]
    bodies = [json.loads(body) for (body,) in world(folder).execute("SELECT body FROM versions")]
    marked = [body for body in bodies if "trueup:cmd_" in json.dumps(body)]
    assert len(marked) == 1
    spent = dict(world(folder).execute("SELECT json_extract(spec, '$.fault'), sum(left) FROM faults GROUP BY 1"))
    assert spent == {"lose_answer": 0, "status": 0}, "every ordered fault was met"
    supervisor = (folder / "logs" / "supervisor.log").read_text()
    assert supervisor.count("orchestrator") and supervisor.count("exit code -9") == 1
    assert told.pop("seconds") > 0
    assert told.pop("workflow_id").startswith("wf_")
    assert told == {
        "result": "CLOSED",
        "effects": {"wordpress.post": 1},
        "faults_injected": {"lose_answer": 1, "status": 2, "sigkill": 1},
        "unknown_settled": 1,
        "retries": 0,
        "restarts": 1,
    }
    for part in ("FAULT", "OUTCOME_UNKNOWN", "RECONCILING", "desired", "observed", "CONFIRMED", "unknown_outcome"):
        assert part in done.stdout
    assert not any(process_is_alive(pid) for pid in recorded_pids(folder))


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C while the plane still starts: exit code 130, every process gone, the folder free."""
    folder = tmp_path / "state"
    demo = subprocess.Popen([*COMMAND, "--state-dir", str(folder)], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    deadline = time.monotonic() + 60
    for line in demo.stdout:
        assert time.monotonic() < deadline
        if "nats ready" in line:
            break
    pids = recorded_pids(folder)
    os.kill(demo.pid, signal.SIGINT)
    rest = demo.stdout.read()
    assert demo.wait(60) == 130
    assert "everything is stopped" in rest
    assert not any(process_is_alive(pid) for pid in (*pids, *recorded_pids(folder)))
    assert not StateFolder(folder).is_running()


def facts(**changes: Any) -> Facts:
    good: dict[str, Any] = {
        "case": {"status": "CLOSED"},
        "effects": {"wordpress.post": 1},
        "posts": [{"id": 1}],
        "exceptions": [{"status": "closed"}],
        "replays": [(200, True, True)],
    }
    return Facts(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"case": {"status": "HUMAN_TAKEOVER"}}, "HUMAN_TAKEOVER"),
        ({"case": {}}, "UNFINISHED"),
        ({"effects": {"wordpress.post": 2}}, "not one post"),
        ({"effects": {}}, "no effects"),
        ({"posts": []}, "0 posts"),
        ({"history_broken": "event 2 was changed"}, "event 2 was changed"),
        ({"replays": [(202, False, True)]}, "not the stored one"),
        ({"exceptions": [{"status": "open"}]}, "still open"),
    ],
)
def test_only_closed_with_one_post_is_success(changes: dict[str, Any], reason: str) -> None:
    """Each thing that may be wrong fails the demo by itself, and is named."""
    assert facts().failure() is None
    assert reason in (facts(**changes).failure() or "")


def test_the_numbers_are_counted_from_what_was_collected() -> None:
    """Nothing in the last line is known beforehand."""
    settled = [{"type": "SettlementFinished", "payload": {"verdict": verdict}} for verdict in ("MISSING", "UNKNOWN")]
    line = facts(
        workflow_id="wf_1",
        events=settled,
        command={"attempts": [{}, {}, {}]},
        effects={"wordpress.post": 3},
        faults={"delay": 4},
        restarts=7,
    ).last_line(12.5)
    assert line == {
        "result": "CLOSED",
        "workflow_id": "wf_1",
        "seconds": 12.5,
        "effects": {"wordpress.post": 3},
        "faults_injected": {"delay": 4},
        "unknown_settled": 1,
        "retries": 2,
        "restarts": 7,
    }


def test_a_line_says_what_was_decided_and_why() -> None:
    """Status, cause, decision and the states passed; an unknown kind of event still shows its facts."""
    unknown = {
        "type": "ReceiptReceived",
        "payload": {
            "states": ["DISPATCHING", "RUNNING", "OUTCOME_UNKNOWN"],
            "status": "UNKNOWN",
            "fence": 1,
            "error_class": "unknown",
            "error_code": "answer_lost",
            "recovery": "reconcile",
        },
    }
    line = sentence(unknown)
    for part in ("UNKNOWN", "answer_lost", "decided: reconcile", "DISPATCHING → RUNNING → OUTCOME_UNKNOWN"):
        assert part in line
    assert sentence({"type": "SomethingNew", "payload": {"number": 3}}) == "SomethingNew number=3"
