"""Moving business time: in order, never past something that is due, and only when every process follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.servers import BusServer, Database

from trueup_devkit import virtual_clock
from trueup_devkit.virtual_clock import ClockError, PlaneTimeline, advance, parse_duration, plane_timeline

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeTimeline:
    """A plane whose due times are a list; each that falls due may cause another."""

    def __init__(self, due_hours: list[float], causes: dict[float, float] | None = None, stuck: int = 0) -> None:
        self.moment = START
        self.due = [START + timedelta(hours=hours) for hours in due_hours]
        self.causes = {START + timedelta(hours=a): START + timedelta(hours=b) for a, b in (causes or {}).items()}
        self.stuck = stuck
        self.seen: list[float] = []
        self.announced: list[float] = []

    async def now(self) -> datetime:
        return self.moment

    async def next_due(self) -> datetime | None:
        return min((due for due in self.due if due > self.moment), default=None)

    async def overdue(self, now: datetime) -> int:
        for due in sorted(due for due in self.due if due <= now):
            self.due.remove(due)
            self.seen.append((due - START) / timedelta(hours=1))
            if due in self.causes:
                self.due.append(self.causes[due])
        return self.stuck

    async def move_to(self, moment: datetime) -> float:
        assert moment > self.moment
        self.moment = moment
        return (moment - START).total_seconds()

    async def announce(self, offset_seconds: float) -> None:
        self.announced.append(offset_seconds / 3600)


async def test_steps_from_due_time_to_due_time() -> None:
    """What falls due earlier is seen earlier, also when it was caused on the way; the end is exactly the target."""
    timeline = FakeTimeline([1, 5, 30], causes={1: 2})
    steps = await advance(timeline, timedelta(hours=10))
    assert timeline.announced == [1, 2, 5, 10]
    assert timeline.seen == [1, 2, 5]
    assert steps[-1].moment == START + timedelta(hours=10)


async def test_goes_straight_where_nothing_is_due() -> None:
    """One step, one acknowledgement."""
    timeline = FakeTimeline([])
    assert len(await advance(timeline, timedelta(days=3))) == 1
    assert timeline.announced == [72]


async def test_something_stuck_does_not_hold_time_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that waits for a person stays due; time goes on after a bounded wait."""
    monkeypatch.setattr(virtual_clock, "SETTLE_TIMEOUT_SECONDS", 0.05)
    timeline = FakeTimeline([1])
    timeline.stuck = 0

    async def overdue(now: datetime) -> int:
        return int(now >= START + timedelta(hours=1))

    monkeypatch.setattr(timeline, "overdue", overdue)
    await advance(timeline, timedelta(hours=2))
    assert timeline.moment == START + timedelta(hours=2)


async def test_never_ends_in_an_endless_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that makes something due every instant is told as a failure, with the time that was reached."""
    monkeypatch.setattr(virtual_clock, "STEPS_MAX", 5)
    timeline = FakeTimeline([number / 3600 for number in range(1, 100)])
    with pytest.raises(ClockError, match="5 steps were not enough"):
        await advance(timeline, timedelta(hours=1))


def test_reads_durations_strictly() -> None:
    """A wrong unit is refused and never taken for another."""
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration("1d12h") == timedelta(days=1, hours=12)
    assert parse_duration(" 2h 30m ") == timedelta(hours=2, minutes=30)
    for wrong in ("", "2", "h", "-2h", "2w", "2h foo", "1.5h", "99999999d", "٢h2"):
        with pytest.raises(ValueError, match=r"duration|ten years"):
            parse_duration(wrong)


async def test_moves_the_clock_of_a_real_database_and_waits_for_every_process(
    plane_database: Database, nats_server: BusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trueup.now()` moves for everyone; a process that does not answer is named; a late one is asked again."""
    from trueup_common.contracts.topology import CLOCK_SUBJECT
    from trueup_common.runtime.bus import Bus

    monkeypatch.setattr(virtual_clock, "_ASK_AGAIN_SECONDS", 0.1)
    bus = await Bus.connect(nats_server.url("orchestrator"), service="orchestrator", name="orchestrator")
    asked = 0

    async def answer(raw: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:  # the first request meets a process that is just starting
            body = raw.data.replace(b"{", b'{"instance": "orchestrator", ', 1)  # type: ignore[attr-defined]
            await bus.send(raw.reply, body)  # type: ignore[attr-defined]

    await bus.listen(CLOCK_SUBJECT, answer)
    await bus.client.flush()
    try:
        async with plane_timeline(plane_database.admin_url, nats_server.admin_url, ["orchestrator"]) as timeline:
            before = await timeline.now()
            await advance(timeline, timedelta(hours=2))
            moved = await timeline.now() - before
            assert timedelta(hours=2) <= moved < timedelta(hours=2, minutes=1)
            offset = await timeline.move_to(before)
            assert offset == pytest.approx(7200, abs=60), "time never goes back"
        monkeypatch.setattr(virtual_clock, "ACK_TIMEOUT_SECONDS", 0.6)
        async with plane_timeline(
            plane_database.admin_url, nats_server.admin_url, ["orchestrator", "gateway-2"]
        ) as two:
            with pytest.raises(ClockError, match=r"gateway-2$"):
                await two.announce(offset)
    finally:
        await bus.close()
    assert isinstance(timeline, PlaneTimeline)
