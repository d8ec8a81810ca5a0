"""A zone for the adapters' tests: the sandbox's edge in front of its WordPress, with old pages in the cache."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from tests.adapters.worlds import NOWHERE, SandboxWorld, connection_of

from trueup_adapters.systems import cloudflare
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Case
from trueup_devkit.sandbox import Sandbox, sandbox_connections
from trueup_devkit.sandbox.systems.cloudflare import ZONES

ZONE: Final = ZONES["acme"]


class CloudflareWorld(SandboxWorld):
    """A zone of the first tenant."""

    system = "cloudflare"
    adapter = cloudflare.ADAPTER
    writes: Final = {"method": "POST", "path": "/purge_cache$"}

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession) -> None:
        super().__init__(sandbox, http)
        document = sandbox_connections(sandbox.urls)
        self.unreachable = connection_of(document, "cloudflare", base_url=NOWHERE, edge_url=NOWHERE)

    @property
    def site(self) -> str:
        """The public address of the site."""
        return f"{self.sandbox.urls['wordpress']}/acme"

    async def visit(self, url: str) -> tuple[str, str]:
        """What a visitor gets, and how the edge came by it."""
        parts = urlsplit(url)
        address = f"{self.sandbox.urls['cloudflare']}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        async with self.http.get(address, headers={"host": parts.netloc}, allow_redirects=False) as answer:
            return await answer.text(), answer.headers.get("cf-cache-status", "")

    async def edit(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """An editor changes the site behind the edge."""
        order = {"system": "wordpress", "object": object_, "change": change}
        async with self.http.post(f"{self.sandbox.control_url}/_tamper", json=order) as answer:
            assert answer.status == 200, await answer.text()
            document: dict[str, Any] = (await answer.json())["post"]
            return document

    async def article(self) -> dict[str, Any]:
        """A public post; its link stands under `link`."""
        number = next(self.counter)
        fields = {"title": f"Post {number}", "content": "<p>Old</p>", "slug": f"post-{number}", "status": "publish"}
        post = await self.edit("acme/new", fields)
        return {**post, "link": f"{self.site}/{post['slug']}/"}

    async def outdated(self, post: dict[str, Any], urls: list[str]) -> None:
        """Visitors come, then the post changes: now everything in the cache is old."""
        for url in dict.fromkeys(urls):
            await self.visit(url)
        await self.edit(f"acme/{post['id']}", {"content": "<p>New</p>", "title": f"{post['title']}, revised"})

    def urls(self, post: dict[str, Any], count: int) -> list[str]:
        """The post and so many listings less one."""
        return [post["link"], *(f"{self.site}/category/topic-{number}/" for number in range(1, count))]

    async def case(self, command_type: str) -> Case:
        """A changed post, the home page and the feed, all of them old in the cache; one URL is named twice."""
        post = await self.article()
        urls = [post["link"], f"{self.site}/", post["link"], f"{self.site}/feed/"]
        await self.outdated(post, urls)
        payload = {"zone_id": ZONE, "urls": urls, "verify": [{"url": post["link"], "contains": "<p>New</p>"}]}
        return Case(resource=f"zone/{ZONE}", payload=payload, extra={"post": post})

    async def remove(self, element: ProbeElement) -> bool:
        """A cache has nothing whose absence would be a difference."""
        return False

    async def disturb(self, element: ProbeElement) -> bool:
        """An old page comes back into the cache."""
        for url in element.params["sample"]:
            await self.tamper(url, {"body": "<p>Old</p>", "age_seconds": 7000})
        return True
