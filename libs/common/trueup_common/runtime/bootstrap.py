"""Bootstrap: the one identity that creates roles, schemas, streams, consumers and buckets; services never do.

Everything here may run again, and twice at once.

Services are found through the entry point group `trueup.services` (name → METADATA of its tables), adapters through
`trueup.adapters`, built-in workflow documents through `trueup.workflows` (a function that gives texts by file name).
"""

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import asyncpg
import nats.js.errors
from alembic import command
from alembic.config import Config
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import (
    ARTIFACTS_BYTES_MAX,
    ARTIFACTS_STREAM,
    CATALOG_BUCKET,
    CONSUMERS,
    DUE,
    GOVERNANCE_BUCKET,
    STREAMS,
    Consumer,
    Stream,
    artifact_subjects,
    task_consumer,
)
from trueup_common.documents.faults import DocumentInvalid
from trueup_common.documents.lint import sound_document
from trueup_common.documents.read import ReadDocument
from trueup_common.runtime.bus import connect_admin
from trueup_common.runtime.rows import EXPECT

log = logging.getLogger("trueup.bootstrap")

_NAME: Final = re.compile(r"^[a-z_]+$")
_LOCK: Final = 0x7472_7565
_GROUND: Final = """
CREATE SCHEMA IF NOT EXISTS trueup;
CREATE TABLE IF NOT EXISTS trueup.clock (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), "offset" interval NOT NULL DEFAULT '0');
INSERT INTO trueup.clock DEFAULT VALUES ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION trueup.now() RETURNS timestamptz STABLE LANGUAGE sql SECURITY DEFINER
  SET search_path = trueup AS 'SELECT pg_catalog.now() + (SELECT "offset" FROM trueup.clock)';
REVOKE ALL ON SCHEMA public FROM PUBLIC;
"""


def service_metadata() -> dict[str, tuple[MetaData, str]]:
    """Installed services: schema → (metadata, package)."""
    found: dict[str, tuple[MetaData, str]] = {}
    for point in sorted(entry_points(group="trueup.services"), key=lambda point: point.name):
        found[point.name] = (point.load(), point.module.split(".")[0])
    return found


def role_of(schema: str) -> str:
    """The database role of a service."""
    return f"trueup_{schema}"


async def bootstrap_database(admin_url: str, passwords: Mapping[str, str]) -> None:
    """Roles, schemas, `trueup.now()` and `trueup.expect()`, migrations and rights. `passwords` by service name."""
    passwords = {service.replace("-", "_"): password for service, password in passwords.items()}
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await connection.execute(_GROUND + EXPECT)
        services = service_metadata()
        for schema, password in passwords.items():
            await _role(connection, schema, password)
        for schema, (metadata, package) in services.items():
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            await migrate(admin_url, schema, metadata, package)
        for schema in services:
            if schema in passwords:
                await _rights(connection, schema)
        await _door(connection, [schema for schema in services if schema in passwords])
        await _due(connection)
    finally:
        await connection.close()


async def _role(connection: Any, schema: str, password: str) -> None:
    if not _NAME.match(schema):
        raise ValueError(f"unusable schema name {schema!r}")
    role = role_of(schema)
    quoted = await connection.fetchval("SELECT quote_literal($1::text)", password)
    with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        await connection.execute(f"CREATE ROLE {role} LOGIN")
    await connection.execute(f"ALTER ROLE {role} WITH LOGIN PASSWORD {quoted} NOSUPERUSER NOCREATEDB NOCREATEROLE")


async def _rights(connection: Any, schema: str) -> None:
    role = role_of(schema)
    await connection.execute(
        f"GRANT USAGE ON SCHEMA {schema}, trueup TO {role};"
        f"GRANT EXECUTE ON FUNCTION trueup.now(), trueup.expect(text[], bigint[], bigint[], boolean[]) TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};"
        f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role};"
    )


async def _door(connection: Any, schemas: Iterable[str]) -> None:
    """Only the services may connect to this database: another role of the server, such as a customer's, may not."""
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    for schema in schemas:
        await connection.execute(f"GRANT CONNECT ON DATABASE {database} TO {role_of(schema)}")
    await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")


async def _due(connection: Any) -> None:
    """`trueup.next_due()`: the earliest due business time over all services, for `clock advance`."""
    parts = []
    for schema, table, column, predicate in DUE:
        known = await connection.fetchval(
            "SELECT count(*) FROM information_schema.columns "
            "WHERE table_schema = $1 AND table_name = $2 AND column_name = $3",
            schema,
            table,
            column,
        )
        if known:
            rest = f'FROM {schema}."{table}" WHERE {predicate} AND {column} > trueup.now()'
            parts.append(f"SELECT min({column}) AS due {rest}")
    body = " UNION ALL ".join(parts) or "SELECT NULL::timestamptz AS due"
    await connection.execute(
        "CREATE OR REPLACE FUNCTION trueup.next_due() RETURNS timestamptz STABLE LANGUAGE sql SECURITY DEFINER "
        f"AS $$ SELECT min(due) FROM ({body}) AS all_due $$; REVOKE ALL ON FUNCTION trueup.next_due() FROM PUBLIC"
    )


async def migrate(admin_url: str, schema: str, metadata: MetaData, package: str) -> None:
    """Bring one schema to its newest revision."""
    versions = Path(str(import_module(package).__file__)).parent / "migrations"
    engine = create_async_engine(admin_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        async with engine.begin() as connection:
            config = alembic_config(schema, versions)

            def upgrade(sync_connection: Any) -> None:
                config.attributes["connection"] = sync_connection
                config.attributes["metadata"] = metadata
                command.upgrade(config, "head")

            await connection.run_sync(upgrade)
    finally:
        await engine.dispose()


def alembic_config(schema: str, versions: Path) -> Config:
    """Alembic's configuration for one schema: shared environment, the service's own versions."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("version_locations", str(versions))
    config.set_main_option("path_separator", "os")
    config.attributes["schema"] = schema
    return config


async def bootstrap_bus(nats_url: str, systems: Iterable[str] | None = None, *, replicas: int = 1) -> None:
    """Streams, consumers and buckets, with the admin user. `systems` default to the installed adapters."""
    if systems is None:
        systems = [point.name for point in entry_points(group="trueup.adapters")]
    client = await connect_admin(nats_url)
    try:
        js = client.jetstream()
        for stream in STREAMS:
            config = stream_config(stream, replicas)
            try:
                await js.add_stream(config)
            except nats.js.errors.BadRequestError:
                await js.update_stream(config)
        for consumer in [*CONSUMERS, *(task_consumer(system) for system in sorted(systems))]:
            await ensure_consumer(js, consumer)
        for bucket in (CATALOG_BUCKET, GOVERNANCE_BUCKET):
            try:
                await js.key_value(bucket)
            except nats.js.errors.BucketNotFoundError:
                await js.create_key_value(bucket=bucket, history=1, replicas=replicas)
        await ensure_artifacts(js, replicas)
    finally:
        await client.close()


def stream_config(stream: Stream, replicas: int = 1) -> StreamConfig:
    """What the broker is told about a stream.

    A purge would go unnoticed: a work queue that was emptied looks like one that was worked off. Whoever has to empty a
    stream deletes it, and the relays see that by its time of creation and send again.
    """
    return StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.work_queue else RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=stream.max_bytes,
        max_age=stream.max_age_seconds,
        duplicate_window=stream.duplicate_window_seconds,
        num_replicas=replicas,
        deny_delete=True,
        deny_purge=True,
    )


async def ensure_artifacts(js: JetStreamContext, replicas: int) -> None:
    """Create or update the object store of artifacts."""
    config = StreamConfig(
        name=ARTIFACTS_STREAM,
        subjects=list(artifact_subjects()),
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=ARTIFACTS_BYTES_MAX,
        allow_rollup_hdrs=True,
        allow_direct=True,
        num_replicas=replicas,
    )
    try:
        await js.add_stream(config)
    except nats.js.errors.BadRequestError:
        await js.update_stream(config)


async def ensure_consumer(js: JetStreamContext, consumer: Consumer) -> None:
    """Create or update one durable consumer from its definition."""
    await js.add_consumer(
        consumer.stream,
        ConsumerConfig(
            durable_name=consumer.durable,
            filter_subjects=list(consumer.filters),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=consumer.ack_wait_seconds,
            max_ack_pending=consumer.max_ack_pending,
            max_deliver=-1,
        ),
    )


def installed_adapters() -> dict[str, Any]:
    """Adapters behind the entry point group `trueup.adapters`, by system."""
    return {point.name: point.load() for point in sorted(entry_points(group="trueup.adapters"), key=lambda p: p.name)}


class DefinitionChanged(RuntimeError):
    """A built-in document differs from the one that stands under its name and version."""


def installed_documents(declarations: Iterable[CommandDeclaration]) -> list[ReadDocument]:
    """The built-in workflow documents that these declarations can run. One that breaks a rule is left out, and told."""
    known = {declaration.type: declaration for declaration in declarations}
    found: list[ReadDocument] = []
    for point in sorted(entry_points(group="trueup.workflows"), key=lambda point: point.name):
        for name, text in point.load()().items():
            try:
                found.append(sound_document(text, known))
            except DocumentInvalid as refused:
                faults = [str(fault) for fault in refused.faults[:20]]
                log.error("built-in workflow refused", extra={"document": name, "faults": faults})
    return found


async def load_catalog(
    nats_url: str,
    declarations: Iterable[CommandDeclaration],
    connections: Iterable[tuple[str, str]],
    documents: Iterable[ReadDocument] = (),
) -> None:
    """Put declarations and documents (immutable by hash) and the list of connections into the catalog.

    Raises DefinitionChanged.
    """
    client = await connect_admin(nats_url)
    try:
        bucket = await client.jetstream().key_value(CATALOG_BUCKET)
        for declaration in declarations:
            key = f"type/{declaration.type}/{declaration.sha256}"
            with contextlib.suppress(nats.js.errors.KeyWrongLastSequenceError):
                await bucket.create(key, declaration.model_dump_json().encode())
            await bucket.put(f"current/{declaration.type}", declaration.sha256.encode())
        await _load_definitions(bucket, documents)
        wanted = {f"connection/{tenant}/{system}" for tenant, system in connections}
        for key in wanted:
            await bucket.put(key, b"1")
        for key in await _keys(bucket):
            if key.startswith("connection/") and key not in wanted:
                await bucket.delete(key)
    finally:
        await client.close()


async def _keys(bucket: KeyValue) -> list[str]:
    try:
        return list(await bucket.keys())
    except nats.js.errors.NoKeysError:
        return []


async def _load_definitions(bucket: KeyValue, documents: Iterable[ReadDocument]) -> None:
    present = await _keys(bucket)
    for item in documents:
        document = item.document
        version = f"definition/{document.name}/{document.version}/"
        key = version + document.sha256
        if any(other.startswith(version) and other != key for other in present):
            raise DefinitionChanged(f"{document.name} {document.version} is registered already: raise its version")
        if key not in present:
            with contextlib.suppress(nats.js.errors.KeyWrongLastSequenceError):
                await bucket.create(key, json_bytes({"document": document.dumped(), "text": item.text}))
