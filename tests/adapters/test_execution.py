"""Running jobs: slots, rates, timeouts and progress per connection, and what a death in between leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.adapters.builders import DECLARATION, Process, execute, find, operation
from tests.adapters.memory import Ledger
from tests.patience import PATIENCE_SECONDS

from trueup_adapters import execution
from trueup_adapters.core.effect import LedgerStatus
from trueup_adapters.core.job import FinishedMessage, Looked, Probed, ProbeJob, SendJob, Sent
from trueup_adapters.execution import Execution, FinishedQueue, Line, Rate
from trueup_common.contracts.adapter import Call, Connection, Outcome, confirmed, not_sent
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import ProbeElement, ProbeTask
from trueup_common.runtime.clock import monotonic, real_now

Perform = Callable[[Call], Awaitable[Outcome]]


class FakeTarget:
    """A target that does what the test says."""

    def __init__(self, perform: Perform | None = None) -> None:
        self._perform = perform
        self.calls: list[Call] = []
        self.active = 0
        self.active_most = 0
        self.is_closed = False

    async def perform(self, call: Call) -> Outcome:
        self.calls.append(call)
        self.active += 1
        self.active_most = max(self.active, self.active_most)
        try:
            if self._perform is not None:
                return await self._perform(call)
            call.may_send()
            return confirmed({})
        finally:
            self.active -= 1

    async def find(self, call: Call) -> Finding:
        if self._perform is not None:
            await self._perform(call)
        return Finding(verdict=FindVerdict.CONFIRMED, proof_of_access=True, result={})

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        if self._perform is not None:
            await asyncio.sleep(60)
        return []

    async def close(self) -> None:
        self.is_closed = True


class NoCrash:
    """Remembers the points that were passed."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def reach(self, point: str) -> None:
        self.points.append(point)


class Plant:
    """A process whose jobs really run. Its ledger's clock is the real one."""

    def __init__(self, target: FakeTarget, **connection: Any) -> None:
        self.ledger = Ledger()
        self.ledger.now = real_now()
        self.process = Process(self.ledger)
        self.queue = FinishedQueue("alpha")
        self.crash = NoCrash()
        line = Line(Connection("acme", "alpha", {}, **connection), target)
        self.execution = Execution(
            {("acme", "alpha"): line}, {"alpha": self.queue}, self.ledger, self.crash, "adapters#1"
        )

    def send(self, command_id: str = "cmd_1", *, seconds: float = 5.0, tenant: str = "acme") -> SendJob:
        """Commit an attempt and start it; `seconds` until send_by."""
        about = operation(command_id).evolve(tenant=tenant)
        self.process.deliver_as(tenant, execute(1, of=about, now=self.ledger.now))
        job = self.process.sends[-1]
        job = SendJob(job.row, job.attempt, job.declaration, monotonic() + seconds, job.traceparent)
        self.execution.start(job)
        return job

    async def finished(self, count: int = 1) -> list[Any]:
        """What jobs came to."""
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(found) < count:
                for delivery in await self.queue.fetch(10):
                    assert isinstance(delivery.message, FinishedMessage)
                    found.append(delivery.message.finished)
        return found


@asynccontextmanager
async def plant(perform: Perform | None = None, **connection: Any) -> AsyncIterator[tuple[Plant, FakeTarget]]:
    """A plant for one test."""
    target = FakeTarget(perform)
    made = Plant(target, **connection)
    yield made, target
    await made.execution.close()
    assert target.is_closed


async def test_an_attempt_runs_and_comes_back() -> None:
    """Requirements: E2. Performed under its own name and fence; both crash points stand around it."""
    async with plant() as (made, target):
        job = made.send()
        (sent,) = await made.finished()
        assert isinstance(sent, Sent)
        assert (sent.job, sent.outcome.status) == (job, ReceiptStatus.CONFIRMED)
        (call,) = target.calls
        assert (call.attempt_id, call.fence) == (job.attempt.attempt_id, 1)
        assert made.crash.points == ["adapters-alpha.before_send", "adapters-alpha.target_acted"]


async def test_slots_bound_what_runs_at_once() -> None:
    """One connection never has more attempts under way than its slots."""
    release = asyncio.Event()

    async def waits(call: Call) -> Outcome:
        call.may_send()
        await release.wait()
        return confirmed({})

    async with plant(waits, max_concurrency=2) as (made, target):
        for number in range(5):
            made.send(f"cmd_{number}")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while target.active < 2:
                await asyncio.sleep(0)
        release.set()
        assert len(await made.finished(5)) == 5
        assert target.active_most == 2


async def test_who_gets_no_slot_in_time_has_sent_nothing() -> None:
    """Requirements: E5, G5. `send_by` passes in the queue: NOT_SENT, no attempt spent, no adapter called."""

    async def waits(call: Call) -> Outcome:
        call.may_send()
        await asyncio.sleep(60)
        return confirmed({})

    async with plant(waits, max_concurrency=1) as (made, target):
        made.send("cmd_1")
        made.send("cmd_2", seconds=0.05)
        (late,) = await made.finished()
        assert (late.outcome.status, late.outcome.error_code) == (ReceiptStatus.NOT_SENT, "no_slot")
        assert len(target.calls) == 1


async def test_a_slot_that_comes_too_late_is_refused_at_the_first_byte() -> None:
    """Requirements: E5. The adapter dawdled before its write: `may_send` says no, and that is NOT_SENT."""
    too_late = asyncio.Event()

    async def dawdles(call: Call) -> Outcome:
        await too_late.wait()
        call.may_send()
        return confirmed({})

    async with plant(dawdles) as (made, target):
        job = made.send(seconds=1.0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not target.active or monotonic() <= job.send_by_seconds:
                await asyncio.sleep(0.01)
        too_late.set()
        (sent,) = await made.finished()
        assert (sent.outcome.status, sent.outcome.error_code) == (ReceiptStatus.NOT_SENT, "send_by_passed")


@pytest.mark.parametrize(("is_sent", "status"), [(True, ReceiptStatus.UNKNOWN), (False, ReceiptStatus.NOT_SENT)])
async def test_a_timeout_is_judged_by_the_first_byte(is_sent: bool, status: ReceiptStatus) -> None:
    """Requirements: X4. After it unknown; before it nothing happened."""

    async def hangs(call: Call) -> Outcome:
        if is_sent:
            call.may_send()
        await asyncio.sleep(60)
        return confirmed({})

    async with plant(hangs, timeout_seconds=0.1) as (made, _target):
        made.send(seconds=1.0 if is_sent else 0.05)
        (sent,) = await made.finished()
        assert (sent.outcome.status, sent.outcome.error_code) == (status, "timeout")


@pytest.mark.parametrize(("is_sent", "status"), [(True, ReceiptStatus.UNKNOWN), (False, ReceiptStatus.REJECTED)])
async def test_an_adapter_that_fails_is_judged_by_the_first_byte(is_sent: bool, status: ReceiptStatus) -> None:
    """Requirements: X4, X5. A bug of an adapter is no excuse for a second effect."""

    async def breaks(call: Call) -> Outcome:
        if is_sent:
            call.may_send()
        raise RuntimeError("broken")

    async with plant(breaks) as (made, _target):
        made.send()
        (sent,) = await made.finished()
        assert sent.outcome.status is status
        if not is_sent:
            assert sent.outcome.error_class is ErrorClass.TRANSIENT


async def test_an_adapter_cannot_unsend() -> None:
    """Requirements: X4. "Not sent" after the first byte is unknown."""

    async def denies(call: Call) -> Outcome:
        call.may_send()
        return not_sent("trust_me")

    async with plant(denies) as (made, _target):
        made.send()
        (sent,) = await made.finished()
        assert sent.outcome.status is ReceiptStatus.UNKNOWN


async def test_progress_is_kept_and_prolongs_the_attempt() -> None:
    """Requirements: E5. Each part stores its cursor and gets a timeout of its own."""

    async def in_parts(call: Call) -> Outcome:
        for part in range(4):
            call.may_send()
            await asyncio.sleep(0.6)  # four of them are more than an attempt has without progress
            await call.progress({"part": part})
        return confirmed({"parts": 4})

    async with plant(in_parts, timeout_seconds=2.0) as (made, _target):
        made.send(seconds=0.5)
        (sent,) = await made.finished()
        assert sent.outcome.status is ReceiptStatus.CONFIRMED
        assert made.process.row().cursor == {"part": 3}
        made.process.finish(sent)
        assert made.process.row().status is LedgerStatus.CONFIRMED


async def test_a_lost_lease_stops_the_attempt() -> None:
    """Requirements: E5. A find raised the fence: the next progress stops the attempt, which may have acted."""
    started = asyncio.Event()
    taken = asyncio.Event()
    parts: list[int] = []

    async def in_parts(call: Call) -> Outcome:
        for part in range(3):
            call.may_send()
            parts.append(part)
            started.set()
            await taken.wait()
            await call.progress({"part": part})
        return confirmed({})

    async with plant(in_parts) as (made, _target):
        made.send()
        await started.wait()
        made.process.deliver(find(2))
        taken.set()
        (sent,) = await made.finished()
        assert (sent.outcome.status, sent.outcome.error_code) == (ReceiptStatus.UNKNOWN, "lease_lost")
        assert parts == [0]


async def test_beats_name_slots_and_long_attempts() -> None:
    """Requirements: E5. Slots by tenant always; an attempt once half of its timeout is over, with its progress."""
    release = asyncio.Event()

    async def long(call: Call) -> Outcome:
        call.may_send()
        await call.progress({"part": 1})
        await release.wait()
        return confirmed({})

    async with plant(long, max_concurrency=7) as (made, _target):
        job = made.send()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while made.process.row().cursor is None:
                await asyncio.sleep(0)
        (short,) = made.execution.beats(["alpha"])
        assert (short.slots, short.running) == ({"acme": 7}, ())
        for transmission in made.execution._transmissions.values():
            transmission.started_at_seconds -= DECLARATION.timeout_seconds
        (beat,) = made.execution.beats(["alpha"])
        (running,) = beat.running
        assert (running.command_id, running.fence, running.progress) == (job.row.command_id, 1, 1)
        release.set()
        await made.finished()


async def test_without_a_connection_nothing_is_sent() -> None:
    """Requirements: T1. A tenant without a connection to this system uses no other tenant's."""
    async with plant() as (made, target):
        made.send(tenant="globex")
        (sent,) = await made.finished()
        assert (sent.outcome.status, sent.outcome.error_code) == (ReceiptStatus.REJECTED, "no_connection")
        assert target.calls == []


async def test_looks_and_probes_that_hang_say_nothing() -> None:
    """Requirements: E4. A timeout is UNKNOWN, never MISSING."""

    async def hangs(_call: Call) -> Outcome:
        await asyncio.sleep(60)
        return confirmed({})

    async with plant(hangs, timeout_seconds=0.05) as (made, _target):
        made.process.deliver(execute(1, now=made.ledger.now), find(2))
        (look,) = made.process.looks
        made.execution.start(look)
        (looked,) = await made.finished()
        assert isinstance(looked, Looked)
        assert (looked.finding.verdict, looked.finding.reason) == (FindVerdict.UNKNOWN, "timeout")
        element = ProbeElement(element="a.b", kind="k", params={})
        task = ProbeTask(
            visit_id="v", tenant="acme", system="alpha", resource="r", command_id="cmd_1", elements=(element,)
        )
        made.execution.start(ProbeJob(task))
        (probed,) = await made.finished()
        assert isinstance(probed, Probed)
        assert [(item.element, item.verdict) for item in probed.observations] == [("a.b", ProbeVerdict.UNKNOWN)]


async def test_a_probe_answers_for_every_element() -> None:
    """Requirements: E4. An adapter that leaves elements out gives doubts, not silence."""
    async with plant() as (made, _target):
        element = ProbeElement(element="a.b", kind="k", params={})
        task = ProbeTask(
            visit_id="v", tenant="acme", system="alpha", resource="r", command_id="cmd_1", elements=(element,)
        )
        made.execution.start(ProbeJob(task))
        (probed,) = await made.finished()
        assert [(item.verdict, item.reason) for item in probed.observations] == [
            (ProbeVerdict.UNKNOWN, "adapter_failed")
        ]


async def test_closing_cuts_what_runs_and_the_ledger_still_says_sent() -> None:
    """Requirements: E2, X4. An attempt cut by the end of its process is left to the scan."""

    async def hangs(call: Call) -> Outcome:
        call.may_send()
        await asyncio.sleep(60)
        return confirmed({})

    async with plant(hangs) as (made, target):
        made.send()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not target.active:
                await asyncio.sleep(0)
    assert len(made.queue) == 0
    assert made.process.row().status is LedgerStatus.SENT


async def test_a_full_process_takes_no_more_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are bounded; a place that becomes free is given out at once."""
    monkeypatch.setattr(execution, "JOBS_MAX", 2)
    release = asyncio.Event()

    async def waits(call: Call) -> Outcome:
        call.may_send()
        await release.wait()
        return confirmed({})

    async with plant(waits) as (made, _target):
        assert await made.execution.room(200) == 2
        made.send("cmd_1")
        made.send("cmd_2")
        assert await made.execution.room(200) == 0
        waiting = asyncio.create_task(made.execution.room(200))
        release.set()
        assert await waiting > 0
        await made.finished(2)


def test_a_rate_spreads_and_never_promises_too_much() -> None:
    """Four per second are a quarter of a second apart; a place after send_by is not taken."""
    rate = Rate(4.0)
    assert [rate.wait_seconds(10.0, 11.0) for _ in range(3)] == [0.0, 0.25, 0.5]
    assert rate.wait_seconds(10.0, 10.6) is None
    assert rate.wait_seconds(10.0, 11.0) == 0.75
    assert rate.wait_seconds(20.0, 21.0) == 0.0
    assert Rate(None).wait_seconds(1.0, 1.0) == 0.0


async def test_a_failed_outcome_comes_again() -> None:
    """Requirements: M2. What the second loop hands back is offered again; its order does not matter."""
    async with plant() as (made, _target):
        made.send()
        (delivery,) = await made.queue.fetch(1)
        await delivery.nak(0.01)
        (again,) = await made.finished()
        assert again is delivery.message.finished
