"""The table of all mutants, by the part of the product that they break."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.table import (
    adapters,
    console,
    delivery,
    documents,
    gateway,
    mending,
    numbers,
    operators,
    orchestrator,
    people,
    planner,
    reconciler,
    sagas,
)

MUTANTS: Final[tuple[Mutant, ...]] = (
    *adapters.MUTANTS,
    *orchestrator.MUTANTS,
    *sagas.MUTANTS,
    *delivery.MUTANTS,
    *gateway.MUTANTS,
    *people.MUTANTS,
    *console.MUTANTS,
    *operators.MUTANTS,
    *reconciler.MUTANTS,
    *planner.MUTANTS,
    *mending.MUTANTS,
    *documents.MUTANTS,
    *numbers.MUTANTS,
)
