"""The customer's database for the adapter's tests: a real one, behind the sandbox's port and its faults."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
from tests.adapters.worlds import MANY, SandboxWorld, connection_of
from tests.servers import Database, PostgresServer

from trueup_adapters.systems import database
from trueup_common.contracts.adapter import Connection
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench, Case
from trueup_devkit.sandbox import Sandbox, sandbox_connections

NOWHERE: Final = "postgresql://somebody:secret@127.0.0.1:9/nowhere"
RECORD: Final = {"title": "Größe & Wirkung", "url": "https://example.org/a", "words": 1200, "score": 0.1, "tags": ["a"]}
_numbers = itertools.count(1)


class DatabaseWorld(SandboxWorld):
    """A customer's PostgreSQL. A write is the COMMIT; errors strike where the real server would raise them."""

    system = "database"
    adapter = database.ADAPTER
    writes: Final = {"method": "COMMIT"}

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession, admin_url: str) -> None:
        self.sandbox = sandbox
        self.http = http
        self.admin_url = admin_url
        document = sandbox_connections(sandbox.urls)
        self.connection = connection_of(document, "database")
        self.unreachable = connection_of(document, "database", dsn=NOWHERE, read_dsn=NOWHERE)
        settings = self.connection.settings
        wrong = str(settings["read_dsn"]).replace("sandbox-acme-reader", "wrong")
        self.unreadable: Connection | None = connection_of(document, "database", read_dsn=wrong)

    async def case(self, command_type: str) -> Case:
        """A new business key; for the cancellation, a record under it."""
        business_key = new_id("cmd")
        payload: dict[str, Any] = {"business_key": business_key, "record": dict(RECORD)}
        if command_type == "database.record_publication":
            return Case(resource=f"publication/{business_key}", payload=payload)
        bench = await self.recorded(payload)
        outcome = await bench.perform()
        await bench.target.close()
        assert outcome.result is not None, outcome
        cancelling = {"business_key": business_key, "record_id": outcome.result["record_id"]}
        return Case(resource=f"publication/{business_key}", payload=cancelling)

    async def recorded(self, payload: dict[str, Any]) -> Bench:
        """A bench for recording exactly this."""
        declaration = next(item for item in self.adapter.declarations if item.type == "database.record_publication")
        case = Case(resource=f"publication/{payload['business_key']}", payload=payload)
        return Bench(self, declaration, self.adapter.open(self.connection), case)

    async def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
        """Refusals of the account come with the session, those of the statement with the statement."""
        place = {401: "CONNECT", 429: "CONNECT", 403: "INSERT|UPDATE"}.get(status, "COMMIT")
        for method in place.split("|"):
            await self.fault("status", {"status": status, "headers": headers, "body": body}, method=method)

    async def answer_unreadably(self) -> None:
        """After the effect, with a command tag that no PostgreSQL knows."""
        await self.fault("body", {"body": "<html>Welcome back</html>"}, **self.writes)

    async def deny_reads(self) -> None:
        """For good."""
        await self.fault("deny_reads", times=MANY, path="/reader/")

    async def remove(self, element: ProbeElement) -> bool:
        """An administrator deletes the row."""
        await self.tamper(f"acme/{element.params['business_key']}", {"delete": True})
        return True

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        """A statement of the administrator, past the sandbox."""
        connection = await asyncpg.connect(self.admin_url)
        try:
            found: list[Any] = await connection.fetch(statement, *values)
            return found
        finally:
            await connection.close()


@contextmanager
def customer_database(server: PostgresServer) -> Iterator[Database]:
    """A name for a database that the sandbox makes itself."""
    name = f"customer_{next(_numbers)}"
    made = Database(name, server.cluster.url("trueup", server.cluster.password, name))
    yield made
    server.drop(made)


@asynccontextmanager
async def open_database(state_dir: Path, customer: Database) -> AsyncIterator[DatabaseWorld]:
    """A sandbox of its own in front of a customer's database that several tests may share."""
    async with Sandbox(state_dir, 0, database_url=customer.admin_url) as sandbox, aiohttp.ClientSession() as http:
        yield DatabaseWorld(sandbox, http, customer.admin_url)
