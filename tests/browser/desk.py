"""A desk with work on it: a gateway in this process on a real port, with exceptions of every sort in its read model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.gateway.edge import EdgeUnderTest, draft, edge, later
from tests.gateway.test_views import changed_exception, project
from tests.servers import Database
from trueup_common.contracts import history
from trueup_common.contracts.events import (
    CaseChanged,
    ElementChanged,
    ExceptionChanged,
    IncidentChanged,
    RepairChanged,
    StartCase,
)
from trueup_common.contracts.ids import attempt_id, derived_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState, Phase
from trueup_common.runtime.clock import real_now
from trueup_gateway.api.app import create_app
from trueup_gateway.serving import ApiServer
from trueup_gateway.store import Reader

HOSTILE = "<img src=x onerror=alert(document.cookie)><script>alert(1)</script>\u202egnp.exe" + " and on" * 300


@dataclass
class Desk:
    """The gateway, its address, and the ids of what lies on the desk by its name."""

    edge: EdgeUnderTest
    url: str
    exceptions: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)

    async def accept(self, name: str, title: str = "How agents publish without doing it twice") -> StartCase:
        """An accepted command; its case is known by `name`."""
        capability = await self.edge.capability()
        wanted = draft(name, payload={"title": title, "slug": name, "content": "<p>Text</p>"})
        response = await self.edge.submit(capability["capability"], f"article:{name}:draft", wanted)
        assert response.status_code == 202, response.text
        start = StartCase.model_validate_json(self.edge.publisher.published[-1].message.data)
        self.cases[name], self.commands[name] = start.workflow_id, start.command_id
        return start

    async def tell(self, start: StartCase, state: OperationState, status: InstanceStatus, **changes: Any) -> None:
        """Let the orchestrator tell of a case."""
        reader = Reader(start.tenant)
        view = await self.edge.gateway.reads.case(reader, start.workflow_id)
        row = await self.edge.gateway.reads.command_row(reader, start.command_id)
        assert view is not None and row is not None
        told = {"state": state, "state_version": 9, "risk": "medium", **changes}
        operation = JournalRow.model_validate({**row, **told})
        events = _events(start, state, changes)
        instance: InstanceRow = view.instance.evolve(state_version=9, status=status, history_seq=len(events))
        await project(self.edge, CaseChanged(instance=instance, operations=(operation,), history=tuple(events)))

    async def raise_exception(self, start: StartCase, name: str, **changes: Any) -> ExceptionChanged:
        """Let the planner tell of an exception."""
        event = changed_exception(start, name, **changes)
        await project(self.edge, event)
        self.exceptions[name] = event.exception_id
        return event

    async def recall(self) -> None:
        """Know again what an earlier test of the module put here."""
        async with self.edge.database.connection() as connection:
            rows = await connection.fetch(
                "SELECT x.exception_id, x.workflow_id, x.command_id, c.row->>'idempotency_key' AS key "
                "FROM gateway.exception_view x JOIN gateway.command_view c USING (command_id)"
            )
        for row in rows:
            if not str(row["key"]).startswith("article:"):
                continue  # what a test put here for itself
            name = str(row["key"]).split(":")[1]
            self.exceptions[name] = row["exception_id"]
            self.cases[name], self.commands[name] = row["workflow_id"], row["command_id"]


def _events(start: StartCase, state: OperationState, changes: dict[str, Any]) -> list[HistoryEvent]:
    told = [
        (
            "CaseStarted",
            "agent:publisher",
            {"command_type": start.command_type, "resource": "post", "states": ["RECEIVED"]},
        ),
        ("TaskDispatched", "orchestrator", {"fence": 1, "states": ["QUEUED", "DISPATCHING"]}),
        (
            "ReceiptReceived",
            "adapter:wordpress",
            {"fence": 1, "error_code": changes.get("error_code"), "states": [state]},
        ),
    ]
    found: list[HistoryEvent] = []
    for seq, (kind, actor, payload) in enumerate(told, 1):
        found.append(
            history.append(
                workflow_id=start.workflow_id,
                tenant=start.tenant,
                seq=seq,
                type=kind,
                actor=actor,
                prev_hash=found[-1].hash if found else history.GENESIS,
                occurred_at=later(seq - 420),
                recorded_at=later(seq - 420),
                payload={name: value for name, value in payload.items() if value is not None},
                trace_id=start.trace_id,
            )
        )
    return found


def attempt(start: StartCase, fence: int, state: str, at: datetime, **facts: Any) -> dict[str, Any]:
    """One attempt as the journal lists it."""
    moment = rfc3339(at)
    return {
        "attempt_id": attempt_id(start.command_id, fence),
        "fence": fence,
        "state": state,
        "started_at": moment,
        "ended_at": moment,
        "error_class": None,
        "error_code": None,
        "external_status": None,
        "external_resource_id": None,
        "sent": state != "NOT_SENT",
        **facts,
    }


def envelope(start: StartCase, code: str, reason: str, status: str | None, count: int, repair: str) -> dict[str, Any]:
    """A failure envelope as the planner keeps it."""
    return {
        "command_id": start.command_id,
        "workflow_id": start.workflow_id,
        "failed_step": "command",
        "failure_code": code,
        "failure_reason": reason,
        "first_failed_at": rfc3339(later(-420)),
        "last_failed_at": rfc3339(later(-410)),
        "attempt_count": count,
        "last_external_status": status,
        "decision_id": start.mandate.decision_id,
        "capability_id": start.mandate.capability_id,
        "recommended_repair": repair,
        "command_type": start.command_type,
        "target_system": "wordpress",
        "target_resource": "post",
        "trail": [
            {"turn": "find", "to": "found", "at": rfc3339(later(-410)), "actor": "orchestrator"},
            {"turn": "classify", "to": "classified", "at": rfc3339(later(-409)), "actor": "planner"},
            {"turn": "assign", "to": "assigned", "at": rfc3339(later(-409)), "actor": "planner", "owner": "operators"},
        ],
    }


AGAIN = "observe the target, then redrive as a new repair command; never replay as it was"
CORRECT = (
    "remove the cause and redrive it, or submit a corrected command that names this one in `supersedes`; "
    "nothing happened in the target"
)


async def _failed(desk: Desk, name: str, message: str) -> None:
    start = await desk.accept(name)
    refused = attempt(start, 1, "REJECTED", later(-410), error_class="permanent", error_code="forbidden")
    await desk.tell(
        start,
        OperationState.FAILED,
        InstanceStatus.HUMAN_TAKEOVER,
        attempts=[{**refused, "external_status": "403"}],
        attempt_count=1,
        error_class="permanent",
        error_code="forbidden",
        desired_state={"wordpress.status": "draft"},
        human_review_required=True,
    )
    reason = f'{{"code":"rest_cannot_create","message":"{message}"}}' if "<" not in message else message
    told = envelope(start, "forbidden", reason, "403", 1, CORRECT)
    await desk.raise_exception(start, name, failure_class="PERMISSION_ERROR", envelope=told, deadline_at=later(840))


async def _dead(desk: Desk) -> None:
    start = await desk.accept("dead")
    away = [
        attempt(
            start,
            n,
            "REJECTED",
            later(-900 + n * 60),
            error_class="transient",
            external_status="503",
            error_code="away",
        )
        for n in (1, 2, 3)
    ]
    await desk.tell(
        start,
        OperationState.DEAD_LETTERED,
        InstanceStatus.HUMAN_TAKEOVER,
        attempts=away,
        attempt_count=3,
        error_class="transient",
        error_code="deadline_passed",
        dead_letter_reason="deadline_passed",
        desired_state={"wordpress.status": "draft"},
        human_review_required=True,
    )
    told = envelope(start, "deadline_passed", "the target answered 503 until the deadline", "503", 3, AGAIN)
    await desk.raise_exception(
        start,
        "dead",
        kind="dead_letter",
        failure_class="DEPENDENCY_ERROR",
        envelope=told,
        deadline_at=later(-120),
        opened_at=later(-7500),
    )


async def _unknown(desk: Desk) -> None:
    start = await desk.accept("unknown")
    lost = attempt(start, 1, "UNKNOWN", later(-300), error_class="unknown", error_code="connection_lost")
    await desk.tell(
        start,
        OperationState.RECONCILING,
        InstanceStatus.RUNNING,
        attempts=[lost],
        attempt_count=1,
        error_class="unknown",
        error_code="connection_lost",
        desired_state={"wordpress.status": "draft"},
    )
    told = envelope(start, "connection_lost", "the connection died after the request was sent", None, 1, "wait")
    later(5400)
    await desk.raise_exception(
        start,
        "unknown",
        kind="unknown_outcome",
        failure_class="TIMEOUT_UNKNOWN",
        envelope=told,
        deadline_at=later(5400),
    )


async def _drifted(desk: Desk) -> None:
    start = await desk.accept("drifted")
    done = attempt(start, 1, "CONFIRMED", later(-86400), external_status="201", external_resource_id="post/28")
    state = {"wordpress.status": "draft", "wordpress.content": "ab" * 32}
    await desk.tell(
        start,
        OperationState.SUCCESS,
        InstanceStatus.CLOSED,
        attempts=[done],
        attempt_count=1,
        external_resource_id="post/28",
        receipt={"resource": "post/28"},
        desired_state=state,
        recorded_state=state,
        observed_state=state,
        completed_at=later(-86400),
    )
    for element, seen in (("wordpress.status", "trash"), ("wordpress.content", "ab" * 32)):
        await project(
            desk.edge,
            ElementChanged(
                tenant="acme",
                system="wordpress",
                resource="post/28",
                element=element,
                command_id=start.command_id,
                workflow_id=start.workflow_id,
                version=3,
                desired=state[element],
                recorded=state[element],
                observed=seen,
                verdict="CONFIRMED",
                phase=Phase.HEALTHY if seen == state[element] else Phase.DRIFT,
                observed_at=later(-45),
                source="wordpress.rest",
                next_visit_at=later(600),
            ),
        )
    told = envelope(start, "drift", "wordpress.status of post/28 is trash; it should be draft", None, 1, "repair")
    await desk.raise_exception(
        start, "drifted", kind="state_drift", failure_class="STATE_DRIFT", envelope=told, deadline_at=later(2700)
    )


async def _undoing_failed(desk: Desk) -> None:
    start = await desk.accept("undoing")
    done = attempt(start, 1, "CONFIRMED", later(-600), external_status="201", external_resource_id="post/29")
    await desk.tell(
        start,
        OperationState.SUCCESS,
        InstanceStatus.HUMAN_TAKEOVER,
        attempts=[done],
        attempt_count=1,
        external_resource_id="post/29",
        recorded_state={"wordpress.status": "draft"},
        desired_state={"wordpress.status": "draft"},
        compensation_state=CompensationState.COMPENSATION_FAILED,
    )
    told = envelope(
        start, "forbidden", '{"message":"Sorry, you are not allowed to delete this post."}', "403", 1, AGAIN
    )
    await desk.raise_exception(
        start,
        "undoing",
        kind="compensation_failed",
        failure_class="COMPENSATION_FAILURE",
        envelope=told,
        deadline_at=later(420),
    )


async def _mended(desk: Desk) -> None:
    """A repair that waits for approval, and an incident."""
    now = real_now()
    repair = RepairChanged(
        repair_id=derived_id("rep", desk.exceptions["drifted"], "1"),
        tenant="acme",
        exception_id=desk.exceptions["drifted"],
        subject_key="acme/wordpress/post/28/wordpress.status",
        number=1,
        status="WAITING_APPROVAL",
        source_workflow=desk.cases["drifted"],
        root_cause="an outsider put the post into the trash",
        repair_action="REPAIR",
        risk_level="high",
        approval_required=True,
        verification_plan="wordpress.status is observed as draft",
        rollback_or_compensation="none is needed",
        explanation="Put the post back; nothing else of it is touched.",
        playbook="restore-missing-element",
        playbook_version=1,
        owner="operators",
        planned_by="service:planner",
        created_at=later(-40),
        version=1,
    )
    incident = IncidentChanged(
        incident_id=derived_id("inc", "acme", "wordpress"),
        tenant="acme",
        status="OPEN",
        cause={"by": "target", "value": "wordpress", "system": "wordpress", "failure_class": "DEPENDENCY_ERROR"},
        owner="operators",
        exceptions_count=7,
        exceptions=[desk.exceptions["dead"], desk.exceptions["unknown"]],
        blast_radius={"systems": ["wordpress"], "command_types": ["wordpress.create_draft"]},
        held_count=3,
        first_at=later(-700),
        last_at=now,
        opened_at=later(-600),
        next_probe_at=later(30),
        version=1,
    )
    await project(desk.edge, repair, incident)


async def fill(desk: Desk) -> None:
    """Put everything on the desk."""
    await _failed(desk, "failed", "Sorry, you are not allowed to create posts as this user.")
    await _failed(desk, "hostile", HOSTILE)
    await _dead(desk)
    await _unknown(desk)
    await _drifted(desk)
    await _undoing_failed(desk)
    await _mended(desk)
    decision = await desk.edge.decide("wordpress.publish_post", resource="post/28")
    assert decision["outcome"] == "approval_required"
    headers = {**desk.edge.headers(sub="operator:otto", roles=("operator",)), "Idempotency-Key": '"desk"'}
    frozen = {
        "scope": {"system": "github"},
        "reason": "the repository is being moved",
        "expires_at": rfc3339(later(7200)),
    }
    response = await desk.edge.client.post("/v1/controls/freezes", json=frozen, headers=headers)
    assert response.status_code in (200, 201), response.text


@asynccontextmanager
async def desk_on(database: Database) -> AsyncIterator[Desk]:
    """A gateway on a port of its own."""
    async with edge(database, port=0) as running:
        server = ApiServer(create_app(running.gateway), running.gateway.settings, leave_seconds=0.0)
        stop = asyncio.Event()
        serving = asyncio.create_task(server.run(stop))
        try:
            yield Desk(running, f"http://127.0.0.1:{server.port}")
        finally:
            running.gateway.watch.dismiss()
            stop.set()
            await serving
