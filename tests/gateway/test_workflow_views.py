"""Cases of workflows as they are read: steps in the document's order, with their operations, waits and elements."""

from __future__ import annotations

from typing import Any

from tests.gateway.edge import DRAFT, PUBLISH, TRASH, EdgeUnderTest, later
from tests.gateway.test_views import project
from tests.gateway.test_workflow_start import DOCUMENT, started

from trueup_common.contracts.events import CaseChanged, ElementChanged, StartWorkflow
from trueup_common.contracts.ids import command_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState, Phase
from trueup_common.contracts.workflow import StepKind, StepOutcome, StepPhase, StepState
from trueup_common.runtime.clock import real_now
from trueup_gateway.store import Reader


async def begun(gateway: EdgeUnderTest, slug: str) -> tuple[StartWorkflow, InstanceRow]:
    """A started case and its instance as the gateway shows it."""
    capability = (await gateway.start_capability())["capability"]
    assert (await gateway.start(capability, slug)).status_code == 202
    start = started(gateway)
    view = await gateway.gateway.reads.case(Reader("acme"), start.workflow_id)
    assert view is not None
    return start, view.instance


def operation(start: StartWorkflow, step: str, state: OperationState, **more: Any) -> JournalRow:
    """The journal row of one step."""
    declaration = {"draft": DRAFT, "publish": PUBLISH, "draft:undo": TRASH}[step]
    now = real_now()
    return JournalRow(
        command_id=command_id(start.workflow_id, step, 1),
        tenant="acme",
        workflow_id=start.workflow_id,
        saga_id=start.saga_id,
        step_id=step,
        state_version=more.pop("state_version", 1),
        execution_id=start.workflow_id,
        decision_id=start.mandate.decision_id,
        mandate_id=start.mandate.mandate_id,
        command_type=declaration.type,
        declaration_sha256=declaration.sha256,
        effect_class=declaration.effect_class,
        target_system=declaration.system,
        target_resource="post/7",
        payload={},
        payload_sha256="0" * 64,
        idempotency_key=f"{start.workflow_id}/{step}",
        request_fingerprint="f",
        state=state,
        created_at=now,
        last_transition_at=now,
        deadline_at=later(600),
        **more,
    )


def steps(*states: StepState) -> list[dict[str, Any]]:
    """All steps of the document; those not given are pending."""
    given = {state.id: state for state in states}
    return [
        given.get(step.id, StepState(id=step.id, kind=step.kind)).model_dump(mode="json") for step in DOCUMENT.steps
    ]


async def test_steps_show_their_operations_and_what_is_waited_for(gateway: EdgeUnderTest) -> None:
    """In the document's order: a command as its operation stands, an approval as its phase, and the wait of the case.

    Requirements: L7
    """
    start, instance = await begun(gateway, "steps")
    draft = operation(start, "draft", OperationState.SUCCESS, attempt_count=2, completed_at=real_now())
    wait = {
        "reason": "approval",
        "expects": "content:publish",
        "step_id": "approve",
        "owner": "editors",
        "backup_owner": None,
        "deadline": "2030-01-01T00:00:00Z",
        "next_wake_at": "2030-01-01T00:00:00Z",
    }
    changed = instance.evolve(
        state_version=1,
        status=InstanceStatus.WAITING,
        steps=steps(
            StepState(id="draft", kind=StepKind.COMMAND, phase=StepPhase.DONE, command_id=draft.command_id),
            StepState(id="approve", kind=StepKind.APPROVAL, phase=StepPhase.WAITING, approval_id="apr_1"),
        ),
        operations=[draft.command_id],
        wait=wait,
    )
    await project(gateway, CaseChanged(instance=changed, operations=(draft,)))
    case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=gateway.headers())).json()
    first, second, third = case["steps"]
    assert (first["id"], first["state"], first["attempts"], first["outcome"]) == ("draft", "SUCCESS", 2, "done")
    assert first["command_id"] == draft.command_id and first["compensation_state"] == "NONE"
    assert (second["state"], second["approval_id"], second["outcome"]) == ("WAITING", "apr_1", None)
    assert (third["id"], third["state"], third["command_id"]) == ("publish", "PENDING", None)
    assert case["status"] == "WAITING" and case["wait"]["owner"] == "editors" and case["wait"]["reason"] == "approval"
    listed = await gateway.client.get("/v1/workflows?status=WAITING&definition=article", headers=gateway.headers())
    assert start.workflow_id in [item["workflow_id"] for item in listed.json()["items"]]


async def test_only_what_changed_is_told(gateway: EdgeUnderTest) -> None:
    """A later event without the operation leaves it as it was told; an older one changes nothing.

    Requirements: M2
    """
    start, instance = await begun(gateway, "partial")
    draft = operation(start, "draft", OperationState.SUCCESS)
    done = StepState(id="draft", kind=StepKind.COMMAND, phase=StepPhase.DONE, command_id=draft.command_id)
    late = instance.evolve(state_version=3, status=InstanceStatus.HUMAN_TAKEOVER, steps=steps(done))
    await project(gateway, CaseChanged(instance=late, operations=(draft,)))
    early = operation(start, "draft", OperationState.RUNNING, state_version=0)
    rejected = StepState(
        id="approve", kind=StepKind.APPROVAL, phase=StepPhase.FAILED, outcome=StepOutcome.REJECTED, reason="no"
    )
    latest = late.evolve(state_version=4, status=InstanceStatus.CANCELLED, steps=steps(done, rejected))
    await project(
        gateway,
        CaseChanged(instance=latest, operations=()),
        CaseChanged(instance=instance.evolve(state_version=2), operations=(early,)),
    )
    case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=gateway.headers())).json()
    assert (case["status"], case["steps"][0]["state"]) == ("CANCELLED", "SUCCESS")
    assert (case["steps"][1]["state"], case["steps"][1]["ended_as"], case["steps"][1]["reason"]) == (
        "FAILED",
        "rejected",
        "no",
    )


async def test_what_is_undone_leaves_the_vector(gateway: EdgeUnderTest) -> None:
    """A retired element is gone, also from what receipts once said; the compensation is shown as an operation.

    Requirements: R1, S4
    """
    start, instance = await begun(gateway, "undone")
    draft = operation(start, "draft", OperationState.SUCCESS, desired_state={"wordpress.post": "draft"})
    done = StepState(id="draft", kind=StepKind.COMMAND, phase=StepPhase.DONE, command_id=draft.command_id)
    forward = instance.evolve(state_version=1, steps=steps(done))
    path = f"/v1/workflows/{start.workflow_id}"
    await project(gateway, CaseChanged(instance=forward, operations=(draft,)))
    vector = (await gateway.client.get(path, headers=gateway.headers())).json()["vector"]
    assert [(item["element"], item["source"]) for item in vector] == [("wordpress.post", "receipt")]
    undo = operation(start, "draft:undo", OperationState.SUCCESS, compensates=draft.command_id)
    undone = draft.evolve(state_version=2, compensation_state=CompensationState.COMPENSATED)
    element = ElementChanged(
        tenant="acme",
        system="wordpress",
        resource="post/7",
        element="wordpress.post",
        command_id=draft.command_id,
        workflow_id=start.workflow_id,
        version=1,
        desired="draft",
        phase=Phase.HEALTHY,
    )
    await project(gateway, element)
    vector = (await gateway.client.get(path, headers=gateway.headers())).json()["vector"]
    assert [(item["element"], item["phase"]) for item in vector] == [("wordpress.post", "HEALTHY")]
    compensated = forward.evolve(state_version=2, status=InstanceStatus.COMPENSATED)
    await project(
        gateway,
        CaseChanged(instance=compensated, operations=(undone, undo)),
        element.evolve(version=2, retired=True),
    )
    case = (await gateway.client.get(path, headers=gateway.headers())).json()
    assert case["vector"] == [] and case["steps"][0]["compensation_state"] == "COMPENSATED"
    assert [item["compensates"] for item in case["compensations"]] == [draft.command_id]
    assert [step["id"] for step in case["steps"]] == ["draft", "approve", "publish"]


async def test_a_case_that_just_ended_shows_its_last_effect(gateway: EdgeUnderTest) -> None:
    """What the reconciler told of an earlier effect on the same element is not shown as desired any more.

    Requirements: R1
    """
    start, instance = await begun(gateway, "newest")
    draft = operation(
        start, "draft", OperationState.SUCCESS, desired_state={"wordpress.status": "draft"}, dispatch_sequence=4
    )
    publish = operation(
        start,
        "publish",
        OperationState.SUCCESS,
        desired_state={"wordpress.status": "publish"},
        observed_state={"wordpress.status": "publish"},
        dispatch_sequence=9,
    )
    told = ElementChanged(
        tenant="acme",
        system="wordpress",
        resource="post/7",
        element="wordpress.status",
        command_id=draft.command_id,
        workflow_id=start.workflow_id,
        version=1,
        desired="draft",
        phase=Phase.HEALTHY,
    )
    closed = instance.evolve(state_version=1, status=InstanceStatus.CLOSED)
    await project(gateway, told, CaseChanged(instance=closed, operations=(draft, publish)))
    path = f"/v1/workflows/{start.workflow_id}"
    vector = (await gateway.client.get(path, headers=gateway.headers())).json()["vector"]
    assert [(item["desired"], item["observed"], item["source"]) for item in vector] == [
        ("publish", "publish", "receipt")
    ]
    await project(gateway, told.evolve(version=2, command_id=publish.command_id, desired="publish", source="site"))
    vector = (await gateway.client.get(path, headers=gateway.headers())).json()["vector"]
    assert [(item["desired"], item["source"]) for item in vector] == [("publish", "site")]


async def test_what_keeps_an_effect_back_is_shown_as_a_wait(gateway: EdgeUnderTest) -> None:
    """A frozen effect, one whose grant is being minted, and one whose turn has not come: each with owner and deadline.

    Requirements: L7, O2
    """
    start, instance = await begun(gateway, "kept-back")
    wanted = (
        ({"next_retry_at": later(5), "wake_at": later(5), "error_code": "frozen"}, ("frozen", "release")),
        ({"proposed": True}, ("grant", "grant")),
        ({}, ("window", "window")),
        (
            {"next_retry_at": later(5), "wake_at": later(5), "error_code": "governance_stale"},
            ("governance_stale", "timer"),
        ),
    )
    for version, (changes, told) in enumerate(wanted, 1):
        publish = operation(start, "publish", OperationState.QUEUED, state_version=version, **changes)
        running = instance.evolve(state_version=version, status=InstanceStatus.RUNNING)
        await project(gateway, CaseChanged(instance=running, operations=(publish,)))
        case = (await gateway.client.get(f"/v1/workflows/{start.workflow_id}", headers=gateway.headers())).json()
        assert (case["wait"]["reason"], case["wait"]["expects"]) == told
        assert case["wait"]["owner"] == "trueup" and case["wait"]["deadline"]
