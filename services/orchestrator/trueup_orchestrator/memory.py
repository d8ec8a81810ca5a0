"""Cases in hand: what the last commit of this process left of an open case, so that the next event need not load it.

A transaction takes a case out and its commit puts it back, so what failed is never seen again. Whoever takes a case
asks the store for its version: every change of a case or of one of its operations raises it, so an equal version means
that nobody else moved it (ADR 0022).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_orchestrator.core.case import Case

CASES_MAX: Final = 1000
OPERATIONS_MAX: Final = 40
BYTES_MAX: Final = 16_384
"""Of payloads and input together: a larger case is loaded each time."""


class Cases:
    """Open cases as this process committed them last, the most recent ones."""

    def __init__(self, cases_max: int = CASES_MAX) -> None:
        self._cases_max = cases_max
        self._cases: dict[str, Case] = {}

    def __len__(self) -> int:
        return len(self._cases)

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._cases

    def look(self, workflow_id: str) -> Case | None:
        """A case that stays in hand."""
        return self._cases.get(workflow_id)

    def take(self, workflow_ids: Iterable[str]) -> dict[str, Case]:
        """Those of these cases that are in hand; they are not any more."""
        return {key: case for key in workflow_ids if (case := self._cases.pop(key, None)) is not None}

    def put(self, cases: Sequence[Case]) -> None:
        """Committed cases. Ends, large ones and those that rest on operations of others are not kept."""
        for case in cases:
            key = case.instance.workflow_id
            self._cases.pop(key, None)
            if _is_worth_it(case):
                self._cases[key] = case
        while len(self._cases) > self._cases_max:
            del self._cases[next(iter(self._cases))]


def _is_worth_it(case: Case) -> bool:
    instance = case.instance
    if instance.status in INSTANCE_TERMINAL or len(case.operations) > OPERATIONS_MAX:
        return False
    if any(step.get("attached") for step in instance.steps):
        return False
    held: list[Any] = [instance.input, instance.held, *(row.payload for row in case.operations)]
    return len(json_bytes(held)) <= BYTES_MAX
