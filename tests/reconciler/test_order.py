"""Drift of one business object in its order: upstream first, and what shows it once more after that, once."""

from __future__ import annotations

from typing import Any

from tests.reconciler.builders import at, established, message, moment, offer, seen
from tests.reconciler.memory import MemoryStore
from tests.reconciler.test_handler import told

from trueup_common.contracts.events import Established, ExceptionReported
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.task import Observed, ProbeTask
from trueup_reconciler.core.element import ElementRow
from trueup_reconciler.handler import EventsHandler, Ticks

POST, CACHE = "wordpress.status", "cloudflare.cache"
TRASHED = seen(verdict=ProbeVerdict.MISSING)
Answers = dict[str, Any]


def part(name: str, element: str, resource: str, *upstream: str, **options: Any) -> Established:
    """One element of the article, established by its own command."""
    event = established(name, elements=(element,), resource=resource, repair=offer(), **options)
    (item,) = event.elements
    shown = item.evolve(downstream_of=upstream)
    return event.evolve(elements=(shown,), object_type="article", object_id="7")


class World:
    """The reconciler over a store in memory, and what a look at each element shows now."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.shows: Answers = {POST: "publish", CACHE: "publish"}
        self.asked: list[str] = []
        self.number = 0

    async def hear(self, event: Established, seconds: float) -> None:
        self.number += 1
        await self._fold(seconds, message(event, f"m{self.number}"))
        await self.answer(seconds)

    async def at(self, seconds: float) -> None:
        """Visits that are due, and their answers, until nothing more is asked for."""
        async with self.store.transaction() as tx:
            await tx.post(await Ticks().visits(tx, moment(seconds)))
        await self.answer(seconds)

    async def answer(self, seconds: float) -> None:
        while probes := told(self.store, ProbeTask):
            self.store.outbox = [item for item in self.store.outbox if item.message.type != ProbeTask.__name__]
            for probe in probes:
                self.asked += [item.element for item in probe.elements]
                self.number += 1
                await self._fold(seconds, message(self._seen(probe, seconds), f"m{self.number}"))

    async def _fold(self, seconds: float, *messages: Any) -> None:
        async with self.store.transaction() as tx:
            await tx.post(await EventsHandler().handle(tx, moment(seconds), messages))

    def _seen(self, probe: ProbeTask, seconds: float) -> Observed:
        return Observed(
            visit_id=probe.visit_id,
            tenant=probe.tenant,
            system=probe.system,
            resource=probe.resource,
            command_id=probe.command_id,
            observations=tuple(self._observation(item.element, seconds) for item in probe.elements),
            observed_at=at(seconds),
        )

    def _observation(self, element: str, seconds: float) -> Observation:
        shown = self.shows[element]
        if isinstance(shown, Observation):
            return shown.evolve(element=element, observed_at=at(seconds))
        return seen(shown, element=element, seconds=seconds)

    def row(self, element: str) -> ElementRow:
        return next(row for row in self.store.element.values() if row.element == element)

    def envelope(self, element: str) -> dict[str, Any]:
        """The newest report about an element."""
        reports = told(self.store, ExceptionReported)
        return [item.obligation.envelope for item in reports if item.obligation.envelope["element"] == element][-1]


async def article() -> World:
    """A post and the cache that shows it, both healthy."""
    world = World()
    await world.hear(part("1", POST, "post/1"), 0)
    await world.hear(part("2", CACHE, "zone/1", POST, sequence=2), 0)
    assert {row.phase for row in world.store.element.values()} == {"HEALTHY"}
    world.asked.clear()
    return world


async def test_a_cache_waits_for_its_post_and_is_looked_at_again_once_that_is_right() -> None:
    """Both have drifted: the cache is not purged beside a trashed post, and purged once after it.

    Requirements: R2, R3
    """
    world = await article()
    world.shows = {POST: TRASHED, CACHE: "yesterday"}
    await world.at(100)
    assert world.envelope(POST)["waits_for"] == []
    assert world.envelope(CACHE)["waits_for"] == [POST]
    assert (world.envelope(CACHE)["route"], world.envelope(CACHE)["repair"] is not None) == ("AUTO_REPAIR", True)

    world.shows[POST] = "publish"
    world.asked.clear()
    await world.hear(part("r1", POST, "post/1", sequence=11, supersedes="cmd_1", seconds=200), 200)
    assert world.row(POST).obligation_id is None
    assert world.asked[-2:] == [POST, CACHE]
    assert world.envelope(CACHE)["waits_for"] == []
    assert world.row(CACHE).obligation_id is not None


async def test_what_came_right_with_what_it_shows_needs_no_repair_of_its_own() -> None:
    """Requirements: R3"""
    world = await article()
    world.shows = {POST: TRASHED, CACHE: "yesterday"}
    await world.at(100)
    world.shows = {POST: "publish", CACHE: "publish"}
    await world.hear(part("r1", POST, "post/1", sequence=11, supersedes="cmd_1", seconds=200), 200)
    assert world.row(CACHE).obligation_id is None
    assert [item.obligation.resolution_type for item in told(world.store, ExceptionReported)][-2:] == [
        "observed_healthy",
        "observed_healthy",
    ]


async def test_what_is_repaired_upstream_has_a_healthy_cache_looked_at_too() -> None:
    """It was right for a trashed post: it is not for a published one. Requirements: R3, R6"""
    world = await article()
    world.shows[POST] = TRASHED
    await world.at(100)
    world.shows = {POST: "publish", CACHE: "without the post"}
    await world.hear(part("r1", POST, "post/1", sequence=11, supersedes="cmd_1", seconds=200), 200)
    assert world.envelope(CACHE)["waits_for"] == []


async def test_a_difference_downstream_has_what_it_shows_looked_at_first() -> None:
    """The cache is the first to be seen; the post was seen long ago. Requirements: R2, R5"""
    world = await article()
    await world.at(100)
    row = world.row(POST)
    world.store.element[row.object_key, row.element] = row.evolve(next_visit_at=at(5000))
    world.shows = {POST: TRASHED, CACHE: "yesterday"}
    world.asked.clear()
    await world.at(1000)
    assert world.asked[:2] == [CACHE, POST]
    assert world.row(POST).obligation_id is not None
    assert world.envelope(CACHE)["waits_for"] == [POST]


async def test_a_cache_that_is_stale_by_itself_waits_for_one_look_only() -> None:
    """Requirements: R2"""
    world = await article()
    await world.at(100)
    row = world.row(POST)
    world.store.element[row.object_key, row.element] = row.evolve(next_visit_at=at(5000))
    world.shows[CACHE] = "yesterday"
    world.asked.clear()
    await world.at(1000)
    assert world.asked == [CACHE, POST, CACHE]
    assert world.envelope(CACHE)["waits_for"] == []
    assert not world.row(POST).awaited


async def test_what_cannot_be_read_upstream_holds_nothing_up() -> None:
    """Requirements: R2"""
    world = await article()
    await world.at(100)
    row = world.row(POST)
    world.store.element[row.object_key, row.element] = row.evolve(next_visit_at=at(5000))
    world.shows = {POST: seen(verdict=ProbeVerdict.UNKNOWN), CACHE: "yesterday"}
    await world.at(1000)
    assert world.envelope(CACHE)["waits_for"] == []


async def test_another_object_is_nobodys_upstream() -> None:
    """Requirements: R3, T1"""
    world = World()
    await world.hear(part("1", POST, "post/1").evolve(object_id="8"), 0)
    await world.hear(part("2", CACHE, "zone/1", POST, sequence=2), 0)
    world.shows = {POST: TRASHED, CACHE: "yesterday"}
    await world.at(100)
    assert world.envelope(CACHE)["waits_for"] == []


async def test_a_post_within_its_window_is_waited_for_until_it_is_over() -> None:
    """Requirements: R4, R2. It may still come right: the cache is looked at in the moment in which that is known."""
    world = World()
    world.shows = {POST: "draft", CACHE: "publish"}
    await world.hear(part("1", POST, "post/1", window_seconds=30, seconds=0), 0)
    await world.hear(part("2", CACHE, "zone/1", POST, sequence=2), 0)
    world.shows[CACHE] = "yesterday"
    row = world.row(CACHE)
    world.store.element[row.object_key, row.element] = row.evolve(next_visit_at=at(2))
    await world.at(2)
    assert world.envelope(CACHE)["waits_for"] == [POST]
    await world.at(9)
    assert world.row(POST).phase == "CONVERGING"
    world.shows[POST] = "publish"
    world.asked.clear()
    await world.at(20)
    assert (world.row(POST).phase, world.asked) == ("HEALTHY", [POST, CACHE])
    assert world.envelope(CACHE)["waits_for"] == []
