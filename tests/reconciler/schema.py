"""One service's schema in an empty database, for tests of its store alone."""

from __future__ import annotations

from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.servers import Database, run_apart

from trueup_common.runtime.rows import EXPECT

GROUND = (
    "CREATE SCHEMA trueup",
    "CREATE FUNCTION trueup.now() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT now()'",
    EXPECT,
)


def make_schema(database: Database, metadata: MetaData) -> None:
    """Create the tables of one service and business time."""

    async def work() -> None:
        engine = create_async_engine(database.admin_url.replace("postgresql://", "postgresql+asyncpg://", 1))
        async with engine.begin() as connection:
            for statement in (*GROUND, f"CREATE SCHEMA {metadata.schema}"):
                await connection.execute(text(statement))
            await connection.run_sync(metadata.create_all)
        await engine.dispose()

    run_apart(work)
