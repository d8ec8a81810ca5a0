"""What `GET /v1/commands/{id}` says may be done is what the table says and what is then taken, in every state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.asks import OPERATOR, project
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_operators import failed_command, operate
from tests.gateway.test_refusals import problem
from tests.gateway.test_unverified import overdue

from trueup_common.contracts.events import CaseChanged
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.operators import TargetKind, allowed
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_gateway.core.operators import Target, facts_of
from trueup_gateway.store import Reader


async def told(
    gateway: EdgeUnderTest, key: str, state: OperationState, status: InstanceStatus, *, late: bool = False, **row: Any
) -> tuple[InstanceRow, JournalRow]:
    """A command in this state, in a case with this status; `late`: the case owes a person's look at it."""
    start, like, _ = await failed_command(gateway, key)
    view = await gateway.gateway.reads.case(Reader(start.tenant), start.workflow_id)
    assert view is not None
    journal = like.evolve(state=state, state_version=6, **row)
    instance = view.instance.evolve(status=status, state_version=6)
    obligations = (overdue(instance, journal.command_id),) if late else ()
    await project(gateway, CaseChanged(instance=instance, operations=(journal,), obligations=obligations))
    return instance, journal


async def shown(gateway: EdgeUnderTest, command_id: str) -> list[str]:
    body = await gateway.client.get(f"/v1/commands/{command_id}", headers=gateway.headers(**OPERATOR))
    found: list[str] = body.json()["allowed_actions"]
    return found


async def test_a_command_that_succeeded_lists_what_its_case_owes_about_it(gateway: EdgeUnderTest) -> None:
    """It succeeded and nobody saw it in time: a person may close it, and reads so where the command is. Where nothing
    is owed nothing may be done, and none is taken.

    Requirements: O2, O3, Q8
    """
    succeeded = (OperationState.SUCCESS, InstanceStatus.VERIFYING)
    _, quiet = await told(gateway, "quiet", *succeeded)
    assert await shown(gateway, quiet.command_id) == []
    params = {"params": {"disposition": [{"effect": quiet.command_id, "became": "seen"}]}}
    problem(await operate(gateway, "command", quiet.command_id, "MARK_RESOLVED", **params), 409, "action-not-available")
    _, late = await told(gateway, "late", *succeeded, late=True)
    assert await shown(gateway, late.command_id) == ["MARK_RESOLVED", "SETTLE"]
    params = {"params": {"disposition": [{"effect": late.command_id, "became": "seen"}]}}
    taken = await operate(gateway, "command", late.command_id, "MARK_RESOLVED", **params)
    assert taken.status_code == 202, taken.text


@pytest.mark.parametrize("state", list(OperationState))
@pytest.mark.parametrize("step", ["command", "draft"], ids=["single", "step"])
async def test_what_is_shown_of_a_command_is_what_the_table_says(
    gateway: EdgeUnderTest, state: OperationState, step: str
) -> None:
    """Every state, of a single command and of a workflow's step, with and without something owed: what the answer
    lists is exactly what would be admitted.

    Requirements: O3
    """
    definition = "command" if step == "command" else "article"
    for late in (False, True):
        key = f"{state.lower().replace('_', '-')}-{step}-{late}".lower()
        instance, journal = await told(gateway, key, state, InstanceStatus.RUNNING, late=late, step_id=step)
        if definition != "command":
            newer = instance.evolve(definition=definition, state_version=7)
            owed = (overdue(instance, journal.command_id),) if late else ()
            await project(gateway, CaseChanged(instance=newer, operations=(), obligations=owed))
        view = await gateway.gateway.reads.case(Reader("acme"), instance.workflow_id)
        declaration = gateway.gateway.catalog.declaration(journal.declaration_sha256)
        target = Target("command", journal.command_id, "acme", view, journal)
        wanted = allowed(TargetKind.COMMAND, facts_of(target, declaration))
        assert await shown(gateway, journal.command_id) == [action.value for action in wanted], late
