"""Counters that servers keep by themselves: commits of PostgreSQL, stored messages and deliveries of NATS.

Commits are counted in the write-ahead log, where each one that wrote anything left a record; a transaction that only
read costs no flush and appears under `transactions` alone.
"""

import asyncio
import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import asyncpg

STATISTICS_DELAY_SECONDS = 10.5
"""A session that has become idle hands in its statistics after ten seconds at the latest."""

_POSITION = "SELECT pg_current_wal_insert_lsn()::text"
_TRANSACTIONS = "SELECT coalesce(sum(xact_commit), 0)::bigint FROM pg_stat_database WHERE datname = $1"
_COMMITS = """
SELECT coalesce(sum(count), 0)::bigint FROM pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true)
WHERE "resource_manager/record_type" LIKE 'Transaction/COMMIT%'
"""
_REMOVALS = """
WITH record AS (
  SELECT xid::text AS xid, resource_manager AS manager, record_type AS kind
  FROM pg_get_wal_records_info($1::text::pg_lsn, $2::text::pg_lsn))
SELECT count(*)::bigint FROM (
  SELECT xid FROM record WHERE xid <> '0' GROUP BY xid
  HAVING bool_or(manager = 'Transaction' AND kind LIKE 'COMMIT%')
  AND bool_or(manager = 'Heap' AND kind LIKE 'DELETE%')
  AND NOT bool_or(manager LIKE 'Heap%' AND (kind LIKE '%INSERT%' OR kind LIKE '%UPDATE%'))) AS removing
"""
_BYTES = "SELECT ($2::text::pg_lsn - $1::text::pg_lsn)::bigint"


@dataclass(frozen=True)
class DatabaseMark:
    """A point in the life of the database."""

    position: str
    transactions: int


@dataclass(frozen=True)
class DatabaseWork:
    """What happened between two marks. `commits` is None where the log had already been recycled."""

    commits: int | None
    transactions: int
    log_bytes: int


class DatabaseCounter:
    """Counts on one database, from a session in the cluster's `postgres` database that it does not disturb."""

    def __init__(self, url: str) -> None:
        server, _, self._name = url.partition("?")[0].rpartition("/")
        self._url = f"{server}/postgres"

    def mark(self) -> DatabaseMark:
        """Note this moment."""
        return asyncio.run(self._mark())

    def work_since(self, mark: DatabaseMark) -> DatabaseWork:
        """What happened since a mark."""
        return self.between(mark, self.mark())

    def between(self, first: DatabaseMark, last: DatabaseMark) -> DatabaseWork:
        """What happened between two marks."""
        return asyncio.run(self._between(first, last))

    def removals_between(self, first: DatabaseMark, last: DatabaseMark) -> int:
        """Commits of transactions that only removed rows."""
        return asyncio.run(self._removals(first, last))

    async def _removals(self, first: DatabaseMark, last: DatabaseMark) -> int:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            return int(await connection.fetchval(_REMOVALS, first.position, last.position))
        finally:
            await connection.close()

    async def _mark(self) -> DatabaseMark:
        connection = await asyncpg.connect(self._url)
        try:
            position = await connection.fetchval(_POSITION)
            return DatabaseMark(position, await connection.fetchval(_TRANSACTIONS, self._name))
        finally:
            await connection.close()

    async def _between(self, first: DatabaseMark, last: DatabaseMark) -> DatabaseWork:
        connection = await asyncpg.connect(self._url)
        try:
            log_bytes = await connection.fetchval(_BYTES, first.position, last.position)
            commits: int | None = 0
            if log_bytes:
                await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
                try:
                    commits = await connection.fetchval(_COMMITS, first.position, last.position)
                except asyncpg.PostgresError:
                    commits = None
        finally:
            await connection.close()
        return DatabaseWork(commits, last.transactions - first.transactions, log_bytes)


@dataclass(frozen=True)
class BusMark:
    """Last sequence by stream, deliveries by consumer, and how many messages are still on their way."""

    stored: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    unsettled: int = 0


def bus_mark(monitor_port: int) -> BusMark:
    """Read the broker's own account of its streams and consumers."""
    url = f"http://127.0.0.1:{monitor_port}/jsz?accounts=true&streams=true&consumers=true"
    with urllib.request.urlopen(url, timeout=10) as answer:
        told: dict[str, Any] = json.load(answer)
    stored: dict[str, int] = {}
    delivered: dict[str, int] = {}
    unsettled = 0
    for account in told.get("account_details") or []:
        for stream in account.get("stream_detail") or []:
            stored[stream["name"]] = stream["state"]["last_seq"]
            for consumer in stream.get("consumer_detail") or []:
                delivered[f"{stream['name']}/{consumer['name']}"] = consumer["delivered"]["consumer_seq"]
                if not stream["name"].startswith("KV_"):
                    unsettled += consumer.get("num_pending", 0) + consumer.get("num_ack_pending", 0)
    return BusMark(stored, delivered, unsettled)


def difference(first: dict[str, int], last: dict[str, int]) -> dict[str, int]:
    """What was added by name, without the names where nothing was."""
    return {name: value - first.get(name, 0) for name, value in last.items() if value != first.get(name, 0)}
