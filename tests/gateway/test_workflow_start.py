"""Starting workflows: decided on as a whole, accepted once per start key, under a mandate as wide as the document."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest
from tests.gateway.asks import message_of, told
from tests.gateway.edge import ARTICLE, DRAFT, PUBLISH, TRASH, EdgeUnderTest, draft, edge
from tests.gateway.test_governance import ADMIN, VIEWER, freeze, lift, set_policy
from tests.gateway.test_refusals import problem
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import CaseChanged, StartWorkflow
from trueup_common.contracts.journal import InstanceRow
from trueup_common.contracts.states import InstanceStatus
from trueup_common.documents.read import read_document
from trueup_common.runtime.ports import Moment
from trueup_gateway.core import projection
from trueup_gateway.handler import ViewHandler
from trueup_gateway.policy import DEFAULT_TEXT
from trueup_gateway.store import Reader

DOCUMENT = read_document(ARTICLE).document


def started(gateway: EdgeUnderTest) -> StartWorkflow:
    """The latest message."""
    message = gateway.publisher.published[-1].message
    assert message.type == "StartWorkflow"
    return StartWorkflow.model_validate_json(message.data)


async def ended(gateway: EdgeUnderTest, workflow_id: str, status: InstanceStatus) -> None:
    """Project the end of a case, as the worker does."""
    view = await gateway.gateway.reads.case(Reader("acme"), workflow_id)
    assert view is not None
    instance: InstanceRow = view.instance.evolve(
        state_version=view.instance.state_version + 1, status=status, closed_at=view.created_at
    )
    async with gateway.gateway.store.transaction() as tx:
        await tx.save_views(cases=projection.case_views([told(CaseChanged(instance=instance, operations=()))]))


async def test_a_workflow_is_decided_on_as_a_whole(gateway: EdgeUnderTest) -> None:
    """Each type at its own risk; a pivot that the document lets a person approve is no obstacle but an obligation.

    Requirements: G2, L3
    """
    response = await gateway.intent(resource={"system": "workflow", "resource": "article/*"})
    assert response.status_code == 201, response.text
    decision = response.json()
    assert (decision["outcome"], decision["risk"]["level"]) == ("approved", "critical")
    assert decision["obligations"] == [
        {"kind": "approval", "scope": "content:publish", "step": "approve", "before": "publish"}
    ]
    path = f"/v1/decisions/{decision['decision_id']}"
    trace = (await gateway.client.get(path, headers=gateway.headers())).json()
    assert trace["action"] == {
        "command_types": ["wordpress.create_draft", "wordpress.publish_post"],
        "workflow": "article",
        "version": 1,
        "document_sha256": DOCUMENT.sha256,
    }
    assert trace["risks"][DRAFT.type]["level"] in ("low", "medium") and trace["risks"][PUBLISH.type]["score"] >= 60
    unknown_role = await gateway.intent(roles=("viewer",))
    assert unknown_role.json()["outcome"] == "denied"


@pytest.mark.parametrize(
    ("more", "status", "slug"),
    [
        ({"workflow": "nothing"}, 422, "payload-invalid"),
        ({"version": 9}, 422, "payload-invalid"),
        ({"command_types": ["wordpress.create_draft"]}, 422, "payload-invalid"),
        ({"resource": {"system": "elsewhere", "resource": "*"}}, 422, "unknown-system"),
        ({"resource": {"system": "bench", "resource": "*"}}, 422, "payload-invalid"),
        ({"tenant": "nobody"}, 422, "unknown-system"),
    ],
)
async def test_an_intent_that_cannot_be_is_refused(
    gateway: EdgeUnderTest, more: dict[str, Any], status: int, slug: str
) -> None:
    """Unknown workflows and versions, other types than the document's, systems that it does not use."""
    problem(await gateway.intent(**more), status, slug)


async def test_a_start_makes_one_case(gateway: EdgeUnderTest) -> None:
    """The message carries the whole document, pinned declarations and a mandate that covers the document and no more.

    Requirements: L2, L3, X1
    """
    capability = await gateway.start_capability()
    response = await gateway.start(
        capability["capability"], "one", purpose="publish", source_version="v3", max_actions=7, correlation_id="order"
    )
    assert response.status_code == 202, response.text
    body = response.json()
    assert body["command_id"] is None and body["state"] == "RECEIVED"
    assert response.headers["location"] == body["links"]["self"] == f"/v1/workflows/{body['workflow_id']}"
    start = started(gateway)
    message = gateway.publisher.published[-1].message
    assert (message.id, message.subject) == (body["workflow_id"], "trueup.cmd.acme")
    assert (start.workflow_id, start.saga_id, start.start_key) == (body["workflow_id"], body["saga_id"], "one")
    assert start.document == DOCUMENT.dumped() and start.document_sha256 == DOCUMENT.sha256
    assert start.declarations == {item.type: item.sha256 for item in (DRAFT, PUBLISH, TRASH)}
    assert start.input == {"slug": "one", "title": "A title"} and start.input_sha256 == digest(start.input)
    assert (start.purpose, start.source_version, start.actions_max) == ("publish", "v3", 7)
    mandate = start.mandate
    assert mandate.command_types == DOCUMENT.command_types and mandate.document_sha256 == DOCUMENT.sha256
    assert (mandate.effects_max, mandate.effect_class_max.value) == (7, "PIVOT")
    assert mandate.expires_at == start.deadline_at == start.accepted_at + DOCUMENT.lifetime
    assert await gateway.count("outbox", f"message_id = '{message.id}'") == 1
    assert await gateway.count("capability", f"capability_id = '{capability['capability_id']}' AND uses_left = 4") == 1


async def test_a_start_may_wait_for_the_end(gateway: EdgeUnderTest) -> None:
    """`Prefer: wait` answers with the case once it is over: by the word of the worker, and without it by looking.

    Where it is not over in time, the answer is that of any start; a repetition waits for the case that it stands for.

    Requirements: L2, F1
    """
    capability = (await gateway.start_capability())["capability"]

    def asked(key: str, seconds: int) -> Awaitable[httpx.Response]:
        body = {"definition": "article", "input": {"slug": key, "title": "A title"}}
        headers = {
            "Authorization": f"Bearer {capability}",
            "Idempotency-Key": f'"{key}"',
            "Prefer": f"wait={seconds}",
        }
        return gateway.client.post("/v1/workflows", json=body, headers=headers)

    async def end(nudge: bool) -> None:
        before = len(gateway.publisher.published)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(gateway.publisher.published) == before:
                await asyncio.sleep(0.01)
        start = started(gateway)
        view = await gateway.gateway.reads.case(Reader("acme"), start.workflow_id)
        assert view is not None
        over = view.instance.evolve(state_version=9, status=InstanceStatus.CLOSED, closed_at=view.created_at)
        worker, now = ViewHandler(gateway.gateway.answers.cases_over if nudge else lambda _: None), view.created_at
        message = message_of(CaseChanged(instance=over, operations=()), "acme")
        async with gateway.gateway.store.transaction() as tx:
            await worker.handle(tx, Moment(now, now), [message])
        await worker.settled([message])

    for nudge in (True, False):
        key = f"waits-{nudge}".lower()
        response, _ = await asyncio.gather(asked(key, 10), end(nudge))
        assert response.status_code == 200, response.text
        assert response.json()["state"] == response.json()["status"] == "CLOSED"
        assert response.headers["preference-applied"] == "wait=10"
        again = await asked(key, 10)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.json()["workflow_id"] == response.json()["workflow_id"]
    late = await asked("waits-long", 1)
    assert late.status_code == 202 and late.json()["state"] == "RUNNING"
    assert not gateway.gateway.answers._cases


async def test_a_case_is_shown_at_once(gateway: EdgeUnderTest) -> None:
    """RUNNING with every step pending, before the orchestrator has said anything; not to another tenant.

    Requirements: L2, T1
    """
    capability = (await gateway.start_capability())["capability"]
    body = (await gateway.start(capability, "shown")).json()
    case = (await gateway.client.get(body["links"]["self"], headers=gateway.headers(**VIEWER))).json()
    assert (case["status"], case["definition"], case["version"], case["sha256"]) == (
        "RUNNING",
        "article",
        1,
        DOCUMENT.sha256,
    )
    assert case["object"] == {"type": "article", "id": "shown"}
    assert [(step["id"], step["state"]) for step in case["steps"]] == [
        ("draft", "PENDING"),
        ("approve", "PENDING"),
        ("publish", "PENDING"),
    ]
    listed = await gateway.client.get("/v1/workflows?object=article/shown", headers=gateway.headers(**VIEWER))
    assert [item["workflow_id"] for item in listed.json()["items"]] == [body["workflow_id"]]
    foreign = gateway.headers(sub="operator:eve", tenant="globex", roles=("operator",))
    problem(await gateway.client.get(body["links"]["self"], headers=foreign), 404, "not-found")


async def test_a_repetition_gets_the_same_case(gateway: EdgeUnderTest) -> None:
    """202 while it is open, 200 once it is over; another input is refused, and no use is consumed.

    Requirements: L2, I1
    """
    capability = (await gateway.start_capability(wanted={"max_uses": 1}))["capability"]
    first = (await gateway.start(capability, "again")).json()
    second = await gateway.start(capability, "again", purpose="said differently")
    assert second.status_code == 202 and second.headers["idempotent-replayed"] == "true"
    assert (second.json()["workflow_id"], second.json()["state"]) == (first["workflow_id"], "RUNNING")
    problem(await gateway.start(capability, "again", slug="other"), 422, "idempotency-key-reused")
    problem(await gateway.start(capability, "fresh"), 403, "forbidden", "uses")
    await ended(gateway, first["workflow_id"], InstanceStatus.CLOSED)
    over = await gateway.start(capability, "again")
    assert over.status_code == 200 and over.headers["idempotent-replayed"] == "true"
    assert (over.json()["workflow_id"], over.json()["status"]) == (first["workflow_id"], "CLOSED")


async def test_another_agents_case_is_not_shown_at_a_repetition(gateway: EdgeUnderTest) -> None:
    """The same start key is the same case whoever asks; another agent learns its names and its state alone.

    Requirements: L2, I1, T1
    """
    ours = (await gateway.start_capability())["capability"]
    theirs = (await gateway.start_capability(sub="agent:other"))["capability"]
    first = (await gateway.start(ours, "theirs-too")).json()
    assert (await gateway.start(theirs, "theirs-too")).json() == {**first, "state": "RUNNING"}
    await ended(gateway, first["workflow_id"], InstanceStatus.CLOSED)
    over = await gateway.start(theirs, "theirs-too")
    assert (over.status_code, over.headers["idempotent-replayed"]) == (200, "true")
    assert over.json() == {**first, "state": "CLOSED"}
    assert (await gateway.start(ours, "theirs-too")).json()["object"] == {"type": "article", "id": "theirs-too"}


async def test_a_revision_follows_a_case_that_is_over(gateway: EdgeUnderTest) -> None:
    """`revise` returns the open case, and after its end starts a revision that is linked to it, under the same key.

    Requirements: L2
    """
    capability = (await gateway.start_capability())["capability"]
    first = (await gateway.start(capability, "revised", source_version="v1")).json()
    while_open = await gateway.start(capability, "revised", source_version="v1", on_terminal="revise")
    assert while_open.json()["workflow_id"] == first["workflow_id"]
    problem(
        await gateway.start(capability, "revised", source_version="v2", on_terminal="revise"),
        422,
        "idempotency-key-reused",
    )
    await ended(gateway, first["workflow_id"], InstanceStatus.COMPENSATED)
    second = await gateway.start(capability, "revised", source_version="v2", on_terminal="revise")
    assert second.status_code == 202 and second.json()["workflow_id"] != first["workflow_id"], second.text
    start = started(gateway)
    assert (start.parent_id, start.revision, start.start_key) == (first["workflow_id"], 2, "revised")
    same = await gateway.start(capability, "revised", source_version="v2")
    assert same.json()["workflow_id"] == second.json()["workflow_id"]
    case = (await gateway.client.get(second.json()["links"]["self"], headers=gateway.headers())).json()
    assert (case["parent_id"], case["revision"]) == (first["workflow_id"], 2)


async def test_of_many_starts_at_once_one_is_accepted(gateway_database: Database) -> None:
    """Two replicas, one key, two capabilities: one case, and everyone gets its id.

    Requirements: L2, I2
    """
    async with edge(gateway_database) as left, edge(gateway_database) as right:
        capabilities = [(await left.start_capability())["capability"] for _ in range(2)]
        answers = await asyncio.gather(
            *(side.start(capability, "race") for _ in range(4) for side in (left, right) for capability in capabilities)
        )
        accepted = [answer.json() for answer in answers if answer.status_code == 202]
        assert len({body["workflow_id"] for body in accepted}) == 1
        assert all(answer.status_code in (202, 409) for answer in answers)
        assert len(left.publisher.published) + len(right.publisher.published) == 1
        assert await left.count("mandate", f"workflow_id = '{accepted[0]['workflow_id']}'") == 1


async def test_what_does_not_fit_is_refused(gateway: EdgeUnderTest) -> None:
    """Input outside of the schema, unknown versions, stages that are not built, inputs too large: nothing is kept.

    Requirements: F1, L3
    """
    capability = (await gateway.start_capability())["capability"]
    before = await gateway.rows()
    refused = await gateway.start(capability, "bad", input={"slug": "NO", "more": 1})
    pointers = {item["pointer"] for item in problem(refused, 422, "payload-invalid")["errors"]}
    assert "/input/slug" in pointers and "/input" in pointers
    problem(await gateway.start(capability, "bad", version=7), 404, "not-found")
    problem(await gateway.start(capability, "bad", stage="draft_only"), 422, "payload-invalid")
    problem(await gateway.start(capability, "bad", stage="anything"), 422, "payload-invalid")
    problem(await gateway.start(capability, "bad", max_actions=0), 422, "payload-invalid")
    assert await gateway.rows() == before


async def test_a_capability_opens_one_door(gateway: EdgeUnderTest) -> None:
    """A workflow's starts no command, a command's starts no workflow, and a narrowed one only its object and input.

    Requirements: G3, G4
    """
    for_workflow = (await gateway.start_capability())["capability"]
    problem(await gateway.submit(for_workflow, "door", draft("door")), 403, "forbidden", "scope")
    for_command = (await gateway.capability())["capability"]
    problem(await gateway.start(for_command, "door"), 403, "forbidden", "scope")
    where = {"system": "workflow", "resource": "article/*"}
    narrowed = (await gateway.start_capability(resource=where, wanted={"resource": "article/mine"}))["capability"]
    problem(await gateway.start(narrowed, "door", slug="yours"), 403, "forbidden", "resource")
    assert (await gateway.start(narrowed, "door", slug="mine")).status_code == 202
    bound = {"payload_sha256": digest({"slug": "bound", "title": "A title"})}
    to_input = (await gateway.start_capability(wanted=bound))["capability"]
    problem(await gateway.start(to_input, "unbound"), 403, "forbidden", "payload_hash")
    assert (await gateway.start(to_input, "bound")).status_code == 202
    decision = await gateway.start_capability()
    body = {"decision_id": decision["decision_id"], "command_types": ["wordpress.create_draft"]}
    response = await gateway.client.post("/v1/capabilities", json=body, headers=gateway.headers())
    problem(response, 403, "forbidden", "command_type")


async def test_governance_holds_a_start_back(gateway: EdgeUnderTest) -> None:
    """Freezes of the workflow or of a system that it uses, a revoked decision, and a policy that changed.

    Requirements: G4, G6
    """
    made = await gateway.start_capability()
    capability = made["capability"]
    for number, scope in enumerate(({"definition": "article", "version": 1}, {"command_type": PUBLISH.type})):
        assert (await freeze(gateway, f"start-freeze-{number}", scope)).status_code == 201
        problem(await gateway.start(capability, "governed"), 403, "forbidden", "frozen")
        assert (await lift(gateway, f"start-lift-{number}", {"scope": scope})).status_code == 200
    other = {"definition": "article", "version": 2}
    assert (await freeze(gateway, "start-freeze-other", other)).status_code == 201
    assert (await gateway.start(capability, "governed")).status_code == 202
    assert (await lift(gateway, "start-lift-other", {"scope": other})).status_code == 200
    stop = DEFAULT_TEXT + '@id("none") forbid (principal, action == Action::"execute", resource);'
    assert (await set_policy(gateway, "start-stop", stop)).status_code == 200
    problem(await gateway.start(capability, "governed-2"), 403, "forbidden", "policy")
    assert (await set_policy(gateway, "start-back", DEFAULT_TEXT)).status_code == 200
    path = f"/v1/decisions/{made['decision_id']}/revoke"
    assert (await gateway.client.post(path, json={"reason": "x"}, headers=gateway.headers())).status_code == 200
    problem(await gateway.start(capability, "governed"), 403, "forbidden", "revoked")


async def test_another_version_needs_another_decision(gateway: EdgeUnderTest) -> None:
    """What was decided is the document; a newer version that came since is not covered by it.

    Requirements: G3, L3
    """
    capability = (await gateway.start_capability())["capability"]
    second = ARTICLE.replace("version: 1", "version: 2").replace("Publish an article", "Publish it")
    headers = {**gateway.headers(**ADMIN), "Idempotency-Key": "article-2"}
    response = await gateway.client.post("/v1/definitions", json={"document": second}, headers=headers)
    assert response.status_code == 201, response.text
    problem(await gateway.start(capability, "versions"), 403, "forbidden", "decision")
    assert (await gateway.start(capability, "versions", version=1)).status_code == 202
    newest = (await gateway.start_capability())["capability"]
    assert (await gateway.start(newest, "versions-2")).status_code == 202
    assert started(gateway).version == 2
    retiring = {**gateway.headers(**ADMIN), "Idempotency-Key": "retire-article-2"}
    problem(await gateway.client.post("/v1/definitions/article/2/retire", headers=retiring), 409, "conflict")
