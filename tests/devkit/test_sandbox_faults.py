"""Every fault knob does what it says, as often as it was ordered, and the ground truth stays true meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.devkit.sandbox_site import POSTS, START, Hands, running, until
from tests.patience import PATIENCE_SECONDS

from trueup_devkit.sandbox import Sandbox

DRAFT = {"title": "A", "content": "B", "slug": "key", "status": "draft"}


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


async def bytes_answered(url: str, request: bytes) -> bytes:
    """Everything that a connection gives back until it ends."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    finally:
        writer.close()


async def test_lose_answer_applies_the_effect_and_answers_not_one_byte(hands: Hands) -> None:
    await hands.fault("lose_answer", system="bench", method="POST", path="^/effect$")
    body = b'{"key": "k"}'
    head = b"POST /effect HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert await bytes_answered(hands.world.urls["bench"], head + body) == b""
    assert await hands.effects("bench") == [("k", "create")]


@pytest.mark.parametrize("reset", [False, True])
async def test_lose_answer_looks_like_a_lost_connection_to_a_client(hands: Hands, reset: bool) -> None:
    await hands.fault("lose_answer", method="POST", path="/wp/v2/posts$", reset=reset)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await hands.site().post(POSTS, json=DRAFT)
    found = (await hands.site().get(f"{POSTS}?slug=key&status=any&context=edit")).json()
    assert len(found) == 1
    assert (await hands.site().post(POSTS, json=DRAFT)).status_code == 201  # once only


async def test_drop_before_applies_nothing(hands: Hands) -> None:
    await hands.fault("drop_before", method="POST")
    with pytest.raises(httpx.TransportError):
        await hands.site().post(POSTS, json=DRAFT | {"content": "x" * 200_000})
    assert await hands.effects() == []
    assert (await hands.site().post(POSTS, json=DRAFT)).status_code == 201


async def test_delay_before_lets_the_effect_come_after_the_caller_gave_up(hands: Hands) -> None:
    await hands.fault("delay", method="POST", seconds=1.5)
    with pytest.raises(httpx.ReadTimeout):
        await hands.site().post(POSTS, json=DRAFT, timeout=httpx.Timeout(PATIENCE_SECONDS, read=0.3))
    assert await hands.effects() == []

    async def applied() -> bool:
        return await hands.effects() == [("acme/1", "create")]

    await until(applied)


async def test_delay_after_has_the_effect_while_the_caller_waits(hands: Hands) -> None:
    await hands.fault("delay", method="POST", seconds=60, when="after")
    waiting = asyncio.create_task(hands.site().post(POSTS, json=DRAFT))

    async def applied() -> bool:
        return await hands.effects() == [("acme/1", "create")]

    await until(applied)
    assert not waiting.done()
    waiting.cancel()


async def test_delay_answers_in_the_end(hands: Hands) -> None:
    await hands.fault("delay", method="POST", seconds=0.2, when="after")
    started = time.monotonic()
    assert (await hands.site().post(POSTS, json=DRAFT)).status_code == 201
    assert time.monotonic() - started >= 0.19


async def test_status_answers_without_applying(hands: Hands) -> None:
    await hands.fault("status", status=503, headers={"Retry-After": 7}, body={"code": "busy"}, times=2)
    for _ in range(2):
        answer = await hands.site().post(POSTS, json=DRAFT)
        assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (503, "7", {"code": "busy"})
    assert await hands.effects() == []
    assert (await hands.site().post(POSTS, json=DRAFT)).status_code == 201


async def test_body_answers_200_with_something_else_after_applying(hands: Hands) -> None:
    await hands.fault("body", method="POST", body="<html>maintenance</html>")
    answer = await hands.site().post(POSTS, json=DRAFT)
    assert (answer.status_code, answer.text) == (200, "<html>maintenance</html>")
    assert await hands.effects() == [("acme/1", "create")]


async def test_stale_read_answers_the_state_of_earlier(hands: Hands) -> None:
    post = await hands.draft(title="old")
    hands.at += 100
    await hands.site().post(f"{POSTS}/{post['id']}", json={"title": "new"})
    hands.at += 10
    await hands.fault("stale_read", seconds=50)
    await hands.fault("stale_read", seconds=500)
    url = f"{POSTS}/{post['id']}?context=edit"
    assert (await hands.site().get(url)).json()["title"]["raw"] == "old"
    assert (await hands.site().get(url)).status_code == 404  # before it existed
    assert (await hands.site().get(url)).json()["title"]["raw"] == "new"


async def test_stale_read_of_the_bench(hands: Hands) -> None:
    await hands.bench.post("/effect", json={"key": "k"})
    hands.at += 10
    await hands.fault("stale_read", system="bench", seconds=20)
    assert (await hands.bench.get("/effect/k")).status_code == 404
    assert (await hands.bench.get("/effect/k")).status_code == 200


async def test_rewrite_changes_what_is_stored(hands: Hands) -> None:
    await hands.fault("rewrite", field="content", find="B", replace="C")
    await hands.fault("rewrite", field="slug", replace="elsewhere")
    assert (await hands.draft(content="ABBA"))["content"]["raw"] == "ACCA"
    post = await hands.draft(slug="key")
    assert post["slug"] == "elsewhere"
    again = (await hands.site().get(f"{POSTS}/{post['id']}?context=edit")).json()
    assert again["slug"] == "elsewhere"


async def test_deny_reads_treats_the_account_as_a_stranger(hands: Hands) -> None:
    draft = await hands.draft(slug="key")
    public = await hands.draft(status="publish", slug="public")
    await hands.fault("deny_reads", times=4)
    site = hands.site()
    assert (await site.get("/wp-json/wp/v2/users/me?context=edit")).status_code == 401
    assert (await site.get(f"{POSTS}/{draft['id']}?context=edit")).status_code == 401
    assert [post["id"] for post in (await site.get(POSTS)).json()] == [public["id"]]
    assert (await site.post(f"{POSTS}/{draft['id']}", json={"title": "n"})).status_code == 200  # no read
    assert (await site.get(f"{POSTS}?slug=key&status=any&context=edit")).status_code == 400
    assert (await site.get(f"{POSTS}/{draft['id']}?context=edit")).status_code == 200  # used up


async def test_deny_reads_of_the_bench(hands: Hands) -> None:
    await hands.bench.post("/effect", json={"key": "k"})
    await hands.fault("deny_reads", system="bench")
    assert (await hands.bench.get("/effect/k")).status_code == 401


async def test_the_first_fault_that_matches_is_used_and_one_per_request(hands: Hands) -> None:
    await hands.fault("status", method="get", status=500)
    await hands.fault("status", method="POST", path=r"/posts/\d+$", status=501)
    await hands.fault("status", path=r"^/wp-json/wp/v2/posts", status=502)
    await hands.fault("status", path=r"slug=key", status=504)
    post, site = "/wp-json/wp/v2/posts/1", hands.site()
    assert (await site.post(post, json={})).status_code == 501
    assert (await site.post(post, json={})).status_code == 502  # anchored behind the site
    assert (await site.get(f"{POSTS}?slug=key")).status_code == 500
    assert (await site.get(f"{POSTS}?slug=key")).status_code == 504
    assert (await hands.control.get("/_faults")).json() == {"items": []}


async def test_faults_of_one_system_leave_others_alone(hands: Hands) -> None:
    await hands.fault("status", system="bench", times=10)
    assert (await hands.site().post(POSTS, json=DRAFT)).status_code == 201
    assert (await hands.bench.post("/effect", json={"key": "k"})).status_code == 503


async def test_what_is_left_is_listed_and_can_be_removed(hands: Hands) -> None:
    await hands.fault("status", times=3)
    await hands.site().get(POSTS)
    (item,) = (await hands.control.get("/_faults")).json()["items"]
    assert (item["fault"], item["system"], item["times"]) == ("status", "wordpress", 2)
    assert (await hands.control.delete("/_faults")).json() == {"removed": 1}
    assert (await hands.site().get(POSTS)).status_code == 200


async def test_concurrent_requests_consume_a_fault_exactly_as_often_as_ordered(hands: Hands) -> None:
    await hands.fault("lose_answer", system="bench", times=5)
    bench = hands.bench

    async def send(number: int) -> int | None:
        try:
            return (await bench.post("/effect", json={"key": f"k{number}"})).status_code
        except httpx.TransportError:
            return None

    answers = await asyncio.gather(*(send(number) for number in range(20)))
    assert (answers.count(None), answers.count(201)) == (5, 15)
    assert len({key for key, _ in await hands.effects("bench")}) == 20


async def test_faults_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as hands:
        await hands.fault("status", times=2)
        await hands.site().get(POSTS)
    async with running(tmp_path) as hands:
        assert [(await hands.site().get(POSTS)).status_code for _ in range(2)] == [503, 200]


async def test_stopping_ends_a_delay_and_applies_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as hands:
        await hands.fault("delay", method="POST", seconds=60)
        waiting = asyncio.create_task(hands.site().post(POSTS, json=DRAFT))

        async def arrived() -> bool:
            return bool((await hands.control.get("/_requests")).json()["items"])

        await until(arrived)
        started = time.monotonic()
        await hands.world.stop()
        assert time.monotonic() - started < 30
        with pytest.raises(httpx.TransportError):
            await waiting
    async with running(tmp_path) as hands:
        assert await hands.effects() == []


GOOD: dict[str, Any] = {"system": "wordpress", "match": {"method": "GET"}, "fault": "status"}


@pytest.mark.parametrize(
    "order",
    [
        None, [], "x", {}, GOOD | {"fault": "explode"}, GOOD | {"match": {"path": "("}}, GOOD | {"match": "GET"},
        GOOD | {"match": {"methods": "GET"}}, GOOD | {"times": 0}, GOOD | {"times": True}, GOOD | {"times": "1"},
        GOOD | {"times": 10**30}, GOOD | {"params": {"status": 99}}, GOOD | {"params": {"headers": {"a b": "c"}}},
        GOOD | {"params": {"headers": {"a": "b\n"}}}, GOOD | {"params": {"headers": {"content-length": "1"}}},
        GOOD | {"params": {"seconds": 1}}, GOOD | {"surprise": 1}, GOOD | {"fault": "delay"},
        GOOD | {"fault": "delay", "params": {"seconds": -1}}, GOOD | {"fault": "delay", "params": {"seconds": True}},
        GOOD | {"fault": "delay", "params": {"seconds": 1, "when": "never"}}, GOOD | {"fault": "rewrite"},
        GOOD | {"fault": "rewrite", "params": {"field": "x"}}, GOOD | {"fault": "rewrite", "params": {"field": []}},
        {"system": "bench", "fault": "rewrite", "params": {"field": "key"}},
    ],
)  # fmt: skip
async def test_malformed_orders_are_400_with_a_json_error_and_change_nothing(hands: Hands, order: Any) -> None:
    answer = await hands.control.post("/_faults", json=order)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert (await hands.control.get("/_faults")).json() == {"items": []}


@pytest.mark.parametrize("path", ["/_faults", "/_tamper"])
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff", 400), (b'{"a": NaN}', 400), (b'{"system": "\\ud800"}', 400),
        (b"[" * 200_000, 400), (b'"' + b"x" * (1 << 20) + b'"', 413),
    ],
)  # fmt: skip
async def test_hostile_bytes_are_4xx(hands: Hands, path: str, content: bytes, status: int) -> None:
    answer = await hands.control.post(path, content=content)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})


async def test_unknown_systems_paths_and_methods_are_4xx(hands: Hands) -> None:
    control = hands.control
    assert (await control.post("/_faults", json=GOOD | {"system": "nothing"})).status_code == 404
    assert (await control.get("/_effects?system=nothing")).status_code == 404
    assert (await control.get("/_effects?after=x")).status_code == 400
    assert (await control.get("/_nothing")).status_code == 404
    answer = await control.put("/_faults")
    assert (answer.status_code, answer.json()) == (405, {"error": "Method Not Allowed"})


async def test_the_clock_of_the_world_is_the_one_given(tmp_path: Path) -> None:
    async with Sandbox(tmp_path, now=lambda: START) as world:
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.post(f"{world.urls['bench']}/effect", json={"key": "k"})
        assert world.store.effects()[0]["at"] == "2026-09-21T14:13:20.250000Z"
