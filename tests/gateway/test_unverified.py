"""What nobody could observe in time: offered to a person, of a workflow and of a single command, on what they saw."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.asks import OPERATOR, changed, project, running_case
from tests.gateway.edge import EdgeUnderTest, later
from tests.gateway.test_operators import failed_command, on_case, operate, sent
from tests.gateway.test_refusals import problem
from tests.gateway.test_views import changed_exception

from trueup_common.contracts.events import CaseChanged, ElementChanged
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.journal import InstanceRow, ObligationRow
from trueup_common.contracts.operators import ORCHESTRATOR, UNVERIFIED
from trueup_common.contracts.states import InstanceStatus, OperationState, Phase
from trueup_gateway.store import Reader


def overdue(instance: InstanceRow, command_id: str | None = None) -> ObligationRow:
    """What the orchestrator opens where verification is late."""
    return ObligationRow(
        obligation_id=new_id("obl"),
        tenant=instance.tenant,
        workflow_id=instance.workflow_id,
        saga_id=instance.saga_id,
        command_id=command_id,
        kind="needs_review",
        failure_class="TIMEOUT_UNKNOWN",
        owner="operators",
        opened_at=later(-60),
        deadline_at=later(3600),
        envelope={"failure_code": UNVERIFIED},
    )


async def shown(gateway: EdgeUnderTest, instance: InstanceRow) -> list[str]:
    body = await gateway.client.get(f"/v1/workflows/{instance.workflow_id}", headers=gateway.headers(**OPERATOR))
    found: list[str] = body.json()["allowed_actions"]
    return found


@pytest.mark.parametrize("status", [InstanceStatus.VERIFYING, InstanceStatus.COMPENSATING])
async def test_a_workflow_is_offered_its_way_out_once_it_is_overdue(
    gateway: EdgeUnderTest, status: InstanceStatus
) -> None:
    """Before, it may still be observed: 409. Then it is taken, and goes to whoever has the case.

    Requirements: Q8, O3, L15
    """
    instance = await running_case(gateway, status=status)
    said: dict[str, Any] = {"params": {"disposition": []}}
    assert await shown(gateway, instance) == []
    problem(await on_case(gateway, instance, "MARK_RESOLVED", **said), 409, "action-not-available")
    newer = instance.evolve(state_version=instance.state_version + 1)
    await project(gateway, CaseChanged(instance=newer, operations=(), obligations=(overdue(instance),)))
    assert await shown(gateway, instance) == ["MARK_RESOLVED"]
    taken = await on_case(gateway, instance, "MARK_RESOLVED", **said)
    assert taken.status_code == 202, taken.text
    (command,) = await sent(gateway, instance.workflow_id)
    assert command.performer == ORCHESTRATOR and command.exception_id is None
    await changed(gateway, newer, status=InstanceStatus.RESOLVED)
    assert await shown(gateway, instance) == []


async def test_a_single_command_is_resolved_on_what_speaks_of_everything_that_it_owes(gateway: EdgeUnderTest) -> None:
    """One element that was seen says nothing of the other; a person's word does.

    Requirements: Q8, O3, L15
    """
    start, row, _ = await failed_command(gateway, "unseen")
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    assert view is not None
    row = row.evolve(state=OperationState.SUCCESS, state_version=6)
    place = {"command_id": row.command_id, "system": "wordpress", "resource": "post/7"}
    owed = [{**place, "element": f"wordpress.{name}"} for name in ("status", "title")]
    instance = view.instance.evolve(status=InstanceStatus.VERIFYING, state_version=6, owed=owed)
    exception = changed_exception(start, "late", kind="needs_review", envelope={"failure_code": UNVERIFIED})
    late = (overdue(instance, row.command_id),)
    await project(gateway, CaseChanged(instance=instance, operations=(row,), obligations=late), exception)
    assert await shown(gateway, instance) == ["MARK_RESOLVED", "SETTLE"]
    element = ElementChanged(
        tenant="acme",
        workflow_id=instance.workflow_id,
        version=1,
        desired="draft",
        phase=Phase.HEALTHY,
        observed_at=later(-5),
        **owed[0],
    )
    await project(gateway, element)

    async def resolve(params: dict[str, Any]) -> Any:
        return await operate(gateway, "exception", exception.exception_id, "MARK_RESOLVED", params=params)

    named = {name: owed[0][name] for name in ("system", "resource", "element")}
    errors = problem(await resolve({"observation": named}), 422, "payload-invalid")["errors"]
    assert errors[0]["pointer"] == "/params/observation" and "wordpress.title" in errors[0]["detail"]
    taken = await resolve({"disposition": [{"effect": row.command_id, "became": "the owner sees it"}]})
    assert taken.status_code == 202, taken.text
    (command,) = await sent(gateway, instance.workflow_id)
    assert (command.performer, command.command_id) == (ORCHESTRATOR, row.command_id)
