"""Surveys: page after page at a bounded rate; a marker of ours without a ledger row is an exception."""

from __future__ import annotations

from typing import Any

from tests.reconciler.builders import at, established, message, moment, seen
from tests.reconciler.memory import MemoryStore
from tests.reconciler.test_handler import told
from tests.reconciler.test_repair_messages import operator_command

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.survey import NOT_SURVEYABLE, RESOURCE, Compared, Mark
from trueup_common.contracts.task import Observed, ProbeTask
from trueup_reconciler.core.survey import FOUND_MAX, Rounds
from trueup_reconciler.handler import EventsHandler
from trueup_reconciler.lookout import Lookout

ROUNDS = Rounds(period_seconds=1000, page_seconds=5, answer_seconds=100)


class Surveyor:
    """One replica with surveys only."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lookout = Lookout(rounds=ROUNDS)
        self.events = EventsHandler(lookout=self.lookout)

    async def deliver(self, *messages: Message, seconds: float = 0) -> None:
        async with self.store.transaction() as tx:
            await tx.post(await self.events.handle(tx, moment(seconds), messages))

    async def asks(self, seconds: float) -> ProbeTask | None:
        """The page that is asked for now."""
        before = len(told(self.store, ProbeTask))
        async with self.store.transaction() as tx:
            await tx.post(await self.lookout.surveys(tx, moment(seconds)))
        sent = told(self.store, ProbeTask)[before:]
        assert len(sent) <= 1
        return sent[0] if sent else None

    async def answer(
        self,
        task: ProbeTask,
        seconds: float,
        *operations: str,
        more: str | None = None,
        managed: tuple[str, ...] = (),
        objects: tuple[str, ...] = (),
    ) -> None:
        marks = tuple(Mark(operation_id=name, external_resource_id=f"post-of-{name}") for name in operations)
        page = Compared(listed_count=100, operations=managed, resources=objects, unmanaged=marks, next_cursor=more)
        value = page.model_dump(mode="json")
        await self.say(task, seconds, ProbeVerdict.CONFIRMED, value=value)

    async def say(self, task: ProbeTask, seconds: float, verdict: ProbeVerdict, **fields: Any) -> None:
        observation = Observation(
            element=task.elements[0].element,
            verdict=verdict,
            observed_at=at(seconds),
            source="adapter.wordpress",
            **fields,
        )
        observed = Observed(
            visit_id=task.visit_id,
            tenant=task.tenant,
            system=task.system,
            resource=task.resource,
            command_id=task.command_id,
            observations=(observation,),
            observed_at=at(seconds),
        )
        await self.deliver(message(observed, f"o-{task.visit_id}"), seconds=seconds)

    def reports(self) -> list[tuple[str, str, str | None]]:
        """Operation, status and resolution of everything that was reported."""
        rows = [item.obligation for item in told(self.store, ExceptionReported)]
        return [(str(row.command_id), row.status, row.resolution_type) for row in rows]


async def surveying() -> Surveyor:
    surveyor = Surveyor()
    await surveyor.deliver(message(established(verified=True, observation=seen("publish")), "m1"))
    return surveyor


async def test_a_round_goes_page_by_page_no_faster_than_its_rate_and_comes_again_after_its_period() -> None:
    """Requirements: R10, R6"""
    surveyor = await surveying()
    assert await surveyor.asks(4) is None
    first = await surveyor.asks(5)
    assert first is not None
    assert (first.resource, first.elements[0].kind, first.elements[0].params) == (RESOURCE, "survey", {})
    assert await surveyor.asks(6) is None, "one page at a time"
    await surveyor.answer(first, 7, more="100")
    assert await surveyor.asks(11) is None
    second = await surveyor.asks(12)
    assert second is not None
    assert second.elements[0].params == {"cursor": "100"}
    await surveyor.answer(second, 13)
    assert await surveyor.asks(1012) is None
    third = await surveyor.asks(1013)
    assert third is not None
    assert third.elements[0].params == {}
    assert surveyor.reports() == []


async def test_what_stands_in_no_ledger_is_an_exception_with_an_owner_until_a_whole_round_does_not_find_it() -> None:
    """Requirements: R10, Q4, Q8"""
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    await surveyor.answer(task, 6, "cmd_stranger")
    (reported,) = told(surveyor.store, ExceptionReported)
    obligation = reported.obligation
    assert (obligation.kind, obligation.owner, obligation.deadline_at) == ("needs_review", "operators", at(6 + 3600))
    assert (obligation.envelope["failure_code"], obligation.envelope["external_resource_id"]) == (
        "unmanaged_effect", "post-of-cmd_stranger",
    )  # fmt: skip
    again = await surveyor.asks(1010)
    assert again is not None
    await surveyor.answer(again, 1011, "cmd_stranger")
    assert len(surveyor.reports()) == 1, "the same thing is one exception"
    half = await surveyor.asks(2020)
    assert half is not None
    await surveyor.answer(half, 2021, more="100")
    assert len(surveyor.reports()) == 1, "half a round proves nothing"
    rest = await surveyor.asks(2030)
    assert rest is not None
    await surveyor.answer(rest, 2031)
    assert surveyor.reports()[1:] == [("cmd_stranger", "closed", "observed_healthy")]


async def test_what_a_person_let_be_is_owed_no_longer_and_told_again_only_once_it_had_gone() -> None:
    """The planner ends the exception; what stands behind it ends with it, and both say the same from then on.

    Requirements: R10, Q8, O3
    """
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    await surveyor.answer(task, 6, "cmd_stranger")
    (owed,) = surveyor.store.obligation.values()
    by_hand = operator_command(
        "MARK_RESOLVED", performer="repair-planner", element=None, obligation_id=owed.obligation_id
    )
    await surveyor.deliver(message(by_hand, "opc_1"), seconds=7)
    (closed,) = surveyor.store.obligation.values()
    assert (closed.status, closed.resolution_type, closed.version) == ("closed", "marked_resolved", 2)
    assert closed.envelope["resolved_by"] == "operator:olga"
    for seconds, found in ((1010, ("cmd_stranger",)), (2020, ()), (3030, ("cmd_stranger",))):
        task = await surveyor.asks(seconds)
        assert task is not None
        await surveyor.answer(task, seconds + 1, *found)
    statuses = [status for _, status, _ in surveyor.reports()]
    assert statuses == ["open", "open"], "it was told again because it came back, and for nothing else"
    assert [row.version for row in surveyor.store.obligation.values()] == [3]


async def test_a_page_that_says_nothing_is_asked_again_and_closes_nothing() -> None:
    """Requirements: R10, E4"""
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    await surveyor.answer(task, 6, "cmd_stranger")
    task = await surveyor.asks(1010)
    assert task is not None
    await surveyor.say(task, 1011, ProbeVerdict.UNKNOWN, reason="unauthenticated")
    assert len(surveyor.reports()) == 1
    assert await surveyor.asks(1100) is None
    assert await surveyor.asks(1111) is not None


async def test_a_system_that_leaves_no_marks_is_left_alone() -> None:
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    await surveyor.say(task, 6, ProbeVerdict.UNKNOWN, reason=NOT_SURVEYABLE)
    assert await surveyor.asks(1005) is None
    assert await surveyor.asks(1006) is not None


async def test_an_answer_that_nobody_waits_for_and_an_unanswered_page() -> None:
    """Requirements: R10, R5"""
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    later = await surveyor.asks(105)
    assert later is not None
    assert later.visit_id != task.visit_id
    await surveyor.answer(task, 106, "cmd_stranger")
    assert surveyor.reports() == []


async def test_a_flood_is_bounded_and_closes_nothing_that_it_did_not_look_at() -> None:
    """Requirements: R10. A copied site carries all our markers: fifty exceptions say so as well as ten thousand."""
    surveyor = await surveying()
    task = await surveyor.asks(5)
    assert task is not None
    await surveyor.answer(task, 6, *(f"cmd_{number}" for number in range(100)), more="100")
    task = await surveyor.asks(20)
    assert task is not None
    await surveyor.answer(task, 21, *(f"cmd_{number}" for number in range(100, 200)))
    assert len(surveyor.reports()) == FOUND_MAX
    assert {status for _, status, _ in surveyor.reports()} == {"open"}


async def test_what_one_round_listed_and_the_next_does_not_is_looked_at_now() -> None:
    """The reverse: it stands in the ledger and is not outside. The list only says where to look; the look decides.

    Requirements: R10, R8, R11
    """
    surveyor = await surveying()
    await surveyor.deliver(message(established("2", resource="post/2", verified=True, observation=seen()), "m2"))
    rest = established("3", resource="post/3", verified=True, observation=seen())
    await surveyor.deliver(message(rest, "m3"))
    first = await surveyor.asks(5)
    assert first is not None
    await surveyor.answer(first, 6, managed=("cmd_1",), more="8")
    second = await surveyor.asks(11)
    assert second is not None
    await surveyor.answer(second, 12, objects=("post/2",))
    assert {row.resource for row in surveyor.store.element.values() if row.surveyed_at is not None} == {
        "post/1",
        "post/2",
    }
    for key, row in surveyor.store.element.items():  # nothing else would look for a long while
        surveyor.store.element[key] = row.evolve(next_visit_at=at(1_000_000))

    again = await surveyor.asks(1012)
    assert again is not None
    await surveyor.answer(again, 1013, managed=("cmd_1",))
    probes = [task for task in told(surveyor.store, ProbeTask) if task.resource != RESOURCE]
    assert [task.resource for task in probes] == ["post/2"], "listed before and not now; post/3 never was"
    assert surveyor.reports() == []

    row = next(row for row in surveyor.store.element.values() if row.resource == "post/2")
    answer = Observed(
        visit_id=probes[0].visit_id,
        tenant="acme",
        system="wordpress",
        resource="post/2",
        command_id=row.command_id,
        observations=(seen(verdict=ProbeVerdict.MISSING, seconds=1014),),
        observed_at=at(1014),
    )
    await surveyor.deliver(message(answer, "o2"), seconds=1014)
    assert surveyor.reports() == [("cmd_2", "open", None)]

    once_more = await surveyor.asks(2014)
    assert once_more is not None
    await surveyor.answer(once_more, 2015, managed=("cmd_1",))
    probes = [task for task in told(surveyor.store, ProbeTask) if task.resource == "post/2"]
    assert len(probes) == 1, "asked once: from then on its own visits look"


async def test_a_page_that_nobody_asked_for_says_nothing_of_what_is_not_listed() -> None:
    """Requirements: R11"""
    surveyor = await surveying()
    first = await surveyor.asks(5)
    assert first is not None
    await surveyor.answer(first, 6, managed=("cmd_1",))
    for key, row in surveyor.store.element.items():
        surveyor.store.element[key] = row.evolve(next_visit_at=at(1_000_000))
    asked = await surveyor.asks(1006)
    assert asked is not None
    await surveyor.answer(asked.evolve(visit_id="vis_old"), 1007)
    await surveyor.say(asked, 1008, ProbeVerdict.UNKNOWN, reason="timeout")
    assert [task for task in told(surveyor.store, ProbeTask) if task.resource != RESOURCE] == []
