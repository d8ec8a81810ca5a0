"""What a case spends is kept on it: attempts, worker seconds, bytes of history, a person's hold, late timers."""

from __future__ import annotations

from datetime import timedelta

from tests.orchestrator.cases import TERMS, At, Story, receipt, start_case, verified
from tests.orchestrator.sagas import Run, approval, document, effect, make

from trueup_common.contracts.events import CaseChanged
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.spending import HELD_SINCE, measures_of
from trueup_common.contracts.states import ErrorClass, InstanceStatus, ReceiptStatus, RiskLevel
from trueup_orchestrator.core.decide import Due
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.handler import _note_lateness


def measured(story: Story | Run) -> dict[str, float]:
    instance = story.case.instance
    return measures_of(instance.spent, instance.history_seq)


def test_attempts_and_the_time_of_workers_are_summed_over_all_of_them() -> None:
    """From SENT to the receipt of each attempt; what was not sent took nobody's time.

    Requirements: V4
    """
    story = Story()
    sent = story.at.real
    late = receipt(
        story.row,
        ReceiptStatus.REJECTED,
        ErrorClass.TRANSIENT,
        "http_503",
        at=sent,
        ended_at=sent + timedelta(seconds=2.5),
    )
    story.hear(late).wait(60)
    assert (measured(story)["attempts"], measured(story)["worker_seconds"]) == (1, 2.5)
    story.hear(Due()).operate_dispatch().hear(
        receipt(story.row, ReceiptStatus.NOT_SENT, at=sent, ended_at=story.at.real)
    )
    assert (measured(story)["attempts"], measured(story)["worker_seconds"]) == (1, 2.5)
    story.wait(60).hear(Due()).operate_dispatch()
    sent = story.at.real
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED, at=sent, ended_at=sent + timedelta(seconds=0.25)))
    assert (measured(story)["attempts"], measured(story)["worker_seconds"]) == (2, 2.75)
    assert measured(story)["model_tokens"] == 0


def test_bytes_of_history_are_those_that_were_told() -> None:
    """Each event once, however often the case is told.

    Requirements: V4
    """
    story = Story()
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED)).hear(verified(story.row))
    assert story.case.instance.status is InstanceStatus.CLOSED
    told = [
        CaseChanged.model_validate_json(item.message.data).history
        for decision in story.decisions
        for item in decision.outgoing
        if item.durable and item.message.type == "CaseChanged"
    ]
    assert [event.seq for events in told for event in events] == [event.seq for event in story.history]
    assert measured(story)["stored_bytes"] == sum(len(json_bytes(events)) for events in told)
    assert measured(story)["transitions"] == len(story.history)


def test_of_what_a_case_may_do_only_its_risk_is_told() -> None:
    """The level of high-risk cases asks for it; the rest of the mandate the gateway knows itself.

    Requirements: V3
    """
    story = Story(start_case(risk=RiskLevel.HIGH))
    story.hear(receipt(story.row, ReceiptStatus.CONFIRMED))
    (told,) = [CaseChanged.model_validate_json(message.data) for message in story.sent("CaseChanged")]
    assert told.instance.mandate == {"risk": "high"}


def test_a_persons_hold_counts_from_takeover_to_hand_back() -> None:
    """Business time in a person's hands, every hold; waiting for an approval is none.

    Requirements: V4
    """
    run = Run(document(make("draft"), approval(), effect("publish", "site.publish", needs=["approve"]))).succeed(
        "draft"
    )
    assert run.status is InstanceStatus.WAITING
    run.tick(600).control("TAKE_OVER")
    assert HELD_SINCE in run.case.instance.spent and measured(run)["person_seconds"] == 0
    run.wait(1200).control("HAND_BACK", deadline_at=run.at.later(9000).business)
    assert measured(run)["person_seconds"] == 1200 and HELD_SINCE not in run.case.instance.spent
    run.wait(600).decide("approve", "approved").wait(60).fail("publish").fail("draft:undo")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    said = [{"effect": run.row("draft").command_id, "became": "published by hand"}]
    run.wait(300).control("MARK_RESOLVED", params={"disposition": said})
    assert run.status is InstanceStatus.RESOLVED
    assert measured(run)["person_seconds"] == 1500


def test_a_late_timer_is_told_by_the_case_that_it_woke() -> None:
    """The wake-up of an operation and of a case, each by how much it came later than due; a lease is no timer.

    Requirements: V2
    """
    story = Story()
    rejected = receipt(story.row, ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "http_503")
    story.hear(rejected)
    due = story.row.wake_at
    assert due is not None and story.row.lease_expires_at is None
    moment = At(due + timedelta(seconds=7), due + timedelta(seconds=7))
    fold = Fold(story.case, moment, TERMS)
    folds = {story.row.workflow_id: fold}
    _note_lateness(folds, [story.row], [story.case.instance.evolve(wake_at=due + timedelta(seconds=4))], moment)
    _note_lateness(folds, [story.row.evolve(lease_expires_at=due)], [], moment)
    fold.case_note("CaseOverdue")
    spent = seal(fold).case.instance.spent
    assert (spent["timers_fired"], spent["timer_late_seconds"]) == (2, 10.0)
