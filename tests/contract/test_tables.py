"""What stores say of a table, and the tables that migrations make, are said in two places: they are the same."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import MetaData

from trueup_common.runtime.bootstrap import service_metadata
from trueup_common.runtime.rows import Rows

SERVICES = service_metadata()


def rows_of(package: str) -> Iterator[Rows[Any]]:
    """Every access to a table in the modules of a service."""
    seen: set[int] = set()
    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        if ".migrations" in module.name:
            continue
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Rows) and id(value) not in seen:
                seen.add(id(value))
                yield value


@pytest.mark.parametrize("schema", sorted(SERVICES))
def test_rows_fit_their_tables(schema: str) -> None:
    """A service at work does not load the tables, so nothing else would notice a name or a key that differs.

    Requirements: B5
    """
    metadata, package = SERVICES[schema]
    found = {rows.table: rows for rows in rows_of(package)}
    assert found
    for name, rows in found.items():
        table = metadata.tables[name]
        assert set(rows.model.model_fields) <= set(table.columns.keys()), name
        assert rows.key == tuple(column.name for column in table.primary_key.columns), name
        assert rows.version is None or rows.version in table.columns, name
    assert {name for name in metadata.tables if _follows_a_contract(metadata, name)} <= found.keys()


def _follows_a_contract(metadata: MetaData, name: str) -> bool:
    """Tables of the mail and those of a few plain columns are reached by statements of their own."""
    return len(metadata.tables[name].columns) > 5 and name.rpartition(".")[2] not in {"outbox", "quarantine"}
