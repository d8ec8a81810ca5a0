"""One account at one PostgreSQL database: a bounded pool, a time limit on everything, and one fact about each write.

The fact is whether COMMIT has left. `may_send` is asked directly before it, because nothing before it can have an
effect. Every write holds an advisory lock named after its operation until its transaction ends; who finds that lock
free, and then no marker, has proof that no transaction of the operation is still under way on the server, however its
client's connection died. All settings are LOCAL, so the adapter works behind a transaction pooler too.
"""

import asyncio
import hashlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from trueup_adapters.core.classify import classify_failure
from trueup_adapters.systems.database.sqlstate import classify_sqlstate, classify_tag
from trueup_adapters.systems.http import is_public
from trueup_common.contracts.adapter import Call, Connection, EndsWith, Outcome
from trueup_common.contracts.clean import clean_text

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 10.0
"""For a free connection of the pool."""
STATEMENT_SECONDS: Final = 15.0
IDLE_SECONDS: Final = 60.0
POOL_MAX: Final = 16
DETAIL_CHARACTERS_MAX: Final = 300
_LOST: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError, TimeoutError)
"""How asyncpg says that a connection is gone; a session killed by the server often surfaces as one of the first two."""
FAILURES: Final = (asyncpg.PostgresError, *_LOST)

LOCK: Final = "SELECT pg_catalog.pg_advisory_xact_lock($1)"
TRY_LOCK: Final = "SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1)"
PLACE: Final = (
    "SELECT pg_catalog.pg_is_in_recovery() AS replica,"
    " (SELECT system_identifier FROM pg_catalog.pg_control_system()) AS cluster,"
    " (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AS database,"
    " pg_catalog.to_regclass('trueup_effects')::oid AS effects"
)
"""Where a session is: primary or replica, and of which cluster, database and schema."""


class Failed(EndsWith):
    """The database did not do what was asked; `outcome` is what that means for a write."""


class ReadFailed(Exception):
    """A read proves nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AddressRefused(OSError):
    """The host leads to a private address and the connection does not allow that."""


class Written(Protocol):
    """What a transaction's work came to: only what `is_new` is committed."""

    @property
    def is_new(self) -> bool:
        """True where something was written."""
        ...


W = TypeVar("W", bound=Written)


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, a database in it, and a table of markers in that."""

    cluster: int
    database: int
    effects: int | None


class _PlainConnection(asyncpg.Connection):
    """Settings are LOCAL and locks end with their transaction, so nothing has to be reset between uses."""

    def get_reset_query(self) -> str:
        return ""


def lock_key(operation_id: str) -> int:
    """The advisory lock of one operation: 64 bits of a digest, signed as PostgreSQL wants them."""
    return int.from_bytes(hashlib.sha256(f"trueup:{operation_id}".encode()).digest()[:8], "big", signed=True)


class Link:
    """One account."""

    def __init__(self, connection: Connection, setting: str, dsn: Any) -> None:
        self._name = f"connection {connection.tenant}/{connection.system}: {setting}"
        self._allow_private = connection.allow_private_network
        self._dsn = dsn if isinstance(dsn, str) else ""
        self._hosts = _hosts(self._name, self._dsn, allow_private=self._allow_private)
        self._size = min(connection.max_concurrency, POOL_MAX)
        self._seconds = min(connection.timeout_seconds or STATEMENT_SECONDS, STATEMENT_SECONDS)
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self.place: Place | None = None
        """Where this account was seen to lead; kept, because a DSN does not change under a running process."""

    async def _opened(self) -> asyncpg.Pool:
        """The pool, made in the event loop that uses it; it connects when a connection is needed."""
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=0,
                    max_size=self._size,
                    max_inactive_connection_lifetime=IDLE_SECONDS,
                    connection_class=_PlainConnection,
                    connect=self._connect,
                    timeout=CONNECT_SECONDS,
                    command_timeout=STATEMENT_SECONDS + 5.0,
                    statement_cache_size=0,
                    server_settings={"application_name": "trueup"},
                )
            return self._pool

    async def _connect(self, *arguments: Any, **settings: Any) -> Any:
        if not self._allow_private:
            loop = asyncio.get_running_loop()
            for host in self._hosts:
                found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                if not all(is_public(str(item[4][0])) for item in found):
                    raise AddressRefused(host)
        return await asyncpg.connect(*arguments, **settings)

    @asynccontextmanager
    async def _session(self, begin: str) -> AsyncIterator[Any]:
        """A connection inside a transaction; whatever does not end well ends the connection as well."""
        pool = await self._opened()
        connection = await pool.acquire(timeout=WAIT_SECONDS)
        is_over = False
        try:
            await connection.execute(begin)
            yield connection
            is_over = not connection.is_in_transaction()
        finally:
            if not is_over:
                connection.terminate()
            await pool.release(connection)

    async def write(self, call: Call, work: Callable[[Any], Awaitable[W]]) -> W:
        """One transaction under the operation's lock, committed where the work says so.

        A connection of the pool may have died unnoticed, so what is lost before COMMIT has left is done again, once.
        Raises Failed or SlotLost.
        """
        for is_last in (False, True):
            commit_left = False
            try:
                async with self._session(self._begin(call.timeout_seconds)) as connection:
                    await connection.execute(LOCK, lock_key(call.operation.command_id))
                    written = await work(connection)
                    if not written.is_new:
                        await connection.execute("ROLLBACK")
                        return written
                    call.may_send()
                    commit_left = True
                    refusal = classify_tag(await connection.execute("COMMIT"))
            except FAILURES as error:
                if commit_left or is_last or not _is_lost(error):
                    raise Failed(outcome_of(error, commit_left=commit_left)) from error
                continue
            if refusal is not None:
                raise Failed(refusal)
            return written
        raise AssertionError("unreachable")

    async def read(self, work: Callable[[Any, Place], Awaitable[T]]) -> T:
        """One read-only transaction on a primary; a read may be repeated, and is, where its connection was lost.

        Raises ReadFailed.
        """
        begin = self._begin(self._seconds, "ISOLATION LEVEL READ COMMITTED READ ONLY")
        for is_last in (False, True):
            try:
                async with self._session(begin) as connection:
                    self.place = await _placed(connection)
                    result = await work(connection, self.place)
                    await connection.execute("ROLLBACK")
                    return result
            except FAILURES as error:
                if is_last or not _is_lost(error):
                    raise ReadFailed(outcome_of(error, commit_left=False).error_code or "unavailable") from error
        raise AssertionError("unreachable")

    def _begin(self, seconds: float, mode: str = "ISOLATION LEVEL READ COMMITTED") -> str:
        limit = max(1, int(min(seconds, self._seconds) * 1000))
        # A session whose client has vanished must not keep its locks: the server ends it by itself.
        settings = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        return f"BEGIN {mode}; " + "; ".join(f"SET LOCAL {name} = {limit}" for name in settings)

    async def close(self) -> None:
        """Close all connections at once; none of them holds anything."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None


async def _placed(connection: Any) -> Place:
    row = await connection.fetchrow(PLACE)
    if row["replica"]:
        raise ReadFailed("replica")
    return Place(row["cluster"], row["database"], row["effects"])


def _is_lost(error: BaseException) -> bool:
    """True where the connection died rather than the statement. A time limit is no lost connection."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(("08", "57P01"))
    return isinstance(error, _LOST) and not isinstance(error, TimeoutError | AddressRefused)


def outcome_of(error: BaseException, *, commit_left: bool) -> Outcome:
    """What an error means for the write it happened in."""
    detail = clean_text(str(error) or type(error).__name__, DETAIL_CHARACTERS_MAX)
    if isinstance(error, asyncpg.PostgresError):
        severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
        return classify_sqlstate(error.sqlstate, severity, commit_left=commit_left, detail=detail)
    return classify_failure(sent=commit_left, code=_code(error, commit_left=commit_left), detail=detail)


def _code(error: BaseException, *, commit_left: bool) -> str:
    """A name for people and metrics; no decision hangs on it."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, AddressRefused):
        return "address_refused"
    return "connection_refused" if isinstance(error, OSError) and not commit_left else "connection_lost"


def _hosts(name: str, dsn: str, *, allow_private: bool) -> tuple[str, ...]:
    """The hosts of a DSN that is complete: nothing comes from the environment. Raises ValueError, without secrets."""
    scheme, _, rest = dsn.partition("://")
    authority, _, path = rest.partition("/")
    credentials, _, places = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    if scheme not in ("postgresql", "postgres") or not (user and password and places and path.partition("?")[0]):
        raise ValueError(f"{name} must be postgresql://user:password@host[:port]/database")
    if {"host", "hostaddr", "service", "passfile"} & set(parse_qs(path.partition("?")[2])):
        raise ValueError(f"{name} names its host before the database, and nothing else")
    try:
        hosts = tuple(unquote(urlsplit(f"//{place}").hostname or "") for place in places.split(","))
    except ValueError:
        raise ValueError(f"{name} has an unreadable host") from None
    if not all(hosts):
        raise ValueError(f"{name} has an unreadable host")
    if not allow_private and any(_is_private_literal(host) for host in hosts):
        raise ValueError(f"{name} is in a private network; set allow_private_network to allow that")
    return hosts


def _is_private_literal(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost") or host.startswith("/"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return not is_public(host)
