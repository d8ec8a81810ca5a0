"""The reconciler's store on a real PostgreSQL: two replicas never take the same row, and a loser decides again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.reconciler.builders import at, established, finding, found, message, moment, seen, settle_requested
from tests.reconciler.schema import make_schema
from tests.servers import Database as ServerDatabase

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.states import FindVerdict, Phase
from trueup_common.contracts.task import FindTask, Observed, ProbeTask
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.ports import VersionConflict
from trueup_reconciler.core.settlement import SettlementState
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.store import Listed, SqlReconcilerTransaction, sql_store
from trueup_reconciler.tables import METADATA

TABLES = ("settlement", "element", "pace", "obligation", "outbox")


@pytest.fixture(scope="module")
def reconciler_schema(fresh_database: ServerDatabase) -> ServerDatabase:
    make_schema(fresh_database, METADATA)
    return fresh_database


@pytest.fixture
async def store(reconciler_schema: ServerDatabase) -> AsyncIterator[SqlStore[SqlReconcilerTransaction]]:
    database = await Database.connect(reconciler_schema.admin_url, schema="reconciler", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE " + ", ".join(TABLES))
    yield sql_store(database)
    await database.close()


async def deliver(
    store: SqlStore[SqlReconcilerTransaction], *bodies: tuple[object, str], seconds: float = 0, tenant: str = "acme"
) -> list[Outgoing]:
    async with store.transaction() as tx:
        messages = [message(body, name, tenant) for body, name in bodies]  # type: ignore[arg-type]
        outgoing = list(await EventsHandler().handle(tx, moment(seconds), messages))
        await tx.post(outgoing)
        return outgoing


def finds(outgoing: list[Outgoing]) -> list[FindTask]:
    return [FindTask.model_validate_json(item.message.data) for item in outgoing if item.message.type == "FindTask"]


async def test_a_settlement_survives_every_field_and_ends_with_its_verdict(
    store: SqlStore[SqlReconcilerTransaction],
) -> None:
    (task,) = finds(await deliver(store, (settle_requested(late_until=at(9)), "m1")))
    async with store.transaction() as tx:
        (row,) = await tx.settlements([task.operation.command_id])
    assert (row.state, row.fence, row.find_id, row.late_until) == (SettlementState.FINDING, 2, task.find_id, at(9))
    await deliver(store, (found(task, finding(FindVerdict.CONFIRMED), seconds=1), "m2"), seconds=1)
    async with store.transaction() as tx:
        (row,) = await tx.settlements([task.operation.command_id])
    assert (row.state, row.verdict, row.next_at, row.state_version) == (
        SettlementState.DONE,
        FindVerdict.CONFIRMED,
        None,
        2,
    )


@pytest.mark.parametrize("desired", ["publish", "ü\u2028 <p>", 0, False, None, {"a": [1, None]}, []])
async def test_an_element_survives_every_json_value(store: SqlStore[SqlReconcilerTransaction], desired: object) -> None:
    await deliver(store, (established(desired=desired), "m1"))
    async with store.transaction() as tx:
        (row,) = await tx.elements(["acme:wordpress:post/1"])
    assert (row.desired, row.phase, row.owed) == (desired, Phase.CONVERGING, True)
    assert row.visit_id is not None


async def test_two_replicas_never_take_the_same_due_settlement(store: SqlStore[SqlReconcilerTransaction]) -> None:
    """Both ticks stand open at once; between them they take each operation once."""
    await deliver(store, *[(settle_requested(str(number)), f"m{number}") for number in range(30)])
    async with store.transaction() as first, store.transaction() as second:
        one = await first.due_settlements(at(3600), 20)
        two = await second.due_settlements(at(3600), 20)
    assert (len(one), len(two)) == (20, 10)
    assert not {row.command_id for row in one} & {row.command_id for row in two}


async def test_two_replicas_never_visit_the_same_due_element(store: SqlStore[SqlReconcilerTransaction]) -> None:
    await deliver(store, *[(established(str(n), resource=f"post/{n}"), f"m{n}") for n in range(30)])
    async with store.transaction() as first, store.transaction() as second:
        one = await first.due_elements(at(3600), 20)
        two = await second.due_elements(at(3600), 20)
    assert (len(one), len(two)) == (20, 10)
    assert not {row.object_key for row in one} & {row.object_key for row in two}


async def test_the_loser_of_a_race_changes_nothing_and_reloads(store: SqlStore[SqlReconcilerTransaction]) -> None:
    """Two replicas hold the same answer and the same request; each fact is kept once.

    Requirements: L5
    """
    (task,) = finds(await deliver(store, (settle_requested(), "m1")))
    answer = message(found(task, finding(FindVerdict.CONFIRMED), seconds=1), "m2")
    handler = EventsHandler()
    with pytest.raises(VersionConflict):
        async with store.transaction() as loser:
            rows = await loser.settlements([task.operation.command_id])
            async with store.transaction() as winner:
                await handler.handle(winner, moment(1), [answer])
            stale = _Frozen(loser, rows)
            await handler.handle(stale, moment(1), [answer])  # type: ignore[arg-type]
    async with store.transaction() as tx:
        assert await handler.handle(tx, moment(2), [answer]) == []
        (row,) = await tx.settlements([task.operation.command_id])
    assert row.verdict is FindVerdict.CONFIRMED


async def test_two_replicas_that_hear_of_the_same_operation_at_once_make_one_settlement(
    store: SqlStore[SqlReconcilerTransaction],
) -> None:
    handler = EventsHandler()
    async with store.transaction() as first:
        await handler.handle(first, moment(0), [message(settle_requested(), "m1")])
    with pytest.raises(VersionConflict):
        async with store.transaction() as second:
            await handler.handle(_Frozen(second, []), moment(0), [message(settle_requested(), "m1")])  # type: ignore[arg-type]
    async with store.transaction() as tx:
        assert len(await tx.settlements(["cmd_1"])) == 1


async def test_drift_and_its_obligation_are_kept_together_and_closed_together(
    store: SqlStore[SqlReconcilerTransaction],
) -> None:

    outgoing = await deliver(store, (established(), "m1"))
    for seconds, value, status in ((1, "draft", "open"), (70, "publish", "closed")):
        (probe,) = [
            ProbeTask.model_validate_json(item.message.data) for item in outgoing if item.message.type == "ProbeTask"
        ]
        observed = Observed(
            visit_id=probe.visit_id,
            tenant=probe.tenant,
            system=probe.system,
            resource=probe.resource,
            command_id=probe.command_id,
            observations=(seen(value, seconds=seconds),),
            observed_at=at(seconds),
        )
        await deliver(store, (observed, f"o{seconds}"), seconds=seconds)
        async with store.transaction() as tx:
            (record,) = await tx.connection.fetch("SELECT status FROM obligation")
            outgoing = list(await Ticks().visits(tx, moment(seconds + 65)))
        assert record["status"] == status


async def test_what_surveys_list_is_kept_per_object_and_operation_and_only_what_was_listed_can_be_missed(
    store: SqlStore[SqlReconcilerTransaction],
) -> None:
    """Requirements: R10, T1"""
    await deliver(store, *[(established(str(n), resource=f"post/{n}"), f"m{n}") for n in range(4)])
    await deliver(store, (established("g", resource="post/0", tenant="globex"), "m9"), tenant="globex")
    async with store.transaction() as tx:
        await tx.listed(Listed("acme", "wordpress", ("cmd_0", "cmd_g"), ("post/1", "post/9")), at(10))
        assert await tx.unlisted("acme", "wordpress", at(10), 9) == []
        gone = await tx.unlisted("acme", "wordpress", at(11), 9)
        assert [(row.resource, row.surveyed_at) for row in gone] == [("post/0", at(10)), ("post/1", at(10))]
        assert await tx.unlisted("globex", "wordpress", at(11), 9) == []
        assert len(await tx.unlisted("acme", "wordpress", at(11), 1)) == 1


async def test_the_elements_of_a_business_object_are_found_together(store: SqlStore[SqlReconcilerTransaction]) -> None:
    """Requirements: R1, T1"""
    for name, tenant, number in (("1", "acme", "7"), ("2", "acme", "7"), ("3", "acme", "8"), ("4", "globex", "7")):
        event = established(name, resource=f"post/{name}", tenant=tenant)
        await deliver(store, (event.evolve(object_type="article", object_id=number), f"m{name}"), tenant=tenant)
    async with store.transaction() as tx:
        rows = await tx.siblings([("acme", "article", "7"), ("acme", "article", "none")])
    assert {row.resource for row in rows} == {"post/1", "post/2"}


class _Frozen:
    """A transaction whose replica read its settlements before another one moved them."""

    def __init__(self, tx: SqlReconcilerTransaction, rows: list[object]) -> None:
        self._tx = tx
        self._rows = rows

    async def settlements(self, command_ids: object) -> list[object]:
        return self._rows

    def __getattr__(self, name: str) -> object:
        return getattr(self._tx, name)
