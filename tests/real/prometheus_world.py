"""A real Prometheus that asks the adapter's own page; the sandbox' faults stand before its API."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.adapters.monitoring_world import MonitoringWorld
from tests.real.passing import headers_of, passed_on, raw_path
from tests.real.prometheus_server import PrometheusServer
from tests.servers import Database as ServerDatabase
from trueup_adapters.discovery import discovery_routes
from trueup_adapters.execution import Line
from trueup_adapters.systems.monitoring import CHECK_ID
from trueup_common.runtime.db import Database
from trueup_devkit.sandbox import Sandbox
from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.server import Listener, bind
from trueup_devkit.sandbox.store import Store
from trueup_devkit.sandbox.system import Refusal
from trueup_devkit.sandbox.systems import SYSTEMS

PATIENCE_SECONDS = 30.0


class RealPrometheus:
    """The sandbox' place for monitoring, taken by the real one. `hidden` is what an outsider takes out of the page."""

    rewritable: ClassVar[frozenset[str]] = frozenset()
    impossible: ClassVar[frozenset[str]] = frozenset({"stale_read"})

    def __init__(self, server: PrometheusServer, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http
        self.hidden: set[str] = set()
        self.page: set[str] = set()
        self.asked_count = 0
        self.listed: set[str] = set()
        self.happened: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer: Response
        if interference(scope).deny_reads:
            answer = Response("Unauthorized\n", 401, {"www-authenticate": "Basic"})
        else:
            address = self._server.url + raw_path(request).removeprefix("/acme")
            answer = await passed_on(self._http, request, address, headers_of(request))
        await answer(scope, receive, send)

    async def targets(self) -> set[str]:
        """What it lists."""
        data = await asyncio.to_thread(self._server.ask, "/api/v1/targets?state=active")
        return {target["discoveredLabels"][CHECK_ID] for target in data["activeTargets"]}

    async def refresh(self) -> None:
        """Wait until it has taken up what the page last said, and note what that was."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            asked_count = self.asked_count  # it asks every second, and puts what is new to use within five more
            while self.asked_count == asked_count:
                assert time.monotonic() < end, "Prometheus does not ask"
                await asyncio.sleep(0.05)
            listed = await self.targets()
            if listed == self.page:
                break
            assert time.monotonic() < end, f"Prometheus lists {listed}, the page {self.page}"
        self.happened += [(check, "create") for check in sorted(listed - self.listed)]
        self.happened += [(check, "remove") for check in sorted(self.listed - listed)]
        self.listed = listed

    async def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """An outsider takes a check out of Prometheus."""
        if change != {"delete": True}:
            raise Refusal(400, "a real Prometheus is not told otherwise")
        self.hidden.add(object_.partition("/")[2])
        await self.refresh()
        return {"object": object_}

    def behind(self, app: ASGIApp) -> ASGIApp:
        """The adapter's page as it reaches Prometheus."""

        async def page(scope: Scope, receive: Receive, send: Send) -> None:
            kept: list[Message] = []

            async def keep(message: Message) -> None:
                kept.append(message)

            await app(scope, receive, keep)
            body = b"".join(message.get("body", b"") for message in kept)
            if kept[0]["status"] == 200:
                groups = json.loads(body)
                shown = [group for group in groups if group["labels"][CHECK_ID] not in self.hidden]
                self.page = {group["labels"][CHECK_ID] for group in shown}
                if shown != groups:
                    answer = Response(json.dumps(shown), media_type="application/json")
                    kept = [{**kept[0], "headers": answer.raw_headers}, {**kept[1], "body": answer.body}]
            for message in kept:
                await send(message)
            self.asked_count += 1

        return page


class RealMonitoringWorld(MonitoringWorld):
    """The adapter's world over the real Prometheus."""

    real: RealPrometheus

    @property
    def prometheus(self) -> Any:
        return self.real

    async def effects(self) -> list[dict[str, Any]]:
        """What Prometheus took up and dropped."""
        return [{"object": f"acme/{check}", "action": action} for check, action in self.real.happened]


@asynccontextmanager
async def open_real_monitoring(
    server: PrometheusServer, state_dir: Path, on: ServerDatabase
) -> AsyncIterator[RealMonitoringWorld]:
    """A world on a database that has the adapters' tables; Prometheus has forgotten the checks of earlier tests."""
    database = await Database.connect(on.admin_url, schema="adapters", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE document")
    lines: dict[tuple[str, str], Line] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), auto_decompress=False) as http:
        real = RealPrometheus(server, http)
        app = real.behind(Starlette(routes=list(discovery_routes(lines))))
        page = Listener(app, bind("127.0.0.1", server.page_port))
        await page.start()

        def made(_store: Store, _url: str) -> RealPrometheus:
            return real

        try:
            with mock.patch.dict(SYSTEMS, {"monitoring": made}):
                async with Sandbox(state_dir, 0) as sandbox, aiohttp.ClientSession() as asking:
                    world = RealMonitoringWorld(sandbox, asking, database)
                    world.real = real
                    lines.update(world.lines)
                    world.lines = lines
                    world.page_url = f"http://127.0.0.1:{server.page_port}/discovery/monitoring/acme"
                    await real.refresh()
                    real.happened.clear()
                    yield world
                    for line in list(lines.values()):
                        await line.target.close()
        finally:
            await page.stop()
            await database.close()
