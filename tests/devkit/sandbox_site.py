"""What the sandbox tests share: a world in this process, on real sockets, with a clock that they set."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.patience import PATIENCE_SECONDS

from trueup_devkit.sandbox import Sandbox
from trueup_devkit.sandbox.systems.wordpress import READER, WRITER, sandbox_password

POSTS = "/wp-json/wp/v2/posts"
START = 1_790_000_000.25
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading certificates costs more than a test


class Hands:
    """A world, its clock, and clients for the parties that talk to it."""

    def __init__(self, state_dir: Path) -> None:
        self.at = START
        self.world = Sandbox(state_dir, now=lambda: self.at)
        self._clients: list[httpx.AsyncClient] = []

    def client(self, base_url: str, auth: tuple[str, str] | None = None) -> httpx.AsyncClient:
        # One connection per request: a fault that cuts it must not be hidden by a pool that sends again.
        limits = httpx.Limits(max_keepalive_connections=0)
        client = httpx.AsyncClient(
            base_url=base_url, auth=auth, limits=limits, timeout=PATIENCE_SECONDS, verify=_NO_TLS, trust_env=False
        )
        self._clients.append(client)
        return client

    def site(
        self, tenant: str = "acme", username: str | None = WRITER, password: str | None = None
    ) -> httpx.AsyncClient:
        base_url = f"{self.world.urls['wordpress']}/{tenant}"
        if username is None:
            return self.client(base_url)
        return self.client(base_url, (username, password or sandbox_password(tenant, username)))

    def reader(self) -> httpx.AsyncClient:
        return self.site(username=READER)

    @property
    def control(self) -> httpx.AsyncClient:
        return self.client(self.world.control_url)

    @property
    def bench(self) -> httpx.AsyncClient:
        return self.client(self.world.urls["bench"])

    async def fault(self, fault: str, system: str = "wordpress", times: int = 1, **rest: Any) -> None:
        match = {name: rest.pop(name) for name in ("method", "path") if name in rest}
        order = {"system": system, "match": match, "fault": fault, "params": rest, "times": times}
        answer = await self.control.post("/_faults", json=order)
        assert answer.status_code == 201, answer.text

    async def effects(self, system: str = "wordpress") -> list[tuple[str, str]]:
        items = (await self.control.get("/_effects", params={"system": system})).json()["items"]
        return [(item["object"], item["action"]) for item in items]

    async def draft(self, **fields: Any) -> dict[str, Any]:
        answer = await self.site().post(POSTS, json={"title": "A", "content": "B", "status": "draft"} | fields)
        assert answer.status_code == 201, answer.text
        post: dict[str, Any] = answer.json()
        return post

    async def close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._clients))


@asynccontextmanager
async def running(state_dir: Path) -> AsyncIterator[Hands]:
    hands = Hands(state_dir)
    async with hands.world:
        try:
            yield hands
        finally:
            await hands.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of a real process, for a bounded time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():
            await asyncio.sleep(0.02)
