"""What only this service keeps: semantic locks and the documents that its cases run by."""

from typing import Any

from trueup_common.contracts.shape import ForwardContract, Instant


class LockRow(ForwardContract):
    """One case's place at one semantic lock: it holds it, or it queues for it (oldest first)."""

    tenant: str
    key: str
    workflow_id: str
    held: bool
    since: Instant


class DocumentRow(ForwardContract):
    """A workflow document as cases were started with it; immutable."""

    sha256: str
    name: str
    version: int
    document: dict[str, Any]
    created_at: Instant
