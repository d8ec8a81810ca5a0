"""Tables of the repair planner: exceptions, repairs, incidents and its mail."""

from typing import Final

from sqlalchemy import Index, MetaData, text

from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_repair_planner.columns import FLYING
from trueup_repair_planner.core.incident import IncidentRow
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.core.repair import RepairRow

METADATA: Final = MetaData(schema="repair_planner")

EXCEPTION: Final = contract_table(
    ExceptionRow,
    "exception",
    METADATA,
    key=("exception_id",),
    indexes=[
        Index("exception_due", "deadline_at", postgresql_where=text("status = 'open'")),
        Index("exception_incident", "incident_id", postgresql_where=text("incident_id IS NOT NULL")),
    ],
)
REPAIR: Final = contract_table(
    RepairRow,
    "repair",
    METADATA,
    key=("repair_id",),
    indexes=[
        Index("repair_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("repair_unverified", "verify_until", postgresql_where=text("status = 'VERIFYING'")),
        Index("repair_in_flight", "exception_id", unique=True, postgresql_where=text(FLYING)),
        Index("repair_exception", "exception_id"),
        Index("repair_subject", "subject_key", "created_at"),
        Index(
            "repair_operator_command",
            "operator_command_id",
            postgresql_where=text("operator_command_id IS NOT NULL"),
        ),
        Index("repair_incident", "incident_id", postgresql_where=text(f"incident_id IS NOT NULL AND {FLYING}")),
        Index("repair_held", "incident_id", postgresql_where=text("held")),
    ],
)
INCIDENT: Final = contract_table(
    IncidentRow,
    "incident",
    METADATA,
    key=("incident_id",),
    indexes=[
        Index("incident_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("incident_cause", "tenant", "cause_key", "number", unique=True),
    ],
)
mail_tables(METADATA)
