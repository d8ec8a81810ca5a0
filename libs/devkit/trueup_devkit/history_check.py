"""Verifying a history that came over HTTP: the same pure check as inside the plane, on events as a client gets them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from trueup_common.contracts.history import verify
from trueup_common.contracts.journal import HistoryEvent


def find_break(events: list[dict[str, Any]], workflow_id: str, tenant: str) -> str | None:
    """None where the chain of one case holds from its first event; else what is wrong."""
    try:
        # Strict by field, but the chain's own identity is not repeated in every event of the answer.
        parsed = [
            HistoryEvent.model_validate({"workflow_id": workflow_id, "tenant": tenant, **event}) for event in events
        ]
    except ValidationError as error:
        return f"an event is not readable: {error.errors()[0]['loc']} {error.errors()[0]['msg']}"
    if not parsed:
        return "there are no events"
    return verify(parsed)
