"""One document of an adapter as it is stored: a row per operation that put one, kept after its removal as evidence."""

from typing import Any

from trueup_common.contracts.adapter import Document
from trueup_common.contracts.shape import ForwardContract, Instant


class DocumentRow(ForwardContract):
    """A row of the table. At most one stands per (tenant, system, key)."""

    operation_id: str
    tenant: str
    system: str
    key: str
    content: dict[str, Any]
    removed_by: str | None = None
    created_at: Instant
    removed_at: Instant | None = None

    @property
    def document(self) -> Document:
        """As adapters see it."""
        return Document(self.key, self.operation_id, self.content, self.removed_by)
