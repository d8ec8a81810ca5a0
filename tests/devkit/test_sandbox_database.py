"""The sandbox's customer database: a real PostgreSQL behind a port that fails on command, with its own ground truth."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.devkit.sandbox_site import Hands, until
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database, PostgresServer

from trueup_devkit import plan as planning
from trueup_devkit.sandbox import Sandbox, sandbox_connections
from trueup_devkit.sandbox.systems.database import CUSTOMER_TABLES

INSERT = "INSERT INTO publications (business_key, record) VALUES ($1, '{}')"
LOST = (asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class DatabaseHands(Hands):
    """A world with a customer's database, and sessions of its accounts through the sandbox's port."""

    def __init__(self, state_dir: Path, customer: Database) -> None:
        super().__init__(state_dir)
        self.customer = customer
        self.world = Sandbox(state_dir, database_url=customer.admin_url)

    def dsn(self, tenant: str = "acme", setting: str = "dsn") -> str:
        """An account's address."""
        entries = sandbox_connections(self.world.urls)["connections"]
        found = next(item for item in entries if (item["tenant"], item["system"]) == (tenant, "database"))
        return str(found[setting])

    @contextlib.asynccontextmanager
    async def session(self, tenant: str = "acme", setting: str = "dsn") -> AsyncIterator[Any]:
        """A session of an account."""
        connection = await asyncpg.connect(self.dsn(tenant, setting), statement_cache_size=0)
        try:
            yield connection
        finally:
            connection.terminate()

    async def truth(self) -> list[tuple[str, str]]:
        """The ground truth of the customer's database."""
        return await self.effects("database")


@pytest.fixture(scope="module")
def customer(postgres_server: PostgresServer) -> Iterator[Database]:
    name = "customer_of_sandbox"
    made = Database(name, postgres_server.cluster.url("trueup", postgres_server.cluster.password, name))
    yield made
    postgres_server.drop(made)


@pytest.fixture
async def hands(tmp_path: Path, customer: Database) -> AsyncIterator[DatabaseHands]:
    made = DatabaseHands(tmp_path, customer)
    async with made.world:
        connection = await asyncpg.connect(customer.admin_url)
        await connection.execute("TRUNCATE acme.publications, globex.publications, sandbox.effects")
        await connection.close()
        yield made
        await made.close()


async def test_without_a_server_the_world_has_no_database(tmp_path: Path) -> None:
    """Nothing is listed, and nothing is connected."""
    async with Sandbox(tmp_path) as world:
        assert "database" not in world.urls
        listed = {item["system"] for item in sandbox_connections(world.urls)["connections"]}
        assert "database" not in listed and "wordpress" in listed


async def test_every_tenant_sees_its_own_tables_only(hands: DatabaseHands) -> None:
    """Requirements: I1. Accounts cannot read across tenants, readers cannot write, writers cannot delete."""
    for tenant in ("acme", "globex"):
        async with hands.session(tenant) as writer, hands.session(tenant, "read_dsn") as reader:
            await writer.execute(INSERT, f"{tenant}-1")
            assert [row["business_key"] for row in await reader.fetch("SELECT * FROM publications")] == [f"{tenant}-1"]
            other = "globex" if tenant == "acme" else "acme"
            for session, statement in (
                (writer, f"SELECT * FROM {other}.publications"),
                (reader, f"SELECT * FROM {other}.trueup_effects"),
                (reader, "UPDATE publications SET status = 'cancelled'"),
                (writer, "DELETE FROM publications"),
                (writer, "SELECT * FROM sandbox.effects"),
                (writer, "DELETE FROM trueup_effects"),
                (writer, "CREATE TABLE mine (id int)"),
            ):
                with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError)):
                    await session.execute(statement)
    assert await hands.truth() == [("acme/acme-1", "insert"), ("globex/globex-1", "insert")]


async def test_roles_of_the_plane_cannot_enter(hands: DatabaseHands, postgres_server: PostgresServer) -> None:
    """Requirements: I1. A role that nobody let in is refused at the door."""
    postgres_server.execute("CREATE ROLE stranger_of_test LOGIN PASSWORD 'p'")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await asyncpg.connect(postgres_server.cluster.url("stranger_of_test", "p", hands.customer.name))
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(hands.dsn().replace("-writer@", "-wrong@"))


async def test_the_truth_has_every_real_effect_once_and_in_order(hands: DatabaseHands) -> None:
    """Rolled back is no effect, an unchanged status is an update, and asking twice tells nothing twice."""
    async with hands.session() as writer:
        await writer.execute(INSERT, "a")
        await writer.execute("UPDATE publications SET status = 'cancelled' WHERE business_key = 'a'")
        with contextlib.suppress(ZeroDivisionError):
            async with writer.transaction():
                await writer.execute(INSERT, "b")
                raise ZeroDivisionError
        await writer.execute("UPDATE publications SET status = 'recorded' WHERE business_key = 'a'")
        await writer.execute("UPDATE publications SET record = '{\"x\": 1}' WHERE business_key = 'a'")
    expected = [("acme/a", "insert"), ("acme/a", "cancel"), ("acme/a", "insert"), ("acme/a", "update")]
    for answer in await asyncio.gather(*(hands.truth() for _ in range(5))):
        assert answer == expected
    items = (await hands.control.get("/_effects")).json()["items"]
    assert {item["kind"] for item in items} == {"database.publication"}


async def test_the_truth_is_told_before_the_answer_leaves(hands: DatabaseHands) -> None:
    """Effects of several systems stand in the order in which they happened, whenever somebody asks."""
    async with hands.session() as writer:
        for number in range(3):
            await writer.execute(INSERT, f"k{number}")
            await hands.bench.post("/effect", json={"key": f"k{number}"})
    items = (await hands.control.get("/_effects")).json()["items"]
    assert [item["system"] for item in items] == ["database", "bench"] * 3


async def test_an_outsiders_edit_changes_the_record_and_is_no_effect(hands: DatabaseHands) -> None:
    """As in the other systems; what makes no sense is refused."""
    async with hands.session() as writer:
        await writer.execute(INSERT, "a")

    async def tamper(object_: str, change: dict[str, Any]) -> int:
        order = {"system": "database", "object": object_, "change": change}
        return (await hands.control.post("/_tamper", json=order)).status_code

    assert await tamper("acme/a", {"record": {"title": "edited"}, "status": "cancelled"}) == 200
    async with hands.session(setting="read_dsn") as reader:
        row = await reader.fetchrow("SELECT * FROM publications")
        assert (row["record"], row["status"]) == ('{"title": "edited"}', "cancelled")
    assert await tamper("acme/a", {"delete": True}) == 200
    assert await tamper("acme/a", {"delete": True}) == 404
    assert await tamper("nobody/a", {"delete": True}) == 404
    assert await tamper("acme/a", {"business_key": "b"}) == 400
    assert await tamper("acme/a", {"status": "lost"}) in (400, 404)
    assert await hands.truth() == [("acme/a", "insert")]


async def test_encryption_is_declined_and_the_session_goes_on(hands: DatabaseHands) -> None:
    """SSLRequest and GSSENCRequest are answered with N."""
    host, port = hands.world.urls["database"].split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for code in (80877103, 80877104):
        writer.write(struct.pack("!II", 8, code))
        assert await reader.readexactly(1) == b"N"
    writer.close()


@pytest.mark.parametrize("is_simple", [False, True])
async def test_lose_answer_lets_the_statement_happen(hands: DatabaseHands, is_simple: bool) -> None:
    """In both forms of the protocol: the effect is there, the answer is not."""
    await hands.fault("lose_answer", "database", method="INSERT", path="^/acme/writer/")
    async with hands.session() as writer:
        with pytest.raises(LOST):
            if is_simple:
                await writer.execute(INSERT.replace("$1", "'a'"))
            else:
                await writer.execute(INSERT, "a")
    assert await hands.truth() == [("acme/a", "insert")]


async def test_drop_before_leaves_nothing_and_ends_the_transaction(hands: DatabaseHands) -> None:
    """The connection is cut; by then the server has rolled back."""
    await hands.fault("drop_before", "database", method="COMMIT")
    async with hands.session() as writer:
        await writer.execute("BEGIN")
        await writer.execute(INSERT, "a")
        with pytest.raises(LOST):
            await writer.execute("COMMIT")
    assert await hands.truth() == []


async def test_a_delay_before_happens_although_the_caller_left(hands: DatabaseHands) -> None:
    """What the server has received is executed, whoever waits for it."""
    await hands.fault("delay", "database", method="COMMIT", seconds=1.5)
    writer = await asyncpg.connect(hands.dsn())
    await writer.execute("BEGIN")
    await writer.execute(INSERT, "a")
    committing = asyncio.create_task(writer.execute("COMMIT"))

    async def met() -> bool:
        items = (await hands.control.get("/_requests", params={"system": "database"})).json()["items"]
        return any(item["fault"] == "delay" for item in items)

    await until(met)
    writer.terminate()
    with pytest.raises(LOST):
        await committing
    assert await hands.truth() == []

    async def applied() -> bool:
        return await hands.truth() == [("acme/a", "insert")]

    await until(applied)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_delay_answers_in_the_end(hands: DatabaseHands, when: str) -> None:
    """Extended protocol, both sides of the effect."""
    await hands.fault("delay", "database", method="INSERT", seconds=0.2, when=when)
    async with hands.session() as writer:
        started = time.monotonic()
        assert await writer.execute(INSERT, "a") == "INSERT 0 1"
        assert time.monotonic() - started >= 0.19
        assert await writer.fetchval("SELECT count(*) FROM publications") == 1


@pytest.mark.parametrize("body", [{"sqlstate": "40001"}, "40001"])
async def test_status_raises_a_real_error_in_the_real_transaction(hands: DatabaseHands, body: Any) -> None:
    """The statement does not happen, the transaction is failed, and COMMIT is answered with ROLLBACK."""
    await hands.fault("status", "database", method="INSERT", body=body)
    async with hands.session() as writer:
        await writer.execute("BEGIN")
        with pytest.raises(asyncpg.SerializationError):
            await writer.execute(INSERT, "a")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await writer.execute(INSERT, "b")
        assert await writer.execute("COMMIT") == "ROLLBACK"
        assert await writer.execute(INSERT, "c") == "INSERT 0 1"
    assert await hands.truth() == [("acme/c", "insert")]


@pytest.mark.parametrize(
    ("status", "failure"),
    [(401, asyncpg.InvalidPasswordError), (429, asyncpg.TooManyConnectionsError), (503, asyncpg.CannotConnectNowError)],
)
async def test_a_session_can_be_refused(hands: DatabaseHands, status: int, failure: type[Exception]) -> None:
    """CONNECT is the method; HTTP's numbers mean what comes closest."""
    await hands.fault("status", "database", method="CONNECT", status=status, path="/reader/")
    async with hands.session():
        pass  # the writer is let in
    with pytest.raises(failure):
        async with hands.session(setting="read_dsn"):
            raise AssertionError("unreachable")
    async with hands.session(setting="read_dsn"):
        pass  # used up


async def test_an_administrators_shutdown_ends_the_session(hands: DatabaseHands) -> None:
    """57P01 is fatal: nothing of the transaction stays."""
    await hands.fault("status", "database", method="COMMIT", body={"sqlstate": "57P01"})
    async with hands.session() as writer:
        await writer.execute("BEGIN")
        await writer.execute(INSERT, "a")
        with pytest.raises((asyncpg.AdminShutdownError, *LOST)):
            await writer.execute("COMMIT")
    assert await hands.truth() == []


async def test_body_answers_with_another_tag(hands: DatabaseHands) -> None:
    """The effect happened, the answer is not what PostgreSQL would say."""
    await hands.fault("body", "database", method="COMMIT", body="<html>")
    async with hands.session() as writer:
        await writer.execute("BEGIN")
        await writer.execute(INSERT, "a")
        assert await writer.execute("COMMIT") == "<html>"
    assert await hands.truth() == [("acme/a", "insert")]


async def test_deny_reads_refuses_selects_only(hands: DatabaseHands) -> None:
    """The account is let in and may write, but sees nothing."""
    await hands.fault("deny_reads", "database", times=2)
    async with hands.session() as writer:
        assert await writer.execute(INSERT, "a") == "INSERT 0 1"
        for _ in range(2):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await writer.fetch("SELECT * FROM publications")
        assert len(await writer.fetch("SELECT * FROM publications")) == 1


@pytest.mark.parametrize(("fault", "params"), [("stale_read", {"seconds": 1}), ("rewrite", {"field": "record"})])
async def test_faults_that_mean_nothing_here_are_refused(
    hands: DatabaseHands, fault: str, params: dict[str, Any]
) -> None:
    """Never accepted and then silently ignored."""
    order = {"system": "database", "fault": fault, "params": params}
    answer = await hands.control.post("/_faults", json=order)
    assert (answer.status_code, set(answer.json())) == (400, {"error"})


async def test_statements_are_logged_with_tenant_and_account(hands: DatabaseHands) -> None:
    """What a fault can match is what the log shows."""
    async with hands.session() as writer:
        await writer.execute(INSERT, "a")
    items = (await hands.control.get("/_requests", params={"system": "database"})).json()["items"]
    seen = [(item["method"], item["path"]) for item in items]
    assert seen == [("CONNECT", "/acme/writer/"), ("INSERT", f"/acme/writer/{INSERT}")]


async def test_a_cancellation_reaches_the_server(hands: DatabaseHands) -> None:
    """The server itself stops what its client gave up."""
    async with hands.session() as writer:
        with pytest.raises(TimeoutError):
            await writer.execute("SELECT pg_sleep(30)", timeout=0.1)
        assert await writer.fetchval("SELECT 1") == 1


async def test_a_client_that_speaks_nonsense_harms_nobody(hands: DatabaseHands) -> None:
    """Huge lengths, half messages and other protocols end that one connection."""
    host, port = hands.world.urls["database"].split("/")[2].split(":")
    for content in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, struct.pack("!II", 9, 196608) + b"\0", b"\0\0"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(content)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.read()
        writer.close()
    async with hands.session() as session:
        assert await session.fetchval("SELECT 1") == 1


async def test_a_restart_keeps_records_truth_and_standing_faults(tmp_path: Path, hands: DatabaseHands) -> None:
    """The second world tells what happened in the first."""
    async with hands.session() as writer:
        await writer.execute(INSERT, "a")
        await hands.fault("status", "database", method="INSERT", body="40001")
        assert await hands.truth() == [("acme/a", "insert")]
        await writer.execute("BEGIN")
        started = time.monotonic()
        await hands.world.stop()
        assert time.monotonic() - started < 20
        with pytest.raises(LOST):
            await writer.execute("SELECT 1")
    await hands.world.start()
    assert await hands.truth() == [("acme/a", "insert")]
    async with hands.session() as writer:
        with pytest.raises(asyncpg.SerializationError):
            await writer.execute(INSERT, "b")
        await writer.execute(INSERT, "b")
    assert await hands.truth() == [("acme/a", "insert"), ("acme/b", "insert")]


async def test_a_server_that_is_away_is_said_to_be_away(tmp_path: Path, hands: DatabaseHands) -> None:
    """Clients get PostgreSQL's own words; the ground truth is not guessed."""
    database: Any = hands.world.systems["database"]
    database.address = ("127.0.0.1", 9)
    database._url = "postgresql://u:p@127.0.0.1:9/d"
    await database.close()
    with pytest.raises(asyncpg.CannotConnectNowError):
        await asyncpg.connect(hands.dsn())
    assert (await hands.control.get("/_effects")).status_code == 503


def test_the_documented_tables_are_the_ones_that_are_tested() -> None:
    """A customer who copies the DDL of the page has what the adapter was tested on."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "adapters" / "database.md").read_text()
    assert CUSTOMER_TABLES.replace(" IF NOT EXISTS", "").strip() in page


def test_the_sandbox_gets_a_database_of_its_own_beside_the_plane() -> None:
    """The plane's own database is never handed over; a caller's choice stands; without a server there is none."""
    environment = planning.sandbox_environment("postgresql://trueup:pw@127.0.0.1:5/trueup", {"A": "1"})
    assert environment == {
        "A": "1",
        "TRUEUP_SANDBOX_DATABASE_URL": "postgresql://trueup:pw@127.0.0.1:5/trueup_customer",
    }
    own = {"TRUEUP_SANDBOX_DATABASE_URL": "postgresql://x:y@h/z"}
    assert planning.sandbox_environment("postgresql://trueup:pw@127.0.0.1:5/trueup", own) == own
    assert planning.sandbox_environment(None, {}) == {}
