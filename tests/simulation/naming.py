"""Ids that the gateway makes by itself, drawn from the run: else no seed would replay exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.simulation.engine import Engine
from trueup_gateway.api import acts, approvals, decisions, operators

MODULES: Final[tuple[Any, ...]] = (acts, approvals, decisions, operators)
"""Where the gateway's code that runs here makes ids."""


def next_id(engine: Engine, prefix: str) -> str:
    """The run's next id."""
    engine.ids_count += 1
    return f"{prefix}_{engine.seed % 2**32:08x}{engine.ids_count:024x}"


@contextmanager
def named(engine: Engine) -> Iterator[None]:
    """Let the gateway's code take its ids from this run while something runs."""
    kept = [(module, module.new_id) for module in MODULES]
    for module, _ in kept:
        module.new_id = lambda prefix: next_id(engine, prefix)
    try:
        yield
    finally:
        for module, new_id in kept:
            module.new_id = new_id
