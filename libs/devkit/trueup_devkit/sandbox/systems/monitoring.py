"""Monitoring as a Prometheus with HTTP service discovery: it asks for its targets every second and lists them.

What it lists is what it was told last; an answer that fails changes nothing. A target that it lists for the first time
and one that it lists no more are the effects of this world. Addresses on loopback are really looked at, none else.
"""

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.store import Change, Document, Effect, Store, iso
from trueup_devkit.sandbox.system import Refusal

SITES: Final = ("acme", "globex")
REFRESH_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 5.0
CHECK_ID: Final = "trueup_check_id"
POOL: Final = "trueup"
PROBER: Final = "127.0.0.1:9115"
_LONG_AGO: Final = "2020-01-01T00:00:00Z"
_NEVER: Final = "0001-01-01T00:00:00Z"


def discovery_token(tenant: str) -> str:
    """The bearer token with which this Prometheus asks. Made up here, known to everybody, good for nothing else."""
    return f"sandbox-discovery-{tenant}"


class Monitoring:
    """One Prometheus per tenant below `/<tenant>`. Targets live in the collection `monitoring.check/<tenant>`."""

    rewritable: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._addresses: tuple[str, ...] = ()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._looks: dict[tuple[str, str], Document] = {}
        self._forgetful: set[str] = set()
        self._turn = asyncio.Lock()

    # -- asking the plane ----------------------------------------------------------------------------------------

    def follow(self, addresses: Sequence[str]) -> None:
        """Ask these addresses (`{tenant}` stands for the tenant) from now on; the first that answers is believed."""
        self._addresses = tuple(addresses)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        self._tasks = [asyncio.create_task(_again(work)) for work in (self.refresh, self._look)]

    async def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._session is not None:
            await self._session.close()

    async def refresh(self) -> None:
        """Ask once for every tenant."""
        async with self._turn:
            for tenant in SITES:
                groups = await self._asked(tenant)
                if groups is not None:
                    self._take(tenant, groups)
                    self._forgetful.discard(tenant)

    async def _asked(self, tenant: str) -> list[Any] | None:
        """The target groups as Prometheus takes them: status 200, JSON, a list."""
        if self._session is None:
            return None
        headers = {
            "accept": "application/json",
            "authorization": f"Bearer {discovery_token(tenant)}",
            "x-prometheus-refresh-interval-seconds": str(REFRESH_SECONDS),
        }
        for address in self._addresses:
            try:
                async with self._session.get(address.replace("{tenant}", tenant), headers=headers) as answer:
                    if answer.status != 200 or answer.content_type != "application/json":
                        continue
                    groups = orjson.loads(await answer.read())
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                continue
            if isinstance(groups, list):
                return groups
        return None

    def _take(self, tenant: str, groups: list[Any]) -> None:
        wanted: dict[str, Document] = {}
        for group in groups:
            labels = group.get("labels", {}) if isinstance(group, dict) else {}
            check_id = labels.get(CHECK_ID)
            addresses = group.get("targets") if isinstance(check_id, str) else None
            if addresses:
                wanted[str(check_id)] = {"address": addresses[0], "labels": labels}
        collection = f"monitoring.check/{tenant}"
        known = dict(self._store.documents(collection))
        for check_id, target in wanted.items():
            if check_id not in known:
                self._apply(tenant, check_id, "create", target)
            elif known[check_id] != target:
                self._apply(tenant, check_id, "update", target)
        for check_id in known.keys() - wanted.keys():
            self._apply(tenant, check_id, "remove", None)

    def _apply(self, tenant: str, check_id: str, action: str, target: Document | None) -> None:
        effect = Effect("monitoring", "monitoring.check", f"{tenant}/{check_id}", action)
        self._store.apply(effect, [Change(f"monitoring.check/{tenant}", check_id, target)])
        self._looks.pop((tenant, check_id), None)

    # -- looking at what is watched ------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the addresses whose interval is over; a real prober would do so for Prometheus."""
        now = time.monotonic()
        for tenant in SITES:
            for check_id, target in list(self._store.documents(f"monitoring.check/{tenant}").items()):
                labels = target["labels"]
                seen = self._looks.get((tenant, check_id))
                if seen is not None and now < seen["again_at"]:
                    continue
                interval = labels.get("__scrape_interval__", "60s").removesuffix("s")
                again_at = now + (float(interval) if interval.isdigit() else 60.0)
                if _is_loopback(labels.get("__param_target", "")):
                    found = await self._scrape(labels)
                    self._looks[tenant, check_id] = found | {"again_at": again_at}

    async def _scrape(self, labels: Document) -> Document:
        begun, error = time.monotonic(), ""
        try:
            assert self._session is not None
            async with self._session.get(labels["__param_target"], allow_redirects=True) as answer:
                text = await answer.text(errors="replace")
                if str(answer.status) != labels.get("__meta_trueup_expect_status", "200"):
                    error = f"server returned HTTP status {answer.status}"
                elif labels.get("__meta_trueup_expect_contains", "") not in text:
                    error = "the page does not contain what it should"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            error = f"{type(failure).__name__}: {failure}"[:200]
        return {
            "health": "down" if error else "up",
            "lastError": error,
            "lastScrape": iso(self._store.now()),
            "lastScrapeDuration": time.monotonic() - begun,
        }

    # -- answering -----------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(Request(scope, receive))(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        tenant, _, rest = request.scope["path"].lstrip("/").partition("/")
        if tenant not in SITES:
            return Response("404 page not found\n", 404, media_type="text/plain")
        disturbed = interference(request.scope)
        if disturbed.deny_reads:
            return Response("Unauthorized\n", 401, {"www-authenticate": "Basic"}, media_type="text/plain")
        if request.method not in {"GET", "HEAD"}:
            return Response("Method Not Allowed\n", 405, media_type="text/plain")
        if rest == "-/healthy":
            return Response("Prometheus Server is Healthy.\n", media_type="text/plain")
        if rest == "-/ready":
            return Response("Prometheus Server is Ready.\n", media_type="text/plain")
        if rest == "api/v1/status/runtimeinfo":
            started = self._store.documents("monitoring.server").get(tenant, {}).get("started", _LONG_AGO)
            return _json({"status": "success", "data": {"startTime": started, "reloadConfigSuccess": True}})
        if rest == "api/v1/targets":
            as_of = None if disturbed.stale_seconds is None else self._store.now() - disturbed.stale_seconds
            return self._targets(tenant, request, as_of)
        return Response("404 page not found\n", 404, media_type="text/plain")

    def _targets(self, tenant: str, request: Request, as_of: float | None) -> Response:
        state = request.query_params.get("state", "any").lower()
        active: list[Document] = []
        is_known = tenant not in self._forgetful
        if is_known and state in {"any", "active"} and request.query_params.get("scrapePool", POOL) == POOL:
            edits = self._store.documents(f"monitoring.edit/{tenant}", as_of)
            for check_id, target in self._store.documents(f"monitoring.check/{tenant}", as_of).items():
                edit = edits.get(check_id, {})
                if not edit.get("delete"):
                    active.append(self._active(tenant, check_id, target, edit))
        return _json({"status": "success", "data": {"activeTargets": active, "droppedTargets": []}})

    def _active(self, tenant: str, check_id: str, target: Document, edit: Document) -> Document:
        labels = target["labels"] | ({"__param_target": edit["url"]} if "url" in edit else {})
        discovered = {
            "__address__": target["address"],
            "__meta_url": (self._addresses or ("",))[0].replace("{tenant}", tenant),
            "__metrics_path__": "/probe",
            "__scheme__": "http",
            "job": POOL,
            **labels,
        }
        kept = {name: value for name, value in labels.items() if not name.startswith("__")} | {"job": POOL}
        query = {name.removeprefix("__param_"): value for name, value in labels.items() if name.startswith("__param_")}
        url = f"http://{PROBER}/probe?{urlencode(query, quote_via=quote)}"
        seen = {"health": "unknown", "lastError": "", "lastScrape": _NEVER, "lastScrapeDuration": 0}
        seen |= self._looks.get((tenant, check_id), {})
        seen |= {"health": edit["health"]} if "health" in edit else {}
        return {
            "discoveredLabels": dict(sorted(discovered.items())),
            "labels": dict(sorted(kept.items())),
            "scrapePool": POOL,
            "scrapeUrl": url,
            "globalUrl": url,
            **{name: seen[name] for name in ("lastError", "lastScrape", "lastScrapeDuration", "health")},
            "scrapeInterval": labels.get("__scrape_interval__", "60s"),
            "scrapeTimeout": labels.get("__scrape_timeout__", "10s"),
        }

    # -- outsiders -----------------------------------------------------------------------------------------------

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Silence a check (`{"delete": true}`, until `{"delete": false}`), watch another `url`, or set its `health`.

        A check is `<tenant>/<check id>` or `<tenant>/<name>`. `<tenant>/server` is Prometheus itself: it begins anew by
        `{"restart": true}`, with no targets until it was told again.
        """
        tenant, _, name = object_.partition("/")
        if tenant not in SITES or not name:
            raise Refusal(404, f"an object is <tenant>/<check>, with a tenant of {SITES}")
        if name == "server":
            return self._restart(tenant, change)
        checks = self._store.documents(f"monitoring.check/{tenant}")
        found = [key for key, target in checks.items() if name in (key, target["labels"].get("trueup_check"))]
        if not found:
            raise Refusal(404, f"no check {object_[:100]!r}")
        kinds = {"delete": bool, "url": str, "health": str}
        if not all(key in kinds and isinstance(value, kinds[key]) for key, value in change.items()):
            raise Refusal(400, '{"delete": true or false}, {"url": …} and {"health": …} is all that a check has')
        if change.get("health", "up") not in {"up", "down", "unknown"}:
            raise Refusal(400, "health: up, down or unknown")
        collection = f"monitoring.edit/{tenant}"
        edit = self._store.documents(collection).get(found[0], {}) | change
        self._store.apply(None, [Change(collection, found[0], edit)])
        return {"object": f"{tenant}/{found[0]}", **edit}

    def _restart(self, tenant: str, change: dict[str, Any]) -> dict[str, Any]:
        if change != {"restart": True}:
            raise Refusal(400, '{"restart": true} is all that a server does')
        started = iso(self._store.now())
        self._store.apply(None, [Change("monitoring.server", tenant, {"started": started})])
        self._forgetful.add(tenant)
        return {"object": f"{tenant}/server", "started": started}


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()
        await asyncio.sleep(REFRESH_SECONDS)


def _is_loopback(url: str) -> bool:
    with contextlib.suppress(ValueError):
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
