"""The command types of WordPress: declaration, perform and find of each together, so adding one touches this file

A post carries every operation on it as a marker at the end of its content, a draft carries its identity in the slug as
well. A slug is not a lock: look up before creating, compare the slug that came back, and touch nothing of others. Where
the site gave the draft another slug, the draft of this very attempt is moved to the trash and the command ends as a
conflict; where anything about that is uncertain, the outcome is UNKNOWN and a person sees both posts.
"""

import asyncio
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from trueup_adapters.systems.http import Answer, TransportFailed
from trueup_adapters.systems.wordpress.inspection import ON_POST, InspectPost
from trueup_adapters.systems.wordpress.site import (
    META,
    Asked,
    Post,
    ReadFailed,
    Site,
    asked_of,
    doubtful,
    exact_sha256,
    fields_of,
    marked,
    marker,
    meta_sha256,
    probe_posts,
    survey_posts,
    text_sha256,
)
from trueup_common.contracts.adapter import Call, Connection, Outcome, confirmed, rejected, unknown
from trueup_common.contracts.declaration import CommandDeclaration, Drift, Establishes, Mapping, Probe, Repair
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel
from trueup_common.contracts.survey import Page
from trueup_common.contracts.task import ProbeElement

SYSTEM: Final = "wordpress"
READ_BACK_PAUSES_SECONDS: Final = (0.0, 0.15, 0.6)
_B, _P = ErrorClass.BUSINESS, ErrorClass.PERMANENT
_TIMES: Final[dict[str, float]] = {
    "timeout_seconds": 20.0,
    "start_window_seconds": 20.0,
    "late_window_seconds": 10.0,
}
"""PHP's own limit ends a request that nobody waits for any more within the late window."""

_TEXT: Final = {"type": "string", "maxLength": 200_000, "not": {"pattern": "<!--\\s*trueup"}}
PREVIOUS_BYTES_MAX: Final = 400_000
_BODY: Final = {**_TEXT, "maxLength": 4_000_000}
"""More than a request may hold comes as an artifact."""
_TITLE: Final = {"type": "string", "minLength": 1, "maxLength": 500}
_POST_ID: Final = {"type": "integer", "minimum": 1}
_MODIFIED: Final = {"type": "string", "minLength": 19, "maxLength": 20}
_SLUG: Final = {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 180}
_SLUG_AS_IT_IS: Final = {"type": "string", "minLength": 1, "maxLength": 400, "pattern": "^[^/?#\\x00-\\x20]+$"}
"""Of a post that is there: others than ours may be spelled in any way."""
_META: Final = {
    "type": "object",
    "maxProperties": 50,
    "properties": {
        "description": {"type": "string"},
        "json_ld": {"type": ["object", "string"]},
        "citations": {"type": "array", "items": {"type": "string"}},
        "featured_image": {"type": "string"},
    },
}
_RECEIPT: Final = {
    "type": "object",
    "required": ["post_id", "status"],
    "properties": {
        "post_id": _POST_ID,
        "resource": {"type": "string"},
        "slug": {"type": "string"},
        "status": {"type": "string"},
        "link": {"type": "string"},
        "modified_gmt": {"type": "string"},
        "content_sha256": {"type": "string"},
        "content_text_sha256": {"type": "string"},
        "fields": {"type": "object"},
        "meta_names": {"type": "array", "items": {"type": "string"}},
        "meta_sha256": {"type": "string"},
    },
}


def _payload(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def _establish(element: str, value: ValueFrom, repair: Repair | None = None, **params: ValueFrom) -> Establishes:
    return Establishes(
        element=element,
        resource=ValueFrom(pointer="/receipt/resource"),
        value=value,
        window_seconds=0.0,
        probe=Probe(kind="wordpress.post", params={"post_id": ValueFrom(pointer="/receipt/post_id"), **params}),
        repair=repair,
    )


_EXISTS: Final = _establish("wordpress.post_id", ValueFrom(pointer="/receipt/post_id"))
_CONTENT: Final = _establish("wordpress.content", ValueFrom(pointer="/receipt/content_text_sha256"))
_FIELDS: Final = _establish("wordpress.fields", ValueFrom(pointer="/receipt/fields"))
"""Title and excerpt: whatever a command sent, its read-back has to show."""
_META_SENT: Final = _establish(
    META, ValueFrom(pointer="/receipt/meta_sha256"), meta_names=ValueFrom(pointer="/receipt/meta_names")
)
"""None of these has a repair: a post that is gone for good would come back under another id, and what an editor wrote
is an editor's to judge."""


def _status(value: str, repair: Repair | None = None) -> Establishes:
    return _establish("wordpress.status", ValueFrom(const=value), repair)


_DRAFT_AGAIN: Final = Repair(
    command_type="wordpress.restore_draft",
    payload={"post_id": ValueFrom(pointer="/receipt/post_id"), "slug": ValueFrom(pointer="/receipt/slug")},
    mends=(Drift.DIFFERENT,),
    binds={"expected_modified_gmt": "version"},
    verification="the post is a draft again under its own slug",
)
_PUBLIC_AGAIN: Final = Repair(
    command_type="wordpress.publish_post",
    payload={
        "post_id": ValueFrom(pointer="/payload/post_id"),
        "content_sha256": ValueFrom(pointer="/payload/content_sha256"),
        "restored_slug": ValueFrom(pointer="/receipt/slug"),
    },
    mends=(Drift.DIFFERENT,),
    binds={"expected_modified_gmt": "version"},
    verification="the post is public again under its own address, with exactly the approved content",
)


class Command(Protocol):
    """One command type."""

    @property
    def declaration(self) -> CommandDeclaration:
        """Everything about the type, as data."""
        ...

    async def perform(self, site: Site, call: Call) -> Outcome:
        """Look, write once, read back. ReadFailed may leave it only before the write."""
        ...

    async def find(self, site: Site, call: Call) -> Finding:
        """Look for the effect. ReadFailed may leave it."""
        ...


def _result(post: Post, text: str, **more: Any) -> dict[str, Any]:
    """The receipt. Digests are those of what was asked for, never of what the site made of it."""
    return {
        "post_id": post.id,
        "resource": post.resource,
        "slug": post.slug,
        "status": post.status,
        "link": post.link,
        "modified_gmt": post.modified_gmt,
        "content_sha256": exact_sha256(text),
        "content_text_sha256": text_sha256(text),
        **more,
    }


async def _read_back(site: Site, post_id: int) -> Post | None:
    """The post as the read account sees it now; None where no read says so. Reads may be repeated, writes never."""
    for pause in READ_BACK_PAUSES_SECONDS:
        if pause:
            await asyncio.sleep(pause)
        try:
            post = await site.post(post_id, reader=True)
        except ReadFailed:
            continue
        if post is not None:
            return post
    return None


def _created(post: Post, payload: MappingOf[str, Any]) -> dict[str, Any]:
    """The receipt of a new post, with every field that was sent."""
    meta = payload.get("meta") or {}
    return _result(
        post,
        payload["content"],
        fields=fields_of(payload["title"], payload.get("excerpt", "")),
        meta_names=sorted(meta),
        meta_sha256=meta_sha256(meta, meta),
    )


def _success(site: Site, post: Post, result: dict[str, Any], answer: Answer | None) -> Outcome:
    return confirmed(
        result,
        external_resource_id=str(post.id),
        external_version=post.modified_gmt,
        external_status=str(answer.status) if answer is not None else None,
        observations=site.observe(post, result.get("meta_names")),
    )


def _found(site: Site, post: Post, result: dict[str, Any], rung: Findability) -> Finding:
    return Finding(
        verdict=FindVerdict.CONFIRMED,
        proof_of_access=True,
        evidence=rung.value,
        candidates=1,
        result=result,
        external_resource_id=str(post.id),
        external_version=post.modified_gmt,
        observations=site.observe(post, result.get("meta_names")),
    )


def _undecided(verdict: FindVerdict, reason: str, *, candidates: int = 0, proof: bool = False) -> Finding:
    return Finding(verdict=verdict, reason=reason, candidates=candidates, proof_of_access=proof)


_GONE: Final = _undecided(FindVerdict.AMBIGUOUS, "object_gone", proof=True)


async def _gone(site: Site) -> Finding:
    """The post itself does not exist: whether the operation came before its end, nobody can see."""
    denied = await site.prove_access()
    return _undecided(FindVerdict.UNKNOWN, denied) if denied else _GONE


class CreateDraft:
    """`wordpress.create_draft`: its business identity is the slug."""

    declaration = CommandDeclaration(
        type="wordpress.create_draft",
        system=SYSTEM,
        title="Create a draft",
        description="Stores a new post as a draft under a slug that names it.",
        permission="content:draft",
        effect_class=EffectClass.COMPENSABLE,
        payload_schema=_payload(
            ("title", "content", "slug"),
            title=_TITLE,
            content={**_BODY, "minLength": 1},
            slug=_SLUG,
            excerpt=_TEXT,
            meta=_META,
        ),
        receipt_schema=_RECEIPT,
        acts_on="post",
        identity=("/target/resource", "/payload/slug"),
        findability=Findability.MARKER,
        **_TIMES,
        find_ladder=(Findability.MARKER, Findability.BUSINESS_KEY),
        expected_version="none",
        success_condition="the post is read back under its own slug with this operation's marker; fields are elements",
        establishes=(_EXISTS, _status("draft", _DRAFT_AGAIN), _CONTENT, _FIELDS, _META_SENT),
        compensation=Mapping(
            command_type="wordpress.trash_post",
            payload={"post_id": ValueFrom(pointer="/receipt/post_id"), "only_status": ValueFrom(const="draft")},
            verification="the post is in the trash; one that somebody published meanwhile is a person's",
        ),
        forward_recovery="retry",
        manual_policy="an editor compares the posts under the slug and settles which one is meant",
        risk=RiskLevel.LOW,
        blast_radius=5,
    )

    async def perform(self, site: Site, call: Call) -> Outcome:
        """Look under the slug, create, compare the slug that came back, read back."""
        payload, command_id = call.operation.payload, call.operation.command_id
        holders = await site.posts(slug=payload["slug"], status="any")
        own = [post for post in holders if command_id in post.operations]
        if own:
            return await self._verified(site, call, own[0], None) if len(own) == 1 else _duplicated(own)
        if holders:
            return rejected(_B, "foreign_object", f"post {holders[0].id} holds the slug {payload['slug']!r}")
        if payload.get("meta"):
            unusable = await site.unusable_meta(payload["meta"])
            if unusable:
                return rejected(_P, "meta_unregistered", f"not registered with this type: {', '.join(unusable)}")
        document = {key: payload[key] for key in ("title", "slug", "excerpt", "meta") if key in payload}
        document |= {"status": "draft", "content": marked(payload["content"], (marker(command_id),))}
        try:
            answer = await site.change("POST", "/posts", document, call)
        except TransportFailed as failure:
            return failure.outcome()
        created = answer.document()
        if created is None:
            # The site stores the post first and checks the meta afterwards: its 400 may follow an effect.
            stored = answer.status == 400 and "meta" in document
            return unknown("answer_contradictory", answer.detail()) if stored else answer.outcome()
        try:
            post = Post.of(created)
        except ValueError:
            return unknown("answer_unreadable", answer.detail(), external_status=str(answer.status))
        if post.slug != payload["slug"]:
            return await self._withdraw_twin(site, call, post)
        return await self._verified(site, call, post, answer)

    async def _verified(self, site: Site, call: Call, post: Post, answer: Answer | None) -> Outcome:
        seen = await _read_back(site, post.id)
        if seen is None:
            return unknown("read_back_failed", f"post {post.id} was created but cannot be read")
        if call.operation.command_id not in seen.operations or seen.slug != call.operation.payload["slug"]:
            return unknown("verification_failed", f"post {post.id} reads back as another one")
        return _success(site, seen, _created(seen, call.operation.payload), answer)

    async def _withdraw_twin(self, site: Site, call: Call, twin: Post) -> Outcome:
        """Somebody else took the slug first. Clean up what this attempt created, and nothing else."""
        command_id, slug = call.operation.command_id, call.operation.payload["slug"]
        doubt = unknown("slug_taken", f"the site stored post {twin.id} as {twin.slug!r} instead of {slug!r}")
        try:
            holders = await site.posts(slug=slug, status="any")
            current = await site.post(twin.id)
            if any(command_id in holder.operations for holder in holders):
                return _duplicated([*holders, twin])
            if current is None or command_id not in current.operations or current.status != "draft":
                return doubt
            await site.change("DELETE", f"/posts/{twin.id}", None, call)
            current = await site.post(twin.id)
        except (ReadFailed, TransportFailed):
            return doubt
        if current is None or current.status != "trash":
            return doubt
        holder = f"post {holders[0].id} holds the slug" if holders else "the site does not give out the slug"
        code = "foreign_object" if holders else "slug_unavailable"
        return rejected(_B, code, f"{holder} {slug!r}; the draft {twin.id} of this attempt was moved to the trash")

    async def find(self, site: Site, call: Call) -> Finding:
        """By marker everywhere, then by slug. A post on the slug without any marker might be ours: ambiguous."""
        operation = call.operation
        slug, command_id = operation.payload["slug"], operation.command_id
        on_slug = await site.posts(reader=True, slug=slug, status="any")
        by_marker = await site.posts(reader=True, search=f"trueup:{command_id}", status="any")
        trashed = await site.posts(reader=True, search=f"trueup:{command_id}", status="trash")
        live = {post.id: post for post in (*on_slug, *by_marker) if command_id in post.operations}
        # A twin that this operation moved to the trash itself has another slug and is no effect any more.
        live |= {p.id: p for p in trashed if command_id in p.operations and p.slug == f"{slug}__trashed"}
        if len(live) > 1:
            return _undecided(FindVerdict.AMBIGUOUS, "effects_duplicated", candidates=len(live), proof=True)
        if live:
            post = next(iter(live.values()))
            if post.slug not in (slug, f"{slug}__trashed"):
                return _undecided(FindVerdict.AMBIGUOUS, "slug_differs", candidates=1, proof=True)
            return _found(site, post, _created(post, operation.payload), Findability.MARKER)
        denied = await site.prove_access()
        if denied:
            return _undecided(FindVerdict.UNKNOWN, denied)
        if call.sent_before is not None and any(not post.operations for post in on_slug):
            return _undecided(FindVerdict.AMBIGUOUS, "unmarked_post_on_slug", proof=True)
        return Finding(
            verdict=FindVerdict.MISSING, proof_of_access=True, evidence=Findability.MARKER.value, candidates=0
        )


def _duplicated(posts: Sequence[Post]) -> Outcome:
    return unknown("effects_duplicated", "posts " + ", ".join(str(post.id) for post in posts))


def _changed(call: Call, post: Post) -> Outcome | None:
    """The refusal where the caller bound a version that is no longer the post's."""
    expected = (call.operation.target.expected_version, call.operation.payload.get("expected_modified_gmt"))
    for value in expected:
        if value is not None and value.removesuffix("Z") != post.modified_gmt:
            return rejected(_B, "version_conflict", f"post {post.id} was modified at {post.modified_gmt}")
    return None


class _OnPost:
    """A command on an existing post: the shared part of looking, sending and reading back."""

    declaration: CommandDeclaration
    wanted_status: str | None = None
    """What the post's status must be afterwards; None where the command leaves it alone."""

    async def perform(self, site: Site, call: Call) -> Outcome:
        """Look, refuse what does not fit, write once, read back."""
        post = await site.post(call.operation.payload["post_id"])
        if post is None:
            return rejected(_P, "not_found", f"no post {call.operation.payload['post_id']}")
        if self.done(post, call):
            return await self._verified(site, call, post, None)
        refusal = self.refusal(post, call) or _changed(call, post)
        if refusal is not None:
            return refusal
        call = await self.remember(post, call)
        try:
            answer = await self.send(site, post, call)
        except TransportFailed as failure:
            return failure.outcome()
        if answer.document() is None and not self.already(answer):
            return answer.outcome()
        return await self._verified(site, call, post, answer)

    async def _verified(self, site: Site, call: Call, post: Post, answer: Answer | None) -> Outcome:
        seen = await _read_back(site, post.id)
        if seen is None:
            return unknown("read_back_failed", f"post {post.id} cannot be read back")
        if not self.done(seen, call) or (self.wanted_status and seen.status != self.wanted_status):
            return unknown("verification_failed", f"post {post.id} reads back as {seen.status}")
        return _success(site, seen, self.result(seen, call), answer)

    async def find(self, site: Site, call: Call) -> Finding:
        """By the marker on the post."""
        post = await site.post(call.operation.payload["post_id"], reader=True)
        if post is None:
            return await _gone(site)
        if self.done(post, call):
            if post.status == "future" and self.wanted_status == "publish":
                return _undecided(FindVerdict.AMBIGUOUS, "scheduled", candidates=1, proof=True)
            return _found(site, post, self.result(post, call), self.declaration.findability)
        if self.resembles(post, call):
            return _undecided(FindVerdict.AMBIGUOUS, "done_without_marker", proof=True)
        return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=self.declaration.findability.value)

    def done(self, post: Post, call: Call) -> bool:
        """True where the post carries this operation's evidence."""
        return call.operation.command_id in post.operations

    def refusal(self, post: Post, call: Call) -> Outcome | None:
        """Why this post in this state does not take the command; None where it does."""
        return rejected(_B, "gone", f"post {post.id} is in the trash") if post.status == "trash" else None

    def resembles(self, post: Post, call: Call) -> bool:
        """True where the post looks done without carrying the evidence."""
        return False

    def already(self, answer: Answer) -> bool:
        """True where a refusal says that the effect is there already."""
        return False

    async def remember(self, post: Post, call: Call) -> Call:
        """Keep what a later compensation needs, before the write."""
        return call

    def result(self, post: Post, call: Call) -> dict[str, Any]:
        """The receipt."""
        return {"post_id": post.id, "resource": post.resource, "status": post.status}

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """The one write."""
        raise NotImplementedError


def _with_marker(post: Post, call: Call, text: str | None = None, *, withdrawn: bool = False) -> str:
    own = marker(call.operation.command_id, withdrawn=withdrawn)
    return marked(post.text if text is None else text, (*post.markers, own))


class UpdatePost(_OnPost):
    """`wordpress.update_post`: title or content, against the version that the caller saw."""

    declaration = CommandDeclaration(
        type="wordpress.update_post",
        system=SYSTEM,
        title="Update a post",
        description="Changes title or content of a post that nobody changed meanwhile.",
        permission="content:draft",
        effect_class=EffectClass.COMPENSABLE,
        payload_schema={
            **_payload(
                ("post_id", "expected_modified_gmt"),
                post_id=_POST_ID,
                title=_TITLE,
                content=_BODY,
                expected_modified_gmt=_MODIFIED,
            ),
            "anyOf": [{"required": ["title"]}, {"required": ["content"]}],
        },
        receipt_schema=_RECEIPT,
        acts_on=ON_POST,
        exclusive=True,
        findability=Findability.MARKER,
        **_TIMES,
        find_ladder=(Findability.MARKER,),
        success_condition="the post is read back with this operation's marker; its fields are elements",
        establishes=(_CONTENT, _FIELDS),
        compensation=Mapping(
            command_type="wordpress.update_post",
            payload={
                "post_id": ValueFrom(pointer="/payload/post_id"),
                "title": ValueFrom(pointer="/receipt/previous_title"),
                "content": ValueFrom(pointer="/receipt/previous_content"),
                "expected_modified_gmt": ValueFrom(pointer="/receipt/modified_gmt"),
            },
            verification="the post reads back with the recorded earlier content",
        ),
        forward_recovery="retry",
        manual_policy="an editor compares the post with the payload",
        risk=RiskLevel.LOW,
        blast_radius=10,
    )

    def refusal(self, post: Post, call: Call) -> Outcome | None:
        """What could not be put back is not replaced: the receipt that an undoing restores must hold all of it."""
        size = len(post.title.encode()) + len(post.text.encode())
        if size > PREVIOUS_BYTES_MAX:
            return rejected(_B, "too_large_to_undo", f"post {post.id} holds {size} bytes, more than a receipt keeps")
        return super().refusal(post, call)

    async def remember(self, post: Post, call: Call) -> Call:
        """What the compensation restores goes into the ledger first: after a crash nobody else knows it."""
        previous = {
            "previous_title": post.title,
            "previous_content": post.text,
            "fields": fields_of(call.operation.payload.get("title", post.title), post.excerpt),
        }
        await call.progress(previous)
        return replace(call, cursor=previous)

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """Title and content, all markers kept."""
        payload = call.operation.payload
        document = {"content": _with_marker(post, call, payload.get("content"))}
        if "title" in payload:
            document["title"] = payload["title"]
        return await site.change("POST", f"/posts/{post.id}", document, call)

    def result(self, post: Post, call: Call) -> dict[str, Any]:
        """The receipt, with what was there before: what the command left alone has to be as it was."""
        payload = call.operation.payload
        fields = fields_of(payload.get("title", post.title), post.excerpt)
        return _result(post, payload.get("content", post.text), **{"fields": fields, **(call.cursor or {})})


class PublishPost(_OnPost):
    """`wordpress.publish_post`: exactly the approved content goes out, now and not at some later date."""

    wanted_status = "publish"
    declaration = CommandDeclaration(
        type="wordpress.publish_post",
        system=SYSTEM,
        title="Publish a post",
        description="Makes a post public whose content is exactly the approved one.",
        permission="content:publish",
        effect_class=EffectClass.PIVOT,
        payload_schema=_payload(
            ("post_id", "content_sha256"),
            post_id=_POST_ID,
            content_sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
            expected_modified_gmt=_MODIFIED,
            restored_slug=_SLUG_AS_IT_IS,
        ),
        receipt_schema={
            **_RECEIPT,
            "properties": {
                **_RECEIPT["properties"],  # type: ignore[dict-item]
                "published_at": {"type": "string"},
                "post_version": {"type": "string"},
            },
        },
        acts_on=ON_POST,
        exclusive=True,
        findability=Findability.MARKER,
        **_TIMES,
        find_ladder=(Findability.MARKER,),
        success_condition="the post is read back as published with this operation's marker",
        establishes=(_status("publish", _PUBLIC_AGAIN), _CONTENT),
        compensation=Mapping(
            command_type="wordpress.withdraw_post",
            payload={"post_id": ValueFrom(pointer="/payload/post_id")},
            verification="the post is a draft again and marked as withdrawn; incident, cache and index are followed up",
        ),
        forward_recovery="repair",
        manual_policy="an editor looks at the public page and the post's revisions",
        risk=RiskLevel.HIGH,
        blast_radius=60,
    )

    async def perform(self, site: Site, call: Call) -> Outcome:
        """A post that is made public again needs its own address to be free: its slug is not a lock."""
        slug = call.operation.payload.get("restored_slug")
        taken = await _taken(site, call, slug) if slug is not None else None
        return taken or await super().perform(site, call)

    def done(self, post: Post, call: Call) -> bool:
        """By the marker; a restoration also where the post is as it was, whoever brought it back."""
        slug = call.operation.payload.get("restored_slug")
        if slug is None:
            return super().done(post, call)
        is_whole = exact_sha256(post.text) == call.operation.payload["content_sha256"]
        return post.status == "publish" and post.slug == slug and is_whole

    def refusal(self, post: Post, call: Call) -> Outcome | None:
        """Only the approved content, only a post that is not public yet, and only for now.

        Out of the trash only where that is what the command is about.
        """
        if exact_sha256(post.text) != call.operation.payload["content_sha256"]:
            return rejected(_B, "version_conflict", f"post {post.id} does not have the approved content")
        if post.status in ("publish", "future"):
            return rejected(_B, "already_published", f"post {post.id} is {post.status}, by somebody else's action")
        if post.is_dated_ahead:
            return rejected(_B, "scheduled", f"post {post.id} is dated {post.date_gmt}: it would be scheduled")
        return None if "restored_slug" in call.operation.payload else super().refusal(post, call)

    def resembles(self, post: Post, call: Call) -> bool:
        """Public, but not by this operation as far as anyone can see."""
        return post.status in ("publish", "future")

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """Status and the approved content together, so that nothing else can become public."""
        document = {"status": "publish", "content": _with_marker(post, call)}
        return await site.change("POST", f"/posts/{post.id}", document, call)

    def result(self, post: Post, call: Call) -> dict[str, Any]:
        """The receipt."""
        more = {"published_at": post.date_gmt, "post_version": post.modified_gmt}
        return _result(post, post.text, **more)


async def _taken(site: Site, call: Call, slug: str) -> Outcome | None:
    """The refusal where another post holds the address that this one had. Raises ReadFailed."""
    others = [
        post for post in await site.posts(slug=slug, status="any") if post.id != call.operation.payload["post_id"]
    ]
    if not others:
        return None
    return rejected(_B, "foreign_object", f"post {others[0].id} holds the slug {slug!r} by now")


class RestoreDraft(_OnPost):
    """`wordpress.restore_draft`: a draft out of the trash, under its own slug. Its evidence is the state itself."""

    wanted_status = "draft"
    declaration = CommandDeclaration(
        type="wordpress.restore_draft",
        system=SYSTEM,
        title="Take a draft out of the trash",
        description="Makes a trashed post a draft again, with its id, its slug and everything on it.",
        permission="content:draft",
        effect_class=EffectClass.RETRYABLE,
        payload_schema=_payload(
            ("post_id", "slug"), post_id=_POST_ID, slug=_SLUG_AS_IT_IS, expected_modified_gmt=_MODIFIED
        ),
        receipt_schema=_RECEIPT,
        acts_on=ON_POST,
        exclusive=True,
        findability=Findability.BUSINESS_KEY,
        **_TIMES,
        find_ladder=(Findability.BUSINESS_KEY,),
        success_condition="the post is read back as a draft under its own slug",
        establishes=(_status("draft", _DRAFT_AGAIN),),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=5,
    )

    async def perform(self, site: Site, call: Call) -> Outcome:
        """A slug is not a lock: it has to be free."""
        return await _taken(site, call, call.operation.payload["slug"]) or await super().perform(site, call)

    def done(self, post: Post, call: Call) -> bool:
        """A draft under its slug is done, whoever did it."""
        return post.status == "draft" and post.slug == call.operation.payload["slug"]

    def refusal(self, post: Post, call: Call) -> Outcome | None:
        """Only out of the trash: what is published by now stays published."""
        if post.status == "trash":
            return None
        return rejected(_B, "version_conflict", f"post {post.id} is {post.status} by now, not in the trash")

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """The site gives a post that leaves the trash its own slug back."""
        return await site.change("POST", f"/posts/{post.id}", {"status": "draft"}, call)

    def result(self, post: Post, call: Call) -> dict[str, Any]:
        """The receipt."""
        return {"post_id": post.id, "resource": post.resource, "status": post.status, "slug": post.slug}


class WithdrawPost(_OnPost):
    """`wordpress.withdraw_post`: back to draft, marked as withdrawn."""

    wanted_status = "draft"
    declaration = CommandDeclaration(
        type="wordpress.withdraw_post",
        system=SYSTEM,
        title="Withdraw a post",
        description="Takes a post from the public back to draft and marks it as withdrawn.",
        permission="content:withdraw",
        effect_class=EffectClass.RETRYABLE,
        payload_schema=_payload(("post_id",), post_id=_POST_ID),
        receipt_schema=_RECEIPT,
        acts_on=ON_POST,
        exclusive=True,
        findability=Findability.MARKER,
        **_TIMES,
        find_ladder=(Findability.MARKER,),
        success_condition="the post is read back as a draft with this operation's withdrawal marker",
        establishes=(_status("draft"),),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=20,
    )

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """Status and marker together."""
        document = {"status": "draft", "content": _with_marker(post, call, withdrawn=True)}
        return await site.change("POST", f"/posts/{post.id}", document, call)


class TrashPost(_OnPost):
    """`wordpress.trash_post`: its evidence is the state itself; a second one has no further effect."""

    wanted_status = "trash"
    declaration = CommandDeclaration(
        type="wordpress.trash_post",
        system=SYSTEM,
        title="Move a post to the trash",
        description="Moves a post to the trash, from where a person can restore it.",
        permission="content:withdraw",
        effect_class=EffectClass.RETRYABLE,
        payload_schema=_payload(
            ("post_id",),
            post_id=_POST_ID,
            only_status={"type": "string", "enum": ["draft", "pending", "private", "publish", "future"]},
        ),
        receipt_schema=_RECEIPT,
        acts_on=ON_POST,
        exclusive=True,
        findability=Findability.BUSINESS_KEY,
        **_TIMES,
        find_ladder=(Findability.BUSINESS_KEY,),
        success_condition="the post is read back in the trash",
        establishes=(_status("trash"),),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=20,
    )

    def done(self, post: Post, call: Call) -> bool:
        """In the trash is done, whoever did it."""
        return post.status == "trash"

    def refusal(self, post: Post, call: Call) -> Outcome | None:
        """Undoing a draft never takes a page off the site that somebody published meanwhile."""
        only = call.operation.payload.get("only_status")
        if only is not None and post.status != only:
            return rejected(_B, "version_conflict", f"post {post.id} is {post.status} by now, not {only}")
        return super().refusal(post, call)

    def already(self, answer: Answer) -> bool:
        """410: somebody was faster; the read-back decides."""
        return answer.status == 410

    async def send(self, site: Site, post: Post, call: Call) -> Answer:
        """Without `force`: a person can restore it."""
        return await site.change("DELETE", f"/posts/{post.id}", None, call)


COMMANDS: Final[Sequence[Command]] = (
    CreateDraft(), UpdatePost(), PublishPost(), RestoreDraft(), WithdrawPost(), TrashPost(), InspectPost(),
)  # fmt: skip
_BY_TYPE: Final = {command.declaration.type: command for command in COMMANDS}


class WordPressTarget(Site):
    """The site as the adapter's service uses it."""

    async def perform(self, call: Call) -> Outcome:
        """Perform one command."""
        try:
            return await _BY_TYPE[call.operation.command_type].perform(self, call)
        except ReadFailed as failure:
            return failure.outcome

    async def find(self, call: Call) -> Finding:
        """Find one command's effect."""
        try:
            return await _BY_TYPE[call.operation.command_type].find(self, call)
        except ReadFailed as failure:
            return _undecided(FindVerdict.UNKNOWN, failure.reason)

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Elements of posts, one read per post."""
        asked = [asked_of(item.element, item.params) for item in elements]
        wanted: dict[int, list[Asked]] = {}
        for known in asked:
            if known is not None:
                wanted.setdefault(known[0], []).append(known[1])
        found = await probe_posts(self, wanted)
        return [
            found[known] if known is not None else doubtful(item.element, "element_unknown")
            for item, known in zip(elements, asked, strict=True)
        ]

    async def survey(self, cursor: str | None, params: MappingOf[str, Any]) -> Page:
        """Posts with markers. Raises ReadFailed."""
        return await survey_posts(self, cursor)


class WordPressAdapter:
    """The entry point."""

    system = SYSTEM
    declarations = tuple(command.declaration for command in COMMANDS)
    settings = frozenset({"base_url", "username", "password", "read_username", "read_password"})

    def open(self, connection: Connection) -> WordPressTarget:
        """A target for one connection: base_url, username, password, and optionally read_username, read_password."""
        return WordPressTarget(connection)
