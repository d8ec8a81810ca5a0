"""Risk follows from stored factors alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.edge import DRAFT, POST, PUBLISH, UPDATE

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EffectClass, RiskLevel
from trueup_gateway.core.risk import Circumstances, assess, level_of

CIRCUMSTANCES = st.builds(
    Circumstances,
    evidence_ages=st.lists(st.none() | st.floats(0, 1e7), max_size=4).map(tuple),
    open_incidents=st.integers(0, 50),
    recent_commands=st.integers(0, 100),
    recent_failures=st.integers(0, 100),
).map(lambda c: c if c.recent_failures <= c.recent_commands else Circumstances(c.evidence_ages, c.open_incidents))


def of_class(effect_class: EffectClass, blast_radius: int, risk: RiskLevel = RiskLevel.LOW) -> CommandDeclaration:
    changes = {
        "effect_class": effect_class,
        "blast_radius": blast_radius,
        "risk": risk,
        "compensation": DRAFT.compensation,
    }
    return CommandDeclaration.model_validate({**DRAFT.model_dump(), **changes})


@given(CIRCUMSTANCES)
def test_the_same_factors_give_the_same_score(circumstances: Circumstances) -> None:
    """No clock, no chance; the factors add up to the score, and stand in the decision.

    Requirements: G2
    """
    for declarations in ((DRAFT,), (POST, DRAFT), (PUBLISH,)):
        first, second = assess(declarations, circumstances), assess(declarations, circumstances)
        assert first == second
        assert first.score == min(100, sum(factor["points"] for factor in first.factors))
        assert 0 <= first.score <= 100 and first.level is level_of(first.score)
        assert assess(tuple(reversed(declarations)), circumstances).score == first.score


@given(
    CIRCUMSTANCES,
    st.integers(0, 40),
    st.sampled_from([EffectClass.READ, EffectClass.COMPENSABLE, EffectClass.RETRYABLE]),
)
def test_reversible_work_of_small_radius_is_never_high(
    circumstances: Circumstances, blast_radius: int, effect_class: EffectClass
) -> None:
    """Circumstances alone do not stop what can be undone."""
    assert assess((of_class(effect_class, blast_radius),), circumstances).level in (RiskLevel.LOW, RiskLevel.MEDIUM)


@given(CIRCUMSTANCES, st.integers(0, 100), st.sampled_from([EffectClass.PIVOT, EffectClass.IRREVERSIBLE]))
def test_what_cannot_be_undone_is_never_below_high(
    circumstances: Circumstances, blast_radius: int, effect_class: EffectClass
) -> None:
    """A pivot is at least high."""
    assert assess((of_class(effect_class, blast_radius),), circumstances).level in (RiskLevel.HIGH, RiskLevel.CRITICAL)


@pytest.mark.parametrize("level", list(RiskLevel))
def test_the_declared_risk_is_a_floor(level: RiskLevel) -> None:
    """No adapter's type is judged below what its declaration says."""
    calm = Circumstances(evidence_ages=(0.0,))
    order = list(RiskLevel)
    found = assess((of_class(EffectClass.READ, 0, level),), calm).level
    assert order.index(found) >= order.index(level)


def test_every_factor_moves_the_score() -> None:
    """Older evidence, open incidents and failures raise it; so do class and radius.

    Requirements: G2
    """
    calm = assess((DRAFT,), Circumstances(evidence_ages=(60.0,), recent_commands=10))
    for worse in (
        Circumstances(evidence_ages=(), recent_commands=10),
        Circumstances(evidence_ages=(None,), recent_commands=10),
        Circumstances(evidence_ages=(60.0, 7200.0), recent_commands=10),
        Circumstances(evidence_ages=(1e6,), recent_commands=10),
        Circumstances(evidence_ages=(60.0,), recent_commands=10, open_incidents=1),
        Circumstances(evidence_ages=(60.0,), recent_commands=10, recent_failures=3),
    ):
        assert assess((DRAFT,), worse).score > calm.score
    assert assess((UPDATE,), Circumstances(evidence_ages=(60.0,), recent_commands=10)).score > calm.score
    assert assess((of_class(EffectClass.COMPENSABLE, 50),), Circumstances(evidence_ages=(60.0,))).score > calm.score
