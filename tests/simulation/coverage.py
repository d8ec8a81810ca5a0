"""Which transitions the seeds took, table by table, and which nothing built so far can take, with the reason.

The tables are the services' own; while a seed runs they count their look-ups. Rows that have no table in a service
(the status of a case, the phase of a step, ...) have one here: a move outside it is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.moves import MOVES
from trueup_adapters.core import effect
from trueup_orchestrator.core import fold, operation, recovery
from trueup_reconciler.core import element, settle, settlement
from trueup_repair_planner.core import incident, lifecycle, repair

TABLES: Final[dict[str, tuple[Any, ...]]] = {
    "operation": (operation,),
    "ledger": (effect,),
    "settlement": (settlement, settle),
    "exception": (lifecycle,),
    "repair": (repair,),
    "incident": (incident,),
    "element": (element,),
    "recovery": (recovery, fold),
}
"""Transition tables of the services, and every module that looks into one."""


def cell(key: tuple[Any, Any]) -> str:
    """The name of a cell of a transition table."""
    return f"{key[0].value} × {key[1].value}"


def cells(name: str) -> list[str]:
    """All cells of a table: of the services' own ones each pair they know, of the others each move."""
    if name in MOVES:
        return [f"{before} → {after}" for before, row in MOVES[name].items() for after in row]
    return [cell(key) for key in TABLES[name][0].TABLE]


NAMES: Final = (*TABLES, *MOVES)


class Recording(dict[Any, Any]):
    """A table that counts which of its cells are used."""

    def __init__(self, table: Any, counts: Counter[str]) -> None:
        super().__init__(table)
        self._counts = counts
        self._names = {key: cell(key) for key in table}

    def get(self, key: Any, default: Any = None) -> Any:
        """A look-up that counts."""
        name = self._names.get(key)
        if name is None:
            return default
        self._counts[name] += 1
        return super().__getitem__(key)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self._counts[self._names[key]] += 1
        return found


@contextmanager
def recorded(counts: Mapping[str, Counter[str]]) -> Iterator[None]:
    """Let the services' tables count while something runs."""
    kept = [(module, module.TABLE) for modules in TABLES.values() for module in modules]
    for name, modules in TABLES.items():
        for module in modules:
            module.TABLE = Recording(module.TABLE, counts[name])
    try:
        yield
    finally:
        for module, table in kept:
            module.TABLE = table


@dataclass(frozen=True, slots=True)
class Covered:
    """One table: what there is, what was taken, what was not although something sends it, what nobody can take yet."""

    name: str
    total: int
    taken: int
    missing: tuple[str, ...]
    excused: tuple[str, ...]
    stale: tuple[str, ...]
    """Taken, although `UNREACHED` says that nothing can."""


def covered(name: str, taken: Mapping[str, int], family: Iterable[str] | None = None) -> Covered:
    """One table. `family` are the cells that these seeds have to take; None: all but the unreached ones."""
    everything, excused = cells(name), UNREACHED.get(name, {})
    wanted = set(everything) - set(excused) if family is None else set(family)
    return Covered(
        name=name,
        total=len(everything),
        taken=sum(bool(taken.get(item)) for item in everything),
        missing=tuple(item for item in everything if item in wanted and not taken.get(item)),
        excused=tuple(item for item in everything if item in excused),
        stale=tuple(item for item in everything if item in excused and taken.get(item)),
    )


_ONE_COMMIT: Final = "one commit carries an operation from RECEIVED to QUEUED: nothing comes in between"
_NOTHING_THERE: Final = "of what is known not to have happened a truthful person finds nothing"
_PERSON: Final = "a person's settlement stays in the journal: the ledger keeps what the adapter itself knows"
_INTENT: Final = "intent and SENT are one commit: only somebody else leaves a row at INTENT"
_FIND_FENCE: Final = "absence is proved under the fence of a find, which no task carries: defence in depth"
_STALE: Final = "an answer that no open look asked for is stale"
_OVER: Final = "what is DONE has no next time"

UNREACHED: Final[dict[str, dict[str, str]]] = {
    "operation": {
        **{f"{state} × cancel": _ONE_COMMIT for state in ("RECEIVED", "AUTHORIZED")},
        **{f"{state} × settle_exists": _NOTHING_THERE for state in ("FAILED", "CONFLICT", "DEAD_LETTERED")},
    },
    "ledger": {
        **{f"INTENT × {asked.value}": _INTENT for asked in effect.Asked},
        **{f"MANUAL × {asked.value}": _PERSON for asked in effect.Asked},
        "SENT × task for a newer fence": "a newer task follows an answer of the attempt before it: defence in depth",
        "ABSENT × the same task again": _FIND_FENCE,
        "TOMBSTONE × the same task again": _FIND_FENCE,
    },
    "settlement": {
        "OPEN × too_early": "only who waits for an answer can be asked too early",
        **{f"{state} × {heard}": _STALE for state in ("OPEN", "DONE") for heard in ("decided", "undecided")},
        **{f"DONE × {heard}": _OVER for heard in ("due", "too_early", "exhausted")},
    },
    "exception": {
        "closed × reopen": "no obligation is opened again: new trouble is a new one",
    },
    "repair": {"WAITING_APPROVAL × refuse": "an approval is asked about by the next turn, which begins first"},
    "incident": {
        "OPEN × probe_held": "only what is PROBING hears of its probe",
        "PROBING × over": "the end of a probe is heard first",
    },
}
"""What nothing built so far can take, and why. A cell that is taken after all has to leave this list."""
