"""Moves of rows that have no transition table in a service, written down here: what is not here must never happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.verdict import demand

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

_ENDS: Final = ("CLOSED", "COMPENSATED", "CANCELLED", "SAFE_STOPPED")
_BY_PERSON: Final = ("RUNNING", "WAITING", "VERIFYING", "CLOSED", "RESOLVED")
_GOES_ON: Final = ("CANCEL_PENDING", "COMPENSATING", "HUMAN_TAKEOVER", *_ENDS)

MOVES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "status of a case": {
        "none": ("RUNNING", "WAITING", "HUMAN_TAKEOVER", *_ENDS),
        "RUNNING": ("WAITING", "PAUSED", "VERIFYING", *_GOES_ON),
        "WAITING": ("RUNNING", "PAUSED", "VERIFYING", *_GOES_ON),
        "PAUSED": ("RUNNING", "WAITING", "VERIFYING", *_GOES_ON),
        "VERIFYING": ("PAUSED", "CANCEL_PENDING", "COMPENSATING", "HUMAN_TAKEOVER", "CLOSED", "CANCELLED", "RESOLVED"),
        "CANCEL_PENDING": ("COMPENSATING", "HUMAN_TAKEOVER", "COMPENSATED", "CANCELLED", "SAFE_STOPPED"),
        "COMPENSATING": ("HUMAN_TAKEOVER", "COMPENSATED", "CANCELLED", "RESOLVED"),
        "HUMAN_TAKEOVER": (
            "CANCEL_PENDING",
            "COMPENSATING",
            "COMPENSATED",
            "CANCELLED",
            "SAFE_STOPPED",
            *_BY_PERSON,
        ),
    },
    "phase of a step": {
        "PENDING": ("RUNNING", "WAITING", "DONE", "FAILED", "SKIPPED", "WITHDRAWN"),
        "RUNNING": ("PENDING", "DONE", "FAILED", "WITHDRAWN"),
        "WAITING": ("PENDING", "DONE", "FAILED", "WITHDRAWN"),
        "DONE": ("PENDING", "WAITING"),
        "FAILED": ("PENDING", "WAITING", "DONE", "RUNNING", "WITHDRAWN"),  # tried again and the case turned: one commit
        "WITHDRAWN": ("PENDING", "RUNNING", "WAITING", "FAILED"),  # begun anew, and a conflict at once: one commit
    },
    "direction of a case": {
        "forward": ("backward", "person", "stop"),
        "person": ("backward", "forward"),
        "backward": ("person",),
    },
    "compensation": {
        "NONE": ("COMPENSATION_PENDING",),
        "COMPENSATION_PENDING": ("COMPENSATING", "COMPENSATED", "COMPENSATION_FAILED", "COMPENSATION_UNKNOWN"),
        "COMPENSATING": ("COMPENSATION_PENDING", "COMPENSATED", "COMPENSATION_FAILED", "COMPENSATION_UNKNOWN"),
        "COMPENSATION_FAILED": ("COMPENSATION_PENDING", "COMPENSATION_UNKNOWN", "COMPENSATED"),
        "COMPENSATION_UNKNOWN": ("COMPENSATION_PENDING", "COMPENSATING", "COMPENSATED", "COMPENSATION_FAILED"),
    },
    "status in the ledger": {
        "none": ("SENT", "NOT_SENT", "TOMBSTONE"),
        "SENT": ("CONFIRMED", "REJECTED", "NOT_SENT", "UNKNOWN", "ABSENT"),
        "UNKNOWN": ("CONFIRMED", "REJECTED", "NOT_SENT", "ABSENT"),
        "REJECTED": ("SENT", "NOT_SENT", "UNKNOWN", "CONFIRMED"),
        "NOT_SENT": ("SENT", "UNKNOWN", "CONFIRMED"),
        "ABSENT": ("SENT", "NOT_SENT", "UNKNOWN", "CONFIRMED"),
        "TOMBSTONE": ("SENT", "NOT_SENT"),
    },
    "approval": {
        "none": ("pending", "superseded", "expired"),
        "pending": ("approved", "rejected", "expired", "superseded"),
        "approved": ("superseded",),
    },
    "event from outside": {
        "none": ("pending",),
        "pending": ("held", "accepted", "late"),
        "held": ("accepted", "late"),
    },
}
"""Table → before → all that may follow within one commit. `none` is a row that was not there."""


def moved(plane: Plane, table: str, before: Any, after: Any) -> None:
    """Count one move; raises Violation for one that the table does not have."""
    if before == after:
        return
    demand(f"{after}" in MOVES[table].get(f"{before}", ()), f"{table}: {before} became {after}")
    plane.coverage[table][f"{before} → {after}"] += 1
