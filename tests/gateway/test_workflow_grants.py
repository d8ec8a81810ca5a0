"""Grants under a workflow's mandate: each effect by itself, and nothing that the document does not contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.edge import ARTICLE, DRAFT, GRANT_KEYS, POST, PUBLISH, RETITLE, TRASH, UPDATE, EdgeUnderTest, later
from tests.gateway.test_governance import freeze, lift, set_policy

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import GrantRefused, GrantRequest, Mandate, StartWorkflow
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.ids import attempt_id, command_id
from trueup_common.contracts.resource import covers
from trueup_common.contracts.states import EffectClass, RiskLevel
from trueup_common.contracts.task import ExecuteTask, Operation, Target
from trueup_common.documents.read import read_document
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_gateway.core.grants import Facts, Refusal, counts, mint
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.policy import Answer, Question
from trueup_gateway.core.records import DecisionRow, MandateRow
from trueup_gateway.handler import GrantHandler
from trueup_gateway.policy import DEFAULT_TEXT, PolicySet
from trueup_gateway.rules import RuleBook
from trueup_gateway.store import GatewayTransaction

DOCUMENT = read_document(ARTICLE).document
BY_TYPE = {item.type: item for item in (DRAFT, TRASH, UPDATE, PUBLISH, POST, RETITLE)}
CONTENT = "c" * 64


def request_of(
    mandate: Mandate, workflow_id: str, command_type: str, *, step: str = "draft", generation: int = 1, **more: Any
) -> GrantRequest:
    """A proposal of one step of the case."""
    payload = more.pop("payload", {"slug": "x"})
    system, resource = more.pop("system", BY_TYPE[command_type].system), more.pop("resource", "post")
    name = command_id(workflow_id, step, generation)
    operation = Operation(
        command_id=name,
        workflow_id=more.pop("in_case", workflow_id),
        tenant=more.pop("tenant", "acme"),
        command_type=command_type,
        declaration_sha256=more.pop("declaration_sha256", BY_TYPE[command_type].sha256),
        target=Target(system=system, resource=resource),
        payload=payload,
        payload_sha256=more.pop("payload_sha256", digest(payload)),
        idempotency_key=f"{workflow_id}/{step}/{generation}",
    )
    task = ExecuteTask(
        operation=operation, fence=1, attempt_id=attempt_id(name, 1), start_by=later(30), lease_expires_at=later(60)
    )
    fields = {"definition": "article", "version": 1, "document_sha256": DOCUMENT.sha256, **more}
    return GrantRequest(mandate_id=mandate.mandate_id, task=task, **fields)


@dataclass
class Running:
    """A started case whose steps are proposed to the worker."""

    gateway: EdgeUnderTest
    start: StartWorkflow
    handler: GrantHandler
    capability_id: str

    def request(self, command_type: str = DRAFT.type, **more: Any) -> GrantRequest:
        return request_of(self.start.mandate, self.start.workflow_id, command_type, **more)

    async def propose(self, *requests: GrantRequest) -> list[ExecuteTask | GrantRefused]:
        async with self.gateway.gateway.store.transaction() as tx:
            return await self.propose_in(tx, *requests)

    async def propose_in(self, tx: GatewayTransaction, *requests: GrantRequest) -> list[ExecuteTask | GrantRefused]:
        """The same in a transaction of the caller's."""
        real = real_now()
        messages = [
            Message(
                id=f"msg_{number}",
                type="GrantRequest",
                subject="trueup.grant.request.acme",
                tenant=request.task.operation.tenant,
                source="orchestrator",
                time=real,
                data=request.model_dump_json().encode(),
            )
            for number, request in enumerate(requests)
        ]
        outgoing = await self.handler.handle(tx, Moment(real, real), messages)
        return [
            (ExecuteTask if item.message.type == "ExecuteTask" else GrantRefused).model_validate_json(item.message.data)
            for item in outgoing
        ]

    async def granted(self, request: GrantRequest) -> GrantClaims:
        (found,) = await self.propose(request)
        assert isinstance(found, ExecuteTask), found
        claims = GRANT_KEYS.verify(request.task.operation.target.system, found.grant)
        assert isinstance(claims, GrantClaims)
        return claims

    async def refused(self, request: GrantRequest, check: str, *, transient: bool = False) -> None:
        (found,) = await self.propose(request)
        assert isinstance(found, GrantRefused), found
        assert (found.check, found.transient) == (check, transient), found

    async def approve(self, name: str, **changes: Any) -> str:
        """An approval row of this case."""
        row = approval(self.start.workflow_id, name, **changes)
        async with self.gateway.gateway.store.transaction() as tx:
            await tx.save_approvals([], [row])
        return row.approval_id


def approval(workflow_id: str, name: str, /, **changes: Any) -> ApprovalRow:
    fields = {
        "approval_id": f"apr_{digest([workflow_id, name])[:32]}",
        "tenant": "acme",
        "kind": "workflow",
        "workflow_id": workflow_id,
        "step_id": "approve",
        "scope": "content:publish",
        "content_sha256": CONTENT,
        "binds": [CONTENT],
        "nonce": "n",
        "requested_by": "agent:publisher",
        "owner": "editors",
        "document_sha256": DOCUMENT.sha256,
        "status": "approved",
        "asked_at": real_now(),
        "expires_at": later(600),
        "reviewer": "operator:ed",
        **changes,
    }
    return ApprovalRow(**fields)


@pytest_asyncio.fixture
async def running(gateway: EdgeUnderTest, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    slug = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:90]
    capability = await gateway.start_capability(**getattr(request, "param", {}))
    response = await gateway.start(capability["capability"], slug, max_actions=2)
    assert response.status_code == 202, response.text
    start = StartWorkflow.model_validate_json(gateway.publisher.published[-1].message.data)
    handler = GrantHandler(rules=RuleBook(), catalog=gateway.gateway.catalog, keys=GRANT_KEYS)
    yield Running(gateway, start, handler, capability["capability_id"])


def publish(running: Running, approval_id: str | None, content: str = CONTENT, **more: Any) -> GrantRequest:
    payload = {"post_id": 7, "content_sha256": content}
    return running.request(
        PUBLISH.type, step="publish", resource="post/7", payload=payload, approval_id=approval_id, **more
    )


async def test_a_step_gets_its_grant(running: Running) -> None:
    """Audience, operation, payload and declaration of exactly this attempt, under the case's mandate.

    Requirements: G1, G5
    """
    claims = await running.granted(running.request())
    assert (claims.aud, claims.mandate) == ("adapter:wordpress", running.start.mandate.mandate_id)
    assert claims.declaration_sha256 == DRAFT.sha256 and claims.compensation is False


async def test_only_what_the_document_contains(running: Running) -> None:
    """Other types, documents, declarations, cases and tenants are refused, whatever the message says of itself.

    Requirements: G5, L3, T1
    """
    await running.refused(running.request(UPDATE.type), "command_type")
    await running.refused(running.request(document_sha256="0" * 64), "document")
    await running.refused(running.request(document_sha256=None), "document")
    await running.refused(running.request(in_case="wf_" + "0" * 32), "mandate")
    await running.refused(running.request(tenant="globex"), "mandate")
    await running.refused(running.request(declaration_sha256=UPDATE.sha256), "declaration")
    await running.refused(running.request(declaration_sha256="0" * 64), "declaration", transient=True)
    await running.refused(running.request(system="bench"), "declaration")
    await running.refused(running.request(POST.type), "command_type")


async def test_a_pivot_needs_the_approval_of_this_content(running: Running) -> None:
    """No approval, a pending, rejected or foreign one, another document or content: none of them is enough.

    Requirements: G5, S6
    """
    await running.refused(publish(running, None), "approval")
    await running.refused(publish(running, "apr_" + "0" * 32), "approval")
    for status in ("pending", "rejected", "expired", "superseded"):
        name = await running.approve(status, status=status)
        await running.refused(publish(running, name), "approval")
    foreign = await running.approve("foreign", workflow_id="wf_" + "0" * 32)
    await running.refused(publish(running, foreign), "approval")
    other_document = await running.approve("document", document_sha256="0" * 64)
    await running.refused(publish(running, other_document), "approval")
    good = await running.approve("good")
    await running.refused(publish(running, good, content="d" * 64), "approval")
    await running.refused(publish(running, good, payload_sha256="0" * 64), "payload_hash")
    claims = await running.granted(publish(running, good))
    assert claims.approval == good


async def test_effects_are_counted(running: Running) -> None:
    """Distinct forward operations; attempts of the same one and compensations cost nothing more. Also in one batch.

    Requirements: L3, G5
    """
    first, second, third = (running.request(step="draft", generation=number) for number in (1, 2, 3))
    found = await running.propose(first, second, first, third)
    assert [isinstance(item, ExecuteTask) for item in found] == [True, True, True, False]
    assert isinstance(found[3], GrantRefused) and found[3].check == "uses"
    await running.granted(second)
    await running.refused(third, "uses")
    await running.granted(
        running.request(TRASH.type, step="draft:undo", compensation=True, compensates_type=DRAFT.type)
    )
    mandate_id = running.start.mandate.mandate_id
    assert await running.gateway.count("effect", f"mandate_id = '{mandate_id}'") == 2


async def test_a_batch_reads_once_and_writes_once(running: Running) -> None:
    """What it rests on comes with the claim, and nothing is locked: no transaction stands around what is written.

    Requirements: B2
    """
    await running.granted(running.request())  # the rules of this epoch are known by now
    request = running.request(generation=2)
    message = Message(
        id="msg_1",
        type="GrantRequest",
        subject="trueup.grant.request.acme",
        tenant=request.task.operation.tenant,
        source="orchestrator",
        time=real_now(),
        data=request.model_dump_json().encode(),
    )
    async with running.gateway.gateway.store.transaction() as tx:
        running.handler.foresee(tx, [message])
        moment, _ = await tx.claim("gateway-grants", [message.id])
        outgoing = await running.handler.handle(tx, moment, [message])
        await tx.post(outgoing)
        assert [item.message.type for item in outgoing] == ["ExecuteTask"] and not tx.connection.begun


async def test_effects_counted_at_once_are_not_one_over(running: Running) -> None:
    """Two replicas decide on two effects beside each other: the one that commits later decides again.

    Requirements: L3, G5
    """
    first, second, third = (running.request(step="draft", generation=number) for number in (1, 2, 3))
    await running.granted(first)
    store = running.gateway.gateway.store
    with pytest.raises(VersionConflict):
        async with store.transaction() as later:
            assert isinstance((await running.propose_in(later, third))[0], ExecuteTask)
            await running.granted(second)
    await running.refused(third, "uses")


async def test_a_compensation_is_the_declared_one(running: Running) -> None:
    """It outlives a revocation, but undoes only what the mandate covers, and only as that type declares.

    Requirements: G5, S4
    """
    undo = {"step": "draft:undo", "compensation": True, "compensates_type": DRAFT.type}
    edge = running.gateway
    path = f"/v1/capabilities/{running.capability_id}/revoke"
    assert (await edge.client.post(path, headers=edge.headers())).status_code == 200
    await running.refused(running.request(), "revoked")
    assert (await running.granted(running.request(TRASH.type, **undo))).compensation is True
    await running.refused(running.request(UPDATE.type, **undo), "command_type")
    await running.refused(running.request(DRAFT.type, **undo), "command_type")
    await running.refused(running.request(TRASH.type, **{**undo, "compensates_type": None}), "command_type")
    await running.refused(running.request(TRASH.type, **{**undo, "compensates_type": POST.type}), "command_type")
    await running.refused(running.request(TRASH.type, **{**undo, "compensates_type": PUBLISH.type}), "command_type")


async def test_a_version_can_be_frozen(running: Running) -> None:
    """A freeze of the workflow's version holds its cases back until it is lifted, and nothing else.

    Requirements: G6
    """
    scope = {"definition": "article", "version": 1}
    assert (await freeze(running.gateway, "version-freeze", scope)).status_code == 201
    await running.refused(running.request(), "frozen", transient=True)
    forged = running.request(definition="other", version=9)
    await running.refused(forged, "frozen", transient=True)
    await running.granted(
        running.request(TRASH.type, step="draft:undo", compensation=True, compensates_type=DRAFT.type)
    )
    assert (await lift(running.gateway, "version-lift", {"scope": scope})).status_code == 200
    await running.granted(running.request())


async def test_policy_is_asked_at_each_effect(running: Running) -> None:
    """A policy that came since refuses the next effect of the running case.

    Requirements: G5, G6
    """
    await running.granted(running.request())
    stop = DEFAULT_TEXT + (
        '@id("none") forbid (principal, action == Action::"execute", resource) '
        'when { context.command_type == "wordpress.publish_post" };'
    )
    good = await running.approve("policy")
    assert (await set_policy(running.gateway, "effect-stop", stop)).status_code == 200
    await running.refused(publish(running, good), "policy")
    assert (await set_policy(running.gateway, "effect-back", DEFAULT_TEXT)).status_code == 200
    await running.granted(publish(running, good))


@pytest.mark.parametrize("running", [{"resource": {"system": "wordpress", "resource": "post/7"}}], indirect=True)
async def test_a_decision_may_restrict_a_system(running: Running) -> None:
    """Effects on that system are held to its pattern.

    Requirements: G3, G5
    """
    await running.refused(running.request(resource="post/8"), "resource")
    await running.granted(running.request(resource="post/7"))


# Properties, over the pure decision


NOW = real_now()
WORKFLOW = "wf_" + "1" * 32
POLICY = PolicySet.default()
ANSWERS: dict[Question, Answer] = {}


def ask(question: Question) -> Answer:
    if question not in ANSWERS:
        ANSWERS[question] = POLICY.ask(question)
    return ANSWERS[question]


DECISION = DecisionRow(
    decision_id="dec_1",
    tenant="acme",
    subject="agent:publisher",
    roles=["agent"],
    command_types=list(DOCUMENT.command_types),
    workflow="article",
    definition_version=1,
    document_sha256=DOCUMENT.sha256,
    system="*",
    resource="*",
    purpose="p",
    declarations={},
    effect_class_max=EffectClass.PIVOT,
    outcome="approved",
    risk_score=80,
    risk_level=RiskLevel.CRITICAL,
    risk_factors=[],
    risks={DRAFT.type: {"score": 20, "level": "low"}, PUBLISH.type: {"score": 80, "level": "critical"}},
    policy_version=1,
    policy_sha256=POLICY.sha256,
    determining_policies=[],
    created_at=NOW,
    expires_at=NOW + timedelta(hours=1),
)
MANDATE = MandateRow(
    mandate_id="man_1",
    tenant="acme",
    subject="agent:publisher",
    decision_id="dec_1",
    capability_id="cap_1",
    command_types=list(DOCUMENT.command_types),
    system="*",
    resource="*",
    effect_class_max=EffectClass.PIVOT,
    effects_max=3,
    document_sha256=DOCUMENT.sha256,
    risk=RiskLevel.CRITICAL,
    policy_sha256=POLICY.sha256,
    expires_at=NOW + timedelta(days=2),
    workflow_id=WORKFLOW,
    definition="article",
    version=1,
    declarations={item.type: item.sha256 for item in (DRAFT, PUBLISH, TRASH)},
    created_at=NOW,
)
_CARRIED = Mandate(**{name: getattr(MANDATE, name) for name in Mandate.model_fields})


@dataclass(frozen=True)
class Attempted:
    """Anything that a broken or hostile orchestrator might propose, and rows in any state."""

    request: GrantRequest
    facts: Facts
    seconds: int
    effects: frozenset[str] = field(default_factory=frozenset)


@st.composite
def attempts(draw: st.DrawFn) -> Attempted:
    command_type = draw(st.sampled_from(sorted(BY_TYPE)))
    payload = {"content_sha256": draw(st.sampled_from([CONTENT, "d" * 64]))}
    name = draw(st.none() | st.just(approval(WORKFLOW, "a").approval_id))
    request = request_of(
        _CARRIED,
        WORKFLOW,
        command_type,
        step=draw(st.sampled_from(["draft", "publish"])),
        generation=draw(st.integers(1, 3)),
        payload=payload,
        resource=draw(st.sampled_from(["post", "post/7", "other"])),
        in_case=draw(st.sampled_from([WORKFLOW, "wf_" + "2" * 32])),
        document_sha256=draw(st.sampled_from([DOCUMENT.sha256, DOCUMENT.sha256, "0" * 64, None])),
        approval_id=name,
        compensation=draw(st.booleans()),
        compensates_type=draw(st.none() | st.sampled_from(sorted(BY_TYPE))),
    )
    row = draw(
        st.none()
        | st.builds(
            lambda status, binds, case: approval(
                case, "a", approval_id=name or "apr_x", status=status, binds=binds, content_sha256=digest(binds)
            ),
            st.sampled_from(["approved", "approved", "pending", "rejected"]),
            st.sampled_from([[CONTENT], [CONTENT, "text"], ["d" * 64]]),
            st.sampled_from([WORKFLOW, "wf_" + "2" * 32]),
        )
    )
    used = draw(st.integers(0, 4))
    effects = frozenset(command_id(WORKFLOW, "used", number) for number in range(used))
    undone = MANDATE.declarations.get(request.compensates_type or "")
    facts = Facts(
        mandate=MANDATE.evolve(
            revoked_at=draw(st.none() | st.just(NOW)),
            within_system=draw(st.none() | st.just("wordpress")),
            within_resource="post/*",
        ),
        decision=DECISION.evolve(revoked_at=draw(st.none() | st.just(NOW))),
        capability_revoked=draw(st.booleans()),
        declaration=draw(st.sampled_from([BY_TYPE[command_type], BY_TYPE[command_type], UPDATE, None])),
        freeze=draw(st.none() | st.just("frz_1")),
        has_key=draw(st.booleans()),
        policy_sha256=POLICY.sha256,
        epoch=1,
        undoes=next((item for item in BY_TYPE.values() if item.sha256 == undone), None),
        effects=effects,
        approval=row,
    )
    return Attempted(request, facts, draw(st.sampled_from([0, 86400, 3 * 86400])))


@settings(max_examples=400, deadline=None)
@given(attempts())
def test_nothing_outside_of_the_mandate_is_ever_granted(attempted: Attempted) -> None:
    """Whatever is proposed under whatever rows: a grant implies every bound that the mandate states.

    Requirements: G5, L3, S6
    """
    request, facts = attempted.request, attempted.facts
    now = NOW + timedelta(seconds=attempted.seconds)
    found = mint(request, facts, now=now, real=real_now(), ask=ask)
    if isinstance(found, Refusal):
        return
    mandate, decision, operation = facts.mandate, facts.decision, request.task.operation
    assert mandate is not None and decision is not None and facts.freeze is None and facts.has_key
    assert operation.workflow_id == WORKFLOW and request.document_sha256 == DOCUMENT.sha256
    assert MANDATE.declarations[operation.command_type] == operation.declaration_sha256 == found.declaration_sha256
    assert (found.op, found.payload_sha256) == (operation.command_id, digest(operation.payload))
    if request.compensation:
        assert (request.compensates_type, operation.command_type) == (DRAFT.type, TRASH.type)
        assert not counts(request, facts)
        return
    assert operation.command_type in DOCUMENT.command_types and now < mandate.expires_at
    assert mandate.revoked_at is None and decision.revoked_at is None and not facts.capability_revoked
    assert mandate.within_system is None or covers("post/*", operation.target.resource)
    assert len(facts.effects | {operation.command_id}) <= mandate.effects_max
    if operation.command_type == PUBLISH.type or request.approval_id is not None:
        row = facts.approval
        assert row is not None and row.status == "approved" and row.workflow_id == WORKFLOW
        assert operation.payload["content_sha256"] in row.binds and found.approval == row.approval_id


def test_a_sound_proposal_is_granted() -> None:
    """The property above is not empty: the plain case of each kind gets its grant."""
    facts = Facts(MANDATE, DECISION, False, DRAFT, None, True, POLICY.sha256, 1)
    sound = request_of(_CARRIED, WORKFLOW, DRAFT.type)
    assert isinstance(mint(sound, facts, now=NOW, real=real_now(), ask=ask), GrantClaims)
    row = approval(WORKFLOW, "a")
    pivot = request_of(
        _CARRIED,
        WORKFLOW,
        PUBLISH.type,
        step="publish",
        payload={"content_sha256": CONTENT},
        approval_id=row.approval_id,
    )
    standing = Facts(MANDATE, DECISION, False, PUBLISH, None, True, POLICY.sha256, 1, approval=row)
    assert isinstance(mint(pivot, standing, now=NOW, real=real_now(), ask=ask), GrantClaims)


def test_effects_are_counted_once_each() -> None:
    """A new forward effect counts, another attempt of a counted one does not, and the last one allowed is the last.

    Requirements: G5, L3
    """
    asked = request_of(_CARRIED, WORKFLOW, DRAFT.type)
    own = asked.task.operation.command_id
    used = frozenset(command_id(WORKFLOW, "used", number) for number in range(MANDATE.effects_max - 1))
    facts = Facts(MANDATE, DECISION, False, DRAFT, None, True, POLICY.sha256, 1, effects=used)
    assert counts(asked, facts)
    assert isinstance(mint(asked, facts, now=NOW, real=real_now(), ask=ask), GrantClaims)
    again = replace(facts, effects=used | {own})
    assert not counts(asked, again)
    assert isinstance(mint(asked, again, now=NOW, real=real_now(), ask=ask), GrantClaims)
    full = replace(facts, effects=used | {command_id(WORKFLOW, "used", 99)})
    assert counts(asked, full)
    assert isinstance(mint(asked, full, now=NOW, real=real_now(), ask=ask), Refusal)


def test_a_corrected_version_is_granted_for_where_a_decision_let_the_case_go_on_by_it() -> None:
    """By the document of its start, or by one that an operator's decision named; by no other.

    Requirements: O7, G5
    """
    corrected = MANDATE.evolve(documents=["e" * 64])
    asked = request_of(_CARRIED, WORKFLOW, DRAFT.type, document_sha256="e" * 64)
    for mandate, granted in ((MANDATE, False), (corrected, True)):
        facts = Facts(mandate, DECISION, False, DRAFT, None, True, POLICY.sha256, 1)
        found = mint(asked, facts, now=NOW, real=real_now(), ask=ask)
        assert isinstance(found, GrantClaims) is granted
        if isinstance(found, Refusal):
            assert found.check == "document"


def test_an_answer_with_errors_permits_nothing() -> None:
    """An engine that says Allow beside an error has not said Allow.

    Requirements: G2, G5
    """
    facts = Facts(MANDATE, DECISION, False, DRAFT, None, True, POLICY.sha256, 1)
    asked = request_of(_CARRIED, WORKFLOW, DRAFT.type)

    def failing(question: Question) -> Answer:
        return Answer(True, ("permit",), ("a forbid could not be evaluated",))

    found = mint(asked, facts, now=NOW, real=real_now(), ask=failing)
    assert isinstance(found, Refusal) and found.check == "policy"
