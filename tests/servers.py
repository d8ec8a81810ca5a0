"""Real servers for tests: one PostgreSQL cluster and one NATS server per test process, and fresh databases on demand.

Everything here is synchronous, so that it can be called from plain fixtures, from async tests and from threads alike.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import secrets
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import asyncpg

from tests.patience import PATIENCE_SECONDS
from trueup_common.contracts.topology import SERVICES
from trueup_devkit.children import Lease
from trueup_devkit.nats_server import ADMIN_USER, NatsServer, service_users
from trueup_devkit.postgres import AS_NOBODY, PostgresCluster
from trueup_devkit.secret_files import installed_systems
from trueup_devkit.supervisor import DATABASE_NAME

T = TypeVar("T")

# A killed server still keeps every commit, in the pages of the operating system; only a power cut would lose any.
FAST_BUT_FORGETFUL = {"fsync": "off", "shared_buffers": "32MB", "io_method": "sync", "max_wal_size": "256MB"}
TEMPLATE = "plane_template"


def run_apart(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine on a loop of its own in a thread of its own, whether or not a loop runs here."""
    result: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            result.append(asyncio.run(_await(work)))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


async def _await(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


@dataclass
class Database:
    """One database of the test cluster: the owner's URL, and each service's own URL once it is migrated."""

    name: str
    admin_url: str
    urls: dict[str, str] = field(default_factory=dict)

    def url(self, service: str) -> str:
        return self.urls[service]


class PostgresServer:
    """The session's cluster. `fresh_database()` is empty; `plane_database()` is a copy of a migrated template."""

    def __init__(self, folder: Path) -> None:
        self.cluster = PostgresCluster(folder, settings=dict(FAST_BUT_FORGETFUL))
        self.passwords = {service: secrets.token_urlsafe(12) for service in SERVICES}
        self._numbers = itertools.count(1)
        self._migrated = False

    @property
    def admin_url(self) -> str:
        return self.cluster.admin_url

    def start(self) -> None:
        self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()

    def fresh_database(self, template: str = "template0") -> Database:
        """Create a database of its own for the caller (about 30 ms)."""
        name = f"test_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return Database(name, self._admin_url_of(name))

    def plane_database(self) -> Database:
        """Create a database with all roles, schemas and migrations, copied from a template made once."""
        if not self._migrated:
            self.migrated(TEMPLATE)
            self._migrated = True
        database = self.fresh_database(TEMPLATE)
        for service in SERVICES:
            role = f"trueup_{service.replace('-', '_')}"
            database.urls[service] = self.cluster.url(role, self.passwords[service], database.name)
        return database

    def migrated(self, name: str) -> None:
        """Create a database under this name with all roles, schemas and migrations."""
        self.execute(f'CREATE DATABASE "{name}"')
        bootstrap = importlib.import_module("trueup_common.runtime.bootstrap")
        run_apart(lambda: bootstrap.bootstrap_database(self._admin_url_of(name), self.passwords))

    def drop(self, database: Database) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{database.name}" WITH (FORCE)')

    def execute(self, statement: str, url: str | None = None) -> None:
        """Run one statement as the cluster's owner."""

        async def work() -> None:
            connection = await asyncpg.connect(url or self.admin_url)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        run_apart(work)

    def _admin_url_of(self, name: str) -> str:
        return self.cluster.url("trueup", self.cluster.password, name)


class PlaneClusters:
    """Clusters as the first start of a plane leaves them, copied from one that is made once for all test processes.

    A plane that finds one has no `initdb` to run and nothing to migrate; the demo's own tests start from nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lay_out(self, target: Path) -> None:
        """Put a cluster where a plane looks for its own."""
        lease = Lease.take(self.folder.with_suffix(".lock"), timeout_seconds=PATIENCE_SECONDS)
        assert lease is not None, "nobody takes that long to make a cluster"
        try:
            if not self.folder.exists():
                self._make()
        finally:
            lease.release()
        if (self.folder / "data").exists():
            shutil.copytree(self.folder, target)

    def _make(self) -> None:
        unfinished = self.folder.with_suffix(".unfinished")
        server = PostgresServer(unfinished)
        server.start()
        server.migrated(DATABASE_NAME)
        server.stop()
        self.folder.mkdir()
        if server.cluster.isolation != AS_NOBODY:  # whose files belong to somebody else, and may be elsewhere
            (unfinished / "data").rename(self.folder / "data")
            (unfinished / "password").rename(self.folder / "password")
            with (self.folder / "data" / "postgresql.conf").open("a") as settings:
                settings.write("fsync = off\n")


class BusServer:
    """The session's NATS server with the real users and permissions."""

    def __init__(self, folder: Path) -> None:
        users = service_users(
            {name: secrets.token_urlsafe(12) for name in (ADMIN_USER, *SERVICES)}, installed_systems()
        )
        self.server = NatsServer(folder, users, system_password=secrets.token_urlsafe(12))

    @property
    def admin_url(self) -> str:
        return self.server.admin_url

    def url(self, service: str) -> str:
        return self.server.url(service)

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def bootstrap(self) -> None:
        """Create the streams, consumers and buckets of the topology."""
        bootstrap = importlib.import_module("trueup_common.runtime.bootstrap")
        run_apart(lambda: bootstrap.bootstrap_bus(self.admin_url, installed_systems()))

    def wipe(self) -> None:
        """Delete every stream (buckets are streams too), so that a test module starts from nothing."""
        import nats  # the one place in tests that needs the raw client

        async def work() -> None:
            client = await nats.connect(self.admin_url)
            try:
                manager = client.jsm() if hasattr(client, "jsm") else client.jetstream()
                for stream in await manager.streams_info():
                    await manager.delete_stream(stream.config.name or "")
            finally:
                await client.close()

        run_apart(work)
