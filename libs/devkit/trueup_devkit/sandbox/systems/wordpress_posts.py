"""The posts of one WordPress site: every rule about reading, listing and changing them. Pure: time comes in.

A post is a plain document with the raw fields; `rendered_post` makes what the REST API shows of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from trueup_devkit.sandbox.faults import Interference
from trueup_devkit.sandbox.store import Document
from trueup_devkit.sandbox.system import Refusal
from trueup_devkit.sandbox.systems.wordpress_meta import WrongMeta, shown_registrations, shown_value, taken
from trueup_devkit.sandbox.systems.wordpress_text import (
    rendered_content,
    rendered_excerpt,
    slug_of,
    texturized,
    with_suffix,
)

WRITABLE_STATUSES: Final = ("publish", "future", "draft", "pending", "private")
LISTABLE_STATUSES: Final = (
    *WRITABLE_STATUSES, "trash", "auto-draft", "inherit", "request-pending", "request-confirmed", "request-failed",
    "request-completed", "any",
)  # fmt: skip
REGISTERED_META: Final[dict[str, Document]] = {
    "description": {"type": "string"},
    "json_ld": {"type": "object", "additionalProperties": True},
    "citations": {"type": "array", "items": {"type": "string"}},
    "featured_image": {"type": "string"},
}
_ORDERS: Final = (
    "author", "date", "id", "include", "modified", "parent", "relevance", "slug", "include_slugs", "title",
)  # fmt: skip
_RESERVED_SLUGS: Final = frozenset({"feed", "rdf", "rss", "rss2", "atom", "embed"})
_YEAR: Final = re.compile(r"0*[1-9]\d*", re.ASCII)
"""A new slug of digits only could be the address of a year's archive."""
_TEXTS: Final = ("title", "content", "excerpt")
REWRITABLE: Final = frozenset({*_TEXTS, "slug", "status"})
_TAMPERABLE: Final = frozenset({*_TEXTS, "slug", "status", "meta", "date_gmt", "modified_gmt"})
_TRASHED: Final = "__trashed"
_AUTHORS: Final = (1, 2)


class RestError(Exception):
    """An error as the REST API answers it."""

    def __init__(self, status: int, code: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.data = {"status": status} | dict(data or {})

    @classmethod
    def invalid(cls, name: str, message: str, code: str, data: Any = None) -> Self:
        """A parameter that the schema refuses."""
        details = {name: {"code": code, "message": message, "data": data}}
        return cls(
            400, "rest_invalid_param", f"Invalid parameter(s): {name}", {"params": {name: message}, "details": details}
        )

    def document(self) -> Document:
        return {"code": self.code, "message": self.message, "data": self.data}


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with an account. Whoever is shown raw values may edit: there is no right to only read them."""

    id: int
    name: str
    may_publish: bool
    """And delete."""


def _stamp(at: float) -> str:
    """A moment in the whole seconds that WordPress keeps."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _date(params: Mapping[str, Any]) -> str | None:
    """The date asked for. The sandbox' sites live in UTC, so `date` and `date_gmt` are the same."""
    for name in ("date_gmt", "date"):
        value = params.get(name)
        if value is None:
            continue
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise RestError.invalid(name, "Invalid date.", "rest_invalid_date") from None
        return (moment.astimezone(UTC) if moment.tzinfo else moment).strftime("%Y-%m-%dT%H:%M:%S")
    return None


def _text(value: Any) -> str | None:
    """A text field as sent: plain, or as `{"raw": …}`; anything else counts as not sent."""
    if isinstance(value, dict):
        value = value.get("raw")
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A checked query of the collection."""

    statuses: frozenset[str]
    slugs: tuple[str, ...] | None
    search: tuple[str, ...]
    include: frozenset[int] | None
    exclude: frozenset[int]
    per_page: int
    page: int
    offset: int | None
    orderby: str
    ascending: bool

    @classmethod
    def of(cls, params: Mapping[str, Any], user: User | None, context: str) -> Self:
        """Check a query; what only account holders may see is refused, in the order in which WordPress refuses."""
        statuses = _words(params.get("status", "publish"))
        for position, status in enumerate(statuses):
            if status not in LISTABLE_STATUSES:
                message = f"status[{position}] is not one of {_choices(LISTABLE_STATUSES)}."
                raise RestError.invalid("status", message, "rest_not_in_enum")
        per_page = _number(params, "per_page", 10, lowest=1, highest=100)
        page = _number(params, "page", 1, lowest=1)
        offset = _number(params, "offset", 0, lowest=0) if "offset" in params else None
        orderby, order = params.get("orderby", "date"), params.get("order", "desc")
        if orderby not in _ORDERS:
            raise RestError.invalid("orderby", f"orderby is not one of {_choices(_ORDERS)}.", "rest_not_in_enum")
        if order not in ("asc", "desc"):
            raise RestError.invalid("order", "order is not one of asc and desc.", "rest_not_in_enum")
        if user is None and set(statuses) - {"publish"}:
            raise RestError.invalid("status", "Status is forbidden.", "rest_forbidden_status", {"status": 401})
        if user is None and context == "edit":
            message = "Sorry, you are not allowed to edit posts in this post type."
            raise RestError(401, "rest_forbidden_context", message)
        if "any" in statuses:
            statuses = WRITABLE_STATUSES  # the trash is not in `any`
        return cls(
            frozenset(statuses),
            tuple(slug_of(word) for word in _words(params["slug"])) if "slug" in params else None,
            tuple(str(params.get("search") or "").lower().split()),
            _numbers(params["include"]) if "include" in params else None,
            _numbers(params.get("exclude", "")),
            per_page, page, offset, orderby, order == "asc",
        )  # fmt: skip

    def takes(self, post: Document) -> bool:
        if post["status"] not in self.statuses or post["id"] in self.exclude:
            return False
        if self.slugs is not None and post["slug"] not in self.slugs:
            return False
        if self.include is not None and post["id"] not in self.include:
            return False
        text = "\n".join(post[name] for name in _TEXTS).lower() if self.search else ""
        return all(word in text for word in self.search)


def _choices(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def _words(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else [value]
    return tuple(word for part in parts for word in re.split(r"[\s,]+", str(part)) if word)


def _numbers(value: Any) -> frozenset[int]:
    return frozenset(int(word) for word in _words(value) if re.fullmatch(r"\d{1,18}", word, re.ASCII))


def _number(params: Mapping[str, Any], name: str, default: int, *, lowest: int, highest: int | None = None) -> int:
    value = params.get(name, default)
    if not re.fullmatch(r"-?\d{1,18}", str(value), re.ASCII):
        raise RestError.invalid(name, f"{name} is not of type integer.", "rest_invalid_type", {"param": name})
    number = int(value)
    if highest is not None and not lowest <= number <= highest:
        message = f"{name} must be between {lowest} (inclusive) and {highest} (inclusive)"
        raise RestError.invalid(name, message, "rest_out_of_bounds")
    if number < lowest:
        raise RestError.invalid(name, f"{name} must be greater than or equal to {lowest}", "rest_out_of_bounds")
    return number


@dataclass(slots=True)
class Posts:
    """The posts of one site at one moment, and what becomes of them."""

    url: str
    documents: dict[str, Document]
    now: float
    next_id: int
    registered_meta: dict[str, Document] = field(default_factory=lambda: dict(REGISTERED_META))

    def link(self, post: Document) -> str:
        if post["status"] in ("publish", "private"):
            return f"{self.url}/{post['slug']}/"
        return f"{self.url}/?p={post['id']}"

    def _existing(self, number: str) -> Document:
        post = self.documents.get(number)
        if post is None:
            raise RestError(404, "rest_post_invalid_id", "Invalid post ID.")
        return post

    def read(self, number: str, user: User | None, context: str) -> Document:
        post = self._existing(number)
        if user is None and context == "edit":
            raise RestError(401, "rest_forbidden_context", "Sorry, you are not allowed to edit this post.")
        if user is None and post["status"] != "publish":
            raise RestError(401, "rest_forbidden", "Sorry, you are not allowed to do that.")
        return rendered_post(post, self, context)

    def listed(self, listing: Listing) -> tuple[list[Document], int]:
        """The posts of the page asked for, and how many there are in all."""
        found = [post for post in self.documents.values() if listing.takes(post)]
        keys = {"id": "id", "modified": "modified_gmt", "slug": "slug", "title": "title"}
        key = keys.get(listing.orderby, "date_gmt")
        found.sort(key=lambda post: (post[key], post["id"]), reverse=not listing.ascending)
        start = listing.offset if listing.offset is not None else (listing.page - 1) * listing.per_page
        return found[start : start + listing.per_page], len(found)

    def writable(self, number: str, user: User | None, verb: str) -> Document:
        post = self._existing(number)
        if user is None or (verb == "delete" and not user.may_publish):
            message = f"Sorry, you are not allowed to {verb} this post."
            raise RestError(401 if user is None else 403, f"rest_cannot_{verb}", message)
        return post

    def created(
        self, params: Mapping[str, Any], user: User | None, disturbed: Interference
    ) -> tuple[Document, RestError | None]:
        """A new post, and the error to answer after it was stored."""
        _check_types(params)
        if user is None:
            raise RestError(401, "rest_cannot_create", "Sorry, you are not allowed to create posts as this user.")
        if params.get("id"):
            raise RestError(400, "rest_post_exists", "Cannot create existing post.")
        _check_author(params)
        _check_status(params.get("status"), user)
        date = _date(params)
        post: Document = {
            "id": self.next_id, "status": params.get("status") or "draft", "slug": _given_slug(params.get("slug")),
            "title": "", "content": "", "excerpt": "", "author": params.get("author") or user.id, "meta": {},
            "date_gmt": date or _stamp(self.now), "dated": date is not None, "modified_gmt": date or _stamp(self.now),
        }  # fmt: skip
        _take_texts(post, params)
        # A slug is made unique for a draft only if the request names the status; without it real sites get twins.
        unique = post["status"] not in ("draft", "pending") or bool(params.get("status"))
        self._finish(post, disturbed, unique=unique)
        return post, self._take_meta(post, params)

    def settled(self, post: Document) -> Document:
        """A post with what follows from the id it finally got: without a title, its number is its slug, almost."""
        if not post["slug"] and post["status"] not in ("draft", "pending"):
            post["slug"] = self._unique(str(post["id"]), post["id"])
        return post

    def updated(
        self, number: str, params: Mapping[str, Any], user: User | None, disturbed: Interference
    ) -> tuple[Document, str, RestError | None]:
        """The post after a change, what happened to it, and the error to answer after it was stored."""
        _check_types(params)
        before = self.writable(number, user, "edit")
        _check_author(params)
        if params.get("status") != before["status"]:
            _check_status(params.get("status"), user)
        post = {**before, "meta": dict(before["meta"]), "modified_gmt": _stamp(self.now)}
        post["status"] = params.get("status") or before["status"]
        date = _date(params)
        if date is not None:
            post |= {"date_gmt": date, "dated": True}
        elif not before["dated"] and before["status"] in ("draft", "pending"):
            post["date_gmt"] = post["modified_gmt"]  # the date of an undated draft floats
        if "slug" in params:
            post["slug"] = _given_slug(params["slug"])
        elif before["status"] == "trash" and post["status"] != "trash":
            post["slug"] = before["slug"].removesuffix(_TRASHED) or before["slug"]
        _take_texts(post, params)
        leaves_draft = post["status"] not in ("draft", "pending", "trash")
        self._finish(post, disturbed, unique="slug" in params or leaves_draft)
        self.settled(post)
        return post, _action(before["status"], post["status"]), self._take_meta(post, params)

    def _finish(self, post: Document, disturbed: Interference, *, unique: bool) -> None:
        """What WordPress decides by itself before it stores a post."""
        if not any(post[name] for name in _TEXTS):
            raise RestError(400, "empty_content", "Content, title, and excerpt are empty.")
        is_future = post["date_gmt"] > _stamp(self.now)
        if post["status"] == "publish" and is_future:
            post["status"] = "future"
        elif post["status"] == "future" and not is_future:
            post["status"] = "publish"
        if not post["slug"] and post["status"] not in ("draft", "pending", "trash"):
            post["slug"] = slug_of(post["title"])
        if unique and post["slug"]:
            post["slug"] = self._unique(post["slug"], post["id"])
        for name in REWRITABLE:
            post[name] = disturbed.rewritten(name, post[name])

    def generated_slug(self, post: Document) -> str:
        """What the editor would propose."""
        return self._unique(slug_of(post["title"]) or str(post["id"]), post["id"])

    def _unique(self, slug: str, own_id: int) -> str:
        others = {post["slug"] for post in self.documents.values() if post["id"] != own_id} | _RESERVED_SLUGS
        own = self.documents.get(str(own_id), {}).get("slug")
        wanted, number = slug, 2
        while wanted in others or (_YEAR.fullmatch(wanted) and wanted != own):
            wanted, number = with_suffix(slug, f"-{number}"), number + 1
        return wanted

    def _take_meta(self, post: Document, params: Mapping[str, Any]) -> RestError | None:
        """Registered meta is taken, other meta vanishes. The first wrong type ends it, after the post was stored."""
        sent = params.get("meta")
        for name, schema in shown_registrations(self.registered_meta).items():
            if not isinstance(sent, dict) or name not in sent:
                continue
            if sent[name] is None:
                if shown_value(post["meta"].pop(name, ""), schema) is None:
                    told = f"The {name} property has an invalid stored value, and cannot be updated to null."
                    return RestError(500, "rest_invalid_stored_value", told)
                continue
            try:
                post["meta"][name] = taken(sent[name], schema, f"meta.{name}")
            except WrongMeta as wrong:
                return RestError(400, wrong.code, wrong.message)
        return None

    def trashed(self, post: Document) -> Document:
        if post["status"] == "trash":
            raise RestError(410, "rest_already_trashed", "The post has already been deleted.")
        slug = with_suffix(post["slug"], _TRASHED)
        return {**post, "status": "trash", "slug": slug, "modified_gmt": _stamp(self.now)}

    def tampered(self, name: str, change: Mapping[str, Any]) -> Document:
        """A post after an outsider's edit, stored as it is given."""
        if unknown := sorted(set(change) - _TAMPERABLE):
            raise Refusal(
                400, f"a post has no field {', '.join(unknown)[:200]}; known: {', '.join(sorted(_TAMPERABLE))}"
            )
        for key, value in change.items():
            if not isinstance(value, dict if key == "meta" else str):
                raise Refusal(400, f"{key} is a {'JSON object' if key == 'meta' else 'string'}")
        if change.get("status", "draft") not in (*WRITABLE_STATUSES, "trash"):
            raise Refusal(400, "unknown status")
        stamp = _stamp(self.now)
        before = self.documents.get(name) or {
            "id": self.next_id, "status": "draft", "slug": "", "title": "", "content": "", "excerpt": "", "author": 1,
            "meta": {}, "date_gmt": stamp, "dated": False,
        }  # fmt: skip
        return {**before, "modified_gmt": stamp, **change}


def _take_texts(post: Document, params: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        text = _text(params.get(name))
        if text is not None:
            post[name] = text.strip() if name == "title" else text


def _check_types(params: Mapping[str, Any]) -> None:
    if "slug" in params and not isinstance(params["slug"], str):
        raise RestError.invalid("slug", "slug is not of type string.", "rest_invalid_type", {"param": "slug"})
    if "status" in params and params["status"] not in WRITABLE_STATUSES:
        message = "status is not one of publish, future, draft, pending, and private."
        raise RestError.invalid("status", message, "rest_not_in_enum")
    if params.get("meta") is not None and not isinstance(params["meta"], dict | list):
        raise RestError.invalid("meta", "Invalid parameter.", "rest_invalid_param")


def _check_author(params: Mapping[str, Any]) -> None:
    if params.get("author") not in (None, *_AUTHORS):
        raise RestError(400, "rest_invalid_author", "Invalid author ID.")


def _given_slug(sent: str | None) -> str:
    """To PHP, "0" is nothing."""
    slug = slug_of(sent or "")
    return "" if slug == "0" else slug


def _check_status(status: Any, user: User | None) -> None:
    """Who may not publish may neither schedule nor hide a post."""
    if status in ("publish", "future", "private") and user is not None and not user.may_publish:
        message = "Sorry, you are not allowed to publish posts in this post type."
        if status == "private":
            message = "Sorry, you are not allowed to create private posts in this post type."
        raise RestError(403, "rest_cannot_publish", message)


def _action(before: str, after: str) -> str:
    """What an update means for the world."""
    if before == "trash" and after != "trash":
        return "restore"
    if after == "publish" and before != "publish":
        return "publish"
    if after == "future" and before != "future":
        return "schedule"
    if before in ("publish", "future") and after in ("draft", "pending", "private"):
        return "withdraw"
    return "update"


def _meta(post: Document, registered: Mapping[str, Document]) -> Any:
    """All registered meta with its default; a site without any shows PHP's empty array."""
    shown = {}
    for name, schema in shown_registrations(registered).items():
        kept = name in post["meta"]
        shown[name] = shown_value(post["meta"][name], schema) if kept else schema["default"]
    return shown or []


def rendered_post(post: Document, posts: Posts, context: str) -> Document:
    """A post as the REST API shows it: `raw` only where the caller may edit."""
    number, api = post["id"], f"{posts.url}/wp-json/wp/v2"
    shown_title = texturized(post["title"])
    document: Document = {
        "id": number,
        "date": post["date_gmt"],
        "date_gmt": post["date_gmt"],
        "guid": {"rendered": post.get("guid") or f"{posts.url}/?p={number}"},
        "modified": post["modified_gmt"],
        "modified_gmt": post["modified_gmt"],
        "slug": post["slug"],
        "status": post["status"],
        "type": "post",
        "link": posts.link(post),
        "title": {"rendered": f"Private: {shown_title}" if post["status"] == "private" else shown_title},
        "content": {"rendered": rendered_content(post["content"]), "protected": False},
        "excerpt": {"rendered": rendered_excerpt(post["excerpt"], post["content"]), "protected": False},
        "author": post["author"],
        "featured_media": 0,
        "comment_status": "open",
        "ping_status": "open",
        "sticky": False,
        "template": "",
        "format": "standard",
        "meta": _meta(post, posts.registered_meta),
        "categories": [1],
        "tags": [],
        "_links": {"self": [{"href": f"{api}/posts/{number}"}], "collection": [{"href": f"{api}/posts"}]},
    }
    if context == "edit":
        document["guid"]["raw"] = document["guid"]["rendered"]
        for name in _TEXTS:
            document[name]["raw"] = post[name]
        document["content"]["block_version"] = 0
        document["password"] = ""
        trashed = post["status"] == "trash"
        document["permalink_template"] = f"{posts.url}/?p={number}" if trashed else f"{posts.url}/%postname%/"
        document["generated_slug"] = posts.generated_slug(post)
    return document


def post_schema(registered: Mapping[str, Document]) -> Document:
    """What OPTIONS tells about posts; the registered meta can be learned here."""
    # PHP has one kind of array: a site without registered meta shows a list where others show an object.
    meta: Any = shown_registrations(registered) or []
    shown = ("view", "edit", "embed")
    names = ("id", "date_gmt", "modified_gmt", "slug", "status", "link", *_TEXTS)
    properties: Document = {name: {"context": shown} for name in names}
    properties["status"]["enum"] = WRITABLE_STATUSES
    properties["meta"] = {
        "description": "Meta fields.", "type": "object", "context": ["view", "edit"], "properties": meta,
    }  # fmt: skip
    return {
        "namespace": "wp/v2",
        "methods": ["GET", "POST"],
        "endpoints": [{"methods": ["GET"], "args": {}}, {"methods": ["POST"], "args": {"meta": properties["meta"]}}],
        "schema": {
            "$schema": "http://json-schema.org/draft-04/schema#", "title": "post", "type": "object",
            "properties": properties,
        },
    }  # fmt: skip
