"""Calls: the chain evidence, decision, capability, command under one key, and what each answer means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.repair_planner.builders import at
from tests.repair_planner.test_plan import drifted, exception, planned

from trueup_common.contracts.canonical import digest
from trueup_repair_planner.core.calls import CALLS_MAX, Answer, Ask, Outcome, answered, call, first, look, miss_of
from trueup_repair_planner.core.repair import Step


def asked(ask: Ask, status: int, body: dict[str, Any] | None = None, **changes: Any) -> Ask | Outcome:
    repair = planned(drifted()).evolve(**changes)
    return answered(repair, ask, {"decision_id": "dec_1", "capability": "jws"}, Answer(status, body or {}))


def test_drift_is_repaired_by_the_same_chain_as_any_agents_intent() -> None:
    """Requirements: G7, Q5, O6"""
    repair, known = planned(drifted()), {}
    assert first(repair) is Ask.DECIDE
    decide = call(repair, Ask.DECIDE, known)
    assert (decide.path, decide.capability) == ("/v1/decisions", None)
    assert decide.body is not None
    assert decide.body["evidence"] == repair.evidence and repair.evidence
    assert decide.body["context"] == {
        "payload_sha256": digest(repair.request["payload"]),  # type: ignore[index]
        "supersedes": "cmd_1",
    }
    following = answered(repair, Ask.DECIDE, known, Answer(201, {"decision_id": "dec_1", "outcome": "approved"}))
    assert following is Ask.AUTHORIZE
    authorize = call(repair, Ask.AUTHORIZE, known)
    assert (authorize.path, authorize.body) == (
        "/v1/capabilities",
        {"decision_id": "dec_1", "max_uses": 1, "ttl_seconds": 300},
    )
    assert answered(repair, Ask.AUTHORIZE, known, Answer(201, {"capability": "jws"})) is Ask.COMMAND
    command = call(repair, Ask.COMMAND, known)
    assert (command.path, command.capability, command.key) == ("/v1/commands", "jws", f"repair:{repair.repair_id}")
    assert command.body is not None
    assert command.body["supersedes"] == "cmd_1"
    ended = answered(repair, Ask.COMMAND, known, Answer(202, {"command_id": "cmd_2"}))
    assert ended == Outcome(Step.SEND, {"decision_id": "dec_1", "command_id": "cmd_2"})


def test_what_is_stuck_is_redriven_by_an_operator_command_and_never_by_its_old_request() -> None:
    """Requirements: G7, Q6"""
    repair = planned(exception(failure_class="DEPENDENCY_ERROR", envelope={"failure_code": "unavailable"}))
    assert first(repair) is Ask.OPERATE
    operate = call(repair, Ask.OPERATE, {})
    assert (operate.path, operate.key) == ("/v1/operator-commands", f"repair:{repair.repair_id}")
    assert operate.body is not None
    assert operate.body["action"] == "REDRIVE" and operate.body["evidence"]
    assert operate.body["target"] == {"kind": "exception", "id": repair.exception_id}
    assert "payload" not in str(operate.body)
    assert operate.body["params"] == {"repair_id": repair.repair_id}
    begun = call(repair.evolve(verify_until=at(600)), Ask.OPERATE, {})
    assert begun.body is not None and begun.body["params"]["deadline"] == "2026-03-01T12:10:00Z"
    ended = answered(repair, Ask.OPERATE, {}, Answer(202, {"operator_command_id": "opc_1", "decision_id": "dec_2"}))
    assert ended == Outcome(Step.SEND, {"operator_command_id": "opc_1", "decision_id": "dec_2"})


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (0, {}),
        (429, {}),
        (503, {}),
        (500, {"type": "/problems/internal"}),
        (401, {"check": "time"}),
        (409, {"type": "/problems/idempotency-in-flight"}),
        (403, {"check": "frozen"}),
    ],
)
@pytest.mark.parametrize("ask", list(Ask))
def test_no_answer_and_passing_ones_say_nothing_and_are_asked_again(ask: Ask, status: int, body: Any) -> None:
    """Requirements: X4, Q5"""
    found = asked(ask, status, body)
    assert isinstance(found, Outcome)
    assert found.step is Step.POSTPONE and found.again is not None and found.again.total_seconds() == 1
    later = asked(ask, status, body, calls_count=20)
    assert isinstance(later, Outcome) and later.again is not None and later.again.total_seconds() == 120
    last = asked(ask, status, body, calls_count=CALLS_MAX - 1)
    assert isinstance(last, Outcome) and last.step is Step.REFUSE


def test_a_repair_asks_for_one_decision_under_one_key_until_that_is_too_old() -> None:
    """Requirements: I5, G7"""
    repair = planned(drifted())
    key = call(repair, Ask.DECIDE, {}).key
    assert key == call(repair.evolve(calls_count=9, decision_id="dec_1"), Ask.DECIDE, {}).key
    assert key is not None and repair.repair_id in key
    assert key != call(repair.evolve(decisions_count=1), Ask.DECIDE, {}).key
    held = answered(repair, Ask.AUTHORIZE, {"decision_id": "dec_1"}, Answer(403, {"check": "frozen"}))
    assert isinstance(held, Outcome) and held.changes == {"decision_id": "dec_1"}, "what was decided is kept"


def test_an_approval_is_waited_for_and_a_denial_ends_it() -> None:
    """Requirements: Q5, G7"""
    waiting = asked(Ask.DECIDE, 201, {"decision_id": "dec_9", "outcome": "approval_required", "approval_id": "apr_9"})
    assert isinstance(waiting, Outcome)
    assert (waiting.step, waiting.changes) == (Step.ASK, {"decision_id": "dec_9", "approval_id": "apr_9"})
    repair = planned(drifted()).evolve(decision_id="dec_9", approval_id="apr_9")

    def look(check: str, status: str) -> Ask | Outcome:
        known: dict[str, Any] = {"decision_id": "dec_9", "approval_id": "apr_9"}
        following = answered(repair, Ask.AUTHORIZE, known, Answer(403, {"check": check}))
        assert following is Ask.APPROVAL
        assert call(repair, following, known).path == "/v1/approvals/apr_9"
        return answered(repair, following, known, Answer(200, {"status": status, "reason": "not now"}))

    still = look("approval", "pending")
    assert isinstance(still, Outcome) and (still.step, still.changes) == (Step.ASK, {})
    no = look("approval", "rejected")
    assert isinstance(no, Outcome) and (no.step, no.code, no.detail) == (Step.REFUSE, "rejected", "not now")
    silence = look("decision", "expired")
    assert isinstance(silence, Outcome) and silence.step is Step.POSTPONE
    assert silence.changes == {"decision_id": None, "approval_id": None, "decisions_count": 1}
    denied = asked(Ask.DECIDE, 201, {"decision_id": "dec_9", "outcome": "denied"})
    assert isinstance(denied, Outcome) and (denied.step, denied.code) == (Step.REFUSE, "denied")


def test_an_old_decision_is_asked_for_again_and_nothing_else_is() -> None:
    """Also one that is told again after its time, to a planner that had died before it could keep it."""
    anew = {"decision_id": None, "approval_id": None, "decisions_count": 3}
    for ask, kept in ((Ask.COMMAND, "dec_1"), (Ask.AUTHORIZE, "dec_1"), (Ask.AUTHORIZE, None)):
        stale = asked(ask, 403, {"check": "decision"}, decision_id=kept, decisions_count=2)
        assert isinstance(stale, Outcome)
        assert (stale.step, stale.changes) == (Step.POSTPONE, anew)
    fresh = asked(Ask.COMMAND, 403, {"check": "decision"})
    assert isinstance(fresh, Outcome) and fresh.step is Step.REFUSE
    wrong = asked(Ask.COMMAND, 403, {"check": "payload_hash", "detail": "other"}, decision_id="dec_1")
    assert isinstance(wrong, Outcome) and (wrong.step, wrong.code) == (Step.REFUSE, "payload_hash")


def test_a_refusal_names_what_was_possible_instead() -> None:
    body = {"type": "/problems/action-not-available", "detail": "It is SUCCESS.", "allowed_actions": ["SETTLE"]}
    refused = asked(Ask.OPERATE, 409, body)
    assert isinstance(refused, Outcome)
    assert (refused.step, refused.code) == (Step.REFUSE, "action-not-available")
    assert refused.detail == "It is SUCCESS. Allowed: SETTLE."


def test_a_repair_in_a_paused_case_waits_with_its_reason_until_a_person_gets_it() -> None:
    """The gateway sends nothing for it: asked again at growing distances, told as such, and not for ever.

    Requirements: Q4, Q8, O6
    """
    body = {"type": "/problems/action-not-available", "allowed_actions": ["RECONCILE"], "workflow_status": "PAUSED"}
    waits = asked(Ask.OPERATE, 409, body)
    assert isinstance(waits, Outcome)
    assert (waits.step, waits.code, waits.again) == (Step.POSTPONE, "paused", timedelta(seconds=1))
    over = asked(Ask.OPERATE, 409, body, calls_count=CALLS_MAX - 1)
    assert isinstance(over, Outcome)
    assert (over.step, over.code, over.detail) == (Step.REFUSE, "put_off_too_often", "paused")


def test_a_command_that_succeeded_is_no_repair_and_one_that_failed_is_none_either() -> None:
    """Requirements: Q7"""
    repair = planned(drifted())
    assert look(repair) is None
    seen = look(repair.evolve(command_id="cmd_2"))
    assert seen is not None and (seen.method, seen.path) == ("GET", "/v1/commands/cmd_2")
    assert miss_of(Answer(200, {"state": "SUCCESS"})) is None
    assert miss_of(Answer(200, {"state": "RUNNING"})) is None
    assert miss_of(Answer(0)) is None
    assert miss_of(Answer(200, {"state": "FAILED", "error_code": "forbidden"})) == "forbidden"
