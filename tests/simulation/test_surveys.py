"""A reconciler that dies within a page of a survey: no page is lost, and none counts twice."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import run_seed

SEEDS = range(3)


@pytest.mark.parametrize(
    "point",
    [
        "reconciler-surveys.before_commit",
        "reconciler-surveys.committed",
        "reconciler-events.before_commit",
        "reconciler-events.committed",
        "reconciler-events.published",
    ],
)
def test_a_reconciler_that_dies_within_a_page_loses_and_doubles_nothing(point: str) -> None:
    """It dies before the question is kept, before it is sent, and while its answer is taken in; another one goes on.

    At rest every marked object that nobody manages is one exception with an owner, and nothing of ours is called
    unmanaged: the judge of every run looks at the world itself.

    Requirements: R10, R6, M1, M2
    """
    forged, died, pages = 0, 0, Counter[str]()
    for seed in SEEDS:
        result = run_seed(seed, "outsiders", sagas=False, crash_at=point)
        assert result.violation is None, (seed, result.violation)
        forged += result.injected["a marked object that nobody manages"]
        died += result.coverage["crashes"][point]
        pages += result.coverage["points"]
    assert forged and died, "it was about to find something, and died"
    assert pages["reconciler-surveys.committed"] > len(SEEDS), "page after page was asked for"
