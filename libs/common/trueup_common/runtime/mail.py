"""Mail: inbox, outbox and quarantine of a service, inside its own transaction, and the relay's view of them."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.envelope import BODY_AND_HEADERS_BYTES_MAX, Message, Outgoing, headers_of, is_subject
from trueup_common.contracts.events import MessageQuarantined
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.db import InTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Moment
from trueup_common.runtime.rows import Ask, Write, together, write, write_alone

log = logging.getLogger("trueup.mail")

_KNOWN: Final = """
SELECT trueup.now() AS business, clock_timestamp() AS real,
  array(SELECT message_id FROM inbox WHERE consumer = $1 AND message_id = ANY($2::text[])) AS known"""
_CLAIM: Final = """
INSERT INTO inbox (consumer, message_id)
SELECT $1, id FROM unnest($2::text[]) AS id ORDER BY id
"""
_CLAIM_ABSENT: Final = f"{_CLAIM} ON CONFLICT DO NOTHING"
_NOW: Final = "SELECT trueup.now() AS business, clock_timestamp() AS real"
_POST: Final = """
INSERT INTO outbox (message_id, subject, type, tenant, source, time, traceparent, causation_id, reply_to, data)
SELECT * FROM ROWS FROM (
  json_to_recordset($1::text::json) AS (
    message_id text, subject text, type text, tenant text, source text, time timestamptz,
    traceparent text, causation_id text, reply_to text),
  unnest($2::bytea[])) AS posted
"""
"""One document for all that is short: the driver looks at each element of an array for what it may be (ADR 0037)."""
_UNSENT_TOO: Final = "INSERT INTO outbox_unsent (id, message_id) SELECT id, message_id FROM written"
_QUARANTINE: Final = """
INSERT INTO quarantine (quarantine_id, consumer, message_id, subject, type, tenant, headers, data, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING
"""
_COUNT: Final = """
INSERT INTO delivery_failure AS f (consumer, message_id, failures) VALUES ($1, $2, 1)
ON CONFLICT (consumer, message_id) DO UPDATE SET failures = f.failures + 1, last_failed_at = now()
RETURNING failures
"""
_MARK: Final = """
DELETE FROM outbox_unsent WHERE id IN (
  SELECT id FROM outbox_unsent WHERE message_id = ANY($1::text[]) ORDER BY id FOR UPDATE)
"""


class SqlTransaction:
    """A transaction of one service. Subclasses add the service's own loads and saves.

    `self.connection` begins a transaction with its first statement. `self.reading` does not: it is for reads that lock
    nothing, which see what is committed either way. Where nothing but such reads and writes put off with `later`
    happens, the transaction is the one statement that writes (ADR 0025).
    """

    service: str = ""

    def __init__(self, connection: InTransaction) -> None:
        self.connection = connection
        self._counted: list[tuple[Tally, tuple[str, ...]]] = []
        self._after: list[Callable[[], None]] = []
        self._writes: list[Write] = []
        self._asks: list[Ask] = []
        self._told: dict[Ask, list[dict[str, Any]]] = {}

    @property
    def reading(self) -> Any:
        """The connection for reads that lock nothing."""
        return self.connection.plain

    def later(self, *writes: Write | None) -> None:
        """Write at the end, all of it in one round trip. Who reads in between, flushes first."""
        self._writes += [item for item in writes if item is not None]

    async def flush(self) -> None:
        """Write what was put off. Raises VersionConflict."""
        writes, self._writes = self._writes, []
        await write(self.connection, writes)

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[None]:
        """A part of this transaction that may fail alone, with what it put off."""
        await self.flush()
        async with self.connection.savepoint():
            try:
                yield
                await self.flush()
            except BaseException:
                self._writes.clear()
                raise

    async def finish(self) -> None:
        """Write what was put off; alone, in a statement that needs no transaction around it."""
        writes, self._writes = self._writes, []
        if self.connection.begun:
            await write(self.reading, writes)
        elif writes:
            await write_alone(self.reading, writes)

    def count(self, tally: Tally, *labels: str) -> None:
        """Count something of this transaction, once it is committed."""
        self._counted.append((tally, labels))

    def after_commit(self, call: Callable[[], None]) -> None:
        """Do something once this transaction is committed, and not otherwise."""
        self._after.append(call)

    def committed(self) -> None:
        """The store tells that the commit succeeded."""
        for call in self._after:
            call()
        for tally, labels in self._counted:
            tally.add(labels)

    def foresee(self, statement: str, *arguments: Any) -> None:
        """A read that will be asked for with `ask`: the claim takes it along, which saves a round trip (ADR 0026)."""
        self._asks.append(Ask(statement, arguments))

    def foreseen(self, statement: str, *arguments: Any) -> bool:
        """True where the claim has the answer."""
        return Ask(statement, arguments) in self._told

    async def ask(self, statement: str, *arguments: Any) -> Sequence[Any]:
        """Rows of a read that locks nothing, with text, numbers and booleans only.

        What was foreseen is told once, and not any more where this transaction has begun to lock or to write.
        """
        told = self._told.pop(Ask(statement, arguments), None)
        if told is not None and not self.connection.begun:
            return told
        rows: Sequence[Any] = await self.reading.fetch(statement, *arguments)
        return rows

    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        """Put ids into the inbox, at the end; answer the moment and the ids that are new.

        What another replica puts there meanwhile is a conflict.
        """
        asked = monotonic()
        asks, self._asks = tuple(self._asks), []
        own = (consumer, list(message_ids)) if message_ids else ()
        text, arguments = together(_KNOWN if own else _NOW, own, asks)
        row = await self.reading.fetchrow(text, *arguments)
        moment = Moment(row["business"], row["real"], asked)
        self.connection.time.hear(moment)
        self._told = {item: row[f"told{number}"] or [] for number, item in enumerate(asks)}
        if not own:
            return moment, frozenset()
        fresh = frozenset(message_ids).difference(row["known"])
        self._keep_claim(consumer, fresh)
        return moment, fresh

    def presume(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]] | None:
        """The claim without a round trip, where the time was heard a moment ago: an id that is known is a conflict."""
        moment = self.connection.time.now()
        if moment is None:
            return None
        self._asks.clear()
        fresh = frozenset(message_ids)
        self._keep_claim(consumer, fresh)
        return moment, fresh

    def _keep_claim(self, consumer: str, fresh: frozenset[str]) -> None:
        if fresh:
            self.later(Write(_CLAIM_ABSENT, (consumer, list(fresh)), len(fresh), "inbox", plain=_CLAIM))

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        """Put durable messages into the outbox."""
        messages = [item.message for item in outgoing if item.durable]
        for message in messages:
            if message.size_bytes > BODY_AND_HEADERS_BYTES_MAX:
                raise ValueError(f"{message.type} of {message.size_bytes} bytes is too large for the bus")
            if not is_subject(message.subject):
                raise ValueError(f"{message.type} has a subject that cannot be published to")
        if messages:
            envelopes = [
                {
                    "message_id": message.id,
                    "subject": message.subject,
                    "type": message.type,
                    "tenant": message.tenant,
                    "source": message.source,
                    "time": message.time,
                    "traceparent": message.traceparent,
                    "causation_id": message.causation_id,
                    "reply_to": message.reply_to,
                }
                for message in messages
            ]
            given = (json_bytes(envelopes).decode(), [message.data for message in messages])
            self.later(Write(_POST, given, None, "outbox", returning="message_id, id", then=_UNSENT_TOO))

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        """Keep a message with its bytes and reason, and tell the planner, which owns it from here."""
        quarantine_id = derived_id("obl", self.service, consumer, message.id)
        reason = clean_text(reason)
        await self.connection.execute(
            _QUARANTINE,
            quarantine_id,
            consumer,
            message.id,
            message.subject,
            message.type,
            message.tenant,
            headers_of(message),
            message.data,
            reason,
        )
        row = await self.reading.fetchrow(_NOW)
        event = MessageQuarantined(
            quarantine_id=quarantine_id,
            tenant=message.tenant,
            service=self.service,
            consumer=consumer,
            subject=message.subject,
            message_id=message.id,
            message_type=message.type,
            reason=reason,
            sha256=sha256_hex(message.data),
            size_bytes=len(message.data),
            at=row["business"],
        )
        await self.post(
            [
                Outgoing(
                    Message(
                        id=quarantine_id,
                        type="MessageQuarantined",
                        subject=event_subject(self.service, "quarantined", message.tenant),
                        tenant=message.tenant,
                        source=self.service,
                        time=row["real"],
                        data=event.model_dump_json().encode(),
                        traceparent=message.traceparent,
                        causation_id=message.id,
                    )
                )
            ]
        )

    async def count_failure(self, consumer: str, message_id: str) -> int:
        """Count a failure of one message alone."""
        return int(await self.connection.fetchval(_COUNT, consumer, message_id))

    async def mark_sent(self, message_ids: Sequence[str]) -> None:
        """Mark outbox rows whose publication was confirmed."""
        if message_ids:
            await self.connection.execute(_MARK, list(message_ids))


_ANY_UNSENT: Final = "SELECT EXISTS (SELECT 1 FROM outbox_unsent WHERE created_at < now() - make_interval(secs => $1))"
_UNSENT: Final = """
WITH due AS MATERIALIZED (
  SELECT id FROM outbox_unsent WHERE created_at < now() - make_interval(secs => $1)
  ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
SELECT o.* FROM due CROSS JOIN LATERAL (SELECT * FROM outbox WHERE outbox.id = due.id) AS o ORDER BY o.id
"""
_RESEND: Final = """
INSERT INTO outbox_unsent (id, message_id)
SELECT id, message_id FROM outbox WHERE created_at > now() - interval '1 hour'
ON CONFLICT DO NOTHING
"""
_STREAM: Final = """
WITH old AS (SELECT created, last_sequence FROM stream_mark WHERE stream = $1),
set_new AS (
  INSERT INTO stream_mark (stream, created, last_sequence) VALUES ($1, $2, $3)
  ON CONFLICT (stream) DO UPDATE SET created = excluded.created, last_sequence = excluded.last_sequence)
SELECT coalesce((SELECT created IS DISTINCT FROM $2 OR last_sequence > $3 FROM old), false)
"""
_PURGE_OUTBOX: Final = """
DELETE FROM outbox WHERE id IN (
  SELECT id FROM (SELECT id, created_at FROM outbox ORDER BY id LIMIT $2) AS oldest
  WHERE created_at < now() - make_interval(secs => $1)
    AND NOT EXISTS (SELECT 1 FROM outbox_unsent AS u WHERE u.id = oldest.id))
  AND (SELECT created_at FROM outbox ORDER BY id LIMIT 1) < now() - make_interval(secs => $1)
"""
"""Where the oldest row is young, no other is looked at."""
_PURGE_INBOX: Final = """
DELETE FROM inbox WHERE (consumer, message_id) IN (
  SELECT consumer, message_id FROM inbox WHERE received_at < now() - make_interval(secs => $1) LIMIT $2)
"""


def message_of_row(row: Any) -> Message:
    """An outbox row as the message it holds."""
    return Message(
        id=row["message_id"],
        type=row["type"],
        subject=row["subject"],
        tenant=row["tenant"],
        source=row["source"],
        time=row["time"],
        data=bytes(row["data"]),
        traceparent=row["traceparent"],
        causation_id=row["causation_id"],
        reply_to=row["reply_to"],
    )


class MailTransaction(SqlTransaction):
    """The relay's view of the mail."""

    async def unsent(self, older_than_seconds: float, limit: int) -> list[Message]:
        """Messages whose publication nobody confirmed yet, locked for this relay. Most times there are none."""
        if not await self.reading.fetchval(_ANY_UNSENT, older_than_seconds):
            return []
        return [message_of_row(row) for row in await self.connection.fetch(_UNSENT, older_than_seconds, limit)]

    async def forget_sent(self) -> int:
        """Take back `sent` for what a recreated or emptied stream may have lost (inboxes and versions deduplicate)."""
        status: str = await self.connection.execute(_RESEND)
        return int(status.rsplit(" ", 1)[1])

    async def stream_reset(self, stream: str, created: Any, last_sequence: int) -> bool:
        """Remember a stream's creation time and last sequence; True where either went back."""
        return bool(await self.connection.fetchval(_STREAM, stream, created, last_sequence))

    async def purge(self, outbox_seconds: float, inbox_seconds: float | None, limit: int) -> int:
        """Delete old mail in bounded portions, the inbox's only with a time for it; rows of the larger portion."""
        statements = [(_PURGE_OUTBOX, outbox_seconds)]
        if inbox_seconds is not None:
            statements.append((_PURGE_INBOX, inbox_seconds))
        done: list[str] = [await self.connection.execute(text, seconds, limit) for text, seconds in statements]
        return max(int(status.rsplit(" ", 1)[1]) for status in done)
