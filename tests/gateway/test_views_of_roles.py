"""Business, operations and audit views are separate rights: who sees what things say, and who sees what people did."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.asks import OPERATOR, project
from tests.gateway.edge import EdgeUnderTest, later
from tests.gateway.mending import told_repair
from tests.gateway.test_operators import failed_command, operate
from tests.gateway.test_refusals import problem
from tests.gateway.test_unverified import overdue

from trueup_common.contracts.events import CaseChanged, ElementChanged, OperatorCommandEnded
from trueup_common.contracts.states import Phase
from trueup_gateway.core import roles
from trueup_gateway.core.withholding import BUSINESS, shown
from trueup_gateway.store import Reader

AUDITOR = {"sub": "operator:ada", "roles": ("auditor",)}
VIEWER = {"sub": "operator:eye", "roles": ("viewer",)}
SECRET = "A title that names a person"


async def get(gateway: EdgeUnderTest, path: str, **who: Any) -> Any:
    response = await gateway.client.get(path, headers=gateway.headers(**who))
    assert response.status_code == 200, (path, response.text)
    return response.json()


async def everything(gateway: EdgeUnderTest) -> list[str]:
    """Paths of all that speaks of a case in which a personal text stands everywhere it can."""
    start, row, exception = await failed_command(
        gateway,
        "personal",
        receipt={"title": SECRET},
        observed_state={"title": SECRET},
        desired_state={"t": SECRET},
        error_detail=f"title is {SECRET}",
    )
    envelope = {
        **{"desired": SECRET, "observed": SECRET, "repair": {"payload": {"title": SECRET}}},
        **{"failure_code": "x", "failure_reason": f"title is {SECRET}"},
    }
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    assert view is not None
    owed = overdue(view.instance, row.command_id).evolve(envelope=envelope)
    newer = view.instance.evolve(state_version=view.state_version + 1)
    await project(gateway, CaseChanged(instance=newer, operations=(row,), obligations=(owed,)))
    exception = exception.model_copy(update={"envelope": envelope, "version": 2})
    place = {"system": "wordpress", "resource": "post/7", "element": "wordpress.title"}
    element = ElementChanged(
        tenant="acme",
        command_id=row.command_id,
        workflow_id=start.workflow_id,
        version=1,
        desired=SECRET,
        recorded=SECRET,
        observed=SECRET,
        phase=Phase.DRIFT,
        observed_at=later(-5),
        **place,
    )
    repair = told_repair(version=3).evolve(
        drift={"element": "x", "desired": SECRET, "observed": SECRET},
        root_cause=f"DATA_ERROR: title is {SECRET}",
        error_detail=f"title is {SECRET}",
    )
    await project(gateway, exception, element, repair)
    return [
        f"/v1/commands/{row.command_id}",
        "/v1/commands",
        f"/v1/workflows/{start.workflow_id}",
        "/v1/workflows",
        f"/v1/workflows/{start.workflow_id}/handover",
        f"/v1/workflows/{start.workflow_id}/history",
        f"/v1/exceptions/{exception.exception_id}",
        "/v1/exceptions",
        "/v1/drift",
        f"/v1/repairs/{repair.repair_id}",
        "/v1/repairs",
        "/v1/approvals",
    ]


async def test_an_auditor_sees_that_it_is_there_and_not_what_it_says(gateway: EdgeUnderTest) -> None:
    """Everything that viewers and operators may read an auditor may as well, without one word of its content; the
    answer names what it leaves out.

    Requirements: O4, T3
    """
    paths = await everything(gateway)
    told = 0
    for path in paths:
        full = str(await get(gateway, path, **OPERATOR))
        assert full.count(SECRET) == str(await get(gateway, path, **VIEWER)).count(SECRET)
        told += SECRET in full
        assert SECRET not in str(await get(gateway, path, **AUDITOR)), path
    assert told >= 9, "the operator saw it nearly everywhere"
    command = await get(gateway, paths[0], **AUDITOR)
    assert command["payload"] is None and set(command["withheld"]) >= {"payload", "receipt", "observation"}
    assert command["payload_sha256"] and command["state"] == "DEAD_LETTERED" and command["attempts"]
    both = {"sub": "operator:ada", "roles": ("auditor", "viewer")}
    assert "withheld" not in await get(gateway, paths[0], **both)


async def test_what_went_wrong_is_told_by_class_and_code_and_not_in_the_words_of_a_target(
    gateway: EdgeUnderTest,
) -> None:
    """A target's own words quote content: of an exception, of a command, of a case's obligations, and of an act that
    ended badly. Class, code and the status that it answered stay; what the plane itself says of a refused act as well.

    Requirements: O4, T3, Q2
    """
    start, row, exception = await failed_command(gateway, "spoken", error_detail=f"title is {SECRET}")
    envelope = {"failure_reason": f"title is {SECRET}", "failure_code": "bad_title", "last_external_status": "400"}
    await project(gateway, exception.model_copy(update={"envelope": envelope, "version": 2}))
    read = await get(gateway, f"/v1/exceptions/{exception.exception_id}", **AUDITOR)
    kept = ("failure_code", "last_external_status")
    assert read["failure_class"] and [read["envelope"][name] for name in kept] == ["bad_title", "400"]
    assert read["envelope"]["failure_reason"] is None and "envelope/failure_reason" in read["withheld"]
    for state, detail in (("DONE", f"title is {SECRET}"), ("REFUSED", "It is CLOSED.")):
        asked = (await operate(gateway, "exception", exception.exception_id, "REDRIVE", key=f"spoken-{state}")).json()
        ended = OperatorCommandEnded(
            operator_command_id=asked["operator_command_id"],
            tenant=start.tenant,
            state=state,
            detail=detail,
            result={"command_id": row.command_id, "state": "FAILED", "error_code": "bad_title"},
            ended_by="orchestrator",
            at=later(0),
        )
        await project(gateway, ended)
        path = f"/v1/operator-commands/{asked['operator_command_id']}"
        assert (await get(gateway, path, **OPERATOR))["detail"] == detail
        seen = await get(gateway, path, **AUDITOR)
        assert seen["detail"] == (None if state == "DONE" else detail) and seen["result"]["error_code"] == "bad_title"
        assert SECRET not in str(await get(gateway, f"/v1/operator-commands?target={row.command_id}", **AUDITOR))


async def test_what_people_did_is_seen_by_those_who_audit_or_operate(gateway: EdgeUnderTest) -> None:
    """Acts and the decisions and capabilities behind them: operators and auditors the tenant's, others their own.

    Requirements: O4, O2, G3
    """
    start, row, exception = await failed_command(gateway, "acted-upon")
    act = (await operate(gateway, "exception", exception.exception_id, "REDRIVE")).json()
    capability_id = row.capability_id
    paths = (
        f"/v1/operator-commands/{act['operator_command_id']}",
        f"/v1/decisions/{act['decision_id']}",
        f"/v1/capabilities/{capability_id}",
    )
    listed = f"/v1/operator-commands?target={start.workflow_id}"
    for path in paths:
        for who in (OPERATOR, AUDITOR):
            assert await get(gateway, path, **who), path
        for who in (VIEWER, {"tenant": "globex", **AUDITOR}, {"sub": "agent:other"}):
            problem(await gateway.client.get(path, headers=gateway.headers(**who)), 404, "not-found")
    assert len((await get(gateway, listed, **AUDITOR))["items"]) == 1
    assert (await get(gateway, listed, **VIEWER))["items"] == []
    mine = await get(gateway, paths[2])
    assert (mine["capability_id"], mine["uses_left"], mine["max_uses"]) == (capability_id, 0, 1)
    assert "capability" not in mine and "ey" not in str(mine.values()), "the token is nowhere"
    headers = gateway.headers(sub="operator:root", roles=("admin",))
    problem(await gateway.client.get(paths[2], headers=headers), 403, "forbidden", "role")


@pytest.mark.parametrize("kind", sorted(BUSINESS))
def test_what_is_withheld_is_named_and_everything_else_stays(kind: str) -> None:
    """Requirements: O4"""
    body: dict[str, Any] = {"kept": 1}
    for place in BUSINESS[kind]:
        at: Any = body
        *way, last = place.split("/")
        for position, name in enumerate(way):
            if name.startswith("*"):
                at = at[0]
            else:
                listed = (way[position + 1 : position + 2] or [last])[0].startswith("*")
                item = {"kept": 2, "payload": {"error_code": "bad_title"}}
                at = at.setdefault(name, [item] if listed else {"kept": 2})
        at[last] = SECRET
    seen = shown(("auditor",), kind, body)
    assert SECRET not in str(seen) and SECRET in str(body)
    assert sorted(seen["withheld"]) == sorted(BUSINESS[kind]) and seen["kept"] == 1
    assert str(seen).count("'kept': 2") == str(body).count("'kept': 2")
    assert shown(("viewer",), kind, body) is body
    assert shown(("auditor",), kind, {"kept": 1}) == {"kept": 1, "withheld": []}


def test_of_a_fact_the_words_of_a_target_are_withheld_and_those_of_a_person_stay() -> None:
    """Why somebody acted is the auditor's to read, what a target said of content is not.

    Requirements: O4, O3, T3
    """
    facts = [
        {"type": "ReceiptReceived", "payload": {"error_code": "bad_title", "reason": SECRET, "external_status": "400"}},
        {"type": "OperatorActed", "payload": {"error_code": "settled_absent", "reason": "not there"}},
        {"type": "OperatorActed", "payload": {"reason": "seen", "observation": {"title": SECRET}}},
        {"type": "CaseTurned", "payload": {"reason": "publish_FAILED"}},
    ]
    seen = shown(("auditor",), "history", {"items": facts, "next_after_seq": None})
    assert SECRET not in str(seen) and seen["items"][0]["payload"]["external_status"] == "400"
    assert [item["payload"]["reason"] for item in seen["items"]] == [None, "not there", "seen", "publish_FAILED"]
    assert seen["withheld"] == ["items/*failure/payload/reason", "items/*/payload/observation"]
    handed = shown(("auditor",), "handover", {"history": facts})
    assert SECRET not in str(handed) and len(handed["withheld"]) == 2


def test_no_view_is_implied_by_another() -> None:
    """Requirements: O4, L10"""
    views = (roles.READ_TENANT, roles.VIEW_BUSINESS, roles.VIEW_AUDIT, roles.OPERATE, roles.APPROVE)
    held = {role: {right for right in views if roles.may((role,), right)} for role in roles.ROLES}
    assert held["viewer"] == {roles.READ_TENANT, roles.VIEW_BUSINESS}
    assert held["auditor"] == {roles.READ_TENANT, roles.VIEW_AUDIT}
    assert held["operator"] == {roles.READ_TENANT, roles.VIEW_BUSINESS, roles.VIEW_AUDIT, roles.OPERATE}
    assert held["approver"] == {roles.APPROVE, roles.VIEW_BUSINESS}, "of approvals alone: it reads no case"
    assert held["admin"] == set()
