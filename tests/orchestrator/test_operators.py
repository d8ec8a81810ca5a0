"""What operators do with one operation: looked at first, sent again under a new decision, settled, or refused."""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from tests.orchestrator.cases import BARE, FREE, Story, declaration, receipt, settlement, start_case

from trueup_common.contracts.events import GrantRequest, SettleRequested
from trueup_common.contracts.operators import OperatorAction, maybe_sent
from trueup_common.contracts.states import (
    ErrorClass,
    Findability,
    FindVerdict,
    InstanceStatus,
    OperationState,
    ReceiptStatus,
)
from trueup_orchestrator.core.again import REDRIVE, Way
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.decide import Due

S = OperationState
REVOKED = Authority(revoked="decision dec_1 is revoked")


def forbidden(**changes: Any) -> Story:
    """An operation that its target forbade."""
    story = Story(start_case(**changes))
    return story.hear(receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.PERMANENT, "forbidden"))


def dead() -> Story:
    """An operation whose attempts are used up: each reached the target and was turned away."""
    story = Story(start_case(decl=BARE), BARE)
    for _ in range(BARE.retry.attempts_max):
        if story.state is S.RETRY_PENDING:
            story.wait(10).hear(Due())
        if story.state is S.QUEUED:
            story.operate_dispatch()
        story.hear(receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"))
    assert story.state is S.DEAD_LETTERED
    return story


def doubtful(findability: Findability = Findability.MARKER) -> Story:
    """An operation of which nobody can say whether it happened."""
    kind = declaration(findability=findability, manual_policy="ask the owner of the target")
    story = Story(start_case(decl=kind), kind)
    story.hear(receipt(story.row, ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "timeout"))
    if story.state is not S.NEEDS_REVIEW:
        story.hear(settlement(story.row, FindVerdict.UNKNOWN))
    assert story.state is S.NEEDS_REVIEW
    return story


def unsent(findability: Findability = Findability.MARKER) -> Story:
    """An operation whose mandate had expired, redriven under a renewed one."""
    kind = declaration(findability=findability, manual_policy="ask the owner of the target")
    expired = {"expires_at": start_case().accepted_at}
    story = Story(start_case(decl=kind, grant="", mandate=expired), kind)
    assert story.state is S.FAILED and not maybe_sent(story.row)
    story.operate("REDRIVE", mandate_expires_at=story.at.later(7200).business)
    return story


def asked(story: Story) -> SettleRequested:
    (message,) = story.sent("SettleRequested")
    return SettleRequested.model_validate_json(message.data)


def test_a_redrive_looks_first_and_keeps_the_exception_until_it_is_true() -> None:
    """Nothing is sent before the reconciler has looked; what it finds is the success; only that closes the exception.

    Requirements: Q6, O3, Q7
    """
    story = dead()
    letter = story.case.obligations[0].obligation_id
    story.operate("REDRIVE")
    assert story.state is S.OUTCOME_UNKNOWN and not story.sent("GrantRequest") and not story.sent("ExecuteTask")
    assert asked(story).reason == "redrive" and asked(story).fence == story.row.fence
    assert [row.obligation_id for row in story.case.obligations] == [letter], "acted upon is not repaired"
    assert (story.row.operator_action, story.row.operator_status) == ("REDRIVE", "running")
    assert story.ends() == []
    story.hear(settlement(story.row)).hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert story.state is S.SUCCESS and story.case.obligations == ()
    assert story.obligations[letter].resolution_type == "operation_success"
    (end,) = story.ends()
    assert (end.operator_command_id, end.state, end.result["state"]) == ("opc_1", "DONE", "SUCCESS")
    acted = next(event for event in story.history if event.type == "OperatorActed")
    assert acted.payload["operator_command_id"] == "opc_1" and acted.payload["decision_id"] == "dec_2"
    assert acted.actor == "operator:ops"


def test_what_is_not_there_is_sent_again_on_the_decision_that_was_made() -> None:
    """Proved absent above every fence: a fresh grant, a new budget and deadline, and the decision goes along.

    Requirements: Q6, O3, E3
    """
    story = dead()
    deadline, count, fence = story.row.deadline_at, story.row.attempt_count, story.row.fence
    story.operate("REDRIVE", mandate_expires_at=story.at.later(7200).business)
    story.hear(settlement(story.row, FindVerdict.MISSING))
    assert story.state is S.RETRY_PENDING
    story.wait(10).hear(Due()).operate_dispatch()
    (message,) = story.sent("GrantRequest")
    request = GrantRequest.model_validate_json(message.data)
    assert request.task.decided_by == "opc_1" and request.task.fence > fence + 1
    assert story.row.deadline_at > deadline and story.row.attempts_before == count
    for number in range(BARE.retry.attempts_max):
        assert story.state is S.QUEUED, f"attempt {number} of the new budget"
        story.hear(receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"))
        if story.state is S.RETRY_PENDING:
            story.wait(10).hear(Due()).operate_dispatch()
    assert story.state is S.DEAD_LETTERED
    (end,) = story.ends()
    assert (end.state, end.result["state"]) == ("DONE", "DEAD_LETTERED")
    assert len(story.case.obligations) == 1, "the same dead letter, still open"


def test_a_permanent_refusal_is_sent_again_only_on_a_decision() -> None:
    """After a 403 a find that proves absence ends it, unless a person decided to try again.

    Requirements: Q6, X5
    """
    story = forbidden()
    story.operate("REDRIVE").hear(settlement(story.row, FindVerdict.MISSING))
    assert story.state is S.RETRY_PENDING
    looked = forbidden()
    looked.operate("RECONCILE").hear(settlement(looked.row, FindVerdict.MISSING))
    assert looked.state is S.FAILED and not looked.sent("GrantRequest")
    (end,) = looked.ends()
    assert (end.state, end.result["state"]) == ("DONE", "FAILED")


def test_to_reconcile_is_to_look_and_nothing_else() -> None:
    """A dead letter of which nothing is found is not sent again, although its error would permit it.

    Requirements: O3
    """
    story = dead()
    story.operate("RECONCILE").hear(settlement(story.row, FindVerdict.MISSING))
    assert story.state is S.FAILED and story.row.error_code == "proved_absent" and not story.sent("GrantRequest")
    (end,) = story.ends()
    assert (end.state, end.result["state"]) == ("DONE", "FAILED")


def test_what_never_sent_anything_goes_out_again_at_once() -> None:
    """A refused grant touched nothing: RETRY queues it under a fresh grant without a look.

    Requirements: O3
    """
    story = Story(start_case(grant="", mandate={"expires_at": start_case().accepted_at}))
    assert story.state is S.FAILED and not maybe_sent(story.row)
    story.operate("RETRY", mandate_expires_at=story.at.later(7200).business)
    assert story.state is S.QUEUED and story.row.proposed and not story.sent("SettleRequested")
    (message,) = story.sent("GrantRequest")
    assert GrantRequest.model_validate_json(message.data).task.decided_by == "opc_1"
    assert story.row.identity == "who", "its business identity is its own again"
    late = dead()
    late.operate("RETRY")
    (end,) = late.ends()
    assert end.state == "REFUSED" and "REDRIVE" in end.allowed_actions and late.state is S.DEAD_LETTERED


def test_a_redrive_looks_at_what_was_never_sent_too() -> None:
    """Every attempt was refused before its first byte. The world went on: it is observed, what is there is taken as
    done, and what is proved absent goes out under a fresh grant, once.

    Requirements: Q6
    """
    story = unsent()
    assert story.state is S.OUTCOME_UNKNOWN and story.sent("SettleRequested") and not story.sent("GrantRequest")
    there = deepcopy(story).hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert there.state is S.SUCCESS and not there.sent("GrantRequest")
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=3))
    assert story.state is S.RETRY_PENDING and story.row.attempts == [], "no attempt is made up"
    story.wait(60).hear(Due()).operate_dispatch()
    (message,) = story.sent("GrantRequest")
    task = GrantRequest.model_validate_json(message.data).task
    assert story.row.proposed and (task.decided_by, task.fence) == ("opc_1", 4)
    lost = unsent(Findability.NONE)
    assert lost.state is S.QUEUED and lost.sent("GrantRequest") and not lost.sent("SettleRequested")


def test_the_table_of_redrives_is_whole() -> None:
    """Requirements: Q6"""
    assert set(REDRIVE) == set(product((True, False), repeat=2))
    assert [pair for pair, way in REDRIVE.items() if way is Way.SEND] == [(False, False)]


def test_a_retry_that_waits_goes_now() -> None:
    """Requirements: O3"""
    story = Story(start_case())
    story.hear(receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable", retry_after_seconds=300))
    assert story.state is S.RETRY_PENDING
    story.operate("RETRY")
    assert story.state is S.QUEUED and story.row.proposed
    assert story.ends() == []
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED))
    assert story.state is S.SUCCESS and story.ends()[0].result["state"] == "SUCCESS"


@pytest.mark.parametrize(("first", "action"), [("RUNNING", "CANCEL"), ("RETRY_PENDING", "RETRY")])
def test_doubt_has_an_owner_whoever_acts_on_it(first: str, action: str) -> None:
    """What nobody can say becomes an exception, also of an operation that somebody cancels or sends again just now.

    Requirements: P3, O3
    """
    story = Story(start_case())
    if first == "RETRY_PENDING":
        story.hear(receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"))
    story.operate(action)
    if action == "RETRY":
        story.operate_dispatch()
    story.hear(receipt(story.row, ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "timeout"))
    assert story.state is S.OUTCOME_UNKNOWN and story.row.operator_status == "running"
    assert [item.kind for item in story.case.obligations] == ["unknown_outcome"]


@pytest.mark.parametrize("make", [forbidden, dead, doubtful])
def test_a_second_click_has_no_second_effect(make: Any) -> None:
    """While one is at work the table has nothing for another; the refusal says what there is.

    Requirements: I5, O6
    """
    story = make()
    story.operate("REDRIVE").operate("REDRIVE")
    (end,) = story.ends()
    assert (end.operator_command_id, end.state) == ("opc_2", "REFUSED")
    assert end.allowed_actions == ("CANCEL",)
    assert story.row.operator_command_id == "opc_1"
    assert story.history[-1].type == "OperatorRefused"


def test_whoever_has_the_key_or_the_identity_by_now_stays_alone() -> None:
    """A failed command gave its identity up; tried again it would double what another one did since.

    Requirements: I2, O5
    """
    story = forbidden()
    assert story.row.identity is None
    story.operate("REDRIVE", rival="cmd_other")
    (end,) = story.ends()
    assert end.state == "REFUSED" and "cmd_other" in (end.detail or "") and "REDRIVE" not in end.allowed_actions
    assert story.state is S.FAILED


def test_nothing_is_sent_under_revoked_authority() -> None:
    """Requirements: G5, O3"""
    story = forbidden()
    story.authority = REVOKED
    story.operate("REDRIVE")
    (end,) = story.ends()
    assert end.state == "REFUSED" and set(end.allowed_actions) == {"RECONCILE", "SETTLE", "MARK_RESOLVED"}


def test_a_person_settles_an_unknown_as_existing() -> None:
    """EXISTS: the receipt is the person's, what it establishes is told and verified like any other.

    Requirements: E3
    """
    story = doubtful()
    story.operate("SETTLE", params={"finding": "EXISTS", "receipt": {"page_id": "7"}, "external_resource_id": "7"})
    assert story.state is S.SUCCESS and story.row.receipt == {"page_id": "7"}
    assert (story.row.resolution_type, story.row.result_reference) == ("settled_exists", "opc_1")
    assert story.sent("Established") and story.case.instance.status is InstanceStatus.VERIFYING
    (end,) = story.ends()
    assert (end.state, end.result["state"]) == ("DONE", "SUCCESS")


def test_a_person_settles_an_unknown_as_absent_and_a_resend_needs_a_new_approval() -> None:
    """ABSENT: failed, and this operation is never sent again.

    Requirements: E3
    """
    story = doubtful()
    story.operate("SETTLE", params={"finding": "ABSENT"})
    assert story.state is S.FAILED and story.row.error_code == "settled_absent"
    story.operate("REDRIVE")
    (end,) = story.ends()
    assert end.state == "REFUSED" and not {"REDRIVE", "RETRY"} & set(end.allowed_actions)


def test_a_person_closes_an_unknown_with_the_disposition_of_its_effects() -> None:
    """CLOSE: resolved, and never moves again.

    Requirements: E3
    """
    story = doubtful(Findability.NONE)
    said = [{"effect": story.row.command_id, "became": "removed by the owner"}]
    story.operate("SETTLE", params={"finding": "CLOSE", "disposition": said})
    assert story.state is S.RESOLVED and story.case.instance.status is InstanceStatus.RESOLVED
    assert story.case.obligations == () and story.row.resolved_at is not None
    assert next(event for event in story.history if event.type == "OperatorActed").payload["disposition"] == said
    for action in OperatorAction:
        story.operate(action.value, params={"finding": "CLOSE", "disposition": said})
        assert story.ends()[0].state == "REFUSED" and story.state is S.RESOLVED


def test_what_cannot_be_found_is_never_sent_again() -> None:
    """Findability none: after a first byte only a person's settlement ends it.

    Requirements: X8, E3
    """
    story = doubtful(Findability.NONE)
    story.operate("REDRIVE")
    (end,) = story.ends()
    assert end.state == "REFUSED" and set(end.allowed_actions) == {"SETTLE", "MARK_RESOLVED"}


def test_two_effects_of_one_operation_can_be_closed_only() -> None:
    """SUCCESS never changes; that a person looked at the second effect ends the exception, until new evidence comes.

    Requirements: E3, P3
    """
    story = Story(start_case())
    first = story.row
    story.hear(receipt(first, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"))
    story.wait(10).hear(Due()).operate_dispatch()
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED))
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, fence=1, resource="43"))
    assert story.kinds == ["needs_review"] and story.state is S.SUCCESS
    story.operate("SETTLE", params={"finding": "CLOSE", "disposition": [{"effect": "43", "became": "deleted"}]})
    assert story.kinds == [] and story.state is S.SUCCESS
    assert story.case.instance.status is not InstanceStatus.HUMAN_TAKEOVER
    story.operate("REDRIVE")
    assert story.ends()[0].state == "REFUSED"
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, fence=3, resource="44"))
    assert story.kinds == ["needs_review"], "what the person looked at did not include this"


def test_an_effect_that_comes_to_light_after_a_settlement_is_not_forgotten() -> None:
    """ABSENT, a person said; then the attempt's own word comes that it landed: an exception, and no FAILED that stands.

    Requirements: E3, X4
    """
    story = doubtful()
    story.operate("SETTLE", params={"finding": "ABSENT"})
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, fence=1))
    assert story.state is S.FAILED and story.row.resolution_type is None
    assert "effect_after_failure" in {row.envelope["failure_code"] for row in story.case.obligations}


def test_a_cancel_of_a_command_ends_when_it_has_ended() -> None:
    """What is out is marked only, and the act is done when its end is known.

    Requirements: L12
    """
    story = Story(start_case(), authority=FREE)
    story.operate("CANCEL")
    assert story.ends() == [] and story.row.cancel_requested
    story.operate("CANCEL")
    assert story.ends()[0].state == "REFUSED"
    story.hear(receipt(story.row, ReceiptStatus.NOT_SENT, ErrorClass.TRANSIENT, "start_by_passed"))
    assert story.state is S.CANCELLED
    assert [(end.operator_command_id, end.result["state"]) for end in story.ends()] == [("opc_1", "CANCELLED")]
