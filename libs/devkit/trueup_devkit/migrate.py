"""Bring database and bus to the shape that this version needs: the only code that runs with admin rights.

It may run at any time and any number of times; a second run changes nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trueup_common.contracts.topology import SERVICES
from trueup_common.runtime.settings import Settings
from trueup_devkit.secret_files import installed_systems, make_secrets
from trueup_devkit.state_folder import StateFolder, write_private
from trueup_devkit.told import ToldError


async def create_database(url: str) -> None:
    """Create the database that the URL names, where the server does not have it yet."""
    import asyncpg

    server, _, name = url.partition("?")[0].rpartition("/")
    try:
        await (await asyncpg.connect(url)).close()
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(f"{server}/postgres")
        try:
            await connection.execute(f'CREATE DATABASE "{name}"')
        except asyncpg.DuplicateDatabaseError:
            pass  # two migrations at once: the other was first
        finally:
            await connection.close()


def write_sandbox_connections(sandbox_url: str, path: Path) -> None:
    """Write the connections of the sandbox world, as an operator would write his own."""
    from trueup_devkit.sandbox.connections import sandbox_connections

    with urllib.request.urlopen(f"{sandbox_url}/", timeout=10) as answer:
        systems: dict[str, str] = json.load(answer)["systems"]
    reached = {name: at_host_of(sandbox_url, url) for name, url in systems.items()}
    write_private(path, json.dumps(sandbox_connections(reached), indent=2))


def at_host_of(asked: str, told: str) -> str:
    """The told address at the host that was asked: a world in a container tells loopback addresses of its own."""
    host = urlsplit(asked).netloc.rpartition("@")[2]
    port = urlsplit(asked).port
    host = host.removesuffix(f":{port}") if port else host
    return urlsplit(told)._replace(netloc=f"{host}:{urlsplit(told).port}").geturl()


async def migrate(
    database_url: str, nats_url: str, role_passwords: Mapping[str, str], connections: Path | None
) -> None:
    """Roles, schemas and migrations; streams, consumers and buckets; the catalog."""
    bootstrap: Any = importlib.import_module("trueup_common.runtime.bootstrap")
    await create_database(database_url)
    await bootstrap.bootstrap_database(database_url, role_passwords)
    adapters = bootstrap.installed_adapters()
    await bootstrap.bootstrap_bus(nats_url, adapters)
    declarations = [declaration for adapter in adapters.values() for declaration in adapter.declarations]
    documents = bootstrap.installed_documents(declarations)
    pairs = connected_pairs(connections) if connections else []
    await bootstrap.load_catalog(nats_url, declarations, pairs, documents)


def connected_pairs(path: Path) -> list[tuple[str, str]]:
    """The (tenant, system) pairs of a connections file: all that others than adapters may know of it."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return [(str(entry["tenant"]), str(entry["system"])) for entry in content.get("connections") or []]
    except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        raise ToldError(f"connections file {path} is not usable: {type(error).__name__}: {error}") from error


def given_passwords(settings: Settings) -> dict[str, str]:
    """The passwords of the database roles: those that were given, else those of the state folder. Raises ToldError."""
    given = settings.role_passwords.get_secret_value()
    if not given:
        secrets = make_secrets(StateFolder(settings.state_dir).secrets, installed_systems())
        return secrets.read(secrets.database)
    try:
        passwords = json.loads(given)
    except ValueError:
        passwords = None
    if not isinstance(passwords, dict) or set(passwords) != set(SERVICES):
        raise ToldError(f"TRUEUP_ROLE_PASSWORDS needs a JSON object with a password for each of {', '.join(SERVICES)}")
    return {str(service): str(password) for service, password in passwords.items()}


def main() -> int:
    """`python -m trueup_devkit.migrate`, told by TRUEUP_* what to migrate."""
    settings = Settings()
    connections = os.environ.get("TRUEUP_CONNECTIONS")
    sandbox_url = os.environ.get("TRUEUP_SANDBOX_URL")
    if sandbox_url and connections:
        write_sandbox_connections(sandbox_url, Path(connections))
    asyncio.run(
        migrate(
            settings.database_url.get_secret_value(),
            settings.nats_url.get_secret_value(),
            given_passwords(settings),
            Path(connections) if connections else None,
        )
    )
    print("migrated")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToldError as error:
        sys.exit(str(error))
