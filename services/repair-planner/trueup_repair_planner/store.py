"""What the planner keeps: exceptions by id, exceptions whose deadline passed, and one compare-and-set save."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Transaction, VersionConflict
from trueup_common.runtime.rows import Rows
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.tables import EXCEPTION


class PlannerTransaction(Transaction, Protocol):
    """One transaction as the handlers see it."""

    async def exceptions(self, exception_ids: Sequence[str]) -> list[ExceptionRow]:
        """Exceptions by id."""
        ...

    async def overdue_exceptions(self, now: datetime, limit: int) -> list[ExceptionRow]:
        """Open exceptions whose deadline passed, locked; those that another replica holds are left out."""
        ...

    async def save_exceptions(self, new: Sequence[ExceptionRow], moved: Sequence[ExceptionRow]) -> None:
        """Insert and update by compare-and-set. Raises VersionConflict where another replica was first."""
        ...


_EXCEPTIONS: Final = Rows(EXCEPTION, ExceptionRow, key=("exception_id",), version="version")


ANY_OVERDUE: Final = (
    "SELECT EXISTS (SELECT 1 FROM exception WHERE status = 'open' AND deadline_at <= (SELECT trueup.now()))"
)
OPENED: Final = Tally("trueup_exceptions_opened", "Exceptions opened by kind", ("kind",))


class SqlPlannerTransaction(SqlTransaction):
    """The same over PostgreSQL."""

    service = "repair-planner"

    async def exceptions(self, exception_ids: Sequence[str]) -> list[ExceptionRow]:
        """Exceptions by id."""
        return await _EXCEPTIONS.get(self.connection, "exception_id", exception_ids)

    async def overdue_exceptions(self, now: datetime, limit: int) -> list[ExceptionRow]:
        """Open exceptions whose deadline passed, locked for this transaction."""
        tail = (
            "WHERE status = 'open' AND deadline_at <= $1 ORDER BY deadline_at, exception_id LIMIT $2 "
            "FOR UPDATE SKIP LOCKED"
        )
        return await _EXCEPTIONS.select(self.connection, tail, now, limit)

    async def save_exceptions(self, new: Sequence[ExceptionRow], moved: Sequence[ExceptionRow]) -> None:
        """Insert and update by compare-and-set."""
        if new:
            inserted = await _EXCEPTIONS.insert_new(self.connection, new)
            if len(inserted) != len(new):
                raise VersionConflict("exception: another replica inserted first")
            for row in new:
                self.count(OPENED, row.kind)
        await _EXCEPTIONS.update(self.connection, moved)


def sql_store(database: Database) -> SqlStore[SqlPlannerTransaction]:
    """The store over one database."""
    return SqlStore(database, SqlPlannerTransaction)
