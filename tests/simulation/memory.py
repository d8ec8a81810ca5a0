"""Tables in memory with the transactions of a database: atomic commit, compare-and-set, unique keys, skipped locks.

Reads see what is committed when they run (and the transaction's own writes), as READ COMMITTED does. A writer locks
its rows until the end; a second one gets StoreBusy and repeats, which is what it would do after the wait.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from tests.simulation.engine import STEP, Engine, Process, Signal, Violation
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.envelope import BODY_AND_HEADERS_BYTES_MAX, Message, Outgoing
from trueup_common.contracts.events import MessageQuarantined
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.ports import Moment, StoreBusy, VersionConflict

M = TypeVar("M", bound=BaseModel)
Key = tuple[Any, ...]
_ABSENT = object()


@dataclass(slots=True)
class StoreFaults:
    """How unreliable the database is."""

    busy: float = 0.0
    """Nothing was kept, and the transaction is told so."""
    lost_commit: float = 0.0
    """It was kept, and the transaction is told that it was not."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique constraint, over the rows for which `where` holds."""

    columns: tuple[str, ...]
    where: Callable[[Any], bool] = lambda row: True

    def key_of(self, row: Any) -> Key | None:
        """What must be unique, None for a row outside."""
        if not self.where(row):
            return None
        key = tuple(getattr(row, column) for column in self.columns)
        return None if None in key else key


class UniqueViolation(Exception):
    """A plain insert met a row that is there."""


class Table(Generic[M]):
    """Committed rows of one table."""

    def __init__(self, name: str, key: tuple[str, ...], version: str | None = None, unique: Sequence[Unique] = ()):
        self.name = name
        self.key = key
        self.version = version
        self.unique = unique
        self.rows: dict[Key, M] = {}
        self.locks: dict[Key, MemoryTransaction] = {}
        self._single = key[0] if len(key) == 1 else None

    def key_of(self, row: Any) -> Key:
        """The primary key of a row."""
        if self._single is not None:
            return (getattr(row, self._single),)
        return tuple(getattr(row, column) for column in self.key)


@dataclass(slots=True)
class Mail:
    """One outbox row."""

    number: int
    message: Message
    created_at: datetime
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One row as one commit changed it."""

    table: str
    before: Any
    after: Any


class MemoryDatabase:
    """What one service committed. Shared by its replicas; survives them."""

    def __init__(self, engine: Engine, service: str, tables: Iterable[Table[Any]]) -> None:
        self.engine = engine
        self.service = service
        self.tables = {table.name: table for table in tables}
        self.faults = StoreFaults()
        self.inbox: set[tuple[str, str]] = set()
        self.claims: dict[tuple[str, str], MemoryTransaction] = {}
        self.outbox: dict[int, Mail] = {}
        self.outbox_locks: dict[int, MemoryTransaction] = {}
        self.quarantined: dict[str, tuple[Message, str]] = {}
        self.failures: dict[tuple[str, str], int] = {}
        self.stream_marks: dict[str, tuple[Any, int]] = {}
        self.changes_count = 0
        self.commits_count = 0
        self.mail_signal = Signal(engine)
        self.advisory: dict[Any, MemoryTransaction] = {}
        self.observers: list[Callable[[MemoryDatabase, list[Change]], None]] = []
        self.poison: set[str] = set()
        self.down_until = 0.0
        self._mail_number = 0

    def rows(self, table: str) -> list[Any]:
        """Committed rows."""
        return list(self.tables[table].rows.values())

    def next_mail(self) -> int:
        """Numbers of outbox rows, as a sequence gives them."""
        self._mail_number += 1
        return self._mail_number

    def has_unsent(self) -> bool:
        """True where the relay may have something to do."""
        return any(mail.sent_at is None for mail in self.outbox.values())


class MemoryStore:
    """The Store port of one replica."""

    def __init__(
        self, database: MemoryDatabase, process: Process, transaction_of: Callable[[MemoryDatabase, Process], Any]
    ) -> None:
        self.database = database
        self.process = process
        self.transaction_of = transaction_of

    def transaction(self) -> Any:
        """A new transaction."""
        return self.transaction_of(self.database, self.process)


class MemoryTransaction:
    """One transaction: claim, post and quarantine as in the real mail, and row access for the services' stores."""

    def __init__(self, database: MemoryDatabase, process: Process) -> None:
        self.database = database
        self.process = process
        self.engine = database.engine
        self.over = False
        self._written: dict[str, dict[Key, Any]] = {}
        self._base: dict[tuple[str, Key], Any] = {}
        self._claimed: list[tuple[str, str]] = []
        self._posted: list[Mail] = []
        self._actions: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._locked: list[tuple[dict[Any, Any], Any]] = []

    async def __aenter__(self) -> Any:
        busy = self.engine.strikes("no transaction", self.database.faults.busy)
        if busy or self.engine.now < self.database.down_until:
            raise StoreBusy("simulated: no connection")
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._release()
            return
        try:
            await STEP
            busy = self.engine.strikes("transaction rolled back", self.database.faults.busy)
            if busy or self.engine.now < self.database.down_until:
                raise StoreBusy("simulated: connection lost")
            self._commit()
        finally:
            self._release()
        if self.engine.strikes("commit kept, answer lost", self.database.faults.lost_commit):
            self.engine.note("commit kept, answer lost")
            raise StoreBusy("simulated: connection lost during commit")
        for call in self._after:
            call()
        if self.engine.chance(0.3):
            await STEP

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[None]:
        """A part of this transaction that may fail alone, with what it wrote (SAVEPOINT)."""
        written = {name: dict(rows) for name, rows in self._written.items()}
        kept = (written, dict(self._base), list(self._posted))
        try:
            yield
        except BaseException:
            self._written, self._base, self._posted = kept
            raise

    def after_commit(self, call: Callable[[], None]) -> None:
        """Once the commit was confirmed."""
        self._after.append(call)

    # ports.Transaction

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        """Inbox and the moment."""
        await STEP
        moment = Moment(business=self.engine.business(), real=self.engine.real())
        inbox, claims = self.database.inbox, self.database.claims
        fresh = [item for item in message_ids if (consumer, item) not in inbox]
        for item in fresh:
            if claims.get((consumer, item), self) is not self:
                raise StoreBusy("simulated: another replica is claiming")
            self._lock(claims, (consumer, item))
            self._claimed.append((consumer, item))
        return moment, frozenset(fresh)

    def presume(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]] | None:
        """The moment, and all ids as if they were new, where the time was heard of late; the commit finds out."""
        if not self.engine.chance(0.5):
            return None
        self._claimed += [(consumer, item) for item in message_ids]
        return Moment(self.engine.business(), self.engine.real(), presumed=True), frozenset(message_ids)

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        """Outbox."""
        for item in outgoing:
            if not item.durable:
                continue
            if len(item.message.data) > BODY_AND_HEADERS_BYTES_MAX:
                raise ValueError("too large for the bus")
            self._posted.append(Mail(self.database.next_mail(), item.message, self.engine.real()))

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        """Keep it and tell the planner, as the real mail does."""
        database = self.database
        await STEP
        if message.id not in database.poison:
            raise Violation(f"{database.service} quarantined {message.type} {message.id}: {reason}")
        quarantine_id = derived_id("obl", database.service, consumer, message.id)
        event = MessageQuarantined(
            quarantine_id=quarantine_id,
            tenant=message.tenant,
            service=database.service,
            consumer=consumer,
            subject=message.subject,
            message_id=message.id,
            message_type=message.type,
            reason=reason,
            sha256=sha256_hex(message.data),
            size_bytes=len(message.data),
            at=self.engine.business(),
        )
        self._actions.append(lambda: database.quarantined.setdefault(quarantine_id, (message, reason)))
        told = Message(
            id=quarantine_id,
            type="MessageQuarantined",
            subject=event_subject(database.service, "quarantined", message.tenant),
            tenant=message.tenant,
            source=database.service,
            time=self.engine.real(),
            data=event.model_dump_json().encode(),
        )
        await self.post([Outgoing(told)])

    async def count_failure(self, consumer: str, message_id: str) -> int:
        """No message but deliberate poison may ever fail alone."""
        if message_id not in self.database.poison:
            error = sys.exc_info()[1]
            trace = "".join(traceback.format_exception(error)[-6:]) if error is not None else ""
            raise Violation(
                f"{self.database.service}: handler of {consumer} failed on {message_id}: {error!r}\n{trace}"
            )
        await STEP
        key = (consumer, message_id)
        count = self.database.failures.get(key, 0) + 1
        self._actions.append(lambda: self.database.failures.__setitem__(key, count))
        return count

    # the relay's view

    async def mark_sent(self, message_ids: Sequence[str]) -> None:
        """Mark what was confirmed."""
        if not message_ids:
            return
        await STEP
        wanted = set(message_ids)
        now = self.engine.real()
        found = [mail for mail in self.database.outbox.values() if mail.sent_at is None and mail.message.id in wanted]

        def mark() -> None:
            for mail in found:
                mail.sent_at = now

        self._actions.append(mark)

    async def unsent(self, older_than_seconds: float, limit: int) -> list[Message]:
        """What nobody confirmed, locked for this relay."""
        await STEP
        before = self.engine.real() - timedelta(seconds=older_than_seconds)
        locks = self.database.outbox_locks
        found = [
            mail
            for mail in self.database.outbox.values()
            if mail.sent_at is None and mail.created_at < before and mail.number not in locks
        ][:limit]
        for mail in found:
            self._lock(locks, mail.number)
        return [mail.message for mail in found]

    async def forget_sent(self) -> int:
        """Take back `sent` of the last hour."""
        await STEP
        after = self.engine.real() - timedelta(hours=1)
        found = [m for m in self.database.outbox.values() if m.sent_at is not None and m.created_at > after]

        def forget() -> None:
            for mail in found:
                mail.sent_at = None

        self._actions.append(forget)
        return len(found)

    async def stream_reset(self, stream: str, created: Any, last_sequence: int) -> bool:
        """Remember a stream; True where it went back."""
        await STEP
        marks = self.database.stream_marks
        old = marks.get(stream)
        self._actions.append(lambda: marks.__setitem__(stream, (created, last_sequence)))
        return old is not None and (old[0] != created or old[1] > last_sequence)

    async def purge(self, outbox_seconds: float, inbox_seconds: float | None, limit: int) -> int:
        """Nothing gets old enough here."""
        return 0

    # rows

    def _table(self, name: str) -> Table[Any]:
        return self.database.tables[name]

    def _visible(self, table: Table[Any]) -> dict[Key, Any]:
        written = self._written.get(table.name)
        if not written:
            return table.rows
        return {key: row for key, row in {**table.rows, **written}.items() if row is not None}

    async def get(self, name: str, column: str, values: Iterable[Any]) -> list[Any]:
        """Rows whose column has one of the values; as of a database, each answer has objects of its own."""
        await STEP
        wanted = set(values)
        return [copy(row) for row in self._visible(self._table(name)).values() if getattr(row, column) in wanted]

    async def get_locked(self, name: str, column: str, values: Iterable[Any]) -> list[Any]:
        """The same, locked (`FOR UPDATE`); a row that another transaction holds makes the store busy."""
        rows = await self.get(name, column, values)
        table = self._table(name)
        for row in rows:
            if table.locks.get(table.key_of(row), self) is not self:
                raise StoreBusy(f"simulated: {name} is locked")
            self._lock(table.locks, table.key_of(row))
        return rows

    async def select(
        self,
        name: str,
        where: Callable[[Any], bool],
        *,
        order: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        lock: bool = False,
    ) -> list[Any]:
        """Rows for which a condition holds; with `lock` those that no other transaction holds, kept until the end."""
        await STEP
        table = self._table(name)
        found = [
            (key, row)
            for key, row in self._visible(table).items()
            if where(row) and not (lock and table.locks.get(key, self) is not self)
        ]
        if order is not None:
            found.sort(key=lambda item: order(item[1]))
        if limit is not None:
            found = found[:limit]
        if lock:
            for key, _ in found:
                self._lock(table.locks, key)
        return [copy(row) for _, row in found]

    async def insert(self, name: str, rows: Sequence[Any]) -> None:
        """Plain insert; raises UniqueViolation."""
        if not rows:
            return
        inserted = await self.insert_new(name, rows)
        if len(inserted) != len(rows):
            raise UniqueViolation(f"{self.database.service}.{name}: {[self._table(name).key_of(row) for row in rows]}")

    async def insert_new(self, name: str, rows: Sequence[Any]) -> set[Key]:
        """Insert what is not there yet under any unique constraint; answers the keys that were inserted."""
        if not rows:
            return set()
        await STEP
        table = self._table(name)
        inserted = set()
        for row in rows:
            key = table.key_of(row)
            visible = self._visible(table)
            if key in visible or self._taken(table, row, visible):
                continue
            self._write(table, key, row, _ABSENT)
            inserted.add(key)
        return inserted

    async def update(self, name: str, rows: Sequence[Any]) -> None:
        """Compare-and-set on the version where the table has one."""
        if not rows:
            return
        await STEP
        table = self._table(name)
        for row in rows:
            key = table.key_of(row)
            before = self._visible(table).get(key)
            if before is None:
                raise VersionConflict(f"{name}: {key} is not there")
            if table.version and getattr(before, table.version) != getattr(row, table.version) - 1:
                raise VersionConflict(f"{name}: {key} moved first")
            self._write(table, key, row, table.rows.get(key, _ABSENT))

    async def touch(self, name: str, rows: Sequence[Any]) -> None:
        """Update rows whatever their version (a plain UPDATE)."""
        await STEP
        table = self._table(name)
        for row in rows:
            key = table.key_of(row)
            self._write(table, key, row, table.rows.get(key, _ABSENT))

    async def upsert(self, name: str, rows: Sequence[Any]) -> None:
        """Insert or replace; an older version never replaces a newer one."""
        if not rows:
            return
        await STEP
        table = self._table(name)
        for row in rows:
            key = table.key_of(row)
            before = self._visible(table).get(key)
            version = table.version
            if before is not None and version and getattr(before, version) >= getattr(row, version):
                continue
            self._write(table, key, row, table.rows.get(key, _ABSENT))

    async def delete(self, name: str, keys: Sequence[Key]) -> None:
        """Delete by key."""
        await STEP
        table = self._table(name)
        for key in keys:
            if key in self._visible(table):
                self._write(table, key, None, table.rows.get(key, _ABSENT))

    async def try_advisory_lock(self, key: Any) -> bool:
        """pg_try_advisory_xact_lock."""
        await STEP
        if self.database.advisory.get(key, self) is not self:
            return False
        self._lock(self.database.advisory, key)
        return True

    def _taken(self, table: Table[Any], row: Any, visible: dict[Key, Any]) -> bool:
        for unique in table.unique:
            wanted = unique.key_of(row)
            if wanted is not None and any(unique.key_of(other) == wanted for other in visible.values()):
                return True
        return False

    def _write(self, table: Table[Any], key: Key, row: Any, base: Any) -> None:
        """A write locks its row until the end. Who meets a lock is told at once what a wait would tell it."""
        if table.locks.get(key, self) is not self:
            raise StoreBusy(f"simulated: {table.name} {key} is locked")
        self._lock(table.locks, key)
        self._written.setdefault(table.name, {})[key] = row
        self._base.setdefault((table.name, key), base)

    def _lock(self, locks: dict[Any, Any], key: Any) -> None:
        if locks.get(key) is not self:
            locks[key] = self
            self._locked.append((locks, key))

    def _release(self) -> None:
        self.over = True
        for locks, key in self._locked:
            locks.pop(key, None)
        self._locked.clear()

    # commit

    def _commit(self) -> None:
        database = self.database
        if not self.process.alive:
            raise StoreBusy("simulated: the process is gone")
        if any(item in database.inbox for item in self._claimed):
            raise StoreBusy("simulated: another replica claimed first")
        for (name, key), base in self._base.items():
            table = database.tables[name]
            if table.rows.get(key, _ABSENT) is not base:
                raise VersionConflict(f"{name}: {key} moved first")
            if table.locks.get(key, self) is not self:
                raise StoreBusy(f"simulated: {name} {key} is locked")
        changes: list[Change] = []
        for name, rows in self._written.items():
            table = database.tables[name]
            new = [(key, row) for key, row in rows.items() if row is not None and self._base[name, key] is _ABSENT]
            if not new:
                continue
            others = {key: row for key, row in table.rows.items() if key not in rows}
            moved = {key: row for key, row in rows.items() if self._base[name, key] is not _ABSENT}
            others |= {key: row for key, row in moved.items() if row is not None}
            for key, row in new:
                if key in table.rows or self._taken(table, row, others):
                    raise StoreBusy(f"simulated: {name} {key} was taken first")
        for name, rows in self._written.items():
            table = database.tables[name]
            for key, row in rows.items():
                before = table.rows.get(key)
                if row is None:
                    table.rows.pop(key, None)
                else:
                    table.rows[key] = row
                changes.append(Change(name, before, row))
        self._finish(changes)

    def _finish(self, changes: list[Change]) -> None:
        database = self.database
        database.inbox.update(self._claimed)
        for mail in self._posted:
            database.outbox[mail.number] = mail
        for action in self._actions:
            action()
        database.commits_count += 1
        if changes or self._posted:
            database.changes_count += 1
            for observer in database.observers:
                observer(database, changes)
        if self._posted:
            database.mail_signal.notify()
