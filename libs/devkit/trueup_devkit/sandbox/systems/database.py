"""A customer's PostgreSQL: a real database, reached through a port that can fail on command.

Every tenant has a schema, an account that writes and an account that looks; none of them can see another tenant. The
database itself records every publication that was really written or cancelled, whatever became of the answer, and the
sandbox tells it as the ground truth. What the sandbox's own account changes is an outsider's edit and no effect.
"""

import asyncio
import json
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote, urlsplit

import asyncpg

from trueup_devkit.sandbox.store import Change, Effect, Store
from trueup_devkit.sandbox.system import Refusal

SYSTEM: Final = "database"
TENANTS: Final = ("acme", "globex")
WRITER, READER = "writer", "reader"
PORT_OFFSET: Final = 20
"""After the control port; the other systems follow it one by one."""
_TOLD: Final = "database.effect"
_FIELDS: Final = ("record", "status", "operation_id")
_SECONDS: Final = 10.0

CUSTOMER_TABLES: Final = """
CREATE TABLE IF NOT EXISTS publications (
    business_key text PRIMARY KEY,
    record jsonb NOT NULL,
    record_id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    status text NOT NULL DEFAULT 'recorded' CHECK (status IN ('recorded', 'cancelled')),
    operation_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS trueup_effects (
    operation_id text PRIMARY KEY,
    payload_sha256 text NOT NULL,
    receipt jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
"""
"""What the adapter expects of a customer; the same as in its documentation."""

_TRUTH: Final = """
CREATE SCHEMA IF NOT EXISTS sandbox;
CREATE TABLE IF NOT EXISTS sandbox.effects (
    id bigserial PRIMARY KEY, mark uuid NOT NULL DEFAULT gen_random_uuid(),
    object text NOT NULL, action text NOT NULL, is_told boolean NOT NULL DEFAULT false);
CREATE OR REPLACE FUNCTION sandbox.tell() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
DECLARE
    done text;
    key text;
BEGIN
    IF session_user = current_user THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        done := 'insert'; key := NEW.business_key;
    ELSIF TG_OP = 'DELETE' THEN
        done := 'delete'; key := OLD.business_key;
    ELSE
        key := NEW.business_key;
        done := CASE
            WHEN OLD.status <> 'cancelled' AND NEW.status = 'cancelled' THEN 'cancel'
            WHEN OLD.status = 'cancelled' AND NEW.status <> 'cancelled' THEN 'insert'
            ELSE 'update' END;
    END IF;
    INSERT INTO sandbox.effects (object, action) VALUES (TG_TABLE_SCHEMA || '/' || key, done);
    RETURN NULL;
END $$;
"""
_TRIGGER: Final = """
CREATE OR REPLACE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON publications
    FOR EACH ROW EXECUTE FUNCTION sandbox.tell();
"""


def sandbox_password(tenant: str, account: str) -> str:
    """The password of a sandbox account. Made up here, known to everybody, good for nothing else."""
    return f"sandbox-{tenant}-{account}"


def account_dsn(url: str, tenant: str, account: str) -> str:
    """How one account reaches the database behind a URL without credentials."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{tenant}_{account}:{sandbox_password(tenant, account)}@{rest}"


class CustomerDatabase:
    """The database behind the port, with the account that made it."""

    rewritable: ClassVar[frozenset[str]] = frozenset()
    impossible: ClassVar[frozenset[str]] = frozenset({"stale_read"})
    """Faults that mean nothing here: a primary never reads an old state."""

    def __init__(self, store: Store, database_url: str) -> None:
        parts = urlsplit(database_url)
        name = unquote(parts.path.lstrip("/"))
        if parts.scheme not in ("postgresql", "postgres") or not parts.hostname or not name:
            raise ValueError("the customer's database must be postgresql://user:password@host:port/database")
        self._store = store
        self._url = database_url
        self._telling = asyncio.Lock()
        self._teller: Any = None
        self._server_url = f"{database_url.partition('?')[0].rpartition('/')[0]}/postgres"
        self.name = name
        self.address = (parts.hostname, parts.port or 5432)

    def url(self, host: str, port: int) -> str:
        """Where clients reach it, without credentials."""
        return f"postgresql://{host}:{port}/{quote(self.name)}"

    async def prepare(self) -> None:
        """Database, accounts, schemas and tables, where they are missing."""
        try:
            connection = await asyncpg.connect(self._url, timeout=_SECONDS)
        except asyncpg.InvalidCatalogNameError:
            await self._create()
            connection = await asyncpg.connect(self._url, timeout=_SECONDS)
        try:
            async with connection.transaction():
                # Roles belong to the whole server: two worlds that start at once must not make them both.
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext('sandbox'))")
                await connection.execute(f'REVOKE ALL ON DATABASE "{self.name}" FROM PUBLIC')
                await connection.execute(_TRUTH)
                for tenant in TENANTS:
                    await self._prepare_tenant(connection, tenant)
        finally:
            await connection.close()

    async def _create(self) -> None:
        connection = await asyncpg.connect(self._server_url, timeout=_SECONDS)
        try:
            await connection.execute(f'CREATE DATABASE "{self.name}"')
        finally:
            await connection.close()

    async def _prepare_tenant(self, connection: Any, tenant: str) -> None:
        for account in (WRITER, READER):
            role = f"{tenant}_{account}"
            if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role):
                await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{sandbox_password(tenant, account)}'")
            await connection.execute(
                f'GRANT CONNECT ON DATABASE "{self.name}" TO {role};'
                f'ALTER ROLE {role} IN DATABASE "{self.name}" SET search_path = {tenant};'
                f"CREATE SCHEMA IF NOT EXISTS {tenant}; GRANT USAGE ON SCHEMA {tenant} TO {role};"
            )
        await connection.execute(f"SET LOCAL search_path = {tenant}; {CUSTOMER_TABLES} {_TRIGGER}")
        await connection.execute(
            f"GRANT SELECT, INSERT, UPDATE ON publications TO {tenant}_{WRITER};"
            f"GRANT SELECT, INSERT ON trueup_effects TO {tenant}_{WRITER};"
            f"GRANT SELECT ON publications, trueup_effects TO {tenant}_{READER};"
        )

    async def tell(self) -> None:
        """Bring what the database has recorded into the ground truth, each effect once."""
        async with self._telling:
            if self._teller is None or self._teller.is_closed():
                self._teller = await asyncpg.connect(self._url, timeout=_SECONDS, command_timeout=_SECONDS)
            try:
                await self._tell(self._teller)
            except BaseException:
                await self.close()
                raise

    async def _tell(self, connection: Any) -> None:
        rows = await connection.fetch(
            "SELECT id, mark::text AS mark, object, action FROM sandbox.effects WHERE NOT is_told ORDER BY id"
        )
        known = self._store.documents(_TOLD)
        for row in rows:
            if row["mark"] not in known:  # a kill between here and the update below must not tell it twice
                effect = Effect(SYSTEM, "database.publication", row["object"], row["action"])
                self._store.apply(effect, [Change(_TOLD, row["mark"], {})])
        if rows:
            numbers = [row["id"] for row in rows]
            await connection.execute("UPDATE sandbox.effects SET is_told = true WHERE id = ANY($1)", numbers)

    async def close(self) -> None:
        """Let go of the server."""
        teller, self._teller = self._teller, None
        if teller is not None:
            teller.terminate()

    async def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Edit `tenant/business_key` as an outsider: delete the record, or set some of its fields."""
        tenant, _, business_key = object_.partition("/")
        if tenant not in TENANTS:
            raise Refusal(404, f"no tenant {tenant[:40]!r}")
        is_deletion = change == {"delete": True}
        if not is_deletion and (not change or not set(change) <= set(_FIELDS)):
            raise Refusal(400, f'{{"delete": true}}, or some of: {", ".join(_FIELDS)}')
        connection = await asyncpg.connect(self._url, timeout=_SECONDS)
        try:
            if is_deletion:
                statement = f"DELETE FROM {tenant}.publications WHERE business_key = $1 RETURNING business_key"
                values: list[Any] = []
            else:
                casts = {"record": "::jsonb"}
                names = [f"{name} = ${at}{casts.get(name, '')}" for at, name in enumerate(change, 2)]
                statement = (
                    f"UPDATE {tenant}.publications SET {', '.join(names)}, updated_at = now()"
                    " WHERE business_key = $1 RETURNING business_key"
                )
                values = [json.dumps(value) if name == "record" else value for name, value in change.items()]
            found = await connection.fetchval(statement, business_key, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as failure:
            raise Refusal(400, str(failure)) from None
        finally:
            await connection.close()
        if found is None:
            raise Refusal(404, f"no record under {object_[:100]!r}")
        return {"object": object_, "deleted": True} if is_deletion else {"object": object_, "changed": sorted(change)}
