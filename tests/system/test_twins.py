"""Two processes of every service: the same promises hold when any of them acts at the same moment, or dies."""

import asyncio
import collections
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.system.load import Load
from tests.system.plane import Plane, eventually

CLIENTS = 4
USES = 100_000
SERVICES_RESTARTED = ("gateway", "orchestrator", "adapters")


def test_fifty_at_once_with_one_key_are_one_effect(twin_plane: Plane) -> None:
    """50 clients send the same command over two gateways: one is accepted, all others get its ids, one post appears.

    Requirements: I1, I2
    """
    capability = twin_plane.capability("wordpress.create_draft", "post", max_uses=1)
    payload = {"title": "Fifty", "content": "<p>Fifty.</p>", "slug": "fifty"}

    def send(_: int) -> tuple[int, str | None, bool]:
        answer = twin_plane.submit(capability, "fifty", "wordpress.create_draft", "post", payload)
        assert answer.status in (200, 202, 409), answer
        return answer.status, answer.body.get("command_id"), answer.headers.get("idempotent-replayed") == "true"

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    accepted = [command for status, command, replayed in answers if status == 202 and not replayed]
    assert len(accepted) == 1
    (command_id,) = {command for status, command, _ in answers if status != 409}
    assert command_id == accepted[0]
    workflow_id = twin_plane.journal(str(command_id))["workflow_id"]
    twin_plane.closed(workflow_id)
    assert [post["slug"] for post in twin_plane.posts_of(str(command_id))] == ["fifty"]
    assert len(twin_plane.effects("wordpress.post", "create")) == 1


def test_uses_of_a_capability_are_counted_across_gateways(twin_plane: Plane) -> None:
    """20 different commands at once on a capability of 7 uses: exactly 7 are accepted, 13 refused for `uses`.

    Requirements: G3, G4
    """
    capability = twin_plane.capability("bench.post", "effect", max_uses=7)

    def send(number: int) -> tuple[int, str | None]:
        answer = twin_plane.submit(capability, f"use-{number}", "bench.post", "effect", {"number": number})
        return answer.status, answer.body.get("check")

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, range(20)))
    assert sorted(status for status, _ in answers) == [202] * 7 + [403] * 13
    assert {check for status, check in answers if status == 403} == {"uses"}


def test_work_goes_on_while_one_of_each_dies(twin_plane: Plane) -> None:
    """One process of each service is killed while 30 commands run: every command ends with exactly one effect.

    Requirements: I1, M1, M2, X4, R7
    """
    capability = twin_plane.capability("bench.post", "effect", max_uses=30)
    victims = ["orchestrator", "adapters-2", "gateway", "reconciler", "repair-planner-2"]
    commands: list[str] = []
    for number in range(30):
        if number % 6 == 3:
            twin_plane.kill(victims[number // 6])
        answer = twin_plane.submit(capability, f"storm-{number}", "bench.post", "effect", {"number": number})
        assert answer.status in (200, 202), answer
        commands.append(answer.body["command_id"])

    def done() -> bool | None:
        states = {twin_plane.journal(command)["state"] for command in commands}
        return True if states == {"SUCCESS"} else None

    eventually(done, "all 30 commands succeeded")
    keys = [item["object"] for item in twin_plane.effects("bench.effect")]
    assert len(keys) == len(set(keys))
    eventually(lambda: twin_plane.ready() or None, "everything is ready again")


async def test_nobody_loses_a_request_while_everything_is_restarted(twin_plane: Plane) -> None:
    """Each request is answered with 2xx or a retryable 503, each command ends, and each effect happens once.

    Requirements: D5, I1, M2
    """
    capability = await asyncio.to_thread(twin_plane.capability, "bench.post", "effect", max_uses=USES, ttl_seconds=900)
    load = Load(twin_plane, capability, await asyncio.to_thread(twin_plane.token))
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    command = [
        sys.executable,
        "-m",
        "trueup_devkit.cli",
        "restart",
        *SERVICES_RESTARTED,
        "--state-dir",
        str(twin_plane.state_dir),
    ]
    restarted = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told, _ = await restarted.communicate()
    load.over.set()
    await asyncio.gather(*clients)
    print(told.decode(), dict(load.answers), len(load.commands))
    assert restarted.returncode == 0, told.decode()
    assert len(told.decode().splitlines()) == 2 * len(SERVICES_RESTARTED)
    assert load.broken == []
    assert set(load.answers) <= {200, 202, 503} and len(load.commands) > 100

    waiting = set(load.commands.values())

    def done() -> bool | None:
        waiting.difference_update([name for name in waiting if twin_plane.journal(name)["state"] == "SUCCESS"])
        return True if not waiting else None

    await asyncio.to_thread(eventually, done, f"all {len(load.commands)} commands succeeded")
    happened = collections.Counter(item["object"] for item in twin_plane.effects("bench.effect"))
    assert {happened[command_id] for command_id in load.commands.values()} == {1}


def test_of_two_writers_of_one_post_one_loses_and_nothing_is_overwritten(twin_plane: Plane) -> None:
    """Both saw the same version. The site compares nothing, so the second one waits, looks, and is a conflict; in
    whichever of the two adapters' processes it is.

    Requirements: X7
    """
    plane = twin_plane
    draft = plane.draft("two-writers")
    plane.closed(draft.body["workflow_id"])
    post = plane.journal(draft.body["command_id"])["receipt"]
    target = f"post/{post['post_id']}"
    capability = plane.capability("wordpress.update_post", target, max_uses=2)
    plane.fault("delay", method="POST", path=f"/posts/{post['post_id']}$", seconds=2.0, when="before")

    def update(name: str) -> str:
        payload = {
            "post_id": post["post_id"],
            "content": f"<p>Of {name}.</p>",
            "expected_modified_gmt": post["modified_gmt"],
        }
        answer = plane.submit(capability, f"two-writers:{name}", "wordpress.update_post", target, payload)
        assert answer.status == 202, answer
        return str(answer.body["command_id"])

    commands = {name: update(name) for name in ("one", "two")}
    ended = {name: plane.command(command_id, "SUCCESS", "CONFLICT") for name, command_id in commands.items()}
    assert sorted(row["state"] for row in ended.values()) == ["CONFLICT", "SUCCESS"]
    (winner,) = [name for name, row in ended.items() if row["state"] == "SUCCESS"]
    (stored,) = plane.posts("two-writers")
    assert f"Of {winner}." in stored["content"]["raw"]
    (loser,) = [row for row in ended.values() if row["state"] == "CONFLICT"]
    assert (loser["error_code"], loser["attempt_count"]) == ("version_conflict", 1), "waiting spent no attempt"
