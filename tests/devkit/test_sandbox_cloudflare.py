"""The sandbox's Cloudflare: envelopes and limits of its API, and an edge that keeps old pages until they are purged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.devkit.sandbox_site import START, Hands, running

from trueup_devkit.sandbox import sandbox_connections
from trueup_devkit.sandbox.systems.cloudflare import ZONES, zone_token

ZONE = ZONES["acme"]
PURGE = f"/client/v4/zones/{ZONE}/purge_cache"


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


def api(hands: Hands, token: str | None = zone_token("acme")) -> httpx.AsyncClient:
    client = hands.client(hands.world.urls["cloudflare"])
    if token is not None:
        client.headers["authorization"] = f"Bearer {token}"
    return client


def site(hands: Hands) -> str:
    return f"{hands.world.urls['wordpress']}/acme"


async def visit(hands: Hands, url: str, method: str = "GET") -> httpx.Response:
    """Ask the edge for a public URL, as a visitor's browser would."""
    asked = httpx.URL(url)
    client = hands.client(hands.world.urls["cloudflare"])
    return await client.request(method, asked.raw_path.decode(), headers={"host": asked.netloc.decode()})


async def purge(hands: Hands, *files: Any) -> httpx.Response:
    return await api(hands).post(PURGE, json={"files": list(files)})


def refusal(answer: httpx.Response) -> tuple[int, int]:
    body = answer.json()
    assert (body["success"], body["result"]) == (False, None)
    return answer.status_code, body["errors"][0]["code"]


async def published(hands: Hands) -> str:
    post = await hands.draft(status="publish", slug="article", content="<p>Old</p>")
    return str(post["link"])


async def edited(hands: Hands, content: str) -> None:
    await hands.site().post("/wp-json/wp/v2/posts/1", json={"content": content})


async def test_the_edge_keeps_a_page_until_it_is_purged(hands: Hands) -> None:
    """Requirements: E1. MISS, then HIT with its age although the site has changed, and MISS again after the purge."""
    link = await published(hands)
    first = await visit(hands, link)
    assert (first.status_code, first.headers["cf-cache-status"], "age" in first.headers) == (200, "MISS", False)
    await edited(hands, "<p>New</p>")
    hands.at += 90
    old = await visit(hands, link)
    assert (old.headers["cf-cache-status"], old.headers["age"]) == ("HIT", "90")
    assert (old.text, old.headers["content-type"]) == (first.text, first.headers["content-type"])
    answer = await purge(hands, link)
    assert answer.json() | {"result": None} == {"success": True, "errors": [], "messages": [], "result": None}
    assert len(answer.json()["result"]["id"]) == 32
    new = await visit(hands, link)
    assert (new.headers["cf-cache-status"], "<p>New</p>" in new.text) == ("MISS", True)
    assert await hands.effects("cloudflare") == [(ZONE, "purge")]


async def test_an_object_expires_by_its_status(hands: Hands) -> None:
    """Requirements: E1. Pages for two hours, what is not found for three minutes."""
    link = await published(hands)
    await visit(hands, link)
    hands.at += 7199
    assert (await visit(hands, link)).headers["cf-cache-status"] == "HIT"
    hands.at += 1
    assert (await visit(hands, link)).headers["cf-cache-status"] == "EXPIRED"
    gone = f"{site(hands)}/nothing-here/"
    assert [(await visit(hands, gone)).headers["cf-cache-status"] for _ in range(2)] == ["MISS", "HIT"]
    hands.at += 180
    assert (await visit(hands, gone)).headers["cf-cache-status"] == "EXPIRED"


async def test_hosts_and_queries_have_objects_of_their_own(hands: Hands) -> None:
    """Requirements: E1. A purge removes exactly the URL that it names."""
    link = await published(hands)
    urls = [link, f"{link}?a=1", link.replace("127.0.0.1", "blog.example"), f"{site(hands)}/"]
    for url in urls:
        await visit(hands, url)
    await purge(hands, link, {"url": urls[2]})
    assert [(await visit(hands, url)).headers["cf-cache-status"] for url in urls] == ["MISS", "HIT", "MISS", "HIT"]
    assert len(await hands.effects("cloudflare")) == 1


@pytest.mark.parametrize(
    "path", ["/", "/feed/", "/category/a/", "/category/a/feed/", "/tag/b/", "/author/bot/", "/page/2/", "/2026/11/",
             "/sitemap.xml", "/post-sitemap.xml", "/comments/feed/"],
)  # fmt: skip
async def test_listings_show_what_is_published_and_stay_old_in_the_cache(hands: Hands, path: str) -> None:
    """Requirements: E1. Archives, feeds and sitemaps change with each post, so each of them has to be purged."""
    url = site(hands) + path
    before = await visit(hands, url)
    link = await published(hands)
    assert (before.status_code, link in before.text) == (200, False)
    assert link not in (await visit(hands, url)).text
    assert link in (await hands.site(username=None).get(path)).text
    await purge(hands, url)
    assert link in (await visit(hands, url)).text


async def test_what_belongs_to_an_account_is_never_cached(hands: Hands) -> None:
    """Requirements: E1. The REST API and other methods pass through the edge."""
    await published(hands)
    listed = f"{site(hands)}/wp-json/wp/v2/posts"
    for _ in range(2):
        answer = await visit(hands, listed)
        assert (answer.headers["cf-cache-status"], len(answer.json())) == ("DYNAMIC", 1)
    refused = await visit(hands, listed, "POST")
    assert (refused.status_code, refused.json()["code"]) == (401, "rest_cannot_create")
    head = await visit(hands, f"{site(hands)}/", "HEAD")
    assert (head.status_code, head.content, int(head.headers["content-length"]) > 0) == (200, b"", True)


async def test_the_edge_tells_its_clock(hands: Hands) -> None:
    """Requirements: E1. The location answers for itself, whatever the host."""
    answer = await visit(hands, f"{site(hands).removesuffix('/acme')}/cdn-cgi/trace")
    assert f"ts={START:.3f}" in answer.text
    assert "date" in answer.headers


async def test_a_token_is_good_for_its_own_zone(hands: Hands) -> None:
    """Requirements: T1. Nothing is purged for strangers, for other tenants, or in their sites."""
    assert (await api(hands).get("/client/v4/user/tokens/verify")).json()["result"]["status"] == "active"
    assert (await api(hands).get(f"/client/v4/zones/{ZONE}")).json()["result"]["name"] == "acme.example"
    files = {"files": [f"{site(hands)}/"]}
    assert refusal(await api(hands, None).post(PURGE, json=files)) == (400, 9106)
    assert refusal(await api(hands, "wrong").post(PURGE, json=files)) == (403, 10000)
    assert refusal(await api(hands, zone_token("globex")).post(PURGE, json=files)) == (403, 9109)
    assert refusal(await purge(hands, f"{hands.world.urls['wordpress']}/globex/")) == (400, 1012)
    basic = hands.client(hands.world.urls["cloudflare"], ("a", "b"))
    assert refusal(await basic.post(PURGE, json=files)) == (400, 6003)
    unknown = f"/client/v4/zones/{'f' * 32}/purge_cache"
    assert refusal(await api(hands).post(unknown, json=files)) == (404, 7003)
    assert refusal(await api(hands).delete(f"/client/v4/zones/{ZONE}")) == (400, 7000)
    assert await hands.effects("cloudflare") == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"files": ["x"', 1012),
        (b"{}", 1012),
        (b'{"purge_everything": true}', 1012),
        (b'{"files": "https://a.example/"}', 1014),
        (b'{"files": []}', 1014),
        (b'{"files": ["/relative/"]}', 1012),
        (b'{"files": ["ftp://a.example/"]}', 1012),
        (b'{"files": [{"uri": "https://a.example/"}]}', 1012),
        (b'{"files": ["https://a.example/", 1]}', 1012),
        (b'{"files": [' + b",".join([b'"https://a.example/"'] * 31) + b"]}", 1015),
    ],
)
async def test_a_wrong_order_purges_nothing(hands: Hands, body: bytes, code: int) -> None:
    """Requirements: E1. Thirty URLs at most, all of them in order, or none is purged."""
    await visit(hands, f"{site(hands)}/")
    assert refusal(await api(hands).post(PURGE, content=body)) == (400, code)
    assert (await visit(hands, f"{site(hands)}/")).headers["cf-cache-status"] == "HIT"
    assert await hands.effects("cloudflare") == []


async def test_faults_reach_api_and_edge(hands: Hands) -> None:
    """Requirements: E1. A refusal under 200 without effect, a location that lags, a visitor who is challenged."""
    link = await published(hands)
    await visit(hands, link)
    await hands.fault("status", "cloudflare", method="POST", status=200, body={"success": False, "errors": []})
    assert (await purge(hands, link)).json() == {"success": False, "errors": []}
    assert await hands.effects("cloudflare") == []
    hands.at += 5
    await purge(hands, link)
    await hands.fault("stale_read", "cloudflare", method="GET", path="^/article/$", seconds=4)
    lagging = await visit(hands, link)
    assert (lagging.headers["cf-cache-status"], lagging.headers["age"]) == ("HIT", "5")
    assert (await visit(hands, link)).headers["cf-cache-status"] == "MISS"
    await hands.fault("deny_reads", "cloudflare", times=2)
    challenged = await visit(hands, link)
    assert (challenged.status_code, challenged.headers["cf-mitigated"]) == (403, "challenge")
    assert refusal(await api(hands).get(f"/client/v4/zones/{ZONE}")) == (403, 10000)


async def test_an_outsider_brings_an_old_page_back(hands: Hands) -> None:
    """Requirements: R8. Poisoned with any content and age, or evicted; what makes no sense is refused."""
    link = await published(hands)

    async def tamper(object_: str, change: dict[str, Any]) -> int:
        order = {"system": "cloudflare", "object": object_, "change": change}
        return (await hands.control.post("/_tamper", json=order)).status_code

    assert await tamper(link, {"body": "<p>Ancient</p>", "age_seconds": 600}) == 200
    seen = await visit(hands, link)
    assert (seen.text, seen.headers["age"], seen.headers["cf-cache-status"]) == ("<p>Ancient</p>", "600", "HIT")
    assert await tamper(link, {"delete": True}) == 200
    assert (await visit(hands, link)).headers["cf-cache-status"] == "MISS"
    assert await tamper("no-url", {"delete": True}) == 404
    for change in ({"body": 1}, {"body": "x", "age_seconds": 7200}, {"body": "x", "status": 500}, {"text": "x"}):
        assert await tamper(link, change) == 400
    assert await hands.effects("cloudflare") == []


async def test_the_cache_outlives_the_process(tmp_path: Path) -> None:
    """Requirements: E1. Objects and effects are in the world's file."""
    async with running(tmp_path) as hands:
        link = (await published(hands)).replace(httpx.URL(site(hands)).netloc.decode(), "blog.example")
        await visit(hands, link)
        await purge(hands, f"{site(hands)}/other/")
    async with running(tmp_path) as hands:
        assert (await visit(hands, link)).headers["cf-cache-status"] == "HIT"
        assert await hands.effects("cloudflare") == [(ZONE, "purge")]


def test_connections_lead_both_tenants_to_api_and_edge() -> None:
    """Requirements: E1. As an operator would write them."""
    items = [
        item for item in sandbox_connections("http://127.0.0.1:8090")["connections"] if item["system"] == "cloudflare"
    ]
    assert [(item["tenant"], item["token"]) for item in items] == [(name, zone_token(name)) for name in ZONES]
    assert all(item["base_url"] == f"{item['edge_url']}/client/v4" for item in items)
