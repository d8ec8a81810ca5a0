"""The planner on a real PostgreSQL: reports in, exceptions told, deadlines taken by one replica only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel
from tests.reconciler.schema import make_schema
from tests.repair_planner.builders import at, closed, message, moment, quarantine, reported
from tests.servers import Database as ServerDatabase

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import ExceptionChanged
from trueup_common.contracts.operators import UNDOING
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import VersionConflict
from trueup_repair_planner.core.lifecycle import Duty
from trueup_repair_planner.handler import EventsHandler, Ticks, rules_of
from trueup_repair_planner.store import _RELATED, SqlPlannerTransaction, sql_store
from trueup_repair_planner.tables import METADATA

DUTY = Duty(owner="operators", escalation_owner="duty-manager", sla_seconds=600)
RULES = rules_of(DUTY)
Store = SqlStore[SqlPlannerTransaction]


@pytest.fixture(scope="module")
def planner_schema(fresh_database: ServerDatabase) -> ServerDatabase:
    make_schema(fresh_database, METADATA)
    return fresh_database


@pytest.fixture
async def store(planner_schema: ServerDatabase) -> AsyncIterator[Store]:
    database = await Database.connect(planner_schema.admin_url, schema="repair_planner", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE exception, repair, incident, outbox")
    yield sql_store(database)
    await database.close()


async def deliver(store: Store, *bodies: BaseModel, seconds: float = 0) -> list[ExceptionChanged]:
    async with store.transaction() as tx:
        messages = [message(body, f"m{number}") for number, body in enumerate(bodies)]
        outgoing = await EventsHandler(RULES).handle(tx, moment(seconds), messages)
        await tx.post(outgoing)
        return told(outgoing)


def told(outgoing: object) -> list[ExceptionChanged]:
    assert isinstance(outgoing, list)
    assert all(isinstance(item, Outgoing) for item in outgoing)
    messages = [item.message for item in outgoing if item.message.type == "ExceptionChanged"]
    assert {message.subject for message in messages} <= {"trueup.evt.planner.exception.acme"}
    return [ExceptionChanged.model_validate_json(message.data) for message in messages]


async def test_every_report_is_adopted_and_told_with_owner_deadline_and_class(store: Store) -> None:
    """Requirements: Q2, Q4"""
    changed = await deliver(store, reported(), quarantine())
    assert [(item.kind, item.status, item.lifecycle, item.owner, item.version) for item in changed] == [
        ("dead_letter", "open", "assigned", "operators", 1),
        ("quarantined_message", "open", "assigned", "operators", 1),
    ]
    assert changed[0].deadline_at == at(600)
    assert changed[0].envelope["command_id"] == "cmd_1"
    assert changed[0].allowed_actions == ()
    async with store.transaction() as tx:
        rows = await tx.exceptions([item.exception_id for item in changed])
    assert {row.exception_id for row in rows} == {item.exception_id for item in changed}


async def test_a_repeated_or_older_report_changes_and_tells_nothing(store: Store) -> None:
    await deliver(store, reported(version=2))
    assert await deliver(store, reported(version=2), reported(version=1)) == []


async def test_a_closed_obligation_closes_its_exception_and_says_how_and_by_whom(store: Store) -> None:
    (opened,) = await deliver(store, reported())
    (done,) = await deliver(store, closed(resolution="observed_healthy"), seconds=60)
    assert done.exception_id == opened.exception_id
    assert (done.status, done.lifecycle, done.resolution_type, done.resolved_by, done.version) == (
        "closed",
        "closed",
        "observed_healthy",
        "orchestrator",
        2,
    )
    assert [entry["to"] for entry in done.envelope["trail"]][-3:] == ["repaired", "verified", "closed"]


async def test_opened_and_closed_in_one_batch_is_one_row_and_one_message(store: Store) -> None:
    (changed,) = await deliver(store, reported(), closed())
    assert (changed.status, changed.version) == ("closed", 1)


async def test_two_replicas_escalate_each_overdue_exception_once(store: Store) -> None:
    """Requirements: Q4"""
    await deliver(store, *[reported(str(number)) for number in range(250)])
    async with store.transaction() as first, store.transaction() as second:
        one = told(await Ticks(RULES).deadlines(first, moment(600)))
        two = told(await Ticks(RULES).deadlines(second, moment(600)))
    assert (len(one), len(two)) == (200, 50)
    assert len({item.exception_id for item in (*one, *two)}) == 250
    assert {(item.owner, item.deadline_at) for item in (*one, *two)} == {("duty-manager", at(1200))}
    async with store.transaction() as tx:
        assert await Ticks(RULES).deadlines(tx, moment(601)) == []


async def test_nothing_is_left_to_its_case_for_longer_than_its_deadline(store: Store) -> None:
    """Whatever its case does then: it is escalated, and planned for.

    Requirements: Q4, Q5
    """
    left = {"kind": "failed", "failure_class": "SCHEMA_ERROR", "envelope": {UNDOING: True}}
    given_back = {**left, "envelope": {}}
    await deliver(
        store, reported("1", **left), reported("2", deadline_seconds=9000, **left), reported("3", **given_back)
    )
    async with store.transaction() as tx:
        outgoing = await Ticks(RULES).deadlines(tx, moment(600))
    async with store.transaction() as tx:
        late = {row.obligation_id: row for row in await tx.exceptions([item.exception_id for item in told(outgoing)])}
        repairs = await tx.related_repairs([], sorted(row.exception_id for row in late.values()))
    assert set(late) == {"obl_1", "obl_3"} and len(repairs) == 2
    row = late["obl_1"]
    (repair,) = [item for item in repairs if item.exception_id == row.exception_id]
    assert (row.owner, row.escalations_count, row.repair_status) == ("duty-manager", 1, "PLANNED")
    assert (repair.status, repair.playbook) == ("PLANNED", "failed")
    types = [item.message.type for item in outgoing]
    assert sorted(types) == ["ExceptionChanged", "ExceptionChanged", "RepairChanged"]
    async with store.transaction() as tx:
        assert await Ticks(RULES).deadlines(tx, moment(601)) == []


async def test_two_replicas_that_hear_of_the_same_exception_make_one(store: Store) -> None:
    async with store.transaction() as first:
        await EventsHandler(RULES).handle(first, moment(0), [message(reported(), "m1")])
    with pytest.raises(VersionConflict):
        async with store.transaction() as second:
            (row,) = await second.exceptions(
                [
                    record["exception_id"]
                    for record in await second.connection.fetch("SELECT exception_id FROM exception")
                ]
            )
            await second.save(([row], []))


async def test_a_report_of_an_unknown_kind_or_for_another_tenant_is_refused(store: Store) -> None:
    """Requirements: T1"""
    for bad in (reported(kind="mystery"), reported(tenant="globex")):
        with pytest.raises(Unprocessable):
            await deliver(store, reported("2"), bad)
    async with store.transaction() as tx:
        assert await tx.connection.fetchval("SELECT count(*) FROM exception") == 0


async def test_repairs_are_reached_by_their_key(store: Store) -> None:
    """Whatever was repaired in the past: each report asks for the repairs of its own subject.

    Requirements: B4
    """
    async with store.database.connection() as connection:
        await connection.execute(f"PREPARE related (text[], text[], text[]) AS SELECT * FROM repair {_RELATED}")
        try:
            plan = [record[0] for record in await connection.fetch("EXPLAIN EXECUTE related ('{}', '{}', '{}')")]
        finally:
            await connection.execute("DEALLOCATE related")
    text = "\n".join(plan)
    assert "Seq Scan" not in text and "Bitmap" not in text, text
    assert text.count("Index Cond") == sum("Index" in line and "Scan" in line for line in plan) == 4, text
