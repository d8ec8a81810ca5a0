"""Worlds for the adapters' tests: the sandbox in this process, with its faults aimed at writes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from trueup_adapters.systems import bench, wordpress
from trueup_adapters.systems.wordpress.site import Site
from trueup_common.contracts.adapter import Adapter, Connection
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Case
from trueup_devkit.sandbox import Sandbox, sandbox_connections

NOWHERE: Final = "http://127.0.0.1:9"
MANY: Final = 1000


def connection_of(document: dict[str, Any], system: str, **changes: Any) -> Connection:
    """The first tenant's connection to a system, from a connections document."""
    entry = next(item for item in document["connections"] if item["system"] == system)
    settings = {key: value for key, value in entry.items() if key not in ("tenant", "system", "allow_private_network")}
    return Connection(entry["tenant"], system, settings | changes, allow_private_network=True, max_concurrency=8)


class Anyone:
    """What a write asks of its caller, where nobody keeps count."""

    traceparent = None

    @staticmethod
    def may_send() -> None:
        """Always."""


class SandboxWorld:
    """The sandbox seen through one adapter. `writes` matches the requests that change something."""

    system: str
    adapter: Adapter
    writes: dict[str, str]

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.http = http
        document = sandbox_connections(sandbox.urls)
        self.connection = connection_of(document, self.system)
        self.unreachable = connection_of(document, self.system, base_url=NOWHERE)
        self.unreadable: Connection | None = None
        self.counter = itertools.count(1)

    async def fault(self, name: str, params: dict[str, Any] | None = None, *, times: int = 1, **match: str) -> None:
        """Let a fault stand."""
        order = {"system": self.system, "fault": name, "params": params or {}, "match": match, "times": times}
        async with self.http.post(f"{self.sandbox.control_url}/_faults", json=order) as answer:
            assert answer.status == 201, await answer.text()

    async def effects(self) -> list[dict[str, Any]]:
        """The ground truth."""
        async with self.http.get(f"{self.sandbox.control_url}/_effects", params={"system": self.system}) as answer:
            items: list[dict[str, Any]] = (await answer.json())["items"]
            return items

    async def requests(self, method: str) -> list[dict[str, Any]]:
        """What reached the system."""
        async with self.http.get(f"{self.sandbox.control_url}/_requests", params={"system": self.system}) as answer:
            return [item for item in (await answer.json())["items"] if item["method"] == method]

    async def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """An outsider edits the world."""
        order = {"system": self.system, "object": object_, "change": change}
        async with self.http.post(f"{self.sandbox.control_url}/_tamper", json=order) as answer:
            assert answer.status == 200, await answer.text()
            document: dict[str, Any] = await answer.json()
            return document

    async def effects_count(self) -> int:
        """How many effects there were."""
        return len(await self.effects())

    async def lose_answer(self) -> None:
        """After the effect."""
        await self.fault("lose_answer", **self.writes)

    async def drop_request(self) -> None:
        """Before the effect."""
        await self.fault("drop_before", **self.writes)

    async def delay(self, seconds: float) -> None:
        """Before the effect."""
        await self.fault("delay", {"seconds": seconds}, **self.writes)

    async def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
        """Instead of the effect."""
        await self.fault("status", {"status": status, "headers": headers, "body": body}, **self.writes)

    async def answer_unreadably(self) -> None:
        """After the effect."""
        page = "<html><body>Welcome back</body></html>"
        await self.fault("body", {"headers": {"content-type": "text/html"}, "body": page}, **self.writes)

    async def deny_reads(self) -> None:
        """For good."""
        await self.fault("deny_reads", times=MANY, method="GET")

    async def heal(self) -> None:
        """No fault stands."""
        async with self.http.delete(f"{self.sandbox.control_url}/_faults") as answer:
            assert answer.status == 200


class BenchWorld(SandboxWorld):
    """The stub."""

    system = "bench"
    adapter = bench.ADAPTER
    writes: Final = {"method": "POST"}

    async def case(self, command_type: str) -> Case:
        """Nothing to prepare."""
        number = next(self.counter)
        if command_type not in bench.STEPS:
            return Case(resource="stub", payload={"n": number})
        undone = {"undoes": f"cmd_{number:032x}"} if command_type == "bench.unmake" else {}
        return Case(resource="unit", payload={"unit": f"unit-{number}", "step": 1, **undone})

    async def remove(self, element: ProbeElement) -> bool:
        """Remove the effect."""
        await self.tamper(element.params["key"], {"delete": True})
        return True


class WordPressWorld(SandboxWorld):
    """A site."""

    system = "wordpress"
    adapter = wordpress.ADAPTER
    writes: Final = {"method": "*", "path": r"^/wp-json/wp/v2/posts(/\d+)?$"}
    """Narrowed to the method of the case's write, because reads share the path."""

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession) -> None:
        super().__init__(sandbox, http)
        document = sandbox_connections(sandbox.urls)
        self.unreadable = connection_of(document, "wordpress", read_password="wrong")
        self.write_method = "POST"

    async def fault(self, name: str, params: dict[str, Any] | None = None, *, times: int = 1, **match: str) -> None:
        """Aim at the write."""
        if match.get("method") == "*":
            match["method"] = self.write_method
            if self.write_method == "GET" and name in ("lose_answer", "drop_before"):
                times = 2  # a client may read a second time by itself
        await super().fault(name, params, times=times, **match)

    async def post(self, **fields: Any) -> dict[str, Any]:
        """A post that an editor made."""
        number = next(self.counter)
        content = f"<p>Text {number}</p>"
        values = {"title": f"Post {number}", "content": content, "slug": f"post-{number}", "status": "draft", **fields}
        document: dict[str, Any] = (await self.tamper("acme/new", values))["post"]
        return document

    async def posts(self) -> dict[int, dict[str, Any]]:
        """The world's own documents."""
        return {int(key): post for key, post in self.sandbox.store.documents("wordpress.post/acme").items()}

    async def case(self, command_type: str) -> Case:
        """What the command acts on."""
        self.write_method = {"wordpress.trash_post": "DELETE", "wordpress.inspect_post": "GET"}.get(
            command_type, "POST"
        )
        if command_type == "wordpress.create_draft":
            number = next(self.counter)
            payload = {
                "title": f"Größe & Wirkung {number}",
                "content": f"<p>Ein Satz &amp; noch einer, Nummer {number}.</p>\n\nMehr & mehr.\n",
                "slug": f"groesse-und-wirkung-{number}",
                "excerpt": "Kurz gesagt.",
                "meta": {"description": "Beschreibung", "citations": ["https://example.org/1"]},
            }
            return Case(resource="post", payload=payload)
        post = await self.post(status="publish" if command_type == "wordpress.withdraw_post" else "draft")
        payload = {"post_id": post["id"]}
        if command_type == "wordpress.restore_draft":
            await self.trash(post["id"])
            return Case(resource=f"post/{post['id']}", payload=payload | {"slug": post["slug"]}, extra={"post": post})
        if command_type == "wordpress.update_post":
            payload |= {"content": "<p>Neu</p>", "title": "Neu", "expected_modified_gmt": post["modified_gmt"]}
        if command_type == "wordpress.publish_post":
            payload |= {"content_sha256": sha256_hex(post["content"].encode())}
        return Case(resource=f"post/{post['id']}", payload=payload, extra={"post": post})

    async def trash(self, post_id: int) -> None:
        """Somebody else moves a post to the trash, as a person in the site would."""
        target = self.adapter.open(self.connection)
        assert isinstance(target, Site)
        answer = await target.change("DELETE", f"/posts/{post_id}", None, Anyone())
        assert answer.status == 200, answer.body
        await target.close()

    async def disturb(self, element: ProbeElement) -> bool:
        """An outsider does what the element's repair is there for."""
        await self.trash(element.params["post_id"])
        return True

    async def remove(self, element: ProbeElement) -> bool:
        """Delete the post for good."""
        await self.tamper(f"acme/{element.params['post_id']}", {"delete": True})
        return True


@asynccontextmanager
async def open_world(kind: type[SandboxWorld], state_dir: Path) -> AsyncIterator[Any]:
    """A sandbox of its own for one test."""
    async with Sandbox(state_dir, 0) as sandbox, aiohttp.ClientSession() as http:
        yield kind(sandbox, http)
