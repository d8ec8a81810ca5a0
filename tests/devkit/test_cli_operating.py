"""`trueup exceptions`, `operate` and `batch` against a stand-in gateway: what is sent, printed, and how it exits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.devkit.test_cli import StandIn, gateway, trueup

from trueup_common.contracts.operators import OperatorAction
from trueup_devkit.operating import line_of

__all__ = ["gateway"]

EXCEPTION = {
    "exception_id": "exc_1",
    "kind": "dead_letter",
    "failure_class": "DEPENDENCY_ERROR",
    "owner": "operators",
    "deadline_at": "2026-01-01T02:00:00Z",
    "command_id": "cmd_1",
    "workflow_id": "wf_1",
    "envelope": {"failure_code": "http_503"},
    "allowed_actions": ["REDRIVE", "ASSIGN"],
}
BATCH = {
    "batch_id": "bat_1",
    "action": "REDRIVE",
    "state": "RUNNING",
    "total": 3,
    "running": 1,
    "done": 1,
    "failed": 0,
    "skipped": 1,
    "actor": "operator:cli",
    "trail": [],
}


def asked(stand_in: StandIn, path: str) -> list[tuple[str, dict[str, str], Any]]:
    return [(url, headers, body) for _, url, headers, body in stand_in.asked if url.partition("?")[0] == path]


def test_exceptions_come_by_deadline_with_what_may_be_done(gateway: StandIn) -> None:
    """Requirements: O1, O4, F3"""
    page = {"items": [EXCEPTION, {**EXCEPTION, "exception_id": "exc_2"}], "next_cursor": None}
    gateway.will("GET", "/v1/exceptions", (200, page))
    done = trueup("exceptions", "--kind", "dead_letter", gateway=gateway)
    assert done.returncode == 0, done.stderr
    assert "exc_1  dead_letter  http_503  operators  late by" in done.stdout and "REDRIVE, ASSIGN" in done.stdout
    assert "2 open" in done.stderr
    ((url, headers, _),) = asked(gateway, "/v1/exceptions")
    assert "order=deadline" in url and "status=open" in url and "kind=dead_letter" in url
    assert headers["Authorization"] == "Bearer access.token"
    assert json.loads(trueup("exceptions", "--json", gateway=gateway).stdout) == page["items"]
    gateway.will("GET", "/v1/exceptions/exc_1", (200, EXCEPTION))
    assert json.loads(trueup("exceptions", "exc_1", gateway=gateway).stdout) == EXCEPTION
    line = line_of({**EXCEPTION, "allowed_actions": []}, datetime(2026, 1, 1, tzinfo=UTC))
    assert "due in 2.0 h" in line and line.endswith("nothing")
    drifted = {**EXCEPTION, "envelope": {"element": "wordpress.status", "target_resource": "post/7"}}
    assert "wordpress.status of post/7" in line_of(drifted, datetime(2026, 1, 1, tzinfo=UTC))


def test_an_act_in_the_same_words_is_the_same_act(gateway: StandIn) -> None:
    """Its key follows from the words; another key is another act; what it takes goes as JSON.

    Requirements: O3, I5, F3
    """
    answer = {"operator_command_id": "opc_1", "state": "ACCEPTED"}
    gateway.will("POST", "/v1/operator-commands", (202, answer))
    words = (
        *("operate", "settle", "dead-letter", "exc_1", "--reason", "seen in the log"),
        *("--param", "finding=EXISTS", "--param", 'receipt={"post_id": 7}', "--evidence", "audit_log=line 12"),
    )
    for more in ((), (), ("--key", "another")):
        assert trueup(*words, *more, gateway=gateway).returncode == 0
    first, second, third = asked(gateway, "/v1/operator-commands")
    assert first[1]["Idempotency-Key"] == second[1]["Idempotency-Key"] != third[1]["Idempotency-Key"] == '"another"'
    assert first[2] == {
        "action": "SETTLE",
        "target": {"kind": "dead_letter", "id": "exc_1"},
        "reason": "seen in the log",
        "params": {"finding": "EXISTS", "receipt": {"post_id": 7}},
        "evidence": [{"kind": "audit_log", "ref": "line 12"}],
    }


@pytest.mark.parametrize(("state", "code"), [("DONE", 0), ("REFUSED", 1)])
def test_an_act_is_waited_for(gateway: StandIn, state: str, code: int) -> None:
    """Requirements: F3, O3"""
    gateway.will("POST", "/v1/operator-commands", (202, {"operator_command_id": "opc_1", "state": "ACCEPTED"}))
    running, over = {"operator_command_id": "opc_1", "state": "ACKNOWLEDGED"}, {"state": state, "detail": "too late"}
    gateway.will("GET", "/v1/operator-commands/opc_1", (200, running), (200, over))
    done = trueup("operate", "REDRIVE", "exception", "exc_1", "--reason", "x", "--wait", gateway=gateway)
    assert done.returncode == code and json.loads(done.stdout) == over


@pytest.mark.parametrize(
    "arguments",
    [
        ("operate", "EXPLODE", "command", "cmd_1", "--reason", "x"),
        ("operate", "REDRIVE", "planet", "cmd_1", "--reason", "x"),
        ("operate", "REDRIVE", "command", "cmd_1"),
        ("operate", "REDRIVE", "command", "cmd_1", "--reason", "x", "--param", "deadline"),
        ("batch", "new", "REDRIVE", "--reason", "x", "--rate", "100"),
        ("batch", "start"),
    ],
)
def test_wrong_words_are_told_apart_from_a_refusal(gateway: StandIn, arguments: tuple[str, ...]) -> None:
    """There is no other action than those of the list: nothing is sent, and it exits with 2; a refusal exits with 1.

    Requirements: O3, F3
    """
    done = trueup(*arguments, gateway=gateway)
    assert done.returncode == 2, done.stderr
    assert [item for item in gateway.asked if item[1] != "/dev/token"] == []
    if "EXPLODE" in arguments:
        assert all(action.value in done.stderr.replace("\n", "") for action in (OperatorAction.SETTLE,))
    refused = {"type": "/problems/action-not-available", "title": "Not possible now", "detail": "It is SUCCESS."}
    gateway.will("POST", "/v1/operator-commands", (409, {**refused, "status": 409, "allowed_actions": []}))
    done = trueup("operate", "REDRIVE", "command", "cmd_1", "--reason", "x", gateway=gateway)
    assert done.returncode == 1 and "It is SUCCESS." in done.stderr


def test_a_batch_is_previewed_turned_and_followed(gateway: StandIn) -> None:
    """Requirements: O5, F3"""
    gateway.will("POST", "/v1/operator-batches", (201, {**BATCH, "state": "PREVIEW"}))
    done = trueup(
        *(
            "batch",
            "new",
            "redrive",
            "--reason",
            "over",
            "--kind",
            "dead_letter",
            "--system",
            "wordpress",
            "--rate",
            "2",
        ),
        gateway=gateway,
    )
    assert done.returncode == 0, done.stderr
    ((_, _, body),) = asked(gateway, "/v1/operator-batches")
    assert body["filter"] == {"kind": "dead_letter", "system": "wordpress"} and body["dry_run"] is True
    assert (body["action"], body["rate_per_second"]) == ("REDRIVE", 2.0)
    over = {**BATCH, "state": "DONE", "running": 0, "done": 2}
    gateway.will("GET", "/v1/operator-batches/bat_1", (200, BATCH), (200, {**BATCH, "trail": [{}]}), (200, over))
    for turn in ("start", "pause"):
        gateway.will("POST", f"/v1/operator-batches/bat_1/{turn}", (200, {"batch_id": "bat_1", "state": "X"}))
        assert trueup("batch", turn, "bat_1", "--reason", "why", gateway=gateway).returncode == 0
    (start,) = asked(gateway, "/v1/operator-batches/bat_1/start")
    (pause,) = asked(gateway, "/v1/operator-batches/bat_1/pause")
    assert start[2] == {"reason": "why"} and start[1]["Idempotency-Key"] == '"cli:start:bat_1:0"'
    assert pause[1]["Idempotency-Key"] == '"cli:pause:bat_1:1"'
    entry = {"position": 1, "exception_id": "exc_1", "state": "SKIPPED", "reason": "closed"}
    gateway.will("GET", "/v1/operator-batches/bat_1/items", (200, {"items": [entry], "next_after": None}))
    shown = trueup("batch", "show", "bat_1", "--items", "--wait", gateway=gateway)
    assert shown.returncode == 0
    assert "3/3 (2 done, 0 failed, 1 skipped)" in shown.stdout and "exc_1  SKIPPED  closed" in shown.stdout
    gateway.will("GET", "/v1/operator-batches", (200, {"items": [over], "next_cursor": None}))
    assert "bat_1  REDRIVE  DONE" in trueup("batch", "list", gateway=gateway).stdout
    gateway.will("GET", "/v1/operator-batches/bat_1", (200, {**over, "done": 1, "failed": 1}))
    assert trueup("batch", "show", "bat_1", "--wait", gateway=gateway).returncode == 1
