"""Fixtures of the adapters' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.reconciler.schema import make_schema
from tests.servers import Database, PostgresServer

from trueup_adapters.tables import METADATA


@pytest.fixture(scope="module")
def documents_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database of its own with the adapters' tables, for adapters that keep documents."""
    database = postgres_server.fresh_database()
    make_schema(database, METADATA)
    yield database
    postgres_server.drop(database)
