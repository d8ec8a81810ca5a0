"""The handler: batches in, rows saved once, and each fact told once, whatever is delivered twice or out of order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel
from tests.reconciler.builders import (
    at,
    established,
    finding,
    found,
    message,
    moment,
    operation,
    seen,
    settle_requested,
)
from tests.reconciler.memory import MemoryStore

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ElementChanged, ElementVerified, ExceptionReported, Settlement
from trueup_common.contracts.states import FindVerdict, Phase, ProbeVerdict
from trueup_common.contracts.task import FindTask, Observed, ProbeTask
from trueup_common.runtime.host import Unprocessable
from trueup_reconciler.core import visit
from trueup_reconciler.handler import EventsHandler, Ticks

M = TypeVar("M", bound=BaseModel)


async def deliver(store: MemoryStore, *messages: Message, seconds: float = 0) -> None:
    async with store.transaction() as tx:
        outgoing = await EventsHandler().handle(tx, moment(seconds), messages)
        await tx.post(outgoing)


async def tick(store: MemoryStore, seconds: float) -> None:
    for work in (Ticks().settlements, Ticks().visits):
        async with store.transaction() as tx:
            await tx.post(await work(tx, moment(seconds)))


def told(store: MemoryStore, model: type[M]) -> list[M]:
    return [
        model.model_validate_json(item.message.data) for item in store.outbox if item.message.type == model.__name__
    ]


def answer_of(probe: ProbeTask, value: Any = "publish", *, seconds: float, **options: Any) -> Observed:
    return Observed(
        visit_id=probe.visit_id,
        tenant=probe.tenant,
        system=probe.system,
        resource=probe.resource,
        command_id=probe.command_id,
        observations=tuple(
            seen(value, element=element.element, seconds=seconds, **options) for element in probe.elements
        ),
        observed_at=at(seconds),
    )


async def test_an_unknown_outcome_is_taken_up_looked_for_and_answered() -> None:
    """Requirements: X4"""
    store = MemoryStore()
    await deliver(store, message(settle_requested(), "m1"))
    (task,) = told(store, FindTask)
    assert [item.started for item in told(store, Settlement)] == [True]
    await deliver(store, message(found(task, finding(FindVerdict.CONFIRMED), seconds=1), "m2"), seconds=1)
    assert [(item.finished, item.verdict) for item in told(store, Settlement)] == [
        (False, None),
        (True, FindVerdict.CONFIRMED),
    ]
    subjects = [item.message.subject for item in store.outbox]
    assert subjects == [
        "trueup.task.wordpress.find.acme",
        "trueup.evt.reconciler.settlement.acme",
        "trueup.evt.reconciler.settlement.acme",
    ]
    assert {item.message.traceparent for item in store.outbox} == {message(settle_requested(), "x").traceparent}


async def test_the_find_task_has_the_find_id_as_message_id_so_a_repetition_is_one_message() -> None:
    store = MemoryStore()
    await deliver(store, message(settle_requested(), "m1"), message(settle_requested(), "m1-again"))
    assert [item.message.id for item in store.outbox if item.message.type == "FindTask"] == [
        told(store, FindTask)[0].find_id
    ]


async def test_due_settlements_are_looked_for_again_until_their_deadline() -> None:
    store = MemoryStore()
    await deliver(store, message(settle_requested(deadline_seconds=100), "m1"))
    for seconds in range(30, 400, 30):
        await tick(store, seconds)
    last = told(store, Settlement)[-1]
    assert (last.finished, last.verdict) == (True, FindVerdict.UNKNOWN)
    fences = [task.fence for task in told(store, FindTask)]
    assert fences == sorted(set(fences))


async def test_looks_keep_the_rate_of_their_system_and_none_is_lost() -> None:
    """An outage leaves hundreds of unknowns behind: their looks go out at the rate, one behind the other.

    Requirements: R6
    """
    store = MemoryStore()
    await deliver(store, *[message(settle_requested(str(number)), f"m{number}") for number in range(200)])
    burst = len(told(store, FindTask))
    assert burst == visit.Pace().burst
    assert len(told(store, Settlement)) == 200, "all are taken up at once, whenever their turn comes"
    sent = [burst]
    for step in range(1, 40):
        await tick(store, step * 0.25)
        sent.append(len(told(store, FindTask)))
    assert all(later - earlier <= visit.Pace().visits_per_second * 0.25 + 1 for earlier, later in pairwise(sent))
    assert len({task.operation.command_id for task in told(store, FindTask)}) == 200


async def test_what_is_owed_is_visited_at_once_and_paid_by_an_equal_observation() -> None:
    """Requirements: R1, R5"""
    store = MemoryStore()
    await deliver(store, message(established(), "m1"))
    (probe,) = told(store, ProbeTask)
    assert told(store, ElementChanged)[-1].phase is Phase.CONVERGING
    await deliver(store, message(answer_of(probe, seconds=2), "m2"), seconds=2)
    (paid,) = told(store, ElementVerified)
    assert (paid.phase, paid.command_id, paid.superseded_by) == (Phase.HEALTHY, "cmd_1", None)
    last = told(store, ElementChanged)[-1]
    assert (last.phase, last.observed, last.observed_at, last.source, last.observed_version) == (
        Phase.HEALTHY,
        "publish",
        at(2),
        "wordpress",
        "v1",
    )


async def test_an_observation_of_an_earlier_visit_pays_nothing_for_a_newer_operation() -> None:
    """The answer was read before the newer effect: it says nothing about it.

    Requirements: R5
    """
    store = MemoryStore()
    await deliver(store, message(established("old"), "m1"))
    (probe,) = told(store, ProbeTask)
    await deliver(store, message(established("new", sequence=2), "m2"), seconds=1)
    await deliver(store, message(answer_of(probe, seconds=1), "m3"), seconds=2)
    assert [(paid.command_id, paid.superseded_by) for paid in told(store, ElementVerified)] == [("cmd_old", "cmd_new")]
    (row,) = store.element.values()
    assert (row.owed, row.phase) == (True, Phase.CONVERGING)


async def test_the_case_that_no_longer_owns_an_element_hears_who_does() -> None:
    store = MemoryStore()
    await deliver(store, message(established("old"), "m1"))
    await deliver(store, message(established("new", sequence=2), "m2"), seconds=1)
    last = {event.workflow_id: event for event in told(store, ElementChanged)}
    assert last["wf_old"].reason == "superseded by cmd_new"
    assert last["wf_old"].next_visit_at is None
    assert last["wf_old"].version == last["wf_new"].version == 2


async def test_an_element_that_the_answer_leaves_out_is_unknown() -> None:
    store = MemoryStore()
    await deliver(store, message(established(elements=("wordpress.status", "wordpress.title")), "m1"))
    (probe,) = told(store, ProbeTask)
    half = answer_of(probe, seconds=1)
    await deliver(store, message(half.evolve(observations=half.observations[:1]), "m2"), seconds=1)
    phases = {row.element: row.phase for row in store.element.values()}
    assert phases == {half.observations[0].element: Phase.HEALTHY, half.observations[1].element: Phase.UNKNOWN}


async def test_a_post_deleted_an_hour_later_is_found_by_the_recheck_reported_and_closed_when_it_is_back() -> None:
    """Requirements: R8"""
    store = MemoryStore()
    await deliver(store, message(established(verified=True, observation=seen("publish")), "m1"))
    assert told(store, ProbeTask) == []
    await tick(store, 59)
    assert told(store, ProbeTask) == []
    await tick(store, 60)
    (probe,) = told(store, ProbeTask)
    gone = answer_of(probe, seconds=61, verdict=ProbeVerdict.MISSING)
    await deliver(store, message(gone, "m2"), message(gone, "m2-again"), seconds=61)
    (opened,) = told(store, ExceptionReported)
    assert (opened.obligation.kind, opened.obligation.status) == ("state_drift", "open")
    assert (opened.target_system, opened.target_resource) == ("wordpress", "post/1")
    await tick(store, 61 + 60)
    probe = told(store, ProbeTask)[-1]
    await deliver(store, message(answer_of(probe, seconds=122), "m3"), seconds=122)
    closed = told(store, ExceptionReported)[-1]
    assert (closed.obligation.status, closed.obligation.version) == ("closed", 2)
    assert [row.status for row in store.obligation.values()] == ["closed"]


async def test_a_message_that_cannot_be_read_or_speaks_for_another_tenant_is_refused_and_leaves_nothing() -> None:
    """Requirements: T1"""
    store = MemoryStore()
    good = message(settle_requested(), "m1")
    for bad in (
        message(settle_requested(tenant="globex"), "m2"),
        message(operation(), "m3"),
        Message("m4", "Found", "s", "acme", "test", at(0), b'{"find_id": 1}'),
    ):
        with pytest.raises(Unprocessable):
            await deliver(store, good, bad)
    assert store.settlement == {}
    assert store.outbox == []


async def test_another_tenants_answer_never_moves_a_settlement() -> None:
    """Requirements: T1"""
    store = MemoryStore()
    await deliver(store, message(settle_requested(), "m1"))
    (task,) = told(store, FindTask)
    foreign = found(task, finding(FindVerdict.CONFIRMED), seconds=1).evolve(tenant="globex")
    with pytest.raises(Unprocessable):
        await deliver(store, message(foreign, "m2", "globex"), seconds=1)


@pytest.mark.parametrize("seed", range(20))
async def test_any_order_and_repetition_in_any_batches_ends_the_same_and_pays_each_debt_exactly_once(seed: int) -> None:
    """Requirements: R1"""
    random = Random(seed)
    events = [established(f"{number}", sequence=number, desired=f"v{number}") for number in range(1, 6)]
    events += [established(f"x{number}", resource="post/2", sequence=number) for number in range(1, 4)]
    deliveries = [
        message(event, f"e{index}") for index, event in enumerate(events) for _ in range(random.randint(1, 3))
    ]
    random.shuffle(deliveries)
    store, seconds = MemoryStore(), 0.0
    world = {"post/1": "v5", "post/2": "publish"}
    answered: set[str] = set()
    while deliveries or any(row.owed for row in store.element.values()):
        seconds += 1
        assert seconds < 1000
        size = random.randint(1, 4)
        batch, deliveries = deliveries[:size], deliveries[size:]
        if batch:
            await deliver(store, *batch, seconds=seconds)
        await tick(store, seconds)
        for probe in told(store, ProbeTask):
            if probe.visit_id not in answered and random.random() < 0.7:
                answered.add(probe.visit_id)
                reply = message(answer_of(probe, world[probe.resource], seconds=seconds), f"o{probe.visit_id}")
                await deliver(store, *[reply] * random.randint(1, 2), seconds=seconds)
    final = {row.resource: (row.command_id, row.phase) for row in store.element.values()}
    assert final == {"post/1": ("cmd_5", Phase.HEALTHY), "post/2": ("cmd_x3", Phase.HEALTHY)}
    debts = Counter(item.message.id for item in store.outbox if item.message.type == "ElementVerified")
    paid = {event.command_id for event in told(store, ElementVerified)}
    assert paid == {f"cmd_{n}" for n in (1, 2, 3, 4, 5)} | {f"cmd_x{n}" for n in (1, 2, 3)}
    assert len(debts) == len(paid)
    versions = [(event.workflow_id, event.resource, event.version) for event in told(store, ElementChanged)]
    assert len(versions) == len(set(versions))
