"""Tables of the adapters: the effect ledger, the attempts as evidence, adapters' own documents, and the mail."""

from typing import Final

from sqlalchemy import Index, MetaData, text

from trueup_adapters.columns import EFFECT_FIXED
from trueup_adapters.core.document import DocumentRow
from trueup_adapters.core.effect import AttemptRow, EffectRow
from trueup_common.runtime.tables import contract_table, mail_tables

METADATA: Final = MetaData(schema="adapters")

EFFECT: Final = contract_table(
    EffectRow,
    "effect",
    METADATA,
    key=("command_id",),
    indexes=[
        Index("effect_open", "look_at", postgresql_where=text("status = 'SENT'")),
        Index(
            "effect_object",
            "tenant",
            "system",
            "object_key",
            postgresql_where=text("object_key IS NOT NULL AND status IN ('SENT', 'UNKNOWN')"),
        ),
    ],
    fixed=EFFECT_FIXED,
)
ATTEMPT: Final = contract_table(
    AttemptRow,
    "attempt",
    METADATA,
    key=("attempt_id", "status"),
)
DOCUMENT: Final = contract_table(
    DocumentRow,
    "document",
    METADATA,
    key=("operation_id",),
    indexes=[
        Index("document_standing", "tenant", "system", "key", unique=True, postgresql_where=text("removed_by IS NULL")),
        Index("document_removed", "removed_by", postgresql_where=text("removed_by IS NOT NULL")),
    ],
)
mail_tables(METADATA)
