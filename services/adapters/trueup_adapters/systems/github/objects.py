"""Git's names of objects, computed here: what a commit will be called is known before anything is sent. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from trueup_common.contracts.shape import rfc3339

DIRECTORY: Final = "040000"
FILE: Final = "100644"
TRAILER: Final = "Trueup-Operation"
_CRUD: Final = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
"""What git trims from both ends of a name; trimmed here first, so that nobody has to agree about it."""


def object_sha(kind: str, body: bytes) -> str:
    """The name of an object: SHA-1 over its kind, its length and its bytes. Identity, not security."""
    return hashlib.sha1(f"{kind} {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()


def blob_sha(content: bytes) -> str:
    """The name of a file's content."""
    return object_sha("blob", content)


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory. `mode` as the REST API writes it, six digits."""

    mode: str
    sha: str

    @property
    def is_file(self) -> bool:
        """True for an ordinary file, executable or not; links and submodules are none."""
        return self.mode.startswith("100")


def tree_sha(entries: Mapping[str, Entry]) -> str:
    """The name of a directory. Git sorts bytes, and a directory as if its name ended with a slash."""

    def place(item: tuple[str, Entry]) -> bytes:
        return item[0].encode() + (b"/" if item[1].mode == DIRECTORY else b"")

    body = b"".join(
        f"{entry.mode.lstrip('0')} {name}\0".encode() + bytes.fromhex(entry.sha)
        for name, entry in sorted(entries.items(), key=place)
    )
    return object_sha("tree", body)


class NoPlace(ValueError):
    """Something that is not a directory, or not a file, stands where the path leads."""


def grown_tree_sha(levels: Iterable[Mapping[str, Entry]], path: str, blob: str) -> str:
    """The name of the root directory once a file lies at a path. `levels` are the directories on the way, root first.

    Directories that are not there yet are left out at the end. Raises NoPlace.
    """
    names, known = path.split("/"), list(levels)
    child = Entry(FILE, blob)
    for depth in range(len(names) - 1, -1, -1):
        entries = dict(known[depth]) if depth < len(known) else {}
        there, wants_file = entries.get(names[depth]), depth == len(names) - 1
        if there is not None and (not there.is_file if wants_file else there.mode != DIRECTORY):
            raise NoPlace("/".join(names[: depth + 1]))
        entries[names[depth]] = child
        child = Entry(DIRECTORY, tree_sha(entries))
    return child.sha


@dataclass(frozen=True, slots=True)
class Person:
    """Author and committer at a fixed moment: with it the commit has the same name whenever it is made."""

    name: str
    email: str
    date: str

    @classmethod
    def of(cls, name: str, email: str, authored_at: str) -> Self:
        """From a payload; whole seconds in UTC. Raises ValueError for a date or a name that is none."""
        at = datetime.fromisoformat(authored_at)
        if at.tzinfo is None:
            raise ValueError("the date has no time zone")
        trimmed = (name.strip(_CRUD), email.strip(_CRUD))
        if not all(trimmed):
            raise ValueError("the author has no name")
        return cls(*trimmed, rfc3339(at.astimezone(UTC).replace(microsecond=0)))

    @property
    def line(self) -> str:
        """As it stands in a commit."""
        return f"{self.name} <{self.email}> {int(datetime.fromisoformat(self.date).timestamp())} +0000"


def message_of(text: str, command_id: str) -> str:
    """A commit message that names its operation in a trailer."""
    return f"{text.strip()}\n\n{TRAILER}: {command_id}"


def carries(message: str, command_id: str) -> bool:
    """True where a commit message names this operation."""
    return f"{TRAILER}: {command_id}" in message.splitlines()


def operation_in(message: str) -> str | None:
    """The operation that a commit message names in its trailer."""
    named = [line.removeprefix(f"{TRAILER}: ") for line in message.splitlines() if line.startswith(f"{TRAILER}: ")]
    return named[-1] if named else None


def commit_sha(tree: str, parent: str, person: Person, message: str) -> str:
    """The name of a commit with one parent, committed by its author."""
    lines = (f"tree {tree}", f"parent {parent}", f"author {person.line}", f"committer {person.line}", "", message)
    return object_sha("commit", "\n".join(lines).encode())


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to bring an operation's commit into a branch, kept in the ledger before anything is sent.

    `create` only ever makes a new branch, `append` only ever moves an existing one forward from `parent`: so where the
    commit is found, it is known who made the branch.
    """

    mode: Literal["create", "append"]
    parent: str
    base_tree: str
    tree: str
    blob: str
    commit: str

    def fits(self, head: str | None) -> bool:
        """True where the branch still stands as this plan needs it."""
        return head is None if self.mode == "create" else head == self.parent


def kept(plans: Iterable[Plan]) -> dict[str, Any]:
    """Plans as a cursor."""
    return {"plans": [asdict(plan) for plan in plans]}


def plans_of(cursor: Mapping[str, Any] | None) -> list[Plan]:
    """All plans that an operation ever had, the present one last."""
    return [Plan(**item) for item in (cursor or {}).get("plans", [])]
