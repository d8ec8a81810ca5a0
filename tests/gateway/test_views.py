"""The read model: projected by version, read by tenant and by subject, in pages and as a stream."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.edge import EdgeUnderTest, draft, later
from tests.gateway.mending import told_repair
from tests.gateway.test_acceptance import advance
from tests.gateway.test_governance import OPERATOR, VIEWER
from tests.gateway.test_refusals import problem
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts import history
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import CaseChanged, ElementChanged, ExceptionChanged, StartCase
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.states import InstanceStatus, OperationState, Phase
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_gateway.core import projection
from trueup_gateway.handler import ViewHandler
from trueup_gateway.store import Reader


async def project(gateway: EdgeUnderTest, *events: Any) -> None:
    """Hand events to the worker, as messages."""
    now = real_now()
    messages = [
        Message(
            id=f"m{number}",
            type=type(event).__name__,
            subject="s",
            tenant="acme",
            source="test",
            time=now,
            data=event.model_dump_json().encode(),
        )
        for number, event in enumerate(events)
    ]
    async with gateway.gateway.store.transaction() as tx:
        assert await ViewHandler().handle(tx, Moment(now, now), messages) == ()


async def accepted(gateway: EdgeUnderTest, slug: str, **who: Any) -> tuple[StartCase, InstanceRow, JournalRow]:
    """An accepted command with the rows that the orchestrator would start from."""
    capability = await gateway.capability(**who)
    assert (await gateway.submit(capability["capability"], slug, draft(slug))).status_code == 202
    start = StartCase.model_validate_json(gateway.publisher.published[-1].message.data)
    reader = Reader(start.tenant)
    view = await gateway.gateway.reads.case(reader, start.workflow_id)
    row = await gateway.gateway.reads.command_row(reader, start.command_id)
    assert view is not None and row is not None
    return start, view.instance, JournalRow.model_validate(row)


def events_of(start: StartCase, count: int) -> list[HistoryEvent]:
    found: list[HistoryEvent] = []
    for seq in range(1, count + 1):
        found.append(
            history.append(
                workflow_id=start.workflow_id,
                tenant=start.tenant,
                seq=seq,
                type=f"Fact{seq}",
                actor="orchestrator",
                prev_hash=found[-1].hash if found else history.GENESIS,
                occurred_at=real_now(),
                recorded_at=real_now(),
                payload={"seq": seq, "text": "é"},
                trace_id=start.trace_id,
            )
        )
    return found


async def test_an_older_event_never_replaces_a_newer_one(gateway: EdgeUnderTest) -> None:
    """In any order and with duplicates, the highest version is what is read.

    Requirements: M2, L5
    """
    start, instance, row = await accepted(gateway, "order")
    states = [OperationState.QUEUED, OperationState.DISPATCHING, OperationState.RUNNING, OperationState.SUCCESS]
    changes = [
        CaseChanged(
            instance=instance.evolve(
                state_version=number, status=InstanceStatus.RUNNING if number < 4 else InstanceStatus.CLOSED
            ),
            operations=(row.evolve(state=state, state_version=number),),
        )
        for number, state in enumerate(states, 1)
    ]
    for order in ((3, 0), (1,), (2, 2, 0), (0,)):
        await project(gateway, *(changes[number] for number in order))
        read = (await gateway.client.get(f"/v1/commands/{start.command_id}", headers=gateway.headers())).json()
        assert (read["state"], read["state_version"]) == ("SUCCESS", 4)
        case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=gateway.headers())).json()
        assert case["status"] == "CLOSED" and case["steps"][0]["outcome"] == "done"


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=4))
def test_a_batch_keeps_the_newest_of_each_object(order: list[int], more: list[int]) -> None:
    """The same holds inside one batch: keys are distinct and newest."""
    at = later(0)
    changes = [
        ElementChanged(
            tenant="acme",
            system="wordpress",
            resource="post/1",
            element="wordpress.post",
            command_id="c",
            workflow_id="w",
            version=number,
            desired=number,
            phase=Phase.HEALTHY,
            observed_at=at,
        )
        for number in range(4)
    ]
    views = projection.element_views([changes[number] for number in (*order, *more)])
    assert [view.version for view in views] == [3]
    cases = [case_told(number) for number in range(4)]
    told = [cases[number] for number in (*order, *more)]
    assert [view.state_version for view in projection.command_views(told)] == [3]
    assert [view.state_version for view in projection.case_views(told)] == [3]


def case_told(version: int) -> projection.CaseTold:
    """One operation of one case, as it stood at a version."""
    instance = {
        "workflow_id": "w",
        "tenant": "acme",
        "subject": "agent:a",
        "definition": "command",
        "object_type": "wordpress",
        "object_id": "post/1",
        "status": "RUNNING",
        "state_version": version,
        "created_at": "2026-03-01T12:00:00Z",
        "deadline_at": "2026-03-01T13:00:00Z",
    }
    operation = {
        "command_id": "c",
        "tenant": "acme",
        "workflow_id": "w",
        "command_type": "wordpress.a",
        "target_system": "wordpress",
        "idempotency_key": "k",
        "state": "RUNNING",
        "state_version": version,
        "created_at": "2026-03-01T12:00:00Z",
    }
    return projection.read_case({"instance": instance, "operations": [operation]})


async def test_a_case_shows_vector_obligations_and_wait(gateway: EdgeUnderTest) -> None:
    """Desired, recorded and observed per element, open obligations with owner and deadline, and who is waited for.

    Requirements: R1, Q4
    """
    start, instance, row = await accepted(gateway, "vector")
    owed = ObligationRow(
        obligation_id="obl_1",
        tenant="acme",
        workflow_id=start.workflow_id,
        saga_id=start.saga_id,
        command_id=start.command_id,
        kind="unknown_outcome",
        owner="operators",
        opened_at=later(-5),
        deadline_at=later(600),
    )
    element = ElementChanged(
        tenant="acme",
        system="wordpress",
        resource="post/7",
        element="wordpress.post",
        command_id=start.command_id,
        workflow_id=start.workflow_id,
        version=2,
        desired={"title": "A"},
        recorded={"title": "A"},
        observed={"title": "B"},
        verdict="CONFIRMED",
        phase=Phase.DRIFT,
        observed_at=later(-1),
        source="wordpress",
        observed_version="v7",
    )
    await project(
        gateway,
        CaseChanged(
            instance=instance.evolve(state_version=2),
            operations=(row.evolve(state=OperationState.OUTCOME_UNKNOWN, state_version=2),),
            obligations=(owed,),
        ),
        element,
    )
    case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=gateway.headers())).json()
    assert case["steps"][0]["outcome"] == "unknown" and case["object"] == {"type": "wordpress", "id": "post"}
    (entry,) = case["vector"]
    assert (entry["desired"], entry["observed"], entry["phase"]) == ({"title": "A"}, {"title": "B"}, "DRIFT")
    assert (entry["version"], entry["verdict"], entry["source"]) == ("v7", "CONFIRMED", "wordpress")
    assert case["obligations"][0]["owner"] == "operators" and case["wait"]["reason"] == "unknown_outcome"
    assert case["wait"]["owner"] == "operators" and case["wait"]["deadline"].endswith("Z")
    drift = (await gateway.client.get("/v1/drift", headers=gateway.headers(**VIEWER))).json()["items"]
    assert [item["workflow_id"] for item in drift] == [start.workflow_id]
    newer = element.evolve(workflow_id="wf_" + "9" * 32, version=3, phase=Phase.HEALTHY)
    await project(gateway, newer)
    assert (await gateway.client.get("/v1/drift", headers=gateway.headers(**VIEWER))).json()["items"] == []


async def test_history_is_read_as_it_was_recorded(gateway: EdgeUnderTest) -> None:
    """The chain verifies over what the API answers, page by page; duplicates change nothing.

    Requirements: L4
    """
    start, instance, row = await accepted(gateway, "history")
    events = events_of(start, 7)
    change = CaseChanged(instance=instance.evolve(state_version=3), operations=(row,), history=tuple(events[:5]))
    await project(gateway, change, change)
    await project(gateway, change.evolve(history=tuple(events[3:])))
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        path = f"/v1/workflows/{start.workflow_id}/history?after_seq={after}&limit=3"
        page = (await gateway.client.get(path, headers=gateway.headers())).json()
        found += page["items"]
        if page["next_after_seq"] is None:
            break
        after = page["next_after_seq"]
    assert history.verify([HistoryEvent.model_validate(item) for item in found]) is None
    assert [item["seq"] for item in found] == list(range(1, 8))
    assert set(found[0]) >= {
        "seq",
        "event_id",
        "type",
        "schema_version",
        "occurred_at",
        "recorded_at",
        "actor",
        "payload",
        "payload_sha256",
        "causation_id",
        "correlation_id",
        "trace_id",
        "prev_hash",
        "hash",
    }


async def test_a_stream_tells_states_facts_and_the_end(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server-sent events in order; `Last-Event-ID` continues; the stream ends with the case.

    Requirements: F1
    """
    start, instance, row = await accepted(gateway, "stream")
    events = events_of(start, 4)
    looked, history = asyncio.Event(), gateway.gateway.reads.history

    async def noted(*asked: Any) -> Any:
        """The facts are read after the state."""
        found = await history(*asked)
        looked.set()
        return found

    monkeypatch.setattr(gateway.gateway.reads, "history", noted)

    async def go_on() -> None:
        await project(
            gateway,
            CaseChanged(instance=instance.evolve(state_version=1), operations=(row,), history=tuple(events[:2])),
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await looked.wait()
        closed = instance.evolve(state_version=2, status=InstanceStatus.CLOSED, closed_at=later(0))
        done = row.evolve(state=OperationState.SUCCESS, state_version=2)
        await project(gateway, CaseChanged(instance=closed, operations=(done,), history=tuple(events[2:])))

    path = f"/v1/workflows/{start.workflow_id}/stream"
    response, _ = await asyncio.gather(gateway.client.get(path, headers=gateway.headers()), go_on())
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in response.text.strip().split("\n\n")]
    assert [int(block["id"]) for block in blocks if block["event"] == "history"] == [1, 2, 3, 4]
    states = [json.loads(block["data"])["status"] for block in blocks if block["event"] == "state"]
    assert states[0] == "RUNNING" and states[-1] == "CLOSED"
    assert blocks[-1]["event"] == "end" and json.loads(blocks[-1]["data"]) == {"status": "CLOSED"}
    headers = {**gateway.headers(), "Last-Event-ID": "3"}
    continued = await gateway.client.get(path, headers=headers)
    assert "id: 4\n" in continued.text and "id: 3\n" not in continued.text
    assert gateway.gateway.watch.followers_count == 0


async def test_readers_see_what_is_theirs(gateway: EdgeUnderTest) -> None:
    """An agent its own, viewers, operators and auditors the tenant's, another tenant nothing, other roles 403.

    Requirements: T1
    """
    start, _, _ = await accepted(gateway, "mine")
    exception = changed_exception(start, "theirs-not")
    await project(gateway, exception)
    paths = [
        f"/v1/commands/{start.command_id}",
        f"/v1/workflows/{start.workflow_id}",
        f"/v1/workflows/{start.workflow_id}/history",
        f"/v1/exceptions/{exception.exception_id}",
    ]
    auditor = {"sub": "operator:audit", "roles": ("auditor",)}
    for path in paths:
        for who in ({}, VIEWER, OPERATOR, auditor):
            assert (await gateway.client.get(path, headers=gateway.headers(**who))).status_code == 200, (path, who)
        for who in ({"sub": "agent:other"}, {"tenant": "globex"}, {"tenant": "globex", **VIEWER}):
            problem(await gateway.client.get(path, headers=gateway.headers(**who)), 404, "not-found")
        for roles in (("admin",), ("approver",), ("wizard",)):
            problem(await gateway.client.get(path, headers=gateway.headers(roles=roles)), 403, "forbidden", "role")
    for path in ("/v1/commands", "/v1/workflows", "/v1/exceptions", "/v1/dead-letters", "/v1/drift"):
        for who in ({"sub": "agent:other"}, {"tenant": "globex", **VIEWER}):
            assert (await gateway.client.get(path, headers=gateway.headers(**who))).json()["items"] == []
        assert (await gateway.client.get(path, headers=gateway.headers(roles=("admin",)))).status_code == 403
    problem(
        await gateway.client.get(f"/v1/workflows/{start.workflow_id}/stream", headers=gateway.headers(tenant="globex")),
        404,
        "not-found",
    )


def changed_exception(start: StartCase, name: str, **changes: Any) -> ExceptionChanged:
    fields: dict[str, Any] = {
        "exception_id": derived_id("exc", start.workflow_id, name),
        "tenant": start.tenant,
        "kind": "failed",
        "status": "open",
        "lifecycle": "found",
        "failure_class": "SCHEMA_ERROR",
        "owner": "operators",
        "deadline_at": later(3600),
        "opened_at": later(-60),
        "workflow_id": start.workflow_id,
        "saga_id": start.saga_id,
        "command_id": start.command_id,
        "envelope": {"failure_code": "payload_invalid"},
        "allowed_actions": ("RETRY",),
        "version": 1,
    }
    return ExceptionChanged(**{**fields, **changes})


async def test_exceptions_are_counted_filtered_and_closed(gateway: EdgeUnderTest) -> None:
    """The summary counts open ones by kind; filters name kind, status, owner and cause; a closed one leaves the counts.

    Requirements: Q4, T1
    """
    start, _, _ = await accepted(gateway, "exceptions")
    dead = changed_exception(start, "dead", kind="dead_letter", owner="editors", opened_at=later(-500))
    unknown = changed_exception(start, "unknown", kind="unknown_outcome", failure_class="TIMEOUT_UNKNOWN", envelope={})
    gone = changed_exception(start, "gone", status="closed", version=2)
    await project(gateway, dead, unknown, gone, changed_exception(start, "gone"))
    headers = gateway.headers(**VIEWER)
    summary = (await gateway.client.get("/v1/exceptions/summary", headers=headers)).json()
    assert (summary["dead_letters"], summary["unknown_outcomes"], summary["state_drift"]) == (1, 1, 0)
    assert 499 < summary["oldest_age_seconds"] < 600
    for query, names in (
        ("kind=dead_letter", [dead]),
        ("owner=editors", [dead]),
        ("cause=TIMEOUT_UNKNOWN", [unknown]),
        ("cause=payload_invalid&owner=editors", [dead]),
        ("status=closed", [gone]),
        ("kind=conflict", []),
    ):
        items = (await gateway.client.get(f"/v1/exceptions?{query}", headers=headers)).json()["items"]
        assert {item["exception_id"] for item in items} == {event.exception_id for event in names}, query
    letters = (await gateway.client.get("/v1/dead-letters", headers=headers)).json()["items"]
    assert [letter["exception_id"] for letter in letters] == [dead.exception_id]
    read = (await gateway.client.get(f"/v1/exceptions/{dead.exception_id}", headers=headers)).json()
    assert read["envelope"] == {"failure_code": "payload_invalid"} and read["allowed_actions"] == [
        "CANCEL",
        "ESCALATE",
        "ASSIGN",
    ]
    await project(gateway, dead.evolve(status="closed", version=2))
    summary = (await gateway.client.get("/v1/exceptions/summary", headers=headers)).json()
    assert summary["dead_letters"] == 0
    problem(await gateway.client.get("/v1/exceptions/summary", headers=gateway.headers()), 403, "forbidden", "role")


@pytest.mark.parametrize("path", ["/v1/commands", "/v1/workflows"])
async def test_pages_show_everything_once(gateway: EdgeUnderTest, path: str) -> None:
    """Following cursors lists each item exactly once, newest first."""
    who = {"sub": f"agent:pages{path[4:6]}"}
    capability = (await gateway.capability(max_uses=50, **who))["capability"]
    for number in range(7):
        slug = f"page-{path[4:6]}-{number}"
        await gateway.submit(capability, slug, draft(slug))
    seen: list[str] = []
    cursor = ""
    for _ in itertools.count():
        page = (await gateway.client.get(f"{path}?limit=3{cursor}", headers=gateway.headers(**who))).json()
        assert len(page["items"]) <= 3
        seen += [item["workflow_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen)) == 7


async def test_lists_of_cases_filter(gateway: EdgeUnderTest) -> None:
    """Status, definition, object and overdue."""
    who = {"sub": "agent:filters"}
    capability = (await gateway.capability(max_uses=5, **who))["capability"]
    first = (await gateway.submit(capability, "filter-1", draft("filter-1"))).json()
    await gateway.submit(capability, "filter-2", draft("filter-2"))
    await advance(gateway, first["command_id"], OperationState.FAILED, status=InstanceStatus.HUMAN_TAKEOVER)
    for query, count in (
        ("", 2),
        ("status=RUNNING", 1),
        ("status=HUMAN_TAKEOVER", 1),
        ("status=CLOSED", 0),
        ("definition=command", 2),
        ("definition=other", 0),
        ("object=post", 2),
        ("object=page", 0),
        ("overdue=true", 0),
        ("overdue=false", 2),
        ("owner=operators", 0),
    ):
        response = await gateway.client.get(f"/v1/workflows?{query}", headers=gateway.headers(**who))
        assert len(response.json()["items"]) == count, query


async def test_an_exception_names_the_approval_that_its_repair_waits_for(gateway: EdgeUnderTest) -> None:
    """Whoever looks at it finds where to decide. Requirements: O2, Q5"""
    start, _, _ = await accepted(gateway, "asks-for-approval")
    repair = told_repair(status="WAITING_APPROVAL", approval_id="apr_" + "7" * 32)
    named = {"repair_id": repair.repair_id, "repair_status": repair.status}
    found = changed_exception(start, "asks", kind="state_drift", **named)
    repair = repair.evolve(exception_id=found.exception_id)
    await project(gateway, found, repair)
    headers = gateway.headers(**OPERATOR)
    shown = (await gateway.client.get(f"/v1/exceptions/{found.exception_id}", headers=headers)).json()
    listed = (await gateway.client.get("/v1/exceptions?kind=state_drift&limit=200", headers=headers)).json()["items"]
    assert shown["approval_id"] == repair.approval_id
    assert [i["approval_id"] for i in listed if i["exception_id"] == found.exception_id] == [repair.approval_id]


async def test_whose_turn_it_is_finds_also_what_waits(gateway: EdgeUnderTest) -> None:
    """A case that waits is found by who owns the wait, and by nobody any more once it goes on.

    Requirements: P3, O1
    """
    start, instance, row = await accepted(gateway, "waiting-owner")
    wait = {"reason": "approval", "expects": "content:publish", "owner": "waiting-editors", "deadline": None}
    waiting = instance.evolve(status=InstanceStatus.WAITING, wait=wait, state_version=2)
    for instance, found in ((waiting, [start.workflow_id]), (waiting.evolve(wait=None, state_version=3), [])):
        await project(gateway, CaseChanged(instance=instance, operations=(row,), history=()))
        response = await gateway.client.get("/v1/workflows?owner=waiting-editors", headers=gateway.headers(**OPERATOR))
        assert [item["workflow_id"] for item in response.json()["items"]] == found


async def test_what_views_rest_on_is_looked_at(gateway: EdgeUnderTest) -> None:
    """A case that lacks a key, has the wrong type in one, or a state that does not exist never becomes a view.

    Requirements: M3
    """
    start, instance, row = await accepted(gateway, "broken")
    whole = CaseChanged(instance=instance, operations=(row,), history=tuple(events_of(start, 1)))
    good: dict[str, Any] = json.loads(whole.model_dump_json())
    assert projection.read_case(good).instance["workflow_id"] == start.workflow_id
    for part, name in (
        ("instance", "subject"),
        ("instance", "status"),
        ("instance", "state_version"),
        ("instance", "deadline_at"),
        ("operations", "state"),
        ("operations", "command_id"),
        ("operations", "created_at"),
        ("history", "seq"),
    ):
        for broken in (None, [], "\ud800nonsense", 1.5):
            body = json.loads(json.dumps(good))
            target = body[part] if part == "instance" else body[part][0]
            target[name] = broken
            if isinstance(broken, str) and name in ("subject", "command_id"):
                continue
            with pytest.raises(ValueError):
                projection.read_case(body)
            del target[name]
            with pytest.raises(ValueError):
                projection.read_case(body)
    for body in (None, [], "x", {}, {**good, "operations": [None]}, {**good, "instance": []}, {**good, "history": 1}):
        with pytest.raises(ValueError):
            projection.read_case(body)


async def test_unreadable_events_are_unprocessable(gateway: EdgeUnderTest) -> None:
    """They go to quarantine with their bytes; unknown kinds of a newer producer are passed over.

    Requirements: M3
    """
    now = real_now()
    fields: dict[str, Any] = {"id": "m", "subject": "s", "tenant": "acme", "source": "o", "time": now}
    async with gateway.gateway.store.transaction() as tx:
        for kind in ("CaseChanged", "ElementChanged", "ExceptionChanged"):
            with pytest.raises(Unprocessable):
                await ViewHandler().handle(tx, Moment(now, now), [Message(type=kind, data=b'{"x": 1}', **fields)])
        assert await ViewHandler().handle(tx, Moment(now, now), [Message(type="Newer", data=b"{}", **fields)]) == ()


async def test_an_event_for_another_tenant_than_its_envelope_is_unprocessable(gateway: EdgeUnderTest) -> None:
    """A view of one tenant is never written through another's subject.

    Requirements: M3
    """
    start, instance, row = await accepted(gateway, "foreign-envelope")
    now = real_now()
    event = CaseChanged(instance=instance, operations=(row,))
    foreign = Message(
        id="m",
        type="CaseChanged",
        subject="s",
        tenant="globex",
        source="o",
        time=now,
        data=event.model_dump_json().encode(),
    )
    async with gateway.gateway.store.transaction() as tx:
        with pytest.raises(Unprocessable, match="another tenant"):
            await ViewHandler().handle(tx, Moment(now, now), [foreign])
    assert start.tenant == "acme"
