"""Numbers through the gateway: projected changes are counted by the timer, per tenant, and read as figures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_refusals import problem
from tests.servers import Database

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import CaseChanged, ExceptionChanged
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import EffectClass, InstanceStatus, OperationState
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import Moment
from trueup_gateway.core.measures import MINUTE, Bounds, minute_of
from trueup_gateway.counting import Counting
from trueup_gateway.handler import ViewHandler

READERS = ("viewer", "operator", "auditor")


@pytest.fixture(autouse=True)
async def nothing_counted(gateway: EdgeUnderTest) -> None:
    """Every test counts its own objects."""
    async with gateway.database.connection() as connection:
        for table in ("cohort", "cohort_mark", "counter", "case_view", "command_view", "exception_view"):
            await connection.execute(f"DELETE FROM gateway.{table}")


async def project(gateway: EdgeUnderTest, *events: Any, tenant: str = "acme") -> None:
    now = real_now()
    messages = [
        Message(
            id=new_id("msg"),
            type=type(event).__name__,
            subject="s",
            tenant=tenant,
            source="test",
            time=now,
            data=event.model_dump_json().encode(),
        )
        for event in events
    ]
    async with gateway.gateway.store.transaction() as tx:
        await ViewHandler().handle(tx, Moment(now, now), messages)


async def count(gateway: EdgeUnderTest, counting: Counting | None = None) -> None:
    """One tick of the timer."""
    async with gateway.gateway.store.transaction() as tx:
        moment, _ = await tx.claim("gateway-numbers", [])
        assert await (counting or Counting(Bounds())).count(tx, moment) == ()


def case(began: datetime, **changes: Any) -> InstanceRow:
    return InstanceRow(
        **{
            "workflow_id": new_id("wf"),
            "saga_id": new_id("saga"),
            "tenant": "acme",
            "definition": "command",
            "sha256": "d" * 64,
            "status": InstanceStatus.RUNNING,
            "object_type": "wordpress",
            "object_id": "post",
            "subject": "agent:publisher",
            "mandate": {"risk": "low"},
            "created_at": began,
            "deadline_at": began + timedelta(hours=1),
            **changes,
        }
    )


def operation(instance: InstanceRow, **changes: Any) -> JournalRow:
    return JournalRow(
        **{
            "command_id": new_id("cmd"),
            "tenant": instance.tenant,
            "workflow_id": instance.workflow_id,
            "saga_id": instance.saga_id,
            "step_id": "command",
            "execution_id": "x",
            "decision_id": "dec_1",
            "mandate_id": "man_1",
            "command_type": "wordpress.create_draft",
            "declaration_sha256": "a" * 64,
            "effect_class": EffectClass.COMPENSABLE,
            "target_system": "wordpress",
            "target_resource": "post",
            "payload_sha256": "b" * 64,
            "idempotency_key": new_id("msg"),
            "request_fingerprint": "c" * 64,
            "state": OperationState.RUNNING,
            "created_at": instance.created_at,
            "last_transition_at": instance.created_at,
            "deadline_at": instance.deadline_at,
            **changes,
        }
    )


def changed(instance: InstanceRow, *operations: JournalRow) -> CaseChanged:
    return CaseChanged(instance=instance, operations=operations)


def exception(opened: datetime, **changes: Any) -> ExceptionChanged:
    return ExceptionChanged(
        **{
            "exception_id": new_id("exc"),
            "tenant": "acme",
            "kind": "dead_letter",
            "status": "open",
            "lifecycle": "assigned",
            "failure_class": "DEPENDENCY_ERROR",
            "owner": "operators",
            "deadline_at": opened + timedelta(hours=1),
            "opened_at": opened,
            "first_deadline_at": opened + timedelta(hours=1),
            "workflow_id": new_id("wf"),
            "envelope": {"human_review_required": True},
            "version": 1,
            **changes,
        }
    )


@asynccontextmanager
async def later(database: Database, minutes: float) -> AsyncIterator[None]:
    """Business time, so many minutes on."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        await connection.execute('UPDATE trueup.clock SET "offset" = $1', timedelta(minutes=minutes))
        yield
    finally:
        await connection.execute("UPDATE trueup.clock SET \"offset\" = '0'")
        await connection.close()


async def read(gateway: EdgeUnderTest, path: str, **who: Any) -> list[dict[str, Any]]:
    headers = gateway.headers(**{"sub": "operator:eye", "roles": ("viewer",), **who})
    response = await gateway.client.get(path, headers=headers)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def figure(gateway: EdgeUnderTest, name: str, window: int = 3600, **who: Any) -> tuple[float, float]:
    """(numerator, denominator) of a key figure."""
    items = await read(gateway, "/v1/kpis", **who)
    (found,) = [item for item in items if item["name"] == name and item["window_seconds"] in (window, 0)]
    return found["numerator"], found["denominator"]


async def level(gateway: EdgeUnderTest, name: str, **who: Any) -> dict[str, Any]:
    items = await read(gateway, "/v1/slo", **who)
    return next(item for item in items if item["name"] == name)


async def counters(gateway: EdgeUnderTest) -> list[dict[str, Any]]:
    async with gateway.database.connection() as connection:
        rows = await connection.fetch("SELECT tenant, grain, at, counts FROM gateway.counter ORDER BY 1, 2, 3")
    return [dict(row) for row in rows if row["counts"]]


async def test_a_case_is_counted_as_it_stands_at_last(gateway: EdgeUnderTest) -> None:
    """Changes in any order and counted any number of times come to one case, due and converged when it closed.

    Requirements: V2
    """
    began = real_now() - timedelta(minutes=10)
    instance = case(began)
    running = changed(instance, row := operation(instance))
    closed = changed(
        instance.evolve(state_version=3, status=InstanceStatus.CLOSED, closed_at=began + timedelta(minutes=2)),
        row.evolve(state_version=3, state=OperationState.SUCCESS, completed_at=began + timedelta(minutes=1)),
    )
    await project(gateway, running)
    await count(gateway)
    assert await figure(gateway, "convergence_rate") == (0, 0), "not due yet"
    await project(gateway, closed)
    await count(gateway)
    expected = await counters(gateway)
    for event in (running, closed, closed):
        await project(gateway, event)
        await count(gateway)
        await count(gateway)
    assert await counters(gateway) == expected
    for window in (3600, 86400, 604800):
        assert await figure(gateway, "convergence_rate", window) == (1, 1)
    assert await figure(gateway, "stuck_execution_rate") == (0, 1)
    found = await level(gateway, "operations_terminal_in_time")
    assert (found["good"], found["total"], found["ratio"], found["error_budget_remaining"]) == (1, 1, 1.0, 1.0)
    assert found["target"] == 0.99 and found["window_seconds"] == 30 * 86400 and not found["alerting"]
    assert [burn["window_seconds"] for burn in found["burn_rates"]] == [300, 1800, 3600, 21600, 259200]
    assert len(found["series"]) == 24 and sum(point["total"] for point in found["series"]) == 1


async def test_time_alone_makes_an_operation_late(gateway: EdgeUnderTest, gateway_database: Database) -> None:
    """Nothing changes, and the level falls at the moment the quarter of an hour is over; the alert goes on.

    Requirements: V2, V3
    """
    began = await gateway.gateway.reads.business_now()
    instance = case(began)
    await project(gateway, changed(instance, operation(instance)))
    counting = Counting(Bounds())
    await count(gateway, counting)
    assert (await level(gateway, "operations_terminal_in_time"))["total"] == 0
    async with later(gateway_database, 17):
        await count(gateway, counting)
        found = await level(gateway, "operations_terminal_in_time")
        assert (found["good"], found["total"], found["ratio"]) == (0, 1, 0.0)
        assert found["error_budget_remaining"] < 0 and found["alerting"]
        assert {alert["severity"] for alert in found["alerts"]} == {"page", "ticket"}
        assert await figure(gateway, "stuck_execution_rate") == (1, 1)


async def test_numbers_are_a_tenants_own_and_for_those_who_may_see_it(gateway: EdgeUnderTest) -> None:
    """Another tenant's numbers do not move; agents, approvers and admins read none.

    Requirements: V2, T1
    """
    began = real_now() - timedelta(minutes=5)
    ended = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=1)}
    await project(gateway, *(changed(case(began, **ended)) for _ in range(3)))
    await project(gateway, changed(case(began, tenant="globex", **ended)), tenant="globex")
    await count(gateway)
    assert await figure(gateway, "convergence_rate") == (3, 3)
    assert await figure(gateway, "convergence_rate", tenant="globex") == (1, 1)
    assert (await gateway.gateway.reads.sums("*", real_now())).over(3600, real_now())["cases_due"] == 4
    for path in ("/v1/kpis", "/v1/slo"):
        for role in ("agent", "approver", "admin"):
            headers = gateway.headers(sub=f"{'agent' if role == 'agent' else 'operator'}:x", roles=(role,))
            problem(await gateway.client.get(path, headers=headers), 403, "forbidden", "role")
        for role in READERS:
            await read(gateway, path, roles=(role,))
        problem(await gateway.client.get(path), 401, "unauthorized", "signature")


async def test_exceptions_are_counted_by_what_became_of_them(gateway: EdgeUnderTest) -> None:
    """Entries, recoveries, verified repairs and their time, first deadlines, persons; ages of what is open.

    Requirements: V2, V3
    """
    now = await gateway.gateway.reads.business_now()
    opened = minute_of(now) - timedelta(minutes=30)
    ended = operation_ended(case(opened), OperationState.SUCCESS)
    repaired = {"status": "closed", "closed_at": opened + timedelta(minutes=4), "resolution_type": "operation_success"}
    await project(
        gateway,
        changed(*ended),
        exception(opened, **repaired),
        exception(opened, **{**repaired, "resolution_type": "superseded"}),
        exception(opened, kind="stale_running", **{**repaired, "resolution_type": "operation_failed"}),
        exception(opened, kind="stale_running", **{**repaired, "resolution_type": "operation_needs_review"}),
        exception(opened, kind="unknown_outcome", envelope={}),
        exception(opened, kind="state_drift", first_deadline_at=opened + timedelta(minutes=1)),
        exception(opened),
    )
    await count(gateway)
    assert await figure(gateway, "dlq_entry_rate") == (3, 1)
    assert await figure(gateway, "lease_expiries") == (2, 1)
    assert await figure(gateway, "unknown_outcome_rate") == (1, 1)
    assert await figure(gateway, "orphan_recovery_rate") == (1, 2)
    assert await figure(gateway, "reconciliation_success_rate") == (1, 2)
    assert await figure(gateway, "repair_success_rate") == (1, 2)
    assert await figure(gateway, "mean_time_to_repair") == (240, 1)
    assert (await figure(gateway, "manual_intervention_rate"))[0] == 6
    age, open_letters = await figure(gateway, "dlq_age")
    assert open_letters == 1 and 1800 <= age <= 1870
    found = await level(gateway, "repairs_within_sla")
    assert (found["good"], found["total"]) == (4, 5)
    assert (await level(gateway, "no_old_orphans"))["ratio"] == 1.0


def operation_ended(instance: InstanceRow, state: OperationState, **changes: Any) -> tuple[InstanceRow, JournalRow]:
    at = instance.created_at + timedelta(minutes=1)
    return instance, operation(instance, state=state, completed_at=at, **changes)


@pytest.mark.parametrize(
    ("kind", "state", "more", "name"),
    [
        ("dead_letter", OperationState.DEAD_LETTERED, {}, "dead_letters_owned"),
        ("compensation_failed", OperationState.FAILED, {"compensates": "cmd_0"}, "failed_compensations_owned"),
    ],
)
async def test_one_without_an_owner_breaks_the_promise_until_it_has_one(
    gateway: EdgeUnderTest,
    gateway_database: Database,
    kind: str,
    state: OperationState,
    more: dict[str, Any],
    name: str,
) -> None:
    """Asked of the operation itself: an exception that was never opened is what the promise is about.

    Requirements: V3
    """
    now = await gateway.gateway.reads.business_now()
    instance, row = operation_ended(case(minute_of(now) - timedelta(minutes=8)), state, **more)
    await project(gateway, changed(instance, row))
    counting = Counting(Bounds())
    await count(gateway, counting)
    found = await level(gateway, name)
    assert (found["good"], found["total"], found["error_budget_remaining"]) == (0, 1, 0.0) and found["alerting"]
    await project(gateway, exception(now, kind=kind, command_id=row.command_id, workflow_id=row.workflow_id))
    async with later(gateway_database, 1.5):
        await count(gateway, counting)
        found = await level(gateway, name)
        assert (found["good"], found["total"], found["error_budget_remaining"]) == (1, 1, 1.0)
        if more:
            assert await figure(gateway, "compensation_failure_rate") == (1, 1)


async def test_high_risk_is_asked_for_its_outcome_at_its_deadline(gateway: EdgeUnderTest) -> None:
    """One in a person's hands past its deadline has no verified outcome; others are not asked.

    Requirements: V3
    """
    began = real_now() - timedelta(minutes=90)
    closed = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=5)}
    await project(
        gateway,
        changed(case(began, mandate={"risk": "high"}, **closed)),
        changed(case(began, mandate={"risk": "critical"}, status=InstanceStatus.HUMAN_TAKEOVER)),
        changed(case(began, status=InstanceStatus.HUMAN_TAKEOVER)),
    )
    await count(gateway)
    found = await level(gateway, "high_risk_verified")
    assert (found["good"], found["total"]) == (1, 2) and found["error_budget_remaining"] < 0


SPENT = {
    "history_bytes": 1000,
    "artifact_bytes": 24,
    "attempts": 2,
    "model_tokens": 300,
    "worker_seconds": 1.5,
    "person_seconds": 120.0,
    "timers_fired": 2,
    "timer_late_seconds": 3.0,
}


async def test_what_all_cases_spent_is_told_per_correct_one(gateway: EdgeUnderTest) -> None:
    """Bad ends cost as well, and a cancelled case too: numerator, denominator and window of each word and of the price.

    Requirements: V4, V2
    """
    began = real_now() - timedelta(minutes=20)
    at = {"closed_at": began + timedelta(minutes=5), "spent": SPENT, "history_seq": 10}
    await project(
        gateway,
        changed(case(began, status=InstanceStatus.CLOSED, **at)),
        changed(case(began, status=InstanceStatus.CLOSED, **at)),
        changed(case(began, status=InstanceStatus.SAFE_STOPPED, **at)),
        changed(case(began, status=InstanceStatus.CANCELLED, **at)),
        changed(case(began, spent=SPENT, history_seq=10)),
    )
    await count(gateway)
    for window in (3600, 86400, 604800):
        for word, value in {
            "transitions": 40,
            "stored_bytes": 4096,
            "attempts": 8,
            "model_tokens": 1200,
            "worker_time": 6.0,
            "human_time": 480.0,
        }.items():
            assert await figure(gateway, f"{word}_per_correct_case", window) == (value, 2), word
        assert await figure(gateway, "timer_lateness", window) == (12.0, 8)
    prices = gateway.gateway.levels.prices
    price = 480 * prices["person_seconds"] + 6 * prices["worker_seconds"]
    price += 1200 * prices["model_tokens"] + 4096 * prices["stored_bytes"]
    numerator, denominator = await figure(gateway, "cost_per_correct_case")
    assert (numerator, denominator) == (pytest.approx(price), 2)


async def test_a_case_tells_its_cost(gateway: EdgeUnderTest) -> None:
    """Of its operations as they are, of its own account, and how long people were waited for.

    Requirements: V4
    """
    began = real_now() - timedelta(minutes=20)
    sent = {"started_at": "2026-03-01T12:00:00Z", "ended_at": "2026-03-01T12:00:02.5Z", "sent": True}
    sent |= {"attempt_id": "att_1", "fence": 1, "state": "REJECTED"}
    waited = {"id": "approve", "kind": "approval", "started_at": "2026-03-01T12:00:00Z"}
    steps = [{**waited, "ended_at": "2026-03-01T13:30:00Z"}, {**waited, "id": "again"}, {"id": "x", "kind": "command"}]
    spent = {**SPENT, "person_since": "2026-03-01T15:00:00Z"}
    instance = case(began, definition="flow", steps=steps, spent=spent, history_seq=12)
    await project(gateway, changed(instance, operation(instance, attempt_count=3, attempts=[sent, sent])))
    headers = gateway.headers(sub="operator:eye", roles=("viewer",))
    response = await gateway.client.get(f"/v1/workflows/{instance.workflow_id}", headers=headers)
    assert response.json()["cost"] == {
        "transitions": 12,
        "stored_bytes": 1024,
        "attempts": 3,
        "model_tokens": 300,
        "worker_seconds": 5.0,
        "effects": 1,
        "human_minutes": 2.0,
        "human_since": "2026-03-01T15:00:00Z",
        "human_wait_minutes": 90.0,
        "timers_fired": 2,
        "timer_late_seconds": 3.0,
    }


async def test_a_change_that_commits_late_is_not_missed(gateway: EdgeUnderTest) -> None:
    """A change counts although the timer ran between its statement and its commit.

    Requirements: V2
    """
    began = minute_of(real_now()) - timedelta(minutes=5)
    closed = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=1)}
    await project(gateway, changed(case(began, **closed)))
    now = real_now()
    event = changed(case(began, **closed))
    message = Message(
        id="m",
        type="CaseChanged",
        subject="s",
        tenant="acme",
        source="t",
        time=now,
        data=event.model_dump_json().encode(),
    )
    async with gateway.gateway.store.transaction() as tx:
        await ViewHandler().handle(tx, Moment(now, now), [message])
        await count(gateway)
        assert await figure(gateway, "convergence_rate") == (1, 1)
    await count(gateway)
    assert await figure(gateway, "convergence_rate") == (2, 2)


async def test_one_replica_counts_at_a_time(gateway: EdgeUnderTest) -> None:
    """A second one leaves the marks to the first, and nothing is counted twice.

    Requirements: V2, D5
    """
    began = real_now() - timedelta(minutes=5)
    closed = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=1)}
    await project(gateway, changed(case(began, **closed)))
    first, second = Counting(Bounds()), Counting(Bounds())
    async with gateway.gateway.store.transaction() as tx:
        moment, _ = await tx.claim("gateway-numbers", [])
        await first.count(tx, moment)
        await count(gateway, second)
    await count(gateway, second)
    assert await figure(gateway, "convergence_rate") == (1, 1)


async def test_a_tick_has_bounds_and_the_next_one_goes_on(
    gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many minutes that changed at once the youngest come first, and none is forgotten.

    Requirements: V2, B4
    """
    monkeypatch.setattr("trueup_gateway.counting.OBJECTS_MAX", 1)
    now = minute_of(real_now())
    counting = Counting(Bounds())
    await count(gateway, counting)  # the first tick of a process looks whether other rules counted before it
    for minutes in (10, 20, 30, 40):
        began = now - timedelta(minutes=minutes)
        closed = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=1)}
        await project(gateway, changed(case(began, **closed)), changed(case(began, **closed)))
    for ticks, expected in enumerate((2, 4, 6, 8, 8), 1):
        await count(gateway, counting)
        assert await figure(gateway, "convergence_rate") == (expected, expected), ticks


async def test_everything_can_be_counted_anew_from_the_views(gateway: EdgeUnderTest) -> None:
    """Counters that were lost, or that other bounds made, come out of the read model again.

    Requirements: V2
    """
    began = minute_of(real_now()) - timedelta(minutes=50)
    for number in range(6):
        instance = case(began + timedelta(minutes=number))
        closing = {"status": InstanceStatus.CLOSED, "closed_at": began + timedelta(minutes=number + 3)}
        ended = {"state": OperationState.SUCCESS, "completed_at": began + timedelta(minutes=number, seconds=40)}
        await project(gateway, changed(instance.evolve(**closing), operation(instance, **ended)))
        await project(gateway, exception(instance.created_at))
    await count(gateway, Counting(Bounds()))
    expected = await counters(gateway)
    assert expected
    async with gateway.database.connection() as connection:
        await connection.execute("UPDATE gateway.cohort_revision SET revision = 'older'")
        await connection.execute("UPDATE gateway.counter SET counts = '{\"cases_due\": 99}'")
    await count(gateway, Counting(Bounds()))
    assert await counters(gateway) == expected


async def test_cost_does_not_grow_with_history(gateway: EdgeUnderTest) -> None:
    """A change touches its own cohort, and windows read a bounded number of rows, however many cases there were.

    Requirements: V2, B4
    """
    now = minute_of(real_now())
    async with gateway.database.connection() as connection:
        await connection.execute(
            "INSERT INTO gateway.case_view (workflow_id, tenant, subject, definition, object_type, object_id, status, "
            "state_version, deadline_at, created_at, closed_at, instance, obligations, transitions, stored_bytes, "
            "attempts, model_tokens, worker_seconds, person_seconds, timers_fired, timer_late_seconds) "
            "SELECT 'wf_' || n, 'acme', 'agent:a', 'command', 'o', 'o', 'CLOSED', 1, at, at, at, '{}', '[]', "
            "0, 0, 0, 0, 0, 0, 0, 0 "
            "FROM (SELECT n, $1::timestamptz - n * interval '1 min' AS at FROM generate_series(1, 5000) AS n) AS o",
            now - timedelta(days=1),
        )
        await connection.execute("ANALYZE gateway.case_view")
    touched = await rows_read(gateway, now - timedelta(minutes=5))
    assert touched <= 2, "only the cohort's own rows"


async def rows_read(gateway: EdgeUnderTest, began: datetime) -> int:
    """How many rows the counting of one cohort looks at."""
    await project(gateway, changed(case(began, status=InstanceStatus.CLOSED, closed_at=began + MINUTE)))
    async with gateway.database.connection() as connection:
        plan: Sequence[Any] = await connection.fetch(
            "EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM gateway.case_view "
            "WHERE tenant = $1 AND created_at >= $2 AND created_at < $3",
            "acme",
            began,
            began + MINUTE,
        )
    return int(plan[0][0][0]["Plan"]["Plans"][0]["Actual Rows"])
