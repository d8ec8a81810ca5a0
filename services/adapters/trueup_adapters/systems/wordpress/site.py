"""One WordPress site as one tenant sees it: reading posts, proving access, observing.

Reads of a find or a probe use the read account and never fall back to the write account. Anonymous answers look like
empty ones, so nothing is called missing before `/users/me?context=edit` has shown who is asking. Only raw values are
compared: rendered ones are rewritten by the site.
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from trueup_adapters.core.classify import http_date, unsent
from trueup_adapters.systems.http import Answer, HttpTarget, TransportFailed
from trueup_common.contracts.adapter import Connection, EndsWith, rejected
from trueup_common.contracts.canonical import digest, sha256_hex
from trueup_common.contracts.compare import NORMALISERS
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ErrorClass, ProbeVerdict
from trueup_common.contracts.survey import Mark, Page
from trueup_common.runtime.clock import real_now

API: Final = "/wp-json/wp/v2"
FIELDS: Final = "id,slug,status,link,date_gmt,modified_gmt,title.raw,content.raw,excerpt.raw,meta"
SOURCE: Final = "wordpress.rest"
LISTED_MAX: Final = 100
AHEAD: Final = timedelta(minutes=1)
"""WordPress schedules what is dated a minute ahead, or more."""
_MARKERS: Final = re.compile(r"\n\n((?:<!-- trueup:[A-Za-z0-9_-]+(?: withdrawn)? -->\n?)+)\s*\Z")
_MARKER: Final = re.compile(r"<!-- trueup:([A-Za-z0-9_-]+)(?: withdrawn)? -->")


def text_sha256(text: str) -> str:
    """A digest that harmless rewriting by the site (entities, paragraphs, spaces) does not change."""
    return sha256_hex(str(NORMALISERS["html_text"](text)).encode("utf-8", "surrogatepass"))


def fields_of(title: str, excerpt: str) -> dict[str, str]:
    """Title and excerpt as one value that harmless rewriting by the site does not change."""
    return {"title": str(NORMALISERS["html_text"](title)), "excerpt_sha256": text_sha256(excerpt)}


def meta_sha256(meta: Mapping[str, Any], names: Iterable[str]) -> str:
    """A digest of the named meta; what is not there counts as null."""
    return digest({name: meta.get(name) for name in names})


def exact_sha256(text: str) -> str:
    """The digest of exactly this content."""
    return sha256_hex(text.encode("utf-8", "surrogatepass"))


def marked(text: str, markers: Iterable[str]) -> str:
    """Content with its markers at the end, oldest first: the evidence of every operation on the post stays."""
    return text + "\n\n" + "\n".join(markers)


def marker(command_id: str, *, withdrawn: bool = False) -> str:
    """The marker of one operation."""
    return f"<!-- trueup:{command_id}{' withdrawn' if withdrawn else ''} -->"


class ReadFailed(EndsWith):
    """A read did not give what it should; `outcome` is what that means for a write that has not been sent."""


@dataclass(frozen=True, slots=True)
class Post:
    """A post with its raw values. `text` is the content without markers; `operations` are the markers' command ids."""

    id: int
    slug: str
    status: str
    link: str
    date_gmt: str
    modified_gmt: str
    title: str
    text: str
    markers: tuple[str, ...]
    operations: tuple[str, ...]
    meta: Mapping[str, Any]
    answered_at: datetime | None = None
    excerpt: str = ""

    @classmethod
    def of(cls, value: Any, answered_at: datetime | None = None) -> Self:
        """From the REST form with `context=edit`. Raises ValueError where that is not a post with raw values."""
        try:
            raw, title = value["content"]["raw"], value["title"]["raw"]
            number, slug, status = value["id"], value["slug"], value["status"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a post: {error!r}") from error
        if not isinstance(number, int) or not all(isinstance(item, str) for item in (raw, title, slug, status)):
            raise ValueError("not a post")
        found = _MARKERS.search(raw)
        markers = tuple(part for part in found[1].split("\n") if part) if found else ()
        meta, excerpt = value.get("meta"), value.get("excerpt")
        return cls(
            id=number,
            slug=slug,
            status=status,
            link=str(value.get("link", "")),
            date_gmt=str(value.get("date_gmt") or ""),
            modified_gmt=str(value.get("modified_gmt") or ""),
            title=title,
            text=raw[: found.start()] if found else raw,
            markers=markers,
            operations=tuple(name for part in markers for name in _MARKER.findall(part)),
            meta=meta if isinstance(meta, Mapping) else {},
            answered_at=answered_at,
            excerpt=str(excerpt.get("raw") or "") if isinstance(excerpt, Mapping) else "",
        )

    @property
    def resource(self) -> str:
        """The business object of the post's elements."""
        return f"post/{self.id}"

    @property
    def is_dated_ahead(self) -> bool:
        """True where the date lies in the future by the site's own clock: publishing would only schedule the post."""
        if self.answered_at is None or not self.date_gmt:
            return False
        try:
            date = datetime.fromisoformat(self.date_gmt)
        except ValueError:
            return False
        return date.replace(tzinfo=date.tzinfo or UTC) - self.answered_at >= AHEAD


class Site(HttpTarget):
    """The site's REST API with the write account and, where configured, the read account."""

    def __init__(self, connection: Connection) -> None:
        settings = connection.settings
        super().__init__(connection, str(settings.get("base_url", "")))
        name = f"connection {connection.tenant}/{connection.system}"
        self._writer = _basic(name, settings.get("username"), settings.get("password"))
        self._reader = self._writer
        if settings.get("read_username") is not None or settings.get("read_password") is not None:
            self._reader = _basic(name, settings.get("read_username"), settings.get("read_password"))

    async def change(self, method: str, path: str, document: Any, call: Any) -> Answer:
        """A write, once. Raises TransportFailed or SlotLost."""
        headers = {**self._writer, "traceparent": call.traceparent} if call.traceparent else self._writer
        return await self.write(method, API + path, document=document, headers=headers, may_send=call.may_send)

    async def _get(self, path: str, params: Mapping[str, str], *, reader: bool, method: str = "GET") -> Answer:
        try:
            return await self.read(
                API + path, params=params, headers=self._reader if reader else self._writer, method=method
            )
        except TransportFailed as failure:
            raise ReadFailed(failure.outcome_of_read()) from failure

    async def post(self, post_id: int, *, reader: bool = False) -> Post | None:
        """One post, or None where the site says that it has no such post. Raises ReadFailed."""
        answer = await self._get(f"/posts/{post_id}", {"context": "edit", "_fields": FIELDS}, reader=reader)
        if answer.status == 404 and _code(answer) == "rest_post_invalid_id":
            return None
        return _post(answer.document(), answer)

    async def posts(self, *, reader: bool = False, **filters: str) -> list[Post]:
        """Posts by slug or search, in the named statuses. Raises ReadFailed."""
        params = {"context": "edit", "per_page": str(LISTED_MAX), "_fields": FIELDS, **filters}
        answer = await self._get("/posts", params, reader=reader)
        try:
            items = answer.json() if answer.ok else None
            if not isinstance(items, list):
                raise ValueError("not a list")
            return [Post.of(item, http_date(answer.headers.get("date", ""))) for item in items]
        except ValueError as error:
            if answer.status == 400 and b"rest_forbidden_status" in answer.body:
                # A wrong password makes the caller anonymous, and drafts are then "forbidden", with 400 instead of 401.
                denied = rejected(ErrorClass.PERMANENT, "unauthenticated", answer.detail(), external_status="400")
                raise ReadFailed(denied) from error
            raise ReadFailed(unsent(answer.outcome())) from error

    async def prove_access(self) -> str | None:
        """None where the read account is known to the site; else why that is not proved."""
        try:
            answer = await self._get("/users/me", {"context": "edit", "_fields": "id"}, reader=True)
        except ReadFailed as failure:
            return failure.reason
        document = answer.document()
        if document is not None and isinstance(document.get("id"), int):
            return None
        return answer.outcome().error_code or "no_proof_of_access"

    async def unusable_meta(self, meta: Mapping[str, Any]) -> list[str]:
        """Names in `meta` that the site has not registered, or registered for something else. Raises ReadFailed.

        The site drops unregistered meta silently, and refuses a wrong type only after it has stored the post.
        """
        answer = await self._get("/posts", {}, reader=False, method="OPTIONS")
        document = answer.document()
        if document is None:
            raise ReadFailed(unsent(answer.outcome()))
        try:
            registered = document["schema"]["properties"]["meta"]["properties"]
        except (KeyError, TypeError):
            registered = {}
        if not isinstance(registered, Mapping):
            registered = {}
        return sorted(name for name, value in meta.items() if not _fits(value, registered.get(name)))

    def observe(self, post: Post, meta_names: Sequence[str] | None = None) -> tuple[Observation, ...]:
        """What one authoritative read of a post says about its elements; of its meta only where names are given."""
        seen = tuple(_observation(element, value_of(post, element), post) for element in VALUES)
        if meta_names is None:
            return seen
        return (*seen, _observation(META, meta_sha256(post.meta, meta_names), post))


async def survey_posts(site: Site, cursor: str | None) -> Page:
    """The posts that carry markers, oldest first; an empty page only where access is proved. Raises ReadFailed.

    By offset, because the site refuses a page beyond the last one. What moves meanwhile is seen by the next survey.
    """
    offset = int(cursor) if cursor is not None and cursor.isdigit() else 0
    filters = {"search": "trueup:cmd", "status": "any", "orderby": "id", "order": "asc", "offset": str(offset)}
    posts = await site.posts(reader=True, **filters)
    if not posts:
        denied = await site.prove_access()
        if denied:
            raise ReadFailed(rejected(ErrorClass.TRANSIENT, denied))
    marks = [
        Mark(operation_id=operation, external_resource_id=str(post.id), resource=post.resource)
        for post in posts
        for operation in post.operations
    ]
    return Page(marks=tuple(marks), next_cursor=str(offset + LISTED_MAX) if len(posts) == LISTED_MAX else None)


def value_of(post: Post, element: str) -> Any:
    """The value of one element that every post has. KeyError for another one."""
    return VALUES[element](post)


META: Final = "wordpress.meta"
"""The element of the meta that a command sent: whose names they are, only its receipt knows."""
VALUES: Final[dict[str, Callable[[Post], Any]]] = {
    "wordpress.post_id": lambda post: post.id,
    "wordpress.status": lambda post: post.status,
    "wordpress.content": lambda post: text_sha256(post.text),
    "wordpress.fields": lambda post: fields_of(post.title, post.excerpt),
}
"""Elements of a post and how a read shows them."""


def _observation(element: str, value: Any, post: Post) -> Observation:
    return Observation(
        element=element,
        verdict=ProbeVerdict.CONFIRMED,
        value=value,
        observed_at=real_now(),
        source=SOURCE,
        version=post.modified_gmt,
        proof_of_access=True,
    )


def missing(element: str) -> Observation:
    """The site has no such post, and access is proved."""
    return Observation(
        element=element, verdict=ProbeVerdict.MISSING, observed_at=real_now(), source=SOURCE, proof_of_access=True
    )


def doubtful(element: str, reason: str) -> Observation:
    """The read says nothing."""
    return Observation(
        element=element, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source=SOURCE, reason=reason
    )


Asked = tuple[str, tuple[str, ...]]
"""An element, and of the meta the names."""


def asked_of(element: str, params: Mapping[str, Any]) -> tuple[int, Asked] | None:
    """The post and the element that a probe asks for; None where there is no such."""
    post_id, names = params.get("post_id"), params.get("meta_names")
    if not isinstance(post_id, int) or element not in (*VALUES, META):
        return None
    if element != META:
        return post_id, (element, ())
    return (post_id, (META, tuple(map(str, names)))) if isinstance(names, list | tuple) else None


async def probe_posts(site: Site, wanted: Mapping[int, Sequence[Asked]]) -> dict[tuple[int, Asked], Observation]:
    """Elements by post, one read per post."""
    found: dict[tuple[int, Asked], Observation] = {}
    for post_id, asked in wanted.items():
        try:
            post = await site.post(post_id, reader=True)
            denied = await site.prove_access() if post is None else None
        except ReadFailed as failure:
            found.update({(post_id, item): doubtful(item[0], failure.reason) for item in asked})
            continue
        for item in asked:
            element, names = item
            if post is not None:
                value = meta_sha256(post.meta, names) if element == META else value_of(post, element)
                found[post_id, item] = _observation(element, value, post)
            else:
                found[post_id, item] = doubtful(element, denied) if denied else missing(element)
    return found


def _post(document: Any, answer: Answer) -> Post:
    try:
        return Post.of(document, http_date(answer.headers.get("date", "")))
    except ValueError as error:
        raise ReadFailed(unsent(answer.outcome())) from error


def _code(answer: Answer) -> str | None:
    try:
        value = answer.json()
    except ValueError:
        return None
    return value.get("code") if isinstance(value, dict) else None


def _basic(name: str, username: Any, password: Any) -> dict[str, str]:
    if not isinstance(username, str) or not isinstance(password, str) or not username or ":" in username:
        raise ValueError(f"{name}: username and password are needed, for writing and, where given, for reading")
    return {"authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def _fits(value: Any, schema: Any) -> bool:
    """True where registered meta can take the value; what the schema leaves open is left to the site."""
    if not isinstance(schema, Mapping):
        return False
    named = schema.get("type")
    types = [named] if isinstance(named, str) else named
    if not isinstance(types, list):
        return True
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _TYPES.get(name, (object,))) for name in types) and _fits_inside(value, schema)


def _fits_inside(value: Any, schema: Mapping[str, Any]) -> bool:
    """Objects are closed unless their registration opens them: the site refuses them after it has stored the post."""
    if isinstance(value, list):
        items = schema.get("items")
        return not isinstance(items, Mapping) or all(_fits(item, items) for item in value)
    if not isinstance(value, dict):
        return True
    named = schema.get("properties")
    named = named if isinstance(named, Mapping) else {}
    if schema.get("additionalProperties") is False and not value.keys() <= named.keys():
        return False
    return all(_fits(item, named[name]) for name, item in value.items() if name in named)
