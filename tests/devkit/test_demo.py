"""The demos as a user runs them, checked against what the world kept; and what success takes, on made-up facts."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from trueup_common.runtime.clock import real_now
from trueup_devkit.children import process_is_alive
from trueup_devkit.demo.casualties import Casualties, Casualty
from trueup_devkit.demo.facts import Facts
from trueup_devkit.demo.scenarios import SCENARIOS
from trueup_devkit.demo.sentences import Entry, sentence
from trueup_devkit.demo.telling import PIPE_WIDTH, Teller
from trueup_devkit.demo.world import content_sha256, counted_by_kind
from trueup_devkit.state_folder import StateFolder

RUN_SECONDS = 300
COMMAND = [sys.executable, "-m", "trueup_devkit.demo"]
PUBLISHED = {"github.commit": 1, "wordpress.post": 1, "database.publication": 1, "monitoring.check": 1}


def too_wide(output: str) -> list[str]:
    """Lines of tables that do not fit; the timeline has one line for each entry, whatever its length."""
    tables = output.partition("\n== steps ==")[2].partition("\nhistory: ")[0].splitlines()
    assert tables
    return [line for line in tables if len(line) > PIPE_WIDTH]


def times_told(output: str) -> list[float]:
    """The times of the timeline while the case ran, as they stand beneath each other."""
    timeline = output.partition("== the article ==")[2].partition("\n== steps ==")[0]
    return [float(line.partition(" s ")[0]) for line in timeline.splitlines() if line.strip()]


def world(folder: Path) -> sqlite3.Connection:
    """The world's own memory, after the sandbox has ended."""
    return sqlite3.connect(f"file:{folder}/sandbox/world.sqlite3?mode=ro", uri=True)


def recorded_pids(folder: Path) -> list[int]:
    state = StateFolder(folder).read_state()
    assert state is not None
    return [state.supervisor_pid, *(process.pid for process in state.processes if process.pid)]


def run(scenario: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """One demo to its end: what it told, and its last line. Nothing of it may still run."""
    done = subprocess.run(
        [*COMMAND, scenario, "--state-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(process_is_alive(pid) for pid in recorded_pids(folder))
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert list(told) == [
        *("result", "workflow_id", "seconds", "effects", "faults_injected"),
        *("unknown_settled", "retries", "restarts"),
    ]
    assert told["seconds"] > 0
    assert told["workflow_id"].startswith("wf_")
    return done.stdout, told


def happened(folder: Path) -> Counter[tuple[str, str]]:
    return Counter(world(folder).execute("SELECT kind, action FROM effects").fetchall())


def unmet_faults(folder: Path) -> dict[str, int]:
    """Ordered faults that no request met. How often a lagging read is repeated depends on the machine's speed."""
    rows = world(folder).execute("SELECT json_extract(spec, '$.fault'), sum(left) FROM faults GROUP BY 1")
    return {fault: left for fault, left in rows if left and fault != "stale_read"}


def posts(folder: Path) -> dict[str, str]:
    """The status of every post as the site has it last."""
    rows = world(folder).execute("SELECT id, body FROM versions WHERE collection = 'wordpress.post/acme' ORDER BY seq")
    return {key: json.loads(body)["status"] for key, body in rows if body}


def test_the_demo_closes_with_everything_once(tmp_path: Path) -> None:
    """Five systems, twelve faults, two processes killed: one commit, one post, one record, one check, four batches.

    Requirements: X4, X5, I1
    """
    folder = tmp_path / "state"
    output, told = run("publish", folder)
    assert happened(folder) == {
        ("github.commit", "create"): 1,
        ("wordpress.post", "create"): 1,
        ("wordpress.post", "publish"): 1,
        ("cloudflare.purge", "purge"): 4,
        ("monitoring.check", "create"): 1,
        ("database.publication", "insert"): 1,
    }
    assert list(posts(folder).values()) == ["publish"]
    assert unmet_faults(folder) == {}
    supervisor = (folder / "logs" / "supervisor.log").read_text()
    assert supervisor.count("exit code -9") == 2
    assert told["result"] == "CLOSED"
    assert told["effects"] == PUBLISHED | {"cloudflare.purge": 4}
    faults = told["faults_injected"]
    assert faults.pop("stale_read") >= 4
    assert faults == {"lose_answer": 2, "delay": 1, "status": 7, "sigkill": 2}
    assert (told["unknown_settled"], told["retries"], told["restarts"]) == (3, 4, 2)
    for part in ("FAULT", "OUTCOME_UNKNOWN", "RECONCILING", "desired", "observed", "CONFIRMED", "unknown_outcome"):
        assert part in output
    for part in ("its SHA-256 is the same", "tries to approve its own article → 403", "10 of 10 sampled"):
        assert part in output
    assert too_wide(output) == []
    assert len(times_told(output)) > 50


def test_the_undone_demo_leaves_the_world_clean(tmp_path: Path) -> None:
    """Refused for good at the pivot: what was done is undone in reverse, through faults of the undoing itself.

    Requirements: S1, S3, S4
    """
    folder = tmp_path / "state"
    output, told = run("undo", folder)
    order = [kind for (kind,) in world(folder).execute("SELECT kind FROM effects ORDER BY seq")]
    assert order == ["github.commit", "wordpress.post", "wordpress.post", "github.branch"]
    assert list(posts(folder).values()) == ["trash"]
    assert unmet_faults(folder) == {}
    assert told["result"] == "COMPENSATED"
    assert told["effects"] == {"github.commit": 0, "wordpress.post": 0}
    assert told["faults_injected"] == {"lose_answer": 2, "status": 2}
    assert (told["unknown_settled"], told["retries"], told["restarts"]) == (2, 1, 0)
    assert "everything that was done is taken back: no page" in output


def test_the_forward_demo_keeps_what_is_public(tmp_path: Path) -> None:
    """Refused for good after the pivot: nothing is undone, the rest is done, and a person owns what is left.

    Requirements: S3
    """
    folder = tmp_path / "state"
    output, told = run("forward", folder)
    assert sum(happened(folder).values()) == 5
    assert list(posts(folder).values()) == ["publish"]
    assert unmet_faults(folder) == {}
    assert told["result"] == "HUMAN_TAKEOVER"
    assert told["effects"] == PUBLISHED
    assert told["faults_injected"] == {"lose_answer": 1, "status": 2}
    assert (told["unknown_settled"], told["retries"], told["restarts"]) == (1, 1, 0)
    assert "is with operators, to be settled by" in output


def _hears_ctrl_c() -> None:
    """Where the tests run in the background, the shell lets everything ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C while the plane still starts: exit code 130, every process gone, the folder free."""
    folder = tmp_path / "state"
    demo = subprocess.Popen(
        [*COMMAND, "--state-dir", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_hears_ctrl_c,  # noqa: PLW1509 - one system call
    )
    assert demo.stdout is not None
    deadline = time.monotonic() + RUN_SECONDS
    for line in demo.stdout:
        assert time.monotonic() < deadline
        if "nats ready" in line:
            break
    pids = recorded_pids(folder)
    os.kill(demo.pid, signal.SIGINT)
    rest = demo.stdout.read()
    assert demo.wait(RUN_SECONDS) == 130
    assert "everything is stopped" in rest
    assert not any(process_is_alive(pid) for pid in (*pids, *recorded_pids(folder)))
    assert not StateFolder(folder).is_running()


def effects_of(scenario: str) -> list[dict[str, Any]]:
    counts = SCENARIOS[scenario].effects
    return [
        {"system": kind.partition(".")[0], "kind": kind, "action": action, "object": kind.partition(".")[0]}
        for (kind, action), count in counts.items()
        for _ in range(count)
    ]


def facts(scenario: str = "publish", **changes: Any) -> Facts:
    good: dict[str, Any] = {
        "case": {
            "status": SCENARIOS[scenario].result,
            "vector": [
                {"element": "wordpress.status", "phase": "HEALTHY"},
                *({"element": name, "phase": "UNKNOWN"} for name in SCENARIOS[scenario].unhealthy),
            ],
        },
        "effects": effects_of(scenario),
        "exceptions": [{"status": "closed"}],
        "replays": [(200, True, True)],
        "kills": list(SCENARIOS[scenario].kills),
    }
    return Facts(SCENARIOS[scenario], **{**good, **changes})


OWNED = {"status": "open", "owner": "operators", "deadline_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"case": {"status": "HUMAN_TAKEOVER"}}, "HUMAN_TAKEOVER"),
        ({"case": {}}, "UNFINISHED"),
        (
            {"case": {"status": "CLOSED", "vector": [{"element": "github.commit", "phase": "DRIFT"}]}},
            "not as desired: github.commit",
        ),
        ({"effects": [*effects_of("publish"), effects_of("publish")[0]]}, "2 x github.commit create"),
        ({"effects": effects_of("publish")[1:]}, "the world saw"),
        ({"effects": []}, "nothing"),
        ({"history_broken": "event 2 was changed"}, "event 2 was changed"),
        ({"replays": [(202, False, True)]}, "not the stored one"),
        ({"exceptions": [OWNED]}, "still open"),
        ({"kills": ["orchestrator"]}, "killed was orchestrator"),
    ],
)
def test_only_closed_with_every_effect_once_is_success(changes: dict[str, Any], reason: str) -> None:
    """Each thing that may be wrong fails the demo by itself, and is named."""
    assert facts().failure() is None
    assert reason in (facts(**changes).failure() or "")


def test_a_takeover_needs_an_owner() -> None:
    """What is left after the pivot must be somebody's, until some time."""
    assert facts("forward", exceptions=[OWNED]).failure() is None
    assert "nobody owns" in (facts("forward").failure() or "")
    assert "nobody owns" in (facts("forward", exceptions=[{**OWNED, "owner": None}]).failure() or "")


def test_the_numbers_are_counted_from_what_was_collected() -> None:
    """Nothing in the last line is known beforehand; what was made and taken back counts 0."""
    settled = [{"type": "SettlementFinished", "payload": {"verdict": verdict}} for verdict in ("MISSING", "UNKNOWN")]
    found = {"type": "ReceiptReceived", "payload": {"found": True, "status": "CONFIRMED"}}
    post = {"system": "wordpress", "kind": "wordpress.post"}
    line = facts(
        workflow_id="wf_1",
        events=[*settled, found],
        commands=[{"attempts": [{}, {}, {}]}, {"attempts": []}, {"attempts": [{}]}],
        effects=[
            {**post, "object": "acme/1", "action": "create"},
            {**post, "object": "acme/1", "action": "publish"},
            {**post, "object": "acme/2", "action": "create"},
            {"system": "github", "kind": "github.commit", "object": "a@b", "action": "create"},
            {"system": "github", "kind": "github.branch", "object": "a@b", "action": "delete"},
        ],
        faults={"delay": 4},
        restarts=7,
    ).last_line(12.5)
    assert line == {
        "result": "CLOSED",
        "workflow_id": "wf_1",
        "seconds": 12.5,
        "effects": {"github.commit": 0, "wordpress.post": 2},
        "faults_injected": {"delay": 4},
        "unknown_settled": 2,
        "retries": 2,
        "restarts": 7,
    }


def test_a_timeline_is_told_in_the_order_in_which_things_happened(capsys: pytest.CaptureFixture[str]) -> None:
    """What the world shows at once waits for what the history tells late; a heading waits for nothing, and what comes
    after it is told as it comes.
    """
    now = real_now()
    teller = Teller(now)
    teller.lag()
    for after, who in ((600.0, "world"), (-50.0, "adapter"), (-60.0, "orchestrator"), (900.0, "steps")):
        teller.add(Entry(now + timedelta(seconds=after), who, "happened"))
    teller.look()
    assert re.findall(r" s +(\w+)", capsys.readouterr().out) == ["orchestrator", "adapter"]
    teller.add(Entry(now + timedelta(seconds=700.0), "planner", "happened"))
    assert capsys.readouterr().out == ""
    teller.head("the end")
    told = capsys.readouterr().out
    assert re.findall(r" s +(\w+)", told) == ["world", "planner", "steps"]
    assert told.index("== the end ==") > told.index("900.00 s")
    teller.tell(now + timedelta(seconds=30), "supervisor", "happened")
    assert "30.00 s" in capsys.readouterr().out


def test_purges_add_up_and_objects_do_not() -> None:
    """A purge leaves no object behind, so each one counts."""
    purge = {"system": "cloudflare", "kind": "cloudflare.purge", "object": "zone", "action": "purge"}
    assert counted_by_kind([purge, purge, purge]) == {"cloudflare.purge": 3}


def test_the_editor_reads_content_without_markers() -> None:
    """The digest that is approved is that of the article, whatever operations left their marks below it."""
    plain = content_sha256({"content": {"raw": "<p>A</p>\n"}})
    marks = "\n\n<!-- trueup:cmd_1 -->\n<!-- trueup:cmd_2 -->"
    assert content_sha256({"content": {"raw": f"<p>A</p>\n{marks}"}}) == plain
    assert content_sha256({"content": {"raw": f"<p>B</p>\n{marks}"}}) != plain


def test_a_request_that_went_wrong_is_recognised_as_ordered() -> None:
    """By system, method, path and query; no two faults of a demo are told in the same words."""
    by_words = {fault.told: fault for fault in SCENARIOS["publish"].faults}
    look_up = next(fault for words, fault in by_words.items() if "look-up" in words)
    request = {"system": "wordpress", "fault": "status", "method": "GET", "path": "/acme/wp-json/wp/v2/posts"}
    assert look_up.fits({**request, "query": "search=trueup"})
    assert not look_up.fits({**request, "query": "slug=a"})
    assert not look_up.fits({**request, "query": "search=trueup", "method": "POST"})
    for scenario in SCENARIOS.values():
        told = [fault.told for fault in scenario.faults if fault.told]
        assert len(told) == len(set(told))


def test_nobody_is_killed_before_the_moment_has_come(tmp_path: Path) -> None:
    """The moments are read from case and world, and a process that is not there is not killed."""
    planned = [Casualty("orchestrator", "draft is unknown"), Casualty("adapters", "publish has happened")]
    casualties = Casualties(StateFolder(tmp_path), None, planned)  # type: ignore[arg-type]
    unknown = {"steps": [{"id": "draft", "state": "RECONCILING"}]}
    published = [{"kind": "wordpress.post", "action": "publish"}]
    assert casualties.look({"steps": [{"id": "draft", "state": "RUNNING"}]}, []) == []
    assert casualties.look(unknown, published) == []
    assert casualties.killed == []


def test_a_line_says_what_was_decided_and_why() -> None:
    """Status, cause, decision and the states passed; an unknown kind of event still shows its facts."""
    unknown = {
        "type": "ReceiptReceived",
        "payload": {
            "states": ["DISPATCHING", "RUNNING", "OUTCOME_UNKNOWN"],
            "step_id": "draft",
            "status": "UNKNOWN",
            "fence": 1,
            "error_class": "unknown",
            "error_code": "answer_lost",
            "recovery": "reconcile",
        },
    }
    line = sentence(unknown)
    assert line.startswith("draft: ")
    for part in ("UNKNOWN", "answer_lost", "decided: reconcile", "DISPATCHING → RUNNING → OUTCOME_UNKNOWN"):
        assert part in line
    assert sentence({"type": "SomethingNew", "payload": {"number": 3}}) == "SomethingNew number=3"
    turned = {
        "type": "CaseTurned",
        "payload": {"direction": "backward", "reason": "publish_failed", "step_id": "publish"},
    }
    assert "undone, last first (publish_failed" in sentence(turned)
