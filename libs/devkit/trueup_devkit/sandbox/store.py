"""The world's memory: effects are only ever appended, and documents keep every earlier version.

Both live in one SQLite file, and an effect is committed with the document it changed, before any answer leaves. So the
ground truth survives a kill of the process, and a stale read can answer the state as of any earlier moment.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Document = dict[str, Any]
Now = Callable[[], float]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, system TEXT NOT NULL, kind TEXT NOT NULL, object TEXT NOT NULL,
    action TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS effects_object ON effects (system, object, seq);
CREATE TABLE IF NOT EXISTS versions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, collection TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL, body TEXT);
CREATE INDEX IF NOT EXISTS versions_document ON versions (collection, id, seq);
CREATE TABLE IF NOT EXISTS faults (id INTEGER PRIMARY KEY AUTOINCREMENT, spec TEXT NOT NULL, left INTEGER NOT NULL);
"""


def iso(at: float) -> str:
    """The moment as RFC 3339 text in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that really happened in an external system."""

    system: str
    kind: str
    object: str
    action: str


@dataclass(frozen=True, slots=True)
class Change:
    """A new version of a document; no body means that it is gone."""

    collection: str
    id: str
    body: Document | None


class Store:
    """One SQLite connection, used from the event loop's thread only."""

    def __init__(self, path: Path, now: Now = time.time) -> None:
        self.now = now
        self._db = sqlite3.connect(path, isolation_level=None)
        # Without fsync a commit survives the end of this process, which is all that a sandbox has to survive.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.executescript(_SCHEMA)
        self._current: dict[str, dict[str, Document]] = {}
        self._highest: dict[str, int] = {}
        for collection, key, body in self._db.execute("SELECT collection, id, body FROM versions ORDER BY seq"):
            self._remember(collection, key, None if body is None else json.loads(body))

    def close(self) -> None:
        self._db.close()

    def _remember(self, collection: str, key: str, body: Document | None) -> None:
        documents = self._current.setdefault(collection, {})
        if body is None:
            documents.pop(key, None)
        else:
            documents[key] = body
        if key.isdigit():
            self._highest[collection] = max(self._highest.get(collection, 0), int(key))

    def apply(self, effect: Effect | None, changes: Iterable[Change] = ()) -> int:
        """Commit an effect with the documents it changed; answers the effect's number (0 where there is none)."""
        at = self.now()
        changes = tuple(changes)
        seq = 0
        if changes:
            self._db.execute("BEGIN IMMEDIATE")
        try:
            if effect is not None:
                row = (effect.system, effect.kind, effect.object, effect.action, at)
                cursor = self._db.execute(
                    "INSERT INTO effects (system, kind, object, action, at) VALUES (?, ?, ?, ?, ?)", row
                )
                seq = cursor.lastrowid or 0
            for change in changes:
                body = None if change.body is None else json.dumps(change.body)
                self._db.execute(
                    "INSERT INTO versions (collection, id, at, body) VALUES (?, ?, ?, ?)",
                    (change.collection, change.id, at, body),
                )
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        if changes:
            self._db.execute("COMMIT")
        for change in changes:
            self._remember(change.collection, change.id, change.body)
        return seq

    def effects(self, system: str | None = None, after: int = 0) -> list[Document]:
        """The ground truth, in the order in which it happened."""
        rows = self._db.execute(
            "SELECT seq, system, kind, object, action, at FROM effects"
            " WHERE seq > ? AND (? IS NULL OR system = ?) ORDER BY seq",
            (after, system, system),
        )
        names = ("seq", "system", "kind", "object", "action")
        return [dict(zip(names, row[:5], strict=True)) | {"at": iso(row[5])} for row in rows]

    def effects_of(self, system: str, object_: str, as_of: float | None = None) -> list[tuple[int, float]]:
        """Number and moment of every effect on one object, first one first."""
        rows = self._db.execute(
            "SELECT seq, at FROM effects WHERE system = ? AND object = ? AND (? IS NULL OR at <= ?) ORDER BY seq",
            (system, object_, as_of, as_of),
        )
        return [(int(seq), float(at)) for seq, at in rows]

    def next_number(self, collection: str) -> int:
        """The next unused number of a collection; numbers of deleted documents are not used again."""
        return self._highest.get(collection, 0) + 1

    def documents(self, collection: str, as_of: float | None = None) -> dict[str, Document]:
        """All documents of a collection, now or as of an earlier moment. Not to be changed in place."""
        if as_of is None:
            return self._current.get(collection, {})
        rows = self._db.execute(
            "SELECT id, body FROM versions WHERE seq IN"
            " (SELECT max(seq) FROM versions WHERE collection = ? AND at <= ? GROUP BY id)",
            (collection, as_of),
        )
        return {key: json.loads(body) for key, body in rows if body is not None}

    def save_fault(self, spec: str, left: int) -> int:
        return self._db.execute("INSERT INTO faults (spec, left) VALUES (?, ?)", (spec, left)).lastrowid or 0

    def spend_fault(self, fault_id: int, left: int) -> None:
        self._db.execute("UPDATE faults SET left = ? WHERE id = ?", (left, fault_id))

    def drop_faults(self) -> None:
        self._db.execute("DELETE FROM faults")

    def saved_faults(self) -> list[tuple[int, str, int]]:
        return list(self._db.execute("SELECT id, spec, left FROM faults WHERE left > 0 ORDER BY id"))
