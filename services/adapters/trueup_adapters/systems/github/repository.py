"""GitHub's REST API as one tenant sees it: reading, storing objects, moving references, and what its refusals mean.

Reads of a find or a probe use the read token and never fall back to the write token. GitHub hides what a token may not
see behind 404, so nothing is called missing before the same token has been shown the default branch.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson

from trueup_adapters.core.classify import RETRY_AFTER_SECONDS_MAX, http_date, retry_after_seconds, unsent
from trueup_adapters.systems.github.objects import DIRECTORY, Entry, carries
from trueup_adapters.systems.http import Answer, HttpTarget, Transmission, TransportFailed
from trueup_common.contracts.adapter import Call, Connection, EndsWith, Outcome, rejected
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.states import ErrorClass
from trueup_common.runtime.clock import real_now

API_VERSION: Final = "2022-11-28"
MEDIA_TYPE: Final = "application/vnd.github+json"
RATE_LIMIT_PAUSE_SECONDS: Final = 60.0
"""What GitHub asks for where a secondary rate limit says nothing about its end."""
LISTED_MAX: Final = 100
_LIMIT_WORDS: Final = ("rate limit", "abuse detection")
_RULE_WORDS: Final = ("protected", "rule violation")
_EMPTY: Final = "git repository is empty"
_T, _P = ErrorClass.TRANSIENT, ErrorClass.PERMANENT


class Stopped(EndsWith):
    """The command ends before its effect; `outcome` says what that means for it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a repository says of itself. What it says of the caller is not kept: for apps that is not what holds."""

    default_branch: str
    is_archived: bool


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a branch points; `sha` is None where there is no such branch, `is_empty` where there is none at all."""

    sha: str | None
    etag: str | None = None
    is_empty: bool = False


def outcome_of(answer: Answer, pause_seconds: float) -> Outcome:
    """What a refusal means for a write. GitHub's rate limits answer 403 as well as 429, with or without Retry-After."""
    outcome, words = answer.outcome(), message_of(answer)
    if answer.status in (409, 422) and any(word in words for word in _RULE_WORDS):
        return rejected(_P, "branch_protected", answer.detail(), external_status=str(answer.status))
    if answer.status not in (403, 429):
        return outcome
    is_spent = answer.headers.get("x-ratelimit-remaining") == "0"
    is_named = any(word in words for word in _LIMIT_WORDS)
    if answer.status == 403 and not (is_spent or is_named or "retry-after" in answer.headers):
        return outcome
    waiting = retry_after_seconds(answer.headers)
    if waiting is None and is_spent:
        waiting = _until_reset(answer.headers)
    return rejected(
        _T,
        "rate_limited",
        outcome.error_detail or "",
        external_status=str(answer.status),
        retry_after_seconds=pause_seconds if waiting is None else waiting,
    )


def _until_reset(headers: Mapping[str, str]) -> float | None:
    reset = headers.get("x-ratelimit-reset", "")
    if not reset.isascii() or not reset.isdigit():
        return None
    now = http_date(headers.get("date", "")) or real_now()
    return min(max(float(reset[:12]) - now.timestamp(), 0.0), RETRY_AFTER_SECONDS_MAX)


def message_of(answer: Answer) -> str:
    """GitHub's own words for a refusal, in lower case."""
    try:
        value = answer.json()
    except ValueError:
        return ""
    return str(value.get("message", "")).lower() if isinstance(value, dict) else ""


class GitHub(HttpTarget):
    """The API with the write token and, where configured, the read token."""

    def __init__(self, connection: Connection) -> None:
        settings, name = connection.settings, f"connection {connection.tenant}/{connection.system}"
        super().__init__(connection, str(settings.get("base_url", "")))
        self._writer = _bearer(name, "token", settings.get("token"))
        read_token = settings.get("read_token")
        self._reader = self._writer if read_token is None else _bearer(name, "read_token", read_token)
        pause = settings.get("rate_limit_pause_seconds", RATE_LIMIT_PAUSE_SECONDS)
        if isinstance(pause, bool) or not isinstance(pause, int | float) or not 0 <= pause <= RETRY_AFTER_SECONDS_MAX:
            raise ValueError(f"{name}: rate_limit_pause_seconds is a number of seconds")
        self.pause_seconds = float(pause)
        self.repositories: tuple[str, ...] = ()
        """What a survey looks through."""

    def outcome(self, answer: Answer) -> Outcome:
        """What a refusal means for the write that met it."""
        return outcome_of(answer, self.pause_seconds)

    def _failed(self, answer: Answer) -> Stopped:
        return Stopped(unsent(self.outcome(answer)))

    async def _get(self, path: str, *, reader: bool, params: Mapping[str, str] | None = None) -> Answer:
        try:
            return await self.read(path, params=params, headers=self._reader if reader else self._writer)
        except TransportFailed as failure:
            raise Stopped(failure.outcome_of_read()) from failure

    async def _document(self, path: str, *, reader: bool, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        answer = await self._get(path, reader=reader, params=params)
        document = answer.document()
        if document is None:
            raise self._failed(answer)
        return document

    async def facts(self, repository: str, *, reader: bool = False) -> Facts:
        """The repository itself. Raises Stopped; 404 may mean that it is hidden from this token."""
        document = await self._document(f"/repos/{repository}", reader=reader)
        return Facts(str(document.get("default_branch") or ""), document.get("archived") is True)

    async def ref(self, repository: str, branch: str, *, reader: bool = False) -> Ref:
        """Where a branch points. Raises Stopped; an absent branch may be a hidden one."""
        answer = await self._get(f"/repos/{repository}/git/ref/heads/{quote(branch)}", reader=reader)
        if answer.status == 404:
            return Ref(None)
        if answer.status == 409 and _EMPTY in message_of(answer):
            return Ref(None, is_empty=True)
        sha = pointed_at(answer.document())
        if sha is None:
            raise self._failed(answer)
        return Ref(sha, answer.headers.get("etag"))

    async def tree_of(self, repository: str, commit: str) -> str:
        """The root directory of a commit. Raises Stopped."""
        document = await self._document(f"/repos/{repository}/git/commits/{commit}", reader=False)
        tree = document.get("tree")
        return str(tree.get("sha") if isinstance(tree, dict) else None)

    async def entries(self, repository: str, tree: str) -> dict[str, Entry]:
        """One directory. Raises Stopped."""
        document = await self._document(f"/repos/{repository}/git/trees/{tree}", reader=False)
        if document.get("truncated") is not False:
            raise Stopped(rejected(_P, "directory_too_large", f"GitHub does not list all of the directory {tree}"))
        return {item["path"]: Entry(item["mode"].zfill(6), item["sha"]) for item in document["tree"]}

    async def levels(self, repository: str, root: str, path: str) -> list[dict[str, Entry]]:
        """The directories on the way to a path, root first, as far as they exist. Raises Stopped."""
        levels = [await self.entries(repository, root)]
        for name in path.split("/")[:-1]:
            entry = levels[-1].get(name)
            if entry is None or entry.mode != DIRECTORY:
                break
            levels.append(await self.entries(repository, entry.sha))
        return levels

    async def contains(self, repository: str, head: str, commit: str, *, reader: bool = False) -> bool:
        """True where a commit is a head or part of its history. Both are named by SHA: only a head can be stale."""
        if head == commit:
            return True
        path = f"/repos/{repository}/compare/{commit}...{head}"
        answer = await self._get(path, reader=reader, params={"per_page": "1", "page": "2"})
        if answer.status == 404:
            return False  # no such commit, or nothing in common
        document = answer.document()
        if document is None or not isinstance(document.get("status"), str):
            raise self._failed(answer)
        return document["status"] in ("ahead", "identical")

    async def content_sha256(self, repository: str, path: str, commit: str) -> str | None:
        """The digest of the file at a path of one commit, as the read token sees it; None where there is none."""
        place = f"/repos/{repository}/contents/{quote(path)}"
        answer = await self._get(place, reader=True, params={"ref": commit})
        if answer.status == 404:
            return None
        try:
            value = answer.json() if answer.ok else None
        except ValueError:
            value = None
        if isinstance(value, list):
            return "directory"
        if not isinstance(value, dict) or not isinstance(value.get("sha"), str):
            raise self._failed(answer)
        if value.get("type") != "file" or value.get("encoding") != "base64":
            return f"{value.get('type')}:{value['sha']}"  # a link, a submodule, or larger than GitHub shows
        try:
            return sha256_hex(base64.b64decode("".join(str(value.get("content", "")).split()), validate=True))
        except binascii.Error as error:
            raise self._failed(answer) from error

    async def marked(self, repository: str, head: str, path: str, command_id: str) -> list[str]:
        """The commits before a head that changed a path and name this operation, as the read token sees them."""
        params = {"sha": head, "path": path, "per_page": str(LISTED_MAX)}
        answer = await self._get(f"/repos/{repository}/commits", reader=True, params=params)
        try:
            value = answer.json() if answer.ok else None
            if not isinstance(value, list):
                raise ValueError("not a list")
            return [item["sha"] for item in value if carries(item["commit"]["message"], command_id)]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed(answer) from error

    async def branches(self, repository: str, number: int, size: int) -> list[str]:
        """Where the branches of one page point, as the read token sees them. Raises Stopped."""
        params = {"per_page": str(size), "page": str(number)}
        return [item["commit"]["sha"] for item in await self._listed(f"/repos/{repository}/branches", params)]

    async def commits(self, repository: str, head: str, size: int) -> list[tuple[str, str]]:
        """The newest commits before a head, with their messages, as the read token sees them. Raises Stopped."""
        params = {"sha": head, "per_page": str(size)}
        listed = await self._listed(f"/repos/{repository}/commits", params)
        return [(item["sha"], item["commit"]["message"]) for item in listed]

    async def _listed(self, path: str, params: Mapping[str, str]) -> list[dict[str, Any]]:
        """A page of a list of what has a commit. Raises Stopped."""
        answer = await self._get(path, reader=True, params=params)
        try:
            value = answer.json() if answer.ok else None
        except ValueError:
            value = None
        if not isinstance(value, list) or not all(
            isinstance(item, dict) and isinstance(item.get("commit"), dict) for item in value
        ):
            raise self._failed(answer)
        return value

    async def prove_access(self, repository: str, *, reader: bool = True) -> str | None:
        """None where this token is shown a branch that is known to be there; else why access is not proved."""
        try:
            facts = await self.facts(repository, reader=reader)
            ref = await self.ref(repository, facts.default_branch, reader=reader)
        except Stopped as stopped:
            return "no_proof_of_access" if stopped.reason == "not_found" else stopped.reason
        return None if ref.sha is not None or ref.is_empty else "no_proof_of_access"

    async def store(self, repository: str, kind: str, document: dict[str, Any], wanted: str, call: Call) -> None:
        """Store an object that nothing refers to yet: no effect, and the same object however often. Raises Stopped."""
        path = f"/repos/{repository}/git/{kind}"
        headers = {**self._headers(call), "content-type": "application/json"}
        try:
            answer = await self._exchange(
                "POST", path, headers, orjson.dumps(document), Transmission(None, once=True)
            )  # fmt: skip
        except TransportFailed as failure:
            raise Stopped(failure.outcome_of_read()) from failure
        stored = answer.document()
        if stored is None:
            raise self._failed(answer)
        if stored.get("sha") != wanted:
            detail = f"GitHub made {stored.get('sha')} of the {kind[:-1]} {wanted}; nothing refers to it"
            raise Stopped(rejected(_P, "object_differs", detail, external_status=str(answer.status)))

    async def change(self, method: str, path: str, document: Any, call: Call) -> Answer:
        """A write to a reference, once. Raises TransportFailed or SlotLost."""
        return await self.write(method, path, document=document, headers=self._headers(call), may_send=call.may_send)

    def _headers(self, call: Call) -> dict[str, str]:
        return {**self._writer, "traceparent": call.traceparent} if call.traceparent else self._writer


def pointed_at(document: Any) -> str | None:
    """The commit that a reference shows; None for anything else."""
    found = document.get("object") if isinstance(document, dict) else None
    sha = found.get("sha") if isinstance(found, dict) else None
    return sha if isinstance(sha, str) else None


def _bearer(name: str, setting: str, token: Any) -> dict[str, str]:
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ValueError(f"{name}: {setting} is needed as a token, for writing and, where given, for reading")
    return {"authorization": f"Bearer {token}", "accept": MEDIA_TYPE, "x-github-api-version": API_VERSION}
