"""The sandbox world as the demo uses it: ordering faults, and asking each system itself what really happened."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from trueup_devkit.demo.scenarios import PlannedFault
from trueup_devkit.gateway_client import GatewayClient, GatewayError

REMOVALS: Final = frozenset({"trash", "delete", "remove", "cancel"})
_MARKERS: Final = re.compile(r"\n\n(<!-- trueup:[^>]*-->\n?)+$")
_WORDS: Final = ("agents", "idempotency", "retries", "operations", "databases", "architecture", "testing", "writing")
LISTINGS_COUNT: Final = 94


@dataclass(frozen=True)
class Standing:
    """What one system shows at the end, asked from outside of the plane."""

    system: str
    what: str
    found: str


class World:
    """One sandbox, spoken to on its control port and on the ports of its systems."""

    def __init__(self, url: str, tenant: str) -> None:
        self._control = GatewayClient(url)
        self._tenant = tenant
        self._requests_seen = 0
        self._effects_seen = 0
        self.urls: dict[str, str] = self._control.get("/")["systems"]

    # -- what is ordered, and what happened ------------------------------------------------------------------------

    def order(self, fault: PlannedFault) -> None:
        """Let a fault stand until it is met."""
        self._control.call("POST", "/_faults", fault.order())

    def faults_met(self, silent: frozenset[tuple[str, str]]) -> dict[str, int]:
        """How often each fault was really met by a request; the `silent` ones only let requests pass."""
        met = [entry for entry in self._requests() if entry["fault"]]
        counted = Counter(entry["fault"] for entry in met if (entry["system"], entry["fault"]) not in silent)
        return dict(sorted(counted.items()))

    def new_faulty_requests(self) -> list[dict[str, Any]]:
        """Requests that met a fault since the last look."""
        new = [entry for entry in self._requests() if int(entry["seq"]) > self._requests_seen]
        # One that is still on its way has no status yet, but its fault is decided when it arrives.
        self._requests_seen = max([self._requests_seen, *(int(entry["seq"]) for entry in new)])
        return [entry for entry in new if entry["fault"]]

    def new_effects(self) -> list[dict[str, Any]]:
        """Effects really applied since the last look."""
        new = list(self._control.get("/_effects", after=self._effects_seen)["items"])
        self._effects_seen = max([self._effects_seen, *(int(effect["seq"]) for effect in new)])
        return new

    def effects(self) -> list[dict[str, Any]]:
        """The ground truth: every effect really applied, in order."""
        return list(self._control.get("/_effects")["items"])

    def _requests(self) -> list[dict[str, Any]]:
        return list(self._control.get("/_requests")["items"])

    # -- the site and its cache ------------------------------------------------------------------------------------

    @property
    def site_url(self) -> str:
        """Where visitors find the tenant's site."""
        return f"{self.urls['wordpress']}/{self._tenant}"

    def listings(self) -> list[str]:
        """The pages that show the newest articles: home, feeds, sitemap, archives."""
        names = ["", "feed/", "comments/feed/", "wp-sitemap.xml", "author/bot/", "2026/", "2026/11/"]
        for word in _WORDS:
            names += [f"category/{word}/", f"category/{word}/feed/", f"tag/{word}/", f"tag/{word}/feed/"]
        names += [f"page/{number}/" for number in range(2, LISTINGS_COUNT - len(names) + 2)]
        return [f"{self.site_url}/{name}" for name in names]

    def visit(self, url: str) -> str:
        """A page as a visitor gets it: from the cache where it is cached."""
        parts = urlsplit(url)
        headers = {"Host": parts.netloc}
        return str(GatewayClient(self.urls["cloudflare"]).call("GET", parts.path, headers=headers).body)

    def posts(self, search: str) -> list[dict[str, Any]]:
        """Posts in whatever state, the trash included, asked from the site as its own editor would."""
        connection = self._connection("wordpress")
        basic = base64.b64encode(f"{connection['username']}:{connection['password']}".encode()).decode()
        site, found = GatewayClient(connection["base_url"]), {}
        for status in ("any", "trash"):
            path = f"/wp-json/wp/v2/posts?context=edit&status={status}&search={quote(search)}"
            for post in site.call("GET", path, headers={"Authorization": f"Basic {basic}"}).body:
                found[post["id"]] = post
        return list(found.values())

    def _connection(self, system: str) -> dict[str, Any]:
        from trueup_devkit.sandbox.connections import sandbox_connections

        entries: list[dict[str, Any]] = sandbox_connections(self.urls)["connections"]
        return next(entry for entry in entries if (entry["tenant"], entry["system"]) == (self._tenant, system))

    # -- the end ---------------------------------------------------------------------------------------------------

    def standing(self, title: str, slug: str, repository: str, branch: str) -> list[Standing]:
        """What each system shows, asked as anybody could who has nothing to do with the plane."""
        public = self._answers(f"{self.site_url}/{slug}/", "wordpress")
        posts = ", ".join(f"{post['status']} (id {post['id']})" for post in self.posts(title)) or "none"
        return [
            Standing("github", f"branch {branch}", self._branch(repository, branch)),
            Standing("wordpress", "posts with this title", posts),
            Standing("wordpress", f"page /{slug}/", public),
            Standing("cloudflare", "cached lists that show the article", self._shown(title)),
            Standing("monitoring", "targets", self._targets()),
            Standing("database", "publications", self._publications()),
        ]

    def _branch(self, repository: str, branch: str) -> str:
        connection = self._connection("github")
        headers = {"Authorization": f"Bearer {connection['read_token']}", "User-Agent": "demo"}
        try:
            path = f"/repos/{repository}/git/ref/heads/{branch}"
            found = GatewayClient(connection["base_url"]).call("GET", path, headers=headers).body
        except GatewayError as error:
            if error.status == 404:
                return "none"
            raise
        return f"at {found['object']['sha'][:12]}"

    def _answers(self, url: str, system: str) -> str:
        try:
            return str(GatewayClient(self.urls[system]).call("GET", urlsplit(url).path).status)
        except GatewayError as error:
            if error.status is None:
                raise
            return str(error.status)

    def _shown(self, title: str) -> str:
        sample = self.listings()[::10]
        return f"{sum(title in self.visit(url) for url in sample)} of {len(sample)} sampled"

    def _targets(self) -> str:
        found = GatewayClient(f"{self.urls['monitoring']}/{self._tenant}").get("/api/v1/targets")
        active = found["data"]["activeTargets"]
        return ", ".join(f"{target['health']}" for target in active) if active else "none"

    def _publications(self) -> str:
        rows = asyncio.run(_publications(self._connection("database")["read_dsn"]))
        return ", ".join(f"{row['business_key']} {row['status']}" for row in rows) or "none"


async def _publications(dsn: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return list(await connection.fetch("SELECT business_key, status FROM publications ORDER BY business_key"))
    finally:
        await connection.close()


def standing_of(effects: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """What stands of the effects, by kind and object: 1 until the object's last effect took it away again.

    An effect on an object that is there already adds nothing; what leaves no object behind, such as a purge, adds up.
    """
    kinds: dict[tuple[str, str], str] = {}
    standing: dict[tuple[str, str], int] = {}
    for effect in effects:
        place = (str(effect["system"]), str(effect["object"]))
        kind = kinds.setdefault(place, str(effect["kind"]))
        if effect["kind"] == "cloudflare.purge":
            standing[kind, place[1]] = standing.get((kind, place[1]), 0) + 1
        else:
            standing[kind, place[1]] = int(effect["action"] not in REMOVALS)
    return standing


def counted_by_kind(effects: list[dict[str, Any]]) -> dict[str, int]:
    """How much of each kind stands in the world; 0 where something was made and taken back."""
    counted: Counter[str] = Counter()
    for (kind, _), count in standing_of(effects).items():
        counted[kind] += count
    return dict(sorted(counted.items()))


def content_sha256(post: dict[str, Any]) -> str:
    """The digest of a post's content as the site holds it, without the markers at its end."""
    return hashlib.sha256(_MARKERS.sub("", post["content"]["raw"]).encode()).hexdigest()
