"""Starts that wait together, on a real database: one transaction, and nobody is refused for a neighbour."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.edge import EdgeUnderTest, edge
from tests.gateway.test_definitions import named, register
from tests.gateway.test_refusals import problem
from tests.gateway.test_workflow_start import ended
from tests.servers import Database

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.states import InstanceStatus
from trueup_gateway import starting
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.workflow_start import NewWorkflow, StartRequest
from trueup_gateway.starting import Started
from trueup_gateway.store import acceptance, authority, operators, people, reads, workflows

Answer = Started | Refused


def wanted(capability: dict[str, Any], key: str, **changes: Any) -> StartRequest:
    """A start as the API hands it on."""
    given = {"slug": key, "title": "A title"}
    base = StartRequest(
        tenant="acme",
        key=key,
        fingerprint=digest([key]),
        capability_id=capability["capability_id"],
        system="*",
        resource="*",
        payload_sha256=None,
        expected_version=None,
        definition="article",
        version=None,
        input=given,
        input_sha256=digest(given),
        actions_max=5,
        on_terminal="return",
        workflow_id=f"wf_{key}",
        saga_id=f"saga_{key}",
    )
    return replace(base, **changes)


async def together(gateway: EdgeUnderTest, *requests: StartRequest) -> list[Answer]:
    """Requests of one batch: nothing runs between them."""
    return list(await asyncio.gather(*(gateway.gateway.starter.enqueue(request) for request in requests)))


def slugs(answers: list[Answer]) -> list[str | None]:
    """The problem of each that was refused, and the check that failed, if one is named."""
    return [answer.check or answer.problem.slug if isinstance(answer, Refused) else None for answer in answers]


async def test_starts_that_wait_together_share_a_transaction(gateway: EdgeUnderTest) -> None:
    """60 at once under one capability are 60 cases in few commits; each use is counted, each message is sent once.

    Requirements: G3, L2
    """
    made = await gateway.start_capability(wanted={"max_uses": 60})
    before = len(gateway.publisher.published)
    answers = await asyncio.gather(*(gateway.start(made["capability"], f"many-{number}") for number in range(60)))
    assert {answer.status_code for answer in answers} == {202}
    ids = {answer.json()["workflow_id"] for answer in answers}
    starter = gateway.gateway.starter
    assert starter.accepted_count == len(ids) == 60 and starter.batches_count < 25
    assert Counter(item.message.id for item in gateway.publisher.published[before:]) == Counter(ids)
    of_capability = f"capability_id = '{made['capability_id']}'"
    assert await gateway.count("capability", f"{of_capability} AND uses_left = 0") == 1
    assert await gateway.count("edge", of_capability) == await gateway.count("mandate", of_capability) == 60
    for name in ids:
        assert await gateway.count("case_view", f"workflow_id = '{name}'") == 1
    problem(await gateway.start(made["capability"], "one-more"), 403, "forbidden", "uses")


async def test_a_batch_answers_each_for_itself(gateway: EdgeUnderTest) -> None:
    """Two with one key are one start and one repetition; who is refused neither starts anything nor stops a neighbour.

    Requirements: I2, L2, G3
    """
    made = await gateway.start_capability(wanted={"max_uses": 2})
    other = await gateway.start_capability(wanted={"max_uses": 5})
    batches = gateway.gateway.starter.batches_count
    answers = await together(
        gateway,
        wanted(made, "first"),
        wanted(made, "first", workflow_id="wf_twin", saga_id="saga_twin"),
        wanted(made, "first", workflow_id="wf_reused", fingerprint="another"),
        wanted(made, "second", input={"slug": "Not A Slug", "title": "A title"}),
        wanted(made, "third", definition="nothing"),
        wanted(made, "fourth", version=7),
        wanted(made, "fifth"),
        wanted(made, "sixth"),
        wanted(other, "sixth"),
        wanted(made, "seventh", capability_id="cap_nobody"),
    )
    assert gateway.gateway.starter.batches_count == batches + 1
    assert answers[:2] == [Started("wf_first", "saga_first", False), Started("wf_first", "saga_first", True)]
    assert slugs(answers) == [
        None,
        None,
        "idempotency-key-reused",
        "payload-invalid",
        "scope",
        "not-found",
        None,
        "uses",
        None,
        "revoked",
    ]
    sent = [item.message.id for item in gateway.publisher.published[-3:]]
    assert sent == ["wf_first", "wf_fifth", "wf_sixth"]
    assert await gateway.count("edge", f"capability_id = '{made['capability_id']}'") == 2
    assert await gateway.count("edge", "key IN ('second', 'third', 'fourth', 'seventh')") == 0


async def test_keys_are_taken_over_together(gateway: EdgeUnderTest) -> None:
    """Revisions of several cases beside a new one, in one batch: each key stands for its newest case.

    Requirements: L2
    """
    made = await gateway.start_capability(wanted={"max_uses": 9})
    await together(gateway, wanted(made, "over-1"), wanted(made, "over-2"), wanted(made, "open"))
    for key, status in (("over-1", InstanceStatus.CLOSED), ("over-2", InstanceStatus.COMPENSATED)):
        await ended(gateway, f"wf_{key}", status)
    again = [
        wanted(made, key, workflow_id=f"wf_{key}-2", on_terminal="revise")
        for key in ("over-2", "over-1", "open", "new")
    ]
    answers = await together(gateway, *again)
    assert [answer.workflow_id for answer in answers if isinstance(answer, Started)] == [
        "wf_over-2-2",
        "wf_over-1-2",
        "wf_open",
        "wf_new-2",
    ]
    assert slugs(answers) == [None] * 4
    for key, workflow_id in (("over-1", "wf_over-1-2"), ("over-2", "wf_over-2-2"), ("open", "wf_open")):
        assert await gateway.count("edge", f"key = '{key}' AND workflow_id = '{workflow_id}'") == 1
    assert await gateway.count("capability", f"capability_id = '{made['capability_id']}' AND uses_left = 3") == 1


async def test_a_key_is_taken_over_once(gateway: EdgeUnderTest) -> None:
    """Who would take over the key of a case that has a successor already is decided again, and gets the successor.

    Requirements: L2, I2
    """
    made = await gateway.start_capability()
    await together(gateway, wanted(made, "twice"))
    await ended(gateway, "wf_twice", InstanceStatus.CLOSED)
    proper, other = starting.decide_starts, wanted(made, "twice", workflow_id="wf_twice-2", on_terminal="revise")

    def late(requests: Any, known: Any) -> Any:
        """Decide on what was read before another replica was first."""
        stale = {**known.by_key, ("acme", "twice"): replace(known.by_key["acme", "twice"], workflow_id="wf_before")}
        return proper(requests, replace(known, by_key=stale))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "decide_starts", late)
        assert slugs(await together(gateway, other)) == ["idempotency-in-flight"]
    assert await gateway.count("edge", "key = 'twice' AND workflow_id = 'wf_twice'") == 1
    assert await together(gateway, other) == [Started("wf_twice-2", "saga_twice", False)]


async def test_one_broken_start_does_not_take_its_neighbours(
    gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure inside a batch is found alone; the others of the batch are started, each once.

    Requirements: M3
    """
    made = await gateway.start_capability(wanted={"max_uses": 10})
    proper = starting._outgoing

    def failing(new: NewWorkflow, request: StartRequest, *rest: Any) -> Any:
        if request.key == "broken-3":
            raise RuntimeError("broken")
        return proper(new, request, *rest)

    monkeypatch.setattr(starting, "_outgoing", failing)
    answers = await asyncio.gather(*(gateway.start(made["capability"], f"broken-{number}") for number in range(6)))
    assert [answer.status_code for answer in answers] == [202] * 3 + [500] + [202] * 2
    assert await gateway.count("edge", "key LIKE 'broken-%'") == 5
    assert await gateway.count("capability", f"capability_id = '{made['capability_id']}' AND uses_left = 5") == 1


async def test_a_start_key_in_another_transaction_is_409_in_flight(gateway: EdgeUnderTest) -> None:
    """Whoever holds the key uncommitted makes others wait for a bounded time; neighbours are started.

    Requirements: I2
    """
    made = await gateway.start_capability()
    async with gateway.database.connection() as holder:
        transaction = holder.transaction()
        await transaction.start()
        try:
            await holder.execute(
                "INSERT INTO gateway.edge (tenant, key, fingerprint, command_id, workflow_id, saga_id, capability_id, "
                "created_at, expires_at) VALUES ('acme', 'held', 'f', 'c', 'w', 's', 'p', now(), now())"
            )
            answers = await together(gateway, wanted(made, "held"), wanted(made, "free"))
        finally:
            await transaction.rollback()
    assert slugs(answers) == ["idempotency-in-flight", None]
    assert slugs(await together(gateway, wanted(made, "held"))) == [None]


async def test_who_retires_holds_back_only_that_workflow(gateway: EdgeUnderTest) -> None:
    """A batch waits for a retirement that is under way; starts of other workflows do not.

    Requirements: L3
    """
    assert (await register(gateway, "aside", named("aside"))).status_code == 201
    made, aside = await gateway.start_capability(), await gateway.start_capability("aside")
    async with gateway.gateway.store.transaction() as tx:
        await tx.hold_definition("acme", "article")
        answers = await together(gateway, wanted(made, "retiring"), wanted(aside, "aside", definition="aside"))
    assert slugs(answers) == ["idempotency-in-flight", None]
    assert slugs(await together(gateway, wanted(made, "retiring"))) == [None]


async def test_replicas_that_take_the_same_keys_agree(gateway_database: Database) -> None:
    """Batches of two replicas with the same keys in opposite order: one case per key, and everyone gets its id.

    Requirements: L2, I2, N
    """
    async with edge(gateway_database) as left, edge(gateway_database) as right:
        made = [await left.start_capability(wanted={"max_uses": 20}) for _ in range(2)]
        keys = [f"both-{number}" for number in range(20)]
        mine, theirs = await asyncio.gather(
            together(left, *(wanted(made[0], key, workflow_id=f"wf_l-{key}") for key in keys)),
            together(right, *(wanted(made[1], key, workflow_id=f"wf_r-{key}") for key in reversed(keys))),
        )
        assert slugs(mine) == slugs(theirs) == [None] * 20
        pairs = zip(mine, reversed(theirs), strict=True)
        for one, other in pairs:
            assert isinstance(one, Started) and isinstance(other, Started)
            assert one.workflow_id == other.workflow_id and {one.replayed, other.replayed} == {True, False}
        assert len(left.publisher.published) + len(right.publisher.published) == 20
        assert await left.count("edge", "key LIKE 'both-%'") == 20


async def test_a_full_queue_of_starts_is_429(gateway: EdgeUnderTest) -> None:
    """Requests past the bound are refused at once, with the time to come back.

    Requirements: T3
    """
    made = await gateway.start_capability(wanted={"max_uses": 20})
    gateway.gateway.starter._queue_max = 3
    answers = await asyncio.gather(*(gateway.start(made["capability"], f"full-{number}") for number in range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and any(answer.status_code == 202 for answer in answers)
    for answer in refused:
        problem(answer, 429, "rate-limited")
        assert int(answer.headers["retry-after"]) >= 1
    gateway.gateway.starter._queue_max = 100
    number = answers.index(refused[0])
    assert (await gateway.start(made["capability"], f"full-{number}")).status_code == 202


async def test_what_waits_when_the_gateway_leaves_was_never_accepted(gateway_database: Database) -> None:
    """It is answered as unavailable, and no row of it is there."""
    async with edge(gateway_database) as leaving:
        made = await leaving.start_capability()
        starter = leaving.gateway.starter
        assert starter.alive
        waiting = starter.enqueue(wanted(made, "left"))
        await starter.close()
        assert not starter.alive
        assert slugs([await waiting]) == ["unavailable"]
        assert await leaving.count("edge", "key = 'left'") == 0


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("existing", workflows._EXISTING),
        ("capabilities", acceptance._LOCK_CAPABILITIES),
        ("use", acceptance._USE.format(1, 2)),
        ("take over", workflows._TAKE_OVER),
        ("definitions", f"SELECT * FROM gateway.definition {workflows._EACH_NAMED}"),
        ("grants", authority._GROUNDS),
        ("whole case", reads._WHOLE_CASE),
        ("act at work", f"SELECT * FROM gateway.operator_command {operators._AT_WORK}"),
        ("acts about", f"SELECT $1::text, $2::text FROM gateway.operator_command WHERE {operators._ABOUT}"),
        ("own approval", f"SELECT FROM gateway.approval AS a WHERE a.approval_id = $1 AND {people._OWN}"),
    ],
)
async def test_rows_of_a_batch_are_reached_by_their_key(gateway: EdgeUnderTest, name: str, statement: str) -> None:
    """A plan made while a table was small must not read all of it for ever after.

    Requirements: B4
    """
    nothing = ", ".join(["NULL"] * max(int(number) for number in re.findall(r"\$(\d+)", statement)))
    async with gateway.database.connection() as connection:
        await connection.execute(f"PREPARE asked AS {statement}")
        try:
            plan = [record[0] for record in await connection.fetch(f"EXPLAIN EXECUTE asked({nothing})")]
        finally:
            await connection.execute("DEALLOCATE asked")
    text = "\n".join(plan)
    assert "Bitmap" not in text and "Materialize" not in text, text
    assert not re.search(r"Seq Scan on (?!governance)", text), text  # one row, always
    assert text.count("Index Cond") == sum("Index" in line and "Scan" in line for line in plan), text
