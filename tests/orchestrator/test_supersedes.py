"""A command in the place of another, on real PostgreSQL: the identity passes on once, and old trouble is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests import servers
from tests.orchestrator.cases import receipt
from tests.orchestrator.test_store import Plane, accepted

from trueup_common.contracts.events import CaseChanged, Established, ExceptionReported
from trueup_common.contracts.states import ErrorClass, OperationState, ReceiptStatus
from trueup_common.runtime.db import Database

S = OperationState


@pytest.fixture
async def plane(plane_database: servers.Database) -> AsyncIterator[Plane]:
    database = await Database.connect(plane_database.url("orchestrator"), schema="orchestrator", size=4)
    async with database.connection() as connection:
        for table in ("operation", "instance", "obligation", "history", "outbox", "inbox"):
            await connection.execute(f"DELETE FROM {table}")
    yield Plane(database)
    await database.close()


async def ended(plane: Plane, number: int, status: ReceiptStatus, **error: object) -> str:
    """A command that came to its end; its id."""
    body = await accepted(plane, number, slug="same")
    await plane.react(plane.commands, [body])
    await plane.react(plane.events, [receipt(await plane.row(body.command_id), status, **error)])
    return body.command_id


async def test_the_identity_of_what_succeeded_passes_on_to_its_repair_and_to_nobody_else(plane: Plane) -> None:
    """Requirements: O6, I2, R3"""
    first = await ended(plane, 1, ReceiptStatus.CONFIRMED)
    before = await plane.row(first)
    assert before.state is S.SUCCESS and before.identity is not None
    stranger = await accepted(plane, 2, slug="same")
    await plane.react(plane.commands, [stranger])
    assert (await plane.row(stranger.command_id)).error_code == "identity_in_use"
    repair = (await accepted(plane, 3, slug="same")).evolve(supersedes=first)
    await plane.react(plane.commands, [repair])
    row = await plane.row(repair.command_id)
    assert (row.state, row.supersedes, row.identity) == (S.DISPATCHING, first, before.identity)
    after = await plane.row(first)
    assert (after.state, after.identity, after.state_version) == (S.SUCCESS, None, before.state_version + 1)
    again = (await accepted(plane, 4, slug="same")).evolve(supersedes=first)
    await plane.react(plane.commands, [again])
    assert (await plane.row(again.command_id)).error_code == "identity_in_use"


async def test_a_repair_tells_whose_place_it_took_with_what_it_establishes(plane: Plane) -> None:
    """Requirements: O6, R3"""
    first = await ended(plane, 1, ReceiptStatus.CONFIRMED)
    repair = (await accepted(plane, 2, slug="same")).evolve(supersedes=first)
    await plane.react(plane.commands, [repair])
    sent = await plane.react(plane.events, [receipt(await plane.row(repair.command_id), ReceiptStatus.CONFIRMED)])
    (told,) = [item.message for item in sent if item.message.type == "Established"]
    assert Established.model_validate_json(told.data).supersedes == first


@pytest.mark.parametrize(
    "undoing",
    [
        "UPDATE operation SET compensation_state = 'COMPENSATING' WHERE command_id = $1",
        "UPDATE operation SET compensation_state = 'COMPENSATED' WHERE command_id = $1",
        "UPDATE instance SET direction = 'backward' FROM operation AS o"
        " WHERE instance.workflow_id = o.workflow_id AND o.command_id = $1",
    ],
)
async def test_what_its_case_takes_back_is_not_repaired(plane: Plane, undoing: str) -> None:
    """The drift was seen before the case turned: its repair comes too late, ends as cancelled, and nobody owes for it.

    Requirements: R9, S4, O6
    """
    first = await ended(plane, 1, ReceiptStatus.CONFIRMED)
    async with plane.database.connection() as connection:
        await connection.execute("UPDATE operation SET compensation_command = 'site.undo' WHERE command_id = $1", first)
        await connection.execute(undoing, first)
    repair = (await accepted(plane, 2, slug="same")).evolve(supersedes=first)
    sent = await plane.react(plane.commands, [repair])
    assert (await plane.row(repair.command_id)).state is S.CANCELLED
    assert [item.message.type for item in sent if item.message.type in ("ExecuteTask", "ExceptionReported")] == []
    (case,) = [
        CaseChanged.model_validate_json(item.message.data) for item in sent if item.message.type == "CaseChanged"
    ]
    assert case.instance.status.value == "CANCELLED"


async def test_nothing_takes_the_place_of_what_is_still_running(plane: Plane) -> None:
    """Requirements: O6, I1"""
    running = await accepted(plane, 1, slug="same")
    await plane.react(plane.commands, [running])
    other = (await accepted(plane, 2, slug="same")).evolve(supersedes=running.command_id)
    await plane.react(plane.commands, [other])
    assert (await plane.row(other.command_id)).error_code == "identity_in_use"
    assert (await plane.row(running.command_id)).identity is not None


async def test_what_failed_is_resolved_once_an_edited_command_takes_its_place(plane: Plane) -> None:
    """Requirements: O6, Q8"""
    failed = await ended(
        plane, 1, ReceiptStatus.REJECTED, error_class=ErrorClass.PERMANENT, error_code="payload_invalid"
    )
    assert (await plane.row(failed)).state is S.FAILED
    edited = (await accepted(plane, 2, slug="same")).evolve(supersedes=failed)
    sent = await plane.react(plane.commands, [edited])
    row = await plane.row(failed)
    assert (row.state, row.resolution_type) == (S.RESOLVED, "superseded")
    reports = [item.message for item in sent if item.message.type == "ExceptionReported"]
    (over,) = [ExceptionReported.model_validate_json(item.data).obligation for item in reports]
    assert (over.command_id, over.status, over.resolution_type) == (failed, "closed", "superseded")
    cases = [CaseChanged.model_validate_json(item.message.data) for item in sent if item.message.type == "CaseChanged"]
    states = {case.operations[0].command_id: case.instance.status.value for case in cases}
    assert states == {failed: "RESOLVED", edited.command_id: "RUNNING"}
    assert (await plane.row(edited.command_id)).state is S.DISPATCHING
