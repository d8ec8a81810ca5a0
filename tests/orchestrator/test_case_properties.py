"""Any outcomes in any order, duplicated, late and reloaded between any two: the invariants of a case stand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.orchestrator.cases import PAGE, Story, declaration, receipt, settlement, start_case, verified

from trueup_common.contracts.history import verify
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    SETTLED,
    EffectClass,
    ErrorClass,
    FindVerdict,
    OperationState,
    Phase,
    ReceiptStatus,
)
from trueup_common.contracts.task import ExecuteTask, RunningAttempt
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.decide import Beaten, Cancel, Dispatch, Due
from trueup_orchestrator.core.operation import IN_FLIGHT, PERSONS, TABLE

S = OperationState
AUTHORITIES = [Authority()] * 6 + [Authority(frozen=True), Authority(revoked="mandate man_1 is revoked")]
EDGES = {(before.value, after.value) for (before, _), after in TABLE.items()}

Step = Callable[[Story], None]


def _receipt(status: ReceiptStatus, error: ErrorClass | None, code: str | None, back: int, resource: str) -> Step:
    def step(story: Story) -> None:
        fence = max(story.row.fence - back, 0)
        story.hear(receipt(story.row, status, error, code, fence=fence, at=story.at.real, resource=resource))

    return step


def _settlement(verdict: FindVerdict | None, ahead: int, candidates: int) -> Step:
    def step(story: Story) -> None:
        fence = max(story.row.fence + ahead, 0)
        story.hear(settlement(story.row, verdict, fence=fence, at=story.at.business, candidates=candidates))

    return step


def _beat(back: int) -> Step:
    def step(story: Story) -> None:
        attempt = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=max(story.row.fence - back, 0))
        story.hear(Beaten(attempt, "adapters-1", story.at.real))

    return step


def _time(seconds: float, authority: Authority) -> Step:
    def step(story: Story) -> None:
        story.wait(seconds).hear(Due(), authority=authority)

    return step


def _dispatch(authority: Authority) -> Step:
    return lambda story: void(story.hear(Dispatch(7), authority=authority))


def void(_: object) -> None:
    return None


OUTCOMES = [
    (ReceiptStatus.CONFIRMED, None, None),
    (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"),
    (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "unavailable"),
    (ReceiptStatus.REJECTED, ErrorClass.PERMANENT, "forbidden"),
    (ReceiptStatus.REJECTED, ErrorClass.BUSINESS, "version_conflict"),
    (ReceiptStatus.UNKNOWN, None, "timeout"),
    (ReceiptStatus.UNKNOWN, None, "timeout"),
    (ReceiptStatus.NOT_SENT, ErrorClass.TRANSIENT, "start_by_passed"),
    (ReceiptStatus.STALE, None, "stale_fence"),
]


def _again(story: Story) -> None:
    """What the timers do: wait out any pause and dispatch."""
    story.wait(40).hear(Due()).hear(Dispatch(7))


likely = st.sampled_from(OUTCOMES).map(lambda outcome: _receipt(*outcome, 0, "42"))
"""What an adapter really answers about the newest attempt."""

receipts = st.builds(
    _receipt,
    st.sampled_from(list(ReceiptStatus)),
    st.sampled_from([None, *ErrorClass]),
    st.sampled_from([None, "unavailable", "version_conflict", "forbidden"]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from(["42", "42", "43"]),
)
settlements = st.builds(
    _settlement,
    st.sampled_from([None, *FindVerdict]),
    st.sampled_from([1, 1, 3, 0, -1]),
    st.sampled_from([1, 1, 2]),
)
steps = st.one_of(
    likely,
    likely,
    likely,
    receipts,
    settlements,
    settlements,
    st.just(_again),
    st.just(_again),
    st.builds(_beat, st.sampled_from([0, 0, 1])),
    st.builds(_time, st.sampled_from([0.0, 1.0, 40.0, 1000.0, 4000.0]), st.sampled_from(AUTHORITIES)),
    st.builds(_dispatch, st.sampled_from(AUTHORITIES)),
    st.just(lambda story: void(story.hear(Cancel("no", "operator:ann")))),
    st.sampled_from(list(Phase)).map(lambda phase: lambda story: void(story.hear(verified(story.row, phase=phase)))),
)


def check(story: Story, before: Story | None) -> None:
    """What must hold after every commit."""
    row, instance = story.row, story.case.instance
    assert row.state not in (S.RECEIVED, S.VALIDATING, S.AUTHORIZED), "passing states are never stored"
    if row.state in IN_FLIGHT:
        assert row.lease_expires_at is not None and row.lease_owner is not None
    else:
        assert row.lease_expires_at is None or row.proposed
    if row.state not in PERSONS | SETTLED:
        assert row.lease_expires_at is not None or row.wake_at is not None, f"{row.state} would be stuck"
    if row.state in PERSONS:
        assert story.case.obligations, f"{row.state} without an owner"
        assert instance.status == "HUMAN_TAKEOVER"
        assert row.wake_at is None
    for obligation in story.case.obligations:
        assert obligation.status == "open" and obligation.owner
        assert obligation.deadline_at > obligation.opened_at
        assert obligation.envelope["failure_code"]
    assert instance.status != "VERIFYING" or instance.owed
    assert (instance.status in INSTANCE_TERMINAL) == (instance.closed_at is not None)
    assert row.attempt_count == sum(bool(item["sent"]) for item in row.attempts)
    if row.state is S.SUCCESS:
        assert any(item["state"] == "CONFIRMED" for item in row.attempts), "CONFIRMED has its evidence"


def outgoing_is_covered(story: Story) -> None:
    """No task without a grant, none above the journal's fence, none of a case that a person took over."""
    for message in story.sent("ExecuteTask"):
        task = ExecuteTask.model_validate_json(message.data)
        assert task.grant and task.fence == story.row.fence
    if story.sent("ExecuteTask") or story.sent("GrantRequest"):
        assert story.row.lease_expires_at is not None
        assert story.row.state in (S.DISPATCHING, S.QUEUED)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(steps, max_size=14),
    st.sampled_from([EffectClass.COMPENSABLE, EffectClass.PIVOT]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["grant", "grant", ""]),
)
def test_any_order_of_messages_keeps_the_invariants(
    taken: list[Step], effect_class: EffectClass, dispatched: bool, grant: str
) -> None:
    """The case is serialised and read back between any two messages, and every message is heard twice.

    Requirements: P3, X2, Q4, L4
    """
    decl = declaration(effect_class=effect_class) if effect_class is not PAGE.effect_class else PAGE
    story = Story(start_case(decl=decl, grant=grant), decl, dispatched=dispatched)
    check(story, None)
    fences = [story.row.fence]
    for step in taken:
        for _ in range(2):
            state, status = story.state, story.case.instance.status
            attempts_before = story.row.attempt_count
            step(story)
            check(story, story)
            outgoing_is_covered(story)
            if state in SETTLED:
                assert story.state is state
            if status in INSTANCE_TERMINAL:
                assert story.case.instance.status == status
            assert story.row.attempt_count - attempts_before in (0, 1)
            fences.append(story.row.fence)
    assert fences == sorted(fences), "fences only grow"
    assert verify(story.history) is None
    assert [event.seq for event in story.history] == list(range(1, len(story.history) + 1))
    for event in story.history:
        states = event.payload["states"]
        assert set(itertools.pairwise(states)) <= EDGES
    open_ids = {row.obligation_id for row in story.case.obligations}
    assert open_ids == {key for key, row in story.obligations.items() if row.status == "open"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=10))
def test_every_case_ends_once_the_world_behaves(taken: list[Step]) -> None:
    """Whatever happened before: when finds answer and time passes, the case ends or a person owns it.

    Requirements: P3
    """
    story = Story()
    for step in taken:
        step(story)
    for _ in range(12):
        story.wait(4000).hear(Due()).hear(Dispatch(9))
        if story.state in (S.ORPHAN_SUSPECTED, S.OUTCOME_UNKNOWN, S.RECONCILING):
            story.hear(settlement(story.row, FindVerdict.MISSING, at=story.at.business))
        if story.case.instance.status == "VERIFYING":
            story.hear(verified(story.row))
    assert story.case.instance.status in INSTANCE_TERMINAL or story.case.obligations
    assert story.state in PERSONS | SETTLED
