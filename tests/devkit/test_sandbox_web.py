"""The web of the sandbox: what articles lead to, reachable without leaving the machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.devkit.sandbox_site import Hands, running

from trueup_devkit.sandbox.systems.web import PICTURE, web_url


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type"),
    [
        ("GET", "/page/a", 200, "text/html"),
        ("HEAD", "/page/a", 200, "text/html"),
        ("GET", "/image/a.png", 200, "image/png"),
        ("HEAD", "/image/a.png", 200, "image/png"),
        ("GET", "/image/a.txt", 404, "text/html"),
        ("HEAD", "/getonly/a", 405, "text/plain"),
        ("GET", "/getonly/a", 200, "text/html"),
        ("GET", "/page", 404, "text/html"),
        ("GET", "/other/a", 404, "text/html"),
        ("POST", "/page/a", 405, "text/plain"),
    ],
)
async def test_the_web_has_pages_and_pictures(
    hands: Hands, method: str, path: str, status: int, content_type: str
) -> None:
    answer = await hands.client(web_url(hands.world.urls["wordpress"])).request(method, path)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (status, content_type)
    if method == "GET" and content_type == "image/png":
        assert answer.content == PICTURE


async def test_the_web_moves_its_pages_and_takes_faults(hands: Hands) -> None:
    web = web_url(hands.world.urls["wordpress"])
    moved = await hands.client(web).get("/moved/a b")
    assert (moved.status_code, moved.headers["location"]) == (301, f"{web}/page/a%20b")
    loop = await hands.client(web).get("/loop/a")
    assert loop.headers["location"] == f"{web}/loop/a"
    await hands.fault("status", path="^/page/a$", status=410)
    assert (await hands.client(web).get("/page/a")).status_code == 410
    assert (await hands.client(web).get("/page/a")).status_code == 200
    assert await hands.effects() == []


async def test_a_page_shows_no_markup_of_its_address(hands: Hands) -> None:
    answer = await hands.client(web_url(hands.world.urls["wordpress"])).get("/page/<script>x</script>")
    assert "<script>" not in answer.text
