"""Real time is the database's, whatever the machine's own clock says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from trueup_common.runtime import clock
from trueup_common.runtime.clock import DatabaseTime, agree, machine_now, real_now, set_skew
from trueup_common.runtime.ports import Moment


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


class Hands:
    """A monotonic clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.seconds)


def test_who_heard_the_time_a_moment_ago_counts_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never ahead of the database: what the answer's way back took is not counted, and whoever counts on from it
    counts from before the question.

    Requirements: G4, E2
    """
    hands, time = Hands(monkeypatch), DatabaseTime()
    assert time.now() is None
    real, ahead = datetime(2026, 3, 1, tzinfo=UTC), timedelta(days=2)
    asked, hands.seconds = hands.seconds, hands.seconds + 0.01
    time.hear(Moment(real + ahead, real, asked))
    hands.seconds += 1.5
    now = time.now()
    assert now is not None and now.presumed and not now.repeated
    assert now.real == real + timedelta(seconds=1.5) and now.business == now.real + ahead
    assert now.asked_at_seconds == pytest.approx(hands.seconds - 0.01)
    hands.seconds += clock.HEARD_SECONDS
    assert time.now() is None, "too long ago"


def test_a_slow_or_outdated_answer_is_not_counted_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still while it asked, and a question from before business time was moved.

    Requirements: G4
    """
    hands, time = Hands(monkeypatch), DatabaseTime()
    real = datetime(2026, 3, 1, tzinfo=UTC)
    asked, hands.seconds = hands.seconds, hands.seconds + clock.ANSWER_SECONDS * 2
    time.hear(Moment(real, real, asked))
    assert time.now() is None
    time.hear(Moment(real, real, hands.seconds))
    assert time.now() is not None
    asked, hands.seconds = hands.seconds, hands.seconds + 0.001
    time.forget()
    assert time.now() is None
    time.hear(Moment(real, real, asked))
    assert time.now() is None
    hands.seconds += 0.001
    time.hear(Moment(real, real, hands.seconds))
    assert time.now() is not None
