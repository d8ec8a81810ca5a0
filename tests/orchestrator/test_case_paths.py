"""Single cases from acceptance to their end, one message per commit, reloaded between any two."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.orchestrator.cases import (
    BARE,
    NOW,
    PAGE,
    TERMS,
    At,
    Story,
    declaration,
    observation,
    receipt,
    settlement,
    start_case,
    verified,
)

from trueup_common.contracts.events import CaseChanged, GrantRefused, GrantRequest, SettleRequested
from trueup_common.contracts.history import verify
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import (
    EffectClass,
    ErrorClass,
    Findability,
    FindVerdict,
    OperationState,
    ProbeVerdict,
    ReceiptStatus,
    RiskLevel,
)
from trueup_common.contracts.task import ExecuteTask, RunningAttempt, Target
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.decide import Beaten, Cancel, Dispatch, Due
from trueup_orchestrator.core.launch import AcceptanceGrant

S = OperationState
CONFIRMED, REJECTED, UNKNOWN = ReceiptStatus.CONFIRMED, ReceiptStatus.REJECTED, ReceiptStatus.UNKNOWN
TRANSIENT, PERMANENT, BUSINESS = ErrorClass.TRANSIENT, ErrorClass.PERMANENT, ErrorClass.BUSINESS


def lease(story: Story) -> None:
    """An operation in flight holds a lease with an owner."""
    assert story.row.lease_owner and story.row.lease_expires_at and story.row.start_by


def test_the_happy_path_passes_every_state_in_two_commits() -> None:
    """Requirements: X2, L4"""
    story = Story()
    assert story.state is S.DISPATCHING
    lease(story)
    (task,) = (ExecuteTask.model_validate_json(item.data) for item in story.sent("ExecuteTask"))
    assert (task.fence, task.grant, task.attempt_id) == (1, "grant", story.sent("ExecuteTask")[0].id)
    assert task.lease_expires_at > task.start_by + timedelta(seconds=PAGE.timeout_seconds)
    story.wait(1).hear(receipt(story.row, CONFIRMED))
    assert story.state is S.SUCCESS
    assert story.case.instance.status == "CLOSED"
    assert story.case.instance.closed_at == story.at.business
    assert [event.payload["states"] for event in story.history] == [
        ["RECEIVED", "VALIDATING", "AUTHORIZED", "QUEUED", "DISPATCHING"],
        ["DISPATCHING", "RUNNING", "SUCCESS"],
    ]
    assert verify(story.history) is None
    assert story.row.attempt_count == 1
    assert story.row.desired_state == story.row.recorded_state == story.row.observed_state == {"site.status": "draft"}
    assert story.row.lease_expires_at is None
    assert not story.obligations


def test_what_is_said_of_a_finished_case() -> None:
    """The durable event carries the whole history, the waiting replica is answered, the reconciler takes over."""
    story = Story().wait(1)
    progress = [item for item in story.last.outgoing if item.message.type == "CaseChanged"]
    assert [item.durable for item in progress] == [False]
    story.hear(receipt(story.row, CONFIRMED))
    (changed,) = (item for item in story.last.outgoing if item.message.type == "CaseChanged")
    assert changed.durable
    body = CaseChanged.model_validate_json(changed.message.data)
    assert [event.seq for event in body.history] == [1, 2]
    assert body.instance.published_seq == 2
    (answer,) = (item for item in story.last.outgoing if item.message.type == "CaseAnswered")
    assert (answer.core, answer.durable, answer.message.subject) == (True, False, "trueup.answer.gateway")
    assert [item.message.type for item in story.last.outgoing].count("Established") == 1


def test_a_command_without_elements_needs_no_word_to_the_reconciler() -> None:
    """Counts what one command sends: a task, then one durable event.

    Requirements: M1
    """
    story = Story(decl=BARE)
    durable = [item.message.type for item in story.last.outgoing if item.durable]
    story.wait(1).hear(receipt(story.row, CONFIRMED, observations=()))
    durable += [item.message.type for item in story.last.outgoing if item.durable]
    assert durable == ["ExecuteTask", "CaseChanged"]
    assert story.case.instance.status == "CLOSED"


def test_unverified_elements_stay_owed_until_observed() -> None:
    """SUCCESS is not the end: the case closes with the last element observed healthy, and not before."""
    slow = PAGE.establishes[0].model_copy(update={"window_seconds": 60.0})
    decl = declaration(establishes=(slow,))
    story = Story(start_case(decl=decl), decl).wait(1)
    story.hear(receipt(story.row, CONFIRMED))
    assert (story.state, story.case.instance.status) == (S.SUCCESS, "VERIFYING")
    assert [item["element"] for item in story.case.instance.owed] == ["site.status"]
    story.hear(verified(story.row, resource="another"))
    assert story.case.instance.status == "VERIFYING"
    story.hear(verified(story.row))
    assert (story.case.instance.status, story.case.instance.owed) == ("CLOSED", [])


@pytest.mark.parametrize("seen", [None, "publish", "unknown"])
def test_a_read_back_that_differs_is_not_verified(seen: str | None) -> None:
    """No read-back, another value, or a read that says nothing: the element stays owed until it is observed.

    Requirements: X6
    """
    read = () if seen is None else (observation(seen),)
    if seen == "unknown":
        read = (observation("draft", verdict=ProbeVerdict.UNKNOWN),)
    story = Story().wait(1)
    story.hear(receipt(story.row, CONFIRMED, observations=read))
    assert (story.state, story.case.instance.status) == (S.SUCCESS, "VERIFYING")
    assert [item["element"] for item in story.case.instance.owed] == ["site.status"]


def test_overdue_verification_gets_an_owner_and_a_new_deadline() -> None:
    """Requirements: Q4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, CONFIRMED, observations=()))
    overdue = (story.case.instance.deadline_at - story.at.business).total_seconds()
    story.wait(overdue - 1).hear(Due())
    assert story.kinds == []
    story.wait(2).hear(Due())
    assert story.kinds == ["needs_review"]
    assert story.case.obligations[0].owner == "operators"
    assert story.case.instance.deadline_at > story.at.business
    story.hear(verified(story.row))
    assert (story.case.instance.status, story.kinds) == ("CLOSED", [])
    assert [row.status for row in story.obligations.values()] == ["closed"]


def test_a_transient_rejection_waits_and_tries_again_until_the_budget_is_spent() -> None:
    """Requirements: X5, Q2"""
    story = Story()
    for attempt in (1, 2):
        story.wait(1).hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable", external_status="503"))
        assert story.state is S.RETRY_PENDING
        assert story.row.wake_at == story.row.next_retry_at is not None
        assert story.row.attempt_count == attempt
        story.hear(Due())
        assert story.state is S.RETRY_PENDING, "not due yet" if story.row.wake_at > story.at.business else ""
        story.wait(20).hear(Due()).hear(Dispatch(attempt + 1))
        assert (story.state, story.row.fence, story.row.proposed) == (S.QUEUED, attempt + 1, True)
    story.wait(1).hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable", external_status="503"))
    assert (story.state, story.row.dead_letter_reason) == (S.DEAD_LETTERED, "attempts_exhausted")
    assert story.case.instance.status == "HUMAN_TAKEOVER"
    assert story.kinds == ["dead_letter"]
    envelope = story.case.obligations[0].envelope
    assert envelope["failure_reason"] == "attempts_exhausted: the last attempt met unavailable, the target answered 503"
    assert set(envelope) == {
        "command_id",
        "workflow_id",
        "saga_id",
        "failed_step",
        "failure_class",
        "failure_code",
        "failure_reason",
        "first_failed_at",
        "last_failed_at",
        "attempt_count",
        "last_external_status",
        "payload_reference",
        "decision_id",
        "capability_id",
        "recommended_repair",
        "human_review_required",
        "agent",
        "policy_sha256",
        "adapter_version",
    }
    assert (envelope["attempt_count"], envelope["last_external_status"]) == (3, "503")
    assert (envelope["failure_code"], envelope["failure_class"]) == ("attempts_exhausted", "DEPENDENCY_ERROR")
    assert all(value is not None for value in envelope.values())
    assert [item["fence"] for item in story.row.attempts] == [1, 2, 3]


def test_retry_after_is_honoured() -> None:
    """Requirements: X5"""
    story = Story().wait(1)
    story.hear(receipt(story.row, REJECTED, TRANSIENT, "rate_limited", retry_after_seconds=300.0))
    assert story.row.next_retry_at == story.at.business + timedelta(seconds=300)


def test_no_attempt_starts_that_cannot_finish_before_the_deadline() -> None:
    """Requirements: X5"""
    story = Story(start_case(deadline_seconds=12.0))
    (task,) = (ExecuteTask.model_validate_json(item.data) for item in story.sent("ExecuteTask"))
    assert task.start_by == NOW + timedelta(seconds=2)
    late = Story(start_case(deadline_seconds=9.0))
    assert (late.state, late.row.dead_letter_reason) == (S.DEAD_LETTERED, "deadline_passed")
    assert not late.sent("ExecuteTask")
    assert late.kinds == ["dead_letter"]


def test_a_queued_operation_that_waits_too_long_is_dead_lettered() -> None:
    story = Story(start_case(deadline_seconds=60.0), dispatched=False)
    assert story.state is S.QUEUED
    assert story.row.wake_at is not None
    story.wait(49).hear(Due())
    assert story.state is S.QUEUED
    story.wait(2).hear(Due())
    assert (story.state, story.row.error_code) == (S.DEAD_LETTERED, "deadline_passed")


@pytest.mark.parametrize("error_class", [PERMANENT, BUSINESS])
def test_what_will_not_get_better_is_not_repeated(error_class: ErrorClass) -> None:
    """Requirements: X5"""
    story = Story().wait(1)
    story.hear(receipt(story.row, REJECTED, error_class, "payload_invalid", external_status="422"))
    assert (story.state, story.row.wake_at, story.kinds) == (S.FAILED, None, ["failed"])
    assert story.case.obligations[0].failure_class == "SCHEMA_ERROR"
    assert story.row.identity is None


@pytest.mark.parametrize("code", ["version_conflict", "foreign_object"])
def test_a_changed_version_ends_in_conflict_owned_by_a_person(code: str) -> None:
    story = Story().wait(1)
    story.hear(receipt(story.row, REJECTED, BUSINESS, code, external_status="409"))
    assert (story.state, story.kinds, story.row.human_review_required) == (S.CONFLICT, ["conflict"], True)
    assert story.case.obligations[0].owner == "operators"
    assert story.row.identity is not None


def test_not_sent_spends_no_attempt() -> None:
    """Requirements: X5, E2"""
    story = Story()
    for round_ in range(6):  # more often than the budget of three
        story.wait(1).hear(receipt(story.row, ReceiptStatus.NOT_SENT, TRANSIENT, "start_by_passed"))
        assert (story.state, story.row.attempt_count, story.row.backoff_count) == (S.QUEUED, 0, round_ + 1)
        assert story.row.wake_at is not None
        story.wait(10).hear(Due()).hear(Dispatch(round_))
        assert story.row.proposed


@pytest.mark.parametrize("status", [UNKNOWN, REJECTED])
def test_an_unknown_outcome_is_reconciled_and_never_resent(status: ReceiptStatus) -> None:
    """A rejection that does not say of which class it is counts as unknown too.

    Requirements: X4, Q4
    """
    story = Story().wait(1)
    story.hear(receipt(story.row, status, None, "answer_lost"))
    assert (story.state, story.kinds) == (S.OUTCOME_UNKNOWN, ["unknown_outcome"])
    assert story.case.obligations[0].deadline_at == story.at.business + timedelta(seconds=3600)
    (asked,) = (SettleRequested.model_validate_json(item.data) for item in story.sent("SettleRequested"))
    assert (asked.fence, asked.operation.command_id) == (1, story.row.command_id)
    assert not story.sent("ExecuteTask") and not story.sent("GrantRequest")
    story.hear(settlement(story.row))
    assert (story.state, story.kinds) == (S.RECONCILING, ["unknown_outcome"])
    story.hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert (story.state, story.kinds, story.row.attempt_count) == (S.SUCCESS, [], 1)
    assert story.case.instance.status == "CLOSED"
    assert [row.resolution_type for row in story.obligations.values()] == ["operation_success"]


def test_proved_absence_lets_it_be_sent_again_above_the_fence_that_was_shut_out() -> None:
    """Requirements: X4, E3"""
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=7))
    assert (story.state, story.row.fence) == (S.RETRY_PENDING, 7)
    story.wait(20).hear(Due()).hear(Dispatch(2))
    (request,) = (GrantRequest.model_validate_json(item.data) for item in story.sent("GrantRequest"))
    assert (request.task.fence, request.task.grant) == (8, "")


@pytest.mark.parametrize("verdict", [None, FindVerdict.MISSING, FindVerdict.UNKNOWN])
def test_a_settlement_of_an_earlier_attempt_decides_nothing(verdict: FindVerdict | None) -> None:
    """It comes again, late, while a newer attempt is undecided.

    Requirements: X4
    """
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=2))
    story.wait(20).hear(Due()).hear(Dispatch(2))
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    assert (story.state, story.row.fence) == (S.OUTCOME_UNKNOWN, 3)
    story.hear(settlement(story.row, verdict, fence=2))
    assert (story.state, story.row.fence) == (S.OUTCOME_UNKNOWN, 3)


@pytest.mark.parametrize("revoked", [True, False])
def test_absence_is_not_resent_without_authority(revoked: bool) -> None:
    """Requirements: E3"""
    message = start_case(mandate={"expires_at": NOW + timedelta(seconds=30)})
    story = Story(message).wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    if revoked:
        story.hear(settlement(story.row, FindVerdict.MISSING), authority=Authority(revoked="mandate man_1 is revoked"))
    else:
        story.wait(60).hear(settlement(story.row, FindVerdict.MISSING))
    assert (story.state, story.row.error_code) == (S.FAILED, "revoked" if revoked else "mandate_expired")


@pytest.mark.parametrize("verdict", [FindVerdict.UNKNOWN, FindVerdict.AMBIGUOUS])
def test_what_cannot_be_decided_goes_to_a_person(verdict: FindVerdict) -> None:
    """Requirements: X4, Q4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, verdict, candidates=2))
    assert (story.state, story.kinds) == (S.NEEDS_REVIEW, ["needs_review"])
    assert story.row.human_review_required
    assert story.row.identity is not None
    assert story.case.instance.status == "HUMAN_TAKEOVER"


def test_without_findability_an_unknown_outcome_goes_to_a_person_at_once() -> None:
    """Requirements: X8, X4"""
    decl = declaration(findability=Findability.NONE, manual_policy="ask the target's owner")
    story = Story(start_case(decl=decl), decl).wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    assert (story.state, story.kinds) == (S.NEEDS_REVIEW, ["needs_review"])
    assert not story.sent("SettleRequested")


def test_a_lost_lease_is_an_orphan_not_a_failure() -> None:
    """Requirements: X4, R7"""
    story = Story()
    expires = (story.row.lease_expires_at - NOW).total_seconds()  # type: ignore[operator]
    story.wait(expires - 1).hear(Due())
    assert story.state is S.DISPATCHING
    story.wait(1).hear(Due())
    assert (story.state, story.kinds, story.row.lease_owner) == (S.ORPHAN_SUSPECTED, ["stale_running"], None)
    (asked,) = (SettleRequested.model_validate_json(item.data) for item in story.sent("SettleRequested"))
    assert asked.late_until == NOW + timedelta(seconds=20 + 10 + 5)
    story.hear(receipt(story.row, CONFIRMED))
    assert (story.state, story.kinds) == (S.SUCCESS, [])


def test_a_settlement_that_nobody_answers_is_asked_for_again() -> None:
    """Requirements: R7"""
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    first = story.sent("SettleRequested")[0].id
    story.wait(900).hear(Due())
    assert story.sent("SettleRequested")[0].id != first
    assert story.row.wake_at > story.at.business  # type: ignore[operator]
    story.hear(settlement(story.row))
    story.wait(900).hear(Due())
    assert (story.state, len(story.sent("SettleRequested"))) == (S.RECONCILING, 1)


def test_beats_start_an_attempt_and_renew_its_lease() -> None:
    """Requirements: E5"""
    story = Story()
    attempt = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=1)
    story.wait(2).hear(Beaten(attempt, "adapters-1", story.at.real))
    assert (story.state, story.row.lease_owner) == (S.RUNNING, "adapters-1")
    first = story.row.lease_expires_at
    assert first is not None
    story.hear(Beaten(attempt, "adapters-1", story.at.real))
    assert story.row.lease_expires_at == first, "a young lease is not written again"
    story.wait((first - story.at.real).total_seconds() - 2).hear(Beaten(attempt, "adapters-1", story.at.real))
    assert story.row.lease_expires_at > first
    old = attempt.model_copy(update={"fence": 0})
    version = story.row.state_version
    story.hear(Beaten(old, "adapters-0", story.at.real))
    assert story.row.state_version == version


def test_a_beat_of_a_suspected_orphan_resumes_it() -> None:
    """Requirements: R7"""
    story = Story().wait(60).hear(Due())
    assert story.state is S.ORPHAN_SUSPECTED
    attempt = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=1)
    story.hear(Beaten(attempt, "adapters-1", story.at.real))
    assert (story.state, story.kinds) == (S.RUNNING, [])
    lease(story)
    story.hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable"))
    assert story.row.fence > 50, "leaps over the fences that the settlement may have used meanwhile"


def test_beats_without_progress_raise_an_alarm_until_the_attempt_gets_on() -> None:
    """Requirements: E5, Q4"""
    decl = declaration(timeout_seconds=600.0, progress_seconds=30.0)
    story = Story(start_case(decl=decl, grant_expires_at=NOW + timedelta(hours=1)), decl)
    attempt = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=1, progress=1)

    def beat(progress: int) -> Beaten:
        return Beaten(attempt.model_copy(update={"progress": progress}), "adapters-1", story.at.real)

    story.hear(beat(1))
    story.wait(20).hear(beat(2))
    story.wait(29).hear(beat(2))
    assert story.kinds == []
    story.wait(2).hear(beat(2))
    assert (story.state, story.kinds) == (S.RUNNING, ["stale_running"])
    seq = story.case.instance.history_seq
    story.wait(5).hear(beat(2))
    assert story.case.instance.history_seq == seq
    story.wait(1).hear(beat(3))
    assert (story.state, story.kinds) == (S.RUNNING, [])
    story.wait(40).hear(beat(3)).hear(receipt(story.row, CONFIRMED))
    assert (story.state, story.kinds) == (S.SUCCESS, [])
    assert [row.status for row in story.obligations.values()] == ["closed", "closed"]


def test_an_older_confirmation_bars_failure_until_the_effects_are_counted() -> None:
    """Requirements: E2, X4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=2))
    story.wait(20).hear(Due()).hear(Dispatch(2))
    story.hear(receipt(story.row, CONFIRMED, fence=1))
    assert (story.state, story.row.fence) == (S.QUEUED, 3), "an older receipt moves nothing"
    story.hear(receipt(story.row, REJECTED, PERMANENT, "payload_invalid"))
    assert (story.state, story.row.error_code) == (S.OUTCOME_UNKNOWN, "older_attempt_confirmed")
    assert len(story.sent("SettleRequested")) == 1
    story.hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert story.state is S.SUCCESS


@pytest.mark.parametrize("state", [S.RETRY_PENDING, S.QUEUED])
def test_nothing_is_sent_again_once_an_older_attempt_is_known_to_have_landed(state: OperationState) -> None:
    """Requirements: E2, I1"""
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=2))
    if state is S.QUEUED:
        story.wait(20).hear(Due())
    assert story.state is state
    story.hear(receipt(story.row, CONFIRMED, fence=1))
    assert story.state is state
    story.wait(20).hear(Due()).hear(Dispatch(2))
    assert story.state is S.OUTCOME_UNKNOWN
    assert not story.sent("GrantRequest") and not story.sent("ExecuteTask")


def test_two_effects_of_one_operation_are_told_to_a_person() -> None:
    """Requirements: Q4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, CONFIRMED))
    assert story.case.instance.status == "CLOSED"
    story.hear(receipt(story.row, CONFIRMED, fence=0, resource="43"))
    assert (story.state, story.case.instance.status) == (S.SUCCESS, "CLOSED")
    assert story.kinds == ["needs_review"]
    assert story.case.obligations[0].envelope["failure_code"] == "effects_duplicated"


@pytest.mark.parametrize(("seconds", "kinds"), [(16.0, []), (60.0, ["needs_review"])])
def test_an_attempt_that_overslept_its_late_window_may_have_acted_beside_the_second_one(
    seconds: float, kinds: list[str]
) -> None:
    """A process stood still inside its last write; the operation was proved absent, sent again, and succeeded. Then the
    first attempt says that it was under way all the time. A word that was only slow to arrive proves nothing.

    Requirements: E2, E3, Q4
    """
    story = Story().wait(1)
    first, late_until = story.row.fence, NOW + timedelta(seconds=16)
    story.wait(40).hear(Due())
    story.hear(settlement(story.row, FindVerdict.MISSING, fence=2))
    story.wait(20).hear(Due()).hear(Dispatch(2))
    assert story.row.fence > first
    story.hear(receipt(story.row, CONFIRMED))
    assert (story.state, story.kinds) == (S.SUCCESS, [])
    own_word = receipt(story.row, UNKNOWN, None, "timeout", fence=first, late_until=late_until)
    story.hear(own_word.evolve(ended_at=NOW + timedelta(seconds=seconds)))
    assert (story.state, story.case.instance.status, story.kinds) == (S.SUCCESS, "CLOSED", kinds)
    assert all(item.envelope["failure_code"] == "effects_duplicated" for item in story.case.obligations)


def test_a_late_confirmation_after_failure_is_not_swallowed() -> None:
    """Requirements: Q4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, REJECTED, PERMANENT, "forbidden"))
    story.hear(receipt(story.row, CONFIRMED, fence=0))
    assert (story.state, story.kinds) == (S.FAILED, ["failed", "needs_review"])


def test_a_stale_attempt_proves_nothing_and_is_looked_up() -> None:
    """Requirements: X4"""
    story = Story().wait(1)
    story.hear(receipt(story.row, ReceiptStatus.STALE))
    assert (story.state, len(story.sent("SettleRequested"))) == (S.ORPHAN_SUSPECTED, 1)
    story.hear(settlement(story.row))
    story.hear(receipt(story.row, ReceiptStatus.STALE, found=True))
    assert story.state is S.RECONCILING


def test_a_proposed_task_waits_for_its_grant_with_a_lease() -> None:
    """Requirements: G5"""
    story = Story(start_case(grant=""))
    assert (story.state, story.row.proposed, story.row.fence) == (S.QUEUED, True, 1)
    assert story.row.lease_expires_at is not None
    (request,) = (GrantRequest.model_validate_json(item.data) for item in story.sent("GrantRequest"))
    assert request.mandate_id == story.row.mandate_id
    story.wait(1).hear(receipt(story.row, CONFIRMED))
    assert story.history[-1].payload["states"] == ["QUEUED", "DISPATCHING", "RUNNING", "SUCCESS"]


def test_a_grant_that_does_not_cover_the_attempt_is_not_used() -> None:
    """Requirements: G5"""
    story = Story(start_case(grant_expires_at=NOW + timedelta(seconds=29)))
    assert (story.sent("ExecuteTask"), len(story.sent("GrantRequest"))) == ([], 1)


def test_a_proposal_without_a_word_is_suspected_and_looked_up() -> None:
    """Requirements: X4"""
    story = Story(start_case(grant="")).wait(60).hear(Due())
    assert story.history[-1].payload["states"] == ["QUEUED", "DISPATCHING", "ORPHAN_SUSPECTED"]
    assert len(story.sent("SettleRequested")) == 1


@pytest.mark.parametrize(("transient", "check"), [(True, "frozen"), (False, "revoked"), (False, "policy")])
def test_a_refused_grant(transient: bool, check: str) -> None:
    """A passing reason keeps the operation queued, with a time to look again; anything else ends it."""
    story = Story(start_case(grant="")).wait(1)
    refused = GrantRefused(
        command_id=story.row.command_id,
        workflow_id=story.row.workflow_id,
        tenant="acme",
        fence=1,
        check=check,
        detail="said no",
        transient=transient,
    )
    story.hear(refused.model_copy(update={"fence": 9}))
    assert story.row.proposed
    story.hear(refused)
    if transient:
        assert (story.state, story.row.lease_expires_at, story.row.error_code) == (S.QUEUED, None, check)
        assert story.row.wake_at is not None
        story.wait(30).hear(Due()).hear(Dispatch(2))
        assert (story.row.proposed, story.row.fence) == (True, 2)
    else:
        assert story.state is S.FAILED
        assert story.row.error_code == ("revoked" if check == "revoked" else "grant_refused")
        assert story.kinds == ["failed"]


def test_revocation_ends_what_is_not_dispatched() -> None:
    """Requirements: G5"""
    story = Story(start_case(), dispatched=False)
    story.hear(Dispatch(1), authority=Authority(revoked="capability cap_1 is revoked"))
    assert (story.state, story.row.error_code, story.sent("GrantRequest")) == (S.FAILED, "revoked", [])
    refused = Story(start_case(2), authority=Authority(revoked="mandate man_1 is revoked"))
    assert (refused.state, refused.row.error_class) == (S.FAILED, PERMANENT)


@pytest.mark.parametrize("risk", list(RiskLevel))
@pytest.mark.parametrize("authority", [Authority(frozen=True), Authority(stale=True)])
def test_freezes_and_stale_governance_hold_back(authority: Authority, risk: RiskLevel) -> None:
    """A freeze holds everything back, a stale watch only high risk; both keep the operation queued.

    Requirements: G6
    """
    story = Story(start_case(risk=risk), authority=authority)
    held = authority.frozen or risk in (RiskLevel.HIGH, RiskLevel.CRITICAL)
    assert story.state is (S.QUEUED if held else S.DISPATCHING)
    if held:
        assert not story.sent("ExecuteTask") and not story.sent("GrantRequest")
        assert story.row.wake_at is not None and story.row.attempt_count == 0
        story.wait(30).hear(Due(), authority=Authority()).hear(Dispatch(2), authority=Authority())
        assert story.row.proposed


CLIMBING = Target(system="site", resource="page/../post")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mandate": {"command_types": ("site.other",)}}, "mandate_command_type"),
        ({"mandate": {"effects_max": 0}}, "mandate_effects"),
        ({"mandate": {"expires_at": NOW}}, "mandate_expired"),
        ({"mandate": {"effect_class_max": EffectClass.READ}}, "mandate_effect_class"),
        ({"mandate": {"system": "mail"}}, "mandate_system"),
        ({"mandate": {"resource": "post"}}, "mandate_resource"),
        ({"mandate": {"resource": "page/*"}, "target": CLIMBING}, "mandate_resource"),
        ({"mandate": {"tenant": "globex"}}, "mandate_tenant"),
    ],
)
def test_a_mandate_that_does_not_cover_the_command_refuses_it(changes: dict, code: str) -> None:
    story = Story(start_case(**changes))
    assert (story.state, story.row.error_class, story.row.error_code) == (S.FAILED, PERMANENT, code)
    assert story.history[0].payload["states"] == ["RECEIVED", "VALIDATING", "FAILED"]
    assert story.kinds == ["failed"]
    assert not story.sent("ExecuteTask")


def test_cancel_before_sending_cancels_at_once() -> None:
    story = Story(dispatched=False).hear(Cancel("changed my mind", "operator:ann"))
    assert (story.state, story.case.instance.status, story.row.identity) == (S.CANCELLED, "CANCELLED", None)


@pytest.mark.parametrize("end", ["absent", "unsent", "landed", "transient"])
def test_cancel_of_what_may_be_out_waits_until_it_is_settled(end: str) -> None:
    """Requirements: S3"""
    story = Story().wait(1).hear(Cancel("changed my mind", "operator:ann"))
    assert (story.state, story.case.instance.status) == (S.DISPATCHING, "CANCEL_PENDING")
    if end == "absent":
        story.hear(receipt(story.row, UNKNOWN, None, "timeout")).hear(settlement(story.row, FindVerdict.MISSING))
    elif end == "unsent":
        story.hear(receipt(story.row, ReceiptStatus.NOT_SENT, TRANSIENT, "start_by_passed"))
    elif end == "transient":
        story.hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable"))
    else:
        story.hear(receipt(story.row, CONFIRMED))
    if end == "landed":
        assert (story.state, story.case.instance.status, story.kinds) == (S.SUCCESS, "HUMAN_TAKEOVER", ["needs_review"])
    else:
        assert (story.state, story.case.instance.status, story.kinds) == (S.CANCELLED, "CANCELLED", [])


def test_cancel_of_a_proposal_waits_too() -> None:
    """The gateway may have minted the grant already."""
    story = Story(start_case(grant="")).hear(Cancel("no", "operator:ann"))
    assert (story.state, story.case.instance.status) == (S.QUEUED, "CANCEL_PENDING")
    story.wait(60).hear(Due())
    assert story.state is S.ORPHAN_SUSPECTED


@pytest.mark.parametrize("effect_class", [EffectClass.PIVOT, EffectClass.COMPENSABLE])
def test_the_pivot_of_a_single_command(effect_class: EffectClass) -> None:
    """Requirements: S3"""
    decl = declaration(effect_class=effect_class)
    pivotal = effect_class is EffectClass.PIVOT
    story = Story(start_case(decl=decl), decl).wait(1)
    assert story.case.instance.pivot == ("unknown" if pivotal else "no")
    story.hear(receipt(story.row, CONFIRMED))
    assert story.case.instance.pivot == ("passed" if pivotal else "no")


def test_the_journal_has_every_field_that_is_asked_for() -> None:
    """Requirements: X3"""
    asked = (
        "tenant step_id state_version execution_id supersedes command_id workflow_id saga_id decision_id capability_id "
        "command_type target_system target_resource idempotency_key request_fingerprint state desired_state "
        "recorded_state observed_state attempt_count lease_owner lease_acquired_at lease_expires_at heartbeat_at fence "
        "external_resource_id external_version result_reference error_class error_code created_at started_at "
        "last_attempt_at last_transition_at completed_at next_retry_at deadline_at compensation_command "
        "compensation_state last_reconciled_at reconciliation_status reconciliation_result drift_type dead_lettered_at "
        "dead_letter_reason repair_id repair_status repair_owner operator_status operator_action human_review_required "
        "resolved_at resolution_type correlation_id trace_id"
    ).split()
    assert set(asked) <= set(JournalRow.model_fields)
    story = Story().wait(1)
    story.hear(receipt(story.row, CONFIRMED))
    written = (
        "execution_id started_at last_attempt_at completed_at external_resource_id external_version result_reference "
        "recorded_state observed_state decision_id capability_id compensation_command request_fingerprint"
    ).split()
    assert all(getattr(story.row, name) is not None for name in written)


def test_two_clocks_are_kept_apart() -> None:
    """A jump of business time expires no lease, and makes a retry due."""
    story = Story()
    story.at = At(NOW + timedelta(hours=30), NOW + timedelta(seconds=1))
    story.hear(Due())
    assert story.state is S.DISPATCHING


def test_an_attempt_settled_by_looking_keeps_what_was_known_of_it() -> None:
    """The verdict makes the attempt surer; when it ended and how it looked at first stay on record.

    Requirements: X3
    """
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "connection_lost"))
    ended_at = story.row.attempts[0]["ended_at"]
    assert ended_at is not None
    story.wait(1).hear(settlement(story.row))
    story.wait(1).hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert story.state is S.SUCCESS
    (attempt,) = story.row.attempts
    assert (attempt["state"], attempt["ended_at"], attempt["error_code"]) == ("CONFIRMED", ended_at, "connection_lost")


def test_several_effects_are_no_success_whatever_the_verdict_says() -> None:
    """A confirmation that counted two candidates is a person's: one of them is one too many.

    Requirements: E3, Q4
    """
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(settlement(story.row, FindVerdict.CONFIRMED, candidates=2))
    assert (story.state, story.row.error_code, story.kinds) == (S.NEEDS_REVIEW, "effects_duplicated", ["needs_review"])


def test_the_grant_of_acceptance_is_for_the_first_attempt_only() -> None:
    """However long it lives, a later attempt asks for a grant of its own.

    Requirements: G5
    """
    story = Story(start_case(grant_expires_at=NOW + timedelta(hours=1))).wait(1)
    assert story.sent("ExecuteTask") or story.decisions[0].outgoing[0].message.type == "ExecuteTask"
    story.hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable"))
    story.wait(20).hear(Due())
    story.hear(Dispatch(2, AcceptanceGrant("grant", NOW + timedelta(hours=1))))
    assert (story.row.proposed, story.row.fence) == (True, 2)
    assert (len(story.sent("GrantRequest")), story.sent("ExecuteTask")) == (1, [])


def test_an_identity_is_kept_while_its_effect_may_stand() -> None:
    """What a person still has to find out keeps its business identity; what failed for good lets go of it.

    Requirements: I2
    """
    unknown = Story().wait(1)
    unknown.hear(receipt(unknown.row, UNKNOWN, None, "timeout"))
    unknown.hear(settlement(unknown.row, FindVerdict.UNKNOWN))
    assert (unknown.state, unknown.row.identity) == (S.NEEDS_REVIEW, "who")
    failed = Story(start_case(2)).wait(1)
    failed.hear(receipt(failed.row, REJECTED, PERMANENT, "forbidden"))
    assert (failed.state, failed.row.identity) == (S.FAILED, None)


def test_absence_is_not_believed_against_an_attempt_that_landed() -> None:
    """One attempt is known to have landed and a look finds nothing: a person decides, nothing is sent again.

    Requirements: E2, E3
    """
    story = Story().wait(1)
    story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
    story.hear(receipt(story.row, CONFIRMED, fence=0))
    story.hear(settlement(story.row, FindVerdict.MISSING))
    assert (story.state, story.row.error_code, story.kinds) == (
        S.NEEDS_REVIEW,
        "evidence_contradicts",
        ["needs_review"],
    )


@pytest.mark.parametrize("end", ["failed", "undecided", "orphan"])
def test_every_exception_has_an_owner_and_a_deadline_from_its_first_second(end: str) -> None:
    """Whatever kind it is: the owner of exceptions has it, and its deadline is one SLA from now.

    Requirements: Q4, P3
    """
    story = Story().wait(1)
    if end == "failed":
        story.hear(receipt(story.row, REJECTED, PERMANENT, "forbidden"))
    elif end == "undecided":
        story.hear(receipt(story.row, UNKNOWN, None, "timeout"))
        story.hear(settlement(story.row, FindVerdict.UNKNOWN))
    else:
        story.wait(60).hear(Due())
    (owed,) = story.case.obligations
    due = owed.opened_at + timedelta(seconds=TERMS.exception_sla_seconds)
    assert (owed.owner, owed.opened_at, owed.deadline_at) == (TERMS.exception_owner, story.at.business, due)


def test_a_beat_of_an_older_attempt_renews_nothing() -> None:
    """A stale worker that comes back keeps no lease alive, and starts nothing.

    Requirements: E5
    """
    story = Story().wait(1)
    stale = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=0)
    story.hear(Beaten(stale, "adapters-0", story.at.real))
    assert story.state is S.DISPATCHING
    own = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=1)
    story.hear(Beaten(own, "adapters-1", story.at.real))
    expires = story.row.lease_expires_at
    assert expires is not None
    story.wait((expires - story.at.real).total_seconds() - 1).hear(Beaten(stale, "adapters-0", story.at.real))
    assert (story.row.lease_expires_at, story.row.lease_owner) == (expires, "adapters-1")
    story.wait(2).hear(Due())
    assert story.state is S.ORPHAN_SUSPECTED
