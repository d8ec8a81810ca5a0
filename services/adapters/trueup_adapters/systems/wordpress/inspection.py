"""Inspecting a post: what the site really holds, and whether what it leads to is there. It reads and changes nothing.

The post is read raw with the read account. What it leads to is visited as a stranger would, and what cannot be told
stays unknown: it is in the receipt under its own name and never counts as good. A read leaves nothing behind, so a
lost answer is looked for nowhere: with access proved it counts as missing, and the read is simply done again.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trueup_adapters.systems.visitor import VISITS_MAX, Visit, Visitor
from trueup_adapters.systems.wordpress.article import Article
from trueup_adapters.systems.wordpress.site import Post, Site, exact_sha256
from trueup_adapters.systems.wordpress.structured_data import judge
from trueup_common.contracts.adapter import Call, Outcome, confirmed, rejected
from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel
from trueup_common.runtime.clock import real_now

LINK_SECONDS: Final = 5.0
SHARE_FOR_VISITS: Final = 0.6
"""Of the attempt's time; the rest is for reading the post."""
_SHOWN_CHARACTERS: Final = 500
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_NUMBER: Final = {"type": "integer"}
_PERHAPS: Final = {"type": ["boolean", "null"]}
_VISITS: Final = {
    "type": "array",
    "maxItems": VISITS_MAX,
    "items": {
        "type": "object",
        "required": ["url", "status", "ok", "reason"],
        "properties": {
            "url": _TEXT,
            "status": {"type": ["integer", "null"]},
            "ok": _PERHAPS,
            "reason": {"type": ["string", "null"]},
        },
    },
}
_FIELDS: Final[dict[str, Any]] = {
    "post_id": {"type": "integer", "minimum": 1},
    "resource": _TEXT,
    "status": _TEXT,
    "title": _TEXT,
    "slug": _TEXT,
    "excerpt": _TEXT,
    "description": _TEXT,
    "modified_gmt": _TEXT,
    "content_sha256": {**_TEXT, "description": "of the content without the markers of operations"},
    "content_matches": {"type": "boolean", "description": "whether it is the hash that was asked about, if any was"},
    "words": _NUMBER,
    "json_ld_valid": {"type": "boolean"},
    "json_ld_errors": _TEXTS,
    "json_ld_warnings": _TEXTS,
    "json_ld_type": _TEXT,
    "headline": _TEXT,
    "links": _VISITS,
    "links_count": _NUMBER,
    "links_broken": _TEXTS,
    "links_unknown": _TEXTS,
    "citations": _VISITS,
    "citations_count": _NUMBER,
    "citations_broken": _TEXTS,
    "citations_unknown": _TEXTS,
    "unchecked_count": {**_NUMBER, "description": f"addresses beyond the {VISITS_MAX} that one inspection visits"},
    "featured_image": _TEXT,
    "featured_image_status": {"type": ["integer", "null"]},
    "featured_image_ok": _PERHAPS,
    "featured_image_reason": {"type": ["string", "null"]},
    "featured_image_content_type": {"type": ["string", "null"]},
    "checked_at": _TEXT,
}

ON_POST: Final = "post/{/payload/post_id}"
"""The object of every command type on an existing post."""


class InspectPost:
    """`wordpress.inspect_post`: a recorded look, repeated freely until it gives an answer."""

    declaration = CommandDeclaration(
        type="wordpress.inspect_post",
        system="wordpress",
        title="Inspect a post",
        description="Reads a post as it is stored, and visits its links, citations and featured image.",
        permission="content:read",
        effect_class=EffectClass.READ,
        payload_schema={
            "type": "object",
            "additionalProperties": False,
            "required": ["post_id"],
            "properties": {
                "post_id": {"type": "integer", "minimum": 1},
                "content_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                "link_timeout_seconds": {"type": "number", "minimum": 0.1, "maximum": 15},
            },
        },
        receipt_schema={
            "type": "object",
            "required": [name for name in _FIELDS if name != "content_matches"],
            "properties": _FIELDS,
        },
        acts_on=ON_POST,
        # Evidence of a read is its receipt alone. The ladder names what is asked for proof of access.
        findability=Findability.BUSINESS_KEY,
        find_ladder=(Findability.BUSINESS_KEY,),
        timeout_seconds=25.0,
        start_window_seconds=10.0,
        late_window_seconds=0.0,  # nothing can happen late
        expected_version="none",
        success_condition="the post is read raw, and every address in it is visited or named as unknown",
        read_back=False,
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=0,
    )

    async def perform(self, site: Site, call: Call) -> Outcome:
        """Read the post, then visit what it leads to. ReadFailed may leave it: nothing was changed."""
        payload = call.operation.payload
        post = await site.post(payload["post_id"], reader=True)
        if post is None:
            return rejected(ErrorClass.PERMANENT, "not_found", f"no post {payload['post_id']}")
        call.may_send()
        seen = await _seen(site, post, payload, call.timeout_seconds * SHARE_FOR_VISITS)
        return confirmed(seen, external_resource_id=str(post.id), external_version=post.modified_gmt)

    async def find(self, site: Site, call: Call) -> Finding:
        """A read left nothing to find. ReadFailed does not leave it."""
        denied = await site.prove_access()
        if denied:
            return Finding(verdict=FindVerdict.UNKNOWN, reason=denied)
        evidence = self.declaration.findability.value
        return Finding(
            verdict=FindVerdict.MISSING, proof_of_access=True, evidence=evidence, reason="reads_leave_nothing"
        )


async def _seen(site: Site, post: Post, payload: Mapping[str, Any], total_seconds: float) -> dict[str, Any]:
    article = await asyncio.to_thread(Article, post.text, post.link)  # a long one must not stop everybody else
    citations = _citations(post.meta.get("citations"))
    image = _text(post.meta.get("featured_image")).strip()
    visitor = Visitor(
        allow_private=site.allow_private,
        link_timeout_seconds=payload.get("link_timeout_seconds", LINK_SECONDS),
        total_timeout_seconds=total_seconds,
    )
    async with visitor:
        visits = await visitor.visit((*citations, *article.links), (image,))
    data = judge(post.meta.get("json_ld"), article.structured_data)
    sha256 = exact_sha256(post.text)
    wanted = payload.get("content_sha256")
    picture = visits[image]
    return {
        "post_id": post.id,
        "resource": post.resource,
        "status": post.status,
        "title": post.title,
        "slug": post.slug,
        "excerpt": post.excerpt,
        "description": _text(post.meta.get("description")),
        "modified_gmt": post.modified_gmt,
        "content_sha256": sha256,
        **({} if wanted is None else {"content_matches": sha256 == wanted}),
        "words": article.words,
        "json_ld_valid": not data.errors,
        "json_ld_errors": list(data.errors),
        "json_ld_warnings": list(data.warnings),
        "json_ld_type": data.type,
        "headline": data.headline,
        **_told("links", [visits[link] for link in article.links]),
        **_told("citations", [visits[url] for url in citations]),
        "unchecked_count": sum(visit.reason == "not_checked" for visit in visits.values()),
        "featured_image": image[:_SHOWN_CHARACTERS],
        "featured_image_status": picture.status,
        "featured_image_ok": picture.ok,
        "featured_image_reason": picture.reason,
        "featured_image_content_type": picture.content_type,
        "checked_at": rfc3339(real_now()),
    }


def _told(name: str, visits: Sequence[Visit]) -> dict[str, Any]:
    """The visits of one kind: as many as may be visited at all, so that a receipt stays small."""
    shown = visits[:VISITS_MAX]
    return {
        name: [
            {"url": visit.url[:_SHOWN_CHARACTERS], "status": visit.status, "ok": visit.ok, "reason": visit.reason}
            for visit in shown
        ],
        f"{name}_count": len(visits),
        f"{name}_broken": _named(visit for visit in visits if visit.ok is False),
        f"{name}_unknown": _named(visit for visit in visits if visit.ok is None),
    }


def _named(visits: Iterable[Visit]) -> list[str]:
    return [clean_text(f"{visit.url[:_SHOWN_CHARACTERS]} ({visit.reason})") for visit in visits][:VISITS_MAX]


def _citations(value: Any) -> list[str]:
    """Addresses of the sources, once each; what is no text is kept as a citation without an address."""
    items = value if isinstance(value, list) else []
    return list(dict.fromkeys(_text(item).strip() for item in items))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
