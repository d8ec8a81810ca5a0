"""A stand-in of the memo system with the fault knobs that the conformance suite turns. Run it: `python world.py`."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from trueup_memo import ADAPTER

from trueup_common.contracts.adapter import Connection
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Case


class MemoWorld:
    """The system, its connections and its faults."""

    adapter = ADAPTER
    unreadable = None

    def __init__(self) -> None:
        self.memos: dict[str, str] = {}
        self.denied = False
        self.fault: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.effects = 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Listen on loopback; answers the address."""
        app = web.Application()
        app.router.add_put("/memo/{key}", self._put)
        app.router.add_get("/memo/{key}", self._get)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.connection = _connection(url)
        self.unreachable = _connection("http://127.0.0.1:9")
        return url

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _store(self, request: web.Request) -> web.Response:
        key, text = request.match_info["key"], (await request.json())["text"]
        if key not in self.memos:
            self.memos[key] = text
            self.effects += 1
        return web.json_response({"key": key, "text": self.memos[key]})

    async def _put(self, request: web.Request) -> web.StreamResponse:
        fault, self.fault = self.fault, None
        return await (fault or self._store)(request)

    async def _get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if self.denied:
            return web.json_response({"error": "forbidden"}, status=403)
        if key not in self.memos:
            return web.json_response({"error": "no such memo"}, status=404)
        return web.json_response({"key": key, "text": self.memos[key]})

    # -- what the suite asks for ------------------------------------------------------------------------------------

    async def case(self, command_type: str) -> Case:
        return Case("memo", {"text": "hello"})

    async def effects_count(self) -> int:
        return self.effects

    async def lose_answer(self) -> None:
        async def lost(request: web.Request) -> web.StreamResponse:
            await self._store(request)
            return _cut(request)

        self.fault = lost

    async def drop_request(self) -> None:
        async def dropped(request: web.Request) -> web.StreamResponse:
            await request.read()
            return _cut(request)

        self.fault = dropped

    async def delay(self, seconds: float) -> None:
        async def late(request: web.Request) -> web.StreamResponse:
            await request.read()
            return await asyncio.shield(asyncio.ensure_future(self._late(request, seconds)))

        self.fault = late

    async def _late(self, request: web.Request, seconds: float) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await self._store(request)

    async def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
        async def answered(request: web.Request) -> web.StreamResponse:
            if isinstance(body, str):
                return web.Response(status=status, headers=headers, text=body)
            return web.json_response(body, status=status, headers=headers)

        self.fault = answered

    async def answer_unreadably(self) -> None:
        async def unreadable(request: web.Request) -> web.StreamResponse:
            await self._store(request)
            return web.Response(text="<html>it is done</html>", content_type="text/html")

        self.fault = unreadable

    async def deny_reads(self) -> None:
        self.denied = True

    async def heal(self) -> None:
        self.denied, self.fault = False, None

    async def remove(self, element: ProbeElement) -> bool:
        return self.memos.pop(str(element.params["key"]), None) is not None


def _connection(url: str) -> Connection:
    return Connection("acme", "memo", {"base_url": url}, allow_private_network=True)


def _cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response(status=500)


async def _serve() -> None:
    sys.stdout.write(f"{await MemoWorld().start(8098)}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
