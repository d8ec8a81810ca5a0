"""Places at locks on real PostgreSQL: taken with the case, given up with its end, and nobody left behind at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from tests import servers
from tests.orchestrator.cases import NOW, At
from tests.orchestrator.sagas import DECLARATIONS, document, make, start_message
from tests.orchestrator.test_store import Plane, now_of

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import GrantRequest, StartWorkflow
from trueup_common.contracts.states import ReceiptStatus
from trueup_common.contracts.task import Receipt
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.runtime.db import Database
from trueup_common.runtime.ports import VersionConflict

QUEUES = {"type": "article", "id": "${input.id}", "concurrency": "queue"}
SHARED = document(make("a"), locks=["shared"], object=QUEUES)
"""Cases about different objects that need the same lock."""
EMPTY = document({"id": "sure", "check": ["true"]}, locks=["shared"], object=QUEUES)
"""A case that is over as soon as it begins."""


@pytest.fixture
async def plane(plane_database: servers.Database) -> AsyncIterator[Plane]:
    database = await Database.connect(plane_database.url("orchestrator"), schema="orchestrator", size=4)
    async with database.connection() as connection:
        for table in ("operation", "instance", "obligation", "history", "outbox", "inbox", "lock"):
            await connection.execute(f"DELETE FROM {table}")
    yield Plane(database, declarations=tuple(DECLARATIONS.values()))
    await database.close()


async def starting(plane: Plane, *numbers: int, doc: WorkflowDocument = SHARED) -> list[StartWorkflow]:
    """Starts of cases, each about an object of its own."""
    now = await now_of(plane)
    return [start_message(doc, number, at=At(now, now), data={"id": str(number)}) for number in numbers]


def receipt_of(outgoing: list[Outgoing], at: datetime) -> Receipt:
    """The good end of the one effect that was proposed."""
    (message,) = [item.message for item in outgoing if item.message.type == "GrantRequest"]
    task = GrantRequest.model_validate_json(message.data).task
    return Receipt(
        command_id=task.operation.command_id,
        workflow_id=task.operation.workflow_id,
        tenant=task.operation.tenant,
        system=task.operation.target.system,
        command_type=task.operation.command_type,
        attempt_id=task.attempt_id,
        fence=task.fence,
        status=ReceiptStatus.CONFIRMED,
        result={"ref": "1"},
        started_at=at,
        sent_at=at,
        ended_at=at,
    )


async def react(plane: Plane, *bodies: StartWorkflow | Receipt) -> tuple[list[Outgoing], bool]:
    """What one batch sends, and whether it took a transaction around its writes."""
    handler: Any = plane.events if isinstance(bodies[0], Receipt) else plane.commands
    messages = [
        Message(
            id=body.workflow_id,
            type=type(body).__name__,
            subject="test",
            tenant=body.tenant,
            source="test",
            time=NOW,
            data=body.model_dump_json().encode(),
        )
        for body in bodies
    ]
    async with plane.store.transaction() as tx:
        moment, _ = await tx.claim("test", [])
        outgoing = await handler.handle(tx, moment, messages)
        await tx.post(outgoing)
        begun = tx.connection.begun
    await handler.settled(messages)
    return list(outgoing), begun


async def places(plane: Plane) -> dict[str, list[bool]]:
    """Who has a place at which lock, and whether the case holds it."""
    found: dict[str, list[bool]] = {}
    for row in await plane.fetch("SELECT key, held FROM lock ORDER BY key, since, workflow_id"):
        found.setdefault(row["key"], []).append(row["held"])
    return found


async def test_a_case_takes_and_gives_up_its_locks_in_the_statement_that_writes_it(plane: Plane) -> None:
    """No transaction stands around it; a statement alone is one.

    Requirements: S5, B2
    """
    await react(plane, *await starting(plane, 9, doc=EMPTY))
    await react(plane, *await starting(plane, 8))  # its document is kept by now
    await plane.fetch("DELETE FROM lock")
    sent, begun = await react(plane, *await starting(plane, 1))
    assert not begun and await places(plane) == {"object:article:1": [True], "declared:shared": [True]}
    _, begun = await react(plane, receipt_of(sent, await now_of(plane)))
    assert not begun and await places(plane) == {}
    assert {
        row["object_id"] for row in await plane.fetch("SELECT object_id FROM instance WHERE status = 'CLOSED'")
    } == {
        "1",
        "9",
    }


async def test_a_case_that_is_over_at_once_leaves_no_place_behind(plane: Plane) -> None:
    """Also where it takes part in a batch with one that queues behind it, which is woken.

    Requirements: S5, L5
    """
    await react(plane, *await starting(plane, 1, doc=EMPTY))
    assert await places(plane) == {}
    (first,) = await starting(plane, 2, doc=EMPTY)
    (second,) = await starting(plane, 3)
    await react(plane, first, second)
    assert await places(plane) == {"object:article:3": [False], "declared:shared": [False]}
    (woken,) = await plane.fetch("SELECT wake_at <= trueup.now() AS due FROM instance WHERE closed_at IS NULL")
    assert woken["due"]


async def test_who_queues_for_a_lock_is_woken_by_the_end_of_who_holds_it(plane: Plane) -> None:
    """With a new version, so that nobody who decided beside it puts it to sleep again.

    Requirements: S5, L5
    """
    first, second = await starting(plane, 1, 2)
    sent, _ = await react(plane, first, second)
    assert sorted((await places(plane))["declared:shared"]) == [False, True]
    (before,) = await plane.fetch("SELECT state_version FROM instance WHERE NOT locked")
    _, begun = await react(plane, receipt_of(sent, await now_of(plane)))
    left = await places(plane)
    assert not begun and left.pop("declared:shared") == [False] and list(left.values()) == [[False]]
    (after,) = await plane.fetch("SELECT state_version, wake_at <= trueup.now() AS due FROM instance WHERE NOT locked")
    assert (after["state_version"], after["due"]) == (before["state_version"] + 1, True)
    await plane.tick("due", later=0.001)
    assert [held for each in (await places(plane)).values() for held in each] == [True, True]


async def test_two_that_take_one_lock_at_once_do_not_both_have_it(plane: Plane) -> None:
    """The second to commit decides again, and queues.

    Requirements: S5
    """
    first, second = await starting(plane, 1, 2)
    with pytest.raises(VersionConflict):
        async with plane.store.transaction() as tx:
            moment, _ = await tx.claim("test", [])
            message = Message(
                id="late",
                type="StartWorkflow",
                subject="test",
                tenant=second.tenant,
                source="test",
                time=NOW,
                data=second.model_dump_json().encode(),
            )
            await tx.post(await plane.commands.handle(tx, moment, [message]))
            await react(plane, first)
    await react(plane, second)
    assert sorted((await places(plane))["declared:shared"]) == [False, True]
