"""The database port: one pool per process, its service's own schema, and one meaning for every passing failure."""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg
import orjson

from trueup_common.runtime.clock import DatabaseTime
from trueup_common.runtime.ports import StoreBusy, VersionConflict
from trueup_common.runtime.rows import RowsDiffer

log = logging.getLogger("trueup.db")

PASSING: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Failures that say nothing about the work: the transaction is repeated. A session that the server killed surfaces as
InterfaceError or InternalClientError ("another operation is in progress") and means "connection lost", not "poison"."""

Connection = asyncpg.pool.PoolConnectionProxy | asyncpg.Connection


KEYED_PLANS: Final = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_material": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Services only reach rows by key. Without the five switches, a plan made while a table was small reads all of it, or
all of an index, for ever; and a keyed plan is the same for every key, so it is made once and not for each execution
(ADR 0010, 0022)."""


IDLE_SECONDS: Final = 15.0
"""A replica that stands still inside a transaction keeps its rows from its twin for so long; nothing waits longer on
purpose (the relay waits for the broker inside one, at most 5 s)."""


SPARE_SECONDS: Final = 30.0
"""How long a session that was let go stays open. It keeps the plan of every statement that it ever ran (ADR 0038)."""


async def _keep_session(_: Any) -> None:
    """Nothing to reset: services leave no session state behind (settings and locks are those of a transaction)."""


async def _prepare(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            encoder=lambda value: orjson.dumps(value, option=orjson.OPT_UTC_Z).decode(),
            decoder=orjson.loads,
        )


class Database:
    """A pool on one service's schema."""

    def __init__(self, pool: asyncpg.Pool, schema: str) -> None:
        self.pool = pool
        self.schema = schema
        self._at_hand: list[asyncpg.pool.PoolConnectionProxy] = []
        self._spare = 0
        self._asking = 0
        self._closing = False
        self.time = DatabaseTime()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        schema: str,
        size: int = 8,
        application: str = "trueup",
        connect_timeout_seconds: float = 10,
        spare_seconds: float = SPARE_SECONDS,
    ) -> "Database":
        """Open the pool. Raises OSError or asyncpg errors when the server is away."""
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=size,
            init=_prepare,
            timeout=connect_timeout_seconds,
            max_inactive_connection_lifetime=spare_seconds,
            reset=_keep_session,
            server_settings={
                **KEYED_PLANS,
                "search_path": f"{schema},trueup",
                "application_name": application,
                "timezone": "UTC",
                "statement_timeout": "30s",
                "lock_timeout": "5s",
                "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:g}s",
            },
        )
        return cls(pool, schema)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside a transaction, for reads."""
        try:
            async with self.session() as connection:
                yield connection
        except PASSING as error:
            raise StoreBusy(_reason(error)) from error

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """A session for one piece of work.

        One that served well stays at hand for the next: giving it back to the pool and getting it again costs two tasks
        and more than a short statement (ADR 0026). Whatever ended otherwise goes back for the pool to look at.
        """
        connection = await self.take()
        served_well = False
        try:
            yield connection
            served_well = True
        finally:
            await self.give_back(connection, served_well=served_well)

    async def give_back(self, connection: asyncpg.pool.PoolConnectionProxy, *, served_well: bool) -> None:
        """The end of a session that was taken."""
        if not served_well or self._asking or self._closing or connection.is_closed():
            await self.pool.release(connection)
        else:
            self._at_hand.append(connection)

    async def take(self) -> asyncpg.pool.PoolConnectionProxy:
        """A session for who gives it back himself (`session` does)."""
        while self._at_hand:
            connection = self._at_hand.pop()
            self._spare = min(self._spare, len(self._at_hand))
            if not connection.is_closed():
                return connection
            await self.pool.release(connection)
        self._asking += 1
        try:
            return await self.pool.acquire()
        finally:
            self._asking -= 1

    async def let_go(self) -> None:
        """Give those sessions back to the pool that nobody needed since the last call, but one; it closes them soon.

        Whoever needs a session takes the one that was used last, so those that nobody needed lie at the bottom.
        """
        count = max(0, min(self._spare, len(self._at_hand) - 1))
        unneeded, self._at_hand = self._at_hand[:count], self._at_hand[count:]
        self._spare = len(self._at_hand)
        for connection in unneeded:
            with contextlib.suppress(*PASSING):  # it was lost meanwhile
                await self.pool.release(connection)

    @asynccontextmanager
    async def search(self) -> AsyncIterator[Connection]:
        """A connection for one list whose filters may be left out: what is left out changes the plan."""
        async with self.connection() as connection, connection.transaction(readonly=True):
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            yield connection

    def asks(self, statement: str) -> Callable[[], Awaitable[bool]]:
        """A question of one statement, asked outside a transaction. It raises StoreBusy."""

        async def ask() -> bool:
            async with self.connection() as connection:
                return bool(await connection.fetchval(statement))

        return ask

    async def close(self) -> None:
        """Close the pool, waiting for running transactions for a bounded time."""
        self._closing = True
        while self._at_hand:
            await self.pool.release(self._at_hand.pop())
        await self.pool.close()

    @property
    def address(self) -> str:
        """Host and database, without credentials, for messages."""
        parts = urlsplit(str(getattr(self.pool, "_connect_args", [""])[0] or ""))
        return f"{parts.hostname}:{parts.port}{parts.path}"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class InTransaction:
    """A connection whose first statement begins a transaction, which commits with the end of the block.

    Where no statement comes, nothing begins: plain reads go to `plain`, and the writes of many transactions leave in
    one statement, which is a transaction by itself (ADR 0025).
    """

    def __init__(self, plain: Any, time: DatabaseTime) -> None:
        self.plain = plain
        self.time = time
        self.begun = False
        self._transaction: Any = None

    async def begin(self) -> None:
        """Begin, unless it is begun."""
        if not self.begun:
            self._transaction = self.plain.transaction()
            await self._transaction.__aenter__()
            self.begun = True

    async def end(self, error: BaseException | None) -> None:
        """Commit what has begun, or with an error roll it back."""
        if self._transaction is not None:
            ended, self._transaction = self._transaction, None
            await ended.__aexit__(None if error is None else type(error), error, None)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A part of the transaction that may fail alone."""
        await self.begin()
        async with self.plain.transaction():
            yield

    async def fetch(self, statement: str, *arguments: Any) -> Any:
        """All rows."""
        await self.begin()
        return await self.plain.fetch(statement, *arguments)

    async def fetchrow(self, statement: str, *arguments: Any) -> Any:
        """The first row."""
        await self.begin()
        return await self.plain.fetchrow(statement, *arguments)

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        """The first value."""
        await self.begin()
        return await self.plain.fetchval(statement, *arguments)

    async def execute(self, statement: str, *arguments: Any) -> Any:
        """The command's tag."""
        await self.begin()
        return await self.plain.execute(statement, *arguments)

    async def executemany(self, statement: str, arguments: Any) -> None:
        """The same for many rows."""
        await self.begin()
        await self.plain.executemany(statement, arguments)


class Committing(Protocol):
    """What a service's transaction must be able to hear."""

    async def finish(self) -> None:
        """The transaction ends: write what was put off."""
        ...

    def committed(self) -> None:
        """The commit succeeded."""
        ...


T = TypeVar("T", bound=Committing)


class _Transaction(Generic[T]):
    """One transaction from session to session. Not a generator and a stack: this runs five times for each command."""

    __slots__ = ("_database", "_session", "_transaction_of", "_tx", "_within")

    def __init__(self, database: Database, transaction_of: Callable[[InTransaction], T]) -> None:
        self._database = database
        self._transaction_of = transaction_of

    async def __aenter__(self) -> T:
        try:
            self._session = await self._database.take()
        except PASSING as error:
            raise StoreBusy(_reason(error)) from error
        self._within = InTransaction(self._session, self._database.time)
        self._tx = self._transaction_of(self._within)
        return self._tx

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            await self._end(error)
        except Exception as failure:
            meaning = _meaning(failure)
            if meaning is failure:
                raise
            raise meaning from failure
        if error is not None:
            meaning = _meaning(error)
            if meaning is not error:
                raise meaning from error
            return
        self._tx.committed()

    async def _end(self, error: BaseException | None) -> None:
        served_well = False
        try:
            if error is None:
                try:
                    await self._tx.finish()
                except BaseException as failure:
                    await self._within.end(failure)
                    raise
            await self._within.end(error)
            served_well = error is None
        finally:
            await self._database.give_back(self._session, served_well=served_well)


def _meaning(error: BaseException) -> BaseException:
    """What a failure says to whoever repeats transactions; itself where it says nothing of that kind."""
    if isinstance(error, asyncpg.SerializationError):  # nothing here asks for an isolation that could be refused
        return VersionConflict(_reason(error))
    if isinstance(error, asyncpg.AssertError):
        return RowsDiffer(_reason(error))
    return StoreBusy(_reason(error)) if isinstance(error, PASSING) else error


class SqlStore(Generic[T]):
    """Opens transactions of one service. `transaction_of` wraps a connection into the service's Transaction."""

    def __init__(self, database: Database, transaction_of: Callable[[InTransaction], T]) -> None:
        self.database = database
        self._transaction_of = transaction_of

    def transaction(self) -> _Transaction[T]:
        """One transaction; commits at the end of the block. Raises StoreBusy where nothing was kept.

        A connection lost during COMMIT also raises StoreBusy: if it did commit, the inbox makes the repetition empty.
        """
        return _Transaction(self.database, self._transaction_of)
