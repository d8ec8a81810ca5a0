"""A gateway over a real database, in this process: the application, its acceptor and a publisher that only records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx
from tests.objects import MemoryObjects
from tests.servers import Database as TestDatabase

from trueup_common.contracts.declaration import CommandDeclaration, Mapping
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, Findability
from trueup_common.documents.read import read_document
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.clock import BusinessClock, RealSchedule, real_now
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.db import Database
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.settings import Settings
from trueup_gateway.accept import Acceptor
from trueup_gateway.answers import AnswerBoard
from trueup_gateway.api.app import create_app
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.core.records import PolicyRow
from trueup_gateway.main import verifier_of
from trueup_gateway.policy import PolicySet
from trueup_gateway.rules import RuleBook
from trueup_gateway.sightings import Sightings
from trueup_gateway.signalling import SignalTaker
from trueup_gateway.starting import Starter
from trueup_gateway.store import GatewayReads, gateway_store
from trueup_gateway.tokens import SigningKey, sign_access
from trueup_gateway.watching import CaseWatch

SIGNING = SigningKey.generate()
ISSUER = SigningKey.generate()
GRANT_KEYS = GrantKeys.read(json.dumps({"wordpress": "a" * 43, "bench": "b" * 43}))

DRAFT = CommandDeclaration(
    type="wordpress.create_draft",
    system="wordpress",
    title="Create a draft",
    permission="wordpress:write",
    effect_class=EffectClass.COMPENSABLE,
    payload_schema={
        "type": "object",
        "required": ["title", "slug"],
        "additionalProperties": False,
        "properties": {
            "title": {"type": "string", "maxLength": 200},
            "slug": {"type": "string", "pattern": "^[a-z0-9-]+$"},
            "content": {"type": "string"},
            "meta": {"type": "object"},
        },
    },
    identity=("/payload/slug",),
    findability=Findability.MARKER,
    receipt_schema={
        "type": "object",
        "required": ["post_id", "content_sha256"],
        "properties": {"post_id": {"type": "integer"}, "content_sha256": {"type": "string"}},
    },
    success_condition="the draft reads back",
    compensation=Mapping(
        command_type="wordpress.trash_post", payload={"post_id": ValueFrom(pointer="/receipt/post_id")}
    ),
    blast_radius=5,
)
TRASH = CommandDeclaration(
    type="wordpress.trash_post",
    system="wordpress",
    title="Take a draft away",
    permission="wordpress:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={"type": "object"},
    findability=Findability.MARKER,
    success_condition="the post is in the trash",
)
UPDATE = CommandDeclaration(
    type="wordpress.update_post",
    system="wordpress",
    title="Update a post",
    permission="wordpress:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={"type": "object"},
    findability=Findability.MARKER,
    success_condition="the post reads back",
    expected_version="required",
)
PUBLISH = CommandDeclaration(
    type="wordpress.publish_post",
    system="wordpress",
    title="Publish a post",
    permission="wordpress:publish",
    effect_class=EffectClass.PIVOT,
    payload_schema={"type": "object"},
    findability=Findability.MARKER,
    success_condition="the post is public",
    blast_radius=40,
)
POST = CommandDeclaration(
    type="bench.post",
    system="bench",
    title="Post one effect",
    permission="bench:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={"type": "object"},
    findability=Findability.NATIVE_KEY,
    success_condition="2xx",
)
RETITLE = CommandDeclaration(
    type="wordpress.retitle_post",
    system="wordpress",
    title="Give a post another title",
    permission="wordpress:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={
        "type": "object",
        "required": ["post_id"],
        "properties": {"post_id": {"type": "integer"}, "title": {"type": "string"}},
    },
    acts_on="post/{/payload/post_id}",
    identity=("/target/resource", "/payload/title"),
    findability=Findability.MARKER,
    success_condition="the post reads back",
)
PAGE = CommandDeclaration(
    type="wordpress.create_page",
    system="wordpress",
    title="Create a page",
    permission="wordpress:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={"type": "object", "required": ["slug"], "properties": {"slug": {"type": "string"}}},
    acts_on="page",
    identity=("/target/resource", "/payload/slug"),
    findability=Findability.MARKER,
    success_condition="the page reads back",
)
DECLARATIONS = (DRAFT, TRASH, UPDATE, PUBLISH, POST, RETITLE, PAGE)
ARTICLE = """# Publishes one article.
name: article
version: 1
title: Publish an article
object: {type: article, id: "${input.slug}"}
lifetime: P2D
input:
  type: object
  required: [slug, title]
  additionalProperties: false
  properties:
    slug: {type: string, pattern: "^[a-z0-9-]+$", maxLength: 100}
    title: {type: string, maxLength: 200}
steps:
  - id: draft
    command: wordpress.create_draft
    with: {title: "${input.title}", slug: "${input.slug}", content: "<p>Text</p>"}
    resource: post
  - id: approve
    approval: {scope: "content:publish", binds: ["${steps.draft.content_sha256}"], timeout: P1D, owner: editors}
  - id: publish
    command: wordpress.publish_post
    with: {post_id: "${steps.draft.post_id}", content_sha256: "${steps.draft.content_sha256}"}
    resource: "post/${steps.draft.post_id}"
"""
"""A built-in workflow document of the tests."""
CONNECTIONS = (("acme", "wordpress"), ("acme", "bench"), ("globex", "wordpress"))


class RecordingPublisher:
    """Remembers what would have gone out."""

    def __init__(self) -> None:
        self.published: list[Outgoing] = []

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        self.published.extend(outgoing)


@dataclass
class EdgeUnderTest:
    """One gateway replica and a client on it."""

    gateway: Gateway
    client: httpx.AsyncClient
    publisher: RecordingPublisher
    database: Database
    objects: MemoryObjects
    tokens: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], str] = field(default_factory=dict)

    def access(
        self,
        sub: str = "agent:publisher",
        tenant: str = "acme",
        roles: Sequence[str] = ("agent",),
        scopes: Sequence[str] = (),
    ) -> str:
        name = (sub, tenant, tuple(roles), tuple(scopes))
        if name not in self.tokens:
            self.tokens[name] = sign_access(
                ISSUER, subject=sub, tenant=tenant, roles=roles, scopes=scopes, ttl_seconds=3600, real=real_now()
            )
        return self.tokens[name]

    def headers(self, **who: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access(**who)}"}

    async def decide(
        self, *types: str, resource: str = "post/*", system: str = "wordpress", **who: Any
    ) -> dict[str, Any]:
        context = who.pop("context", {})
        body = {
            "action": {"command_types": list(types or ("wordpress.create_draft",)), "workflow": None},
            "resource": {"system": system, "resource": resource},
            "purpose": "test",
            "evidence": [],
            "context": context,
        }
        response = await self.client.post("/v1/decisions", json=body, headers=self.headers(**who))
        assert response.status_code == 201, response.text
        found: dict[str, Any] = response.json()
        return found

    async def capability(
        self, *types: str, max_uses: int = 1, resource: str = "post/*", system: str = "wordpress", **more: Any
    ) -> dict[str, Any]:
        who = {name: more.pop(name) for name in ("sub", "tenant", "roles") if name in more}
        decision = await self.decide(*types, resource=resource, system=system, context=more.pop("context", {}), **who)
        assert decision["outcome"] == "approved", decision
        body = {"decision_id": decision["decision_id"], "max_uses": max_uses, "ttl_seconds": 600, **more}
        response = await self.client.post("/v1/capabilities", json=body, headers=self.headers(**who))
        assert response.status_code == 201, response.text
        return {**response.json(), "decision_id": decision["decision_id"]}

    async def intent(self, workflow: str = "article", **more: Any) -> httpx.Response:
        """Ask for a decision on starting a workflow."""
        who = {name: more.pop(name) for name in ("sub", "tenant", "roles") if name in more}
        action = {
            "workflow": workflow,
            **{name: more.pop(name) for name in ("version", "command_types") if name in more},
        }
        body = {"action": action, "purpose": "test", "evidence": [], **more}
        return await self.client.post("/v1/decisions", json=body, headers=self.headers(**who))

    async def start_capability(self, workflow: str = "article", **more: Any) -> dict[str, Any]:
        """A capability to start a workflow; `wanted` goes into the capability's request."""
        wanted = more.pop("wanted", {})
        who = {name: more[name] for name in ("sub", "tenant", "roles") if name in more}
        decision = await self.intent(workflow, **more)
        assert decision.status_code == 201 and decision.json()["outcome"] == "approved", decision.text
        body = {"decision_id": decision.json()["decision_id"], "max_uses": 5, "ttl_seconds": 600, **wanted}
        response = await self.client.post("/v1/capabilities", json=body, headers=self.headers(**who))
        assert response.status_code == 201, response.text
        return {**response.json(), "decision_id": decision.json()["decision_id"]}

    async def start(self, capability: str, key: str, slug: str | None = None, **changes: Any) -> httpx.Response:
        """Start the built-in workflow."""
        body = {"definition": "article", "input": {"slug": slug or key, "title": "A title"}, **changes}
        headers = {"Authorization": f"Bearer {capability}", "Idempotency-Key": f'"{key}"'}
        return await self.client.post("/v1/workflows", json=body, headers=headers)

    async def submit(self, capability: str, key: str | None, body: Any = None, **headers: str) -> httpx.Response:
        sent = {"Authorization": f"Bearer {capability}", **headers}
        if key is not None:
            sent["Idempotency-Key"] = f'"{key}"'
        if isinstance(body, bytes):
            sent.setdefault("Content-Type", "application/json")
            return await self.client.post("/v1/commands", content=body, headers=sent)
        return await self.client.post("/v1/commands", json=body, headers=sent)

    async def count(self, table: str, where: str = "true") -> int:
        async with self.database.connection() as connection:
            return int(await connection.fetchval(f'SELECT count(*) FROM gateway."{table}" WHERE {where}'))

    async def rows(self) -> dict[str, int]:
        """How many rows every table that a request could touch has."""
        tables = ("decision", "capability", "mandate", "edge", "call", "freeze", "revocation", "policy")
        tables += ("command_view", "case_view", "outbox")
        return {table: await self.count(table) for table in tables}


def draft(slug: str, **changes: Any) -> dict[str, Any]:
    """A command request for a draft."""
    return {
        "command_type": "wordpress.create_draft",
        "target": {"system": "wordpress", "resource": "post", "expected_version": None},
        "payload": {"title": "A title", "slug": slug, "content": "Text"},
        **changes,
    }


def settings_of(**changes: Any) -> Settings:
    return Settings(mode="development", service="gateway", instance="gateway-test", **changes)


@asynccontextmanager
async def edge(database: TestDatabase, **settings: Any) -> AsyncIterator[EdgeUnderTest]:
    """A running gateway replica on a database with the gateway's schema."""
    pool = await Database.connect(database.url("gateway"), schema="gateway", size=6)
    store = gateway_store(pool)
    policies = PolicySet.default()
    async with store.transaction() as tx:
        await tx.seed(
            PolicyRow(
                version=1,
                sha256=policies.sha256,
                text=policies.text,
                reason="first",
                created_by="service:gateway",
                created_at=real_now(),
                epoch=1,
            )
        )
    catalog = Catalog.of(DECLARATIONS, CONNECTIONS, [read_document(ARTICLE)])
    rules, publisher, reads = RuleBook(), RecordingPublisher(), GatewayReads(pool)
    configured = settings_of(**settings)
    objects = MemoryObjects()
    acceptor = Acceptor(
        store=store,
        publisher=publisher,
        rules=rules,
        keys=GRANT_KEYS,
        crash=RealCrashPoints(),
        schedule=RealSchedule(),
        queue_max=configured.accept_queue_max,
    )
    sightings = Sightings()
    gateway = Gateway(
        settings=configured,
        clock=BusinessClock(),
        catalog=catalog,
        store=store,
        reads=reads,
        rules=rules,
        acceptor=acceptor,
        starter=Starter(
            store=store,
            publisher=publisher,
            rules=rules,
            catalog=catalog,
            crash=RealCrashPoints(),
            schedule=RealSchedule(),
            queue_max=configured.accept_queue_max,
        ),
        signals=SignalTaker(
            store=store,
            publisher=publisher,
            crash=RealCrashPoints(),
            schedule=RealSchedule(),
            queue_max=configured.accept_queue_max,
            sightings=sightings,
        ),
        sightings=sightings,
        answers=AnswerBoard(reads),
        verifier=verifier_of(SIGNING, ISSUER),
        signing_key=SIGNING,
        answer_subject="trueup.answer.gateway-test",
        publisher=publisher,
        watch=CaseWatch(reads),
        objects=objects,
        dev_key=ISSUER,
    )
    stop = asyncio.Event()
    acceptor.start()
    gateway.starter.start()
    gateway.signals.start()
    polling = asyncio.create_task(gateway.answers.poll(stop))
    watching = asyncio.create_task(gateway.watch.run(stop))
    transport = httpx.ASGITransport(app=create_app(gateway), raise_app_exceptions=True)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield EdgeUnderTest(gateway, client, publisher, pool, objects)
    finally:
        stop.set()
        await polling
        await watching
        await acceptor.close()
        await gateway.starter.close()
        await gateway.signals.close()
        await pool.close()


def later(seconds: float) -> datetime:
    return real_now() + timedelta(seconds=seconds)
