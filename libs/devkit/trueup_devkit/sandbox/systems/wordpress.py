"""WordPress' REST API for posts, several sites on one port (`/acme`, `/globex`), with the traps of the real one.

Observed on WordPress 6.1 and kept here on purpose: a wrong password makes the caller anonymous instead of refusing him;
there is no ETag; slugs are unique only where the status is given and only outside the trash; meta that is not
registered vanishes under 201; a wrong type in registered meta answers 400 *after* the post was stored.
"""

import asyncio
import base64
import binascii
import html
import json
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote, urlencode

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from trueup_devkit.sandbox.faults import Interference, interference
from trueup_devkit.sandbox.store import Change, Document, Effect, Store
from trueup_devkit.sandbox.system import Refusal
from trueup_devkit.sandbox.systems.web import WEB, web_answer
from trueup_devkit.sandbox.systems.wordpress_meta import is_too_deep
from trueup_devkit.sandbox.systems.wordpress_posts import (
    REGISTERED_META,
    REWRITABLE,
    Listing,
    Posts,
    RestError,
    User,
    post_schema,
    rendered_post,
)
from trueup_devkit.sandbox.systems.wordpress_text import page

WRITER: Final = "bot"
READER: Final = "reader"
SITES: Final = ("acme", "globex")
_MAX_BODY_BYTES: Final = 8 << 20
_STORING_SECONDS: Final = 0.002
_ROOT: Final = "/wp-json"
_LISTED: Final = re.compile(
    r"/(?:(?:category|tag|author|page|\d{4})/(?:[^/]+/)*|(?:comments/)?feed/|[a-z0-9-]*sitemap[a-z0-9-]*\.xml)"
)
"""Where a site lists its posts: archives by word, person, page and date, feeds of all of them, and sitemaps."""
_NO_ROUTE: Final = RestError(404, "rest_no_route", "No route was found matching the URL and request method.")


def sandbox_password(site: str, username: str) -> str:
    """The application password of a sandbox user. Made up here, known to everybody, good for nothing else."""
    return f"sandbox-{site}" if username == WRITER else f"sandbox-{site}-{username}"


def _bare(password: str) -> str:
    """WordPress shows application passwords in groups and compares their letters and digits only."""
    return "".join(letter for letter in password if letter.isascii() and letter.isalnum())


def _user(site: str, authorization: str | None) -> User | None:
    """Who calls; anyone who cannot prove it is nobody, without an error."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        username, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if username not in (WRITER, READER) or _bare(password) != _bare(sandbox_password(site, username)):
        return None
    return User(1, WRITER, may_publish=True) if username == WRITER else User(2, READER, may_publish=False)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request to one site, with the caller already told apart."""

    site: str
    route: str
    method: str
    user: User | None
    params: dict[str, Any]
    disturbed: Interference


class WordPress:
    """All sites of the sandbox; posts live in the collection `wordpress.post/<site>`."""

    rewritable: ClassVar[frozenset[str]] = REWRITABLE

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except RestError as error:
            answer = _json(error.document(), error.status)
        except ClientDisconnect:
            return
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        site, _, rest = request.scope["path"].lstrip("/").partition("/")
        if site == WEB:
            return web_answer(rest, request.method, self._url)
        if site not in SITES:
            return Response("no such site", 404, media_type="text/plain")
        disturbed = interference(request.scope)
        route = f"/{rest}"
        posts = self._posts(site, disturbed)
        if not (route == _ROOT or route.startswith(f"{_ROOT}/")):
            return _public_page(posts, route, request)
        user = None if disturbed.deny_reads else _user(site, request.headers.get("authorization"))
        call = _Call(
            site, route[len(_ROOT) :].rstrip("/") or "/", request.method, user, await _params(request), disturbed
        )
        answer = await self._rest(call, posts)
        if user is not None:
            answer.headers["cache-control"] = "no-cache, must-revalidate, max-age=0"
        return answer

    def _posts(self, site: str, disturbed: Interference) -> Posts:
        as_of = None if disturbed.stale_seconds is None else self._store.now() - disturbed.stale_seconds
        collection = f"wordpress.post/{site}"
        settings = self._store.documents("wordpress.site").get(site, {})
        return Posts(
            url=f"{self._url}/{site}",
            documents=self._store.documents(collection, as_of),
            now=self._store.now(),
            next_id=self._store.next_number(collection),
            registered_meta=settings.get("registered_meta", REGISTERED_META),
        )

    async def _rest(self, call: _Call, posts: Posts) -> Response:
        route, method = call.route, "GET" if call.method == "HEAD" else call.method
        if route == "/" and method == "GET":
            return _json({"name": call.site, "url": posts.url, "home": posts.url, "namespaces": ["wp/v2"]})
        if route == "/wp/v2/users/me" and method == "GET":
            return _json(_fields(call, _me(call, posts.url)))
        if route == "/wp/v2/posts":
            if method == "OPTIONS":
                return _json(post_schema(posts.registered_meta))
            if method == "GET":
                return _list(call, posts)
            if method == "POST":
                return await self._create(call, posts)
        number = route.removeprefix("/wp/v2/posts/")
        if number != route and number.isascii() and number.isdigit():
            if method == "OPTIONS":
                return _json(post_schema(posts.registered_meta))
            if method == "GET":
                return _json(_fields(call, posts.read(number, call.user, _context(call))))
            if method in {"POST", "PUT", "PATCH"}:
                return await self._update(call, posts, number)
            if method == "DELETE":
                return self._delete(call, posts, number)
        raise _NO_ROUTE

    async def _create(self, call: _Call, posts: Posts) -> Response:
        post, meta_error = posts.created(call.params, call.user, call.disturbed)
        # The slug was chosen; another caller may take it meanwhile, which is how real sites get twins.
        if call.disturbed.pause is not None:
            await call.disturbed.pause()
        else:
            await asyncio.sleep(_STORING_SECONDS)
        post["id"] = self._store.next_number(f"wordpress.post/{call.site}")
        post = posts.settled(post)
        if post["status"] in ("publish", "private"):
            post["guid"] = posts.link(post)  # what a post is called for good is its first address
        self._keep(call.site, post, "create")
        if meta_error is not None:
            raise meta_error
        answer = _json(_fields(call, rendered_post(post, posts, "edit")), 201)
        answer.headers["location"] = f"{posts.url}{_ROOT}/wp/v2/posts/{post['id']}"
        return answer

    async def _update(self, call: _Call, posts: Posts, number: str) -> Response:
        if call.disturbed.pause is not None:
            await call.disturbed.pause()
            posts = self._posts(call.site, call.disturbed)
        post, action, meta_error = posts.updated(number, call.params, call.user, call.disturbed)
        self._keep(call.site, post, action)
        if meta_error is not None:
            raise meta_error
        return _json(_fields(call, rendered_post(post, posts, "edit")))

    def _delete(self, call: _Call, posts: Posts, number: str) -> Response:
        post = posts.writable(number, call.user, "delete")
        if _truth(call.params.get("force")):
            effect = Effect("wordpress", "wordpress.post", f"{call.site}/{number}", "delete")
            self._store.apply(effect, [Change(f"wordpress.post/{call.site}", number, None)])
            shown = rendered_post(post, posts, "edit")
            return _json({"deleted": True, "previous": {key: shown[key] for key in shown if key != "_links"}})
        trashed = posts.trashed(post)
        self._keep(call.site, trashed, "trash")
        return _json(_fields(call, rendered_post(trashed, posts, "edit")))

    def _keep(self, site: str, post: Document, action: str) -> None:
        number = str(post["id"])
        effect = Effect("wordpress", "wordpress.post", f"{site}/{number}", action)
        self._store.apply(effect, [Change(f"wordpress.post/{site}", number, post)])

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Edit `<site>/<id>`, add a foreign post as `<site>/new`, or change `registered_meta` of `<site>/site`."""
        site, _, name = object_.partition("/")
        if site not in SITES or not name:
            raise Refusal(404, f"an object is <site>/<id>, <site>/new or <site>/site, with a site of {SITES}")
        if name == "site":
            meta = change.get("registered_meta")
            if set(change) != {"registered_meta"} or not _is_schema(meta):
                raise Refusal(400, '{"registered_meta": {name: JSON schema}} is all that a site has')
            self._store.apply(None, [Change("wordpress.site", site, {"registered_meta": meta})])
            return {"object": object_, "registered_meta": meta}
        posts = self._posts(site, Interference())
        collection = f"wordpress.post/{site}"
        if name != "new" and name not in posts.documents:
            raise Refusal(404, f"no post {object_[:100]!r}")
        if change == {"delete": True} and name != "new":
            self._store.apply(None, [Change(collection, name, None)])
            return {"object": object_, "deleted": True}
        post = posts.tampered(name, change)
        self._store.apply(None, [Change(collection, str(post["id"]), post)])
        return {"object": f"{site}/{post['id']}", "post": post}


def _json(body: Any, status: int = 200) -> Response:
    try:
        content = orjson.dumps(body)
    except orjson.JSONEncodeError:  # deeper than orjson goes, not deeper than PHP
        content = json.dumps(body).encode()
    return Response(content, status, headers={"content-type": "application/json; charset=UTF-8"})


def _is_schema(meta: Any) -> bool:
    return isinstance(meta, dict) and all(isinstance(schema, dict) and "type" in schema for schema in meta.values())


def _truth(value: Any) -> bool:
    return value in (True, 1, "true", "TRUE", "True", "1")


def _pairs(text: str) -> dict[str, Any]:
    """A query or form as PHP reads it: `name[]` and `name[0]` make lists, otherwise the last value wins."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        plain, bracket, _ = name.partition("[")
        if bracket and isinstance(found.setdefault(plain, []), list):
            found[plain].append(value)
        else:
            found[plain] = value
    return found


async def _params(request: Request) -> dict[str, Any]:
    """All parameters: the body's win over the query's."""
    found = _pairs(request.scope["query_string"].decode("latin-1"))
    if request.method not in {"POST", "PUT", "PATCH", "DELETE"}:
        return found
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise RestError(413, "rest_upload_file_too_big", "The body is too large.")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" and body:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            detail = {"json_error_code": 4, "json_error_message": "Syntax error"}
            raise RestError(400, "rest_invalid_json", "Invalid JSON body passed.", detail) from None
        if is_too_deep(document):
            detail = {"json_error_code": 1, "json_error_message": "Maximum stack depth exceeded"}
            raise RestError(400, "rest_invalid_json", "Invalid JSON body passed.", detail)
        return found | document if isinstance(document, dict) else found
    if media_type == "application/x-www-form-urlencoded":
        return found | _pairs(body.decode("utf-8", "replace"))
    return found


def _context(call: _Call) -> str:
    context = call.params.get("context", "view")
    if context not in ("view", "embed", "edit"):
        raise RestError.invalid("context", "context is not one of view, embed, and edit.", "rest_not_in_enum")
    return str(context)


def _fields(call: _Call, document: Document) -> Document:
    """Only the fields asked for with `_fields`, nested ones as `title.rendered`."""
    asked = call.params.get("_fields")
    if not asked:
        return document
    kept: Document = {}
    for name in asked.split(",") if isinstance(asked, str) else map(str, asked):
        first, _, second = name.strip().partition(".")
        value = document.get(first)
        if first not in document:
            continue
        if not second:
            kept[first] = value
        elif isinstance(value, dict) and second in value:
            kept.setdefault(first, {})[second] = value[second]
    return kept


def _list(call: _Call, posts: Posts) -> Response:
    context = _context(call)
    listing = Listing.of(call.params, call.user, context)
    found, total = posts.listed(listing)
    pages = math.ceil(total / listing.per_page)
    if listing.page > pages and total > 0 and listing.offset is None:
        raise RestError(
            400, "rest_post_invalid_page_number",
            "The page number requested is larger than the number of pages available.",
        )  # fmt: skip
    answer = _json([_fields(call, rendered_post(post, posts, context)) for post in found])
    answer.headers["x-wp-total"] = str(total)
    answer.headers["x-wp-totalpages"] = str(pages)
    others = {"prev": listing.page - 1, "next": listing.page + 1}
    links = [
        f'<{posts.url}{_ROOT}/wp/v2/posts?{urlencode(call.params | {"page": number}, doseq=True)}>; rel="{name}"'
        for name, number in others.items()
        if 1 <= number <= pages
    ]
    if links:
        answer.headers["link"] = ", ".join(links)
    return answer


def _me(call: _Call, url: str) -> Document:
    context = _context(call)
    user = call.user
    if user is None:
        raise RestError(401, "rest_not_logged_in", "You are not currently logged in.")
    about: Document = {"id": user.id, "name": user.name, "url": url, "link": f"{url}/author/{user.name}/"}
    about |= {"slug": user.name, "meta": []}
    if context == "edit":
        edits = ("edit_posts", "edit_others_posts", "edit_published_posts", "edit_private_posts", "read_private_posts")
        abilities = ("publish_posts", "delete_posts", "delete_others_posts") if user.may_publish else ()
        about |= {
            "username": user.name,
            "roles": ["administrator" if user.may_publish else "reader"],
            "capabilities": dict.fromkeys(("read", *edits, *abilities), True),
        }
    return about


def _public_page(posts: Posts, route: str, request: Request) -> Response:
    """What a visitor without an account gets."""
    if request.method not in {"GET", "HEAD"}:
        return Response("method not allowed", 405, media_type="text/plain")
    number = request.query_params.get("p")
    if route == "/" and number is None:
        return _listing(posts, route)
    for post in posts.documents.values():
        if post["status"] != "publish":
            continue
        path = f"/{unquote(post['slug'])}"
        if route == "/" and str(post["id"]) == number:
            return RedirectResponse(posts.link(post), 301)
        if route == path:
            return RedirectResponse(posts.link(post), 301)
        if route == f"{path}/":
            return Response(_article(post, posts), media_type="text/html")
    if _LISTED.fullmatch(route):
        return _listing(posts, route)
    return Response(page("Page not found", "", "<h1>Page not found</h1>"), 404, media_type="text/html")


def _listing(posts: Posts, route: str) -> Response:
    """Home, archives, sitemaps and feeds: all of them show the published posts, so all of them change with each."""
    found = posts.listed(Listing.of({"per_page": "100"}, None, "view"))[0]
    links = [(html.escape(posts.link(post)), html.escape(post["title"])) for post in found]
    if route.endswith("/feed/"):
        items = "".join(f"<item><title>{title}</title><link>{link}</link></item>" for link, title in links)
        feed = f'<?xml version="1.0" encoding="UTF-8"?><rss version="2.0"><channel>{items}</channel></rss>'
        return Response(feed, media_type="application/rss+xml")
    if route.endswith(".xml"):
        places = "".join(f"<url><loc>{link}</loc></url>" for link, _ in links)
        return Response(f"<urlset>{places}</urlset>", media_type="application/xml")
    entries = "".join(f'<li><a href="{link}">{title}</a></li>' for link, title in links)
    return Response(page("Sandbox", "", f"<ul>{entries}</ul>"), media_type="text/html")


def _article(post: Document, posts: Posts) -> str:
    rendered = rendered_post(post, posts, "view")
    head = f'<link rel="canonical" href="{html.escape(posts.link(post))}" />\n'
    body = f"<article>\n<h1>{rendered['title']['rendered']}</h1>\n{rendered['content']['rendered']}</article>"
    return page(post["title"], head, body)
