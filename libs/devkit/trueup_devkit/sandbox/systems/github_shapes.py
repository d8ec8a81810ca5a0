"""How GitHub's REST API shows things: the documented shapes of repositories, references, git objects and pages."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from trueup_devkit.sandbox.faults import Interference
from trueup_devkit.sandbox.store import Document
from trueup_devkit.sandbox.systems.github_git import DIRECTORY, MODES, Refused, Repository, name_of

T = TypeVar("T")
BODY_BYTES_MAX: Final = 48 << 20
CONTENT_BYTES_MAX: Final = 1 << 20
PER_PAGE_MAX: Final = 100
_ABILITIES: Final = ("admin", "maintain", "push", "triage", "pull")
_OWNER_LINKS: Final = (
    "events", "followers", "following", "gists", "organizations", "received_events", "repos", "starred",
    "subscriptions",
)  # fmt: skip
_REPOSITORY_LINKS: Final = {
    name: name
    for name in (
        "contributors", "deployments", "downloads", "events", "forks", "hooks", "languages", "merges", "stargazers",
        "subscribers", "subscription", "tags", "teams",
    )
} | {
    "archive": "{archive_format}{/ref}",
    "assignees": "assignees{/user}",
    "blobs": "git/blobs{/sha}",
    "branches": "branches{/branch}",
    "collaborators": "collaborators{/collaborator}",
    "comments": "comments{/number}",
    "commits": "commits{/sha}",
    "compare": "compare/{base}...{head}",
    "contents": "contents/{+path}",
    "git_commits": "git/commits{/sha}",
    "git_refs": "git/refs{/sha}",
    "git_tags": "git/tags{/sha}",
    "issue_comment": "issues/comments{/number}",
    "issue_events": "issues/events{/number}",
    "issues": "issues{/number}",
    "keys": "keys{/key_id}",
    "labels": "labels{/name}",
    "milestones": "milestones{/number}",
    "notifications": "notifications{?since,all,participating}",
    "pulls": "pulls{/number}",
    "releases": "releases{/id}",
    "statuses": "statuses/{sha}",
    "trees": "git/trees{/sha}",
}  # fmt: skip
_KINDS: Final = {"blob": "file", "tree": "dir", "commit": "submodule"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one repository, with the caller already told apart."""

    name: str
    route: str
    method: str
    url: str
    query: dict[str, str]
    body: dict[str, Any]
    abilities: tuple[str, ...]
    settings: Document
    disturbed: Interference
    now: str

    def needed(self, name: str) -> Any:
        """A member of the body. Raises Refused where it is missing."""
        if self.body.get(name) is None:
            raise Refused(422, f'Invalid request.\n\n"{name}" wasn\'t supplied.')
        return self.body[name]

    def page(self, otherwise: int) -> tuple[int, int]:
        """Number and size of the page asked for."""
        given = {key: self.query.get(key, "") for key in ("page", "per_page")}
        page, size = (int(text[:6]) if text.isascii() and text.isdigit() else 0 for text in given.values())
        return max(page, 1), min(size, PER_PAGE_MAX) or otherwise


def json_answer(body: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(body), status, headers={"content-type": "application/json; charset=utf-8"})


def created(body: Document) -> Response:
    """201 with the place of what was created."""
    answer = json_answer(body, 201)
    answer.headers["location"] = body["url"]
    return answer


def conditional(request: Request, answer: Response) -> Response:
    """A success of a read with its ETag; 304 where the caller has it already."""
    if request.method not in ("GET", "HEAD") or answer.status_code != 200:
        return answer
    etag = f'W/"{hashlib.sha256(bytes(answer.body)).hexdigest()}"'
    answer.headers["etag"] = etag
    answer.headers["cache-control"] = "private, max-age=60, s-maxage=60"
    if etag.removeprefix("W/") in request.headers.get("if-none-match", ""):
        kept = {key: value for key, value in answer.headers.items() if not key.startswith("content-")}
        return Response(None, 304, headers=kept)
    return answer


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings; an empty one where it brings nothing. Raises Refused."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > BODY_BYTES_MAX:
            raise Refused(413, "Payload too big")
    if not chunks:
        return {}
    try:
        body = orjson.loads(chunks)
    except orjson.JSONDecodeError:
        raise Refused(400, "Problems parsing JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "Body should be a JSON object")
    return body


def moment(at: float) -> str:
    """A moment in whole seconds, as GitHub writes it."""
    return datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")


def _owner(login: str, number: int) -> Document:
    api = f"https://api.github.com/users/{login}"
    links = {f"{name}_url": f"{api}/{name}" for name in _OWNER_LINKS}
    return links | {
        "login": login,
        "id": number,
        "node_id": f"O_{number}",
        "avatar_url": f"https://avatars.githubusercontent.com/u/{number}",
        "gravatar_id": "",
        "url": api,
        "html_url": f"https://github.com/{login}",
        "type": "Organization",
        "site_admin": False,
    }


def repository(call: Call) -> Document:
    """A repository, with what the caller may do to it."""
    owner, _, name = call.name.partition("/")
    number, page = int(name_of("blob", call.name.encode())[:7], 16), f"https://github.com/{call.name}"
    shown: Document = {f"{name}_url": f"{call.url}/{place}" for name, place in _REPOSITORY_LINKS.items()}
    shown |= dict.fromkeys(("has_issues", "has_projects", "has_wiki", "has_pages", "has_discussions"), False)
    shown |= dict.fromkeys(("fork", "disabled", "is_template"), False)
    shown |= dict.fromkeys(("description", "homepage", "language", "mirror_url", "license"), None)
    shown |= dict.fromkeys(("forks", "open_issues", "watchers", "network_count", "subscribers_count", "size"), 0)
    shown |= dict.fromkeys(("forks_count", "open_issues_count", "watchers_count", "stargazers_count"), 0)
    shown |= dict.fromkeys(("created_at", "updated_at", "pushed_at"), "2026-01-01T00:00:00Z")
    return shown | {
        "id": number,
        "node_id": f"R_{number}",
        "name": name,
        "full_name": call.name,
        "private": True,
        "visibility": "private",
        "owner": _owner(owner, number + 1),
        "html_url": page,
        "clone_url": f"{page}.git",
        "svn_url": page,
        "git_url": f"git://github.com/{call.name}.git",
        "ssh_url": f"git@github.com:{call.name}.git",
        "url": call.url,
        "default_branch": call.settings["default_branch"],
        "archived": call.settings["archived"],
        "permissions": {ability: ability in call.abilities for ability in _ABILITIES},
    }


def reference(call: Call, ref: str, sha: str) -> Document:
    """A reference and the commit that it points to."""
    return {
        "ref": ref,
        "node_id": base64.b64encode(f"{call.name}:{ref}".encode()).decode(),
        "url": f"{call.url}/git/{quote(ref)}",
        "object": {"sha": sha, "type": "commit", "url": f"{call.url}/git/commits/{sha}"},
    }


def short(call: Call, kind: str, sha: str) -> Document:
    """What all git objects show."""
    node = base64.b64encode(f"{call.name}:{kind}:{sha}".encode()).decode()
    return {"sha": sha, "node_id": node, "url": f"{call.url}/git/{kind}s/{sha}"}


def _tree_link(call: Call, sha: str) -> Document:
    return {"sha": sha, "url": f"{call.url}/git/trees/{sha}"}


def git_commit(call: Call, sha: str, document: Document) -> Document:
    """A git commit."""
    return short(call, "commit", sha) | {
        "html_url": f"https://github.com/{call.name}/commit/{sha}",
        "author": document["author"],
        "committer": document["committer"],
        "message": document["message"].rstrip("\n"),
        "tree": _tree_link(call, document["tree"]),
        "parents": [
            {
                "sha": parent,
                "url": f"{call.url}/git/commits/{parent}",
                "html_url": f"https://github.com/{call.name}/commit/{parent}",
            }
            for parent in document["parents"]
        ],
        "verification": {
            "verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None,
        },
    }  # fmt: skip


def listed_commit(call: Call, sha: str, held: Repository) -> Document:
    """A commit as the repository's own lists show it."""
    document = held.object(sha, "commit")
    shown = git_commit(call, sha, document)
    page = f"https://github.com/{call.name}/commit/{sha}"
    kept = {name: shown[name] for name in ("author", "committer", "message", "tree", "verification")}
    return {
        "sha": sha,
        "node_id": shown["node_id"],
        "commit": kept | {"url": shown["url"], "comment_count": 0},
        "url": f"{call.url}/commits/{sha}",
        "html_url": page,
        "comments_url": f"{call.url}/commits/{sha}/comments",
        "author": None,
        "committer": None,
        "parents": shown["parents"],
    }


def listed_branch(call: Call, name: str, sha: str) -> Document:
    """A branch as the repository's list shows it."""
    return {"name": name, "commit": {"sha": sha, "url": f"{call.url}/commits/{sha}"}, "protected": False}


def page_of(call: Call, place: str, found: Sequence[T], shown: Callable[[T], Document]) -> Response:
    """One page of a list, with links to the others."""
    number, size = call.page(30)
    answer = json_answer([shown(item) for item in found[(number - 1) * size : number * size]])
    last = -(-len(found) // size)
    pages = {"prev": number - 1} | ({"next": number + 1, "last": last} if number < last else {})
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in call.query.items() if key != "page")
    links = [f'<{call.url}/{place}?{query}&page={page}>; rel="{rel}"' for rel, page in pages.items() if page > 0]
    if links:
        answer.headers["link"] = ", ".join(links)
    return answer


def tree(call: Call, held: Repository, root: str, *, is_recursive: bool = False) -> Document:
    """A tree with its entries, of all depths where asked."""
    listed: list[Document] = []

    def walk(sha: str, place: str) -> None:
        for name, (mode, child) in held.entries(sha).items():
            kind = MODES[mode]
            item: Document = {"path": place + name, "mode": mode, "type": kind, "sha": child}
            item["url"] = f"{call.url}/git/{kind}s/{child}"
            if kind == "blob":
                item["size"] = len(base64.b64decode(held.object(child, "blob")["content"]))
            listed.append(item)
            if is_recursive and mode == DIRECTORY:
                walk(child, f"{place}{name}/")

    walk(root, "")
    return short(call, "tree", root) | {"tree": listed, "truncated": False}


def content(call: Call, path: str, ref: str, entry: tuple[str, str], data: bytes | None) -> Document:
    """A file with its content, or one line of a directory. Content over 1 MB is left out."""
    mode, sha = entry
    kind = MODES[mode]
    url = f"{call.url}/contents/{quote(path)}?ref={quote(ref, safe='')}"
    git_url = f"{call.url}/git/{kind}s/{sha}"
    page = f"https://github.com/{call.name}/blob/{quote(ref)}/{quote(path)}"
    shown: Document = {
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": sha,
        "size": len(data or b""),
        "url": url,
        "html_url": page,
        "git_url": git_url,
        "download_url": f"https://raw.githubusercontent.com/{call.name}/{quote(ref)}/{quote(path)}",
        "type": _KINDS[kind],
        "_links": {"self": url, "git": git_url, "html": page},
    }
    if data is None:
        return shown
    is_shown = len(data) <= CONTENT_BYTES_MAX
    text = base64.encodebytes(data).decode() if is_shown else ""
    return shown | {"content": text, "encoding": "base64" if is_shown else "none"}
