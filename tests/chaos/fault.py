"""One entry of the table of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.field import Field
from tests.chaos.traffic import MIX, Traffic


@dataclass
class Scene:
    """What a fault gets to work with: the plane, the commands, and the label of this run."""

    field: Field
    traffic: Traffic
    label: str


Injection = Callable[[Scene], None]
"""Does it and heals it; returns at the moment of the heal. Raises NotMet where it did not happen."""


@dataclass(frozen=True)
class Fault:
    """What is done to the plane while commands come in."""

    name: str
    about: str
    injections: Sequence[Injection]
    """One run each."""
    kinds: Sequence[str] = MIX
    after: int = 2
    """How many answers come before it. More commands come while it lasts."""
    lane: str | None = None
    """Faults of different lanes happen at the same time, each with commands of its own; without one it is alone."""
    plane: str = "one"
    """On which plane: `one` of each service, `two` of each, or `clocks` that differ."""
