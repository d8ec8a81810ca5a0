"""Tables of the reconciler: settlements, elements, paces, canaries, surveys, obligations that it opened, its mail."""

from typing import Final

from sqlalchemy import Index, MetaData, text

from trueup_common.contracts.journal import ObligationRow
from trueup_common.runtime.tables import contract_table, mail_tables
from trueup_reconciler.core.canary import CanaryRow
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.core.settlement import SettlementRow
from trueup_reconciler.core.survey import SurveyRow
from trueup_reconciler.core.visit import PaceRow

METADATA: Final = MetaData(schema="reconciler")

SETTLEMENT: Final = contract_table(
    SettlementRow,
    "settlement",
    METADATA,
    key=("command_id",),
    indexes=[Index("settlement_due", "next_at", postgresql_where=text("next_at IS NOT NULL"))],
)
ELEMENT: Final = contract_table(
    ElementRow,
    "element",
    METADATA,
    key=("object_key", "element"),
    indexes=[
        Index("element_due", "next_visit_at", postgresql_where=text("next_visit_at IS NOT NULL")),
        Index("element_command", "command_id"),
        Index("element_surveyed", "tenant", "system", "surveyed_at", postgresql_where=text("surveyed_at IS NOT NULL")),
        Index(
            "element_of_object", "tenant", "object_type", "object_id", postgresql_where=text("object_id IS NOT NULL")
        ),
    ],
)
PACE: Final = contract_table(PaceRow, "pace", METADATA, key=("pace_key",))
CANARY: Final = contract_table(CanaryRow, "canary", METADATA, key=("canary_key",))
SURVEY: Final = contract_table(SurveyRow, "survey", METADATA, key=("survey_key",))
OBLIGATION: Final = contract_table(
    ObligationRow,
    "obligation",
    METADATA,
    key=("obligation_id",),
    indexes=[Index("obligation_open", "deadline_at", postgresql_where=text("status = 'open'"))],
)
mail_tables(METADATA)
