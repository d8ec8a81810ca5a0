"""What an adapter claims, and what of it stands on its own evidence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trueup_adapters.core.receipt import (
    RESULT_BYTES_MAX,
    VALUE_BYTES_MAX,
    storable,
    storable_finding,
    storable_observation,
)
from trueup_common.contracts.adapter import confirmed
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import FindVerdict, ProbeVerdict

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("reason", [None, "not_found"])
def test_a_probe_without_access_proves_no_absence(reason: str | None) -> None:
    """A claimed absence without proof of access is UNKNOWN and says why; with it, it is believed.

    Requirements: E4, R11
    """
    claimed = Observation(
        element="site.status", verdict=ProbeVerdict.MISSING, observed_at=NOW, source="adapter.site", reason=reason
    )
    doubted = storable_observation(claimed)
    assert (doubted.verdict, doubted.reason) == (ProbeVerdict.UNKNOWN, reason or "no proof of access")
    assert storable_observation(claimed.evolve(proof_of_access=True)).verdict is ProbeVerdict.MISSING


def test_a_look_without_access_proves_no_absence() -> None:
    """The same for a look; and several candidates are ambiguous whatever was claimed of them.

    Requirements: E3
    """
    missing = Finding(verdict=FindVerdict.MISSING)
    assert storable_finding(missing).verdict is FindVerdict.UNKNOWN
    assert storable_finding(missing.evolve(proof_of_access=True)).verdict is FindVerdict.MISSING
    for claimed in (FindVerdict.CONFIRMED, FindVerdict.MISSING):
        several = Finding(verdict=claimed, proof_of_access=True, candidates=2)
        assert storable_finding(several).verdict is FindVerdict.AMBIGUOUS


def test_a_value_that_no_message_holds_is_a_doubt() -> None:
    """Nobody compares half a value: it is left out whole, and the observation says that it does not know.

    Requirements: E4, T3
    """
    seen = Observation(
        element="site.content",
        verdict=ProbeVerdict.CONFIRMED,
        observed_at=NOW,
        source="adapter.site",
        proof_of_access=True,
        value={"text": "x" * VALUE_BYTES_MAX},
    )
    kept = storable_observation(seen)
    assert (kept.verdict, kept.value, kept.reason) == (ProbeVerdict.UNKNOWN, None, "value_too_large")
    assert storable_observation(seen.evolve(value={"text": "x"})).value == {"text": "x"}


def test_a_result_that_no_message_holds_keeps_what_fits() -> None:
    """The largest members go first, whole and named: what is undone with a receipt is undone right or by a person.

    Requirements: S4, T3
    """
    large = {"previous": "x" * RESULT_BYTES_MAX, "also": "y" * RESULT_BYTES_MAX, "post_id": 7}
    for kept in (
        storable(confirmed(large)).result,
        storable_finding(Finding(verdict=FindVerdict.CONFIRMED, result=large)).result,
    ):
        assert kept == {"post_id": 7, "left_out": ["also", "previous"]}
    assert storable(confirmed({"previous": "x", "post_id": 7})).result == {"previous": "x", "post_id": 7}
