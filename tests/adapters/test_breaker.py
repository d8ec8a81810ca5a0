"""The circuit breaker: opens on a row of failures of the target itself, lets one try, counts only what proves it."""

from __future__ import annotations

import random

from tests.adapters.test_execution import plant

from trueup_adapters.core.breaker import FAILURES_MAX, OPEN_SECONDS, OPEN_SECONDS_MAX, TRIAL_SECONDS_MAX, Breaker
from trueup_adapters.core.job import Sent
from trueup_common.contracts.adapter import Call, Outcome, confirmed, not_sent, rejected, unknown
from trueup_common.contracts.states import ErrorClass, ReceiptStatus

DOWN = rejected(ErrorClass.TRANSIENT, "unavailable")
LOST = unknown("timeout")
UP = confirmed({})


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_MAX):
        assert breaker.admits(now)
        breaker.heard(DOWN, now)
    assert breaker.is_open
    return breaker


def test_it_opens_on_a_row_of_failures_only() -> None:
    """Requirements: E7. One success in between starts the count anew; lost answers count like refusals."""
    breaker = Breaker()
    for number in range(FAILURES_MAX * 3):
        assert breaker.admits(0)
        breaker.heard(UP if number % FAILURES_MAX == FAILURES_MAX - 1 else LOST, 0)
    assert not breaker.is_open
    assert not opened().admits(OPEN_SECONDS / 2)


def test_what_shows_a_working_target_never_opens_it() -> None:
    """Requirements: E7. A rate limit, a refusal and a conflict come from a target that is up; NOT_SENT says nothing."""
    breaker = Breaker()
    for outcome in (
        rejected(ErrorClass.TRANSIENT, "rate_limited"),
        rejected(ErrorClass.PERMANENT, "forbidden"),
        rejected(ErrorClass.BUSINESS, "version_conflict"),
        not_sent("no_slot"),
    ):
        for _ in range(FAILURES_MAX * 2):
            breaker.heard(outcome, 0)
    assert not breaker.is_open


def test_one_tries_and_decides_for_all() -> None:
    """Requirements: E7. After the pause exactly one is let through; it closes the circuit or opens it for longer."""
    breaker = opened()
    assert breaker.admits(OPEN_SECONDS) and not breaker.admits(OPEN_SECONDS)
    assert breaker.heard(DOWN, OPEN_SECONDS)
    assert not breaker.admits(OPEN_SECONDS * 2.9) and breaker.admits(OPEN_SECONDS * 3)
    breaker.heard(UP, OPEN_SECONDS * 3)
    assert not breaker.is_open and breaker.admits(OPEN_SECONDS * 3)


def test_a_trial_that_never_ends_is_not_waited_for() -> None:
    """Requirements: E7. A lost trial, or one that sent nothing, gives the place to the next."""
    breaker = opened()
    assert breaker.admits(OPEN_SECONDS)
    assert breaker.admits(OPEN_SECONDS + TRIAL_SECONDS_MAX)
    breaker.heard(not_sent("send_by_passed"), OPEN_SECONDS + TRIAL_SECONDS_MAX)
    assert breaker.is_open and breaker.admits(OPEN_SECONDS + TRIAL_SECONDS_MAX)


def test_the_pause_is_bounded_whatever_happens() -> None:
    """Requirements: E7. From any history, a target that works again is tried within the longest pause."""
    rng = random.Random(7)
    for _ in range(200):
        breaker, now = Breaker(), 0.0
        for _ in range(60):
            now += rng.choice([0.0, 0.5, 5.0])
            if breaker.admits(now):
                breaker.heard(rng.choice([DOWN, LOST, DOWN, UP, not_sent("no_slot")]), now)
        later = now + OPEN_SECONDS_MAX + TRIAL_SECONDS_MAX
        assert breaker.admits(later)
        breaker.heard(UP, later)
        assert not breaker.is_open


async def test_an_open_circuit_sends_nothing_and_spends_no_attempt() -> None:
    """Requirements: E7. What the breaker holds back never reaches the target and is NOT_SENT."""

    async def down(call: Call) -> Outcome:
        call.may_send()
        return DOWN

    async with plant(down, max_concurrency=1) as (made, target):
        for number in range(FAILURES_MAX + 3):
            made.send(f"cmd_{number}")
        sent = await made.finished(FAILURES_MAX + 3)
    assert len(target.calls) == FAILURES_MAX
    held = [item.outcome for item in sent[FAILURES_MAX:] if isinstance(item, Sent)]
    assert [(outcome.status, outcome.error_code) for outcome in held] == [(ReceiptStatus.NOT_SENT, "circuit_open")] * 3
