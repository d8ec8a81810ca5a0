"""Writes migrations: brings a throw-away database to the newest revisions and records how the tables differ from them.

`python -m trueup_devkit.revise "what changed"` adds a revision to each service whose tables changed; without a message
it only tells whether there are differences and exits 1 where there are.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import asyncpg
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from trueup_common.runtime.bootstrap import alembic_config, service_metadata
from trueup_devkit.postgres import PostgresCluster


def versions_of(package: str) -> Path:
    """Where a service keeps its revisions."""
    return Path(str(import_module(package).__file__)).parent / "migrations"


async def differences(admin_url: str) -> dict[str, list[Any]]:
    """Schema → how the tables in code differ from the newest revisions; the schemas are created on the way."""
    found: dict[str, list[Any]] = {}

    def compare(connection: Any, schema: str, metadata: MetaData, package: str) -> None:
        config = alembic_config(schema, versions_of(package))
        config.attributes |= {"connection": connection, "metadata": metadata}
        if any(versions_of(package).glob("*.py")):
            command.upgrade(config, "head")
        context = MigrationContext.configure(connection, opts=_options(schema))
        found[schema] = compare_metadata(context, metadata)

    await _each(admin_url, compare)
    return found


async def write(admin_url: str, message: str) -> list[str]:
    """Add a revision to every schema that differs; answers their names."""
    changed = [schema for schema, items in (await differences(admin_url)).items() if items]

    def revise(connection: Any, schema: str, metadata: MetaData, package: str) -> None:
        if schema not in changed:
            return
        folder = versions_of(package)
        folder.mkdir(exist_ok=True)
        number = len(list(folder.glob("*.py"))) + 1
        config = alembic_config(schema, folder)
        config.attributes |= {"connection": connection, "metadata": metadata}
        identity = f"{number:04d}"
        command.revision(config, message, autogenerate=True, rev_id=f"{schema}_{identity}", version_path=str(folder))

    await _each(admin_url, revise)
    return changed


def _options(schema: str) -> dict[str, Any]:
    def named(name: str | None, kind: str, _: Any) -> bool:
        return kind != "schema" or name == schema

    return {
        "include_schemas": True,
        "include_name": named,
        "compare_type": True,
        "version_table_schema": schema,
    }


async def _each(admin_url: str, work: Callable[[Any, str, MetaData, str], None]) -> None:
    admin = await asyncpg.connect(admin_url)
    engine = create_async_engine(admin_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        for schema, (metadata, package) in service_metadata().items():
            await admin.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            async with engine.begin() as connection:
                await connection.run_sync(work, schema, metadata, package)
    finally:
        await engine.dispose()
        await admin.close()


def main() -> int:
    """Write revisions, or tell the differences."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = PostgresCluster(Path(folder) / "postgres")
        cluster.start()
        try:
            if len(sys.argv) > 1:
                changed = asyncio.run(write(cluster.admin_url, sys.argv[1]))
                print(f"revised: {', '.join(changed) or 'nothing'}")
                return 0
            found = {schema: items for schema, items in asyncio.run(differences(cluster.admin_url)).items() if items}
            for schema, items in found.items():
                print(f"{schema}: {items}")
            return 1 if found else 0
        finally:
            cluster.stop()


if __name__ == "__main__":
    raise SystemExit(main())
