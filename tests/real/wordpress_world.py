"""A real WordPress behind the sandbox' faults: what is lost, cut or delayed is ordered, the rest is the site's.

The faults are those of the sandbox, so a test orders them in the same words; an outsider's edits go into the site's own
database. Only what no request can bring about is refused: a real site does not answer with an older state on command.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import aiohttp
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tests.adapters.worlds import WordPressWorld
from tests.devkit.sandbox_site import Hands
from tests.real.passing import headers_of, passed_on, raw_path
from tests.real.wordpress_server import WordPressServer
from trueup_devkit.sandbox import Sandbox
from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.store import Store
from trueup_devkit.sandbox.systems import SYSTEMS
from trueup_devkit.sandbox.systems.web import WEB, web_answer
from trueup_devkit.sandbox.systems.wordpress_posts import REGISTERED_META, REWRITABLE


class RealSite:
    """The sandbox' place for WordPress, taken by the real one."""

    rewritable: ClassVar[frozenset[str]] = REWRITABLE
    impossible: ClassVar[frozenset[str]] = frozenset({"stale_read"})

    def __init__(self, server: WordPressServer, http: aiohttp.ClientSession, url: str) -> None:
        self._server = server
        self._http = http
        self._url = url
        self.busy_count = 0
        """Requests that the site has not answered yet, whether or not anybody waits for them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        site, _, rest = request.scope["path"].lstrip("/").partition("/")
        if site == WEB:
            await web_answer(rest, request.method, self._url)(scope, receive, send)
            return
        headers = headers_of(request)
        disturbed = interference(scope)
        if disturbed.deny_reads:
            headers.pop("authorization", None)
        if disturbed.rewrite is not None:
            order = json.dumps(disturbed.rewrite.model_dump())
            headers["x-stand-rewrite"] = base64.b64encode(order.encode()).decode()
        if disturbed.pause is not None:
            headers["x-stand-pause"] = "2"
        self.busy_count += 1
        try:
            answer = await passed_on(self._http, request, self._server.url + raw_path(request), headers)
        finally:
            self.busy_count -= 1
        await answer(scope, receive, send)

    async def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """As in the sandbox: `acme/<id>`, `acme/new` or `acme/site`."""
        name = object_.partition("/")[2]
        order: dict[str, Any] = {"do": "edit", "id": None if name == "new" else name, "change": change}
        if name == "site":
            order = {"do": "meta", "meta": change["registered_meta"]}
        elif change == {"delete": True}:
            order = {"do": "delete", "id": name}
        answer = await asyncio.to_thread(self._server.order, **order)
        return {"object": object_, **(answer if isinstance(answer, dict) else {})}


async def effects_of(server: WordPressServer) -> list[dict[str, Any]]:
    """What the site really did, in the words of the sandbox."""
    rows = await asyncio.to_thread(server.order, "effects")
    return [
        {"seq": int(row["seq"]), "kind": "wordpress.post", "object": f"acme/{row['post']}", "action": row["action"]}
        for row in rows
    ]


class RealWordPressWorld(WordPressWorld):
    """The adapter's world over the real site."""

    server: WordPressServer

    def take(self, server: WordPressServer) -> None:
        """Its own accounts: the read account may edit, because only who may edit is shown raw values."""
        self.server = server
        own = {"password": server.passwords["bot"], "read_password": server.passwords["reader"]}
        for name in ("connection", "unreachable"):
            known = getattr(self, name)
            setattr(self, name, replace(known, settings=dict(known.settings) | own))
        wrong = {"password": server.passwords["bot"], "read_password": "wrong"}
        self.unreadable = replace(self.connection, settings=dict(self.connection.settings) | wrong)

    async def effects(self) -> list[dict[str, Any]]:
        """The site's own record, once it is done with what it was asked: it stores a post before it says so."""
        site = self.sandbox.systems["wordpress"]
        assert isinstance(site, RealSite)
        async with asyncio.timeout(20):
            while site.busy_count:
                await asyncio.sleep(0.01)
        return await effects_of(self.server)

    async def posts(self) -> dict[int, dict[str, Any]]:
        """The site's own rows."""
        rows = await asyncio.to_thread(self.server.order, "posts")
        return {row["id"]: row for row in rows}


@asynccontextmanager
async def in_its_place(server: WordPressServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Sandboxes that start here have the real site, empty, in WordPress' place."""
    await asyncio.to_thread(server.reset, REGISTERED_META)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:

        def made(_store: Store, url: str) -> RealSite:
            return RealSite(server, http, url)

        with mock.patch.dict(SYSTEMS, {"wordpress": made}):
            yield http


@asynccontextmanager
async def open_real(server: WordPressServer, state_dir: Path) -> AsyncIterator[RealWordPressWorld]:
    """The site, emptied, for one test of the adapter."""
    async with in_its_place(server), Sandbox(state_dir, 0) as sandbox, aiohttp.ClientSession() as http:
        world = RealWordPressWorld(sandbox, http)
        world.take(server)
        yield world


class RealHands(Hands):
    """The sandbox' own tests, on the real site."""

    def __init__(self, state_dir: Path, server: WordPressServer) -> None:
        super().__init__(state_dir)
        self.server = server

    def site(self, tenant: str = "acme", username: str | None = "bot", password: str | None = None) -> Any:
        known = None if username is None else self.server.passwords[username]
        return super().site(tenant, username, password or known)

    async def effects(self, system: str = "wordpress") -> list[tuple[str, str]]:
        return [(item["object"], item["action"]) for item in await effects_of(self.server)]


@asynccontextmanager
async def real_hands(server: WordPressServer, state_dir: Path) -> AsyncIterator[RealHands]:
    """The site, emptied, for one test of the sandbox."""
    async with in_its_place(server):
        hands = RealHands(state_dir, server)
        async with hands.world:
            try:
                yield hands
            finally:
                await hands.close()
