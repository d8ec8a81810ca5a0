"""The table of faults: what is done to a plane, in the order in which it happens."""

from __future__ import annotations

from typing import Final

from tests.chaos import bus, clients, database, processes, twins
from tests.chaos.fault import Fault

FAULTS: Final[tuple[Fault, ...]] = (
    *processes.KILLS,
    *processes.PAUSES,
    *processes.ANY_MOMENT,
    *clients.FAULTS,
    *database.FAULTS,
    *bus.FAULTS,
    *twins.TWO,
    *twins.CLOCKS,
)
