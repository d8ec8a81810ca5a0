"""Anomalies: what is nothing by itself is told as an exception once there is too much of it, and not again at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.asks import EDITOR, decide, open_approval, running_case
from tests.gateway.edge import EdgeUnderTest, settings_of
from tests.gateway.test_numbers import case, changed, count, exception, project
from tests.gateway.test_refusals import problem

from trueup_common.contracts import history
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.states import ExceptionKind
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_gateway.core.anomalies import (
    ACTS,
    MEANINGS,
    AnomalyRow,
    AnomalyRule,
    AnomalyRules,
    Sighted,
    anomalies,
    calmed,
    marks,
    read_rules,
    reported,
    told_row,
)
from trueup_gateway.levels import read_anomaly_rules
from trueup_gateway.sightings import ACTORS_MAX, AnomalyWatch, Sightings
from trueup_gateway.store import GatewayTransaction

LOW = AnomalyRules(
    quiet_seconds=3600, rules=tuple(AnomalyRule(name=name, threshold=3, window_seconds=600) for name in MEANINGS)
)
OPERATOR = {"sub": "operator:ops", "roles": ("operator",)}


@pytest.fixture(autouse=True)
async def nothing_seen(gateway: EdgeUnderTest) -> None:
    """Every test sees its own."""
    async with gateway.database.connection() as connection:
        for table in ("sighting", "anomaly", "counter", "cohort", "cohort_mark", "case_view", "exception_view"):
            await connection.execute(f"DELETE FROM gateway.{table}")
        await connection.execute("DELETE FROM gateway.approval")


async def look(
    gateway: EdgeUnderTest, *, sightings: Sightings | None = None, rules: AnomalyRules = LOW, later: float = 0
) -> list[ExceptionReported]:
    """One tick of the timer."""
    watch = AnomalyWatch(rules, sightings or gateway.gateway.sightings, settings_of())
    async with gateway.gateway.store.transaction() as tx:
        moment, _ = await tx.claim("gateway-anomalies", [])
        outgoing = await watch.look(tx, Moment(moment.business + timedelta(seconds=later), moment.real))
        await tx.post(outgoing)
    return [_read(item) for item in outgoing]


def _read(item: Outgoing) -> ExceptionReported:
    report = ExceptionReported.model_validate_json(item.message.data)
    obligation = report.obligation
    assert item.message.subject == f"trueup.evt.gateway.exception.{obligation.tenant}"
    assert obligation.kind in set(ExceptionKind) and obligation.owner == "operators"
    assert obligation.deadline_at > obligation.opened_at and obligation.workflow_id == ""
    return report


def told(reports: Sequence[ExceptionReported]) -> list[tuple[str, str, Any, int]]:
    return [
        (
            report.obligation.tenant,
            report.obligation.envelope["failure_code"],
            report.obligation.envelope["actor"],
            report.obligation.envelope["sightings_count"],
        )
        for report in reports
    ]


async def test_a_burst_of_starts_is_told_of_its_actor(gateway: EdgeUnderTest) -> None:
    """Of the one who starts so much, not of those beside it; once, until it has been quiet about it long enough.

    Requirements: V6
    """
    now = await gateway.gateway.reads.business_now()
    await project(gateway, *(changed(case(now, subject="agent:burst")) for _ in range(4)))
    await project(gateway, changed(case(now, subject="agent:calm")))
    await project(gateway, changed(case(now, tenant="globex", subject="agent:burst")), tenant="globex")
    await count(gateway)
    assert told(await look(gateway)) == [("acme", "anomaly_start_burst", "agent:burst", 4)]
    await project(gateway, changed(case(now, subject="agent:burst")))
    await count(gateway)
    assert await look(gateway) == [] and await look(gateway, later=300) == []


async def test_what_goes_on_is_told_again_after_the_quiet_time(gateway: EdgeUnderTest) -> None:
    """Another exception with another id, because it is another hour of the same.

    Requirements: V6
    """
    sightings = Sightings()
    for _ in range(3):
        sightings.note("acme", "nonce_reuse", "operator:eve")
    (first,) = await look(gateway, sightings=sightings)
    for _ in range(3):
        sightings.note("acme", "nonce_reuse", "operator:eve")
    assert await look(gateway, sightings=sightings, later=1800) == []
    for _ in range(3):
        sightings.note("acme", "nonce_reuse", "operator:eve")
    (again,) = await look(gateway, sightings=sightings, later=3700)
    assert again.obligation.obligation_id != first.obligation.obligation_id


async def test_many_approvals_by_one_person_are_told(gateway: EdgeUnderTest) -> None:
    """Each of them was permitted; so many in so short a time were not read.

    Requirements: V6
    """
    for number in range(3):
        assert await look(gateway) == []
        _, shown = await open_approval(gateway)
        assert (await decide(gateway, shown, "reject" if number == 1 else "approve")).status_code == 200
    assert told(await look(gateway)) == [("acme", "anomaly_mass_approvals", EDITOR["sub"], 3)]


async def test_events_for_anothers_case_are_told_to_the_callers_tenant(gateway: EdgeUnderTest) -> None:
    """The caller learns nothing: the answer is that of a case which does not exist; its own tenant's people do.

    Requirements: V6, T1
    """
    instance = await running_case(gateway)
    for workflow_id in (instance.workflow_id, new_id("wf")):
        for _ in range(3):
            response = await gateway.client.post(
                f"/v1/workflows/{workflow_id}/signals",
                json={"event_id": new_id("evt"), "type": "paid", "data": {}},
                headers=gateway.headers(tenant="globex", **OPERATOR),
            )
            problem(response, 404, "not-found")
    reports = await look(gateway)
    assert told(reports) == [("globex", "anomaly_cross_tenant_callback", "operator:ops", 3)]
    assert instance.workflow_id not in reports[0].model_dump_json()


async def test_a_nonce_that_comes_again_is_told(gateway: EdgeUnderTest) -> None:
    """Of a decided approval, and one that is not its own; the double click of the same person is neither.

    Requirements: V6, L10
    """
    _, shown = await open_approval(gateway)
    assert (await decide(gateway, shown, nonce="guessed")).status_code == 409
    assert (await decide(gateway, shown)).status_code == 200
    for _ in range(3):
        assert (await decide(gateway, shown)).status_code == 200, "a second click"
    assert await look(gateway) == []
    for _ in range(2):
        assert (await decide(gateway, shown, "reject")).status_code == 409
    assert told(await look(gateway)) == [("acme", "anomaly_nonce_reuse", EDITOR["sub"], 3)]


async def test_many_unknown_outcomes_are_told(gateway: EdgeUnderTest) -> None:
    """Unknown outcomes of a tenant within a short time; other exceptions do not count.

    Requirements: V6
    """
    now = await gateway.gateway.reads.business_now()
    await project(gateway, *(exception(now, kind="unknown_outcome") for _ in range(3)))
    await project(gateway, *(exception(now) for _ in range(5)))
    await project(gateway, exception(now, tenant="globex", kind="unknown_outcome"), tenant="globex")
    await count(gateway)
    assert told(await look(gateway)) == [("acme", "anomaly_many_unknowns", None, 3)]


async def test_a_figure_that_is_well_again_ends_its_exception_and_says_so(gateway: EdgeUnderTest) -> None:
    """A worker that stopped; half of it begins the calm anew. It begins again: told at once, whatever the quiet time.

    Requirements: V6, Q8
    """
    sightings = Sightings()

    async def seen(times: int, later: float) -> list[ExceptionReported]:
        for _ in range(times):
            sightings.note("acme", "stale_worker", "adapter:wordpress")
        return await look(gateway, sightings=sightings, later=later)

    (opened,) = await seen(3, 0)
    assert await seen(0, 700) == [] and await seen(2, 2400) == [], "half of it is not well"
    assert await seen(0, 3100) == [] and await seen(0, 4800) == []
    (closed,) = await seen(0, 4901)
    assert closed.obligation.obligation_id == opened.obligation.obligation_id
    assert (closed.obligation.status, closed.obligation.version) == ("closed", 2)
    assert closed.obligation.resolution_type == "figure_well_again" and closed.reported_by == "gateway"
    assert await seen(0, 6000) == []
    (again,) = await seen(3, 6001)
    assert again.obligation.obligation_id != opened.obligation.obligation_id


async def test_what_somebody_did_is_ended_by_a_person_however_long_it_is_quiet(gateway: EdgeUnderTest) -> None:
    """Who stops has explained nothing. Requirements: V6, Q8"""
    sightings = Sightings()
    for _ in range(3):
        sightings.note("acme", "nonce_reuse", "operator:eve")
    assert len(await look(gateway, sightings=sightings)) == 1
    for later in (1000, 3000, 10_000, 100_000):
        assert await look(gateway, sightings=sightings, later=later) == []


async def test_a_worker_that_lost_its_fence_and_still_writes_is_told(gateway: EdgeUnderTest) -> None:
    """Late receipts of effects, each once however often it is told; those that sent nothing do not count.

    Requirements: V6
    """
    now = await gateway.gateway.reads.business_now()
    for statuses in (("CONFIRMED", "NOT_SENT", "STALE"), ("REJECTED",), ("NOT_SENT",)):
        event = changed(case(now)).evolve(history=late(now, statuses))
        await project(gateway, event)
        await project(gateway, event)
    assert await look(gateway) == []
    await project(gateway, changed(case(now)).evolve(history=late(now, ("UNKNOWN",))))
    assert told(await look(gateway)) == [("acme", "anomaly_stale_worker", "adapter:wordpress", 3)]


def late(now: datetime, statuses: Sequence[str]) -> tuple[Any, ...]:
    events: list[Any] = []
    workflow_id = new_id("wf")
    for seq, status in enumerate(statuses, 1):
        events.append(
            history.append(
                workflow_id=workflow_id,
                tenant="acme",
                seq=seq,
                type="OlderReceiptReceived",
                actor="adapter:wordpress",
                prev_hash=events[-1].hash if events else history.GENESIS,
                occurred_at=now,
                recorded_at=now,  # of one batch, all events are recorded at the same instant
                payload={"status": status, "fence": 1},
            )
        )
    return tuple(events)


async def test_what_could_not_be_kept_is_noted_still(gateway: EdgeUnderTest) -> None:
    """A store that is away loses no sighting, and a refused caller causes no write of its own.

    Requirements: V6
    """

    class Away(GatewayTransaction):
        async def save_sightings(self, rows: Sequence[Any]) -> None:
            raise StoreBusy("away")

    sightings = Sightings()
    for _ in range(3):
        sightings.note("acme", "nonce_reuse", "operator:eve")
    watch = AnomalyWatch(LOW, sightings, settings_of())
    now = real_now()
    with pytest.raises(StoreBusy):
        await watch.look(Away(None), Moment(now, now))
    assert told(await look(gateway, sightings=sightings)) == [("acme", "anomaly_nonce_reuse", "operator:eve", 3)]


def test_noting_is_bounded() -> None:
    """However many actors are refused between two looks.

    Requirements: V6, T3
    """
    sightings = Sightings()
    for number in range(3 * ACTORS_MAX):
        sightings.note("acme", "nonce_reuse", f"operator:{number}")
    sightings.note("acme", "nonce_reuse", "operator:0")
    now = real_now()
    rows = sightings.take(Moment(now, now))
    assert len(rows) == ACTORS_MAX and rows[0].count == 2 and sightings.take(Moment(now, now)) == []


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 10)), max_size=20),
    st.integers(1, 8),
    st.integers(60, 4000),
)
def test_told_when_over_the_threshold_and_not_within_the_quiet_time(
    looks: list[tuple[int, int]], threshold: int, quiet: int
) -> None:
    """Exactly then: never below the threshold, never twice within the quiet time, always after it.

    Requirements: V6
    """
    rules = AnomalyRules(
        quiet_seconds=quiet, rules=(AnomalyRule(name="nonce_reuse", threshold=threshold, window_seconds=60),)
    )
    remembered: dict[tuple[str, str, str], AnomalyRow] = {}
    now = real_now()
    last: datetime | None = None
    for seconds, seen in looks:
        now += timedelta(seconds=seconds)
        found = anomalies(rules, [Sighted("acme", "nonce_reuse", "operator:eve", seen)], remembered, now)
        expected = seen >= threshold and (last is None or (now - last).total_seconds() >= quiet)
        assert bool(found) == expected
        if found:
            last = now
            row = AnomalyRow(tenant="acme", rule="nonce_reuse", actor="operator:eve", told_at=now)
            remembered[row.key] = row


BURST = Sighted("acme", "start_burst", "agent:burst", 10)


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 12)), max_size=60))
def test_a_figure_ends_once_it_was_well_for_long_and_never_flaps(looks: list[tuple[int, int]]) -> None:
    """Told from ten on; well below five, for ten minutes without a break. Between five and nine nothing changes, what
    is open is told at most once per quiet time, and what begins again after its end is told at once.

    Requirements: V6, Q8
    """
    rule = AnomalyRule(name="start_burst", threshold=10, window_seconds=60)
    rules = AnomalyRules(quiet_seconds=3600, calm_seconds=600, rules=(rule,))
    rows: dict[tuple[str, str, str], AnomalyRow] = {}
    now, well_since, open_ids = real_now(), None, []
    for seconds, seen in looks:
        now += timedelta(seconds=seconds)
        sighted = [replace(BURST, count=seen)] if seen else []
        still = [row for row in rows.values() if row.reports]
        assert marks(rules, still) == {"start_burst": 5 if open_ids else 10}
        changed, ended = calmed(rules, still, sighted, now)
        rows.update((row.key, row) for row in changed)
        well_since = None if seen >= 5 or not open_ids else well_since or now
        over = bool(open_ids) and well_since is not None and (now - well_since).total_seconds() >= 600
        assert [item.obligation.obligation_id for item in ended] == (open_ids if over else [])
        assert all((item.obligation.status, item.obligation.version) == ("closed", 2) for item in ended)
        open_ids, well_since = ([], None) if over else (open_ids, well_since)
        for item in anomalies(rules, sighted, rows, now):
            last = rows.get(item.key)
            assert not open_ids or (last is not None and (now - last.told_at).total_seconds() >= 3600)
            told_of = reported(item, rule, now=now, owner="ops", sla_seconds=60, reporter="gateway")
            rows[item.key] = told_row(item, rule, told_of, last, now)
            open_ids = [*open_ids, told_of.obligation.obligation_id]
        assert bool(open_ids) or seen < 10, "what is over its threshold is known"


def test_thresholds_are_configuration(tmp_path: Path) -> None:
    """Every rule ships with a threshold; a document of one's own takes their place, an unknown rule is refused.

    Requirements: V6
    """
    shipped = read_anomaly_rules(settings_of())
    assert {rule.name for rule in shipped.rules} == set(MEANINGS)
    assert {rule.name for rule in shipped.rules if not rule.ends_by_itself} == ACTS
    own = tmp_path / "rules.yaml"
    own.write_text("quiet_seconds: 60\nrules: [{name: start_burst, threshold: 7, window_seconds: 60}]")
    rule = read_anomaly_rules(settings_of(anomalies=own)).of("start_burst")
    assert rule is not None and rule.threshold == 7
    with pytest.raises(ValueError, match="sorcery"):
        read_rules({"quiet_seconds": 60, "rules": [{"name": "sorcery", "threshold": 1, "window_seconds": 60}]})
    own.write_text("rules: [")
    with pytest.raises(SystemExit, match="TRUEUP_ANOMALIES"):
        read_anomaly_rules(settings_of(anomalies=own))


async def test_a_person_who_looked_into_an_anomaly_ends_it(gateway: EdgeUnderTest) -> None:
    """It is about no case: nothing can be redriven, and whoever says what became of it ends it, through the planner.

    Requirements: V6, O3
    """
    now = await gateway.gateway.reads.business_now()
    told_of = exception(now, kind="needs_review", workflow_id=None, envelope={"failure_code": "anomaly_start_burst"})
    await project(gateway, told_of)
    url, headers = f"/v1/exceptions/{told_of.exception_id}", gateway.headers(**OPERATOR)
    shown = (await gateway.client.get(url, headers=headers)).json()
    assert set(shown["allowed_actions"]) == {"MARK_RESOLVED", "ESCALATE", "ASSIGN"}
    body = {
        "action": "MARK_RESOLVED",
        "target": {"kind": "exception", "id": told_of.exception_id},
        "reason": "a migration, announced",
        "params": {"disposition": [{"effect": "start_burst", "became": "meant; nothing to take back"}]},
    }
    response = await gateway.client.post(
        "/v1/operator-commands", json=body, headers={**headers, "Idempotency-Key": new_id("msg")}
    )
    assert response.status_code == 202, response.text
    assert response.json()["performer"] == "repair-planner"
