"""The attempts of an operation: an entry only becomes surer, and what was sent is counted once."""

from __future__ import annotations

from itertools import permutations

from tests.orchestrator.cases import Story, receipt

from trueup_common.contracts.states import ErrorClass, ReceiptStatus
from trueup_orchestrator.core.attempts import barred, duplicated, of_fence, received


def test_what_is_known_of_an_attempt_only_becomes_surer() -> None:
    """Whatever else is said of an attempt, and in whatever order: CONFIRMED stays, and it was sent once.

    Requirements: E2
    """
    row = Story().row
    said = [
        receipt(row, ReceiptStatus.CONFIRMED),
        receipt(row, ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "timeout"),
        receipt(row, ReceiptStatus.STALE),
        receipt(row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"),
    ]
    for order in permutations(said):
        known = row
        for item in order:
            known = known.evolve(**received(known, item))
        entry = of_fence(known, row.fence)
        assert entry is not None
        assert (entry["state"], entry["external_resource_id"], known.attempt_count) == ("CONFIRMED", "42", 1)
        assert barred(known) and not duplicated(known)
