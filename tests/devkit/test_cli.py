"""The `trueup` command against a stand-in gateway: what it sends, what it prints, and how it exits."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts import history as chain
from trueup_common.contracts.problems import PROBLEMS
from trueup_common.contracts.shape import rfc3339
from trueup_devkit.children import Lease
from trueup_devkit.gateway_client import GatewayClient, GatewayError
from trueup_devkit.state_folder import PlaneState, StateFolder
from trueup_devkit.watching import Watched, follow, line_of, picture

COMMAND = {
    "idempotency_key": "wordpress:draft:0028:v1",
    "command_type": "wordpress.create_draft",
    "target": {"system": "wordpress", "resource": "post"},
    "payload": {"title": "A"},
}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class StandIn:
    """Answers by (method, path); keeps what it was asked."""

    url: str = ""
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)

    def will(self, method: str, path: str, *answers: tuple[int, Any]) -> None:
        self.answers[method, path] = list(answers)

    def take(self, method: str, path: str) -> tuple[int, Any]:
        answers = self.answers.get((method, path.partition("?")[0]))
        if not answers:
            return 404, {"title": "No such object", "status": 404}
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def gateway() -> Iterator[StandIn]:
    stand_in = StandIn()

    class Answers(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            stand_in.asked.append((self.command, self.path, dict(self.headers), body))
            status, content = stand_in.take(self.command, self.path)
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    stand_in.will("POST", "/dev/token", (200, {"access_token": "access.token", "expires_in": 3600}))
    yield stand_in
    server.shutdown()
    server.server_close()


def trueup(*arguments: str, gateway: StandIn | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    path = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "COLUMNS": "200"}
    if gateway is not None:
        path["TRUEUP_GATEWAY_URL"] = gateway.url
    command = [sys.executable, "-m", "trueup_devkit.cli", *arguments]
    return subprocess.run(
        command, env=path | environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_token_prints_the_bare_token(gateway: StandIn) -> None:
    """Scripts take it from stdout as it is."""
    done = trueup("token", "--sub", "agent:x", "--tenant", "globex", "--role", "agent", gateway=gateway)
    assert (done.returncode, done.stdout) == (0, "access.token\n")
    expected = {"sub": "agent:x", "tenant": "globex", "roles": ["agent"], "scopes": [], "ttl_seconds": 3600}
    assert gateway.asked[0][3] == expected


def test_capability_asks_for_a_decision_first(gateway: StandIn) -> None:
    """One command gives the bare capability; what was not approved gives no token and exit code 1.

    Requirements: G1
    """
    approved = {"decision_id": "dec_1", "outcome": "approved"}
    denied = {"decision_id": "dec_2", "outcome": "denied", "risk": {"level": "high", "score": 80}}
    gateway.will("POST", "/v1/decisions", (201, approved), (201, denied))
    gateway.will("POST", "/v1/capabilities", (201, {"capability": "cap.jws"}))
    arguments = ("capability", "--command-type", "wordpress.create_draft", "--resource", "post/*")
    done = trueup(*arguments, gateway=gateway)
    assert (done.returncode, done.stdout) == (0, "cap.jws\n")
    decision, capability = gateway.asked[1], gateway.asked[2]
    assert decision[3]["resource"] == {"system": "wordpress", "resource": "post/*"}
    assert decision[2]["Authorization"] == "Bearer access.token"
    assert capability[3]["decision_id"] == "dec_1"
    refused = trueup(*arguments, gateway=gateway)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "dec_2 is denied (risk high 80" in refused.stderr


def test_submit_waits_by_repeating_the_same_key(gateway: StandIn, tmp_path: Path) -> None:
    """Waiting never invents a second key, and the exit code tells SUCCESS from anything else.

    Requirements: I2
    """
    file = tmp_path / "command.json"
    file.write_text(json.dumps(COMMAND))
    running, over = {"command_id": "cmd_1", "state": "RUNNING"}, {"command_id": "cmd_1", "state": "SUCCESS"}
    gateway.will("POST", "/v1/commands", (202, running), (202, running), (200, over))
    done = trueup("submit", str(file), "--wait", gateway=gateway, TRUEUP_CAPABILITY="cap.jws")
    assert done.returncode == 0
    assert json.loads(done.stdout) == over
    assert len(gateway.asked) == 3
    assert {headers["Idempotency-Key"] for _, _, headers, _ in gateway.asked} == {'"wordpress:draft:0028:v1"'}
    assert {headers["Authorization"] for _, _, headers, _ in gateway.asked} == {"Bearer cap.jws"}
    assert all("idempotency_key" not in body for _, _, _, body in gateway.asked)
    gateway.will("POST", "/v1/commands", (200, {"state": "DEAD_LETTERED"}))
    assert trueup("submit", str(file), "--wait", gateway=gateway, TRUEUP_CAPABILITY="cap.jws").returncode == 1


def test_submit_without_waiting_returns_at_once(gateway: StandIn, tmp_path: Path) -> None:
    """202 is success: the command was accepted."""
    (tmp_path / "key").write_text("cap.from.file\n")
    (tmp_path / "command.json").write_text(json.dumps(COMMAND))
    gateway.will("POST", "/v1/commands", (202, {"state": "RECEIVED"}))
    done = trueup(
        *("submit", str(tmp_path / "command.json")), gateway=gateway, TRUEUP_CAPABILITY_FILE=str(tmp_path / "key")
    )
    assert done.returncode == 0
    assert gateway.asked[0][2]["Authorization"] == "Bearer cap.from.file"
    assert "Prefer" not in gateway.asked[0][2]


def test_a_refusal_is_told_in_words(gateway: StandIn, tmp_path: Path) -> None:
    """The problem document's check and pointers reach the person, without a traceback."""
    (tmp_path / "command.json").write_text(json.dumps(COMMAND))
    problem = {"title": "Not permitted", "check": "uses", "detail": "no use is left", "errors": []}
    gateway.will("POST", "/v1/commands", (403, problem))
    done = trueup("submit", str(tmp_path / "command.json"), gateway=gateway, TRUEUP_CAPABILITY="cap.jws")
    assert done.returncode == 1
    assert done.stderr.strip() == "trueup: 403 Not permitted (check: uses): no use is left"


def test_a_refusal_says_what_to_do_next(gateway: StandIn) -> None:
    """The advice of the problem type follows the refusal, and a detail that only repeats the title is left out."""
    found = PROBLEMS["not-found"]
    problem = {"type": "/problems/not-found", "title": found.title, "status": 404, "detail": f"{found.title}."}
    gateway.will("GET", "/v1/workflows/wf_9/history", (404, problem))
    done = trueup("history", "wf_9", "--token", "t", gateway=gateway)
    assert done.returncode == 1
    assert done.stderr == f"trueup: 404 {found.title}\n  {found.advice}\n"


def test_a_refusal_shows_what_its_advice_refers_to(gateway: StandIn) -> None:
    """Members that a problem document has beyond the standard ones are shown; the advice of the answer comes last.

    Requirements: F1, F3
    """
    problem = {
        "type": "/problems/action-not-available",
        "title": "No such action here or now",
        "status": 409,
        "detail": "RETRY is not possible.",
        "allowed_actions": ["REDRIVE", "CANCEL"],
        "misfits": [{"step": "a"}],
        "advice": "`allowed_actions` lists what is possible.",
    }
    gateway.will("GET", "/v1/workflows/wf_9/history", (409, problem))
    done = trueup("history", "wf_9", "--token", "t", gateway=gateway)
    assert done.stderr.splitlines()[1:] == [
        "  allowed_actions: REDRIVE, CANCEL",
        '  misfits: [{"step": "a"}]',
        "  `allowed_actions` lists what is possible.",
    ]


def test_a_plane_without_a_development_issuer_says_so(gateway: StandIn) -> None:
    """Requirements: F3, G8"""
    gateway.will("POST", "/dev/token", (404, {"type": "/problems/not-found", "title": "No such object", "status": 404}))
    done = trueup("token", "--sub", "agent:a", gateway=gateway)
    assert done.returncode == 1 and "has no development issuer" in done.stderr and "Check the id" not in done.stderr


def test_an_incomplete_command_is_answered_with_a_complete_one(gateway: StandIn, tmp_path: Path) -> None:
    """Whoever forgot the key sees a command file that has everything, and that is JSON."""
    (tmp_path / "command.json").write_text("{}")
    done = trueup("submit", str(tmp_path / "command.json"), gateway=gateway, TRUEUP_CAPABILITY="cap.jws")
    assert done.returncode == 2 and not gateway.asked
    assert set(json.loads(done.stderr.splitlines()[-1])) == set(COMMAND)


def test_console_prints_its_address(gateway: StandIn, tmp_path: Path) -> None:
    """The address of the running plane's console, alone on its line."""
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    urls = {"gateway_url": gateway.url, "console_url": f"{gateway.url}/console", "sandbox_url": None}
    servers = {"database_url": "", "nats_url": "", "state_dir": str(folder.path), "supervisor_pid": 1}
    folder.write_state(PlaneState(**urls, **servers))  # type: ignore[arg-type]
    lease = Lease.take(folder.lock)
    assert lease is not None
    done = trueup("console", TRUEUP_STATE_DIR=str(folder.path))
    lease.release()
    assert (done.returncode, done.stdout) == (0, f"{gateway.url}/console\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--replicas", "gatway=2"),
        ("up", "--clock", "lunar"),
        ("up", "--connections", "/nowhere/connections.yaml"),
        ("up", "--port", "99999"),
        ("submit", "/nowhere/command.json"),
        ("clock", "advance", "2 fortnights"),
        ("watch",),
        ("explode",),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Asked wrongly is told apart from failed, and nothing is started or created."""
    done = trueup(*arguments, TRUEUP_STATE_DIR=str(tmp_path / "state"), TRUEUP_CAPABILITY="x")
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("arguments", [("status",), ("down",), ("console",), ("migrate",), ("clock", "advance", "1h")])
def test_commands_for_a_running_plane_say_that_there_is_none(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Exit code 1 and the command that starts one."""
    done = trueup(*arguments, TRUEUP_STATE_DIR=str(tmp_path / "state"))
    assert done.returncode == 1
    assert "trueup up" in done.stderr and "Traceback" not in done.stderr


def test_every_command_has_an_example_and_its_exit_codes() -> None:
    """--help is enough to use a command."""
    from typer.main import get_command

    from trueup_devkit.cli import app

    root: Any = get_command(app)
    groups = ("clock", "batch")
    commands = {name: item for name, item in root.commands.items() if name not in groups}
    for group in groups:
        commands |= {f"{group} {name}": item for name, item in root.commands[group].commands.items()}
    names = "up down status token capability submit watch history migrate settings console restart exceptions operate"
    assert {*names.split(), "clock advance", "batch new", "batch start", "batch show"} <= set(commands)
    for name, command in commands.items():
        assert command.epilog and command.epilog.startswith("Example: "), name
        assert command.epilog.endswith("Exit codes: 0 ok, 1 failed, 2 usage."), name


def test_settings_lists_variables_without_secret_values() -> None:
    """What is set is never printed, only what can be set.

    Requirements: T3
    """
    done = trueup("settings", TRUEUP_NATS_URL="nats://gateway:hunter2@127.0.0.1:4222")
    assert done.returncode == 0
    assert "TRUEUP_NATS_URL" in done.stdout and "_FILE" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def events() -> list[dict[str, Any]]:
    """A real chain of three events as the gateway would answer it."""
    made, previous = [], chain.GENESIS
    for seq, to in enumerate(("RECEIVED", "RUNNING", "SUCCESS"), start=1):
        event = chain.append(
            workflow_id="wf_1",
            tenant="acme",
            seq=seq,
            prev_hash=previous,
            type="ReceiptReceived",
            occurred_at=MOMENT,
            recorded_at=MOMENT,
            actor="adapter:wordpress",
            payload={"command_id": "cmd_1", "states": [to]},
        )
        previous = event.hash
        fields = {
            name: getattr(event, name) for name in type(event).model_fields if name not in ("workflow_id", "tenant")
        }
        made.append({**fields, "occurred_at": rfc3339(MOMENT), "recorded_at": rfc3339(MOMENT)})
    return made


@pytest.mark.parametrize("damage", ["none", "payload", "field", "missing", "first_missing"])
def test_history_verifies_the_chain(gateway: StandIn, damage: str) -> None:
    """An untouched history verifies; one changed value or one missing event shows, and exits with 1."""
    told = events()
    if damage == "payload":
        told[1]["payload"] = {"command_id": "cmd_1", "states": ["FAILED"]}
    elif damage == "field":
        told[1]["actor"] = "agent:mallory"
    elif damage == "missing":
        del told[1]
    elif damage == "first_missing":
        del told[0]
    gateway.will("GET", "/v1/workflows/wf_1/history", (200, {"items": told, "next_cursor": None}))
    done = trueup("history", "wf_1", "--verify", "--token", "t", gateway=gateway)
    assert done.returncode == (0 if damage == "none" else 1), done.stderr
    assert ("does not verify" in done.stderr) == (damage != "none")
    assert len(done.stdout.splitlines()) == len(told)


def case(status: str) -> dict[str, Any]:
    vector = [{"element": "wordpress.status", "desired": "draft", "recorded": "draft", "observed": "draft"}]
    return {"workflow_id": "wf_1", "status": status, "steps": [{"command_id": "cmd_1"}], "vector": vector}


def test_watch_follows_to_the_end_through_a_restart_of_the_gateway(gateway: StandIn) -> None:
    """Lines come once each, a short absence of the gateway does not end it, and CLOSED is exit code 0."""
    told = events()
    attempt = {"attempt_id": "att_1", "fence": 1, "state": "CONFIRMED", "external_status": "201"}
    gateway.will("GET", "/v1/commands/cmd_1", (200, {"workflow_id": "wf_1", "state": "SUCCESS", "attempts": [attempt]}))
    away = (503, {"title": "Not ready"})
    gateway.will("GET", "/v1/workflows/wf_1", (200, case("RUNNING")), away, (200, case("CLOSED")))
    page: Any = [(200, {"items": told[:2], "next_cursor": None}), (200, {"items": told[2:], "next_cursor": None})]
    gateway.will("GET", "/v1/workflows/wf_1/history", *page)
    done = trueup("watch", "cmd_1", "--token", "t", gateway=gateway)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "wf_1"]
    assert lines[-1] == "wf_1 CLOSED"
    asked = [path for method, path, _, _ in gateway.asked if "history" in path]
    assert "after_seq=0" in asked[0] and "after_seq=2" in asked[1]


def test_watch_shows_a_takeover_as_failure(gateway: StandIn) -> None:
    """A case that waits for a person does not move by itself: the command ends and says so."""
    gateway.will("GET", "/v1/workflows/wf_1", (200, {**case("HUMAN_TAKEOVER"), "steps": []}))
    gateway.will("GET", "/v1/workflows/wf_1/history", (200, {"items": [], "next_cursor": None}))
    done = trueup("watch", "wf_1", "--token", "t", gateway=gateway)
    assert (done.returncode, done.stdout) == (1, "wf_1 HUMAN_TAKEOVER\n")


def test_watch_does_not_wait_for_a_case_that_is_not_there(gateway: StandIn) -> None:
    """404 is final, another tenant's case included."""
    watched = Watched(GatewayClient(gateway.url, "t"), "wf_2")
    with pytest.raises(GatewayError, match="404"):
        follow(watched, lambda new: None)


def test_the_picture_shows_attempts_and_elements(gateway: StandIn) -> None:
    """On a screen the case is drawn with what was tried and what is observed."""
    from rich.console import Console

    watched = Watched(GatewayClient(gateway.url, "t"), "wf_1")
    watched.case = case("VERIFYING")
    watched.command = {"command_type": "wordpress.create_draft", "state": "OUTCOME_UNKNOWN", "attempts": [{"fence": 7}]}
    watched.events = events()
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(picture(watched))
    drawn = console.export_text()
    for part in ("VERIFYING", "OUTCOME_UNKNOWN", "7", "wordpress.status", "SUCCESS"):
        assert part in drawn
    assert line_of({"seq": 1, "type": "x"}).split() == ["1", "x"]


WORKFLOW = {"idempotency_key": "article-1-v1", "definition": "seo-article-publish", "input": {"article_id": "1"}}


def test_a_workflow_is_started_under_a_capability_for_it(gateway: StandIn, tmp_path: Path) -> None:
    """The decision names the workflow, the start key travels in its header, the capability as bearer.

    Requirements: F3
    """
    gateway.will("POST", "/v1/decisions", (201, {"decision_id": "dec_1", "outcome": "approved"}))
    gateway.will("POST", "/v1/capabilities", (201, {"capability": "cap.jws"}))
    assert trueup("capability", "--workflow", "seo-article-publish", gateway=gateway).stdout == "cap.jws\n"
    decision = next(body for _, path, _, body in gateway.asked if path == "/v1/decisions")
    assert decision["action"] == {"command_types": [], "workflow": "seo-article-publish", "version": None}
    assert decision["resource"] == {"system": "workflow", "resource": "*"}
    file = tmp_path / "start.json"
    file.write_text(json.dumps(WORKFLOW))
    gateway.will("POST", "/v1/workflows", (202, {"workflow_id": "wf_1", "state": "RECEIVED"}))
    gateway.will("GET", "/v1/workflows/wf_1", (200, workflow("WAITING")), (200, workflow("COMPENSATED")))
    gateway.will("GET", "/v1/workflows/wf_1/history", (200, {"items": [], "next_cursor": None}))
    done = trueup("start", str(file), "--watch", gateway=gateway, TRUEUP_CAPABILITY="cap.jws")
    _, _, headers, body = next(item for item in gateway.asked if item[:2] == ("POST", "/v1/workflows"))
    assert (headers["Idempotency-Key"], headers["Authorization"]) == ('"article-1-v1"', "Bearer cap.jws")
    assert body == {name: value for name, value in WORKFLOW.items() if name != "idempotency_key"}
    assert done.returncode == 1, "COMPENSATED is not what was wanted"
    assert "draft ✔  approve …  publish ·  WAITING, waits for approval (content:publish) of editors" in done.stdout
    assert done.stdout.endswith("wf_1 COMPENSATED\n")


@pytest.mark.parametrize("options", [(), ("--workflow", "a", "--command-type", "b.c"), ("--command-type", "b.c")])
def test_a_capability_is_for_types_or_for_a_workflow(gateway: StandIn, options: tuple[str, ...]) -> None:
    """Nothing is asked for that would mean both, neither, or everything."""
    assert trueup("capability", *options, gateway=gateway).returncode == 2
    assert not gateway.asked


def test_an_approval_answers_with_what_it_showed(gateway: StandIn) -> None:
    """Without a hash it is only shown; with one, exactly that hash goes back, and the nonce of this approval.

    Requirements: F3
    """
    asked = {"approval_id": "apr_1", "nonce": "n", "content_sha256": "a" * 64, "scope": "s", "workflow_id": "wf_1"}
    asked["expires_at"] = "2026-01-01T00:00:00Z"
    gateway.will("GET", "/v1/approvals", (200, {"items": [asked], "next_cursor": None}))
    gateway.will("GET", "/v1/approvals/apr_1", (200, asked))
    gateway.will("POST", "/v1/approvals/apr_1/decision", (200, {**asked, "status": "rejected"}))
    assert trueup("approve", gateway=gateway).stdout.startswith("apr_1  s  wf_1")
    assert json.loads(trueup("approve", "apr_1", gateway=gateway).stdout) == asked
    assert not any("decision" in path for _, path, _, _ in gateway.asked)
    done = trueup("approve", "apr_1", "--content-sha256", "b" * 64, "--reject", "--reason", "no", gateway=gateway)
    assert json.loads(done.stdout)["status"] == "rejected"
    expected = {"decision": "reject", "nonce": "n", "content_sha256": "b" * 64, "reason": "no"}
    assert gateway.asked[-1][3] == expected


def workflow(status: str) -> dict[str, Any]:
    def step(name: str, phase: str, **more: Any) -> dict[str, Any]:
        return {"id": name, "kind": "command", "phase": phase, "state": phase, "command_id": None, **more}

    draft = step("draft", "DONE", state="SUCCESS", command_type="wordpress.create_draft", attempts=2)
    approval = step("approve", "WAITING", kind="approval")
    wait = {"reason": "approval", "expects": "content:publish", "owner": "editors"} if status == "WAITING" else None
    if status == "COMPENSATED":
        draft, approval = {**draft, "compensation_state": "COMPENSATED"}, step("approve", "FAILED", kind="approval")
    return {
        "workflow_id": "wf_1",
        "definition": "seo-article-publish",
        "version": 1,
        "object": {"type": "article", "id": "1"},
        "pivot": "no",
        "status": status,
        "steps": [draft, approval, step("publish", "PENDING")],
        "wait": wait,
        "vector": [],
    }


def test_the_picture_shows_the_steps_of_a_workflow(gateway: StandIn) -> None:
    """What a case is about, where it stands with its pivot, what it waits for, and every step."""
    from rich.console import Console

    watched = Watched(GatewayClient(gateway.url, "t"), "wf_1")
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    watched.case = workflow("WAITING")
    console.print(picture(watched))
    drawn = console.export_text()
    for part in ("seo-article-publish v1", "article/1", "pivot no", "waits for approval (content:publish) of editors"):
        assert part in drawn
    for part in ("draft", "wordpress.create_draft", "✔", "publish", "·"):
        assert part in drawn
    watched.case = workflow("COMPENSATED")
    console.print(picture(watched))
    drawn = console.export_text()
    assert "↶" in drawn and "COMPENSATED" in drawn and "waits" not in drawn
