"""Each service has its own role and broker user, as the bootstrap makes them: what is another's is out of its reach.

The pairs come from the catalogue of the database and from the tables of channels and consumers, so that a new table, a
new message or a new consumer is tested without a line here.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import asyncpg
import pytest
import pytest_asyncio
from nats.aio.client import Client

from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer, Database, PostgresServer, run_apart
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.messages import CHANNELS
from trueup_common.contracts.topology import (
    ARTIFACTS_BUCKET,
    CATALOG_BUCKET,
    CONSUMERS,
    GOVERNANCE_BUCKET,
    SERVICES,
    STREAMS,
    Consumer,
    command_subject,
    inbox_prefix,
    task_consumer,
)
from trueup_common.runtime import bootstrap
from trueup_common.runtime.bus import Bus, BusPublisher, ConsumerSource, connect_admin
from trueup_common.runtime.clock import real_now
from trueup_devkit.secret_files import installed_systems

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
OWN_PRIVILEGES = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})
STRANGER = "stranger_of_separation"

TABLES = """
SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2
"""


def schema(service: str) -> str:
    return service.replace("-", "_")


def role(service: str) -> str:
    return bootstrap.role_of(schema(service))


# -- database ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database that the bootstrap itself has made: rights on a database are not copied with a template."""
    database = postgres_server.fresh_database()
    run_apart(lambda: bootstrap.bootstrap_database(database.admin_url, postgres_server.passwords))
    for service in SERVICES:
        password = postgres_server.passwords[service]
        database.urls[service] = postgres_server.cluster.url(role(service), password, database.name)
    yield database
    postgres_server.drop(database)


@pytest_asyncio.fixture
async def owner(made_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(made_database.admin_url)
    yield connection
    await connection.close()


async def test_every_role_has_its_own_tables_and_nothing_of_any_other(owner: asyncpg.Connection) -> None:
    """All roles by all tables and sequences of the catalogue: reading and writing of one's own, nothing else at all.

    Requirements: T2
    """
    tables = [(record["schemaname"], record["tablename"]) for record in await owner.fetch(TABLES)]
    assert {name for name, _ in tables} == {*map(schema, SERVICES), "trueup"} and len(tables) > 40
    for service in SERVICES:
        for where, table in tables:
            has = {
                privilege
                for privilege in PRIVILEGES
                if await owner.fetchval(
                    "SELECT has_table_privilege($1, $2, $3)", role(service), f'{where}."{table}"', privilege
                )
            }
            expected = OWN_PRIVILEGES if where == schema(service) else frozenset()
            assert has == expected, (service, where, table)
        for where in {name for name, _ in tables} - {"trueup"}:
            may = await owner.fetchrow(
                "SELECT has_schema_privilege($1, $2, 'USAGE') AS uses, has_schema_privilege($1, $2, 'CREATE') AS makes",
                role(service),
                where,
            )
            assert (may["uses"], may["makes"]) == (where == schema(service), False), (service, where)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_role_that_tries_is_refused(service: str, made_database: Database, owner: asyncpg.Connection) -> None:
    """Not by the catalogue's word only: every foreign table is really asked and written to.

    Requirements: T2
    """
    tables = [(record["schemaname"], record["tablename"]) for record in await owner.fetch(TABLES)]
    connection = await asyncpg.connect(made_database.url(service))
    try:
        await connection.fetch(f"SELECT 1 FROM {schema(service)}.outbox LIMIT 1")
        foreign = [(where, table) for where, table in tables if where != schema(service)]
        for where, table in foreign:
            for statement in (
                f'SELECT 1 FROM {where}."{table}" LIMIT 1',
                f'INSERT INTO {where}."{table}" DEFAULT VALUES',
                f'DELETE FROM {where}."{table}"',
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
        for statement in (
            f"CREATE TABLE {schema(service)}.own (x int)",
            "CREATE TABLE public.own (x int)",
            "CREATE TEMP TABLE own (x int)",
            "CREATE SCHEMA own",
            "SELECT trueup.next_due()",
            f"SET ROLE {role(next(other for other in SERVICES if other != service))}",
            "COPY (SELECT 1) TO PROGRAM 'true'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


OF_ALL_TENANTS = {
    "inbox",  # ids of messages
    "delivery_failure",
    "outbox_unsent",  # ids of rows of the outbox, which has a tenant
    "stream_mark",
    "governance",  # one epoch for the whole plane
    "policy",  # one set of policies for the whole plane
    "cohort_revision",  # by which rules the key figures were counted
    "document",  # documents by their hash
    "effect_of_gateway",  # effects counted below a mandate, which has a tenant
    "pace",  # its key names tenant and system
}


def test_every_row_that_is_somebodys_says_whose() -> None:
    """A table without a tenant is one of the few that are nobody's: a new one has to be named here.

    Requirements: T1
    """
    for service, (metadata, _) in bootstrap.service_metadata().items():
        without = {table.name for table in metadata.sorted_tables if "tenant" not in table.columns}
        named = {f"{name}_of_{service}" if name == "effect" else name for name in without}
        assert named <= OF_ALL_TENANTS, service
        assert all(
            not table.columns["tenant"].nullable for table in metadata.sorted_tables if table.name not in without
        )


async def test_nobody_is_a_member_of_another_role_or_more_than_a_login(owner: asyncpg.Connection) -> None:
    """Requirements: T2"""
    roles = [role(service) for service in SERVICES]
    assert await owner.fetch("SELECT 1 FROM pg_auth_members WHERE member::regrole::text = ANY($1)", roles) == []
    more = "rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls OR NOT rolcanlogin"
    assert await owner.fetch(f"SELECT rolname FROM pg_roles WHERE rolname = ANY($1) AND ({more})", roles) == []
    assert await owner.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = ANY($1)", roles) == len(SERVICES)


async def test_only_services_may_connect_to_the_plane(
    made_database: Database, owner: asyncpg.Connection, postgres_server: PostgresServer
) -> None:
    """A role of the same server, such as a customer's, is refused at the door.

    Requirements: T2
    """
    postgres_server.execute(f"DROP ROLE IF EXISTS {STRANGER}")
    postgres_server.execute(f"CREATE ROLE {STRANGER} LOGIN PASSWORD 'p'")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await asyncpg.connect(postgres_server.cluster.url(STRANGER, "p", made_database.name))
    entering = await owner.fetch(
        "SELECT rolname FROM pg_roles WHERE has_database_privilege(oid, current_database(), 'CONNECT') "
        "AND rolcanlogin AND NOT rolsuper"
    )
    assert {record["rolname"] for record in entering} == {role(service) for service in SERVICES}
    postgres_server.execute(f"DROP ROLE {STRANGER}")


# -- broker -----------------------------------------------------------------------------------------------------------

SENDERS = {
    "trueup.cmd": {"gateway"},
    "trueup.grant.request": {"orchestrator"},
    "trueup.task.*.execute": {"gateway", "orchestrator"},
    "trueup.task.*.find": {"reconciler"},
    "trueup.task.*.probe": {"reconciler"},
    "trueup.evt.gateway": {"gateway"},
    "trueup.evt.orchestrator": {"orchestrator"},
    "trueup.evt.adapter": {"adapters"},
    "trueup.evt.reconciler": {"reconciler"},
    "trueup.evt.planner": {"repair-planner"},
    "trueup.beat.adapter": {"adapters"},
    "trueup.beat.governance": {"gateway"},
    "trueup.answer": {"orchestrator"},
}
"""Who may say what, in the words of the architecture; the channels themselves come from their table."""


def senders(pattern: str) -> set[str] | None:
    """Who may send on a channel; None for one that any service tells of itself."""
    if pattern.startswith("trueup.evt.*."):
        return None
    found = [who for prefix, who in SENDERS.items() if pattern == prefix or pattern.startswith(prefix + ".")]
    assert found, f"nobody is said to send on {pattern}"
    return found[0]


def concrete(pattern: str) -> str:
    """A subject of a channel."""
    return pattern.replace("*", "acme")


def consumers() -> list[Consumer]:
    return [*CONSUMERS, *(task_consumer(system) for system in installed_systems())]


async def refused(bus: Bus, subjects: Iterable[str]) -> None:
    """Publish to each subject; the broker must refuse every one, and the client must hear of each."""
    for subject in subjects:
        seen = len(bus.alarms)
        await bus.client.publish(subject, b"{}")
        await _alarmed(bus, seen, subject)


async def unheard(bus: Bus, subjects: Iterable[str]) -> None:
    """Subscribe to each subject; the broker must refuse every one."""

    async def overheard(_: object) -> None:
        raise AssertionError("overheard another service")

    for subject in subjects:
        seen = len(bus.alarms)
        await bus.client.subscribe(subject, cb=overheard)
        await _alarmed(bus, seen, subject)


async def _alarmed(bus: Bus, seen: int, subject: str) -> None:
    await bus.client.flush()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(bus.alarms) == seen:
            await asyncio.sleep(0)
    assert "ermissions" in bus.alarms[-1] and subject.lower() in bus.alarms[-1].lower(), (subject, bus.alarms[-1])
    bus.alarms.clear()


@pytest_asyncio.fixture
async def admin(plane_bus: BusServer) -> AsyncIterator[Client]:
    client = await connect_admin(plane_bus.admin_url)
    yield client
    await client.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_user_cannot_say_what_another_says(service: str, plane_bus: BusServer, admin: Client) -> None:
    """Every channel of the table that this service does not own, and the buckets: refused, alarmed, nothing stored.

    Requirements: T2
    """
    bus = await Bus.connect(plane_bus.url(service), service=service, name="probe")
    manager = admin.jetstream()
    before = {stream.name: (await manager.stream_info(stream.name)).state.last_seq for stream in STREAMS}
    foreign = [
        concrete(channel.pattern) for channel in CHANNELS if service not in (senders(channel.pattern) or SERVICES)
    ]
    assert len(foreign) >= len(CHANNELS) // 2
    named = [f"trueup.evt.{other}.quarantined.acme" for other in SERVICES if other != service]
    shared = [f"$KV.{CATALOG_BUCKET}.current.x", "trueup.ctl.clock", "trueup.ctl.crash", "other.x"]
    if service != "gateway":
        shared += [f"$KV.{GOVERNANCE_BUCKET}.freeze.x", f"$O.{ARTIFACTS_BUCKET}.M.x"]
    try:
        await refused(bus, [*foreign, *named, *shared])
        after = {stream.name: (await manager.stream_info(stream.name)).state.last_seq for stream in STREAMS}
        assert after == before
    finally:
        await bus.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_user_cannot_take_settle_or_overhear_what_is_anothers(service: str, plane_bus: BusServer) -> None:
    """All consumers of all others: no pull, no ack, no look; no inbox but one's own, and no wildcard over all.

    Requirements: T2
    """
    bus = await Bus.connect(plane_bus.url(service), service=service, name="probe")
    foreign = [consumer for consumer in consumers() if consumer.service != service]
    assert foreign
    try:
        for consumer in foreign:
            place = f"{consumer.stream}.{consumer.durable}"
            await refused(
                bus,
                [f"$JS.API.CONSUMER.MSG.NEXT.{place}", f"$JS.ACK.{place}.1.1.1.1.1", f"$JS.API.CONSUMER.INFO.{place}"],
            )
        inboxes = [f"{inbox_prefix(other)}.>" for other in (*SERVICES, "admin") if other != service]
        wide = ["trueup.>", "trueup.cmd.*", "trueup.task.>", "trueup.evt.>", "$JS.ACK.>", "$JS.API.>", ">"]
        await unheard(bus, [*inboxes, *wide])
    finally:
        await bus.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_user_cannot_make_change_or_empty_streams_and_consumers(service: str, plane_bus: BusServer) -> None:
    """Not even its own: they are made by the bootstrap, which is nobody's identity but the operator's.

    Requirements: T2
    """
    bus = await Bus.connect(plane_bus.url(service), service=service, name="probe")
    subjects = ["$JS.API.STREAM.CREATE.OWN", "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.own", "$JS.API.ACCOUNT.PURGE.x"]
    for stream in STREAMS:
        subjects += [f"$JS.API.STREAM.{verb}.{stream.name}" for verb in ("UPDATE", "DELETE", "PURGE", "MSG.GET")]
        subjects += [f"$JS.API.STREAM.MSG.DELETE.{stream.name}", f"$JS.API.DIRECT.GET.{stream.name}"]
        subjects += [f"$JS.API.CONSUMER.CREATE.{stream.name}", f"$JS.API.CONSUMER.CREATE.{stream.name}.own"]
    for consumer in consumers():
        place = f"{consumer.stream}.{consumer.durable}"
        subjects += [f"$JS.API.CONSUMER.DELETE.{place}", f"$JS.API.CONSUMER.DURABLE.CREATE.{place}"]
    for bucket in (CATALOG_BUCKET, GOVERNANCE_BUCKET):
        subjects += [f"$JS.API.STREAM.{verb}.KV_{bucket}" for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")]
    try:
        await refused(bus, subjects)
    finally:
        await bus.close()


async def test_an_ack_of_anothers_delivery_is_not_heard(plane_bus: BusServer, admin: Client) -> None:
    """With the real reply subject of a real delivery in hand: it stays the orchestrator's to settle.

    Requirements: T2
    """
    gateway, orchestrator, thief = [
        await Bus.connect(plane_bus.url(name), service=name, name="probe")
        for name in ("gateway", "orchestrator", "adapters")
    ]
    consumer = next(item for item in CONSUMERS if item.durable == "orchestrator-commands")
    source = ConsumerSource(orchestrator, consumer)
    message = Message(
        id="m1", type="T", subject=command_subject("acme"), tenant="acme", source="g", time=real_now(), data=b"{}"
    )
    try:
        await BusPublisher(gateway).publish([Outgoing(message)])
        await source.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            delivery = (await source.fetch(1))[0]
        await refused(thief, [delivery.raw.reply])
        state = await admin.jetstream().consumer_info(consumer.stream, consumer.durable)
        assert state.num_ack_pending == 1
        await delivery.ack()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await admin.jetstream().consumer_info(consumer.stream, consumer.durable)).num_ack_pending:
                await asyncio.sleep(0)
    finally:
        await source.stop()
        for bus in (gateway, orchestrator, thief):
            await bus.close()
