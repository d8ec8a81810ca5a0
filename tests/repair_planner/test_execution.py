"""Repairs on a real PostgreSQL with a played gateway: claimed, asked for, verified, held back and never done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel
from tests.reconciler.schema import make_schema
from tests.repair_planner.builders import TENANT, closed, message, moment, quarantine, reported
from tests.repair_planner.gateway import PlayedGateway
from tests.repair_planner.test_plan import OFFER
from tests.servers import Database as ServerDatabase

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import (
    ExceptionChanged,
    IncidentChanged,
    OperatorCommand,
    OperatorCommandEnded,
    RepairChanged,
)
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_repair_planner.core.calls import CALLS_MAX, Answer, Call
from trueup_repair_planner.core.incident import Alarm
from trueup_repair_planner.core.incident import Status as IncidentStatus
from trueup_repair_planner.core.lifecycle import Duty
from trueup_repair_planner.core.repair import RepairRow, Status
from trueup_repair_planner.execution import LEASE_SECONDS, STARTS_PER_TICK, Execution
from trueup_repair_planner.handler import EventsHandler, Ticks, rules_of
from trueup_repair_planner.store import SqlPlannerTransaction, sql_store
from trueup_repair_planner.tables import METADATA

DUTY = Duty(owner="operators", escalation_owner="duty-manager", sla_seconds=36000)
ALARM = Alarm(exceptions_min=3, window_seconds=600, probe_seconds=30, released_per_second=2)
RULES = rules_of(DUTY, ALARM)
DRIFT = {
    "element": "monitoring.registered",
    "desired": True,
    "observed": None,
    "route": "AUTO_REPAIR",
    "repair": {**OFFER, "supersedes": "cmd_1"},
    "target_system": "monitoring",
    "target_resource": "check/home",
}


@dataclass
class Sent:
    """What was published."""

    outgoing: list[Outgoing] = field(default_factory=list)

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        self.outgoing += outgoing


class Alive:
    """No crash points."""

    def reach(self, point: str) -> None:
        """Passed."""


@dataclass
class Planner:
    """The planner's parts over one database, with a clock that the test holds."""

    store: SqlStore[SqlPlannerTransaction]
    gateway: PlayedGateway | None = field(default_factory=PlayedGateway)
    sent: Sent = field(default_factory=Sent)
    seconds: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        self.execution = Execution(
            store=_At(self),
            publisher=self.sent,
            crash=Alive(),
            rules=RULES,
            gateway=self.gateway,
        )

    async def hear(self, *bodies: BaseModel) -> None:
        self.number += 1
        messages = [message(body, f"m{self.number}.{place}") for place, body in enumerate(bodies)]
        async with self.store.transaction() as tx:
            outgoing = await EventsHandler(RULES).handle(tx, moment(self.seconds), messages)
        self.sent.outgoing += outgoing

    async def at(self, seconds: float) -> int:
        """One round of everything at a moment."""
        self.seconds = seconds
        async with self.store.transaction() as tx:
            self.sent.outgoing += await Ticks(RULES).incidents(tx, moment(seconds))
            self.sent.outgoing += await Ticks(RULES).verifications(tx, moment(seconds))
        return await self.execution.once()

    async def repairs(self) -> list[RepairRow]:
        async with self.store.transaction() as tx:
            records = await tx.connection.fetch("SELECT repair_id FROM repair ORDER BY created_at, repair_id")
            found = {row.repair_id: row for row in await tx.repairs([record["repair_id"] for record in records])}
        return [found[record["repair_id"]] for record in records]

    async def only(self) -> RepairRow:
        (repair,) = await self.repairs()
        return repair

    def told(self, kind: type[Any]) -> list[Any]:
        messages = [item.message for item in self.sent.outgoing if item.message.type == kind.__name__]
        return [kind.model_validate_json(item.data) for item in messages]

    def exception(self) -> ExceptionChanged:
        told: ExceptionChanged = self.told(ExceptionChanged)[-1]
        return told


class _At:
    """The store, whose transactions are claimed at the test's moment."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def transaction(self) -> Any:
        return _Opened(self.planner)


class _Opened:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.opened = planner.store.transaction()

    async def __aenter__(self) -> SqlPlannerTransaction:
        tx = await self.opened.__aenter__()

        async def claim(consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
            return moment(self.planner.seconds), frozenset(message_ids)

        tx.claim = claim  # type: ignore[method-assign]
        return tx

    async def __aexit__(self, *error: Any) -> Any:
        return await self.opened.__aexit__(*error)


@pytest.fixture(scope="module")
def planner_schema(fresh_database: ServerDatabase) -> ServerDatabase:
    make_schema(fresh_database, METADATA)
    return fresh_database


@pytest.fixture
async def planner(planner_schema: ServerDatabase) -> AsyncIterator[Planner]:
    database = await Database.connect(planner_schema.admin_url, schema="repair_planner", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE exception, repair, incident, outbox")
    made = Planner(sql_store(database))
    assert made.gateway is not None
    made.gateway.permit()
    yield made
    await database.close()


def drift(name: str = "1", **wanted: Any) -> BaseModel:
    envelope = {**DRIFT, **wanted.pop("envelope", {})}
    return reported(name, kind="state_drift", failure_class="RESOURCE_MISSING", envelope=envelope, **wanted)


def dead(name: str = "1", **wanted: Any) -> BaseModel:
    envelope = {"failure_code": "attempts_exhausted", **wanted.pop("envelope", {})}
    return reported(name, failure_class="DEPENDENCY_ERROR", envelope=envelope, deadline_seconds=36000, **wanted)


def ended(opc: str, state: str, *, refused: bool = False) -> OperatorCommandEnded:
    return OperatorCommandEnded(
        operator_command_id=opc,
        tenant=TENANT,
        state="REFUSED" if refused else "DONE",
        result={} if refused else {"state": state},
        ended_by="orchestrator",
        at=moment(0).business,
    )


def operated(action: str, repair: RepairRow, performer: str = "repair-planner", **wanted: Any) -> OperatorCommand:
    return OperatorCommand(
        operator_command_id="opc_p",
        tenant=TENANT,
        action=action,
        performer=performer,
        target_kind="exception",
        target_id=repair.exception_id,
        exception_id=repair.exception_id,
        actor="operator:olga",
        reason="it must be so",
        decision_id="dec_p",
        at=moment(0).business,
        **wanted,
    )


async def test_drift_is_repaired_verified_and_closed_without_anybody(planner: Planner) -> None:
    """Requirements: G7, Q5, Q7, Q8, R3"""
    await planner.hear(drift())
    assert await planner.at(1) == 1
    repair = await planner.only()
    assert (repair.status, repair.command_id, repair.decision_id) == (Status.VERIFYING, "cmd_r1", "dec_1")
    assert (planner.exception().status, planner.exception().lifecycle) == ("open", "repaired")
    assert planner.gateway is not None
    assert [call.path for call in planner.gateway.asked] == ["/v1/decisions", "/v1/capabilities", "/v1/commands"]
    await planner.hear(closed("1", "observed_healthy", kind="state_drift", envelope=DRIFT))
    assert (await planner.only()).status is Status.DONE
    exception = planner.exception()
    assert (exception.status, exception.lifecycle, exception.repair_status) == ("closed", "closed", "DONE")
    assert [entry["to"] for entry in exception.envelope["trail"]] == [
        *("found", "classified", "assigned", "repaired", "verified", "closed")
    ]
    assert [item.status for item in planner.told(RepairChanged)] == ["PLANNED", "EXECUTING", "VERIFYING", "DONE"]


async def test_a_planner_that_dies_after_asking_asks_again_under_the_same_key(planner: Planner) -> None:
    """Requirements: I1, I5, G7"""
    await planner.hear(drift())
    claimed = await planner.execution._claim()  # and then it dies, after the gateway had accepted
    await planner.execution._turn(claimed[0])
    assert await planner.at(LEASE_SECONDS - 1) == 0
    assert await planner.at(LEASE_SECONDS) == 1
    assert planner.gateway is not None
    assert planner.gateway.accepted == 1
    assert (await planner.only()).command_id == "cmd_r1"


async def test_an_answer_that_did_not_come_is_asked_for_again_and_then_found(planner: Planner) -> None:
    """Requirements: X4"""
    assert planner.gateway is not None
    accept = planner.gateway.replies["/v1/commands"][0]
    assert callable(accept)

    def lost(call: Any) -> Answer:
        accept(call)
        return Answer(0)

    planner.gateway.on("/v1/commands", lost, accept)
    await planner.hear(drift())
    await planner.at(1)
    assert (await planner.only()).status is Status.PLANNED
    await planner.at(2)
    assert ((await planner.only()).command_id, planner.gateway.accepted) == ("cmd_r1", 1)


async def test_an_answer_that_means_nothing_is_put_off_and_stops_no_other(planner: Planner) -> None:
    """Requirements: X4"""
    assert planner.gateway is not None
    planner.gateway.on("/v1/capabilities", Answer(201, {}), Answer(201, {"capability": "jws"}))
    other = {"element": "monitoring.other"}
    await planner.hear(drift())
    await planner.hear(drift("2", envelope=other))
    await planner.at(1)
    assert sorted(row.status for row in await planner.repairs()) == [Status.PLANNED, Status.VERIFYING]


async def test_a_200_is_no_repair_the_next_try_follows_and_in_the_end_a_person(planner: Planner) -> None:
    """Requirements: Q7, R9, Q4"""
    await planner.hear(drift())
    seconds = 0.0
    for _ in range(3):
        await planner.at(seconds + 1)
        seconds += 302
        await planner.at(seconds)  # nobody saw it healthy
    rows = await planner.repairs()
    assert [row.status for row in rows] == [Status.FAILED] * 3 + [Status.ESCALATED]
    assert {row.error_code for row in rows[:3]} == {"not_verified_in_time"}
    exception = planner.exception()
    assert (exception.owner, exception.status, exception.lifecycle) == ("duty-manager", "open", "assigned")
    assert await planner.at(seconds + 100000) == 0
    assert planner.gateway is not None and planner.gateway.accepted == 3


async def test_a_repair_that_the_reconciler_saw_fail_is_planned_anew_by_its_new_route(planner: Planner) -> None:
    """Requirements: R9, Q7"""
    await planner.hear(drift())
    await planner.at(1)
    await planner.hear(drift(version=2, envelope={"route": "ESCALATED", "held": False}))
    first, second = await planner.repairs()
    assert (first.status, first.error_code) == (Status.FAILED, "did_not_hold")
    assert (second.status, second.playbook) == (Status.ESCALATED, "drift-escalated")
    assert planner.exception().owner == "duty-manager"
    told = len(planner.sent.outgoing)
    for version in (3, 4):  # told again because it was escalated: that is no news here
        again = {"route": "ESCALATED", "held": False, "repairs_count": version}
        await planner.hear(drift(version=version, envelope=again))
    assert len(await planner.repairs()) == 2 and not planner.sent.outgoing[told:][2:]


async def test_a_repair_command_that_failed_is_seen_and_not_waited_for(planner: Planner) -> None:
    """Requirements: Q7"""
    assert planner.gateway is not None
    planner.gateway.on("/v1/commands/*", Answer(200, {"state": "RUNNING"}), Answer(200, {"state": "FAILED"}))
    await planner.hear(drift())
    await planner.at(1)
    await planner.at(3)
    assert (await planner.only()).status is Status.VERIFYING
    await planner.at(6)
    first, second = await planner.repairs()
    assert (first.status, first.error_code) == (Status.FAILED, "failed")
    assert (second.status, second.number) == (Status.PLANNED, 2)


async def test_what_needs_approval_waits_for_it_and_goes_on_by_itself(planner: Planner) -> None:
    """Requirements: Q5, G7"""
    assert planner.gateway is not None
    asked = {"decision_id": "dec_2", "outcome": "approval_required", "approval_id": "apr_2"}
    planner.gateway.on("/v1/decisions", Answer(201, asked))
    planner.gateway.on("/v1/capabilities", Answer(403, {"check": "approval"}), Answer(201, {"capability": "jws"}))
    planner.gateway.on("/v1/approvals/*", Answer(200, {"status": "pending"}))
    await planner.hear(drift())
    await planner.at(1)
    waiting = await planner.only()
    assert (waiting.status, waiting.approval_id) == (Status.WAITING_APPROVAL, "apr_2")
    await planner.at(6)
    assert (await planner.only()).status is Status.WAITING_APPROVAL
    await planner.at(12)
    assert (await planner.only()).status is Status.VERIFYING
    assert len(planner.gateway.bodies("/v1/decisions")) == 1


async def test_a_planner_that_dies_after_asking_for_approval_has_asked_once(planner: Planner) -> None:
    """The gateway's answer was lost with it: asked again under the same key, it is the same approval that waits.

    Requirements: I5, Q5
    """
    assert planner.gateway is not None
    approvals: dict[str | None, Answer] = {}

    def decided(call: Call) -> Answer:
        body = {"decision_id": f"dec_{len(approvals)}", "outcome": "approval_required"}
        return approvals.setdefault(call.key, Answer(201, {**body, "approval_id": f"apr_{len(approvals)}"}))

    planner.gateway.on("/v1/decisions", decided)
    await planner.hear(drift())
    claimed = await planner.execution._claim()
    await planner.execution._turn(claimed[0])  # and then it dies
    assert await planner.at(LEASE_SECONDS) == 1
    waiting = await planner.only()
    assert (waiting.status, waiting.approval_id, len(approvals)) == (Status.WAITING_APPROVAL, "apr_0", 1)


async def test_an_approval_that_was_asked_for_another_difference_is_not_used(planner: Planner) -> None:
    """Requirements: G5"""
    assert planner.gateway is not None
    asked = {"decision_id": "dec_2", "outcome": "approval_required", "approval_id": "apr_2"}
    planner.gateway.on("/v1/decisions", Answer(201, asked))
    await planner.hear(drift())
    await planner.at(1)
    await planner.hear(drift(version=2, envelope={"repair": {**OFFER, "payload": {"name": "other"}}}))
    first, second = sorted(await planner.repairs(), key=lambda row: row.status)
    assert (first.status, second.status) == (Status.PLANNED, Status.WITHDRAWN)
    assert first.request is not None and first.request["payload"] == {"name": "other"}


async def test_what_governance_denies_goes_to_a_person_at_once(planner: Planner) -> None:
    """Requirements: G7, Q4"""
    assert planner.gateway is not None
    planner.gateway.on("/v1/decisions", Answer(201, {"decision_id": "dec_3", "outcome": "denied"}))
    await planner.hear(drift())
    await planner.at(1)
    repair = await planner.only()
    assert (repair.status, repair.error_code) == (Status.ESCALATED, "denied")
    assert planner.exception().owner == "duty-manager"


async def test_a_dead_letter_is_redriven_observed_and_verified_by_what_it_came_to(planner: Planner) -> None:
    """Requirements: Q6, Q7, Q8, O6"""
    await planner.hear(dead())
    assert await planner.at(59) == 0
    assert await planner.at(60) == 1
    repair = await planner.only()
    assert (repair.status, repair.operator_command_id) == (Status.VERIFYING, "opc_r1")
    await planner.hear(closed("1", "operation_outcome_unknown"))
    assert (planner.exception().status, planner.exception().lifecycle) == ("open", "repaired")
    await planner.hear(ended("opc_r1", "SUCCESS"))
    assert (await planner.only()).status is Status.DONE
    exception = planner.exception()
    assert (exception.status, exception.resolution_type, exception.lifecycle) == (
        "closed",
        "operation_success",
        "closed",
    )


async def test_the_end_of_an_operator_command_closes_no_exception_whose_obligation_is_open(planner: Planner) -> None:
    """Requirements: Q8, Q7"""
    await planner.hear(reported(kind="needs_review", failure_class="TIMEOUT_UNKNOWN"))
    waiting = await planner.only()
    await planner.hear(operated("RECONCILE", waiting, "orchestrator"))
    await planner.hear(ended("opc_p", "FAILED"))
    first, second = sorted(await planner.repairs(), key=lambda row: row.created_at)[:2]
    assert {first.status, second.status} == {Status.DONE, Status.PLANNED}
    assert (planner.exception().status, planner.exception().lifecycle) == ("open", "assigned")
    await planner.hear(closed("1", "operation_failed", kind="needs_review"))
    assert (planner.exception().status, planner.exception().resolution_type) == ("closed", "operation_failed")


async def test_a_success_that_is_told_before_its_obligation_closes_waits_for_it(planner: Planner) -> None:
    """Requirements: Q8"""
    await planner.hear(dead())
    await planner.at(60)
    await planner.hear(ended("opc_r1", "SUCCESS"))
    assert ((await planner.only()).status, planner.exception().status) == (Status.DONE, "open")
    await planner.hear(closed("1", "operation_success"))
    assert (planner.exception().status, planner.exception().lifecycle) == ("closed", "closed")


async def test_a_redrive_that_dies_again_is_another_exception_and_the_second_try(planner: Planner) -> None:
    """Requirements: R9, Q8"""
    await planner.hear(dead())
    await planner.at(60)
    again = dead("2").model_copy(update={})
    obligation = again.obligation.evolve(command_id="cmd_1")  # type: ignore[attr-defined]
    await planner.hear(closed("1", "operation_outcome_unknown"), again.evolve(obligation=obligation))  # type: ignore[attr-defined]
    first, second = await planner.repairs()
    assert (first.status, second.status, second.number) == (Status.FAILED, Status.PLANNED, 2)
    closed_one = next(item for item in planner.told(ExceptionChanged) if item.status == "closed")
    assert (closed_one.exception_id, closed_one.resolution_type) == (first.exception_id, "operation_outcome_unknown")


async def test_a_redrive_by_hand_is_a_repair_like_any_other(planner: Planner) -> None:
    """Requirements: I5, O6, Q7"""
    await planner.hear(reported(failure_class="DATA_ERROR"))
    waiting = await planner.only()
    assert (waiting.status, waiting.approval_required, waiting.due_at) == (Status.PLANNED, True, None)
    await planner.hear(operated("REDRIVE", waiting, "orchestrator"), operated("REDRIVE", waiting, "orchestrator"))
    taken = await planner.only()
    assert (taken.status, taken.operator_command_id) == (Status.VERIFYING, "opc_p")
    await planner.hear(ended("opc_p", "", refused=True))
    first, second = sorted(await planner.repairs(), key=lambda row: row.number)
    assert (first.status, first.error_code, second.status) == (Status.FAILED, "refused", Status.PLANNED)


async def test_a_person_lets_a_planned_repair_of_drift_begin_and_hears_its_end(planner: Planner) -> None:
    """Requirements: G7, Q5, O3"""
    await planner.hear(drift(envelope={"route": "MANUAL"}))
    assert await planner.at(1) == 0
    waiting = await planner.only()
    await planner.hear(operated("REPAIR", waiting))
    assert await planner.at(2) == 1
    assert planner.told(OperatorCommandEnded) == []
    await planner.hear(closed("1", "observed_healthy", kind="state_drift", envelope=DRIFT))
    (told,) = planner.told(OperatorCommandEnded)
    assert (told.operator_command_id, told.state, told.result["state"]) == ("opc_p", "DONE", "DONE")


async def test_duty_is_assigned_and_escalated_by_people_and_the_rest_is_refused(planner: Planner) -> None:
    """Requirements: Q4, Q8, O3"""
    await planner.hear(reported(failure_class="DATA_ERROR"))
    row = await planner.only()
    until = moment(7200).business
    await planner.hear(operated("ASSIGN", row, params={"owner": "editors", "deadline": until.isoformat()}))
    assert (planner.exception().owner, planner.exception().deadline_at) == ("editors", until)
    await planner.hear(operated("ESCALATE", row))
    assert planner.exception().owner == "duty-manager"
    await planner.hear(operated("ESCALATE", row, params={"owner": "chief"}))
    assert planner.exception().owner == "chief"
    await planner.hear(operated("SETTLE", row))
    states = [(item.state, item.ended_by) for item in planner.told(OperatorCommandEnded)]
    assert states == [*[("DONE", "repair-planner")] * 3, ("REFUSED", "repair-planner")]


async def test_without_an_identity_nothing_begins_and_everything_is_shown(planner: Planner) -> None:
    """Requirements: G7, Q1"""
    mute = Planner(planner.store, gateway=None)
    await mute.hear(drift())
    assert await mute.at(1000) == 0
    assert [(item.status, item.approval_required) for item in mute.told(RepairChanged)] == [("PLANNED", False)]


async def test_two_planners_never_carry_out_the_same_repair(planner: Planner) -> None:
    """Requirements: D5, O6"""
    other = Planner(planner.store, gateway=planner.gateway)
    await planner.hear(*[drift(str(number), envelope={"element": f"monitoring.e{number}"}) for number in range(20)])
    other.seconds = planner.seconds = 1.0
    first, second = await planner.execution._claim(), await other.execution._claim()
    assert len(first) == len(second) == STARTS_PER_TICK
    assert not {row.repair_id for row in first} & {row.repair_id for row in second}


async def _outage(planner: Planner, count: int) -> None:
    await planner.hear(*[dead(str(number)) for number in range(count)])


def incident(planner: Planner) -> IncidentChanged:
    told: IncidentChanged = planner.told(IncidentChanged)[-1]
    return told


async def test_many_exceptions_of_one_cause_are_one_incident_and_their_repairs_are_held(planner: Planner) -> None:
    """Requirements: D4, Q5"""
    await planner.hear(dead("a"))
    await planner.hear(dead("b"))
    assert planner.told(IncidentChanged) == []
    await planner.hear(dead("c"), reported("d", failure_class="DATA_ERROR"))
    one = incident(planner)
    assert (one.status, one.exceptions_count, one.cause["system"]) == ("OPEN", 3, "wordpress")
    assert one.blast_radius["workflows"] == 3
    rows = {row.source_command: row for row in await planner.repairs()}
    assert [rows[f"cmd_{name}"].held for name in "abcd"] == [True, True, True, False]
    assert {rows[f"cmd_{name}"].incident_id for name in "abc"} == {one.incident_id}
    shown = {item.command_id: item.incident_id for item in planner.told(ExceptionChanged)}
    assert shown["cmd_a"] == one.incident_id and shown["cmd_d"] is None


async def test_one_probe_goes_ahead_and_once_it_held_the_others_follow_at_a_bounded_rate(planner: Planner) -> None:
    """Requirements: D4, O5"""
    assert planner.gateway is not None
    await _outage(planner, 9)
    await planner.at(29)
    assert planner.gateway.accepted == 0
    await planner.at(30)
    assert (planner.gateway.accepted, incident(planner).status) == (1, "PROBING")
    await planner.at(45)
    assert planner.gateway.accepted == 1
    await planner.hear(ended("opc_r1", "SUCCESS"))
    await planner.at(50)
    assert incident(planner).status == IncidentStatus.RECOVERING
    accepted = []
    for second in range(51, 56):
        await planner.at(second)
        accepted.append(planner.gateway.accepted)
    assert accepted == [3, 5, 7, 9, 9]
    for number in range(2, 10):
        await planner.hear(ended(f"opc_r{number}", "SUCCESS"))
    await planner.at(60)
    assert (incident(planner).status, incident(planner).held_count) == ("CLOSED", 0)
    assert {row.status for row in await planner.repairs()} == {Status.DONE}


async def test_a_probe_that_fails_holds_the_rest_and_the_next_waits_twice_as_long(planner: Planner) -> None:
    """Requirements: D4, R9"""
    assert planner.gateway is not None
    await _outage(planner, 4)
    await planner.at(30)
    await planner.hear(ended("opc_r1", "DEAD_LETTERED"))
    await planner.at(32)
    assert incident(planner).status == "OPEN"
    probe_at: datetime | None = incident(planner).next_probe_at
    assert probe_at is not None and probe_at == moment(62).business
    await planner.at(61)
    assert planner.gateway.accepted == 1
    await planner.at(62)
    assert planner.gateway.accepted == 2
    held = [row for row in await planner.repairs() if row.held]
    assert len(held) == 3


async def test_failures_that_share_an_adapter_or_a_policy_are_an_incident_over_all_systems(planner: Planner) -> None:
    """Requirements: D4"""
    bad = {"adapter_version": "d" * 64, "failure_code": "payload_invalid"}
    await planner.hear(*[reported(str(n), failure_class="SCHEMA_ERROR", envelope=bad) for n in range(3)])
    assert {item.cause["by"]: item.cause["value"] for item in planner.told(IncidentChanged)} == {"adapter": "d" * 64}
    barred = {"policy_sha256": "e" * 64, "failure_code": "revoked"}
    await planner.hear(*[reported(f"p{n}", failure_class="PERMISSION_ERROR", envelope=barred) for n in range(3)])
    assert {item.cause["by"] for item in planner.told(IncidentChanged)} == {"adapter", "policy", "system"}


async def test_an_incident_of_one_tenant_holds_nothing_of_another(planner: Planner) -> None:
    """Requirements: T1, D4"""
    await _outage(planner, 3)
    globex = dead("g", tenant="globex")
    async with planner.store.transaction() as tx:
        outgoing = await EventsHandler(RULES).handle(tx, moment(1), [message(globex, "g1", "globex")])
    (repair,) = [
        RepairChanged.model_validate_json(item.message.data)
        for item in outgoing
        if item.message.type == "RepairChanged"
    ]
    assert (repair.incident_id, repair.due_at) == (None, moment(61).business)


async def test_a_quarantined_message_is_marked_resolved_by_a_person_and_says_so(planner: Planner) -> None:
    """Requirements: M3, Q8, O3"""
    await planner.hear(quarantine())
    waiting = await planner.only()
    assert (waiting.playbook, waiting.status, waiting.approval_required) == ("quarantined", Status.PLANNED, True)
    await planner.hear(operated("MARK_RESOLVED", waiting))
    exception = planner.exception()
    assert (exception.status, exception.resolution_type, exception.resolved_by) == (
        "closed",
        "marked_resolved",
        "operator:olga",
    )
    assert "verified" not in [entry["to"] for entry in exception.envelope["trail"]]
    assert (await planner.only()).status is Status.WITHDRAWN
    await planner.hear(operated("MARK_RESOLVED", waiting))
    assert [item.state for item in planner.told(OperatorCommandEnded)] == ["DONE", "REFUSED"]


async def test_what_waits_for_another_element_is_planned_and_begins_when_its_turn_has_come(planner: Planner) -> None:
    """The cache of a trashed post: nothing is sent while the post has drifted, and one repair afterwards.

    Requirements: R3, Q5
    """
    await planner.hear(drift(envelope={"waits_for": ["wordpress.status"]}))
    repair = await planner.only()
    assert (repair.status, repair.due_at) == (Status.PLANNED, None)
    assert repair.drift is not None and repair.drift["waits_for"] == ["wordpress.status"]
    assert await planner.at(5000) == 0
    await planner.hear(drift(version=2, envelope={"waits_for": []}))
    assert await planner.at(5001) == 1
    assert ((await planner.only()).repair_id, (await planner.only()).status) == (repair.repair_id, Status.VERIFYING)


async def test_what_is_found_to_wait_after_all_does_not_begin(planner: Planner) -> None:
    """Requirements: R3. The drift upstream is found a moment later than the one that it causes."""
    await planner.hear(drift())
    await planner.hear(drift(version=2, envelope={"waits_for": ["wordpress.status"]}))
    assert await planner.at(5000) == 0
    assert (await planner.only()).status is Status.PLANNED


async def test_a_repair_shows_the_risk_that_was_decided_and_so_its_approval_shows_the_same(planner: Planner) -> None:
    """The playbook estimates, the decision decides. Requirements: G2, Q5"""
    assert planner.gateway is not None
    asked = {"decision_id": "dec_2", "outcome": "approval_required", "approval_id": "apr_2"}
    planner.gateway.on("/v1/decisions", Answer(201, {**asked, "risk": {"score": 61, "level": "high"}}))
    await planner.hear(drift())
    assert (await planner.only()).risk_level == "low"
    await planner.at(1)
    waiting = await planner.only()
    assert (waiting.status, waiting.risk_level, planner.told(RepairChanged)[-1].risk_level) == (
        Status.WAITING_APPROVAL, "high", "high",
    )  # fmt: skip
    assert planner.told(RepairChanged)[-1].approval_required and not waiting.approval_required
    planner.gateway.on("/v1/decisions", Answer(201, {"decision_id": "dec_3", "outcome": "denied", "risk": None}))
    await planner.hear(drift("2", envelope={"target_resource": "check/two"}))
    await planner.at(2)
    assert {row.exception_id: row.risk_level for row in await planner.repairs()} == {
        waiting.exception_id: "high",
        planner.exception().exception_id: "low",
    }


async def test_a_person_who_chooses_another_way_than_the_playbook_has_planned_it(planner: Planner) -> None:
    """COMPENSATE of a failed compensation: the repair names who planned it. Requirements: Q5, O3, O6"""
    await planner.hear(reported(kind="compensation_failed", failure_class="COMPENSATION_FAILURE"))
    waiting = await planner.only()
    assert (waiting.repair_action, waiting.planned_by) == ("REPAIR", "service:repair-planner")
    await planner.hear(operated("COMPENSATE", waiting, "orchestrator"))
    taken = await planner.only()
    assert (taken.status, taken.repair_action, taken.planned_by) == (Status.VERIFYING, "COMPENSATE", "operator:olga")


async def test_failures_of_one_worker_on_several_systems_are_the_workers_and_of_one_system_are_the_systems(
    planner: Planner,
) -> None:
    """Only what shows in more than one target lies on this side of them. Requirements: D4"""
    sick = {"worker": "adapters-2", "failure_code": "timeout"}

    def doubt(name: str, system: str) -> BaseModel:
        report = reported(name, kind="unknown_outcome", failure_class="TIMEOUT_UNKNOWN", envelope=sick)
        return report.evolve(target_system=system)

    await planner.hear(*[doubt(f"w{n}", "wordpress") for n in range(3)])
    assert {item.cause["by"]: item.cause["value"] for item in planner.told(IncidentChanged)} == {"system": "wordpress"}
    await planner.hear(doubt("g", "github"))
    found = {item.cause["by"]: item for item in planner.told(IncidentChanged)}
    assert (found["worker"].cause["value"], found["worker"].exceptions_count) == ("adapters-2", 4)
    assert found["worker"].blast_radius["systems_named"] == ["wordpress", "github"]
    assert found["worker"].cause["system"] is None


async def test_failures_of_one_version_of_an_agent_are_an_incident_of_that_version(planner: Planner) -> None:
    """Requirements: D4"""
    bad = {"agent": "agent:publisher", "agent_version": "publisher@7", "failure_code": "payload_invalid"}
    await planner.hear(*[reported(str(n), failure_class="DATA_ERROR", envelope=bad) for n in range(3)])
    assert {item.cause["by"]: item.cause["value"] for item in planner.told(IncidentChanged)} == {
        "agent": "agent:publisher", "agent_version": "publisher@7",
    }  # fmt: skip


async def test_a_redrive_that_ends_as_it_began_is_counted_and_in_the_end_a_person_has_it(planner: Planner) -> None:
    """A dead letter that dies again stays the same exception: only the end of each redrive is told, alone in a message.

    Whoever hears of it looks at all that was tried there, or it would be redriven for ever.

    Requirements: R9, Q4, Q7
    """
    await planner.hear(dead())
    seconds = 0.0
    for number in range(1, 5):
        seconds += 60 * 2 ** (number - 1)
        assert await planner.at(seconds) == 1
        await planner.hear(ended(f"opc_r{number}", "DEAD_LETTERED"))
        failed = [row for row in await planner.repairs() if row.status is Status.FAILED]
        assert len(failed) == number
    (last,) = [row for row in await planner.repairs() if row.status is Status.ESCALATED]
    assert (last.error_code, planner.exception().owner) == ("budget_spent", "duty-manager")
    assert await planner.at(10**6) == 0


async def test_word_of_a_redrive_that_is_over_finds_the_one_that_was_planned_since(planner: Planner) -> None:
    """The message came late. It is no reason for a second repair beside the planned one, which could never be kept.

    Requirements: I5, O6, M2
    """
    await planner.hear(dead())
    await planner.at(60)
    first = await planner.only()
    await planner.hear(ended("opc_r1", "DEAD_LETTERED"))
    command = operated("REDRIVE", first, "orchestrator").evolve(repair_id=first.repair_id)
    await planner.hear(command)
    rows = await planner.repairs()
    assert [row.number for row in rows if row.in_flight] == [2]
    assert {row.repair_id: row.status for row in rows}[first.repair_id] is Status.FAILED


async def test_a_person_who_names_a_repair_that_is_over_lets_the_next_one_begin(planner: Planner) -> None:
    """Requirements: I5, O6"""
    await planner.hear(drift())
    await planner.at(1)
    first = await planner.only()
    planner.seconds = 302
    async with planner.store.transaction() as tx:  # nobody saw it hold; the next one has not begun yet
        planner.sent.outgoing += await Ticks(RULES).verifications(tx, moment(302))
    (following,) = [row for row in await planner.repairs() if row.in_flight]
    await planner.hear(operated("REPAIR", following).evolve(repair_id=first.repair_id))
    (row,) = [row for row in await planner.repairs() if row.in_flight]
    assert (row.repair_id, row.operator_command_id) == (following.repair_id, "opc_p")


async def test_what_was_accepted_long_before_its_asker_came_back_is_found_and_not_done_twice(planner: Planner) -> None:
    """The planner died after the gateway had accepted, and was away for longer than the repair may take: the deadline
    that it asks with is another one now, the key is the same.

    Requirements: I1, I5, G7
    """
    assert planner.gateway is not None
    await planner.hear(dead())
    planner.seconds = 60
    claimed = await planner.execution._claim()
    await planner.execution._turn(claimed[0])
    assert planner.gateway.accepted == 1
    reused = {"type": "https://trueup.dev/problems/idempotency-key-reused", "status": 422}
    planner.gateway.on("/v1/operator-commands", Answer(422, reused))
    mine = {"operator_command_id": "opc_r1", "params": {"repair_id": claimed[0].repair_id}}
    other = {"operator_command_id": "opc_x", "params": {}}
    planner.gateway.on(f"/v1/operator-commands?target={claimed[0].exception_id}", Answer(200, {"items": [other, mine]}))
    assert await planner.at(9000) == 1
    repair = await planner.only()
    assert (repair.status, repair.operator_command_id) == (Status.VERIFYING, "opc_r1")
    await planner.hear(ended("opc_r1", "SUCCESS"))
    assert ((await planner.only()).status, planner.gateway.accepted) == (Status.DONE, 1)


async def test_one_repair_that_cannot_be_asked_for_holds_up_no_other(planner: Planner) -> None:
    """Requirements: Q8, O5. It is put off like any silence, and a person gets it at the limit."""
    assert planner.gateway is not None
    permitted = planner.gateway.replies["/v1/decisions"]

    def torn(call: Any) -> Answer:
        if call.body["resource"]["resource"] == OFFER["resource"] + "/bad":
            raise RuntimeError("cannot be encoded")
        reply = permitted[0]
        assert isinstance(reply, Answer)
        return reply

    planner.gateway.on("/v1/decisions", torn)
    bad = {"repair": {**OFFER, "resource": OFFER["resource"] + "/bad"}, "target_resource": "check/bad"}
    await planner.hear(drift(), drift("2", envelope=bad))
    assert await planner.at(1) == 2
    found = {row.source_command: row for row in await planner.repairs()}
    assert (found["cmd_1"].status, found["cmd_2"].status) == (Status.VERIFYING, Status.PLANNED)
    assert (found["cmd_2"].error_code, found["cmd_2"].calls_count) == ("turn_failed", 1)
    for second in range(200, 200 + 130 * CALLS_MAX, 130):
        await planner.at(second)
    found = {row.source_command: row for row in await planner.repairs() if row.source_command == "cmd_2"}
    assert found["cmd_2"].status is Status.ESCALATED


async def test_one_repair_that_cannot_be_settled_holds_up_no_other(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements: Q8. The others keep what they were told; this one is asked for again under the same key."""
    from trueup_repair_planner import execution

    take = execution._take

    def torn(desk: Any, row: Any, repair: RepairRow, outcome: Any) -> None:
        if repair.source_command == "cmd_2":
            raise RuntimeError("a fault of the program")
        take(desk, row, repair, outcome)

    monkeypatch.setattr(execution, "_take", torn)
    await planner.hear(drift(), drift("2", envelope={"target_resource": "check/two"}))
    assert await planner.at(1) == 2
    assert {row.source_command: row.status for row in await planner.repairs()} == {
        "cmd_1": Status.VERIFYING, "cmd_2": Status.EXECUTING,
    }  # fmt: skip
    monkeypatch.undo()
    assert planner.gateway is not None
    assert await planner.at(1 + LEASE_SECONDS) == 2
    assert {row.status for row in await planner.repairs()} == {Status.VERIFYING}
    assert planner.gateway.accepted == 2


async def test_what_an_incident_lets_go_is_judged_again_one_by_one_and_none_is_lost(planner: Planner) -> None:
    """Superseded, expired, revoked meanwhile: refused at the gateway, owned by a person, and the incident is over.

    Requirements: D4, O5, Q8
    """
    assert planner.gateway is not None
    await _outage(planner, 4)
    await planner.at(30)
    await planner.hear(ended("opc_r1", "SUCCESS"))
    moved = "https://trueup.dev/problems/action-not-available"
    planner.gateway.on(
        "/v1/operator-commands",
        Answer(409, {"type": moved, "detail": "It is RESOLVED.", "allowed_actions": []}),
        Answer(403, {"type": "https://trueup.dev/problems/forbidden", "check": "deadline"}),
        Answer(403, {"type": "https://trueup.dev/problems/forbidden", "check": "policy"}),
    )
    for second in range(32, 40):
        await planner.at(second)
    tried = [row for row in await planner.repairs() if row.status is not Status.DONE]
    ends = {row.error_code: row.status for row in tried if row.error_code}
    assert ends == {
        "action-not-available": Status.FAILED, "deadline": Status.ESCALATED, "policy": Status.ESCALATED,
    }  # fmt: skip
    shown = {item.exception_id: item for item in planner.told(ExceptionChanged)}
    assert len(shown) == 4
    assert all(item.owner for item in shown.values())
    owners = {item.owner for item in shown.values() if item.repair_status == "ESCALATED"}
    assert owners == {"duty-manager"}
    again = [row for row in tried if row.status is Status.PLANNED]
    assert len(again) == 1 and again[0].due_at is not None, "what its state refused is planned anew"


class Overtaken:
    """A transaction that another replica overtakes: it commits its own just before the n-th read of this one."""

    def __init__(self, tx: SqlPlannerTransaction, planner: Planner, number: int, body: BaseModel) -> None:
        self._tx = tx
        self._planner = planner
        self._left = number
        self._body = body

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tx, name)
        if name not in {"exceptions", "related_repairs", "repairs", "incidents_of"}:
            return found

        async def read(*given: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                await self._planner.hear(self._body)
            return await found(*given)

        return read


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_whoever_closes_an_exception_withdraws_what_another_replica_planned_meanwhile(
    planner: Planner, number: int
) -> None:
    """Two replicas hear of an exception and of its end at once: whichever read comes between, no repair outlives it.

    Requirements: Q8, M2
    """
    over = message(closed(kind="state_drift", envelope=DRIFT), "overtaken")
    opened = reported(kind="state_drift", envelope=DRIFT)
    try:
        async with planner.store.transaction() as tx:
            held: Any = Overtaken(tx, planner, number, opened)
            await EventsHandler(RULES).handle(held, moment(0), [over])
    except VersionConflict:
        async with planner.store.transaction() as tx:
            await EventsHandler(RULES).handle(tx, moment(0), [over])
    assert [repair.in_flight for repair in await planner.repairs()] == [False]
