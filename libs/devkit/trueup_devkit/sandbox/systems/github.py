"""GitHub's REST API for repositories, references, git objects, contents, commits and comparisons.

One host for all tenants, as the real one is; who calls is told by the token. A repository that a token may not see does
not exist for it (404), writing with a token that may only read is 403. References move atomically; objects that
nothing refers to are no effects.
"""

import base64
from collections.abc import Callable
from typing import Any, ClassVar, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.store import Change, Document, Effect, Store
from trueup_devkit.sandbox.system import Refusal
from trueup_devkit.sandbox.systems import github_shapes as shapes
from trueup_devkit.sandbox.systems.github_git import (
    MODES,
    NOT_FOUND,
    ROBOT,
    SEED_HEAD,
    SEED_OBJECTS,
    Refused,
    Repository,
    blob,
    checked_ref,
    commit,
    decoded,
    person,
)
from trueup_devkit.sandbox.systems.github_shapes import Call, created, json_answer

API_VERSION: Final = "2022-11-28"
OWNERS: Final = ("acme", "globex")
REPOSITORIES: Final = tuple(f"{owner}/articles" for owner in OWNERS)
RATE_LIMIT: Final = 5000
_ABILITIES: Final[dict[str, tuple[str, ...]]] = {"none": (), "read": ("pull",), "write": ("pull", "triage", "push")}
_FIRST: Final = {"default_branch": "main", "archived": False, "access": "write"}


def sandbox_token(owner: str, *, may_write: bool = True) -> str:
    """The token of a tenant. Made up here, known to everybody, good for nothing else."""
    return f"sandbox-{owner}" if may_write else f"sandbox-{owner}-reader"


_TOKENS: Final = {sandbox_token(owner, may_write=flag): (owner, flag) for owner in OWNERS for flag in (True, False)}


def _caller(authorization: str | None) -> tuple[str, bool] | None:
    """The tenant and whether it may write; None for a stranger. Raises Refused for a token that nobody has."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() not in ("bearer", "token"):
        return None
    if token.strip() not in _TOKENS:
        raise Refused(401, "Bad credentials")
    return _TOKENS[token.strip()]


class GitHub:
    """All repositories of the sandbox."""

    rewritable: ClassVar[frozenset[str]] = frozenset({"message"})

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._requests_count = 0
        self._reads: dict[str, Callable[[Call, Repository, str], Response]] = {
            "git/ref/": self._get_ref,
            "git/blobs/": self._get_blob,
            "git/trees/": self._get_tree,
            "git/commits/": self._get_commit,
            "contents/": self._get_content,
            "compare/": self._get_comparison,
            "commits": self._get_commits,
            "branches": self._get_branches,
        }
        self._writes: dict[str, Callable[[Call, Repository, str], Response]] = {
            "POST git/blobs": self._make_blob,
            "POST git/trees": self._make_tree,
            "POST git/commits": self._make_commit,
            "POST git/refs": self._make_ref,
            "PATCH git/refs/": self._move_ref,
            "DELETE git/refs/": self._drop_ref,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except Refused as refused:
            answer = json_answer(refused.document(), refused.status)
        except ClientDisconnect:
            return
        self._requests_count += 1
        used = self._requests_count % RATE_LIMIT
        limits = {"limit": RATE_LIMIT, "remaining": RATE_LIMIT - used, "used": used, "resource": "core"}
        limits["reset"] = (int(self._store.now()) // 3600 + 1) * 3600
        answer.headers.update({f"x-ratelimit-{name}": str(value) for name, value in limits.items()})
        answer.headers["x-github-api-version-selected"] = API_VERSION
        answer.headers["x-github-media-type"] = "github.v3; format=json"
        await shapes.conditional(request, answer)(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if not request.headers.get("user-agent"):
            raise Refused(403, "Request forbidden by administrative rules. Please send a User-Agent header.")
        version = request.headers.get("x-github-api-version", API_VERSION)
        if version != API_VERSION:
            raise Refused(400, f"The API version {version[:40]!r} is not supported.")
        caller = _caller(request.headers.get("authorization"))
        parts = request.scope["path"].strip("/").split("/", 3)
        name = "/".join(parts[1:3])
        disturbed = interference(request.scope)
        if parts[0] != "repos" or name not in REPOSITORIES or caller is None or disturbed.deny_reads:
            raise NOT_FOUND
        settings = self._settings(name)
        if settings["access"] == "none" or caller[0] != name.split("/")[0]:
            raise NOT_FOUND
        access = "write" if caller[1] and settings["access"] == "write" else "read"
        call = Call(
            name=name,
            route=parts[3] if len(parts) > 3 else "",
            method="GET" if request.method == "HEAD" else request.method,
            url=f"{self._url}/repos/{name}",
            query=dict(request.query_params),
            body=await shapes.body_of(request),
            abilities=_ABILITIES[access],
            settings=settings,
            disturbed=disturbed,
            now=shapes.moment(self._store.now()),
        )
        return await self._routed(call)

    async def _routed(self, call: Call) -> Response:
        if call.method == "GET":
            if not call.route:
                return json_answer(shapes.repository(call))
            return self._dispatch(self._reads, call.route, call)
        if "push" not in call.abilities:
            raise Refused(403, "Resource not accessible by personal access token")
        if call.settings["archived"]:
            raise Refused(403, "Repository was archived so is read-only.")
        if call.disturbed.pause is not None:
            # References move atomically: whoever waits here meets what the others did meanwhile.
            await call.disturbed.pause()
        return self._dispatch(self._writes, f"{call.method} {call.route}", call)

    def _dispatch(
        self, table: dict[str, Callable[[Call, Repository, str], Response]], asked: str, call: Call
    ) -> Response:
        for pattern, handle in table.items():
            if asked == pattern or (pattern.endswith("/") and asked.startswith(pattern)):
                repository = self._repository(call.name, call.disturbed.stale_seconds)
                if not repository.refs and pattern != "branches":
                    raise Refused(409, "Git Repository is empty.")
                return handle(call, repository, asked[len(pattern) :])
        raise NOT_FOUND

    def _settings(self, name: str) -> Document:
        return {**_FIRST, **self._store.documents("github.repository").get(name, {})}

    def _repository(self, name: str, stale_seconds: float | None = None) -> Repository:
        as_of = None if stale_seconds is None else self._store.now() - stale_seconds
        refs = {"refs/heads/main": SEED_HEAD}
        refs |= {ref: kept["sha"] for ref, kept in self._store.documents(f"github.ref/{name}", as_of).items()}
        objects = {**SEED_OBJECTS, **self._store.documents(f"github.object/{name}", as_of)}
        return Repository(objects, {ref: sha for ref, sha in refs.items() if sha is not None})

    def _keep(self, name: str, repository: Repository) -> None:
        changes = [Change(f"github.object/{name}", sha, document) for sha, document in repository.added.items()]
        self._store.apply(None, changes)

    def _get_ref(self, call: Call, repository: Repository, name: str) -> Response:
        sha = repository.refs.get(f"refs/{name}")
        if sha is None:
            raise NOT_FOUND
        return json_answer(shapes.reference(call, f"refs/{name}", sha))

    def _get_blob(self, call: Call, repository: Repository, name: str) -> Response:
        text = repository.object(name, "blob")["content"]
        size = len(base64.b64decode(text))
        return json_answer(shapes.short(call, "blob", name) | {"content": text, "encoding": "base64", "size": size})

    def _get_tree(self, call: Call, repository: Repository, name: str) -> Response:
        root = name if repository.has(name, "tree") else repository.object(repository.resolve(name), "commit")["tree"]
        return json_answer(shapes.tree(call, repository, root, is_recursive="recursive" in call.query))

    def _get_commit(self, call: Call, repository: Repository, name: str) -> Response:
        return json_answer(shapes.git_commit(call, name, repository.object(name, "commit")))

    def _get_content(self, call: Call, repository: Repository, path: str) -> Response:
        ref = call.query.get("ref") or str(call.settings["default_branch"])
        found = repository.at(repository.object(repository.resolve(ref), "commit")["tree"], path)
        if found is None:
            raise NOT_FOUND
        if MODES[found[0]] == "tree":
            below = repository.entries(found[1]).items()
            return json_answer([self._listed(call, repository, f"{path}/{name}", ref, entry) for name, entry in below])
        data = base64.b64decode(repository.object(found[1], "blob")["content"])
        return json_answer(shapes.content(call, path, ref, found, data))

    def _listed(self, call: Call, repository: Repository, path: str, ref: str, entry: tuple[str, str]) -> Document:
        """One line of a directory, with the size of a file."""
        is_file = MODES[entry[0]] == "blob"
        size = len(base64.b64decode(repository.object(entry[1], "blob")["content"])) if is_file else 0
        return shapes.content(call, path, ref, entry, None) | {"size": size}

    def _get_comparison(self, call: Call, repository: Repository, basehead: str) -> Response:
        base, dots, head = basehead.partition("...")
        if not dots:
            raise NOT_FOUND
        first, second = repository.resolve(base), repository.resolve(head)
        before, after = list(repository.history(first)), list(repository.history(second))
        ahead, behind = [sha for sha in after if sha not in before], [sha for sha in before if sha not in after]
        common = next((sha for sha in after if sha in before), None)
        if common is None:
            raise Refused(404, f"No common ancestor between {base[:100]} and {head[:100]}.")
        statuses = {(False, False): "identical", (True, False): "ahead", (False, True): "behind"}
        number, size = call.page(250)
        shown = ahead[::-1][(number - 1) * size : number * size]
        document: Document = {
            "url": f"{call.url}/compare/{quote(basehead)}",
            "html_url": f"https://github.com/{call.name}/compare/{quote(basehead)}",
            "permalink_url": f"https://github.com/{call.name}/compare/{first}...{second}",
            "diff_url": f"https://github.com/{call.name}/compare/{quote(basehead)}.diff",
            "patch_url": f"https://github.com/{call.name}/compare/{quote(basehead)}.patch",
            "base_commit": shapes.listed_commit(call, first, repository),
            "merge_base_commit": shapes.listed_commit(call, common, repository),
            "status": statuses.get((bool(ahead), bool(behind)), "diverged"),
            "ahead_by": len(ahead),
            "behind_by": len(behind),
            "total_commits": len(ahead),
            "commits": [shapes.listed_commit(call, sha, repository) for sha in shown],
        }
        return json_answer(document | ({"files": []} if number == 1 else {}))

    def _get_commits(self, call: Call, repository: Repository, _rest: str) -> Response:
        head = repository.resolve(call.query.get("sha") or str(call.settings["default_branch"]))
        found = repository.touching(head, call.query.get("path", ""))
        return shapes.page_of(call, "commits", found, lambda sha: shapes.listed_commit(call, sha, repository))

    def _get_branches(self, call: Call, repository: Repository, _rest: str) -> Response:
        heads = sorted((ref.removeprefix("refs/heads/"), sha) for ref, sha in repository.refs.items())
        return shapes.page_of(call, "branches", heads, lambda head: shapes.listed_branch(call, *head))

    def _make_blob(self, call: Call, repository: Repository, _rest: str) -> Response:
        sha = repository.add(blob(decoded(call.needed("content"), call.body.get("encoding"))))
        self._keep(call.name, repository)
        return created({"url": f"{call.url}/git/blobs/{sha}", "sha": sha})

    def _make_tree(self, call: Call, repository: Repository, _rest: str) -> Response:
        items, root = call.needed("tree"), call.body.get("base_tree")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise Refused(422, "Invalid request.\n\nFor 'properties/tree', is not an array.")
        if root is not None and not repository.has(root, "tree"):
            raise Refused(422, "base_tree is not a valid tree oid")
        for item in items:
            mode, path, sha = item.get("mode"), item.get("path"), item.get("sha")
            if not isinstance(path, str) or mode not in MODES or item.get("type", MODES[mode]) != MODES[mode]:
                raise Refused(422, "Must supply a valid tree.mode")
            if "content" in item:
                sha = repository.add(blob(decoded(item["content"], None)))
            elif sha is not None and not repository.has(sha, MODES[mode]):
                raise Refused(422, "tree.sha is not a valid blob")
            root = repository.grown(root, path, mode, sha)
        if root is None:
            raise Refused(422, "Invalid tree info")
        self._keep(call.name, repository)
        return created(shapes.tree(call, repository, root))

    def _make_commit(self, call: Call, repository: Repository, _rest: str) -> Response:
        message, root, parents = call.needed("message"), call.needed("tree"), call.body.get("parents", [])
        if not isinstance(message, str) or not repository.has(root, "tree"):
            raise Refused(422, "Tree SHA does not exist")
        if not isinstance(parents, list) or not all(repository.has(sha, "commit") for sha in parents):
            raise Refused(422, "Parent SHA does not exist or is not a commit object")
        otherwise = {"name": call.name.split("/")[0], "email": "bot@example.org", "date": call.now}
        author = person(call.body.get("author"), otherwise)
        committer = person(call.body.get("committer"), author)
        made = commit(root, parents, author, committer, call.disturbed.rewritten("message", message))
        sha = repository.add(made)
        self._keep(call.name, repository)
        return created(shapes.git_commit(call, sha, made[1]))

    def _make_ref(self, call: Call, repository: Repository, _rest: str) -> Response:
        ref, sha = checked_ref(call.needed("ref")), call.needed("sha")
        if ref in repository.refs:
            raise Refused(422, "Reference already exists")
        if any(known.startswith(f"{ref}/") or ref.startswith(f"{known}/") for known in repository.refs):
            raise Refused(422, "Reference update failed")
        if not repository.has(sha, "commit"):
            raise Refused(422, "Object does not exist")
        self._point(call.name, ref, repository, sha, "create")
        return created(shapes.reference(call, ref, sha))

    def _move_ref(self, call: Call, repository: Repository, name: str) -> Response:
        ref, sha = f"refs/{name}", call.needed("sha")
        if ref not in repository.refs:
            raise Refused(422, "Reference does not exist")
        if not repository.has(sha, "commit"):
            raise Refused(422, "Object does not exist")
        if call.body.get("force") is not True and not repository.contains(sha, repository.refs[ref]):
            raise Refused(422, "Update is not a fast forward")
        if repository.refs[ref] != sha:
            self._point(call.name, ref, repository, sha, "update")
        return json_answer(shapes.reference(call, ref, sha))

    def _drop_ref(self, call: Call, repository: Repository, name: str) -> Response:
        ref = f"refs/{name}"
        if ref not in repository.refs:
            raise Refused(422, "Reference does not exist")
        if name == f"heads/{call.settings['default_branch']}":
            raise Refused(422, "Cannot delete the default branch")
        effect = Effect("github", "github.branch", _object(call.name, ref), "delete")
        self._store.apply(effect, [Change(f"github.ref/{call.name}", ref, {"sha": None})])
        return Response(None, 204)

    def _point(self, name: str, ref: str, repository: Repository, sha: str, action: str) -> None:
        """The one moment at which a commit becomes part of the repository."""
        kind = "github.branch" if repository.is_reachable(sha) else "github.commit"
        effect = Effect("github", kind, _object(name, ref), action)
        self._store.apply(effect, [Change(f"github.ref/{name}", ref, {"sha": sha})])

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Edit `<owner>/<repository>` (settings) or `<owner>/<repository>@<branch>` (delete, move, add a commit)."""
        name, at, branch = object_.partition("@")
        if name not in REPOSITORIES or (at and not branch):
            raise Refusal(404, f"an object is one of {REPOSITORIES}, or <repository>@<branch>")
        if not at:
            return self._tamper_repository(name, change)
        ref, repository = f"refs/heads/{branch}", self._repository(name)
        if change == {"delete": True}:
            if ref not in repository.refs:
                raise Refusal(404, f"no branch {branch[:100]!r}")
            self._store.apply(None, [Change(f"github.ref/{name}", ref, {"sha": None})])
            return {"object": object_, "deleted": True}
        sha = self._tampered_head(repository, ref, change)
        self._keep(name, repository)
        self._store.apply(None, [Change(f"github.ref/{name}", ref, {"sha": sha})])
        return {"object": object_, "sha": sha}

    def _tampered_head(self, repository: Repository, ref: str, change: dict[str, Any]) -> str:
        if set(change) == {"sha"} and repository.has(change["sha"], "commit"):
            return str(change["sha"])
        file, names = change.get("commit"), ("path", "content", "message")
        if set(change) != {"commit"} or not isinstance(file, dict) or not all(
            isinstance(file.get(key), str) for key in names
        ):  # fmt: skip
            raise Refusal(400, '{"delete": true}, {"sha": a commit} or {"commit": {"path", "content", "message"}}')
        parent = repository.refs.get(ref) or repository.refs.get("refs/heads/main")
        author = {**ROBOT, "date": shapes.moment(self._store.now())}
        try:
            return repository.with_file(parent, file["path"], file["content"].encode(), file["message"], author)
        except Refused as refused:
            raise Refusal(400, refused.message) from None

    def _tamper_repository(self, name: str, change: dict[str, Any]) -> dict[str, Any]:
        if change == {"empty": True}:
            refs = self._repository(name).refs
            self._store.apply(None, [Change(f"github.ref/{name}", ref, {"sha": None}) for ref in refs])
            return {"object": name, "empty": True}
        kept = self._settings(name) | change
        if set(kept) != set(_FIRST) or kept["access"] not in _ABILITIES or not isinstance(kept["archived"], bool):
            raise Refusal(400, f"a repository has {', '.join(_FIRST)}; access is one of {', '.join(_ABILITIES)}")
        self._store.apply(None, [Change("github.repository", name, kept)])
        return {"object": name} | kept


def _object(name: str, ref: str) -> str:
    return f"{name}@{ref.removeprefix('refs/heads/')}"
