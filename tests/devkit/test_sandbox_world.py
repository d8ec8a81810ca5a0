"""The world as a whole: ports, ground truth, outsiders, restarts, its process, its connections and its article."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.devkit.sandbox_site import POSTS, Hands, running, until
from tests.patience import PATIENCE_SECONDS

from trueup_devkit.children import free_port
from trueup_devkit.sample import load_article
from trueup_devkit.sandbox import Sandbox, sandbox_connections
from trueup_devkit.sandbox.systems import SYSTEMS
from trueup_devkit.sandbox.world import Occupied


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


async def test_the_index_lists_every_system_and_ready_says_so(hands: Hands) -> None:
    systems = (await hands.control.get("/")).json()["systems"]
    assert list(systems) == list(SYSTEMS)
    assert (await hands.client(systems["wordpress"]).get("/acme/wp-json/")).status_code == 200
    assert (await hands.control.get("/readyz")).status_code == 200


async def test_effects_are_the_ordered_ground_truth_of_all_systems(hands: Hands) -> None:
    await hands.draft()
    await hands.bench.post("/effect", json={"key": "k"})
    await hands.draft()
    items = (await hands.control.get("/_effects")).json()["items"]
    assert [item["seq"] for item in items] == [1, 2, 3]
    assert [item["kind"] for item in items] == ["wordpress.post", "bench.effect", "wordpress.post"]
    assert set(items[0]) == {"seq", "system", "kind", "object", "action", "at"}
    later = (await hands.control.get("/_effects?after=1&system=wordpress")).json()["items"]
    assert [item["object"] for item in later] == ["acme/2"]


async def test_requests_are_logged_with_what_went_wrong(hands: Hands) -> None:
    await hands.fault("lose_answer", method="GET")
    with pytest.raises(httpx.TransportError):
        await hands.site().get(f"{POSTS}?slug=key")
    await hands.site().get(POSTS)
    first, second = (await hands.control.get("/_requests?system=wordpress")).json()["items"]
    assert (first["path"], first["query"], first["fault"]) == (f"/acme{POSTS}", "slug=key", "lose_answer")
    assert (first["status"], second["status"], second["fault"]) == (None, 200, None)


async def test_the_bench_takes_a_key_and_never_deduplicates(hands: Hands) -> None:
    first = await hands.bench.post("/effect", json={"key": "a b/c"})
    again = await hands.bench.post("/effect", headers={"Idempotency-Key": '"a b/c"'})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["effect_id"] != again.json()["effect_id"]
    found = (await hands.bench.get("/effect/a%20b%2Fc")).json()
    assert (found["effect_id"], found["count"]) == (first.json()["effect_id"], 2)
    assert await hands.effects("bench") == [("a b/c", "create")] * 2
    assert (await hands.bench.get("/effect/other")).status_code == 404


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"", 400), (b"{", 400), (b"[]", 422), (b"{}", 422), (b'{"key": 5}', 422), (b'{"key": ""}', 422)],
)
async def test_the_bench_refuses_what_has_no_key(hands: Hands, content: bytes, status: int) -> None:
    assert (await hands.bench.post("/effect", content=content)).status_code == status
    assert await hands.effects("bench") == []


async def test_an_outsider_edits_and_removes_without_leaving_an_effect(hands: Hands) -> None:
    post = await hands.draft(slug="key")

    async def tamper(change: dict[str, Any], object_: str = f"acme/{post['id']}") -> httpx.Response:
        order = {"system": "wordpress", "object": object_, "change": change}
        return await hands.control.post("/_tamper", json=order)

    hands.at += 5
    assert (await tamper({"content": "theirs", "status": "publish"})).status_code == 200
    now = (await hands.site().get(f"{POSTS}/{post['id']}?context=edit")).json()
    assert (now["content"]["raw"], now["status"]) == ("theirs", "publish")
    assert now["modified_gmt"] > post["modified_gmt"]
    foreign = (await tamper({"slug": "foreign", "title": "not ours"}, "acme/new")).json()
    assert foreign["object"] == "acme/2"
    assert (await tamper({"delete": True})).status_code == 200
    assert (await hands.site().get(f"{POSTS}/{post['id']}")).status_code == 404
    assert (await hands.draft(slug="foreign"))["slug"] == "foreign-2"
    assert await hands.effects() == [("acme/1", "create"), ("acme/3", "create")]


async def test_an_outsider_removes_a_bench_effect_but_not_its_history(hands: Hands) -> None:
    await hands.bench.post("/effect", json={"key": "k"})
    order = {"system": "bench", "object": "k", "change": {"delete": True}}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    assert (await hands.bench.get("/effect/k")).status_code == 404
    await hands.bench.post("/effect", json={"key": "k"})
    assert (await hands.bench.get("/effect/k")).json()["count"] == 1
    assert await hands.effects("bench") == [("k", "create")] * 2


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"object": "acme/99", "change": {"title": "x"}}, 404), ({"object": "who/1", "change": {"title": "x"}}, 404),
        ({"object": "acme", "change": {"title": "x"}}, 404), ({"object": "acme/1", "change": {}}, 400),
        ({"object": "acme/1", "change": {"colour": "x"}}, 400), ({"object": "acme/1", "change": {"title": 5}}, 400),
        ({"object": "acme/1", "change": {"status": "x"}}, 400), ({"object": "acme/1", "change": {"meta": "x"}}, 400),
        ({"object": "acme/1", "change": "x"}, 400), ({"object": 1, "change": {"title": "x"}}, 400),
        ({"object": "acme/site", "change": {"registered_meta": {"a": 1}}}, 400),
        ({"object": "acme/new", "change": {"delete": True}}, 400),
        ({"system": "bench", "object": "k", "change": {"delete": True}}, 404),
    ],
)  # fmt: skip
async def test_senseless_edits_are_4xx_and_change_nothing(hands: Hands, order: dict[str, Any], status: int) -> None:
    post = await hands.draft()
    answer = await hands.control.post("/_tamper", json={"system": "wordpress"} | order)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})
    assert (await hands.site().get(f"{POSTS}/{post['id']}?context=edit")).json() == post | {"_links": post["_links"]}


async def test_a_restart_on_the_same_folder_keeps_the_world(tmp_path: Path) -> None:
    async with running(tmp_path) as hands:
        post = await hands.draft(slug="key")
        gone = await hands.draft()
        await hands.site().delete(f"{POSTS}/{gone['id']}?force=true")
        await hands.bench.post("/effect", json={"key": "k"})
        before = (await hands.control.get("/_effects")).json()
    async with running(tmp_path) as hands:
        assert (await hands.control.get("/_effects")).json() == before
        assert [item["id"] for item in (await hands.site().get(f"{POSTS}?status=any")).json()] == [post["id"]]
        assert (await hands.bench.get("/effect/k")).json()["count"] == 1
        assert (await hands.draft())["id"] == gone["id"] + 1  # numbers are not used again


async def test_two_worlds_on_one_folder_are_refused(tmp_path: Path) -> None:
    async with Sandbox(tmp_path):
        with pytest.raises(Occupied):
            await Sandbox(tmp_path).start()
    async with Sandbox(tmp_path):
        pass


async def test_a_taken_port_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await Sandbox(tmp_path, taken.getsockname()[1]).start()
    async with Sandbox(tmp_path):
        pass


async def _index(port: int, process: Process) -> dict[str, Any]:
    """What the control port answers as soon as it answers."""
    found: dict[str, Any] = {}

    async def answers() -> bool:
        assert process.returncode is None, "the sandbox did not start"
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                found.update((await client.get(f"http://127.0.0.1:{port}/")).json())
            except httpx.TransportError:
                return False
        return True

    await until(answers)
    return found


async def test_the_process_serves_fixed_ports_and_survives_sigterm_and_sigkill(tmp_path: Path) -> None:
    port = free_port(1 + len(SYSTEMS))
    command = (sys.executable, "-m", "trueup_devkit.sandbox", "--state-dir", str(tmp_path), "--port", str(port))
    for number, (end, code) in enumerate([(signal.SIGTERM, 0), (signal.SIGKILL, -9), (signal.SIGTERM, 0)], start=1):
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            systems = (await _index(port, process))["systems"]
            assert systems["wordpress"] == f"http://127.0.0.1:{port + 1}"
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.post(f"{systems['bench']}/effect", json={"key": f"k{number}"})
                effects = (await client.get(f"http://127.0.0.1:{port}/_effects")).json()["items"]
            assert [item["object"] for item in effects] == [f"k{n}" for n in range(1, number + 1)]
        finally:
            process.send_signal(end)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
        assert (process.returncode, err) == (code, b"")
        assert out.startswith(b"sandbox http://127.0.0.1:%d " % port)


async def test_the_connections_document_opens_every_system_for_every_tenant(hands: Hands) -> None:
    document = yaml.safe_load(yaml.safe_dump(sandbox_connections(hands.world.urls)))
    listed = {(item["tenant"], item["system"]) for item in document["connections"]}
    assert listed == {(tenant, system) for tenant in ("acme", "globex") for system in SYSTEMS}
    for item in document["connections"]:
        if item["system"] == "bench":
            assert (await hands.client(item["base_url"]).get("/effect/none")).status_code == 404
        if item["system"] == "monitoring":
            assert (await hands.client(item["base_url"]).get("/api/v1/targets")).json()["status"] == "success"
        if item["system"] != "wordpress":
            continue
        writer = hands.client(item["base_url"], (item["username"], item["password"]))
        created = await writer.post(POSTS, json={"title": "t", "status": "draft"})
        assert created.status_code == 201
        reader = hands.client(item["base_url"], (item["read_username"], item["read_password"]))
        assert (await reader.get(f"{POSTS}/{created.json()['id']}?context=edit")).status_code == 200
        assert (await reader.delete(f"{POSTS}/{created.json()['id']}")).status_code == 403


def test_the_connections_document_follows_a_fixed_control_port() -> None:
    urls = {
        (item["tenant"], item["system"]): item["base_url"]
        for item in sandbox_connections("http://h:8090")["connections"]
    }
    assert urls["acme", "wordpress"] == "http://h:8091/acme"
    assert urls["globex", "wordpress"] == "http://h:8091/globex"
    assert urls["acme", "bench"] == urls["globex", "bench"] == "http://h:8092"
    with pytest.raises(ValueError, match="no port"):
        sandbox_connections("http://h")


async def test_the_sample_article_is_stored_without_losing_anything(hands: Hands) -> None:
    wanted = load_article(repository="acme/articles", zone_id="0" * 32, web="http://web.example")
    article = {name: wanted[name] for name in ("title", "content", "slug", "excerpt", "meta")}
    assert 500 < len(article["content"].split()) < 900
    assert article["content"].startswith("<p>")
    assert "<h2>" in article["content"]
    post = await hands.draft(**article)
    assert (post["title"]["raw"], post["slug"]) == (article["title"], article["slug"])
    assert post["content"]["raw"] == article["content"]
    assert post["meta"] == article["meta"]
    assert article["meta"]["json_ld"]["headline"] == article["title"]
    assert 'href="http://web.example/page/retries"' in article["content"]
