"""A whole plane of real processes for tests: started once per module, spoken to over HTTP only.

What the gateway shows follows several services, each by messages of its own. Who has seen one view move on (a case, an
exception, a repair, an approval, an act) still waits for the next one that it reads; only the world comes first.
"""

import asyncio
import base64
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tests.patience import PATIENCE_SECONDS
from tests.servers import PlaneClusters
from trueup_common.contracts.history import GENESIS, verify
from trueup_common.contracts.journal import HistoryEvent
from trueup_common.contracts.topology import CRASH_SUBJECT, SERVICES
from trueup_common.runtime.bus import connect_admin
from trueup_devkit import virtual_clock
from trueup_devkit.plan import Plan
from trueup_devkit.plane import start_detached, stop
from trueup_devkit.sample import load_article
from trueup_devkit.sandbox.systems.cloudflare import ZONES
from trueup_devkit.virtual_clock import PlaneTimeline, plane_timeline

T = TypeVar("T")
REPOSITORY = "acme/articles"
TERMINAL = ("CLOSED", "COMPENSATED", "CANCELLED", "SAFE_STOPPED", "RESOLVED")
SETTLE_SECONDS = PATIENCE_SECONDS
RESTART_SECONDS = PATIENCE_SECONDS
RETRY_SECONDS = 0.25
POLL_SECONDS = 0.05
POLL_SECONDS_MAX = 0.5


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, whatever its status."""

    status: int
    body: Any
    headers: dict[str, str]


def http(
    method: str, url: str, body: Any = None, *, headers: dict[str, str] | None = None, timeout_seconds: float = 60
) -> Answer:
    """One request on loopback; refusals are answers, not exceptions. A gateway that died, or that says
    503 and Retry-After, is asked again, as any client would: it knows what became of the first request by the key."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, method=method, data=data, headers=sent)
    end = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
                raw, status, got = response.read(), response.status, dict(response.headers)
            break
        except urllib.error.HTTPError as error:
            raw, status, got = error.read(), error.code, dict(error.headers)
            if status != 503 or error.headers.get("retry-after") is None or time.monotonic() > end:
                break
            time.sleep(RETRY_SECONDS)
        except (urllib.error.URLError, ConnectionError, HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)
    try:
        parsed = json.loads(raw) if raw else None
    except ValueError:
        parsed = raw.decode("utf-8", "replace")
    return Answer(status, parsed, {key.lower(): value for key, value in got.items()})


def _state_of(pid: int) -> str:
    """A process's state as the kernel tells it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def eventually(look: Callable[[], T | None], what: str, seconds: float = SETTLE_SECONDS) -> T:
    """The first answer that is not None; fails with `what` after a bound. The longer it takes, the rarer the look."""
    end, pause = time.monotonic() + seconds, POLL_SECONDS
    while True:
        found = look()
        if found is not None:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.2, POLL_SECONDS_MAX)


@dataclass
class Plane:
    """A running plane with its sandbox world."""

    state_dir: Path
    replicas: dict[str, int] = field(default_factory=dict)
    clock: str = "system"
    environment: dict[str, str] = field(default_factory=dict)
    connections: str | None = None
    """A connections file of the test's own; without one the sandbox world is connected."""
    programs: dict[str, list[str]] = field(default_factory=dict)
    url: str = ""
    sandbox_url: str = ""
    clusters: ClassVar[PlaneClusters | None] = None
    """Where the first start takes its cluster from; without them it makes one, as any plane does."""
    _tokens: dict[tuple[object, ...], str] = field(default_factory=dict)

    def start(self) -> "Plane":
        self.plan = Plan(
            state_dir=str(self.state_dir),
            port=0,
            replicas=self.replicas,
            clock=self.clock,
            sandbox=self.connections is None,
            connections=self.connections,
            programs=self.programs,
        )
        cluster = self.plan.folder.path / "postgres"
        if self.clusters is not None and not cluster.exists():
            self.clusters.lay_out(cluster)
        state = start_detached(self.plan, {**os.environ, **self.environment})
        self.url, self.sandbox_url = str(state.gateway_url), str(state.sandbox_url)
        self.nats_url, self.database_url = str(state.nats_url), str(state.database_url)
        return self

    def stop(self) -> None:
        stop(self.plan.folder)

    # -- processes ------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Any:
        state = self.plan.folder.read_state()
        assert state is not None
        return next(process for process in state.processes if process.name == name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        pid = self.process(name).pid
        assert pid > 0, f"{name} is down already"
        os.kill(pid, number)
        if number is signal.SIGSTOP:  # it takes a moment to stop
            eventually(lambda: _state_of(pid) == "T" or None, f"{name} stands still")

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """One process stands still meanwhile, and goes on afterwards."""
        self.kill(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.kill(name, signal.SIGCONT)

    def ready(self) -> bool:
        state = self.plan.folder.read_state()
        return state is not None and all(process.ready for process in state.processes)

    def arm(self, instance: str, at: str) -> None:
        """Set a crash point in one running process."""

        async def order() -> None:
            client = await connect_admin(self.nats_url)
            try:
                await client.request(CRASH_SUBJECT, json.dumps({"instance": instance, "at": at}).encode(), timeout=30)
            finally:
                await client.close()

        asyncio.run(order())

    def advance(self, distance: str) -> None:
        """Move business time forward, due time by due time, as `trueup clock advance` does."""
        asyncio.run(
            self._move(lambda timeline: virtual_clock.advance(timeline, virtual_clock.parse_duration(distance)))
        )

    def advance_to(self, moment: datetime) -> None:
        """Set business time to exactly a moment, past everything that falls due meanwhile."""

        async def move(timeline: PlaneTimeline) -> None:
            await timeline.announce(await timeline.move_to(moment))

        asyncio.run(self._move(move))

    def now(self) -> datetime:
        """Business time."""
        return asyncio.run(self._at_its_timeline(lambda timeline: timeline.now()))

    async def _move(self, how: Callable[[PlaneTimeline], Awaitable[Any]]) -> None:
        await self._at_its_timeline(how)
        self._tokens.clear()

    async def _at_its_timeline(self, ask: Callable[[PlaneTimeline], Awaitable[T]]) -> T:
        state = self.plan.folder.read_state()
        assert state is not None
        names = [p.name for p in state.processes if p.name.rstrip("0123456789").rstrip("-") in SERVICES]
        async with plane_timeline(self.database_url, self.nats_url, names) as timeline:
            return await ask(timeline)

    # -- HTTP -----------------------------------------------------------------------------------------------------

    def token(
        self,
        sub: str = "agent:publisher",
        tenant: str = "acme",
        roles: tuple[str, ...] = ("agent",),
        scopes: tuple[str, ...] = (),
    ) -> str:
        """An access token; the same one again while it lasts."""
        who = (sub, tenant, roles, scopes)
        if who not in self._tokens:
            body = {"sub": sub, "tenant": tenant, "roles": list(roles), "scopes": list(scopes), "ttl_seconds": 3600}
            answer = http("POST", f"{self.url}/dev/token", body)
            assert answer.status == 200, answer
            self._tokens[who] = str(answer.body["access_token"])
        return self._tokens[who]

    def get(self, path: str, token: str | None = None) -> Answer:
        return http("GET", self.url + path, headers={"authorization": f"Bearer {token or self.token()}"})

    def capability(
        self, command_type: str, resource: str, *, tenant: str = "acme", max_uses: int = 1, ttl_seconds: int = 300
    ) -> str:
        """Decision and capability in one go."""
        token = self.token(tenant=tenant)
        headers = {"authorization": f"Bearer {token}"}
        decision = http(
            "POST",
            f"{self.url}/v1/decisions",
            {
                "action": {"command_types": [command_type], "workflow": None},
                "resource": {"system": command_type.split(".")[0], "resource": resource},
                "purpose": "test",
                "evidence": [],
                "context": {},
            },
            headers=headers,
        )
        assert decision.status == 201, decision
        assert decision.body["outcome"] == "approved", decision
        body = {"decision_id": decision.body["decision_id"], "max_uses": max_uses, "ttl_seconds": ttl_seconds}
        capability = http("POST", f"{self.url}/v1/capabilities", body, headers=headers)
        assert capability.status == 201, capability
        return str(capability.body["capability"])

    def submit(
        self,
        capability: str,
        key: str,
        command_type: str,
        resource: str,
        payload: dict[str, Any],
        *,
        prefer: str | None = None,
        **extra: Any,
    ) -> Answer:
        headers = {"authorization": f"Bearer {capability}", "idempotency-key": f'"{key}"'}
        if prefer:
            headers["prefer"] = prefer
        body = {
            "command_type": command_type,
            "target": {"system": command_type.split(".")[0], "resource": resource},
            "payload": payload,
            **extra,
        }
        return http("POST", f"{self.url}/v1/commands", body, headers=headers, timeout_seconds=PATIENCE_SECONDS)

    def draft(self, slug: str, *, key: str | None = None, **extra: Any) -> Answer:
        """Submit one WordPress draft with a fresh capability."""
        capability = self.capability("wordpress.create_draft", "post")
        payload = {"title": f"Title {slug}", "content": f"<p>Content of {slug}.</p>", "slug": slug}
        return self.submit(capability, key or f"draft:{slug}", "wordpress.create_draft", "post", payload, **extra)

    def journal(self, command_id: str, tenant: str = "acme") -> dict[str, Any]:
        answer = self.get(f"/v1/commands/{command_id}", self.token(tenant=tenant))
        assert answer.status == 200, answer
        return dict(answer.body)

    def command(self, command_id: str, *wanted: str) -> dict[str, Any]:
        """Wait until a command, whoever sent it, is shown in one of these states."""
        token = self.token("operator:olga", roles=("operator",))

        def look() -> dict[str, Any] | None:
            answer = self.get(f"/v1/commands/{command_id}", token)
            assert answer.status == 200, answer
            return dict(answer.body) if answer.body["state"] in wanted else None

        return eventually(look, f"{command_id} {wanted}")

    def closed(self, workflow_id: str, seconds: float = SETTLE_SECONDS) -> dict[str, Any]:
        """Wait until a case is CLOSED."""
        token = self.token()

        def look() -> dict[str, Any] | None:
            answer = self.get(f"/v1/workflows/{workflow_id}", token)
            return dict(answer.body) if answer.status == 200 and answer.body["status"] == "CLOSED" else None

        return eventually(look, f"{workflow_id} CLOSED", seconds)

    def tamper(self, system: str, name: str, change: dict[str, Any]) -> None:
        """An outsider changes the world."""
        answer = http("POST", f"{self.sandbox_url}/_tamper", {"system": system, "object": name, "change": change})
        assert answer.status == 200, answer

    # -- workflows ------------------------------------------------------------------------------------------------

    def workflow_capability(self, name: str, **wanted: Any) -> str:
        """Decision and capability for starting a workflow."""
        return str(self.workflow_authority(name, **wanted)["capability"])

    def workflow_authority(
        self, name: str, *, tenant: str = "acme", max_uses: int = 1, token: str | None = None
    ) -> dict[str, Any]:
        """Decision and capability for starting a workflow, with their ids."""
        headers = {"authorization": f"Bearer {token or self.token(tenant=tenant)}"}
        body = {
            "action": {"command_types": [], "workflow": name},
            "resource": {"system": "workflow", "resource": "*"},
            "purpose": "test",
            "evidence": [],
            "context": {},
        }
        decision = http("POST", f"{self.url}/v1/decisions", body, headers=headers)
        assert decision.status == 201 and decision.body["outcome"] == "approved", decision
        decision_id = decision.body["decision_id"]
        wanted = {"decision_id": decision_id, "max_uses": max_uses, "ttl_seconds": 3600}
        capability = http("POST", f"{self.url}/v1/capabilities", wanted, headers=headers)
        assert capability.status == 201, capability
        return {"decision_id": decision_id, **capability.body}

    def begin(
        self,
        name: str,
        data: dict[str, Any],
        key: str,
        *,
        tenant: str = "acme",
        capability: str | None = None,
        **extra: Any,
    ) -> Answer:
        """Start a workflow."""
        bearer = capability or self.workflow_capability(name, tenant=tenant)
        body = {"definition": name, "version": None, "input": data, "purpose": "test", **extra}
        headers = {"authorization": f"Bearer {bearer}", "idempotency-key": f'"{key}"'}
        return http("POST", f"{self.url}/v1/workflows", body, headers=headers)

    def begun(self, name: str, data: dict[str, Any], key: str, **extra: Any) -> str:
        """Start a workflow that is accepted; its id."""
        answer = self.begin(name, data, key, **extra)
        assert answer.status == 202, answer
        return str(answer.body["workflow_id"])

    def article(self, article_id: str, **changes: Any) -> dict[str, Any]:
        """The sample article under another id and slug, as input of `seo-article-publish`."""
        data = load_article(repository=REPOSITORY, zone_id=ZONES["acme"], web=f"{self.systems['wordpress']}/web")
        return data | {"article_id": article_id, "slug": f"article-{article_id.lower()}"} | changes

    def publishing(self, article_id: str, **changes: Any) -> str:
        """Start publishing the sample article under its own id; the case's id."""
        return self.begun("seo-article-publish", self.article(article_id, **changes), f"publish:{article_id}")

    def register(self, document: str, tenant: str = "acme") -> Answer:
        """Register a workflow document."""
        token = self.token("operator:olga", tenant, ("operator",))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": f'"{abs(hash(document))}"'}
        return http("POST", f"{self.url}/v1/definitions", {"document": document}, headers=headers)

    def case(self, workflow_id: str, tenant: str = "acme") -> dict[str, Any]:
        """A case as it stands."""
        token = self.token("operator:olga", tenant, ("operator",))
        answer = self.get(f"/v1/workflows/{workflow_id}", token)
        assert answer.status == 200, answer
        return dict(answer.body)

    def until(
        self, workflow_id: str, fits: Callable[[dict[str, Any]], bool], what: str, seconds: float = SETTLE_SECONDS
    ) -> dict[str, Any]:
        """Wait until a case is as wanted."""
        last: list[dict[str, Any]] = []

        def look() -> dict[str, Any] | None:
            last[:] = [self.case(workflow_id)]
            return last[0] if fits(last[0]) else None

        try:
            return eventually(look, what, seconds)
        except AssertionError as error:
            seen = last[0] if last else {}
            steps = [(step["id"], step["state"], step.get("outcome")) for step in seen.get("steps", [])]
            raise AssertionError(f"{error}: {seen.get('status')} {steps} {seen.get('obligations')}") from None

    def status(self, workflow_id: str, *wanted: str, seconds: float = SETTLE_SECONDS) -> dict[str, Any]:
        """Wait until a case has one of these statuses."""
        return self.until(workflow_id, lambda case: case["status"] in wanted, f"{workflow_id} {wanted}", seconds)

    def approval(self, workflow_id: str, *, token: str | None = None) -> dict[str, Any]:
        """The pending approval of a case, as its approver sees it, once the case shows as well that it waits."""
        bearer = token or self.editor()

        def look() -> dict[str, Any] | None:
            answer = self.get(f"/v1/approvals?status=pending&workflow_id={workflow_id}", bearer)
            assert answer.status == 200, answer
            return next(iter(answer.body["items"]), None)

        found = eventually(look, f"an approval of {workflow_id}")
        self.until(workflow_id, lambda case: case["status"] != "RUNNING" or case["wait"] is not None, "it waits")
        return found

    def withdrawn(self, approval: dict[str, Any]) -> None:
        """Wait until a question is withdrawn. Before that it would take an answer, whatever its case shows by then."""
        place = f"/v1/approvals/{approval['approval_id']}"
        eventually(lambda: self.get(place, self.editor()).body["status"] == "superseded" or None, f"{place} withdrawn")

    def editor(self, tenant: str = "acme", sub: str = "operator:ed") -> str:
        """A token of a person who may approve content."""
        return self.token(sub, tenant, ("approver",), ("content:publish",))

    def answer(
        self,
        approval: dict[str, Any],
        decision: str = "approve",
        *,
        token: str | None = None,
        key: str | None = None,
        **changes: Any,
    ) -> Answer:
        """Approve or reject."""
        body = {
            "decision": decision,
            "nonce": approval["nonce"],
            "content_sha256": approval["content_sha256"],
            "reason": "read it",
            **changes,
        }
        named = key or f"{decision}:{approval['approval_id']}"
        headers = {"authorization": f"Bearer {token or self.editor()}", "idempotency-key": f'"{named}"'}
        return http("POST", f"{self.url}/v1/approvals/{approval['approval_id']}/decision", body, headers=headers)

    def operate(self, path: str, body: dict[str, Any], key: str, method: str = "POST") -> Answer:
        """A changing call of an operator."""
        token = self.token("operator:olga", roles=("operator",))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": f'"{key}"'}
        return http(method, f"{self.url}{path}", body, headers=headers)

    def control(self, action: str, workflow_id: str, key: str | None = None) -> Answer:
        """Pause or resume a case."""
        target = {"kind": "workflow", "id": workflow_id}
        body = {"action": action, "target": target, "reason": "test", "evidence": [], "params": {}}
        return self.operate("/v1/operator-commands", body, key or f"{action}:{workflow_id}")

    def signal(self, workflow_id: str, event_id: str, kind: str, data: Any = None) -> str:
        """Send an event to a case; what became of it."""
        body = {"event_id": event_id, "type": kind, "data": data, "occurred_at": None}
        answer = self.operate(f"/v1/workflows/{workflow_id}/signals", body, event_id)
        assert answer.status == 202, answer
        if answer.body["disposition"] != "pending":
            return str(answer.body["disposition"])
        token = self.token("operator:olga", roles=("operator",))
        place = f"/v1/workflows/{workflow_id}/signals/{event_id}"

        def look() -> str | None:
            told = self.get(place, token).body["disposition"]
            return str(told) if told != "pending" else None

        return eventually(look, f"{place} is disposed of")

    def history(self, workflow_id: str) -> list[HistoryEvent]:
        """The history of a case so far, its chain of hashes verified; of a case that is over, the whole."""
        token = self.token("operator:olga", roles=("operator",))

        def read() -> list[dict[str, Any]] | None:
            items: list[dict[str, Any]] = []
            while True:
                after = items[-1]["seq"] if items else 0
                answer = self.get(f"/v1/workflows/{workflow_id}/history?after_seq={after}", token)
                assert answer.status == 200, answer
                if not answer.body["items"]:
                    break
                items += answer.body["items"]
            case = self.case(workflow_id)
            whole = len(items) >= case["cost"]["transitions"] or case["status"] not in TERMINAL
            return items if whole else None

        items = eventually(read, "the whole history")
        events = [HistoryEvent.model_validate({"tenant": "acme", "workflow_id": workflow_id, **item}) for item in items]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert not events or events[0].prev_hash == GENESIS
        assert verify(events) is None
        return events

    def stream(self, workflow_id: str, timeout_seconds: float = 60) -> list[tuple[str, Any]]:
        """The server-sent events of a case until its end."""
        token = self.token("operator:olga", roles=("operator",))
        request = urllib.request.Request(
            f"{self.url}/v1/workflows/{workflow_id}/stream", headers={"authorization": f"Bearer {token}"}
        )
        told: list[tuple[str, Any]] = []
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for part in response.read().decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line and line[0] != ":")
                if "event" in fields:
                    told.append((fields["event"], json.loads(fields["data"])))
        return told

    def cancel(self, workflow_id: str, key: str = "cancel-1") -> Answer:
        """Ask for a case to be cancelled."""
        return self.operate(f"/v1/workflows/{workflow_id}/cancel", {"reason": "test"}, f"{key}:{workflow_id}")

    def exceptions(self, workflow_id: str) -> list[dict[str, Any]]:
        """Open exceptions of a case, as operators see them."""
        token = self.token("operator:olga", roles=("operator",))
        answer = self.get("/v1/exceptions?status=open&limit=200", token)
        assert answer.status == 200, answer
        return [item for item in answer.body["items"] if item["workflow_id"] == workflow_id]

    def free_of_exceptions(self, workflow_id: str) -> None:
        """Wait until no exception of a case is open."""
        eventually(lambda: None if self.exceptions(workflow_id) else True, f"no open exception of {workflow_id}")

    # -- the world ------------------------------------------------------------------------------------------------

    def fault(
        self, fault: str, *, method: str, path: str, times: int = 1, system: str = "wordpress", **params: Any
    ) -> None:
        body = {
            "system": system,
            "match": {"method": method, "path": path},
            "fault": fault,
            "params": params,
            "times": times,
        }
        answer = http("POST", f"{self.sandbox_url}/_faults", body)
        assert answer.status < 300, answer

    @property
    def systems(self) -> dict[str, str]:
        """Where each system of the world listens."""
        return dict(http("GET", f"{self.sandbox_url}/").body["systems"])

    def requests(self, system: str, method: str, path: str) -> list[dict[str, Any]]:
        """What a system was asked."""
        items = http("GET", f"{self.sandbox_url}/_requests?system={system}").body["items"]
        return [item for item in items if item["method"] == method and re.search(path, item["path"])]

    def effects(self, kind: str, action: str | None = None) -> list[dict[str, Any]]:
        """The ground truth of the world."""
        items = http("GET", f"{self.sandbox_url}/_effects").body["items"]
        return [item for item in items if item["kind"] == kind and action in (None, item["action"])]

    def posts(self, search: str, status: str = "any") -> list[dict[str, Any]]:
        """Posts of the site, read as its own editor would."""
        basic = base64.b64encode(b"bot:sandbox-acme").decode()
        answer = http(
            "GET",
            f"{self.systems['wordpress']}/acme/wp-json/wp/v2/posts?search={search}&status={status}&context=edit",
            headers={"authorization": f"Basic {basic}"},
        )
        assert answer.status == 200, answer
        return list(answer.body)

    def posts_of(self, command_id: str) -> list[dict[str, Any]]:
        """Posts in the world that carry this operation's marker."""
        found = self.posts(f"trueup:{command_id}")
        return [post for post in found if command_id in post["content"]["raw"]]
