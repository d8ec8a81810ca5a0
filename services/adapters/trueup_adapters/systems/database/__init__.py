"""A customer's PostgreSQL: publication records. Everything about a command type stands in `commands.py`."""

from typing import Final

from trueup_adapters.systems.database.commands import DatabaseAdapter

ADAPTER: Final = DatabaseAdapter()
