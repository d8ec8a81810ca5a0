"""Operators' acts at the edge: asked once under a decision of their own, refused with what is possible, followed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from tests.gateway.asks import OPERATOR, changed, project, running_case
from tests.gateway.edge import DRAFT, EdgeUnderTest, draft, later
from tests.gateway.test_refusals import problem
from tests.gateway.test_views import changed_exception

from trueup_common.contracts import history
from trueup_common.contracts.events import (
    CaseChanged,
    ElementChanged,
    ExceptionChanged,
    OperatorCommand,
    OperatorCommandEnded,
    StartCase,
)
from trueup_common.contracts.ids import derived_id, new_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow
from trueup_common.contracts.operators import CASE, OperatorAction, TargetKind, allowed
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    ExceptionKind,
    InstanceStatus,
    OperationState,
    Phase,
)
from trueup_common.runtime.clock import real_now
from trueup_gateway.api.batches import BatchFilter, OperatorBatchRequest, TurnRequest
from trueup_gateway.api.controls import BreakGlassRequest, FreezeRequest, LiftRequest
from trueup_gateway.api.holds import HoldRequest
from trueup_gateway.api.http import fit
from trueup_gateway.api.operators import CancelRequest, OperatorCommandRequest
from trueup_gateway.core.operator_params import PARAMS
from trueup_gateway.core.operators import Target, facts_of
from trueup_gateway.core.projection import case_view
from trueup_gateway.core.refusal import Refused
from trueup_gateway.store import Reader

REPAIRER = {"sub": "service:repair-planner", "roles": ("repairer",)}
PERSONS = (
    *("ASSIGN", "CANCEL", "COMPENSATE", "ESCALATE", "HAND_BACK", "MARK_RESOLVED"),
    *("PAUSE", "REPAIR", "RESUME", "RETRY", "SETTLE", "TAKE_OVER"),
)
"""What only a person may ask for."""


async def cancel(gateway: EdgeUnderTest, instance: InstanceRow, key: str | None = None, **who: Any) -> httpx.Response:
    url = f"/v1/workflows/{instance.workflow_id}/cancel"
    headers = {**gateway.headers(**who), "Idempotency-Key": key or new_id("msg")}
    return await gateway.client.post(url, json={"reason": "withdrawn"}, headers=headers)


async def operate(gateway: EdgeUnderTest, kind: str, name: str, action: str, **changes: Any) -> httpx.Response:
    who = changes.pop("who", OPERATOR)
    key = changes.pop("key", None) or new_id("msg")
    body = {"action": action, "target": {"kind": kind, "id": name}, "reason": "the target is back", **changes}
    headers = {**gateway.headers(**who), "Idempotency-Key": key}
    return await gateway.client.post("/v1/operator-commands", json=body, headers=headers)


async def on_case(gateway: EdgeUnderTest, instance: InstanceRow, action: str, **changes: Any) -> httpx.Response:
    return await operate(gateway, "workflow", instance.workflow_id, action, **changes)


async def sent(gateway: EdgeUnderTest, workflow_id: str) -> list[OperatorCommand]:
    """What went out about a case."""
    await asyncio.gather(*gateway.gateway.sending)
    found = [
        OperatorCommand.model_validate_json(item.message.data)
        for item in gateway.publisher.published
        if item.message.type == "OperatorCommand"
    ]
    return [item for item in found if item.workflow_id == workflow_id]


async def read(gateway: EdgeUnderTest, name: str, **who: Any) -> dict[str, Any]:
    response = await gateway.client.get(f"/v1/operator-commands/{name}", headers=gateway.headers(**(who or OPERATOR)))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def ended(name: str, state: str = "DONE", **facts: Any) -> OperatorCommandEnded:
    """What the service that performed an act tells of its end."""
    return OperatorCommandEnded(
        operator_command_id=name, tenant="acme", state=state, ended_by="orchestrator", at=real_now(), **facts
    )


def heard(instance: InstanceRow, name: str, kind: str = "CancelRequested") -> HistoryEvent:
    """The history event by which a case takes an act up."""
    return history.append(
        workflow_id=instance.workflow_id,
        tenant=instance.tenant,
        seq=1,
        type=kind,
        actor="operator:ops",
        prev_hash=history.GENESIS,
        occurred_at=real_now(),
        recorded_at=real_now(),
        payload={"operator_command_id": name},
        causation_id=name,
    )


async def failed_command(
    gateway: EdgeUnderTest, slug: str, state: OperationState = OperationState.DEAD_LETTERED, **changes: Any
) -> tuple[StartCase, JournalRow, ExceptionChanged]:
    """An accepted command that ended badly, with its exception, as the read model has them."""
    capability = await gateway.capability()
    assert (await gateway.submit(capability["capability"], slug, draft(slug))).status_code == 202
    start = StartCase.model_validate_json(gateway.publisher.published[-1].message.data)
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    stored = await gateway.gateway.reads.command_row(Reader(start.tenant), start.command_id)
    assert view is not None and stored is not None
    attempt = {"attempt_id": "att_1", "fence": 1, "state": "REJECTED", "sent": True, "ended_at": None}
    row = JournalRow.model_validate(stored).evolve(
        **{"state": state, "state_version": 5, "attempts": [attempt], "attempt_count": 1, **changes}
    )
    instance = view.instance.evolve(status=InstanceStatus.HUMAN_TAKEOVER, state_version=5)
    kind = {"DEAD_LETTERED": "dead_letter", "NEEDS_REVIEW": "needs_review"}.get(state.value, "failed")
    exception = changed_exception(start, slug, kind=kind)
    await project(gateway, CaseChanged(instance=instance, operations=(row,)), exception)
    return start, row, exception


async def test_nobody_acts_on_the_trouble_of_a_case_that_is_not_shown_yet(gateway: EdgeUnderTest) -> None:
    """Projections come in any order. An exception whose case is still to come is not one about no case at all, which
    whoever looked into it may simply end; what is about none, an object that nobody manages, is.

    Requirements: Q8, O3, M2
    """
    start, _, _ = await failed_command(gateway, "another")
    early = changed_exception(start, "early", workflow_id=new_id("wf"), command_id=new_id("cmd"))
    name = new_id("cmd")
    foreign = changed_exception(start, "foreign", workflow_id=name, command_id=name, kind="needs_review")
    await project(gateway, early, foreign)
    said = {"params": {"disposition": [{"effect": "post-1", "became": "removed"}]}}
    refused = await operate(gateway, "exception", early.exception_id, "MARK_RESOLVED", **said)
    assert (refused.status_code, refused.headers.get("Retry-After")) == (503, "1")
    assert (await operate(gateway, "exception", foreign.exception_id, "MARK_RESOLVED", **said)).status_code == 202


async def test_nothing_is_redriven_in_a_paused_case(gateway: EdgeUnderTest) -> None:
    """Held by the pause it would stay ACCEPTED and keep everybody else away. It is refused with the way out, to people
    and to the planner, which waits; resumed, it is possible.

    Requirements: O3, O6, Q4
    """
    start, row, exception = await failed_command(gateway, "paused-letter")
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    assert view is not None
    held = view.instance.evolve(status=InstanceStatus.PAUSED, state_version=6)
    await project(gateway, CaseChanged(instance=held, operations=(row,)))
    for action, who in (("REDRIVE", OPERATOR), ("REPAIR", OPERATOR), ("REDRIVE", REPAIRER)):
        refused = problem(
            await operate(gateway, "exception", exception.exception_id, action, who=who), 409, "action-not-available"
        )
        assert (refused["workflow_status"], action in refused["allowed_actions"]) == ("PAUSED", False)
        assert refused["detail"].endswith("Its case is paused: RESUME that first.")
    on = held.evolve(status=InstanceStatus.RUNNING, state_version=7)
    await project(gateway, CaseChanged(instance=on, operations=(row,)))
    assert (await operate(gateway, "exception", exception.exception_id, "REDRIVE")).status_code == 202


async def test_a_redrive_goes_out_once_and_its_end_comes_back(gateway: EdgeUnderTest) -> None:
    """Asked under a decision of its own, with new time for it; the second click is the first; the end is told.

    Requirements: O3, I5, G7
    """
    start, row, exception = await failed_command(gateway, "redriven")
    first = await operate(gateway, "exception", exception.exception_id, "REDRIVE", key="redrive-1")
    assert first.status_code == 202, first.text
    body = first.json()
    again = await operate(gateway, "exception", exception.exception_id, "REDRIVE", key="redrive-1")
    assert again.json() == body and again.headers["idempotent-replayed"] == "true"
    assert body["state"] == "ACCEPTED" and body["actor"] == "operator:ops" and body["command_id"] == row.command_id
    (asked,) = await sent(gateway, start.workflow_id)
    assert asked.operator_command_id == body["operator_command_id"] and asked.performer == "orchestrator"
    assert (asked.action, asked.command_id, asked.decision_id) == ("REDRIVE", row.command_id, body["decision_id"])
    assert asked.deadline_at is not None and asked.mandate_expires_at == asked.deadline_at > row.deadline_at
    assert await gateway.count("mandate", f"renewed_by = '{asked.operator_command_id}'") == 1
    trace = await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers(**OPERATOR))
    assert trace.json()["determining_policies"] == ["operators-operate"]
    assert trace.json()["context"] == {"operation": "REDRIVE", "own": False}
    await project(gateway, ended(asked.operator_command_id, result={"state": "SUCCESS"}))
    end = await read(gateway, asked.operator_command_id)
    assert (end["state"], end["result"]) == ("DONE", {"state": "SUCCESS"}) and end["ended_at"] is not None
    await project(gateway, ended(asked.operator_command_id, "REFUSED"))
    assert (await read(gateway, asked.operator_command_id))["state"] == "DONE"  # the first word counts


async def test_one_dead_letter_has_one_repair_in_flight(gateway: EdgeUnderTest) -> None:
    """A second redrive, by whatever name, is refused and pointed to the first, until that one has ended: before the
    state shows that it is at work, and afterwards as well, when the state by itself would not permit it.

    Requirements: O6, I5
    """
    start, row, exception = await failed_command(gateway, "one-repair")
    first = (await operate(gateway, "exception", exception.exception_id, "REDRIVE")).json()
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    assert view is not None
    for number, state in enumerate((row.state, OperationState.RECONCILING, row.state)):
        shown = row.evolve(state=state, state_version=row.state_version + number)
        instance = view.instance.evolve(state_version=view.state_version + number)
        await project(gateway, CaseChanged(instance=instance, operations=(shown,)))
        for kind, name, action, who in (
            ("exception", exception.exception_id, "REDRIVE", OPERATOR),
            ("dead_letter", exception.exception_id, "REPAIR", OPERATOR),
            ("command", row.command_id, "RECONCILE", OPERATOR),
            ("command", row.command_id, "REDRIVE", REPAIRER),
            ("workflow", start.workflow_id, "REDRIVE", OPERATOR),
        ):
            refused = problem(await operate(gateway, kind, name, action, who=who), 409, "repair-in-flight")
            assert refused["operator_command_id"] == first["operator_command_id"], (kind, action)
    assert len(await sent(gateway, start.workflow_id)) == 1
    both = [operate(gateway, "command", row.command_id, "RECONCILE") for _ in range(4)]
    await project(gateway, ended(first["operator_command_id"]))
    statuses = sorted(response.status_code for response in await asyncio.gather(*both))
    assert statuses == [202, 409, 409, 409]
    assert len(await sent(gateway, start.workflow_id)) == 2


async def test_what_a_command_shows_is_what_may_be_asked(gateway: EdgeUnderTest) -> None:
    """Exception, command and case show the same table that refuses; a dead letter is found under its own name.

    Requirements: O2, O3
    """
    start, row, exception = await failed_command(gateway, "shown")
    headers = gateway.headers(**OPERATOR)
    expected = ["RECONCILE", "REDRIVE", "MARK_RESOLVED", "SETTLE"]
    command = (await gateway.client.get(f"/v1/commands/{row.command_id}", headers=headers)).json()
    case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=headers)).json()
    shown = (await gateway.client.get(f"/v1/exceptions/{exception.exception_id}", headers=headers)).json()
    listed = (await gateway.client.get("/v1/exceptions?limit=200", headers=headers)).json()["items"]
    assert command["allowed_actions"] == case["allowed_actions"] == expected
    whole = ["RECONCILE", "REDRIVE", "REPAIR", "MARK_RESOLVED", "ESCALATE", "ASSIGN", "SETTLE"]
    assert shown["allowed_actions"] == whole
    assert next(item for item in listed if item["exception_id"] == exception.exception_id)["allowed_actions"] == whole
    refused = problem(await operate(gateway, "command", row.command_id, "RETRY"), 409, "action-not-available")
    assert refused["allowed_actions"] == expected and refused["target_state"] == "DEAD_LETTERED"
    await project(gateway, exception.model_copy(update={"status": "closed", "version": 2}))
    closed = await operate(gateway, "dead_letter", exception.exception_id, "REDRIVE")
    assert problem(closed, 409, "action-not-available")["allowed_actions"] == []


async def test_what_another_command_took_over_is_not_offered_to_be_sent_again(gateway: EdgeUnderTest) -> None:
    """A failed command lets go of its business identity. Once a new one has it, no list offers what would be refused.

    Requirements: O2, I2
    """
    free = {"state": OperationState.FAILED, "identity": None}
    start, row, exception = await failed_command(gateway, "passed-on", **free)
    headers = gateway.headers(**OPERATOR)
    places = (
        f"/v1/exceptions/{exception.exception_id}",
        f"/v1/commands/{row.command_id}",
        f"/v1/workflows/{start.workflow_id}",
    )

    async def offered() -> list[bool]:
        shown = [(await gateway.client.get(place, headers=headers)).json()["allowed_actions"] for place in places]
        assert all("SETTLE" in actions for actions in shown)
        return ["REDRIVE" in actions for actions in shown]

    assert await offered() == [True] * 3
    capability = await gateway.capability()
    taken = await gateway.submit(capability["capability"], "passed-on-anew", draft("passed-on"))
    assert taken.status_code == 202, taken.text
    assert await offered() == [False] * 3
    refused = await operate(gateway, "exception", exception.exception_id, "REDRIVE")
    assert "business identity" in problem(refused, 409, "action-not-available")["detail"]


async def test_every_action_is_taken_or_refused_by_the_table(gateway: EdgeUnderTest) -> None:
    """For an operation in each state the edge takes exactly what the table allows.

    Requirements: O3
    """
    for state in (OperationState.FAILED, OperationState.NEEDS_REVIEW, OperationState.CONFLICT):
        start, row, _ = await failed_command(gateway, f"each-{state.value.lower()}".replace("_", "-"), state)
        instance = (await gateway.gateway.reads.case(Reader("acme"), start.workflow_id)).instance  # type: ignore[union-attr]
        facts = facts_of(Target("command", "x", "acme", case_view(instance, []), row), DRAFT)
        possible = allowed(TargetKind.COMMAND, facts)
        for action in OperatorAction:
            response = await operate(gateway, "command", row.command_id, action.value)
            if action not in possible:
                shown = problem(response, 409, "action-not-available")
                assert shown["allowed_actions"] == [item.value for item in possible]
            elif response.status_code == 202:
                await project(gateway, ended(response.json()["operator_command_id"]))
            else:
                problem(response, 422, "payload-invalid")  # it needs more than its name


async def test_repairs_have_a_narrow_identity(gateway: EdgeUnderTest) -> None:
    """The planner's identity looks and tries again; it never settles, closes or moves a case, nor reads the tenant's.

    Requirements: G7
    """
    _, row, exception = await failed_command(gateway, "narrow")
    instance = await running_case(gateway)
    for action in PERSONS:
        response = await operate(gateway, "exception", exception.exception_id, action, who=REPAIRER)
        problem(response, 403, "forbidden", "role")
        problem(await on_case(gateway, instance, action, who=REPAIRER), 403, "forbidden", "role")
    taken = await operate(gateway, "command", row.command_id, "REDRIVE", who=REPAIRER, params={"repair_id": "rep_1"})
    assert taken.status_code == 202, taken.text
    body = taken.json()
    trace = await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers(**OPERATOR))
    assert trace.json()["determining_policies"] == ["repairs-look-and-try-again"]
    (asked,) = [item for item in await sent(gateway, row.workflow_id) if item.action == "REDRIVE"]
    assert (asked.repair_id, asked.actor) == ("rep_1", "service:repair-planner")
    assert (await read(gateway, body["operator_command_id"], **REPAIRER))["state"] == "ACCEPTED"
    held = await operate(gateway, "exception", exception.exception_id, "REPAIR")
    problem(held, 409, "repair-in-flight")


async def test_revoked_authority_cannot_be_renewed(gateway: EdgeUnderTest) -> None:
    """What was taken back stays taken back: nothing is sent again; it can still be settled.

    Requirements: O3, G5
    """
    start, row, _ = await failed_command(gateway, "revoked")
    url = f"/v1/decisions/{start.mandate.decision_id}/revoke"
    who = gateway.headers(sub="operator:ops", roles=("operator",))
    assert (await gateway.client.post(url, json={"reason": "no"}, headers=who)).status_code == 200
    refused = problem(await operate(gateway, "command", row.command_id, "REDRIVE"), 409, "action-not-available")
    assert refused["allowed_actions"] == ["RECONCILE", "MARK_RESOLVED", "SETTLE"]
    assert await gateway.count("mandate", f"mandate_id = '{row.mandate_id}' AND renewed_by IS NOT NULL") == 0


async def test_a_settlement_needs_what_makes_it_one(gateway: EdgeUnderTest) -> None:
    """EXISTS with a receipt of the declared shape and evidence; ABSENT with evidence; CLOSE with every disposition.

    Requirements: E3
    """
    start, _, exception = await failed_command(gateway, "settled", OperationState.NEEDS_REVIEW)
    name, proof = exception.exception_id, [{"kind": "audit_log", "ref": "line 4711"}]
    receipt = {"post_id": 7, "content_sha256": "a" * 64}

    async def asked(params: dict[str, Any], evidence: list[Any]) -> list[str]:
        response = await operate(gateway, "exception", name, "SETTLE", params=params, evidence=evidence)
        return [item["pointer"] for item in problem(response, 422, "payload-invalid")["errors"]]

    assert await asked({}, proof) == ["/params/finding"]
    assert await asked({"finding": "PERHAPS"}, proof) == ["/params/finding"]
    assert await asked({"finding": "EXISTS"}, proof) == ["/params/receipt"]
    assert await asked({"finding": "EXISTS", "receipt": receipt}, []) == ["/evidence"]
    assert await asked({"finding": "EXISTS", "receipt": {"post_id": "x"}}, proof) == [
        "/params/receipt",
        "/params/receipt/post_id",
    ]
    assert await asked({"finding": "ABSENT"}, []) == ["/evidence"]
    assert await asked({"finding": "ABSENT", "receipt": receipt}, proof) == ["/params/receipt"]
    assert await asked({"finding": "CLOSE"}, proof) == ["/params/disposition"]
    foreign = {"finding": "CLOSE", "disposition": [{"effect": new_id("cmd"), "became": "gone"}]}
    assert await asked(foreign, proof) == ["/params/disposition"]
    assert await asked({"finding": "ABSENT", "note": "free text"}, proof) == ["/params/note"]
    assert await sent(gateway, start.workflow_id) == []
    taken = await operate(
        gateway, "exception", name, "SETTLE", params={"finding": "EXISTS", "receipt": receipt}, evidence=proof
    )
    assert taken.status_code == 202, taken.text
    (command,) = await sent(gateway, start.workflow_id)
    assert command.params == {"finding": "EXISTS", "receipt": receipt, "disposition": []}
    assert command.evidence == proof and command.deadline_at is None


async def test_resolved_is_what_was_just_seen(gateway: EdgeUnderTest) -> None:
    """MARK_RESOLVED takes an element observed healthy a moment ago, or what became of every effect; nothing else.

    Requirements: O3
    """
    start, row, exception = await failed_command(gateway, "resolved")
    named = {"system": "wordpress", "resource": "post/7", "element": "wordpress.status"}

    def element(phase: Phase, age: float, version: int) -> ElementChanged:
        return ElementChanged(
            tenant="acme",
            command_id=row.command_id,
            workflow_id=start.workflow_id,
            version=version,
            desired="draft",
            phase=phase,
            observed_at=later(-age),
            **named,
        )

    async def resolve(params: dict[str, Any]) -> httpx.Response:
        return await operate(gateway, "exception", exception.exception_id, "MARK_RESOLVED", params=params)

    for params in ({}, {"observation": named}):
        shown = problem(await resolve(params), 422, "payload-invalid")
        assert shown["errors"][0]["pointer"] == "/params/observation"
    for version, (phase, age) in enumerate(((Phase.DRIFT, 1), (Phase.HEALTHY, 1000)), 1):
        await project(gateway, element(phase, age, version))
        problem(await resolve({"observation": named}), 422, "payload-invalid")
    await project(gateway, element(Phase.HEALTHY, 5, 3))
    seen = await resolve({"observation": named})
    assert seen.status_code == 202, seen.text
    await project(gateway, ended(seen.json()["operator_command_id"]))
    said = await resolve({"disposition": [{"effect": row.command_id, "became": "deleted by hand"}]})
    assert said.status_code == 202, said.text


async def test_what_was_seen_elsewhere_resolves_nothing(gateway: EdgeUnderTest) -> None:
    """An element of another case and another object is healthy: that says nothing of what failed here.

    Requirements: O3
    """
    _, _, exception = await failed_command(gateway, "still-broken")
    start, row, _ = await failed_command(gateway, "somewhere-else")
    named = {"system": "wordpress", "resource": "post/8", "element": "wordpress.status"}
    await project(
        gateway,
        ElementChanged(
            tenant="acme",
            command_id=row.command_id,
            workflow_id=start.workflow_id,
            version=1,
            desired="draft",
            phase=Phase.HEALTHY,
            observed_at=later(-5),
            **named,
        ),
    )
    refused = await operate(
        gateway, "exception", exception.exception_id, "MARK_RESOLVED", params={"observation": named}
    )
    shown = problem(refused, 422, "payload-invalid")
    assert shown["errors"] == [
        {"pointer": "/params/observation", "detail": "this element says nothing of what is to be resolved"}
    ]


async def stuck_case(
    gateway: EdgeUnderTest, *states: OperationState, **changes: Any
) -> tuple[InstanceRow, list[JournalRow]]:
    """A workflow in a person's hands with one operation per state, each about a post of its own."""
    _, like, _ = await failed_command(gateway, new_id("msg").replace("_", "-"))
    instance = await running_case(gateway, status=InstanceStatus.HUMAN_TAKEOVER, direction="person", **changes)
    ends = {OperationState.SUCCESS: "CONFIRMED", OperationState.FAILED: "REJECTED"}
    rows = [
        like.evolve(
            command_id=new_id("cmd"),
            workflow_id=instance.workflow_id,
            step_id=f"step-{number}",
            state=state,
            attempts=[{**like.attempts[0], "state": ends.get(state, "UNKNOWN")}],
        )
        for number, state in enumerate(states, 1)
    ]
    newer = instance.evolve(state_version=instance.state_version + 1)
    await project(gateway, CaseChanged(instance=newer, operations=tuple(rows)))
    return newer, rows


async def test_a_case_is_closed_by_speaking_of_every_effect_and_of_no_other(gateway: EdgeUnderTest) -> None:
    """Of a case as a whole each effect that stands or may is named once; one that is known not to have happened, one of
    another case, and free words are not.

    Requirements: O3, E3
    """
    instance, rows = await stuck_case(
        gateway, OperationState.SUCCESS, OperationState.FAILED, OperationState.DEAD_LETTERED, OperationState.RESOLVED
    )
    done, failed, dead, over = (row.command_id for row in rows)

    async def said(*names: str, **more: Any) -> httpx.Response:
        params = {"disposition": [{"effect": name, "became": "kept"} for name in names], **more}
        return await on_case(gateway, instance, "MARK_RESOLVED", params=params)

    for names, detail in (
        ((), done),
        ((done,), dead),
        ((done, dead, failed), failed),
        ((done, dead, over), over),
        ((done, dead, new_id("cmd")), "no effect of this case"),
        ((done, dead, "everything"), "everything"),
        ((done, dead, done), "more than once"),
    ):
        errors = problem(await said(*names), 422, "payload-invalid")["errors"]
        assert any(item["pointer"] == "/params/disposition" and detail in item["detail"] for item in errors), names
    shown = await on_case(gateway, instance, "MARK_RESOLVED", params={})
    assert problem(shown, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/observation"
    taken = await said(dead, done)
    assert taken.status_code == 202, taken.text
    (command,) = await sent(gateway, instance.workflow_id)
    assert {item["effect"] for item in command.params["disposition"]} == {done, dead} and command.seen == []


async def test_a_case_is_closed_by_seeing_every_element_and_not_only_one(gateway: EdgeUnderTest) -> None:
    """One healthy element says nothing of the others: all that the case established or still owes were seen a moment
    ago; an effect without an element is spoken about all the same.

    Requirements: O3, R5
    """
    owed = {"command_id": "cmd_x", "system": "wordpress", "resource": "post/9", "element": "wordpress.status"}
    instance, (first, second, third) = await stuck_case(
        gateway, OperationState.SUCCESS, OperationState.SUCCESS, OperationState.DEAD_LETTERED, owed=[owed]
    )

    def element(row: JournalRow, number: int, age: float = 5, **facts: Any) -> ElementChanged:
        place = {"system": "wordpress", "resource": f"post/{number}", "element": "wordpress.status"}
        return ElementChanged(
            tenant="acme",
            command_id=row.command_id,
            workflow_id=instance.workflow_id,
            desired="draft",
            observed_at=later(-age),
            **{"phase": Phase.HEALTHY, "version": 1, **place, **facts},
        )

    async def resolve(*names: str) -> httpx.Response:
        named = {"system": "wordpress", "resource": "post/7", "element": "wordpress.status"}
        params = {"observation": named, "disposition": [{"effect": name, "became": "kept"} for name in names]}
        return await on_case(gateway, instance, "MARK_RESOLVED", params=params)

    async def missing(*names: str) -> str:
        errors = problem(await resolve(*names), 422, "payload-invalid")["errors"]
        return " / ".join(item["detail"] for item in errors)

    await project(gateway, element(first, 7), element(second, 8, phase=Phase.DRIFT))
    assert "post/8" in await missing(third.command_id) and "post/9" in await missing(third.command_id)
    await project(gateway, element(second, 8, 1000, version=2), element(second, 9))
    found = await missing(third.command_id)
    assert "post/8" in found and "post/9" not in found
    await project(gateway, element(second, 8, version=3))
    assert third.command_id in await missing(), "nothing was seen of what it may have done"
    taken = await resolve(third.command_id)
    assert taken.status_code == 202, taken.text
    (command,) = await sent(gateway, instance.workflow_id)
    assert command.seen == sorted([first.command_id, second.command_id])


@pytest.mark.parametrize("action", ["REDRIVE", "ASSIGN"])
@pytest.mark.parametrize(
    "deadline",
    [
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "9999-12-31T23:59:59Z",
        "2020-01-01T00:00:00Z",
        1893456000,
        "2030-01-01",
    ],
)
async def test_a_deadline_is_a_time_that_comes(gateway: EdgeUnderTest, action: str, deadline: object) -> None:
    """No deadline outside the calendar, in the past, or so far ahead that it is none: neither for a command nor for
    whoever owns an exception.

    Requirements: T3, Q4
    """
    _, _, exception = await failed_command(gateway, new_id("msg").replace("_", "-"))
    params = {"deadline": deadline} | ({"owner": "nobody"} if action == "ASSIGN" else {})
    refused = await operate(gateway, "exception", exception.exception_id, action, params=params)
    assert problem(refused, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/deadline"


async def test_a_cancel_is_asked_once_and_followed_to_its_end(gateway: EdgeUnderTest) -> None:
    """Accepted, acknowledged by the case, done once it is settled; twice under a key is one act.

    Requirements: L12, I5, G7
    """
    instance = await running_case(gateway)
    first = await cancel(gateway, instance, "key-1")
    assert first.status_code == 202
    body = first.json()
    assert body["state"] == "ACCEPTED" and body["actor"] == "agent:publisher" and body["reason"] == "withdrawn"
    again = await cancel(gateway, instance, "key-1")
    assert again.status_code == 202 and again.json() == body and again.headers["idempotent-replayed"] == "true"
    (asked,) = await sent(gateway, instance.workflow_id)
    assert (asked.operator_command_id, asked.action) == (body["operator_command_id"], "CANCEL")
    assert asked.actor == "agent:publisher"
    name = body["operator_command_id"]
    assert (await read(gateway, name))["state"] == "ACCEPTED"
    await changed(gateway, instance, heard(instance, name), status=InstanceStatus.CANCEL_PENDING)
    assert (await read(gateway, name))["state"] == "ACKNOWLEDGED"
    await project(gateway, ended(name, result={"status": "CANCELLED"}))
    assert (await read(gateway, name))["state"] == "DONE"
    trace = await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers())
    assert trace.json()["determining_policies"] == ["agents-cancel-their-own-cases"]
    assert trace.json()["context"] == {"operation": "CANCEL", "own": True}


async def test_an_act_that_did_not_fit_any_more_says_so(gateway: EdgeUnderTest) -> None:
    """What the performer refuses is REFUSED with what is allowed by then.

    Requirements: L12, O3
    """
    instance = await running_case(gateway)
    name = (await on_case(gateway, instance, "PAUSE")).json()["operator_command_id"]
    await project(gateway, ended(name, "REFUSED", detail="too late", allowed_actions=("CANCEL",)))
    shown = await read(gateway, name)
    assert (shown["state"], shown["detail"], shown["allowed_actions"]) == ("REFUSED", "too late", ["CANCEL"])
    headers = gateway.headers(**OPERATOR)
    place = f"/v1/operator-commands?target={instance.workflow_id}"
    listed = (await gateway.client.get(place, headers=headers)).json()["items"]
    assert [item["operator_command_id"] for item in listed] == [name]
    assert (await gateway.client.get(f"{place}&state=DONE", headers=headers)).json()["items"] == []


@pytest.mark.parametrize("status", InstanceStatus)
async def test_what_is_possible_in_each_status(gateway: EdgeUnderTest, status: InstanceStatus) -> None:
    """What the table allows a workflow is taken; everything else is 409 with what is allowed, and asks nothing.

    Requirements: L12, O3
    """
    instance = await running_case(gateway, status=status)
    needed = {
        "RESUME": {} if status is InstanceStatus.PAUSED else {"from_step": "draft"},
        "MARK_RESOLVED": {"disposition": []},  # it caused nothing
        "ASSIGN": {"owner": "x"},
    }
    taken = []
    for action in OperatorAction:
        response = await on_case(gateway, instance, action.value, params=needed.get(action.value, {}))
        if response.status_code == 202:
            taken.append(action)
        elif action in CASE[status] and action is OperatorAction.RESUME:
            problem(response, 422, "payload-invalid")  # this case's document has no such step
        else:
            body = problem(response, 409, "action-not-available")
            assert set(body["allowed_actions"]) <= {item.value for item in CASE[status]}
            assert body["workflow_status"] == status.value
    assert [item.action for item in await sent(gateway, instance.workflow_id)] == [item.value for item in taken]
    assert set(taken) <= set(CASE[status])
    assert not taken or status not in INSTANCE_TERMINAL or status is InstanceStatus.SAFE_STOPPED


async def test_who_may_operate(gateway: EdgeUnderTest) -> None:
    """Operators the tenant's cases, agents cancel their own and nothing else; nobody another tenant's.

    Requirements: G7, T1
    """
    instance = await running_case(gateway)
    _, row, exception = await failed_command(gateway, "whose")
    for who in ({"sub": "agent:other"}, {"tenant": "globex"}, {**OPERATOR, "tenant": "globex"}):
        problem(await cancel(gateway, instance, **who), 404, "not-found")
        problem(await on_case(gateway, instance, "PAUSE", who=who), 404, "not-found")
        problem(await operate(gateway, "command", row.command_id, "REDRIVE", who=who), 404, "not-found")
    for who in ({"tenant": "globex"}, {**OPERATOR, "tenant": "globex"}, {**REPAIRER, "tenant": "globex"}):
        response = await operate(gateway, "exception", exception.exception_id, "REDRIVE", who=who)
        problem(response, 404, "not-found")
    for who in ({}, {"sub": "operator:eye", "roles": ("viewer",)}, {"sub": "operator:judge", "roles": ("auditor",)}):
        response = await operate(gateway, "exception", exception.exception_id, "REDRIVE", who=who)
        problem(response, 403, "forbidden", "role")
    problem(await on_case(gateway, instance, "PAUSE", who={}), 403, "forbidden", "role")
    problem(await cancel(gateway, instance, sub="operator:eye", roles=("viewer",)), 403, "forbidden", "role")
    problem(await cancel(gateway, instance, sub="operator:root", roles=("admin",)), 403, "forbidden", "role")
    url = f"/v1/workflows/{instance.workflow_id}/cancel"
    response = await gateway.client.post(url, json={"reason": "x"}, headers=gateway.headers())
    problem(response, 400, "idempotency-key-missing")
    problem(await on_case(gateway, instance, "EXPLODE"), 422, "payload-invalid")
    assert await sent(gateway, instance.workflow_id) == []
    made = (await cancel(gateway, instance, **OPERATOR)).json()
    place = f"/v1/operator-commands/{made['operator_command_id']}"
    for who in ({"tenant": "globex", **OPERATOR}, {"sub": "agent:publisher"}):
        headers = gateway.headers(**who)
        expected = 404 if who.get("tenant") or who["sub"] != "operator:ops" else 200
        assert (await gateway.client.get(place, headers=headers)).status_code == expected


async def test_a_preview_tells_what_runs_again_and_changes_nothing(gateway: EdgeUnderTest) -> None:
    """From a step on everything runs again but effects that stand; a dry run asks nobody and writes nothing.

    Requirements: O7
    """
    rows = [
        {
            "id": "draft",
            "kind": "command",
            "phase": "DONE",
            "command_type": "wordpress.create_draft",
            "command_id": "c1",
        },
        {"id": "approve", "kind": "approval", "phase": "FAILED"},
        {"id": "publish", "kind": "command", "phase": "PENDING", "command_type": "wordpress.publish_post"},
    ]
    instance = await running_case(
        gateway, status=InstanceStatus.HUMAN_TAKEOVER, direction="person", steps=rows, definition="article"
    )
    before = await gateway.rows()
    shown = await on_case(gateway, instance, "RESUME", params={"from_step": "approve", "dry_run": True})
    assert shown.status_code == 200, shown.text
    body = shown.json()
    assert (body["again"], body["kept"]) == (["approve", "publish"], ["draft"])
    publish = {"step": "publish", "command_type": "wordpress.publish_post", "command_id": None, "state": None}
    assert body["effects_again"] == [{**publish, "how": "first_time"}]
    draft_kept = {"step": "draft", "command_type": "wordpress.create_draft", "command_id": "c1", "state": None}
    assert body["effects_kept"] == [draft_kept]
    assert body["waits_reopened"] == [{"step": "approve", "kind": "approval", "was": "FAILED"}]
    assert body["held"] == [] and body["version"] == body["from_version"] == instance.version
    assert await gateway.rows() == before and await sent(gateway, instance.workflow_id) == []
    for params in ({}, {"from_step": "nowhere"}, {"from_step": "nowhere", "dry_run": True}):
        response = await on_case(gateway, instance, "RESUME", params=params)
        assert problem(response, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/from_step"
    other = await on_case(gateway, instance, "RESUME", params={"from_step": "approve", "version": 2})
    assert problem(other, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/version"
    taken = await on_case(gateway, instance, "RESUME", params={"from_step": "approve"})
    assert taken.status_code == 202
    (command,) = await sent(gateway, instance.workflow_id)
    assert command.params == {"from_step": "approve", "dry_run": False}
    assert command.deadline_at is not None and command.deadline_at > real_now() + timedelta(hours=1)


def test_every_action_has_its_parameters() -> None:
    """Requirements: O3"""
    assert set(PARAMS) == set(OperatorAction)


BODIES = (
    *dict.fromkeys(PARAMS.values()),
    *(OperatorCommandRequest, CancelRequest, OperatorBatchRequest, TurnRequest, BatchFilter),
    *(FreezeRequest, BreakGlassRequest, LiftRequest, HoldRequest),
)
"""Every body that an operator sends."""


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_no_operators_body_reads_a_value_of_another_type(model: type[BaseModel]) -> None:
    """`true` is no number, `"1"` is none either, and `1` is no truth: what a field takes is what its schema says.

    Requirements: T3, F1
    """
    schema = model.model_json_schema()
    names = {"boolean": (bool,), "integer": (int,), "number": (int, float), "string": (str,), "null": (type(None),)}
    names |= {"array": (list,), "object": (dict,)}

    def types_of(field: dict[str, Any]) -> set[type]:
        if "$ref" in field:
            return types_of(schema["$defs"][field["$ref"].rpartition("/")[2]])
        parts = field.get("anyOf") or field.get("allOf")
        if parts:
            return {kind for part in parts for kind in types_of(part)}
        return set(names[field["type"]])

    for name, field in schema.get("properties", {}).items():
        permitted = types_of(field)
        for value in (True, False, 1, 0, 1.5, "1", "true", "x", None, [], {}, [1], {"a": 1}):
            if type(value) in permitted:
                continue
            with pytest.raises(Refused) as refused:
                fit(model, {name: value})
            assert any(pointer.startswith(f"/{name}") for pointer, _ in refused.value.errors), (name, value)


async def test_drift_and_quarantine_belong_to_those_who_found_them(gateway: EdgeUnderTest) -> None:
    """The reconciler looks at a drift, the planner repairs it and owns what nobody could read.

    Requirements: O3
    """
    start, _, _ = await failed_command(gateway, "performers")
    drift = changed_exception(
        start,
        "drift",
        kind=ExceptionKind.STATE_DRIFT.value,
        command_id=None,
        envelope={"target_system": "wordpress", "target_resource": "post/7", "element": "wordpress.status"},
    )
    lost = changed_exception(start, "lost", kind="quarantined_message", command_id=None, workflow_id=None)
    await project(gateway, drift, lost)
    wanted = (
        (drift, "RECONCILE", {}, "reconciler"),
        (drift, "ASSIGN", {"owner": "editors"}, "repair-planner"),
        (lost, "ESCALATE", {}, "repair-planner"),
    )
    for exception, action, params, performer in wanted:
        response = await operate(gateway, "exception", exception.exception_id, action, params=params)
        assert response.status_code == 202, response.text
        assert response.json()["performer"] == performer
        await project(gateway, ended(response.json()["operator_command_id"]))
    (looked, assigned) = [
        item for item in await sent(gateway, start.workflow_id) if item.exception_kind == "state_drift"
    ]
    assert looked.element == {"system": "wordpress", "resource": "post/7", "element": "wordpress.status"}
    assert assigned.params == {"owner": "editors"}
    assert derived_id("exc", start.workflow_id, "drift") == looked.exception_id
