"""Acts in bulk: a frozen selection worked off at a rate by whichever worker is alive, with a reason per item."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.gateway.asks import OPERATOR, project
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_operators import REPAIRER, ended, failed_command, operate, sent
from tests.gateway.test_refusals import problem

from trueup_common.contracts.ids import new_id
from trueup_common.contracts.operators import OperatorAction
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import Moment
from trueup_gateway.batches import Batches
from trueup_gateway.core.batches import BATCHED, TABLE, TAKEN_MAX, BatchState, ItemState, Turn, ended_as, paced


async def ask(gateway: EdgeUnderTest, path: str = "", **body: Any) -> httpx.Response:
    who = body.pop("who", OPERATOR)
    key = body.pop("key", None) or new_id("msg")
    headers = {**gateway.headers(**who), "Idempotency-Key": key}
    return await gateway.client.post(f"/v1/operator-batches{path}", json=body, headers=headers)


async def preview(gateway: EdgeUnderTest, owner: str, **changes: Any) -> dict[str, Any]:
    body = {"action": "REDRIVE", "filter": {"owner": owner}, "reason": "the outage is over", "rate_per_second": 50}
    response = await ask(gateway, **{**body, **changes})
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


async def outage(gateway: EdgeUnderTest, owner: str, count: int) -> list[Any]:
    """Failed commands of one cause."""
    found = []
    for number in range(count):
        start, row, exception = await failed_command(gateway, f"{owner}-{number}")
        await project(gateway, exception.model_copy(update={"owner": owner, "version": 2}))
        found.append((start, row, exception))
    return found


async def tick(
    gateway: EdgeUnderTest,
    real: datetime | None = None,
    *,
    dies: Exception | None = None,
    told: bool = True,
    hours_later: float = 0,
) -> None:
    """One look of a worker; each is a worker of its own, as after a restart. `dies` before its commit."""
    async with gateway.gateway.store.transaction() as tx:
        moment, _ = await tx.claim("", [])
        moment = Moment(business=moment.business + timedelta(hours=hours_later), real=real or moment.real)
        outgoing = await Batches(gateway.gateway.rules, gateway.gateway.catalog).tick(tx, moment)
        await tx.post(outgoing)
        if dies is not None:
            raise dies
    gateway.publisher.published.extend(outgoing if told else ())


async def read(gateway: EdgeUnderTest, batch_id: str) -> dict[str, Any]:
    response = await gateway.client.get(f"/v1/operator-batches/{batch_id}", headers=gateway.headers(**OPERATOR))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found["pending"] + found["running"] + found["done"] + found["failed"] + found["skipped"] == found["total"]
    return found


async def items(gateway: EdgeUnderTest, batch_id: str) -> list[dict[str, Any]]:
    place = f"/v1/operator-batches/{batch_id}/items"
    response = await gateway.client.get(place, headers=gateway.headers(**OPERATOR))
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["items"]
    return found


async def acts(gateway: EdgeUnderTest, cases: Sequence[Any]) -> list[Any]:
    return [command for start, _, _ in cases for command in await sent(gateway, start.workflow_id)]


async def test_a_batch_works_off_its_frozen_selection_and_every_item_says_why(gateway: EdgeUnderTest) -> None:
    """Previewed, started, each item admitted again at its turn: done + failed + skipped is the total.

    Requirements: O5, I5
    """
    cases = await outage(gateway, "outage", 5)
    shown = await preview(gateway, "outage", key="bulk-1")
    assert (shown["state"], shown["total"], shown["pending"]) == ("PREVIEW", 5, 5)
    assert [item["possible"] for item in shown["selection"]] == [True] * 5
    await tick(gateway)
    assert await acts(gateway, cases) == [], "a preview does nothing"
    late = await outage(gateway, "outage-late", 1)
    await project(gateway, late[0][2].model_copy(update={"owner": "outage", "version": 3}))
    closed, held = cases[1], cases[2]
    await project(gateway, closed[2].model_copy(update={"status": "closed", "version": 9}))
    by_hand = (await operate(gateway, "command", held[1].command_id, "RECONCILE")).json()["operator_command_id"]
    assert (await ask(gateway, f"/{shown['batch_id']}/start")).status_code == 200
    again = await preview(gateway, "outage", key="bulk-1")
    assert again["batch_id"] == shown["batch_id"], "pressed twice it is one batch"
    await tick(gateway)
    await tick(gateway, real_now() + timedelta(seconds=1))
    commands = [item for item in await acts(gateway, cases) if item.action == "REDRIVE"]
    assert {item.exception_id for item in commands} == {cases[number][2].exception_id for number in (0, 3, 4)}
    assert await acts(gateway, late) == [], "what came later is not of the selection"
    first, second, third = (item.operator_command_id for item in commands)
    await project(
        gateway,
        ended(first, result={"state": "SUCCESS"}),
        ended(second, result={"state": "FAILED", "error_code": "forbidden"}),
        ended(third, "REFUSED", detail="cmd_9 has the key or the business identity by now"),
    )
    await tick(gateway)
    whole = await read(gateway, shown["batch_id"])
    assert (whole["state"], whole["done"], whole["failed"], whole["skipped"]) == ("DONE", 1, 1, 3)
    reasons = {
        item["exception_id"]: (item["state"], item["reason"]) for item in await items(gateway, whole["batch_id"])
    }
    assert reasons[closed[2].exception_id][0] == "SKIPPED"
    assert by_hand in reasons[held[2].exception_id][1], "somebody is at work on it already"
    assert ("FAILED", "FAILED: forbidden") in reasons.values()
    assert ("SKIPPED", "cmd_9 has the key or the business identity by now") in reasons.values()
    decisions = await gateway.count(
        "authorization_decision", "resource LIKE 'exception/%' AND subject = 'operator:ops'"
    )
    assert decisions >= 3, "each item is an act under a decision of its own"


async def test_a_batch_pauses_stops_and_keeps_its_rate(gateway: EdgeUnderTest) -> None:
    """Paused, nothing more is asked for; stopped, the rest is skipped for good; the rate bounds each look.

    Requirements: O5
    """
    cases = await outage(gateway, "slow", 6)
    batch = (await preview(gateway, "slow", rate_per_second=2, dry_run=False))["batch_id"]
    now = real_now()
    await tick(gateway, now)
    assert len(await acts(gateway, cases)) == 1
    await tick(gateway, now + timedelta(seconds=0.1))
    assert len(await acts(gateway, cases)) == 1, "its next item is not due yet"
    await tick(gateway, now + timedelta(seconds=1.1))
    assert len(await acts(gateway, cases)) == 3
    assert (await ask(gateway, f"/{batch}/pause")).status_code == 200
    await tick(gateway, now + timedelta(seconds=60))
    assert len(await acts(gateway, cases)) == 3
    shown = await read(gateway, batch)
    assert (shown["state"], shown["running"], shown["pending"]) == ("PAUSED", 3, 3)
    assert shown["allowed_turns"] == ["start", "pause", "stop"]
    assert (await ask(gateway, f"/{batch}/start")).status_code == 200
    assert (await ask(gateway, f"/{batch}/stop")).status_code == 200
    refused = problem(await ask(gateway, f"/{batch}/start"), 409, "action-not-available")
    assert refused["allowed_actions"] == ["stop"]
    await tick(gateway, now + timedelta(seconds=61))
    assert len(await acts(gateway, cases)) == 3
    await project(gateway, *(ended(item.operator_command_id) for item in await acts(gateway, cases)))
    await tick(gateway, now + timedelta(seconds=62))
    whole = await read(gateway, batch)
    assert (whole["state"], whole["done"], whole["skipped"], whole["running"]) == ("STOPPED", 3, 3, 0)
    assert whole["ended_at"] is not None
    assert {item["reason"] for item in await items(gateway, batch) if item["state"] == "SKIPPED"} == {
        "stopped by operator:ops"
    }


async def test_every_turn_of_a_batch_is_an_act_with_a_decision_and_a_reason(gateway: EdgeUnderTest) -> None:
    """Start, pause and stop are kept with who, why, when and under which decision; pressed twice each is one act, and
    the same key with another reason is refused.

    Requirements: O3, O5, I5, G7
    """
    await outage(gateway, "turned", 2)
    batch = (await preview(gateway, "turned", rate_per_second=0.001))["batch_id"]
    said = {"start": "the target is back", "pause": "it fails again", "stop": None}
    answers = {}
    for turn, reason in said.items():
        body = {"reason": reason} if reason is not None else {}
        first = await ask(gateway, f"/{batch}/{turn}", key=f"turn-{turn}", **body)
        again = await ask(gateway, f"/{batch}/{turn}", key=f"turn-{turn}", **body)
        assert first.status_code == 200 and again.json() == first.json(), first.text
        assert again.headers["idempotent-replayed"] == "true"
        other = await ask(gateway, f"/{batch}/{turn}", key=f"turn-{turn}", reason="something else")
        problem(other, 422, "idempotency-key-reused")
        answers[turn] = first.json()["decision_id"]
    whole = await read(gateway, batch)
    trail = [{name: item[name] for name in ("turn", "actor", "reason", "decision_id")} for item in whole["trail"]]
    assert trail == [
        {"turn": turn, "actor": "operator:ops", "reason": reason, "decision_id": answers[turn]}
        for turn, reason in said.items()
    ]
    assert [item["to"] for item in whole["trail"]] == ["RUNNING", "PAUSED", "STOPPED"]
    for turn, reason in said.items():
        path = f"/v1/decisions/{answers[turn]}"
        trace = (await gateway.client.get(path, headers=gateway.headers(**OPERATOR))).json()
        assert (trace["subject"], trace["resource"]["resource"]) == ("operator:ops", f"batch/{batch}")
        assert trace["context"]["operation"] == f"BATCH_{turn.upper()}" and trace["context"]["reason"] == reason


async def test_the_items_are_acts_of_whoever_started_the_batch_last(gateway: EdgeUnderTest) -> None:
    """Who made the selection acted on nothing. An item carries the subject and the roles of the last start; who pauses
    takes nothing over.

    Requirements: O3, O5, G5, G7
    """
    cases = await outage(gateway, "handed", 3)
    batch = (await preview(gateway, "handed", rate_per_second=1))["batch_id"]
    bob = {"sub": "operator:bob", "roles": ("operator", "viewer"), "scopes": ("shift:night",)}
    carol = {"sub": "operator:carol", "roles": ("operator",)}
    now = real_now()
    assert (await ask(gateway, f"/{batch}/start", who=bob)).status_code == 200
    await tick(gateway, now)
    assert (await ask(gateway, f"/{batch}/pause", who=carol)).status_code == 200
    shown = await read(gateway, batch)
    assert (shown["created_by"], shown["actor"]) == ("operator:ops", "operator:bob")
    assert (await ask(gateway, f"/{batch}/start", who=carol)).status_code == 200
    await tick(gateway, now + timedelta(seconds=5))
    await tick(gateway, now + timedelta(seconds=9))
    by = [(item.actor, item.decision_id) for item in await acts(gateway, cases)]
    assert [actor for actor, _ in by] == ["operator:bob", "operator:carol", "operator:carol"]
    for (actor, decision_id), roles in zip(by[:2], (["operator", "viewer"], ["operator"]), strict=True):
        place = f"/v1/decisions/{decision_id}"
        trace = (await gateway.client.get(place, headers=gateway.headers(**OPERATOR))).json()
        assert (trace["subject"], trace["roles"]) == (actor, roles)


async def test_a_start_carries_a_batch_for_a_shift_and_no_longer(gateway: EdgeUnderTest) -> None:
    """Twelve hours after its start a batch pauses by itself and says why; whoever starts it again carries the rest.

    Requirements: O5, G5
    """
    cases = await outage(gateway, "shift", 3)
    batch = (await preview(gateway, "shift", rate_per_second=1, dry_run=False))["batch_id"]
    now = real_now()
    await tick(gateway, now, hours_later=11.9)
    assert len(await acts(gateway, cases)) == 1
    await tick(gateway, now + timedelta(seconds=5), hours_later=12)
    assert len(await acts(gateway, cases)) == 1, "nobody's authority carries the next one"
    shown = await read(gateway, batch)
    assert (shown["state"], shown["pending"], shown["running"]) == ("PAUSED", 2, 1)
    last = shown["trail"][-1]
    assert (last["turn"], last["actor"], last["decision_id"]) == ("pause", "service:gateway", None)
    assert "operator:ops" in last["reason"] and "12 hours" in last["reason"]
    bob = {"sub": "operator:bob", "roles": ("operator",)}
    assert (await ask(gateway, f"/{batch}/start", who=bob)).status_code == 200
    await tick(gateway, now + timedelta(seconds=9))
    assert [item.actor for item in await acts(gateway, cases)][1:] == ["operator:bob"] * 2


async def test_a_paused_batch_still_counts_what_is_at_work(gateway: EdgeUnderTest) -> None:
    """Paused, nothing more is asked for, and what was asked for is followed to its end; with nothing left it is done.

    Requirements: O5
    """
    cases = await outage(gateway, "counted", 3)
    batch = (await preview(gateway, "counted", rate_per_second=2, dry_run=False))["batch_id"]
    now = real_now()
    await tick(gateway, now)
    await tick(gateway, now + timedelta(seconds=0.6))
    first, second = await acts(gateway, cases)
    assert (await ask(gateway, f"/{batch}/pause")).status_code == 200
    await project(gateway, ended(first.operator_command_id, result={"state": "FAILED", "error_code": "forbidden"}))
    await tick(gateway, now + timedelta(seconds=60))
    shown = await read(gateway, batch)
    assert (shown["state"], shown["failed"], shown["running"], shown["pending"]) == ("PAUSED", 1, 1, 1)
    await project(gateway, ended(second.operator_command_id))
    await tick(gateway, now + timedelta(seconds=61))
    shown = await read(gateway, batch)
    assert (shown["state"], shown["done"], shown["pending"], shown["ended_at"]) == ("PAUSED", 1, 1, None)
    assert (await ask(gateway, f"/{batch}/start")).status_code == 200
    await tick(gateway, now + timedelta(seconds=62))
    assert (await ask(gateway, f"/{batch}/pause")).status_code == 200
    third = (await acts(gateway, cases))[-1]
    await project(gateway, ended(third.operator_command_id))
    await tick(gateway, now + timedelta(seconds=63))
    whole = await read(gateway, batch)
    assert (whole["state"], whole["done"], whole["failed"], whole["running"]) == ("DONE", 2, 1, 0)


async def test_a_batch_that_is_not_only_a_preview_says_who_started_it(gateway: EdgeUnderTest) -> None:
    """Requirements: O5, O3"""
    whole = await read(gateway, (await preview(gateway, "at-once", dry_run=False))["batch_id"])
    (entry,) = whole["trail"]
    assert (entry["turn"], entry["reason"]) == ("start", "the outage is over")
    assert entry["decision_id"] == whole["decision_id"]


async def test_what_a_batch_repeats_is_small(gateway: EdgeUnderTest) -> None:
    """Evidence and parameters are kept and told once per item: bounded as a whole, whatever their shape.

    Requirements: T3, O5
    """
    deep: Any = "x"
    for _ in range(30):
        deep = [deep]
    for evidence in ([{"note": "x" * 17_000}], [["x" * 200] * 100], [{"a": ["y" * 9_000]}, {"b": ["y" * 9_000]}]):
        wrong = await ask(gateway, action="REDRIVE", reason="x", evidence=evidence)
        assert problem(wrong, 422, "payload-invalid")["errors"][0]["pointer"] == "/evidence"
    assert (await ask(gateway, action="REDRIVE", reason="x", evidence=[deep])).status_code == 201
    wrong = await ask(gateway, action="REDRIVE", reason="x", params={"repair_id": "x" * 263_000})
    assert problem(wrong, 422, "payload-invalid")["errors"][0]["pointer"].startswith("/params")


async def test_two_workers_never_take_one_item(gateway: EdgeUnderTest) -> None:
    """Two replicas look at the same moment, again and again: each item is asked for once, under one act.

    Requirements: O5, I5, D5
    """
    cases = await outage(gateway, "twice", 6)
    batch = (await preview(gateway, "twice", dry_run=False))["batch_id"]
    now = real_now()
    for look in range(3):
        await asyncio.gather(*(tick(gateway, now + timedelta(seconds=look)) for _ in range(4)))
    commands = await acts(gateway, cases)
    assert sorted(item.exception_id for item in commands) == sorted(item.exception_id for _, _, item in cases)
    assert await gateway.count("operator_command", f"batch_id = '{batch}'") == len(cases)


async def test_a_worker_that_dies_amid_an_item_leaves_it_to_the_next(gateway: EdgeUnderTest) -> None:
    """Killed before its commit, nothing of the look happened, neither the act nor its message; killed after it, the
    item is at work and is not taken again: either way exactly one act per item.

    Requirements: O5, I5, I1
    """
    cases = await outage(gateway, "killed", 2)
    batch = (await preview(gateway, "killed", rate_per_second=2, dry_run=False))["batch_id"]
    now = real_now()

    class Killed(Exception):
        """The process is gone."""

    with pytest.raises(Killed):
        await tick(gateway, now, dies=Killed())
    shown = await read(gateway, batch)
    assert (shown["pending"], shown["running"]) == (2, 0) and await acts(gateway, cases) == []
    assert await gateway.count("operator_command", f"batch_id = '{batch}'") == 0
    await tick(gateway, now, told=False)  # committed, and killed before it could publish anything
    assert (await read(gateway, batch))["running"] == 1 and await acts(gateway, cases) == []
    assert await gateway.count("outbox_unsent") >= 1, "the relay of whoever is alive sends it"
    for look in range(1, 4):
        await tick(gateway, now + timedelta(seconds=look))
    assert await gateway.count("operator_command", f"batch_id = '{batch}'") == 2
    assert len(await acts(gateway, cases)) == 1, "the other one lies in the outbox"


async def test_a_batch_that_waits_holds_no_other_one_up(gateway: EdgeUnderTest) -> None:
    """More batches are at work than one look takes, some slow, some stopped while acts of theirs go on: each gets its
    turn.

    Requirements: O5, E7
    """
    for number in range(6):
        await outage(gateway, f"waiting-{number}", 2)
        batch = await preview(gateway, f"waiting-{number}", rate_per_second=0.001, dry_run=False)
        await tick(gateway)
        if number % 2:
            assert (await ask(gateway, f"/{batch['batch_id']}/stop")).status_code == 200
    cases = await outage(gateway, "quick", 2)
    await preview(gateway, "quick", dry_run=False)
    now = real_now()
    for look in range(3):
        await tick(gateway, now + timedelta(seconds=look))
    assert len(await acts(gateway, cases)) == 2


async def test_whoever_lost_the_right_acts_no_more(gateway: EdgeUnderTest) -> None:
    """Every item is admitted by the policy in force at its turn; a batch is no standing permission.

    Requirements: O5, G5
    """
    cases = await outage(gateway, "policy", 1)
    batch = (await preview(gateway, "policy", dry_run=False))["batch_id"]
    text = (await gateway.gateway.reads.policy()).text  # type: ignore[union-attr]
    without = text.replace('@id("operators-operate")\npermit', '@id("operators-operate")\nforbid')
    headers = {**gateway.headers(sub="operator:root", roles=("admin",)), "Idempotency-Key": new_id("msg")}
    for wanted, key in ((without, "a"), (text, "b")):
        body = {"policies": wanted, "reason": "test"}
        changed = await gateway.client.put("/v1/policies", json=body, headers={**headers, "Idempotency-Key": f"p{key}"})
        assert changed.status_code in (200, 201), changed.text
        await tick(gateway)
    whole = await read(gateway, batch)
    assert (whole["state"], whole["skipped"]) == ("DONE", 1) and await acts(gateway, cases) == []


async def test_who_may_act_in_bulk_and_how(gateway: EdgeUnderTest) -> None:
    """Operators only; what says what one effect came to is not done in bulk; another tenant's is not there.

    Requirements: O5, T1
    """
    batch = (await preview(gateway, "nobody"))["batch_id"]
    assert (await read(gateway, batch))["total"] == 0
    for who in (
        {},
        REPAIRER,
        {"sub": "operator:eye", "roles": ("viewer",)},
        {"sub": "operator:x", "roles": ("admin",)},
    ):
        problem(await ask(gateway, who=who, action="REDRIVE", reason="x"), 403, "forbidden", "role")
        problem(await ask(gateway, f"/{batch}/start", who=who), 403, "forbidden", "role")
    stranger = {**OPERATOR, "tenant": "globex"}
    problem(await ask(gateway, f"/{batch}/start", who=stranger), 404, "not-found")
    for action in set(OperatorAction) - set(BATCHED):
        refused = problem(await ask(gateway, action=action.value, reason="x"), 409, "action-not-available")
        assert refused["allowed_actions"] == [item.value for item in BATCHED]
    wrong = await ask(gateway, action="ASSIGN", reason="x")
    assert problem(wrong, 422, "payload-invalid")["errors"][0]["pointer"] == "/params/owner"
    for rate in (51, 0, 0.0009, 1e-13, 5e-324, True, "1", [1], None):
        wrong = await ask(gateway, action="REDRIVE", reason="x", rate_per_second=rate)
        assert problem(wrong, 422, "payload-invalid")["errors"][0]["pointer"] == "/rate_per_second"


@pytest.mark.parametrize("state", BatchState)
@pytest.mark.parametrize("turn", Turn)
def test_turns_of_a_batch(state: BatchState, turn: Turn) -> None:
    """Only what was started finishes, what is over never runs again.

    Requirements: O5
    """
    after = TABLE.get((state, turn))
    if state is BatchState.DONE:
        assert after is None
    if state is BatchState.STOPPED:
        assert after in (None, BatchState.STOPPED)
    if turn is Turn.FINISH:
        assert (after is BatchState.DONE) == (state in (BatchState.RUNNING, BatchState.PAUSED))


def test_how_an_item_ends() -> None:
    """Requirements: O5"""
    assert ended_as("ACCEPTED", None, {}) is None
    assert ended_as("DONE", None, {}) == (ItemState.DONE, None)
    assert ended_as("DONE", None, {"state": "SUCCESS"}) == (ItemState.DONE, "SUCCESS")
    assert ended_as("DONE", None, {"state": "DEAD_LETTERED"}) == (ItemState.FAILED, "DEAD_LETTERED")
    assert ended_as("REFUSED", None, {}) == (ItemState.SKIPPED, "refused")


def test_the_pace_saves_nothing_up() -> None:
    """Requirements: O5"""
    now = real_now()
    assert paced(None, 1.0, now) == (1, now + timedelta(seconds=1))
    assert paced(now + timedelta(seconds=5), 1.0, now)[0] == 0
    count, at = paced(now - timedelta(hours=1), 2.0, now)
    assert count == 3 and at > now
    assert paced(now - timedelta(hours=1), 50.0, now)[0] == TAKEN_MAX
    assert paced(None, 1e-13, now)[1] <= now + timedelta(hours=1), "no rate leads out of the calendar"
