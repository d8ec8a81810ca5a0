"""A failure whose case takes back by its document what it caused: it is owed, and left to the case for so long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.orchestrator.sagas import SEEN_GONE, Run, approval, document, make

from trueup_common.contracts.events import CaseChanged
from trueup_common.contracts.operators import UNDOING
from trueup_common.contracts.states import ErrorClass, FindVerdict, InstanceStatus, OperationState
from trueup_orchestrator.core import telling

THREE = document(make("a"), make("b"), make("c"))


def turned(**options: object) -> Run:
    """The third step is refused for good; two effects are to be taken back."""
    run = Run(THREE, **options).succeed("a").succeed("b")  # type: ignore[arg-type]
    return run.fail("c", code="payload_invalid")


def test_a_failure_that_its_case_undoes_is_owed_from_its_first_second_and_ends_with_the_undoing() -> None:
    """Nothing is hidden: it has owner and deadline, is reported at once, and again when it is over.

    Requirements: Q4, Q8, S3
    """
    run = turned()
    (report,) = run.reports
    owed = report.obligation
    assert run.status is InstanceStatus.COMPENSATING and run.kinds == ["failed"]
    assert (owed.kind, owed.status, owed.command_id) == ("failed", "open", run.row("c").command_id)
    assert owed.owner and owed.deadline_at > owed.opened_at and owed.envelope[UNDOING] is True
    run.succeed("b:undo").succeed("a:undo")
    assert run.status is InstanceStatus.COMPENSATED and run.kinds == []
    assert [(item.obligation.status, item.obligation.version) for item in run.reports] == [("open", 1), ("closed", 2)]
    assert run.reports[-1].obligation.resolution_type == "case_compensated"


def refused(run: Run) -> None:
    run.fail("b:undo")


def undecidable(run: Run) -> None:
    run.doubt("b:undo", landed=True).settle("b:undo", FindVerdict.UNKNOWN)


def exhausted(run: Run) -> None:
    for _ in range(10):
        if run.row("b:undo").state is OperationState.DEAD_LETTERED:
            return
        run.fail("b:undo", ErrorClass.TRANSIENT, "unavailable").tick(60)
    raise AssertionError("the undoing is tried for ever")


def unobserved(run: Run) -> None:
    run.succeed("b:undo").succeed("a:undo")
    assert run.case.obligations[0].envelope[UNDOING] is True
    run.tick(8 * 86400)


STUCK: dict[str, Callable[[Run], None]] = {
    "the undoing is refused": refused,
    "nobody can find out whether it was undone": undecidable,
    "the target is away for longer than the budget": exhausted,
    "nobody observed that it is gone": unobserved,
}


@pytest.mark.parametrize("how", list(STUCK))
def test_an_undoing_that_does_not_go_on_by_itself_gives_the_failure_back(how: str) -> None:
    """In the commit in which the case gets stuck the failure is reported anew, as nobody's but the planner's.

    Requirements: Q4, S4
    """
    run = turned(declarations=SEEN_GONE) if how.startswith("nobody observed") else turned()
    STUCK[how](run)
    name = run.row("c").command_id
    (owed,) = [item for item in run.case.obligations if item.command_id == name]
    assert (owed.kind, owed.status, owed.version) == ("failed", "open", 2)
    assert owed.envelope[UNDOING] is False and owed.envelope["failure_code"] == "payload_invalid"
    mine = [item.obligation for item in run.reports if item.obligation.command_id == name]
    assert [(item.version, item.envelope[UNDOING]) for item in mine] == [(1, True), (2, False)]
    assert (mine[0].owner, mine[0].deadline_at, mine[0].opened_at) == (owed.owner, owed.deadline_at, owed.opened_at)


def test_only_what_a_case_takes_back_by_its_document_is_left_to_it() -> None:
    """A failure that its document gives to a person stays that person's, also where they undo. Requirements: S4, Q8"""
    run = Run(document(make("a"), make("b", on={"failed": "takeover"}))).succeed("a").fail("b")
    assert run.status is InstanceStatus.HUMAN_TAKEOVER
    run.control("COMPENSATE").fail("a:undo")
    assert run.kinds == ["compensation_failed", "failed"]
    assert not any(UNDOING in item.obligation.envelope for item in run.reports)


def test_the_turn_of_a_failure_is_told_in_passing_and_its_report_durably() -> None:
    """The case is as long as all its steps: it is told once, when it is undone, with all that happened since.

    Requirements: M1
    """
    run = Run(THREE)
    before = len(run.told)
    run.succeed("a").succeed("b").fail("c", code="payload_invalid")
    instance = run.case.instance
    assert instance.published_seq < instance.history_seq and len(run.reports) == 1
    run.succeed("b:undo").succeed("a:undo")
    durable = [CaseChanged.model_validate_json(data) for data in run.told[before:]]
    told = durable[-1]
    assert told.instance.status is InstanceStatus.COMPENSATED
    assert told.instance.published_seq == told.instance.history_seq
    assert {row.step_id for row in told.operations} == {"a", "b", "c", "a:undo", "b:undo"}
    assert [event.seq for event in told.history] == list(range(1, told.instance.history_seq + 1))


def test_all_that_is_told_at_the_end_fits_into_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long history leaves less room for operations beside it: none is cut off, none is told twice.

    Requirements: M1, T3
    """
    monkeypatch.setattr(telling, "TOLD_BYTES_MAX", 40_000)
    names = [f"s{number}" for number in range(10)]
    run = Run(document(*map(make, names)))
    for name in names[:-1]:
        run.succeed(name)
    run.fail(names[-1])
    for name in reversed(names[:-1]):
        run.succeed(f"{name}:undo")
    data = [each for each in run.told if CaseChanged.model_validate_json(each).instance.closed_at is not None]
    parts = [CaseChanged.model_validate_json(each) for each in data]
    assert len(parts) > 1 and [len(part.history) for part in parts] == [50] + [0] * (len(parts) - 1)
    told = [row.step_id for part in parts for row in part.operations]
    assert sorted(told) == sorted([*names, *(f"{name}:undo" for name in names[:-1])])
    assert max(map(len, data)) < 55_000, "more than one operation over the bound, and the case itself"


def test_a_turn_that_nothing_reported_is_told_durably() -> None:
    """A check that fails is no exception: only the case itself tells that it turned. Requirements: M1"""
    check = [{"that": "steps.b.ref == ''", "says": "the second must not be"}]
    run = Run(document(make("a"), make("b"), {"id": "look", "check": check, "on": {"failed": "compensate"}}))
    run.succeed("a").succeed("b")
    assert run.status is InstanceStatus.COMPENSATING and not run.reports
    assert run.case.instance.published_seq == run.case.instance.history_seq


def test_a_turn_for_which_nothing_lies_ahead_is_told_durably() -> None:
    """Requirements: M1"""
    run = Run(document(make("a"), make("b"), approval())).fail("a")
    assert run.status is InstanceStatus.COMPENSATED
    assert run.case.instance.published_seq == run.case.instance.history_seq
