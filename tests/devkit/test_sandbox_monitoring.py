"""The sandbox Prometheus: it takes over what it is told, keeps it through failures, and counts each check once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.devkit.sandbox_site import Hands, until

from trueup_devkit.sandbox import Sandbox
from trueup_devkit.sandbox.server import Listener, bind
from trueup_devkit.sandbox.systems.monitoring import Monitoring, discovery_token


def group(check_id: str, url: str = "https://blog.example/a/", **labels: str) -> dict[str, Any]:
    """One check as the plane tells it."""
    own = {"trueup_check_id": check_id, "trueup_check": f"name-of-{check_id}", "__param_target": url}
    return {"targets": [url], "labels": own | labels}


class Plane:
    """What the world asks: pages by tenant, or a failure for all."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Any]] = {"acme": [], "globex": []}
        self.failure: Response | None = None
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Response:
        self.asked.append(request)
        tenant = request.path_params["tenant"]
        if request.headers.get("authorization") != f"Bearer {discovery_token(tenant)}":
            return Response("no", 401)
        return self.failure or Response(orjson.dumps(self.groups[tenant]), media_type="application/json")


class World(Hands):
    """A sandbox that follows the plane; `dead` addresses come first and never answer."""

    def __init__(self, state_dir: Path, plane: Plane, addresses: tuple[str, ...]) -> None:
        super().__init__(state_dir)
        self.plane = plane
        self.world = Sandbox(state_dir, now=lambda: self.at, discovery=addresses)

    @property
    def system(self) -> Monitoring:
        system = self.world.systems["monitoring"]
        assert isinstance(system, Monitoring)
        return system

    async def targets(self, tenant: str = "acme", query: str = "state=active") -> list[dict[str, Any]]:
        answer = await self.client(self.world.urls["monitoring"]).get(f"/{tenant}/api/v1/targets?{query}")
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["status"] == "success"
        found: list[dict[str, Any]] = document["data"]["activeTargets"]
        return found

    async def tamper(self, object_: str, change: dict[str, Any]) -> int:
        order = {"system": "monitoring", "object": object_, "change": change}
        return (await self.control.post("/_tamper", json=order)).status_code


@asynccontextmanager
async def following(state_dir: Path, plane: Plane) -> AsyncIterator[World]:
    page = Listener(Starlette(routes=[Route("/discovery/{tenant}", plane.answer)]), bind("127.0.0.1", 0))
    await page.start()
    addresses = ("http://127.0.0.1:9/discovery/{tenant}", f"http://127.0.0.1:{page.port}/discovery/{{tenant}}")
    world = World(state_dir, plane, addresses)
    try:
        async with world.world:
            yield world
            await world.close()
    finally:
        await page.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with following(tmp_path, Plane()) as world:
        yield world


async def test_a_check_is_one_effect_when_it_comes_and_one_when_it_goes(world: World) -> None:
    world.plane.groups["acme"] = [group("chk_1"), group("chk_2"), {"targets": ["node:9100"], "labels": {}}]
    for _ in range(3):
        await world.system.refresh()
    assert await world.effects("monitoring") == [("acme/chk_1", "create"), ("acme/chk_2", "create")]
    assert await world.targets("globex") == []
    world.plane.groups["acme"] = [group("chk_2")]
    await world.system.refresh()
    assert (await world.effects("monitoring"))[2:] == [("acme/chk_1", "remove")]
    assert [item["labels"]["trueup_check_id"] for item in await world.targets()] == ["chk_2"]


@pytest.mark.parametrize(
    "failure",
    [
        Response("[]", 503, media_type="application/json"),
        Response("[]", 200, media_type="text/html"),
        Response("[", 200, media_type="application/json"),
        Response("{}", 200, media_type="application/json"),
    ],
    ids=["503", "HTML", "cut off", "no list"],
)
async def test_an_answer_that_fails_changes_nothing(world: World, failure: Response) -> None:
    """As Prometheus does it: only status 200 with JSON counts, and the targets known so far stay."""
    world.plane.groups["acme"] = [group("chk_1")]
    await world.system.refresh()
    world.plane.failure = failure
    await world.system.refresh()
    assert len(await world.targets()) == 1
    assert await world.effects("monitoring") == [("acme/chk_1", "create")]


async def test_targets_have_the_documented_form(world: World) -> None:
    """Labels as discovered stay as they came; those for the outside lose what begins with two underscores."""
    world.plane.groups["acme"] = [group("chk_1", instance="https://blog.example/a/", __scrape_interval__="90s")]
    await world.system.refresh()
    (target,) = await world.targets()
    assert set(target) == {
        "discoveredLabels", "labels", "scrapePool", "scrapeUrl", "globalUrl", "lastError", "lastScrape",
        "lastScrapeDuration", "health", "scrapeInterval", "scrapeTimeout",
    }  # fmt: skip
    assert target["labels"] == {
        "instance": "https://blog.example/a/", "job": "trueup", "trueup_check": "name-of-chk_1",
        "trueup_check_id": "chk_1",
    }  # fmt: skip
    discovered = target["discoveredLabels"]
    assert discovered["__param_target"] == discovered["__address__"] == "https://blog.example/a/"
    assert target["scrapeUrl"].endswith("/probe?target=https%3A%2F%2Fblog.example%2Fa%2F")
    assert (target["scrapeInterval"], target["health"]) == ("90s", "unknown")
    assert await world.targets(query="state=dropped") == await world.targets(query="scrapePool=other") == []
    client = world.client(world.world.urls["monitoring"])
    assert (await client.get("/acme/-/ready")).status_code == (await client.get("/acme/-/healthy")).status_code == 200
    assert (await client.get("/nobody/api/v1/targets")).status_code == (await client.get("/acme/x")).status_code == 404
    assert (await client.post("/acme/api/v1/targets")).status_code == 405


async def test_it_asks_by_itself_and_looks_at_loopback_only(world: World) -> None:
    """Nobody nudges it; a page of this world is up, one that does not hold what it should is down."""
    post = await world.draft(status="publish", slug="a", content="<p>Green text</p>")
    expect = {"__meta_trueup_expect_contains": "Green text"}
    world.plane.groups["acme"] = [
        group("chk_1", post["link"], **expect),
        group("chk_2", post["link"], __meta_trueup_expect_contains="Red text"),
        group("chk_3", post["link"].replace("/a/", "/b/"), __meta_trueup_expect_status="200"),
        group("chk_4"),
    ]

    async def looked() -> bool:
        seen = {item["labels"]["trueup_check_id"]: item["health"] for item in await world.targets()}
        return seen == {"chk_1": "up", "chk_2": "down", "chk_3": "down", "chk_4": "unknown"}

    await until(looked)
    assert world.plane.asked[0].headers["x-prometheus-refresh-interval-seconds"]


async def test_an_outsider_silences_a_check_until_told_otherwise(world: World) -> None:
    world.plane.groups["acme"] = [group("chk_1")]
    await world.system.refresh()
    assert await world.tamper("acme/name-of-chk_1", {"delete": True}) == 200
    await world.system.refresh()
    assert await world.targets() == []
    assert await world.tamper("acme/chk_1", {"delete": False, "health": "down", "url": "https://x.example/"}) == 200
    (target,) = await world.targets()
    assert (target["health"], target["discoveredLabels"]["__param_target"]) == ("down", "https://x.example/")
    assert await world.effects("monitoring") == [("acme/chk_1", "create")]
    for object_, change, status in (
        ("acme/chk_9", {"delete": True}, 404),
        ("nobody/chk_1", {"delete": True}, 404),
        ("acme/chk_1", {"delete": "yes"}, 400),
        ("acme/chk_1", {"colour": "red"}, 400),
        ("acme/chk_1", {"health": "well"}, 400),
        ("acme/server", {"delete": True}, 400),
    ):
        assert await world.tamper(object_, change) == status


async def test_a_restarted_prometheus_knows_nothing_until_it_is_told(world: World) -> None:
    """As the real one: no list survives it, and it says since when it runs."""
    client = world.client(world.world.urls["monitoring"])
    world.plane.groups["acme"] = [group("chk_1")]
    await world.system.refresh()
    world.plane.failure = Response("", 503)
    before = (await client.get("/acme/api/v1/status/runtimeinfo")).json()["data"]["startTime"]
    assert await world.tamper("acme/server", {"restart": True}) == 200
    await world.system.refresh()
    assert await world.targets() == []
    assert (await client.get("/acme/api/v1/status/runtimeinfo")).json()["data"]["startTime"] > before
    world.plane.failure = None
    await world.system.refresh()
    assert len(await world.targets()) == 1
    assert await world.effects("monitoring") == [("acme/chk_1", "create")]


async def test_faults_meet_prometheus_as_any_other_system(world: World) -> None:
    """Refused and old reads, and any status instead of an answer."""
    client = world.client(world.world.urls["monitoring"])
    world.plane.groups["acme"] = [group("chk_1")]
    await world.system.refresh()
    await world.fault("deny_reads", "monitoring", method="GET", path="^/api/v1/targets")
    assert (await client.get("/acme/api/v1/targets")).status_code == 401
    await world.fault("status", "monitoring", status=503)
    assert (await client.get("/acme/api/v1/targets")).status_code == 503
    world.at += 60
    await world.fault("stale_read", "monitoring", seconds=90)
    assert await world.targets() == []
    assert len(await world.targets()) == 1


async def test_a_restart_keeps_what_it_was_told(tmp_path: Path) -> None:
    """Neither created again nor forgotten, also while the plane is away."""
    plane = Plane()
    plane.groups["acme"] = [group("chk_1")]
    async with following(tmp_path, plane) as world:
        await world.system.refresh()
    plane.failure = Response("", 503)
    async with following(tmp_path, plane) as world:
        await world.system.refresh()
        assert len(await world.targets()) == 1
        plane.failure = None
        await world.system.refresh()
        assert await world.effects("monitoring") == [("acme/chk_1", "create")]
