"""Real time is the database's, whatever the machine's own clock says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from trueup_common.runtime.clock import agree, machine_now, real_now, set_skew


@pytest.fixture(autouse=True)
def right_clock() -> Iterator[None]:
    """A machine is right again after each test."""
    yield
    set_skew(0)
    agree(machine_now(), machine_now(), machine_now())


@pytest.mark.parametrize("seconds", [300.0, -300.0])
def test_a_machine_that_is_wrong_about_the_time_goes_by_the_database(seconds: float) -> None:
    """Whatever it signs, checks or observes from then on, it does in the time of all others.

    Requirements: G4
    """
    set_skew(seconds)
    assert abs((real_now() - machine_now()).total_seconds()) < 5, "nobody has compared the clocks yet"
    asked = machine_now()
    told = asked - timedelta(seconds=seconds)
    assert agree(asked, told, machine_now()) == pytest.approx(seconds, abs=5)
    assert abs((real_now() - told).total_seconds()) < 5
    assert real_now().tzinfo is UTC


def test_a_slow_answer_tells_nothing_and_a_small_difference_is_none() -> None:
    """A process that was paused while it asked would else believe half of the pause to be an error of its clock."""
    asked = datetime(2026, 3, 1, tzinfo=UTC)
    soon, late = asked + timedelta(seconds=0.2), asked + timedelta(seconds=50)
    assert agree(asked, asked + timedelta(seconds=0.9), soon) == 0
    assert agree(asked, asked, late) == 0
    assert agree(asked, asked + timedelta(seconds=4), soon) == pytest.approx(-3.9)
    assert agree(asked, asked, late) == pytest.approx(-3.9)
    assert agree(asked, asked, soon) == 0
