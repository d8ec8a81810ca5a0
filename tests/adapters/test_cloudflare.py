"""Cloudflare's purge: batches that survive the death of their worker, refusals under 200, and what the public sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from aiohttp import web
from tests.adapters.cloudflare_world import ZONE, CloudflareWorld
from tests.adapters.worlds import NOWHERE, open_world
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.systems.cloudflare import edge, purge
from trueup_adapters.systems.cloudflare.purge import PURGE, CloudflareTarget, Cursor, Work
from trueup_common.contracts.adapter import Call, Connection, LeaseLost, Outcome
from trueup_common.contracts.pointer import fill
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench, Case, Sending, call_of, elements_of, operation_of
from trueup_devkit.sandbox.systems.cloudflare import ZONES, zone_token

REFUSED_UNDER_200 = {"success": False, "errors": [{"code": 10001, "message": "purging failed"}], "result": None}
PURGES = {"method": "POST", "path": "/purge_cache$"}
Hook = Callable[[], Awaitable[None]]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[CloudflareWorld]:
    async with open_world(CloudflareWorld, tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def target(world: CloudflareWorld) -> AsyncIterator[CloudflareTarget]:
    target = CloudflareTarget(world.connection)
    yield target
    await target.close()


class Steps(Sending):
    """A ledger that keeps every cursor, and lets a test act after a number of confirmed batches."""

    def __init__(self, **hooks: Hook) -> None:
        super().__init__()
        self.kept: list[int] = []
        self.hooks = hooks

    async def progress(self, cursor: dict[str, Any]) -> None:
        """Keep it, then let the test act; a hook runs once."""
        count = len(cursor["batches"])
        await super().progress(cursor)
        self.kept.append(count)
        hook = self.hooks.pop(f"after_{count}", None)
        if hook is not None:
            await hook()


class Purge:
    """One operation over its attempts."""

    def __init__(self, world: CloudflareWorld, target: CloudflareTarget, urls: list[str], **payload: Any) -> None:
        case = Case(resource=urls[0], payload={"zone_id": ZONE, "urls": urls, **payload})
        self.operation = operation_of(world.connection, PURGE, case)
        self.target = target
        self.sending = Steps()
        self.fence = 0

    def call(self, *, was_sent: bool = False) -> Call:
        """The next call."""
        self.fence += 1
        return call_of(self.operation, PURGE, self.sending, fence=self.fence, was_sent=was_sent)

    async def perform(self, **hooks: Hook) -> Outcome:
        """One attempt, from the cursor that the ledger has."""
        self.sending.hooks = hooks
        return await self.target.perform(self.call())

    async def find(self) -> Any:
        """One look."""
        return await self.target.find(self.call(was_sent=True))


async def prepared(world: CloudflareWorld, target: CloudflareTarget, count: int) -> Purge:
    """A changed post and its listings, all of them old in the cache."""
    post = await world.article()
    urls = world.urls(post, count)
    await world.outdated(post, urls)
    return Purge(world, target, urls)


async def posts_count(world: CloudflareWorld) -> int:
    """How many purge calls reached the API."""
    return len(await world.requests("POST"))


async def test_ninety_five_urls_go_in_four_batches(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E5. Thirty per call, duplicates only once, order kept, each batch in the ledger once confirmed."""
    job = await prepared(world, target, 95)
    payload = job.operation.payload
    doubled = job.operation.evolve(payload={**payload, "urls": [*payload["urls"], *payload["urls"][:40]]})
    job.operation = doubled
    outcome = await job.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert outcome.result is not None
    assert [batch["count"] for batch in outcome.result["batches"]] == [30, 30, 30, 5]
    assert [batch["number"] for batch in outcome.result["batches"]] == [1, 2, 3, 4]
    assert len({batch["id"] for batch in outcome.result["batches"]}) == 4
    assert outcome.result["urls_count"] == 95
    assert job.sending.kept == [0, 1, 2, 3, 4]
    assert [item["action"] for item in await world.effects()] == ["purge"] * 4
    unsampled = payload["urls"][50]
    assert unsampled not in outcome.result["sample"]
    assert (await world.visit(unsampled))[1] == "MISS"
    jsonschema_rs.validate(PURGE.receipt_schema, outcome.result)


async def test_a_killed_worker_is_resumed_at_the_first_unconfirmed_batch(
    world: CloudflareWorld, target: CloudflareTarget
) -> None:
    """Requirements: E5, E2. Two batches confirmed, dead in the third: the next attempt sends three and four."""
    job = await prepared(world, target, 95)

    async def hang() -> None:
        await world.fault("delay", {"seconds": 600}, **PURGES)

    attempt = asyncio.create_task(job.perform(after_2=hang))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await posts_count(world) < 3:
            await asyncio.sleep(0.01)
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)
    assert await world.effects_count() == 2
    finding = await job.find()
    assert (finding.verdict, finding.proof_of_access) == (FindVerdict.MISSING, True)
    successor = CloudflareTarget(world.connection)
    job.target = successor
    outcome = await job.perform()
    await successor.close()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert await posts_count(world) == 3 + 2
    assert await world.effects_count() == 4
    assert outcome.result is not None
    assert [batch["count"] for batch in outcome.result["batches"]] == [30, 30, 30, 5]


async def test_a_lost_lease_stops_it_after_the_batch_in_hand(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E5. Another attempt or a find has taken over: no further batch leaves."""
    job = await prepared(world, target, 95)

    async def lose() -> None:
        raise LeaseLost

    with pytest.raises(LeaseLost):
        await job.perform(after_2=lose)
    assert await posts_count(world) == 2


async def test_each_refused_batch_is_retried_from_where_it_stood(
    world: CloudflareWorld, target: CloudflareTarget
) -> None:
    """Requirements: E5, X5. One batch refused under 200, one with 503, one with 429: three retries, four effects."""
    job = await prepared(world, target, 95)

    async def refuse() -> None:
        await world.fault("status", {"status": 200, "body": REFUSED_UNDER_200}, **PURGES)

    async def overload() -> None:
        await world.fault("status", {"status": 503, "body": "<html>busy</html>"}, **PURGES)

    async def limit() -> None:
        headers = {"retry-after": "2"}
        await world.fault("status", {"status": 429, "headers": headers, "body": REFUSED_UNDER_200}, **PURGES)

    outcomes = [
        await job.perform(after_1=refuse),
        await job.perform(after_2=overload),
        await job.perform(after_3=limit),
    ]
    assert {(item.status, item.error_class) for item in outcomes} == {(ReceiptStatus.REJECTED, ErrorClass.TRANSIENT)}
    assert [item.error_code for item in outcomes] == ["refused", "unavailable", "rate_limited"]
    assert [item.retry_after_seconds for item in outcomes] == [None, None, 2]
    assert [(item.error_detail or "").split(":")[0] for item in outcomes] == [f"batch {n} of 4" for n in (2, 3, 4)]
    last = await job.perform()
    assert last.status is ReceiptStatus.CONFIRMED, last
    assert await world.effects_count() == 4
    assert await posts_count(world) == 7


async def test_a_lost_answer_in_the_middle_is_unknown_then_missing_then_resumed(
    world: CloudflareWorld, target: CloudflareTarget
) -> None:
    """Requirements: X4, E3. The batches after it were never sent: the purge is not done, and goes on from the doubt."""
    job = await prepared(world, target, 95)

    async def lose() -> None:
        await world.fault("lose_answer", **PURGES)

    outcome = await job.perform(after_1=lose)
    assert outcome.status is ReceiptStatus.UNKNOWN, outcome
    assert (await job.find()).verdict is FindVerdict.MISSING
    assert (await job.perform()).status is ReceiptStatus.CONFIRMED
    assert await world.effects_count() == 5, "the batch in doubt was purged twice, which does no harm"


async def test_a_lost_last_answer_is_settled_by_the_public_urls(
    world: CloudflareWorld, target: CloudflareTarget
) -> None:
    """Requirements: X4, E3. All earlier batches are in the ledger, the URLs of the last one are fresh: done."""
    job = await prepared(world, target, 33)

    async def lose() -> None:
        await world.fault("lose_answer", **PURGES)

    assert (await job.perform(after_1=lose)).status is ReceiptStatus.UNKNOWN
    finding = await job.find()
    assert (finding.verdict, finding.candidates) == (FindVerdict.CONFIRMED, 1), finding
    assert [batch["count"] for batch in finding.result["batches"]] == [30, 3]
    assert finding.result["batches"][1]["id"] is None
    assert await world.effects_count() == 2


async def test_one_old_url_of_the_batch_in_doubt_is_enough(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E3. Every URL of the batch is looked at, not a sample."""
    job = await prepared(world, target, 30)
    await world.fault("drop_before", **PURGES)
    assert (await job.perform()).status is ReceiptStatus.UNKNOWN
    urls = job.operation.payload["urls"]
    for url in urls[:17] + urls[18:]:
        await world.tamper(url, {"delete": True})
    assert urls[17] not in Work.of(job.operation.payload).sample()
    assert (await job.find()).verdict is FindVerdict.MISSING


async def test_nothing_was_sent_before_the_first_cursor(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E3. Without a cursor no attempt has sent anything, which the ledger knows better than the edge."""
    job = await prepared(world, target, 2)
    finding = await job.find()
    assert (finding.verdict, finding.proof_of_access) == (FindVerdict.MISSING, True)


async def test_what_is_confirmed_and_still_old_is_purged_again(
    world: CloudflareWorld, target: CloudflareTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements: X6, E4. A location that has not heard of the purge: unknown, not done, and then all of it again."""
    monkeypatch.setattr(purge, "READ_BACK_PAUSES_SECONDS", (0.0, 0.01))
    job = await prepared(world, target, 2)
    url = job.operation.payload["urls"][0]

    async def hide() -> None:
        await world.tamper(url, {"body": "<p>Old</p>"})

    outcome = await job.perform(after_1=hide)
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "verification_failed"), outcome
    assert (await job.find()).verdict is FindVerdict.MISSING
    assert (await job.perform()).status is ReceiptStatus.CONFIRMED
    assert await world.effects_count() == 2


async def test_a_slow_edge_is_waited_for(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: X6. The read-back is repeated while an old object still comes; the write is not."""
    job = await prepared(world, target, 1)

    url, healing = job.operation.payload["urls"][0], list[asyncio.Task[None]]()

    async def heal() -> None:
        """Once it was looked at, the location hears of the purge."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any("trueup-look" in item["query"] for item in await world.requests("GET")):
                await asyncio.sleep(0.01)
        await world.tamper(url, {"delete": True})

    async def hide() -> None:
        await world.tamper(url, {"body": "<p>Old</p>"})
        healing.append(asyncio.create_task(heal()))

    outcome = await job.perform(after_1=hide)
    await asyncio.gather(*healing)
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert await posts_count(world) == 1


@pytest.mark.parametrize(
    ("status", "code", "error_class", "error_code"),
    [
        (200, 10001, ErrorClass.TRANSIENT, "refused"),
        (200, 10000, ErrorClass.PERMANENT, "unauthenticated"),
        (403, 10000, ErrorClass.PERMANENT, "unauthenticated"),
        (403, 9109, ErrorClass.PERMANENT, "forbidden"),
        (400, 6003, ErrorClass.PERMANENT, "unauthenticated"),
        (400, 1012, ErrorClass.PERMANENT, "payload_invalid"),
        (422, 99999, ErrorClass.PERMANENT, "payload_invalid"),
        (404, 7003, ErrorClass.PERMANENT, "zone_unknown"),
        (400, 7003, ErrorClass.PERMANENT, "zone_unknown"),
        (400, 971, ErrorClass.TRANSIENT, "rate_limited"),
        (429, 10000, ErrorClass.TRANSIENT, "rate_limited"),
        (503, 10000, ErrorClass.TRANSIENT, "unavailable"),
        (500, 10000, ErrorClass.UNKNOWN, "target_failed"),
        (524, 10000, ErrorClass.UNKNOWN, "target_failed"),
    ],
)
async def test_refusals_follow_cloudflares_own_codes(
    world: CloudflareWorld,
    target: CloudflareTarget,
    status: int,
    code: int,
    error_class: ErrorClass,
    error_code: str,
) -> None:
    """Requirements: X5. Its code first, then the status; 429 and 5xx by their status whatever they carry."""
    job = await prepared(world, target, 1)
    body = {"success": False, "errors": [{"code": code, "message": "no"}], "messages": [], "result": None}
    await world.fault("status", {"status": status, "body": body}, **PURGES)
    outcome = await job.perform()
    assert (outcome.error_class, outcome.error_code) == (error_class, error_code)
    assert "batch 1 of 1" in (outcome.error_detail or "")
    assert await world.effects_count() == 0


@pytest.mark.parametrize("body", ["<html></html>", [], {"result": {"id": "x"}}, {"success": "true"}, {"success": None}])
async def test_a_success_that_is_no_envelope_is_unknown(
    world: CloudflareWorld, target: CloudflareTarget, body: Any
) -> None:
    """Requirements: X6. 200 alone is no success, and without the API's word it is no failure."""
    job = await prepared(world, target, 1)
    await world.fault("body", {"body": body}, **PURGES)
    outcome = await job.perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "answer_unreadable")
    assert (await job.find()).verdict is FindVerdict.CONFIRMED


@pytest.mark.parametrize(
    ("changes", "zone", "error_code"),
    [
        ({"token": "wrong"}, ZONE, "unauthenticated"),
        ({"token": zone_token("globex")}, ZONE, "forbidden"),
        ({}, ZONES["globex"], "forbidden"),
        ({}, "f" * 32, "zone_unknown"),
    ],
)
async def test_the_sandbox_refuses_strangers_and_unknown_zones(
    world: CloudflareWorld, changes: dict[str, Any], zone: str, error_code: str
) -> None:
    """Requirements: T1, X5. One tenant's token is good for its own zone only."""
    connection = replace(world.connection, settings={**world.connection.settings, **changes})
    target = CloudflareTarget(connection)
    job = Purge(world, target, [f"{world.site}/"])
    job.operation = job.operation.evolve(payload={**job.operation.payload, "zone_id": zone})
    outcome = await job.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, error_code)
    assert await world.effects_count() == 0
    await target.close()


async def test_what_is_verified_must_be_purged(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: X5. A URL to verify that is not among those to purge is refused before sending."""
    job = Purge(world, target, [f"{world.site}/"], verify=[{"url": f"{world.site}/other/", "contains": "x"}])
    outcome = await job.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "payload_invalid")
    assert await posts_count(world) == 0


async def test_calls_keep_the_rate_of_their_connection(world: CloudflareWorld) -> None:
    """Requirements: E7. Batches are paced like attempts: a purge of many URLs is not one call."""
    target = CloudflareTarget(replace(world.connection, requests_per_second=4.0))
    job = Purge(world, target, world.urls(await world.article(), 95))
    assert (await job.perform()).status is ReceiptStatus.CONFIRMED
    moments = [datetime.fromisoformat(item["at"]) for item in await world.requests("POST")]
    assert moments[-1] - moments[0] >= timedelta(seconds=0.4)  # three gaps, however late the first one arrives
    await target.close()


# What the public sees


async def established(world: CloudflareWorld, target: CloudflareTarget) -> tuple[Bench, list[ProbeElement], str]:
    """A purge that succeeded, and its element."""
    bench = await Bench.set_up(world, "cloudflare.purge", target)
    outcome = await bench.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    return bench, elements_of(PURGE, bench.operation, outcome.result), bench.operation.payload["urls"][0]


async def test_an_old_page_that_comes_back_is_drift(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E4, R8. The value is what the public sees: old content is stale, the same content is fresh."""
    _, elements, url = await established(world, target)
    page, _ = await world.visit(url)
    await world.tamper(url, {"body": page.replace("New", "Old")})
    (seen,) = await target.probe(elements)
    assert (seen.verdict, seen.value, seen.proof_of_access) == (ProbeVerdict.CONFIRMED, "stale", True)
    assert seen.reason == url
    await world.tamper(url, {"body": page, "age_seconds": 5000})
    (seen,) = await target.probe(elements)
    assert (seen.verdict, seen.value) == (ProbeVerdict.CONFIRMED, "fresh"), "old, but nothing else than the origin says"
    await world.tamper(url, {"delete": True})
    (seen,) = await target.probe(elements)
    assert seen.value == "fresh"


async def test_a_page_without_its_content_is_a_difference_of_its_own(
    world: CloudflareWorld, target: CloudflareTarget
) -> None:
    """Requirements: E4. The cache is current and the text is gone: no purge mends that, and nobody calls it fresh."""
    bench, elements, url = await established(world, target)
    number = url.rstrip("/").rsplit("-", 1)[1]
    posts = world.sandbox.store.documents("wordpress.post/acme")
    post_id = next(key for key, post in posts.items() if post["slug"] == f"post-{number}")
    await world.edit(f"acme/{post_id}", {"content": "<p>Defaced</p>"})
    await world.tamper(url, {"delete": True})
    (seen,) = await target.probe(elements)
    assert (seen.verdict, seen.value) == (ProbeVerdict.CONFIRMED, "content_missing")
    assert bench.operation.payload["verify"][0]["contains"] == "<p>New</p>"


async def test_the_repair_is_the_same_purge(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: R3. The declared repair is a valid payload of the command itself, with and without `verify`."""
    bench, _, _ = await established(world, target)
    assert PURGE.repair is not None
    payload = bench.operation.payload
    assert fill({"payload": payload}, PURGE.repair.payload) == payload
    bare = {key: value for key, value in payload.items() if key != "verify"}
    assert fill({"payload": bare}, PURGE.repair.payload) == bare


async def test_a_probe_that_takes_too_long_says_nothing(
    world: CloudflareWorld, target: CloudflareTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements: E4. A timeout is UNKNOWN, never MISSING."""
    _, elements, _ = await established(world, target)
    monkeypatch.setattr(edge, "LOOK_SECONDS", 0.05)
    await world.fault("delay", {"seconds": 600}, times=100, method="GET")
    (seen,) = await target.probe(elements)
    assert (seen.verdict, seen.reason) == (ProbeVerdict.UNKNOWN, "timeout")


async def test_an_origin_without_an_edge_proves_nothing(world: CloudflareWorld, target: CloudflareTarget) -> None:
    """Requirements: E4. Asked directly, the site shows current pages: that is not what visitors get."""
    _, elements, _ = await established(world, target)
    settings = {key: value for key, value in world.connection.settings.items() if key != "edge_url"}
    direct = CloudflareTarget(replace(world.connection, settings=settings))
    (seen,) = await direct.probe(elements)
    assert (seen.verdict, seen.reason) == (ProbeVerdict.UNKNOWN, "not_from_edge")
    await direct.close()


async def test_public_urls_obey_the_rule_for_private_networks(world: CloudflareWorld) -> None:
    """Requirements: E4. A URL in a payload leads nobody into the private network, as an address or as a name."""
    settings = {"base_url": "https://api.cloudflare.com/client/v4", "token": "t"}
    target = CloudflareTarget(Connection("acme", "cloudflare", settings))
    before = len(await world.requests("GET"))
    port = world.site.rsplit(":", 1)[1]
    for url in (f"{world.site}/", f"http://localhost:{port}/", f"http://2130706433:{port}/", f"http://[::1]:{port}/"):
        element = ProbeElement(element=edge.ELEMENT, kind=edge.ELEMENT, params={"sample": [url]})
        (seen,) = await target.probe([element])
        assert (seen.verdict, seen.reason) == (ProbeVerdict.UNKNOWN, "address_refused")
    assert len(await world.requests("GET")) == before
    await target.close()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token": ""},
        {"token": "a\r\nb: c"},
        {"base_url": "ftp://x"},
        {"edge_url": "nonsense"},
        {"edge_url": "http://127.0.0.1:1"},
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any]) -> None:
    """Requirements: E4. At opening, and without the token in the message."""
    usable = {"base_url": "https://api.cloudflare.com/client/v4", "token": "secret"} if settings else {}
    with pytest.raises(ValueError, match="acme/cloudflare") as caught:
        CloudflareTarget(Connection("acme", "cloudflare", {**usable, **settings}))
    assert "secret" not in str(caught.value)


# The edge's answers, one by one

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


class FakeEdge:
    """An edge that answers what the test says: first the object, then what the origin has under a query of its own."""

    def __init__(self, cached: dict[str, Any], current: dict[str, Any] | None = None) -> None:
        self.cached, self.current = cached, current
        self.heard: list[web.Request] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Answer."""
        self.heard.append(request)
        is_fresh = "trueup-look" in request.query_string
        said = self.current if is_fresh else self.cached
        if said is None:
            return web.Response(status=502)
        headers = {"date": format_datetime(NOW, usegmt=True), **said.get("headers", {})}
        return web.Response(status=said.get("status", 200), headers=headers, text=said.get("body", "page"))


@asynccontextmanager
async def standing(fake: FakeEdge) -> AsyncIterator[Connection]:
    """The edge on a port of its own."""
    runner = web.ServerRunner(web.Server(fake.handle))  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    settings = {"base_url": NOWHERE, "token": "secret", "edge_url": f"http://{host}:{port}"}
    yield Connection("acme", "cloudflare", settings, allow_private_network=True)
    await runner.cleanup()


def from_cache(age: int, body: str = "page", status: str = "HIT") -> dict[str, Any]:
    """An object out of the cache."""
    return {"headers": {"cf-cache-status": status, "age": str(age)}, "body": body}


def from_origin(body: str = "page", status: str = "MISS") -> dict[str, Any]:
    """A page that the edge fetched for this visit."""
    return {"headers": {"cf-cache-status": status}, "body": body}


SINCE = "2030-01-01T11:59:30+00:00"


@pytest.mark.parametrize(
    ("cached", "current", "expected"),
    [
        (from_origin(), None, "fresh"),
        (from_origin(status="EXPIRED"), None, "fresh"),
        (from_origin(status="DYNAMIC"), None, "fresh"),
        (from_origin(status="REVALIDATED"), None, "fresh"),
        ({"status": 301, "headers": {"cf-ray": "1-FRA", "location": "/x"}}, None, "fresh"),
        ({"status": 404, "headers": {"cf-cache-status": "MISS"}}, None, "fresh"),
        (from_cache(28), from_origin("another"), "fresh"),  # two seconds after: another body is a page that varies
        (from_cache(29), from_origin("another"), "stale"),  # one second after could be before
        (from_cache(29), from_origin(), "fresh"),
        (from_cache(9000), from_origin(), "fresh"),
        (from_cache(9000), from_origin("another"), "stale"),
        (from_cache(9000, status="STALE"), from_origin("another"), "stale"),
        (from_cache(9000, status="UPDATING"), from_origin("another"), "stale"),
        (from_cache(9000), from_cache(8999), "stale"),  # a zone that ignores queries
        (from_cache(9000), None, "stale"),  # an origin that is down
        (from_cache(30), None, "freshness_undecided"),
        ({"headers": {"cf-cache-status": "HIT"}}, None, "freshness_undecided"),  # no age
        ({"headers": {"cf-cache-status": "HIT"}}, from_origin(), "fresh"),
        ({}, None, "not_from_edge"),
        ({"headers": {"cf-cache-status": "SOMETHING"}}, None, "not_from_edge"),
        ({"headers": {"age": "9000"}}, None, "not_from_edge"),
        ({"status": 403, "headers": {"cf-mitigated": "challenge", "cf-ray": "1-FRA"}}, None, "forbidden"),
        ({"status": 503, "headers": {"cf-cache-status": "DYNAMIC"}}, None, "unavailable"),
        ({"status": 429, "headers": {"cf-ray": "1-FRA"}}, None, "rate_limited"),
        ({"status": 522, "headers": {"cf-ray": "1-FRA"}}, None, "target_failed"),
    ],
)
async def test_what_an_answer_says_of_the_cache(
    cached: dict[str, Any], current: dict[str, Any] | None, expected: str
) -> None:
    """Requirements: E4. By the edge's own clock and by content; where neither can tell, it is a doubt with a reason."""
    fake = FakeEdge(cached, current)
    async with standing(fake) as connection:
        target = CloudflareTarget(connection)
        params = {"sample": ["https://blog.example/a/?b=c%20d"], "since": SINCE}
        (seen,) = await target.probe([ProbeElement(element=edge.ELEMENT, kind=edge.ELEMENT, params=params)])
        await target.close()
    if expected in ("fresh", "stale"):
        assert (seen.verdict, seen.value) == (ProbeVerdict.CONFIRMED, expected)
    else:
        assert (seen.verdict, seen.value, seen.reason) == (ProbeVerdict.UNKNOWN, None, expected)
    first = fake.heard[0]
    assert (first.headers["host"], first.path_qs) == ("blog.example", "/a/?b=c%20d")
    assert all("authorization" not in request.headers for request in fake.heard), "the token is not for the public"


async def test_the_worst_url_of_the_sample_decides() -> None:
    """Requirements: E4. Stale is certain beside a doubt, and a doubt is none of fresh."""
    looks = {name: edge.Look(f"https://x/{name}", edge.Freshness(name), None) for name in ("fresh", "stale", "doubt")}
    assert edge.observation([looks["fresh"], looks["doubt"], looks["stale"]]).value == "stale"
    assert edge.observation([looks["fresh"], looks["doubt"]]).verdict is ProbeVerdict.UNKNOWN
    assert edge.observation([looks["fresh"]]).value == "fresh"
    assert edge.observation([]).verdict is ProbeVerdict.UNKNOWN


async def test_the_moment_before_the_first_byte_is_the_edges_own() -> None:
    """Requirements: E4. Its clock, not ours: what it stored before is old by its own count."""
    fake = FakeEdge(from_origin())
    async with standing(fake) as connection:
        target = CloudflareTarget(connection)
        sending = Sending()
        case = Case(resource="x", payload={"zone_id": ZONE, "urls": ["https://blog.example/"]})
        outcome = await target.perform(call_of(operation_of(connection, PURGE, case), PURGE, sending))
        await target.close()
    assert outcome.error_class is ErrorClass.TRANSIENT, "nothing listens where the API should be"
    assert sending.cursor == {"since": "2030-01-01T12:00:00+00:00", "batches": []}


@pytest.mark.parametrize(
    ("url", "is_taken"),
    [
        ("https://blog.example", True),
        ("https://blog.example/a/b-c_d~e/?x=1&y=%C3%BC", True),
        ("http://127.0.0.1:8091/acme/post/", True),
        ("http://[::1]:8091/acme/", True),
        ("https://blog.example?feed=rss2", True),
        ("https://user:secret@blog.example/", False),
        ("https://blog.example/#part", False),
        ("https://blog.example/a b", False),
        ("https://blog.example/a\r\nhost: other", False),
        ("https://blog.example/ü", False),
        ("ftp://blog.example/", False),
        ("/relative/", False),
    ],
)
def test_the_schema_takes_what_goes_over_the_wire_unchanged(url: str, is_taken: bool) -> None:
    """Requirements: X8. No user, no fragment, nothing that would have to be encoded first."""
    payload = {"zone_id": ZONE, "urls": [url]}
    assert jsonschema_rs.is_valid(PURGE.payload_schema, payload) is is_taken


def test_samples_name_the_first_url_and_what_is_verified() -> None:
    """Requirements: E4. A bounded sample: the first one, the verified ones, the last one and some between."""
    urls = [f"https://blog.example/{number}" for number in range(95)]
    verify = [{"url": urls[17], "contains": "x"}]
    sample = Work.of({"zone_id": ZONE, "urls": urls, "verify": verify}).sample()
    assert sample[:3] == [urls[0], urls[17], urls[94]]
    assert len(sample) == purge.SAMPLE_URLS
    assert Work.of({"zone_id": ZONE, "urls": urls[:1]}).sample() == urls[:1]


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://blog.example/a/b/", "blog.example/a/b"),
        ("http://127.0.0.1:8091/acme/", "127.0.0.1:8091/acme"),
        ("https://blog.example?feed=rss2", "blog.example?feed=rss2"),
        ("https://blog.example//a/../b", "blog.example/a/b"),
        ("https://blog.example/a*b", None),
        ("https://blog.example/" + "a" * 1900, None),
    ],
)
def test_the_resource_is_one_that_a_capability_can_cover(url: str, named: str | None) -> None:
    """Requirements: R1. No empty part, no wildcard, bounded: a repair can be asked for under the element's own name."""
    resource = Work.of({"zone_id": ZONE, "urls": [url]}).resource
    assert len(resource) <= purge.RESOURCE_CHARACTERS_MAX
    assert "*" not in resource
    assert resource.startswith(f"zone/{ZONE}/")
    if named is not None:
        assert resource == f"zone/{ZONE}/{named}"
    assert all(part not in ("", ".", "..") for part in resource.split("/"))


async def test_many_hosts_do_not_exhaust_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements: E7. Connections to the hosts looked at least recently are given up."""
    monkeypatch.setattr(edge, "ORIGINS_MAX", 2)
    settings = {"base_url": NOWHERE, "token": "t"}
    target = CloudflareTarget(Connection("acme", "cloudflare", settings, allow_private_network=True))
    for port in (9, 10, 11, 12):
        params = {"sample": [f"http://127.0.0.1:{port}/"]}
        (seen,) = await target.probe([ProbeElement(element=edge.ELEMENT, kind=edge.ELEMENT, params=params)])
        assert seen.reason == "connection_refused"
    assert len(target._edge._hosts) == 2
    await target.close()


def test_a_cursor_survives_its_storage() -> None:
    """Requirements: E5. What the ledger keeps is what the next attempt begins with; a foreign one begins anew."""
    cursor = Cursor(NOW).after(30, "a").after(5, None)
    assert Cursor.of(cursor.document()) == cursor
    assert cursor.urls_count == 35
    assert Cursor.of(None) == Cursor.of({}) == Cursor()
