"""The sandbox world as the demo uses it: ordering faults, and asking what really happened."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trueup_devkit.gateway_client import GatewayClient

SYSTEM = "wordpress"
POSTS = r"/wp-json/wp/v2/posts"


@dataclass(frozen=True)
class PlannedFault:
    """A fault to order, and what is told when a request meets it."""

    fault: str
    method: str
    path: str
    times: int
    told: str
    params: tuple[tuple[str, Any], ...] = ()

    def order(self) -> dict[str, Any]:
        """The body of POST /_faults."""
        match = {"method": self.method, "path": self.path}
        params = dict(self.params)
        return {"system": SYSTEM, "match": match, "fault": self.fault, "params": params, "times": self.times}


STORED_BUT_SILENT = PlannedFault(
    fault="lose_answer",
    method="POST",
    path=POSTS + "$",
    times=1,
    told="WordPress stores the draft, then the connection dies without an answer: from here it looks like a failure",
)
LOOK_UP_UNAVAILABLE = PlannedFault(
    fault="status",
    method="GET",
    # The search for the operation's marker is the question after the fact; the look before the write has none.
    path=POSTS + r"\?.*search=",
    times=2,
    params=(("status", 503),),
    told="WordPress answers the look-up with 503: that proves neither done nor not done, so nothing is sent again",
)
FAULTS = (STORED_BUT_SILENT, LOOK_UP_UNAVAILABLE)


class World:
    """One sandbox, spoken to on its control port."""

    def __init__(self, url: str) -> None:
        self._control = GatewayClient(url)
        self._requests_seen = 0
        self._effects_seen = 0

    def order(self, fault: PlannedFault) -> None:
        """Let a fault stand until it is met."""
        self._control.call("POST", "/_faults", fault.order())

    def faults_met(self) -> dict[str, int]:
        """How often each fault was really met by a request."""
        met = Counter(entry["fault"] for entry in self._requests() if entry["fault"])
        return dict(sorted(met.items()))

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

    def effects(self) -> dict[str, int]:
        """The ground truth: every effect really applied, counted by kind."""
        return dict(sorted(Counter(effect["kind"] for effect in self._control.get("/_effects")["items"]).items()))

    def posts_of(self, command_id: str, tenant: str) -> list[dict[str, Any]]:
        """Posts that carry the operation's marker, asked from the site as its own editor would."""
        from trueup_devkit.sandbox.connections import sandbox_connections

        systems = self._control.get("/")["systems"]
        entries = sandbox_connections(systems)["connections"]
        site = next(entry for entry in entries if (entry["tenant"], entry["system"]) == (tenant, SYSTEM))
        basic = base64.b64encode(f"{site['username']}:{site['password']}".encode()).decode()
        query = f"context=edit&status=any&search={quote(f'trueup:{command_id}')}"
        path = f"/wp-json/wp/v2/posts?{query}"
        found = GatewayClient(site["base_url"]).call("GET", path, headers={"Authorization": f"Basic {basic}"}).body
        return [post for post in found if command_id in post["content"]["raw"]]

    def _requests(self) -> list[dict[str, Any]]:
        return list(self._control.get("/_requests", system=SYSTEM)["items"])
