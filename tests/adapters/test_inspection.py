"""What an inspection of a post sees: the stored content, its structured data, and whether what it leads to is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from aiohttp import web
from tests.adapters.worlds import WordPressWorld, open_world
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.systems import visitor
from trueup_adapters.systems.visitor import Visit, Visitor, judged
from trueup_adapters.systems.wordpress.article import Article
from trueup_adapters.systems.wordpress.site import exact_sha256, marked, marker
from trueup_adapters.systems.wordpress.structured_data import judge
from trueup_common.contracts.states import ErrorClass, ReceiptStatus
from trueup_common.testing.adapter_conformance import Bench
from trueup_devkit.sample import load_article
from trueup_devkit.sandbox.systems.web import web_url

INSPECT = "wordpress.inspect_post"
JSON_LD: dict[str, Any] = {
    "@context": "https://schema.org",
    "@type": "Article",
    "headline": "Success Is Not Proof",
    "author": {"@type": "Person", "name": "An Author"},
    "datePublished": "2026-01-02T03:04:05Z",
    "image": "https://images.example/a.png",
}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[WordPressWorld]:
    async with open_world(WordPressWorld, tmp_path) as world:
        yield world


async def inspected(world: WordPressWorld, post: dict[str, Any], **payload: Any) -> dict[str, Any]:
    """The receipt of an inspection, which keeps its own schema."""
    target = world.adapter.open(world.connection)
    made = await Bench.set_up(world, INSPECT, target)
    made.operation = made.operation.evolve(payload={"post_id": post["id"], **payload})
    outcome = await made.perform()
    await target.close()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert outcome.result is not None
    schema = jsonschema_rs.validator_for(made.declaration.receipt_schema)
    assert [error.message for error in schema.iter_errors(outcome.result)] == []
    return outcome.result


def web_of(world: WordPressWorld) -> str:
    return web_url(world.sandbox.urls["wordpress"])


async def test_the_sample_article_is_sound(world: WordPressWorld) -> None:
    """Every item of the validation is read from the site; the operation's own marker is not part of the content.

    Requirements: S7, X6
    """
    article = load_article(repository="acme/articles", zone_id="0" * 32, web=web_of(world))
    stored = marked(article["content"], [marker("cmd_1")])
    fields = {name: article[name] for name in ("title", "slug", "excerpt", "meta")}
    post = await world.post(**fields, content=stored)
    seen = await inspected(world, post, content_sha256=exact_sha256(article["content"]))
    assert (seen["title"], seen["slug"], seen["status"]) == (article["title"], article["slug"], "draft")
    assert (seen["excerpt"], seen["description"]) == (article["excerpt"], article["meta"]["description"])
    assert seen["content_sha256"] == exact_sha256(article["content"])
    assert seen["content_matches"] is True
    assert (seen["json_ld_valid"], seen["json_ld_errors"]) == (True, [])
    assert (seen["json_ld_type"], seen["headline"]) == ("Article", article["title"])
    assert seen["links_count"] >= 2
    assert {(item["status"], item["ok"]) for item in seen["links"]} == {(200, True)}
    assert [item["ok"] for item in seen["citations"]] == [True, True]
    assert (seen["featured_image_ok"], seen["featured_image_content_type"]) == (True, "image/png")
    assert [seen[f"{kind}_{word}"] for kind in ("links", "citations") for word in ("broken", "unknown")] == [[]] * 4
    assert 500 < seen["words"] < 900


async def test_what_is_broken_and_what_is_unknown_are_told_apart(world: WordPressWorld) -> None:
    """A page that is gone is broken; one that hangs, fails or refuses is unknown, and never good.

    Requirements: S7, E4
    """
    here = web_of(world)
    content = (
        f'<p><a href="{here}/page/a">a</a> <a href="{here}/gone/b">b</a> <a href="{here}/loop/c">c</a>'
        f'<a href="{here}/getonly/d">d</a> <a href="{here}/page/hangs">e</a> <a href="{here}/page/fails">f</a>'
        f'<a href="{here}/page/refuses">g</a> <a href="">h</a> <a href="javascript:x()">i</a> <a href="#j">j</a>'
        f'<a href="mailto:k@example.org">k</a> <img src="{here}/moved/l"></p>'
    )
    await world.fault("delay", {"seconds": 5}, times=9, path="/page/hangs$")
    await world.fault("status", {"status": 500}, times=9, path="/page/fails$")
    await world.fault("status", {"status": 403}, times=9, path="/page/refuses$")
    mixed = {"type": "array", "items": {"type": ["string", "integer"]}}
    await world.tamper("acme/site", {"registered_meta": {"featured_image": {"type": "string"}, "citations": mixed}})
    meta = {"featured_image": f"{here}/page/no-image", "citations": [f"{here}/page/a", 7, f"{here}/gone/x"]}
    post = await world.post(content=content, meta=meta)
    seen = await inspected(world, post, content_sha256="0" * 64, link_timeout_seconds=2)
    ways = {item["url"].removeprefix(here): (item["ok"], item["reason"]) for item in seen["links"]}
    assert ways == {
        "/page/a": (True, None),
        "/gone/b": (False, "status_404"),
        "/loop/c": (False, "too_many_redirects"),
        "/getonly/d": (True, None),
        "/page/hangs": (None, "timeout"),
        "/page/fails": (None, "server_failed"),
        "/page/refuses": (None, "refuses_visitors"),
        "": (False, "empty"),
        "javascript:x()": (False, "not_http"),
        "/moved/l": (True, None),
    }
    assert seen["links_broken"] == [
        f"{here}/gone/b (status_404)",
        f"{here}/loop/c (too_many_redirects)",
        " (empty)",
        "javascript:x() (not_http)",
    ]
    assert len(seen["links_unknown"]) == 3
    assert seen["citations_broken"] == [" (empty)", f"{here}/gone/x (status_404)"]
    assert (seen["featured_image_ok"], seen["featured_image_reason"]) == (False, "not_an_image")
    assert (seen["content_matches"], seen["json_ld_valid"]) == (False, False)


async def test_no_visit_carries_a_credential_or_changes_anything(world: WordPressWorld) -> None:
    """Strangers get no account of ours, and only reading methods. Requirements: T3."""
    asked: list[tuple[str, dict[str, str]]] = []

    async def told(request: web.Request) -> web.Response:
        asked.append((request.method, {name.lower(): value for name, value in request.headers.items()}))
        return web.Response(status=404, headers={"set-cookie": "a=b"})

    async with served(told) as address:
        await inspected(world, await world.post(content=f'<a href="{address}/x">x</a>', meta={}))
    assert {method for method, _ in asked} == {"HEAD", "GET"}
    assert not any({"authorization", "cookie", "traceparent"} & headers.keys() for _, headers in asked)


@asynccontextmanager
async def served(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A stranger's server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def visiting(*, allow_private: bool = True, link: float = 2.0, total: float = 5.0) -> Visitor:
    return Visitor(allow_private=allow_private, link_timeout_seconds=link, total_timeout_seconds=total)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://2130706433:{port}/", "http://[::1]:{port}/"]
)
async def test_a_private_network_is_closed(url: str) -> None:
    """Where the connection does not allow it, no byte reaches a private address, however it is spelt.

    Requirements: T3
    """
    asked: list[str] = []

    async def told(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with served(told) as address, visiting(allow_private=False) as visits:
        url = url.format(port=address.rpartition(":")[2])
        assert await visits.visit([url]) == {url: Visit(url, None, reason="address_refused")}
    assert asked == []


async def test_a_redirect_into_a_private_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hop is judged like the first address. Requirements: T3."""
    asked: list[str] = []

    async def told(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("http://10.0.0.7/latest/meta-data/")

    def is_private(host: str) -> bool:
        return host.startswith("10.")  # the stranger's own server stands in for a public one

    monkeypatch.setattr(visitor, "is_private_literal", is_private)
    async with served(told) as address, visiting(allow_private=False) as visits:
        url = f"{address}/public"
        assert await visits.visit([url]) == {url: Visit(url, None, 302, "address_refused")}
    assert asked == ["/public"]


@pytest.mark.parametrize(
    ("location", "ok", "reason"),
    [
        ("http://u:p@127.0.0.1/", False, "redirect_unusable"),
        ("ftp://127.0.0.1/", False, "redirect_unusable"),
        ("http://[", None, "unreadable"),
    ],
)
async def test_a_redirect_that_leads_nowhere(location: str, ok: bool | None, reason: str) -> None:
    """A redirect never makes the visitor carry credentials or speak something else than HTTP. Requirements: T3."""

    async def told(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": location})

    async with served(told) as address, visiting() as visits:
        (seen,) = (await visits.visit([f"{address}/a"])).values()
    assert (seen.ok, seen.reason) == (ok, reason)


async def test_visits_are_bounded() -> None:
    """In number, at once, in time and in bytes; what was not reached stays unknown.

    Requirements: T3
    """
    at_once, most, sent = 0, 0, 0

    async def told(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most, sent
        if request.path.startswith("/endless"):
            response = web.StreamResponse(headers={"content-type": "image/png"})
            await response.prepare(request)
            while True:
                await response.write(b"\x89PNG\r\n\x1a\n" * 8192)
                sent += 65536
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(30 if request.path.startswith("/hangs") else 0.02)
        at_once -= 1
        return web.Response()

    async with served(told) as address, visiting(link=PATIENCE_SECONDS, total=PATIENCE_SECONDS) as visits:
        many = [f"{address}/{number}" for number in range(60)]
        seen = await visits.visit(many)
        assert sum(visit.ok is True for visit in seen.values()) == visitor.VISITS_MAX
        assert [visit.reason for visit in seen.values() if visit.ok is None] == ["not_checked"] * 10
        assert most <= visitor.AT_ONCE
        endless = f"{address}/endless.png"
        assert (await visits.visit([], [endless]))[endless].ok is True
        assert sent < 16 * 1024 * 1024
    async with served(told) as address, visiting(link=1.0, total=2.0) as visits:
        began = time.monotonic()
        hanging = [f"{address}/hangs/{number}" for number in range(visitor.VISITS_MAX)]
        seen = await visits.visit(hanging)
        assert time.monotonic() - began < visitor.VISITS_MAX / visitor.AT_ONCE - 1
        assert {(visit.ok, visit.reason) for visit in seen.values()} == {(None, "timeout")}


@pytest.mark.parametrize("pause", [0.0, 0.3])
async def test_a_server_that_says_nonsense_is_unknown(pause: float) -> None:
    """Whatever stands on the wire, it ends as unknown and in time. Requirements: E4."""

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(pause)
        writer.write(b"\x00\xff not http at all\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    urls = [f"http://127.0.0.1:{port}/", "http://127.0.0.1:9/", "http://no-such-host.invalid/"]
    async with server, visiting() as visits:
        seen = await visits.visit(urls)
    assert [visit.ok for visit in seen.values()] == [None, None, None]


@pytest.mark.parametrize(
    ("status", "content_type", "begin", "ok", "reason"),
    [
        (200, "image/png", b"\x89PNG\r\n\x1a\nrest", True, None),
        (200, "image/png", b"<html>", False, "not_an_image"),
        (200, "text/html", b"<html>", False, "not_an_image"),
        (200, "image/svg+xml", b"<svg/>", True, None),
        (200, "image/jpeg", b"", False, "empty_image"),
        (404, "image/png", b"", False, "status_404"),
        (410, "", b"", False, "status_410"),
        (429, "", b"", None, "refuses_visitors"),
        (451, "", b"", None, "refuses_visitors"),
        (503, "", b"", None, "server_failed"),
    ],
)
def test_an_answer_is_judged(status: int, content_type: str, begin: bytes, ok: bool | None, reason: str | None) -> None:
    """Broken is what the address says about itself; everything else that is no success is unknown.

    Requirements: E4
    """
    seen = judged("u", status, content_type, begin, is_image=True)
    assert (seen.ok, seen.reason) == (ok, reason)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"@context": "https://example.org"}, "/@context"),
        ({"@type": "Recipe"}, "/@type"),
        ({"headline": ""}, "/headline"),
        ({"author": []}, "/author"),
        ({"author": "An Author"}, "/author"),
        ({"author": {"@type": "Person"}}, "/author"),
        ({"datePublished": "yesterday"}, "/datePublished"),
        ({"datePublished": "2026-13-01"}, "/datePublished"),
        ({"image": "a.png"}, "/image"),
        ({"image": [{"@type": "ImageObject"}]}, "/image/0"),
        ({"image": None}, "/image"),
        ({"mainEntityOfPage": {}}, "/mainEntityOfPage"),
    ],
)
def test_structured_data_with_a_fault_is_invalid(change: dict[str, Any], where: str) -> None:
    """Each property that search engines read is checked, and the finding says which one.

    Requirements: S7
    """
    assert judge({**JSON_LD, **change}).errors[0].startswith(where)


@pytest.mark.parametrize("name", ["@context", "@type", "headline", "author", "datePublished", "image"])
def test_structured_data_without_a_part_is_invalid(name: str) -> None:
    """Requirements: S7."""
    left = {key: value for key, value in JSON_LD.items() if key != name}
    assert any(f'"{name}"' in error for error in judge(left).errors)


def test_structured_data_is_read_wherever_it_may_stand() -> None:
    """As an object, as text, in a list, in a graph, or in the content; several authors and kinds of pictures."""
    import json

    picture = {"@type": "ImageObject", "url": "https://images.example/a.png"}
    person = {"@type": "Person", "name": "Another"}
    for value in (
        JSON_LD,
        json.dumps(JSON_LD),
        [{"@context": "https://schema.org", "@type": "WebSite"}, JSON_LD],
        {"@context": "https://schema.org/", "@graph": [{k: v for k, v in JSON_LD.items() if k != "@context"}]},
        {**JSON_LD, "@context": ["https://schema.org", {"x": "https://x.example"}]},
        {**JSON_LD, "@type": ["NewsArticle", "Article"], "datePublished": "2026-01-02"},
        {**JSON_LD, "author": [JSON_LD["author"], person], "image": [picture, "https://images.example/b.png"]},
    ):
        assert judge(value).errors == ()
    block = json.dumps(JSON_LD)
    article = Article(f'<script type="application/ld+json">{block}</script><p>a</p>', "https://b.example/")
    assert judge("", article.structured_data).headline == JSON_LD["headline"]
    assert judge(None).errors == ("there is none",)
    assert judge("{").errors == ("it is not JSON",)
    assert judge({**JSON_LD, "headline": "x" * 111}).warnings[0].startswith("/headline")


def test_an_article_is_read_as_browsers_read_it() -> None:
    """Attributes in any spelling, relative addresses, comments and scripts that hold none."""
    article = Article(
        "<p>One &amp; two</p><A HREF = 'b?x=1&amp;y=2'>three</A> <a name=x>four</a> <a href=/c>five</a>"
        '<!-- <a href="no">no</a> --><script>var x = "<a href=no>"; no</script><img alt="a > b" SRC="d.png"/>'
        "<img><iframe src=//other.example/e></iframe> 2 < 3 <a href='unclosed",
        "https://b.example/p/?p=1",
    )
    assert article.links == [
        "https://b.example/p/b?x=1&y=2",
        "https://b.example/c",
        "https://b.example/p/d.png",
        "",
        "https://other.example/e",
    ]
    assert article.words == 7


@pytest.mark.parametrize("piece", ["<", "<!", "<!--", "<a href='x", "<a ", "<script>", "</", '<a href="', "&", "<a =="])
def test_hostile_markup_costs_no_more_than_its_length(piece: str) -> None:
    """The scanner never looks back. Requirements: T3."""
    began = time.process_time()
    Article(piece * (200_000 // len(piece)), "https://b.example/")
    assert time.process_time() - began < 5


async def test_a_post_that_is_gone_is_no_inspection(world: WordPressWorld) -> None:
    """Nothing to inspect: refused for good, without a visit."""
    target = world.adapter.open(world.connection)
    made = await Bench.set_up(world, INSPECT, target)
    made.operation = made.operation.evolve(payload={"post_id": 4711})
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (
        ReceiptStatus.REJECTED,
        ErrorClass.PERMANENT,
        "not_found",
    )
    assert made.sending.sends_count == 0
    await target.close()


async def test_a_private_site_alone_does_not_open_the_network(world: WordPressWorld) -> None:
    """The connection's own setting decides, for the site as for what it leads to. Requirements: T3."""
    with pytest.raises(ValueError, match="private network"):
        world.adapter.open(replace(world.connection, allow_private_network=False))
