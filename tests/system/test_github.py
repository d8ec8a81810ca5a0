"""GitHub on real processes: limits, lost answers and lagging reads; deaths stand in test_crash_adapters.py."""

from __future__ import annotations

from typing import Any

from tests.system.plane import Plane, http

ARCHIVE = "github.archive_version"
DELETE = "github.delete_branch"
REPOSITORY = "acme/articles"


def do(plane: Plane, command_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """One command and its closed case."""
    capability = plane.capability(command_type, REPOSITORY)
    answer = plane.submit(capability, f"{command_type}:{payload['branch']}", command_type, REPOSITORY, payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"])
    return plane.journal(answer.body["command_id"])


def version(branch: str) -> dict[str, Any]:
    """A content version to archive."""
    return {
        "repository": REPOSITORY,
        "branch": branch,
        "path": f"articles/{branch.rpartition('/')[2]}.md",
        "content": f"# {branch}\n",
        "message": f"Archive {branch}",
        "author": {"name": "Ada", "email": "ada@example.org"},
        "authored_at": "2026-11-29T12:00:00Z",
    }


def effects(plane: Plane, branch: str) -> list[tuple[str, str]]:
    """What the world did to one branch."""
    return [
        (item["kind"], item["action"])
        for kind in ("github.commit", "github.branch")
        for item in plane.effects(kind)
        if item["object"] == f"{REPOSITORY}@{branch}"
    ]


def order(plane: Plane, fault: str, params: dict[str, Any], times: int = 1, **match: str) -> None:
    """Let a fault stand."""
    body = {"system": "github", "fault": fault, "params": params, "match": match, "times": times}
    assert http("POST", f"{plane.sandbox_url}/_faults", body).status == 201


def test_limits_lost_answers_and_lagging_reads_end_in_one_commit_and_its_removal(plane: Plane) -> None:
    """A limit without Retry-After, a write whose answer is lost, reads that lag; then the branch goes as it came.

    Requirements: E1, R4, X4, X5
    """
    branch = "content/rough"
    limit = {"message": "You have exceeded a secondary rate limit."}
    order(plane, "status", {"status": 403, "headers": {}, "body": limit}, method="POST", path="/git/trees$")
    order(plane, "lose_answer", {}, method="POST", path="/git/refs$")
    order(plane, "stale_read", {"seconds": 5}, times=4, method="GET", path=f"/git/ref/heads/{branch}")
    row = do(plane, ARCHIVE, version(branch))
    assert (row["state"], row["attempt_count"]) == ("SUCCESS", 2)
    assert [item["error_code"] for item in row["attempts"]] == ["rate_limited", "connection_lost"]
    assert effects(plane, branch) == [("github.commit", "create")]
    receipt = row["receipt"]
    payload = {key: receipt[key] for key in ("repository", "branch", "path")}
    gone = do(plane, DELETE, payload | {"expected_sha": receipt["commit_sha"]})
    assert gone["observed_state"] == {"github.commit": "absent", "content.version": "absent"}
    assert effects(plane, branch) == [("github.commit", "create"), ("github.branch", "delete")]
