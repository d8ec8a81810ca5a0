"""What git itself does inside the sandbox's GitHub: objects named by their content, references that move atomically.

Kept apart from the adapter on purpose: two independent computations of the same hash are a test of each other. An
object that no reference leads to is no effect.
"""

import base64
import binascii
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from trueup_devkit.sandbox.store import Document

DIRECTORY: Final = "040000"
FILE: Final = "100644"
MODES: Final = {FILE: "blob", "100755": "blob", "120000": "blob", DIRECTORY: "tree", "160000": "commit"}
SHA: Final = re.compile(r"^[0-9a-f]{40}$")
_CRUD: Final = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
_BAD_REF: Final = re.compile(r"\.\.|@\{|[\x00-\x20~^:?*\[\\\x7f]|//|(^|/)\.|\.lock(/|$)|\.$|/$")
_ROOT_DATE: Final = "2026-01-01T00:00:00Z"
_ROBOT: Final = {"name": "Sandbox", "email": "sandbox@example.org", "date": _ROOT_DATE}


class Refused(Exception):
    """An error as GitHub documents it."""

    def __init__(self, status: int, message: str, errors: list[Document] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors

    def document(self) -> Document:
        """The body of the answer."""
        body: Document = {"message": self.message, "documentation_url": "https://docs.github.com/rest"}
        if self.errors is not None:
            body["errors"] = self.errors
        return body | {"status": str(self.status)}


NOT_FOUND: Final = Refused(404, "Not Found")


def name_of(kind: str, body: bytes) -> str:
    """The name that git gives an object."""
    return hashlib.sha1(b"%s %d\x00" % (kind.encode(), len(body)) + body, usedforsecurity=False).hexdigest()


def _person(value: Mapping[str, str]) -> str:
    seconds = int(_moment(value["date"]).timestamp())
    return f"{value['name']} <{value['email']}> {seconds} +0000"


def _moment(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise Refused(422, "Invalid request.\n\nFor 'properties/date', is not a date-time.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def person(value: Any, otherwise: Mapping[str, str]) -> dict[str, str]:
    """An author as git stores one: without what libgit2 trims, in UTC and whole seconds."""
    if value is None:
        return dict(otherwise)
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("name", "email")):
        raise Refused(422, 'Invalid request.\n\n"name", "email" weren\'t supplied.')
    at = _moment(value.get("date") or otherwise["date"]).astimezone(UTC).replace(microsecond=0)
    return {
        "name": value["name"].strip(_CRUD),
        "email": value["email"].strip(_CRUD),
        "date": at.isoformat().replace("+00:00", "Z"),
    }


def blob(content: bytes) -> tuple[str, Document]:
    """A blob and its name."""
    return name_of("blob", content), {"type": "blob", "content": base64.b64encode(content).decode()}


def tree(entries: Iterable[tuple[str, str, str]]) -> tuple[str, Document]:
    """A tree of (mode, name, sha) and its name."""
    ordered = sorted(entries, key=lambda item: item[1].encode() + (b"/" if item[0] == DIRECTORY else b""))
    body = b"".join(b"%s %s\x00" % (mode.lstrip("0").encode(), name.encode()) + bytes.fromhex(sha)
                    for mode, name, sha in ordered)  # fmt: skip
    return name_of("tree", body), {"type": "tree", "entries": [list(item) for item in ordered]}


def commit(root: str, parents: list[str], author: Document, committer: Document, message: str) -> tuple[str, Document]:
    """A commit and its name."""
    lines = [f"tree {root}", *(f"parent {sha}" for sha in parents)]
    lines += [f"author {_person(author)}", f"committer {_person(committer)}", "", message]
    document: Document = {"type": "commit", "tree": root, "parents": parents, "author": author, "committer": committer}
    return name_of("commit", "\n".join(lines).encode()), document | {"message": message}


def decoded(content: Any, encoding: Any) -> bytes:
    """The bytes that a request to store a blob means."""
    if not isinstance(content, str):
        raise Refused(422, 'Invalid request.\n\n"content" wasn\'t supplied.')
    if encoding not in ("base64", "utf-8", None):
        raise Refused(422, "Invalid request.\n\nFor 'properties/encoding', is not a known encoding.")
    if encoding != "base64":
        return content.encode()
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except binascii.Error:
        raise Refused(422, "content is not valid Base64") from None


def checked_ref(name: Any) -> str:
    """A full name of a reference under `refs/`."""
    if not isinstance(name, str) or not name.startswith("refs/") or name.count("/") < 2 or _BAD_REF.search(name):
        raise Refused(422, f"{name!s:.100} is not a valid ref name.")
    return name


@dataclass(slots=True)
class Repository:
    """The objects and references of one repository at one moment. `added` are objects that are not stored yet."""

    objects: Mapping[str, Document]
    refs: Mapping[str, str]
    added: dict[str, Document] = field(default_factory=dict)

    def object(self, sha: Any, kind: str) -> Document:
        """An object of one kind. Raises Refused."""
        found = self.added.get(str(sha)) or self.objects.get(str(sha))
        if found is None or found["type"] != kind:
            raise NOT_FOUND
        return found

    def has(self, sha: Any, kind: str) -> bool:
        """True where there is such an object."""
        try:
            return bool(self.object(sha, kind))
        except Refused:
            return False

    def add(self, made: tuple[str, Document]) -> str:
        """Remember a new object; an object that is there already stays."""
        sha, document = made
        if sha not in self.objects:
            self.added[sha] = document
        return sha

    def resolve(self, name: str) -> str:
        """The commit that a branch, a full reference or a SHA means. Raises Refused."""
        for spelling in (name, f"refs/heads/{name}", f"refs/tags/{name}"):
            if spelling in self.refs:
                return self.refs[spelling]
        if SHA.fullmatch(name) and self.has(name, "commit"):
            return name
        raise Refused(404, f"No commit found for the ref {name[:100]}")

    def history(self, sha: str) -> Iterator[str]:
        """A commit and all that went before it, newest first."""
        seen, waiting = {sha}, deque([sha])
        while waiting:
            current = waiting.popleft()
            yield current
            for parent in self.object(current, "commit")["parents"]:
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)

    def contains(self, head: str, sha: str) -> bool:
        """True where a commit is part of a head's history."""
        return sha in self.history(head)

    def is_reachable(self, sha: str) -> bool:
        """True where some reference leads to a commit."""
        return any(self.contains(head, sha) for head in self.refs.values())

    def entries(self, root: str) -> dict[str, tuple[str, str]]:
        """The names of one directory with mode and SHA."""
        return {name: (mode, sha) for mode, name, sha in self.object(root, "tree")["entries"]}

    def at(self, root: str, path: str) -> tuple[str, str] | None:
        """Mode and SHA of what lies at a path."""
        mode, sha = DIRECTORY, root
        for part in (part for part in path.split("/") if part):
            found = self.entries(sha).get(part) if mode == DIRECTORY else None
            if found is None:
                return None
            mode, sha = found
        return mode, sha

    def grown(self, root: str | None, path: str, mode: str, sha: str | None) -> str | None:
        """A tree with one path replaced, or taken out where there is no SHA; None for a tree that became empty."""
        name, _, rest = path.partition("/")
        if not name or name in (".", "..") or name.lower() == ".git":
            raise Refused(422, "tree.path contains a malformed path component")
        entries = self.entries(root) if root is not None else {}
        if rest:
            below = entries.get(name)
            inner = self.grown(below[1] if below and below[0] == DIRECTORY else None, rest, mode, sha)
            entries.pop(name, None)
            if inner is not None:
                entries[name] = (DIRECTORY, inner)
        elif sha is None:
            if entries.pop(name, None) is None:
                raise Refused(422, "GitRPC::BadObjectState")
        else:
            entries[name] = (mode, sha)
        return self.add(tree((mode_, name_, sha_) for name_, (mode_, sha_) in entries.items())) if entries else None

    def with_file(self, parent: str | None, path: str, content: bytes, message: str, author: Document) -> str:
        """A commit of one file on top of another one."""
        root = self.object(parent, "commit")["tree"] if parent is not None else None
        grown = self.grown(root, path, FILE, self.add(blob(content)))
        assert grown is not None
        return self.add(commit(grown, [parent] if parent is not None else [], author, author, message))

    def touching(self, head: str, path: str) -> list[str]:
        """The commits before and with a head that changed what lies at a path; all of them without a path."""
        found = []
        for sha in self.history(head):
            document = self.object(sha, "commit")
            here = self.at(document["tree"], path)
            before = [self.at(self.object(parent, "commit")["tree"], path) for parent in document["parents"]]
            if not path or (here not in before if before else here is not None):
                found.append(sha)
        return found


def _seeded() -> tuple[dict[str, Document], str]:
    first = Repository({}, {})
    head = first.with_file(None, "README.md", b"# Articles\n", "Begin the archive", dict(_ROBOT))
    head = first.with_file(head, "articles/welcome.md", b"Welcome.\n", "Welcome the reader", dict(_ROBOT))
    return first.added, head


SEED_OBJECTS, SEED_HEAD = _seeded()
"""What every repository of the sandbox begins with, as if it had always been there."""
ROBOT: Final = _ROBOT
