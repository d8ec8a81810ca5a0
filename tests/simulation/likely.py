"""`python -m tests.simulation.likely`: the seeds to look at first, found anew after a change of the simulation.

It prints what belongs into `LIKELY` of fixed.py and into the two `BROKEN` tables. A stale seed fails no test: it only
makes the suite look for longer.
"""

from __future__ import annotations

import pytest

from tests.simulation import test_broken_commands, test_broken_workflows
from tests.simulation.broken import Break, first_bite
from tests.simulation.fixed import COMMANDS, HUNT_MAX, WORKFLOWS, Share, missing, run_shares
from tests.simulation.run import run_seeds


def taken_first(shares: tuple[Share, ...], *, sagas: bool) -> dict[str, int]:
    """The transitions that the fixed seeds do not take → the first seed of its theme that takes each."""
    summary = run_shares(shares, sagas=sagas)
    found: dict[str, int] = {}
    for name, theme in missing(summary, sagas=sagas).items():
        for seed in range(1000, 1000 + HUNT_MAX):
            if name not in missing(summary, sagas=sagas):
                break
            one = run_seeds(seed, 1, theme=theme, sagas=sagas)
            if name not in missing(one, sagas=sagas):
                found[name] = seed
                summary.add(one)
    return found


def bitten_first(broken: dict[str, tuple[Break, str | None, int]], within: int, *, sagas: bool) -> dict[str, int]:
    """The broken variants that their seed does not find any more → the first one that does."""
    found: dict[str, int] = {}
    for name, (breaking, theme, likely) in broken.items():
        with pytest.MonkeyPatch.context() as patch:
            breaking(patch)
            bite = first_bite(within, theme, likely, sagas=sagas)
        if bite is not None and bite[0] != likely:
            found[name] = bite[0]
    return found


def main() -> None:
    for shares, sagas in ((COMMANDS, False), (WORKFLOWS, True)):
        for name, seed in taken_first(shares, sagas=sagas).items():
            print(f'    "{name}": {seed},', flush=True)
    for table, sagas in ((test_broken_commands, False), (test_broken_workflows, True)):
        for name, seed in bitten_first(table.BROKEN, table.BITES_WITHIN, sagas=sagas).items():
            print(f"{table.__name__}: {name}: {seed}", flush=True)


if __name__ == "__main__":
    main()
