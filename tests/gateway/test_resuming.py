"""Going on by a corrected version: previewed, refused by the names of what does not fit, carried out once."""

from __future__ import annotations

from typing import Any

import httpx
from tests.gateway.asks import project
from tests.gateway.edge import ARTICLE, EdgeUnderTest
from tests.gateway.test_definitions import register, retire
from tests.gateway.test_operators import failed_command, on_case, sent
from tests.gateway.test_refusals import problem

from trueup_common.contracts.events import CaseChanged, StartWorkflow
from trueup_common.contracts.ids import command_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.contracts.workflow import StepPhase
from trueup_common.documents.read import read_document
from trueup_gateway.store import Reader

CHECK = "  - id: approve\n    approval: {scope"
FIRST = ARTICLE.replace("name: article", "name: correctable")
CORRECTED = FIRST.replace("version: 1", "version: 2").replace(
    CHECK, "  - id: spelling\n    check: [\"input.title != ''\"]\n" + CHECK
)
assert CORRECTED.count("spelling") == 1
"""Version 2 of the workflow of the tests, with one check more before the approval."""


async def stuck(gateway: EdgeUnderTest, key: str) -> tuple[InstanceRow, StartWorkflow]:
    """A started case in a person's hands: its draft stands, its approval was given, its publication was refused."""
    assert (await register(gateway, f"first-{key}", FIRST)).status_code in (200, 201)
    capability = await gateway.start_capability("correctable", version=1)
    started = await gateway.start(capability["capability"], key, definition="correctable", version=1)
    assert started.status_code == 202, started.text
    start = StartWorkflow.model_validate_json(gateway.publisher.published[-1].message.data)
    view = await gateway.gateway.reads.case(Reader("acme"), start.workflow_id)
    assert view is not None
    _, like, _ = await failed_command(gateway, f"like-{key}")
    rows: list[JournalRow] = []
    steps: list[dict[str, Any]] = []
    ends = {"draft": OperationState.SUCCESS, "publish": OperationState.FAILED}
    for step in view.instance.steps:
        name = command_id(start.workflow_id, step["id"], 1)
        state = ends.get(step["id"])
        phase = StepPhase.FAILED if state is OperationState.FAILED else StepPhase.DONE
        steps.append({**step, "phase": phase, "command_id": name if state is not None else None})
        if state is not None:
            attempt = {**like.attempts[0], "state": "CONFIRMED" if state is OperationState.SUCCESS else "REJECTED"}
            rows.append(
                like.evolve(
                    command_id=name,
                    workflow_id=start.workflow_id,
                    step_id=step["id"],
                    command_type=step["command_type"],
                    state=state,
                    attempts=[attempt],
                )
            )
    instance = view.instance.evolve(
        status=InstanceStatus.HUMAN_TAKEOVER, direction="person", state_version=7, steps=steps
    )
    await project(gateway, CaseChanged(instance=instance, operations=tuple(rows)))
    return instance, start


async def resume(gateway: EdgeUnderTest, instance: InstanceRow, **params: Any) -> httpx.Response:
    key = params.pop("key", None)
    return await on_case(gateway, instance, "RESUME", params={"from_step": "publish", **params}, key=key)


async def test_a_case_goes_on_by_a_version_that_fits(gateway: EdgeUnderTest) -> None:
    """The preview tells both hashes, what is kept, what runs and what is asked anew; the act carries the document and
    lets the mandate's case run by it, once, however often it is pressed.

    Requirements: O7, I5, L13
    """
    instance, start = await stuck(gateway, "corrected")
    assert (await register(gateway, "corrected-2", CORRECTED)).status_code == 201
    new = read_document(CORRECTED).document
    before = await gateway.rows()
    shown = await resume(gateway, instance, version=2, dry_run=True)
    assert shown.status_code == 200, shown.text
    body = shown.json()
    assert (body["from_version"], body["version"]) == (1, 2)
    assert (body["from_sha256"], body["sha256"]) == (start.document_sha256, new.sha256)
    assert (body["kept"], body["again"]) == (["draft"], ["spelling", "approve", "publish"])
    assert [item["step"] for item in body["effects_kept"]] == ["draft"]
    assert [(item["step"], item["how"]) for item in body["effects_again"]] == [("publish", "again")]
    assert body["waits_reopened"] == [{"step": "approve", "kind": "approval", "was": "DONE"}]
    assert await gateway.rows() == before and await sent(gateway, instance.workflow_id) == []
    first = await resume(gateway, instance, version=2, key="by-2")
    again = await resume(gateway, instance, version=2, key="by-2")
    assert first.status_code == 202 and again.json() == first.json(), first.text
    (command,) = await sent(gateway, instance.workflow_id)
    assert command.document_sha256 == new.sha256 and command.document == new.dumped()
    where = f"""workflow_id = '{instance.workflow_id}' AND documents::text = '["{new.sha256}"]'"""
    assert await gateway.count("mandate", where) == 1
    same = await resume(gateway, instance, version=1)
    assert same.status_code == 202 and (await sent(gateway, instance.workflow_id))[-1].document is None


async def test_a_version_that_does_not_fit_is_refused_with_what_does_not(gateway: EdgeUnderTest) -> None:
    """Requirements: O7, L13"""
    instance, _ = await stuck(gateway, "unfit")
    for version, (old, new, step, detail) in enumerate(
        (
            ("id: draft\n", "id: outline\n", "draft", "no such step"),
            ("{type: article,", "{type: page,", None, "another business object"),
            ("maxLength: 200", "maxLength: 150", None, "another input"),
        ),
        11,
    ):
        text = FIRST.replace("version: 1", f"version: {version}").replace(old, new)
        text = text.replace("steps.draft.", "steps.outline.") if step else text
        registered = await register(gateway, f"unfit-{version}", text)
        assert registered.status_code == 201, registered.text
        for dry_run in (True, False):
            refused = problem(await resume(gateway, instance, version=version, dry_run=dry_run), 409, "conflict")
            assert any(item["step"] == step and detail in item["detail"] for item in refused["misfits"]), refused
    assert (await register(gateway, "unfit-15", FIRST.replace("version: 1", "version: 15"))).status_code == 201
    early = problem(
        await on_case(gateway, instance, "RESUME", params={"from_step": "draft", "version": 15}), 409, "conflict"
    )
    assert early["misfits"] == [{"step": "draft", "detail": "is done, and does not come before the step to go on from"}]
    assert (await retire(gateway, "retire-15", "correctable", 15)).status_code == 200
    for version in (15, 99):
        refused = await resume(gateway, instance, version=version)
        assert problem(refused, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/version"
    assert await sent(gateway, instance.workflow_id) == []
    assert await gateway.count("mandate", f"workflow_id = '{instance.workflow_id}' AND documents::text = '[]'") == 1
