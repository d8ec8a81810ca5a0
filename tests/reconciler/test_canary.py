"""The planted drift: it goes the way of every element, and where it is not found in time a person hears of it."""

from __future__ import annotations

from datetime import timedelta

from tests.reconciler.builders import at, established, message, moment, seen
from tests.reconciler.memory import MemoryStore
from tests.reconciler.test_handler import answer_of, told

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ElementChanged, ElementVerified, ExceptionReported
from trueup_common.contracts.states import Phase, ProbeVerdict
from trueup_common.contracts.task import ProbeTask
from trueup_common.runtime.ports import Moment
from trueup_reconciler.core.canary import RESOURCE, Watch
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.lookout import Lookout

WATCH = Watch(period_seconds=900)


class Detector:
    """One replica of the reconciler over a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lookout = Lookout(watch=WATCH)
        self.events = EventsHandler(lookout=self.lookout)
        self.ticks = Ticks()

    async def deliver(self, *messages: Message, seconds: float = 0) -> None:
        async with self.store.transaction() as tx:
            await tx.post(await self.events.handle(tx, moment(seconds), messages))

    async def visits(self, seconds: float) -> ProbeTask | None:
        """The probe of the planted element that goes out now."""
        before = len(told(self.store, ProbeTask))
        async with self.store.transaction() as tx:
            await tx.post(await self.ticks.visits(tx, moment(seconds)))
        sent = [probe for probe in told(self.store, ProbeTask)[before:] if probe.resource == RESOURCE]
        return sent[0] if sent else None

    async def canaries(self, seconds: float, business: float | None = None) -> None:
        async with self.store.transaction() as tx:
            now = Moment(business=at(seconds if business is None else business), real=at(seconds))
            await tx.post(await self.lookout.canaries(tx, now))

    async def answer(self, probe: ProbeTask, seconds: float, **options: object) -> None:
        reply = answer_of(probe, "publish", seconds=seconds, **options)
        await self.deliver(message(reply, f"o-{probe.visit_id}"), seconds=seconds)


async def watched() -> Detector:
    detector = Detector()
    await detector.canaries(0)
    event = established(verified=True, observation=seen("publish"))
    await detector.deliver(message(event, "m1"))
    return detector


async def test_a_planted_drift_is_probed_compared_and_found_and_nobody_hears_of_it() -> None:
    """Requirements: R11. A live detector finds it each period; it is no exception, no element of a case, no debt."""
    detector = await watched()
    for period in range(1, 5):
        probe = await detector.visits(period * 910)
        assert probe is not None
        assert [item.element for item in probe.elements] == ["wordpress.status"]
        await detector.answer(probe, period * 910 + 1)
        await detector.canaries(period * 910 + 10)
        (canary,) = detector.store.canary.values()
        assert canary.found_at == at(period * 910 + 1)
    store = detector.store
    assert told(store, ExceptionReported) == []
    assert told(store, ElementVerified) == []
    assert {event.resource for event in told(store, ElementChanged)} == {"post/1"}


async def test_a_detector_that_does_not_find_it_in_time_is_reported_once_and_cleared_when_it_does() -> None:
    """Requirements: R11, Q4, Q8. The visits stand still: nothing is asked, nothing fails, and yet it is not silent."""
    detector = await watched()
    for seconds in (1000, 1700, 1799):
        await detector.canaries(seconds)
    assert told(detector.store, ExceptionReported) == []
    for seconds in (1800, 1900, 3000, 3100):
        await detector.canaries(seconds)
    first, *again = told(detector.store, ExceptionReported)
    obligation = first.obligation
    assert [(item.obligation.obligation_id, item.obligation.version) for item in again] == [
        (obligation.obligation_id, 2)
    ], "told again while it lasts, so that whoever called it resolved meets it again"
    reported = first
    assert (obligation.kind, obligation.envelope["failure_code"], obligation.owner) == (
        "needs_review", "detector_dead", "operators",
    )  # fmt: skip
    assert (reported.target_system, obligation.tenant) == ("wordpress", "acme")
    probe = await detector.visits(3200)
    assert probe is not None
    await detector.answer(probe, 3201)
    last = told(detector.store, ExceptionReported)[-1].obligation
    assert (last.obligation_id, last.status, last.resolution_type) == (
        obligation.obligation_id, "closed", "observed_healthy",
    )  # fmt: skip


async def test_a_detector_that_cannot_see_is_as_dead_as_one_that_does_not_look() -> None:
    """Requirements: R11, E4. UNKNOWN finds nothing."""
    detector = await watched()
    probe = await detector.visits(900)
    assert probe is not None
    await detector.answer(probe, 901, verdict=ProbeVerdict.UNKNOWN)
    await detector.canaries(1900)
    assert [item.obligation.envelope["failure_code"] for item in told(detector.store, ExceptionReported)] == [
        "detector_dead"
    ]


async def test_a_detector_that_believes_everything_is_found_out() -> None:
    """Requirements: R11. Any answer differs from what nothing can have: only a broken comparison hides it."""
    detector = await watched()
    probe = await detector.visits(900)
    assert probe is not None
    await detector.answer(probe, 901)
    planted = next(row for row in detector.store.element.values() if row.resource == RESOURCE)
    assert planted.phase is Phase.DRIFT
    assert planted.obligation_id is None


async def test_a_process_that_just_began_and_a_leap_of_business_time_raise_no_alarm() -> None:
    """Requirements: R11. What does not run finds nothing: it is given one period first, in real time."""
    detector = await watched()
    await detector.canaries(100, business=10_000_000)
    assert told(detector.store, ExceptionReported) == []
    detector.lookout = Lookout(watch=WATCH)
    await detector.canaries(50_000)
    assert told(detector.store, ExceptionReported) == []
    await detector.canaries(50_000 + 900)
    assert len(told(detector.store, ExceptionReported)) == 1


async def test_one_is_planted_for_each_tenant_and_system_whoever_sees_it_first() -> None:
    """Requirements: R11, T1"""
    detector = await watched()
    other = EventsHandler(lookout=Lookout(watch=WATCH))
    event = established("2", resource="post/2", tenant="globex", verified=True, observation=seen("publish"))
    async with detector.store.transaction() as tx:
        again = established("3", resource="post/3", sequence=2)
        await other.handle(tx, moment(1), [message(again, "m3"), message(event, "m4", "globex")])
    assert sorted(detector.store.canary) == ["acme:wordpress", "globex:wordpress"]
    assert all(row.planted_at <= at(1) + timedelta(0) for row in detector.store.canary.values())
