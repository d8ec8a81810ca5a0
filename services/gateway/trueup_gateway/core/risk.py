"""Risk: a number from 0 to 100 that follows from stored factors alone, so that anyone can compute it again.

The factors are the effect class, the blast radius, the freshness of the evidence, open incidents and the agent's recent
history. Weights are chosen so that compensable and retryable commands of small radius never pass medium by
circumstances alone, and a pivot never falls below high.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EFFECT_CLASS_RANK, EffectClass, RiskLevel

CLASS_POINTS: Final = {
    EffectClass.READ: 0,
    EffectClass.COMPENSABLE: 10,
    EffectClass.RETRYABLE: 15,
    EffectClass.PIVOT: 60,
    EffectClass.IRREVERSIBLE: 70,
}
LEVEL_FLOORS: Final = ((80, RiskLevel.CRITICAL), (60, RiskLevel.HIGH), (30, RiskLevel.MEDIUM), (0, RiskLevel.LOW))
LEVEL_POINTS: Final = {level: points for points, level in LEVEL_FLOORS}
FRESH_SECONDS: Final = 3600
OLD_SECONDS: Final = 86400
BLAST_DIVISOR: Final = 4
INCIDENT_POINTS: Final = 3
INCIDENT_POINTS_MAX: Final = 12
HISTORY_POINTS_MAX: Final = 10
HISTORY_COUNT_MIN: Final = 5
"""Fewer recent commands than this say nothing about an agent."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the gateway knows at the moment of the decision. Ages are seconds; None means that no age was given."""

    evidence_ages: tuple[float | None, ...] = ()
    open_incidents: int = 0
    recent_commands: int = 0
    recent_failures: int = 0


@dataclass(frozen=True, slots=True)
class Risk:
    """A score, its level, and the factors that it is the sum of."""

    score: int
    level: RiskLevel
    factors: tuple[dict[str, Any], ...]


def level_of(score: int) -> RiskLevel:
    """The level of a score."""
    return next(level for floor, level in LEVEL_FLOORS if score >= floor)


def effect_class_max(declarations: Sequence[CommandDeclaration]) -> EffectClass:
    """The gravest effect class among the declarations; without any, nothing is done but reading."""
    classes = (declaration.effect_class for declaration in declarations)
    return max(classes, key=EFFECT_CLASS_RANK.__getitem__, default=EffectClass.READ)


def assess(declarations: Sequence[CommandDeclaration], circumstances: Circumstances) -> Risk:
    """The risk of letting these command types run under these circumstances."""
    effect_class = effect_class_max(declarations)
    blast = max((declaration.blast_radius for declaration in declarations), default=0)
    declared = max(
        (declaration.risk for declaration in declarations), key=LEVEL_POINTS.__getitem__, default=RiskLevel.LOW
    )
    factors: list[dict[str, Any]] = [
        {"factor": "effect_class", "value": effect_class.value, "points": CLASS_POINTS[effect_class]},
        {"factor": "blast_radius", "value": blast, "points": blast // BLAST_DIVISOR},
    ]
    if effect_class is not EffectClass.READ:
        factors.append(_evidence(circumstances.evidence_ages))
        factors.append(_incidents(circumstances.open_incidents))
        factors.append(_history(circumstances.recent_commands, circumstances.recent_failures))
    score = min(100, sum(factor["points"] for factor in factors))
    floor = LEVEL_POINTS[declared]
    if score < floor:
        factors.append({"factor": "declared_risk", "value": declared.value, "points": floor - score})
        score = floor
    return Risk(score=score, level=level_of(score), factors=tuple(factors))


def _evidence(ages: Sequence[float | None]) -> dict[str, Any]:
    known = [age for age in ages if age is not None]
    if not ages:
        points, value = 10, "none"
    elif not known:
        points, value = 5, "age unknown"
    elif max(known) <= FRESH_SECONDS:
        points, value = 0, "fresh"
    elif max(known) <= OLD_SECONDS:
        points, value = 5, "hours old"
    else:
        points, value = 10, "old"
    return {"factor": "evidence_freshness", "value": value, "points": points}


def _incidents(count: int) -> dict[str, Any]:
    return {
        "factor": "open_incidents",
        "value": count,
        "points": min(INCIDENT_POINTS_MAX, INCIDENT_POINTS * count),
    }


def _history(commands: int, failures: int) -> dict[str, Any]:
    points = HISTORY_POINTS_MAX * failures // commands if commands >= HISTORY_COUNT_MIN else 0
    return {"factor": "recent_history", "value": {"commands": commands, "failures": failures}, "points": points}
