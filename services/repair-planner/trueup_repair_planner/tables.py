"""Tables of the repair planner: exceptions and its mail."""

from typing import Final

from sqlalchemy import Index, MetaData, text

from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_repair_planner.core.lifecycle import ExceptionRow

METADATA: Final = MetaData(schema="repair_planner")

EXCEPTION: Final = contract_table(
    ExceptionRow,
    "exception",
    METADATA,
    key=("exception_id",),
    indexes=[Index("exception_due", "deadline_at", postgresql_where=text("status = 'open'"))],
)
mail_tables(METADATA)
