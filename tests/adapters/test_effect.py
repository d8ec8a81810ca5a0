"""The ledger table: every status against every message under every relation of the fences."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.adapters.builders import (
    DECLARATION,
    LATE_SECONDS,
    START_SECONDS,
    TIMEOUT_SECONDS,
    Process,
    answers,
    declare,
    execute,
    find,
    operation,
    receipts,
)
from tests.adapters.memory import START, Ledger

from trueup_adapters.core.effect import (
    TABLE,
    Action,
    Asked,
    AttemptRow,
    EffectRow,
    LedgerStatus,
    Standing,
    decide,
    standing,
)
from trueup_adapters.core.fold import Purpose, fold_outcome
from trueup_adapters.core.job import Looked, LookJob, Sent
from trueup_common.contracts.adapter import Outcome, confirmed, not_sent, rejected, unknown
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.states import ErrorClass, Findability, FindVerdict, ReceiptStatus
from trueup_common.contracts.task import Found, Receipt
from trueup_common.runtime.host import Unprocessable

STANDINGS = [item for item in Standing if item is not Standing.NONE]


def test_a_pause_before_the_commit_is_no_time_to_send_in() -> None:
    """The process stood still between asking for the time and reading its own clock: it sees `send_by` as passed.

    Requirements: E2, E5
    """
    process = Process(Ledger())
    asked = process.monotonic()
    process.ledger.asked_at_seconds = asked
    process.monotonic = lambda: asked + 60.0  # type: ignore[method-assign]
    process.tasks.monotonic = process.monotonic
    process.deliver(execute())
    row = process.row()
    assert row.send_by is not None and row.sent_at is not None
    (job,) = process.sends
    assert job.send_by_seconds == asked + (row.send_by - row.sent_at).total_seconds()


def stored(status: Standing, fence: int = 3) -> EffectRow:
    """A row as it would stand in the ledger."""
    ledger_status, error_class = {
        Standing.REJECTED_TRANSIENT: (LedgerStatus.REJECTED, ErrorClass.TRANSIENT),
        Standing.REJECTED_PERMANENT: (LedgerStatus.REJECTED, ErrorClass.PERMANENT),
    }.get(status, (LedgerStatus(status.value) if status.value in LedgerStatus.__members__ else None, None))
    about = operation()
    assert ledger_status is not None
    sent = ledger_status not in (LedgerStatus.INTENT, LedgerStatus.TOMBSTONE)
    answered = ledger_status in (LedgerStatus.CONFIRMED, LedgerStatus.REJECTED, LedgerStatus.NOT_SENT)
    receipt = Receipt(
        command_id=about.command_id,
        workflow_id=about.workflow_id,
        tenant=about.tenant,
        system="alpha",
        command_type=about.command_type,
        attempt_id=attempt_id(about.command_id, fence),
        fence=fence,
        status=ReceiptStatus(ledger_status.value),
        error_class=error_class,
        ended_at=START,
    ) if answered else None  # fmt: skip
    return EffectRow(
        command_id=about.command_id,
        tenant=about.tenant,
        system="alpha",
        workflow_id=about.workflow_id,
        command_type=about.command_type,
        idempotency_key=about.idempotency_key,
        payload_sha256=about.payload_sha256,
        operation=about,
        status=ledger_status,
        error_class=error_class,
        fence=fence,
        attempt_id=attempt_id(about.command_id, fence) if sent else None,
        sent_fence=fence if sent else 0,
        worker="adapters#0" if sent else None,
        send_by=START - timedelta(seconds=60) if sent else None,
        sent_at=START - timedelta(seconds=65) if sent else None,
        late_until=START - timedelta(seconds=50) if sent else None,
        receipt=receipt,
        created_at=START,
        updated_at=START,
    )


def process_with(row: EffectRow) -> Process:
    ledger = Ledger()
    ledger.effects[row.command_id] = row
    return Process(ledger)


SENDS_ON_NEWER = {
    Standing.INTENT, Standing.ABSENT, Standing.TOMBSTONE, Standing.REJECTED_TRANSIENT, Standing.NOT_SENT,
}  # fmt: skip
"""Stated again, from the protocol's text: only where provably nothing happened, a newer task sends."""


def test_the_table_is_complete() -> None:
    """Requirements: E2. Every standing meets every message; without a row only a first task or a find can come."""
    wanted = {(s, a) for s in STANDINGS for a in Asked} | {(Standing.NONE, Asked.NEWER), (Standing.NONE, Asked.FIND)}
    assert set(TABLE) == wanted


@pytest.mark.parametrize("status", STANDINGS)
@pytest.mark.parametrize("is_find", [False, True])
def test_a_lower_fence_is_stale(status: Standing, is_find: bool) -> None:
    """Requirements: E5. Any row with a higher fence: stale, nothing is sent, the ledger does not move."""
    row = stored(status)
    process = process_with(row)
    outgoing = process.deliver(find(2) if is_find else execute(2))
    assert process.jobs == []
    assert process.row() == row
    if is_find:
        (answer,) = answers(outgoing)
        assert (answer.finding.verdict, answer.finding.reason, answer.fence) == (FindVerdict.UNKNOWN, "stale", 3)
    else:
        (receipt,) = receipts(outgoing)
        assert (receipt.status, receipt.fence, receipt.sent_at) == (ReceiptStatus.STALE, 2, None)


@pytest.mark.parametrize("status", STANDINGS)
def test_a_newer_task(status: Standing) -> None:
    """Requirements: I1, E2. Sends where nothing happened, looks where something may have, answers what is known."""
    process = process_with(stored(status))
    outgoing = process.deliver(execute(4))
    assert process.row().fence == 4
    if status in SENDS_ON_NEWER:
        (job,) = process.sends
        assert job.attempt.fence == 4
        assert process.row().status is LedgerStatus.SENT
        assert process.row().attempt_id == attempt_id("cmd_1", 4)
        assert outgoing == []
    elif status in (Standing.SENT, Standing.UNKNOWN):
        (look,) = process.looks
        assert look.look.purpose is Purpose.EXECUTE
        assert process.row().status.value == status.value
        assert outgoing == []
    else:
        assert process.jobs == []
        (receipt,) = receipts(outgoing)
        assert receipt.attempt_id == attempt_id("cmd_1", 4)
        assert receipt.fence == 4
        assert standing(process.row()) is status


@pytest.mark.parametrize("status", STANDINGS)
def test_the_same_task_again(status: Standing) -> None:
    """Requirements: I1. A redelivery never sends a second time; only an intent that never left is sent now."""
    row = stored(status)
    process = process_with(row)
    outgoing = process.deliver(execute(3))
    if status is Standing.INTENT:
        assert len(process.sends) == 1
        return
    assert process.jobs == []
    assert process.row() == row
    if status in (Standing.SENT, Standing.UNKNOWN):
        assert outgoing == []
    else:
        (receipt,) = receipts(outgoing)
        assert receipt.attempt_id == attempt_id("cmd_1", 3)
        if row.receipt is not None:
            assert receipt == row.receipt


@pytest.mark.parametrize("status", STANDINGS)
@pytest.mark.parametrize("fence", [3, 4])
def test_a_find(status: Standing, fence: int) -> None:
    """Requirements: E3, E5. A find raises the fence and looks; of a confirmed effect the receipt is the answer."""
    process = process_with(stored(status))
    outgoing = process.deliver(find(fence))
    assert process.row().fence == fence
    assert process.sends == []
    if status is Standing.CONFIRMED:
        (answer,) = answers(outgoing)
        assert answer.finding.verdict is FindVerdict.CONFIRMED
        assert process.looks == []
    else:
        (look,) = process.looks
        assert look.look.purpose is Purpose.FIND
        assert outgoing == []


@pytest.mark.parametrize("status", [Standing.REJECTED_PERMANENT, Standing.MANUAL])
def test_a_decision_lets_a_permanent_rejection_be_sent_again(status: Standing) -> None:
    """Requirements: X5, E3. Only an operator's or a repair's decision sends after a permanent rejection."""
    process = process_with(stored(status))
    process.deliver(execute(4))
    assert process.sends == []
    process.deliver(execute(5, decided_by="opc_1"))
    assert len(process.sends) == 1


def test_a_business_rejection_stands_like_a_permanent_one() -> None:
    """Requirements: X5."""
    row = stored(Standing.REJECTED_PERMANENT).evolve(error_class=ErrorClass.BUSINESS)
    assert decide(row, 4) is Action.ANSWER_STORED


def test_a_find_without_a_row_leaves_a_tombstone() -> None:
    """Requirements: E2, E5. After it no older attempt can send any more; a newer one can."""
    process = Process(Ledger())
    process.deliver(find(2))
    assert (process.row().status, process.row().fence) == (LedgerStatus.TOMBSTONE, 2)
    (receipt,) = receipts(process.deliver(execute(1)))
    assert receipt.status is ReceiptStatus.STALE
    assert process.sends == []
    process.deliver(execute(3))
    assert len(process.sends) == 1


def test_sent_is_committed_before_anything_starts() -> None:
    """Requirements: E2. The row says SENT with fence, worker, grant and times; the job starts only after that."""
    process = Process(Ledger())
    process.deliver(execute(1), settle=False)
    row = process.row()
    assert row.status is LedgerStatus.SENT
    assert (row.fence, row.sent_fence, row.worker) == (1, 1, "adapters#1")
    assert row.grant_id == f"grt_{row.attempt_id}"
    assert row.send_by == START + timedelta(seconds=5)
    assert row.late_until == START + timedelta(seconds=5 + 4 + 3)
    assert process.jobs == []


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ({"start_by": START - timedelta(seconds=1)}, "start_by_passed"),
        ({"deadline_at": START}, "deadline_passed"),
        ({}, "grant_time"),
    ],
)
def test_what_may_not_be_sent_spends_no_attempt(spoil: dict[str, Any], code: str) -> None:
    """Requirements: G5. A passed start, a passed deadline or a bad grant is NOT_SENT, never REJECTED."""
    process = Process(Ledger())
    process.permit.refused = None if spoil else "grant_time"
    (receipt,) = receipts(process.deliver(execute(1, **spoil)))
    assert (receipt.status, receipt.error_code) == (ReceiptStatus.NOT_SENT, code)
    assert receipt.sent_at is None
    assert process.jobs == []
    assert (process.row().status, process.row().sends_count) == (LedgerStatus.NOT_SENT, 0)
    process.permit.refused = None
    process.deliver(execute(2))
    assert len(process.sends) == 1


def test_a_refused_task_leaves_a_permanent_rejection_standing() -> None:
    """Requirements: G5, X5. A stale grant on a decided resend must not open the way for an undecided one."""
    process = process_with(stored(Standing.REJECTED_PERMANENT))
    process.permit.refused = "grant_time"
    (receipt,) = receipts(process.deliver(execute(4, decided_by="opc_1")))
    assert receipt.status is ReceiptStatus.NOT_SENT
    process.permit.refused = None
    process.deliver(execute(5))
    assert process.sends == []


def test_an_unknown_declaration_is_not_sent() -> None:
    """Requirements: X8. An operation runs under the declaration it started with, or not at all."""
    other = declare(title="Another")
    process = Process(Ledger())
    (receipt,) = receipts(process.deliver(execute(1, of=operation(declaration=other))))
    assert (receipt.status, receipt.error_code) == (ReceiptStatus.NOT_SENT, "declaration_unknown")


def test_one_operation_has_one_intent() -> None:
    """Requirements: I4, P3. Another payload under the same id is no retry: it is not processed."""
    process = Process(Ledger())
    process.deliver(execute(1))
    with pytest.raises(Unprocessable):
        process.deliver(execute(2, of=operation(payload={"text": "y"})))
    assert process.row().fence == 1


def test_a_task_for_another_system_or_tenant_is_not_processed() -> None:
    """Requirements: T1. The subject and the body must name the same tenant and system."""
    process = Process(Ledger())
    foreign = execute(1, of=operation().evolve(tenant="globex"))
    with pytest.raises(Unprocessable):
        process.deliver(foreign)


def sent_once() -> Process:
    """A process whose first attempt is under way."""
    process = Process(Ledger())
    process.deliver(execute(1))
    return process


def looked(job: LookJob, verdict: FindVerdict, **more: Any) -> Looked:
    proof = verdict in (FindVerdict.MISSING, FindVerdict.CONFIRMED)
    return Looked(job, Finding(verdict=verdict, **{"proof_of_access": proof, "result": {}, **more}))


def test_absence_needs_proof_time_and_a_raised_fence() -> None:
    """Requirements: E3. MISSING only with proof of access, after the late window, under a higher fence."""
    process = sent_once()
    process.finish(Sent(process.sends[0], unknown("timeout")))
    late_until = process.row().late_until
    assert late_until is not None

    process.deliver(find(2))
    (early,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert (early.finding.verdict, early.finding.reason) == (FindVerdict.UNKNOWN, "too_early")
    assert early.provable_at == late_until
    assert process.row().status is LedgerStatus.UNKNOWN

    process.ledger.now = late_until + timedelta(seconds=1)
    process.deliver(find(3))
    (blind,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING, proof_of_access=False)))
    assert blind.finding.verdict is FindVerdict.UNKNOWN
    assert process.row().status is LedgerStatus.UNKNOWN

    process.deliver(find(4))
    job = process.looks[-1]
    process.deliver(find(5))
    (overtaken,) = answers(process.finish(looked(job, FindVerdict.MISSING)))
    assert (overtaken.finding.verdict, overtaken.finding.reason) == (FindVerdict.UNKNOWN, "overtaken")

    (proved,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert proved.finding.verdict is FindVerdict.MISSING
    assert (proved.ledger_status, proved.fence) == ("ABSENT", 5)
    process.deliver(execute(6, now=process.ledger.now))
    assert len(process.sends) == 2


def test_silence_of_a_target_that_forgets_proves_nothing() -> None:
    """Requirements: I3, X8. Past the target's key lifetime, or without any findability, missing is unknown."""
    forgetful = declare(target_key_lifetime_seconds=3600, findability=Findability.NATIVE_KEY)
    blind = declare(findability=Findability.NONE, manual_policy="ask")
    for declaration, reason in ((forgetful, "target_key_expired"), (blind, "not_findable")):
        process = Process(Ledger(), declarations=[declaration])
        about = operation(declaration=declaration)
        process.deliver(execute(1, of=about))
        process.finish(Sent(process.sends[0], unknown("timeout")))
        process.ledger.now = START + timedelta(hours=2)
        process.deliver(find(2, of=about))
        (answer,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
        assert (answer.finding.verdict, answer.finding.reason) == (FindVerdict.UNKNOWN, reason)
        process.deliver(execute(3, of=about, now=process.ledger.now))
        assert len(process.sends) == 1


def test_several_candidates_are_ambiguous_whatever_the_adapter_says() -> None:
    """Requirements: E3. Two effects of one operation are never a success."""
    process = sent_once()
    process.finish(Sent(process.sends[0], unknown("timeout")))
    process.deliver(find(2))
    (answer,) = answers(process.finish(looked(process.looks[-1], FindVerdict.CONFIRMED, candidates=2)))
    assert answer.finding.verdict is FindVerdict.AMBIGUOUS
    assert process.row().status is LedgerStatus.UNKNOWN


def test_a_newer_task_on_an_unknown_effect_is_answered_by_looking() -> None:
    """Requirements: I1, X4. Never resent: what was found is the answer, under the name of the attempt that asks."""
    process = sent_once()
    process.finish(Sent(process.sends[0], unknown("timeout")))
    process.deliver(execute(2))
    (nothing,) = receipts(process.finish(looked(process.looks[-1], FindVerdict.UNKNOWN)))
    assert (nothing.status, nothing.fence, nothing.found) == (ReceiptStatus.UNKNOWN, 2, True)
    process.deliver(execute(3))
    (found,) = receipts(process.finish(looked(process.looks[-1], FindVerdict.CONFIRMED, result={"id": 7})))
    assert (found.status, found.fence, found.found, found.result) == (ReceiptStatus.CONFIRMED, 3, True, {"id": 7})
    assert len(process.sends) == 1


def test_a_late_return_is_evidence_and_no_second_transition() -> None:
    """Requirements: E2. The old attempt's answer is kept and told; the ledger stays with the newer one."""
    process = sent_once()
    old = process.sends[0]
    process.finish(Sent(old, unknown("timeout")))
    process.ledger.now = START + timedelta(seconds=60)
    process.deliver(find(2))
    process.finish(looked(process.looks[-1], FindVerdict.MISSING))
    process.deliver(execute(3, now=process.ledger.now))
    before = process.row()
    (receipt,) = receipts(process.finish(Sent(old, rejected(ErrorClass.PERMANENT, "payload_invalid"))))
    assert (receipt.fence, receipt.status) == (1, ReceiptStatus.REJECTED)
    assert process.row() == before
    evidence = process.ledger.attempts[old.attempt.attempt_id, "REJECTED"]
    assert evidence.late


def test_a_late_confirmation_bars_sending_until_somebody_looked() -> None:
    """Requirements: E2, I1. "Absent" was proved, and yet the old attempt confirms: doubt, and nothing is sent."""
    process = sent_once()
    old = process.sends[0]
    process.finish(Sent(old, unknown("timeout")))
    process.ledger.now = START + timedelta(seconds=60)
    process.deliver(find(2))
    process.finish(looked(process.looks[-1], FindVerdict.MISSING))
    assert process.row().status is LedgerStatus.ABSENT
    (receipt,) = receipts(process.finish(Sent(old, confirmed({"id": 1}))))
    assert receipt.status is ReceiptStatus.CONFIRMED
    assert process.row().status is LedgerStatus.UNKNOWN
    process.deliver(execute(3, now=process.ledger.now))
    assert len(process.sends) == 1


def test_a_receipt_is_immutable() -> None:
    """Requirements: E2, P3. After CONFIRMED the stored receipt and the status never change."""
    process = sent_once()
    process.finish(Sent(process.sends[0], confirmed({"id": 1}, external_resource_id="1")))
    first = process.row().receipt
    process.deliver(execute(2), find(3), execute(4))
    process.finish(Sent(process.sends[0], rejected(ErrorClass.PERMANENT, "payload_invalid")))
    process.finish(Sent(process.sends[0], confirmed({"id": 2})))
    assert process.row().receipt == first
    assert process.row().status is LedgerStatus.CONFIRMED


def test_foreign_text_never_costs_an_effect() -> None:
    """Requirements: T3, I1. NUL, lone surrogates and NaN in an answer are made storable, and the effect is kept."""
    process = sent_once()
    outcome = confirmed(
        {"title": "a\x00b\ud800", "score": float("nan")}, external_resource_id="7\x00", external_version="v\udfff"
    )
    (receipt,) = receipts(process.finish(Sent(process.sends[0], outcome)))
    assert process.row().status is LedgerStatus.CONFIRMED
    assert receipt.result is not None
    assert "\x00" not in receipt.model_dump_json()
    assert receipt.result["score"] is None


def test_the_scan_takes_over_what_a_dead_process_left() -> None:
    """Requirements: E2, X4. After SENT and a death: looked up at the start and when due, never sent again."""
    ledger = Ledger()
    dead = Process(ledger, "adapters#1")
    dead.deliver(execute(1), settle=False)
    successor = Process(ledger, "adapters#2")
    successor.look_around()
    (early,) = successor.looks
    assert receipts(successor.finish(looked(early, FindVerdict.MISSING))) == []
    assert successor.row().status is LedgerStatus.SENT
    ledger.now = START + timedelta(seconds=20)
    successor.look_around()
    successor.look_around()
    assert len(successor.looks) == 2
    (receipt,) = receipts(successor.finish(looked(successor.looks[-1], FindVerdict.MISSING)))
    assert (receipt.status, receipt.fence, receipt.found) == (ReceiptStatus.UNKNOWN, 1, True)
    assert receipt.late_until == successor.row().late_until
    assert successor.row().status is LedgerStatus.UNKNOWN
    assert successor.sends == dead.sends == []


def test_the_scan_finds_an_effect_ahead_of_time() -> None:
    """Requirements: E2. What the successor finds at once is a receipt at once."""
    ledger = Ledger()
    Process(ledger, "adapters#1").deliver(execute(1), settle=False)
    successor = Process(ledger, "adapters#2")
    successor.look_around()
    (receipt,) = receipts(successor.finish(looked(successor.looks[0], FindVerdict.CONFIRMED, result={"id": 3})))
    assert (receipt.status, receipt.found, receipt.fence) == (ReceiptStatus.CONFIRMED, True, 1)
    assert successor.row().status is LedgerStatus.CONFIRMED
    assert successor.row().receipt == receipt


def test_another_process_name_is_left_alone_until_its_time_is_over() -> None:
    """Requirements: E5. A living worker's attempt is not looked up before it would have answered."""
    ledger = Ledger()
    Process(ledger, "adapters#1").deliver(execute(1))
    other = Process(ledger, "adapters-2#1")
    other.look_around()
    assert other.looks == []
    ledger.now = START + timedelta(seconds=20)
    other.look_around()
    assert len(other.looks) == 1


def test_a_lost_commit_does_not_lose_the_attempt() -> None:
    """Requirements: I1, E2. The commit held although the process heard that it failed: the attempt starts once."""
    process = Process(Ledger())
    process.ledger.lose_commits = 1
    process.deliver(execute(1))
    assert len(process.sends) == 1
    process.deliver(execute(1))
    assert len(process.sends) == 1
    process.ledger.lose_commits = 1
    (receipt,) = receipts(process.finish(Sent(process.sends[0], confirmed({"id": 1}))))
    assert receipt.status is ReceiptStatus.CONFIRMED
    assert process.row().status is LedgerStatus.CONFIRMED
    assert not process.ledger.attempts[receipt.attempt_id, "CONFIRMED"].late


def test_a_first_attempt_that_is_presumed_to_be_new_is_sent_once() -> None:
    """Nobody asked whether there is a row: the save finds the one that is there, whoever put it and whatever is heard
    of the commit. Only the very transaction that was kept starts its attempt.

    Requirements: I1, E2, X4
    """
    ledger = Ledger()
    ledger.presumes = True
    process, other = Process(ledger, "adapters-1#1"), Process(ledger, "adapters-2#1")
    ledger.lose_commits = 1
    process.deliver(execute(1))  # kept, although its end was not heard of
    assert len(process.sends) == 1 and ledger.conflicts == 0
    for again in (process, other):
        ledger.lose_commits = 1
        again.deliver(execute(1))
    assert ledger.conflicts == 2
    assert len(process.sends) == 1 and other.sends == []
    other.deliver(find(3))
    other.deliver(execute(1))
    assert other.sends == [] and process.row().fence == 3


def test_a_find_in_the_same_batch_keeps_the_raised_fence() -> None:
    """Requirements: E5. The attempt's own answer must not lower the fence that a find of the same batch raised."""
    process = Process(Ledger())
    process.deliver(execute(1), find(2))
    assert process.row().fence == 2
    process.finish(Sent(process.sends[0], rejected(ErrorClass.TRANSIENT, "unavailable")))
    assert process.row().fence == 2
    (receipt,) = receipts(process.deliver(execute(1)))
    assert receipt.status is ReceiptStatus.STALE


def test_absence_counts_from_the_moment_of_the_look() -> None:
    """A look that began inside the late window proves nothing, however late its answer arrives."""
    process = sent_once()
    process.finish(Sent(process.sends[0], unknown("timeout")))
    late_until = process.row().late_until
    assert late_until is not None
    process.ledger.now = late_until - timedelta(seconds=1)
    process.deliver(find(2))
    process.ledger.now = late_until + timedelta(seconds=1)
    (answer,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert (answer.finding.verdict, answer.finding.reason) == (FindVerdict.UNKNOWN, "too_early")
    assert process.row().status is LedgerStatus.UNKNOWN


def test_late_until_only_grows() -> None:
    """A later attempt with a shorter window does not shorten what an earlier one may still do."""
    process = sent_once()
    first = process.row().late_until
    process.finish(Sent(process.sends[0], rejected(ErrorClass.TRANSIENT, "unavailable")))
    process.deliver(execute(2, start_by=START + timedelta(seconds=1)))
    assert process.row().late_until == first


def test_a_find_that_was_overtaken_leaves_the_newer_attempt_alone() -> None:
    """Requirements: E5, P3. What a look saw of an older attempt decides nothing about the one under way now."""
    for verdict in (FindVerdict.CONFIRMED, FindVerdict.UNKNOWN):
        process = sent_once()
        process.finish(Sent(process.sends[0], rejected(ErrorClass.TRANSIENT, "unavailable")))
        process.deliver(find(2))
        job = process.looks[-1]
        process.deliver(execute(3))
        (answer,) = answers(process.finish(looked(job, verdict)))
        assert (answer.fence, answer.ledger_status) == (3, "SENT")
        assert process.row().status is LedgerStatus.SENT
        process.finish(Sent(process.sends[-1], confirmed({"id": 9})))
        assert process.row().status is LedgerStatus.CONFIRMED
        assert not process.ledger.attempts[process.sends[-1].attempt.attempt_id, "CONFIRMED"].late


def test_a_look_after_the_answer_changes_no_receipt() -> None:
    """Requirements: E2. The attempt answered while somebody looked: its receipt stands and answers the look, too."""
    process = sent_once()
    process.deliver(find(2))
    process.finish(Sent(process.sends[0], confirmed({"id": 1})))
    first = process.row().receipt
    (answer,) = answers(process.finish(looked(process.looks[-1], FindVerdict.CONFIRMED, result={"id": "other"})))
    assert process.row().receipt == first
    assert (answer.finding.verdict, answer.finding.result) == (FindVerdict.CONFIRMED, {"id": 1})


def test_rows_and_messages_carry_all_their_fields() -> None:
    """What is put together without validation leaves no field out: the store and the bus write what is there."""
    process = sent_once()
    outgoing = process.finish(Sent(process.sends[0], unknown("timeout")))
    process.deliver(find(2))
    outgoing += process.finish(looked(process.looks[-1], FindVerdict.UNKNOWN))
    process.deliver(execute(3))
    outgoing += process.finish(looked(process.looks[-1], FindVerdict.UNKNOWN))
    outgoing += process.deliver(execute(1))
    models = {"Receipt": Receipt, "Found": Found}
    assert [item.message.type for item in outgoing] == ["Receipt", "Found", "Receipt", "Receipt"]
    for item in outgoing:
        assert set(json.loads(item.message.data)) == set(models[item.message.type].model_fields)
    job = process.sends[0]
    assert set(job.row.__dict__) == set(EffectRow.model_fields)
    evidence = fold_outcome(job.row, job.attempt, unknown("timeout"), START).attempt
    assert evidence is not None
    assert set(evidence.__dict__) == set(AttemptRow.model_fields)


def test_the_trace_goes_on_through_the_attempt() -> None:
    """Requirements: V1. The receipt carries the trace of the task that caused it."""
    process = sent_once()
    (outgoing,) = process.finish(Sent(process.sends[0], confirmed({})))
    assert outgoing.message.traceparent == process.sends[0].traceparent
    assert outgoing.message.id == f"{process.sends[0].attempt.attempt_id}:CONFIRMED"
    assert outgoing.message.subject == "trueup.evt.adapter.alpha.receipt.acme"


def test_the_declaration_under_test_is_plain() -> None:
    """The builders' declaration is what the numbers in these tests assume."""
    assert (DECLARATION.timeout_seconds, DECLARATION.late_window_seconds) == (4.0, 3.0)


def test_two_copies_of_a_task_in_one_batch_are_one_attempt() -> None:
    """A task that comes twice at once, under whatever message ids, is sent once."""
    process = Process(Ledger())
    process.deliver(execute(1), execute(1), execute(1))
    assert len(process.sends) == 1
    process.deliver(execute(1), execute(1))
    assert len(process.sends) == 1


def test_absence_waits_for_the_late_window_that_the_type_declares() -> None:
    """The target may act until send_by + timeout + late window: before that a look proves nothing, after it it does.

    Requirements: E3, X8
    """
    process = sent_once()
    process.finish(Sent(process.sends[0], unknown("timeout")))
    over = START + timedelta(seconds=START_SECONDS + TIMEOUT_SECONDS + LATE_SECONDS)
    process.ledger.now = over - timedelta(seconds=0.5)
    process.deliver(find(2))
    (early,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert (early.finding.verdict, early.finding.reason) == (FindVerdict.UNKNOWN, "too_early")
    assert early.provable_at == over
    process.ledger.now = over + timedelta(seconds=0.5)
    process.deliver(find(3))
    (proved,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert proved.finding.verdict is FindVerdict.MISSING


@pytest.mark.parametrize("answer", [rejected(ErrorClass.TRANSIENT, "unavailable"), not_sent("slot_lost")])
def test_what_the_target_itself_answered_leaves_nothing_to_wait_for(answer: Outcome) -> None:
    """An attempt that ended by its own word acts no more: a look before a redrive need not sit out the late window.

    What is still at large is waited for: an older answer says nothing of the attempt that was sent after it.
    Requirements: E3, Q6
    """
    process = sent_once()
    process.finish(Sent(process.sends[0], answer))
    process.deliver(find(2))
    (proved,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert (proved.finding.verdict, proved.provable_at) == (FindVerdict.MISSING, None)

    process.deliver(execute(3))
    process.finish(Sent(process.sends[1], unknown("timeout")))
    process.deliver(find(4))
    (early,) = answers(process.finish(looked(process.looks[-1], FindVerdict.MISSING)))
    assert (early.finding.verdict, early.finding.reason) == (FindVerdict.UNKNOWN, "too_early")
