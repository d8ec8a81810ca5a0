"""Approvals: the row arbitrates between person, timer and orchestrator; a 200 is the truth, and a refusal is exact."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.asks import (
    CONTENT,
    EDITOR,
    approval,
    ask,
    asked_of,
    business_now,
    changed,
    decide,
    decided,
    open_approval,
    running_case,
)
from tests.gateway.edge import EdgeUnderTest, draft
from tests.gateway.test_refusals import problem
from tests.servers import Database

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import ApprovalAsked
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.states import InstanceStatus
from trueup_common.runtime.host import Unprocessable
from trueup_gateway.core.approval import covers_scope

ROUNDS, SET_UP_AT_ONCE, GROUP = 1000, 200, 8
Group = list[tuple[ApprovalAsked, Any]]


async def told(gateway: EdgeUnderTest) -> list[Any]:
    """The ends that the API told, once its sending is done."""
    await asyncio.gather(*gateway.gateway.sending)
    return decided(gateway.publisher.published)


def conflict(response: httpx.Response, reason: str) -> None:
    body = problem(response, 409, "conflict")
    assert body["reason"] == reason, body


async def test_an_approval_is_read_and_given_to_exactly_this_content(gateway: EdgeUnderTest) -> None:
    """The reviewer sees values, hash, scope, expiry and who asked; the answer binds them, with the decision behind it.

    Requirements: S6, L10
    """
    instance, shown = await open_approval(gateway)
    assert (
        shown["status"] == "pending" and shown["binds"] == [CONTENT] and shown["summary"] == {"title": "Article 0028"}
    )
    assert (shown["scope"], shown["requested_by"], shown["state_version"]) == ("content:publish", "agent:publisher", 3)
    response = await decide(gateway, shown)
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["reviewer"], body["content_sha256"]) == ("approved", "operator:editor", CONTENT)
    assert body["decided_at"] and body["reason"] == "read"
    (end,) = await told(gateway)
    assert (end.outcome, end.reviewer, end.content_sha256) == ("approved", "operator:editor", CONTENT)
    assert (end.workflow_id, end.step_id, end.decision_id) == (instance.workflow_id, "approval", body["decision_id"])
    trace = await gateway.client.get(f"/v1/decisions/{body['decision_id']}", headers=gateway.headers(**AUDITOR))
    assert trace.json()["determining_policies"] == ["approvers-review-what-their-scopes-cover"]
    assert trace.json()["scopes"] == ["content:publish"] and trace.json()["subject"] == "operator:editor"


AUDITOR = {"sub": "operator:audit", "roles": ("auditor",)}


async def test_a_second_click_has_no_second_effect(gateway: EdgeUnderTest) -> None:
    """The same answer again, under the same key, another key, or at the same moment, is the same 200; one end is told.

    Requirements: I5
    """
    _, shown = await open_approval(gateway)
    both = await asyncio.gather(*(decide(gateway, shown, key=key) for key in ("twice", "twice", "other")))
    assert {response.status_code for response in both} == {200}
    assert len({response.text for response in both}) == 1
    again = await decide(gateway, shown, key="twice")
    assert again.status_code == 200 and again.headers["idempotent-replayed"] == "true"
    assert len(await told(gateway)) == 1
    where = f"approval_id = '{shown['approval_id']}'"
    assert await gateway.count("outbox", f"message_id LIKE '{shown['approval_id']}%'") == 1
    assert await gateway.count("approval", f"{where} AND status = 'approved'") == 1
    assert await gateway.count("authorization_decision", f"resource = 'approval/{shown['approval_id']}'") == 1


async def test_another_answer_changes_nothing(gateway: EdgeUnderTest) -> None:
    """Rejecting what is approved, another reviewer, and another body under the same key are refused.

    Requirements: I5, L10
    """
    _, shown = await open_approval(gateway)
    assert (await decide(gateway, shown, key="one-1")).status_code == 200
    conflict(await decide(gateway, shown, "reject"), "decided")
    second = {**EDITOR, "sub": "operator:second"}
    conflict(await decide(gateway, shown, who=second), "decided")
    problem(await decide(gateway, shown, key="one-1", reason="other"), 422, "idempotency-key-reused")
    assert [end.outcome for end in await told(gateway)] == ["approved"]


@pytest.mark.parametrize(
    ("who", "check"),
    [
        ({"sub": "operator:editor", "roles": ("admin", "operator", "auditor"), "scopes": ("content:publish",)}, "role"),
        ({"sub": "operator:editor", "roles": ("approver",), "scopes": ()}, "scope"),
        (
            {"sub": "operator:editor", "roles": ("approver",), "scopes": ("content", "site:p4", "content:draft")},
            "scope",
        ),
        ({"sub": "agent:publisher", "roles": ("agent", "approver"), "scopes": ("*",)}, "approval"),
        ({"sub": "agent:other", "roles": ("approver",), "scopes": ("*",)}, "approval"),
    ],
    ids=["admin-is-no-approver", "no-scope", "other-scopes", "the-agent-itself", "another-agent"],
)
async def test_who_is_not_entitled_is_refused(gateway: EdgeUnderTest, who: dict[str, Any], check: str) -> None:
    """Role, scope and being a person are each needed; `admin` never implies approver.

    Requirements: L10
    """
    _, shown = await open_approval(gateway)
    before = await gateway.rows()
    problem(await decide(gateway, shown, who=who), 403, "forbidden", check)
    assert await gateway.rows() == before
    assert (await approval(gateway, shown["approval_id"]))["status"] == "pending"


@pytest.mark.parametrize("where", ["asked", "case"])
async def test_whoever_asked_cannot_review(gateway: EdgeUnderTest, where: str) -> None:
    """Separation of duties: a person whose request or case it is does not approve it, whatever their roles.

    Requirements: L10
    """
    person = {"sub": "operator:author", "roles": ("agent", "approver"), "scopes": ("*",)}
    instance = await running_case(gateway, subject="operator:author" if where == "case" else "agent:x")
    asked = await asked_of(gateway, instance, requested_by="operator:author" if where == "asked" else "agent:x")
    await ask(gateway, asked)
    shown = await approval(gateway, asked.approval_id)
    problem(await decide(gateway, shown, who=person), 403, "forbidden", "approval")
    assert (await decide(gateway, shown)).status_code == 200


async def test_the_policy_in_force_has_the_last_word(gateway: EdgeUnderTest) -> None:
    """A policy set that does not admit approvals stops them, also for an entitled reviewer.

    Requirements: L10
    """
    from tests.gateway.test_governance import set_policy

    from trueup_gateway.policy import DEFAULT_TEXT

    _, shown = await open_approval(gateway)
    closed = DEFAULT_TEXT + '\n@id("nobody") forbid (principal, action == Action::"approve", resource);'
    assert (await set_policy(gateway, new_id("msg"), closed)).status_code == 200
    problem(await decide(gateway, shown), 403, "forbidden", "policy")
    assert (await set_policy(gateway, new_id("msg"), DEFAULT_TEXT)).status_code == 200
    assert (await decide(gateway, shown)).status_code == 200


async def test_a_changed_hash_or_nonce_approves_nothing(gateway: EdgeUnderTest) -> None:
    """Only what was shown can be approved; the refusal does not tell what would be right.

    Requirements: S6, L10
    """
    _, shown = await open_approval(gateway)
    wrong_hash = await decide(gateway, shown, content_sha256="e" * 64)
    conflict(wrong_hash, "content")
    assert CONTENT not in wrong_hash.text
    wrong_nonce = await decide(gateway, shown, nonce="guessed")
    conflict(wrong_nonce, "nonce")
    assert shown["nonce"] not in wrong_nonce.text
    assert (await approval(gateway, shown["approval_id"]))["status"] == "pending" and await told(gateway) == []


async def test_a_new_question_voids_the_one_before(gateway: EdgeUnderTest) -> None:
    """Changed content asks again: the old nonce approves nothing, and an approval of the old content is void.

    Requirements: S6, L10
    """
    instance, first = await open_approval(gateway)
    second = await asked_of(gateway, instance, content_sha256="f" * 64, state_version=5)
    (end,) = await ask(gateway, second)
    assert (end.approval_id, end.outcome) == (first["approval_id"], "withdrawn")
    conflict(await decide(gateway, first), "superseded")
    shown = await approval(gateway, second.approval_id)
    assert (await decide(gateway, shown)).status_code == 200
    third = await asked_of(gateway, instance, content_sha256="a" * 64, state_version=7)
    assert await ask(gateway, third) == []
    assert (await approval(gateway, second.approval_id))["status"] == "superseded"
    late = await asked_of(gateway, instance, state_version=6)
    (end,) = await ask(gateway, late)
    assert (end.approval_id, end.outcome) == (late.approval_id, "withdrawn")
    assert (await approval(gateway, third.approval_id))["status"] == "pending"


async def test_before_it_is_asked_there_is_nothing_to_approve(gateway: EdgeUnderTest) -> None:
    """An unknown id is 404, and so is another tenant's, for reading and for deciding; a missing key is 400.

    Requirements: L10, T1
    """
    _, shown = await open_approval(gateway)
    problem(await decide(gateway, {**shown, "approval_id": new_id("apr")}), 404, "not-found")
    stranger = {**EDITOR, "tenant": "globex"}
    problem(await decide(gateway, shown, who=stranger), 404, "not-found")
    url = f"/v1/approvals/{shown['approval_id']}"
    problem(await gateway.client.get(url, headers=gateway.headers(**stranger)), 404, "not-found")
    listed = await gateway.client.get("/v1/approvals", headers=gateway.headers(**stranger))
    assert listed.json()["items"] == []
    body = {"decision": "approve", "nonce": shown["nonce"], "content_sha256": CONTENT}
    response = await gateway.client.post(f"{url}/decision", json=body, headers=gateway.headers(**EDITOR))
    problem(response, 400, "idempotency-key-missing")
    with pytest.raises(Unprocessable):
        foreign = await asked_of(gateway, await running_case(gateway), approval_id=shown["approval_id"])
        await ask(gateway, foreign.evolve(tenant="globex", workflow_id=shown["workflow_id"]))


async def test_after_its_expiry_a_click_expires_it_and_it_can_be_asked_again(gateway: EdgeUnderTest) -> None:
    """Expired is not denied: the click is 409 and tells the end at once, the timer hears the same, a new ask is open.

    Requirements: L8, L10
    """
    now = await business_now(gateway)
    instance, shown = await open_approval(gateway, expires_at=now - timedelta(milliseconds=1))
    assert shown["status"] == "expired"
    conflict(await decide(gateway, shown), "expired")
    (end,) = await told(gateway)
    assert end.outcome == "expired" and end.reviewer is None
    conflict(await decide(gateway, shown), "expired")
    assert len(await told(gateway)) == 1
    expire = await asked_of(gateway, instance, approval_id=shown["approval_id"], action="expire")
    assert [item.outcome for item in await ask(gateway, expire)] == ["expired"]
    again = await asked_of(gateway, instance, state_version=4)
    assert await ask(gateway, again) == []
    assert (await decide(gateway, await approval(gateway, again.approval_id))).status_code == 200


async def test_asks_in_any_order_and_twice(gateway: EdgeUnderTest) -> None:
    """A withdrawal before its question, a question twice, a timer too early or after the answer: one end, told again.

    Requirements: L8, M2
    """
    instance = await running_case(gateway)
    asked = await asked_of(gateway, instance)
    withdrawn = await ask(gateway, asked.evolve(action="withdraw"))
    assert [end.outcome for end in withdrawn] == ["withdrawn"]
    assert [end.outcome for end in await ask(gateway, asked)] == ["withdrawn"]
    _, shown = await open_approval(gateway)
    known = asked.evolve(approval_id=shown["approval_id"], workflow_id=shown["workflow_id"])
    assert await ask(gateway, known.evolve(action="expire"), known) == []
    assert (await approval(gateway, shown["approval_id"]))["nonce"] == shown["nonce"]
    assert (await decide(gateway, shown, "reject")).json()["status"] == "rejected"
    for action in ("expire", "withdraw", "open"):
        (end,) = await ask(gateway, known.evolve(action=action))
        assert (end.outcome, end.reviewer) == ("rejected", "operator:editor")
    instance, shown = await open_approval(gateway)
    for action in ("withdraw", "expire"):
        stray = await asked_of(gateway, instance, action=action, state_version=9)
        (end,) = await ask(gateway, stray)
        assert (end.approval_id, end.outcome) == (stray.approval_id, "withdrawn")
    assert (await approval(gateway, shown["approval_id"]))["status"] == "pending"


async def test_a_closed_case_needs_no_approval(gateway: EdgeUnderTest) -> None:
    """Nothing is approved for a case that is over, also where its withdrawal is still on the way.

    Requirements: L10
    """
    instance, shown = await open_approval(gateway)
    now = await business_now(gateway)
    await changed(gateway, instance, status=InstanceStatus.CANCELLED, closed_at=now)
    conflict(await decide(gateway, shown), "superseded")
    assert await told(gateway) == []


async def test_who_may_see_approvals(gateway: EdgeUnderTest) -> None:
    """Approvers and readers see the tenant's, agents their own without its nonce; the summary counts what waits.

    Requirements: L10, T1
    """
    summary = "/v1/exceptions/summary"
    operator = gateway.headers(sub="operator:ops", roles=("operator",))
    before = (await gateway.client.get(summary, headers=operator)).json()["approvals_required"]
    _, shown = await open_approval(gateway)
    url = f"/v1/approvals/{shown['approval_id']}"
    own = (await gateway.client.get(url, headers=gateway.headers())).json()
    assert own["nonce"] is None and {**own, "nonce": shown["nonce"]} == shown
    problem(await gateway.client.get(url, headers=gateway.headers(sub="agent:other")), 404, "not-found")
    problem(await gateway.client.get(url, headers=gateway.headers(roles=("admin",))), 403, "forbidden", "role")
    assert (await gateway.client.get(summary, headers=operator)).json()["approvals_required"] == before + 1
    query = f"/v1/approvals?status=pending&workflow_id={shown['workflow_id']}"
    assert (await gateway.client.get(query, headers=operator)).json()["items"] == [shown]
    assert (await decide(gateway, shown)).status_code == 200
    assert (await gateway.client.get(query, headers=operator)).json()["items"] == []
    assert (await gateway.client.get(summary, headers=operator)).json()["approvals_required"] == before


async def test_an_intent_becomes_usable_by_its_approval(gateway: EdgeUnderTest) -> None:
    """A pivot waits for a person; once approved the same decision gives a capability, and a command is accepted.

    Requirements: L10, G3
    """
    payload = {"post_id": 7}
    context = {"payload_sha256": digest(payload)}
    decision = await gateway.decide("wordpress.publish_post", context=context)
    assert decision["outcome"] == "approval_required" and decision["approval_id"]
    wanted = {"decision_id": decision["decision_id"], "max_uses": 1}
    response = await gateway.client.post("/v1/capabilities", json=wanted, headers=gateway.headers())
    problem(response, 403, "forbidden", "approval")
    reviewer = {"sub": "operator:editor", "roles": ("approver",), "scopes": ("wordpress",)}
    shown = await approval(gateway, decision["approval_id"], **reviewer)
    assert (shown["kind"], shown["content_sha256"], shown["scope"]) == ("decision", digest(payload), "wordpress")
    assert (await decide(gateway, shown, who=reviewer)).status_code == 200
    assert await told(gateway) == []
    trace = await gateway.client.get(f"/v1/decisions/{decision['decision_id']}", headers=gateway.headers())
    assert trace.json()["outcome"] == "approval_required" and trace.json()["approval_id"] == shown["approval_id"]
    response = await gateway.client.post("/v1/capabilities", json=wanted, headers=gateway.headers())
    assert response.status_code == 201, response.text
    body = draft("x", command_type="wordpress.publish_post", payload=payload)
    accepted = await gateway.submit(response.json()["capability"], "publish-7", body)
    assert accepted.status_code == 202, accepted.text


async def test_an_intent_that_is_asked_again_under_its_key_is_one_decision_and_one_approval(
    gateway: EdgeUnderTest,
) -> None:
    """Whoever lost the answer asks again and gets it; the key stands for nothing else, and without one each is new.

    Requirements: I2, I5, L10
    """
    intent = {
        "action": {"command_types": ["wordpress.publish_post"], "workflow": None},
        "resource": {"system": "wordpress", "resource": "*"},
        "purpose": "asked once",
    }
    named = {**gateway.headers(), "idempotency-key": '"repair:rep_1:decision:1"'}
    before = await gateway.count("approval")
    first = await gateway.client.post("/v1/decisions", json=intent, headers=named)
    again = await gateway.client.post("/v1/decisions", json=intent, headers=named)
    assert (first.status_code, again.status_code) == (201, 201), first.text
    assert first.json() == again.json() and first.json()["outcome"] == "approval_required"
    assert again.headers["idempotent-replayed"] == "true"
    assert await gateway.count("approval") == before + 1
    other = await gateway.client.post("/v1/decisions", json={**intent, "purpose": "another"}, headers=named)
    problem(other, 422, "idempotency-key-reused")
    fresh = await gateway.client.post("/v1/decisions", json=intent, headers=gateway.headers())
    assert fresh.json()["approval_id"] != first.json()["approval_id"]


async def test_a_rejected_or_revoked_intent_stays_unusable(gateway: EdgeUnderTest) -> None:
    """No capability follows a rejection, and a revoked decision cannot be approved any more.

    Requirements: L10, G3
    """
    reviewer = {"sub": "operator:editor", "roles": ("approver",), "scopes": ("*",)}
    rejected = await gateway.decide("wordpress.publish_post")
    shown = await approval(gateway, rejected["approval_id"], **reviewer)
    assert (await decide(gateway, shown, "reject", who=reviewer)).status_code == 200
    wanted = {"decision_id": rejected["decision_id"], "max_uses": 1}
    response = await gateway.client.post("/v1/capabilities", json=wanted, headers=gateway.headers())
    problem(response, 403, "forbidden", "approval")
    revoked = await gateway.decide("wordpress.publish_post")
    url = f"/v1/decisions/{revoked['decision_id']}/revoke"
    assert (await gateway.client.post(url, json={"reason": "x"}, headers=gateway.headers())).status_code == 200
    shown = await approval(gateway, revoked["approval_id"], **reviewer)
    conflict(await decide(gateway, shown, who=reviewer), "superseded")


@pytest.mark.parametrize(
    ("given", "wanted", "covered"),
    [
        ("content:publish", "content:publish", True),
        ("content:*", "content:publish", True),
        ("content:*", "content:publish:p4", True),
        ("*", "content:publish", True),
        ("*:publish", "content:publish", True),
        ("content:*:p4", "content:publish:p4", True),
        ("content:*:p4", "content:publish:p5", False),
        ("content", "content:publish", False),
        ("content:*", "content", False),
        ("content:publish", "content:*", False),
        ("content:*", "content:*", True),
        ("content:pub*", "content:publish", False),
        ("content:publish:p4", "content:publish", False),
        ("", "content", False),
    ],
)
def test_how_scopes_cover(given: str, wanted: str, covered: bool) -> None:
    """Part by part; `*` last is one or more parts, elsewhere exactly one; without it a scope covers only itself.

    Requirements: L10
    """
    assert covers_scope(given, wanted) is covered


_PART = st.sampled_from(["a", "b", "*"])


@given(st.lists(_PART, min_size=1, max_size=4), st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4))
def test_a_narrower_scope_never_covers_more(given: list[str], wanted: list[str]) -> None:
    """Putting `*` for a part only widens."""
    have, want = ":".join(given), ":".join(wanted)
    if covers_scope(have, want):
        for number in range(len(given)):
            assert covers_scope(":".join([*given[:number], "*", *given[number + 1 :]]), want)


class Clock:
    """Business time of the database, set by hand."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def set(self, at: datetime) -> None:
        await self._connection.execute("UPDATE trueup.held SET at = $1", at)


@pytest_asyncio.fixture
async def clock(gateway_database: Database) -> AsyncIterator[Clock]:
    """`trueup.now()` stands still and moves only when told to; afterwards it runs again."""
    connection = await asyncpg.connect(gateway_database.admin_url)
    source = await connection.fetchval("SELECT pg_get_functiondef('trueup.now'::regproc)")
    try:
        await connection.execute(
            "CREATE TABLE trueup.held (at timestamptz NOT NULL); INSERT INTO trueup.held VALUES (now());"
            "CREATE OR REPLACE FUNCTION trueup.now() RETURNS timestamptz STABLE LANGUAGE sql SECURITY DEFINER "
            "SET search_path = trueup AS 'SELECT at FROM trueup.held'"
        )
        yield Clock(connection)
    finally:
        await connection.execute(f"{source}; DROP TABLE trueup.held")
        await connection.close()


async def questions(gateway: EdgeUnderTest, expiries: list[datetime]) -> list[tuple[ApprovalAsked, Any]]:
    """Open approvals of as many cases: what was asked, and what a reviewer needs to answer."""
    cases = await asyncio.gather(*(running_case(gateway) for _ in expiries))
    asks = [
        await asked_of(gateway, instance, expires_at=expiry) for instance, expiry in zip(cases, expiries, strict=True)
    ]
    assert await ask(gateway, *asks) == []
    async with gateway.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT approval_id, nonce, content_sha256 FROM gateway.approval WHERE approval_id = ANY($1)",
            [item.approval_id for item in asks],
        )
    shown = {row["approval_id"]: dict(row) for row in rows}
    return [(item, shown[item.approval_id]) for item in asks]


async def ends_told(gateway: EdgeUnderTest, names: Iterable[str]) -> dict[str, set[str]]:
    """Every end that went out about these approvals, from the API and from the worker."""
    async with gateway.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT split_part(message_id, ':', 1) AS name, split_part(message_id, ':', 2) AS outcome "
            "FROM gateway.outbox WHERE type = 'ApprovalDecided' AND split_part(message_id, ':', 1) = ANY($1)",
            list(names),
        )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["name"], set()).add(row["outcome"])
    return found


async def race(gateway: EdgeUnderTest, clock: Clock, dice: random.Random, group: Group) -> dict[str, httpx.Response]:
    """Persons and timers at once, while business time steps from a millisecond before the expiry to one after it."""
    expiry = group[0][0].expires_at
    answers: dict[str, httpx.Response] = {}

    enough, due = dice.randrange(GROUP), asyncio.Event()

    async def person(shown: Any) -> None:
        answers[shown["approval_id"]] = await decide(gateway, shown)
        if len(answers) >= enough:
            due.set()

    async def tick() -> None:
        if enough:
            await due.wait()
        await clock.set(expiry + timedelta(milliseconds=1))

    await clock.set(expiry - timedelta(milliseconds=1))
    work: list[Any] = [person(shown) for _, shown in group]
    work += [ask(gateway, item.evolve(action="expire")) for item, _ in group]
    dice.shuffle(work)
    await asyncio.gather(tick(), *work)
    return answers


async def test_person_against_timer_has_one_winner_and_a_true_answer(gateway: EdgeUnderTest, clock: Clock) -> None:
    """A thousand approvals, answered while business time steps over their expiry by a millisecond and the timer asks:
    each ends once, the 200 is always an approval, the 409 always an expiry, and everybody is told the same end.

    Requirements: L8, L10
    """
    dice, ends = random.Random(20261129), Counter[str]()
    start = await business_now(gateway)
    for _ in range(ROUNDS // SET_UP_AT_ONCE):
        moments = [start + timedelta(seconds=number + 1) for number in range(SET_UP_AT_ONCE // GROUP)]
        start = moments[-1]
        asked = await questions(gateway, [moment for moment in moments for _ in range(GROUP)])
        answers: dict[str, httpx.Response] = {}
        for number in range(0, SET_UP_AT_ONCE, GROUP):
            answers |= await race(gateway, clock, dice, asked[number : number + GROUP])
        last = await ask(gateway, *(item.evolve(action="expire") for item, _ in asked))
        final = {end.approval_id: end for end in last}
        out = await ends_told(gateway, final)
        for name, response in answers.items():
            end = final[name]
            ends[end.outcome] += 1
            assert (end.outcome, response.status_code) in {("approved", 200), ("expired", 409)}, response.text
            assert end.reviewer == ("operator:editor" if end.outcome == "approved" else None)
            assert out[name] == {end.outcome}, "two different ends were told of one approval"
    assert sum(ends.values()) == ROUNDS and min(ends["approved"], ends["expired"]) > ROUNDS // 20, ends
