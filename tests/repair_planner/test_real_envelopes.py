"""Each playbook is taken by what its failure really reports: the envelope is never written by hand here.

The orchestrator's core brings about the failures of work, the reconciler's those of state; the planner adopts what
they send and plans.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.orchestrator.cases import BARE, At, Story, receipt, settlement, start_case
from tests.orchestrator.sagas import Run
from tests.orchestrator.test_saga_paths import FLAGSHIP
from tests.reconciler.builders import seen
from tests.reconciler.test_repairs import GONE, drifted, look, word
from tests.repair_planner.builders import quarantine

from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_orchestrator.core.decide import Dispatch, Due
from trueup_reconciler.core import repairs as drift_repairs
from trueup_reconciler.core.budget import Budget
from trueup_reconciler.core.report import restated
from trueup_reconciler.core.turned import Turned
from trueup_repair_planner.core import lifecycle
from trueup_repair_planner.core.incident import causes_of
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow
from trueup_repair_planner.core.plan import plan
from trueup_repair_planner.core.playbook import Playbook
from trueup_repair_planner.handler import shipped

TRANSIENT, PERMANENT, BUSINESS = ErrorClass.TRANSIENT, ErrorClass.PERMANENT, ErrorClass.BUSINESS
REJECTED, UNKNOWN, CONFIRMED = ReceiptStatus.REJECTED, ReceiptStatus.UNKNOWN, ReceiptStatus.CONFIRMED
NOW = At().business
Report = ExceptionReported | MessageQuarantined


def opened(story: Story) -> ExceptionReported:
    """The last exception that a case opened."""
    said = [item.message for decision in story.decisions for item in decision.outgoing]
    reports = [ExceptionReported.model_validate_json(item.data) for item in said if item.type == "ExceptionReported"]
    return [item for item in reports if item.obligation.status == "open"][-1]


def rejected(kind: ErrorClass, code: str, status: str) -> ExceptionReported:
    """One attempt that the target refused for good."""
    story = Story()
    return opened(story.wait(1).hear(receipt(story.row, REJECTED, kind, code, external_status=status)))


def in_doubt(**changes: Any) -> Story:
    story = Story(start_case(**changes))
    return story.wait(1).hear(receipt(story.row, UNKNOWN, ErrorClass.UNKNOWN, "timeout", worker="adapters-2#1"))


def exhausted() -> ExceptionReported:
    """A target that is away for longer than the budget of attempts."""
    story = Story()
    for attempt in (1, 2):
        story.wait(1).hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable", external_status="503"))
        story.wait(20).hear(Due()).hear(Dispatch(attempt + 1))
    return opened(story.wait(1).hear(receipt(story.row, REJECTED, TRANSIENT, "unavailable", external_status="503")))


def lease_lost() -> ExceptionReported:
    """A worker that never says a word."""
    return opened(Story().wait(600).hear(Due()))


def undecidable() -> ExceptionReported:
    story = in_doubt()
    return opened(story.hear(settlement(story.row)).hear(settlement(story.row, FindVerdict.UNKNOWN)))


def duplicated() -> ExceptionReported:
    story = in_doubt()
    return opened(story.hear(settlement(story.row)).hear(settlement(story.row, FindVerdict.AMBIGUOUS, candidates=2)))


def expired() -> ExceptionReported:
    """The deadline passed before anything could be sent."""
    story = Story(start_case(decl=BARE, deadline_seconds=60), BARE, dispatched=False)
    return opened(story.wait(120).hear(Due()))


def undo(code: str, kind: ErrorClass = PERMANENT) -> ExceptionReported:
    run = Run(FLAGSHIP).succeed("archive").succeed("draft").decide("approve", "rejected")
    for _ in range(10):
        run.fail("draft:undo", code=code, kind=kind)
        if run.kinds:
            break
        run.tick(60)
    (obligation,) = run.case.obligations
    row = run.row("draft:undo")
    return ExceptionReported(
        reported_by="orchestrator",
        obligation=obligation,
        command_type=row.command_type,
        target_system=row.target_system,
        target_resource=row.target_resource,
    )


def undone_by_case() -> ExceptionReported:
    """A step that is refused for good before the pivot: its case takes back by its document what it caused."""
    run = Run(FLAGSHIP).succeed("archive").fail("draft", code="payload_invalid")
    (report,) = run.reports
    return report


def drift(turned: Turned) -> ExceptionReported:
    assert turned.opened is not None
    row = turned.row
    return ExceptionReported(
        reported_by="reconciler",
        obligation=turned.opened,
        command_type=row.command_type,
        target_system=row.system,
        target_resource=row.resource,
    )


def tried_again(times: int) -> ExceptionReported:
    """A drift whose repair failed so often."""
    turned = drifted(seen("trash"))
    report, row = drift(turned), turned.row
    for number in range(1, times + 1):
        failed = word(row, "FAILED", version=number, repair=f"rep_{number}")
        heard = drift_repairs.heard(row, failed, now=NOW, budget=Budget())
        assert heard.restated is not None
        row = heard.row
        report = report.evolve(obligation=restated(report.obligation, heard.restated[1], NOW))
    return report


FAILURES: dict[str, tuple[str, Callable[[], Report]]] = {
    "an unknown outcome": ("settles-by-itself", lambda: opened(in_doubt())),
    "a worker that died": ("settles-by-itself", lease_lost),
    "a failure that its case undoes": ("undone-by-its-case", undone_by_case),
    "two effects of one operation": ("effects-duplicated", duplicated),
    "an undoing that the target was away for": (
        "compensation-failed-by-environment",
        lambda: undo("unavailable", TRANSIENT),
    ),
    "an undoing that is forbidden": ("compensation-failed", lambda: undo("forbidden")),
    "a drift that a command mends": ("drift-automatic", lambda: drift(drifted(seen("trash")))),
    "a drift that was mended once": ("drift-retryable", lambda: tried_again(1)),
    "a drift that nothing mends": ("drift-escalated", lambda: tried_again(4)),
    "a drift that is a person's": ("drift-of-a-person", lambda: drift(drifted(GONE, mends=("different",)))),
    "a target that is away": ("dead-letter-by-environment", exhausted),
    "a credential that is refused": ("credential-refused", lambda: rejected(PERMANENT, "unauthenticated", "401")),
    "a deadline that passed": ("dead-letter-by-environment", expired),
    "an outcome that nobody can find out": ("unknown-and-undecidable", undecidable),
    "a conflict": ("needs-a-person", lambda: rejected(BUSINESS, "version_conflict", "412")),
    "a right that is missing": ("failed-by-permission", lambda: rejected(PERMANENT, "forbidden", "403")),
    "a payload that is refused": ("failed", lambda: rejected(PERMANENT, "payload_invalid", "422")),
    "a message that nobody can read": ("quarantined", quarantine),
}
"""What goes wrong → the playbook that answers it. One is missing: see the last test."""


def adopted(report: Report) -> ExceptionRow:
    if isinstance(report, MessageQuarantined):
        return lifecycle.quarantined(None, report, now=NOW, duty=Duty())
    return lifecycle.report(None, report, now=NOW, duty=Duty())


def answer(report: Report) -> Playbook:
    return plan(adopted(report), [], shipped(), now=NOW).playbook


@pytest.mark.parametrize("what", list(FAILURES))
def test_a_real_failure_takes_its_playbook(what: str) -> None:
    """Requirements: Q3, Q5"""
    wanted, fail = FAILURES[what]
    assert answer(fail()).name == wanted


def test_every_playbook_but_the_one_for_poison_is_taken_by_a_failure_above() -> None:
    """A dead letter that is the work's own fault comes from a caller's code that no adapter of ours gives."""
    assert {wanted for wanted, _ in FAILURES.values()} == {item.name for item in shipped().all} - {"dead-letter"}


def test_a_real_failure_says_what_it_may_have_in_common_with_others() -> None:
    """Agent, its version, policy, adapter and worker come from where they are known. Requirements: D4"""
    story = in_doubt(mandate={"agent_version": "publisher@7"})
    envelope = adopted(opened(story)).envelope
    shared = ("agent", "agent_version", "policy_sha256", "adapter_version", "worker")
    assert [envelope[name] for name in shared] == [
        "agent:publisher", "publisher@7", "0" * 64, story.declaration.sha256, "adapters-2",
    ]  # fmt: skip
    assert {cause.by for cause in causes_of(envelope)} == {"system", "worker"}


def test_a_drift_that_cannot_be_seen_is_none() -> None:
    """Requirements: R4, R11"""
    turned = drifted(seen("trash"))
    again = look(turned.row, seen(verdict=ProbeVerdict.UNKNOWN), 500)
    assert (again.opened, again.restated, again.row.obligation_id) == (None, None, turned.row.obligation_id)
    assert timedelta(0) < (again.row.next_visit_at or NOW) - NOW
