"""The eight invariants of P3 by name: each is checked in the runs, and each is broken by one forbidden row."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.engine import Violation
from tests.simulation.invariants import Judge
from tests.simulation.memory import Change
from tests.simulation.plane import Plane
from tests.simulation.run import Run
from tests.simulation.verdict import P3
from trueup_adapters.core.effect import LedgerStatus
from trueup_common.contracts.states import InstanceStatus, OperationState

S = OperationState


@pytest.fixture(scope="module")
def plane() -> Plane:
    """A world after one seed with a success in it."""
    for seed in range(0, 40, 2):
        run = Run(seed)
        run.go()
        rows = run.plane.databases
        if rows["orchestrator"].rows("obligation") and any(
            row.state is S.SUCCESS for row in rows["orchestrator"].rows("operation")
        ):
            return run.plane
    raise AssertionError("no seed with a success and an obligation")


def _success(plane: Plane) -> Any:
    return next(row for row in plane.databases["orchestrator"].rows("operation") if row.state is S.SUCCESS)


def _confirmed(plane: Plane) -> Any:
    rows = plane.databases["adapters"].rows("effect")
    return next(row for row in rows if row.status is LedgerStatus.CONFIRMED)


def _operation(judge: Judge, before: Any, **changes: Any) -> None:
    judge.operation(Change("operation", before, before.evolve(**changes)))


def _success_changes(judge: Judge) -> None:
    _operation(judge, _success(judge.plane), state=S.FAILED)


def _case_reopens(judge: Judge) -> None:
    closed = next(row for row in judge.plane.databases["orchestrator"].rows("instance") if row.closed_at)
    judge.instance(Change("instance", closed, closed.evolve(status=InstanceStatus.RUNNING)))


def _intent_changes(judge: Judge) -> None:
    _operation(judge, _success(judge.plane), payload_sha256="0" * 64)


def _ledger_holds_another_intent(judge: Judge) -> None:
    row = _confirmed(judge.plane)
    judge.effect(Change("effect", row, row.evolve(payload_sha256="0" * 64)))


def _confirmed_without_receipt(judge: Judge) -> None:
    row = _confirmed(judge.plane)
    judge.effect(Change("effect", row.evolve(status=LedgerStatus.SENT), row.evolve(receipt=None)))


def _success_without_receipt(judge: Judge) -> None:
    _operation(judge, _success(judge.plane), result_reference=None)


def _retry_without_timer(judge: Judge) -> None:
    row = _success(judge.plane).evolve(state=S.RUNNING)
    _operation(judge, row, state=S.RETRY_PENDING, wake_at=None)


def _no_deadline(judge: Judge) -> None:
    _operation(judge, _success(judge.plane), deadline_at=None)


def _running_without_lease(judge: Judge) -> None:
    row = _success(judge.plane).evolve(state=S.QUEUED)
    _operation(judge, row, state=S.RUNNING, lease_expires_at=None)


def _sent(judge: Judge, row: Any, fence: int) -> None:
    """The first byte of an attempt that was committed and granted."""
    name = row.command_id
    effect = _confirmed(judge.plane).evolve(attempt_id="att", grant_id="jti")
    judge.committed_sent[name, fence] = effect
    judge.send_until[name, fence] = judge.granted[name, fence] = judge.plane.engine.now + 1000
    judge.transmitted(SimpleNamespace(operation=row, fence=fence, attempt_id="att"))  # type: ignore[arg-type]


def _sent_after_the_end(judge: Judge) -> None:
    _sent(judge, _success(judge.plane), 99)


def _sent_for_a_person(judge: Judge) -> None:
    row, operations = _success(judge.plane), judge.plane.databases["orchestrator"].tables["operation"].rows
    operations[row.command_id,] = row.evolve(state=S.RUNNING)
    judge.taken_over[row.workflow_id] = {row.command_id: 1}
    try:
        _sent(judge, row, 99)
    finally:
        operations[row.command_id,] = row


def _sent_without_grant(judge: Judge) -> None:
    row = _success(judge.plane)
    judge.committed_sent[row.command_id, 98] = _confirmed(judge.plane).evolve(attempt_id="att")
    judge.send_until[row.command_id, 98] = judge.plane.engine.now + 1000
    judge.transmitted(SimpleNamespace(operation=row, fence=98, attempt_id="att"))  # type: ignore[arg-type]


def _ledger_without_grant(judge: Judge) -> None:
    row = _confirmed(judge.plane).evolve(status=LedgerStatus.SENT, grant_id=None)
    judge.effect(Change("effect", None, row))


def _exception_of_nobody(judge: Judge) -> None:
    row = judge.plane.databases["repair-planner"].rows("exception")[0]
    judge.exception(Change("exception", None, row.evolve(owner="")))


def _obligation_of_nobody(judge: Judge) -> None:
    row = judge.plane.databases["orchestrator"].rows("obligation")[0]
    judge.obligation(Change("obligation", None, row.evolve(deadline_at=None)))


BROKEN: list[tuple[P3, Callable[[Judge], None]]] = [
    (P3.FINAL, _success_changes),
    (P3.FINAL, _case_reopens),
    (P3.INTENT, _intent_changes),
    (P3.INTENT, _ledger_holds_another_intent),
    (P3.RECEIPT, _confirmed_without_receipt),
    (P3.RECEIPT, _success_without_receipt),
    (P3.WAIT, _retry_without_timer),
    (P3.WAIT, _no_deadline),
    (P3.LEASE, _running_without_lease),
    (P3.TAKEOVER, _sent_after_the_end),
    (P3.TAKEOVER, _sent_for_a_person),
    (P3.GRANT, _sent_without_grant),
    (P3.GRANT, _ledger_without_grant),
    (P3.OWNER, _exception_of_nobody),
    (P3.OWNER, _obligation_of_nobody),
]


@pytest.mark.parametrize(("phrase", "broken"), BROKEN, ids=[broken.__name__[1:] for _, broken in BROKEN])
def test_a_row_that_breaks_an_invariant_is_named(plane: Plane, phrase: P3, broken: Callable[[Judge], None]) -> None:
    """Whoever breaks a phrase of P3 hears which one.

    Requirements: P3
    """
    judge = Judge(plane)
    with pytest.raises(Violation, match="^" + _literally(f"[{phrase}]")):
        broken(judge)


def test_every_phrase_can_be_broken() -> None:
    """No phrase is checked by nothing.

    Requirements: P3
    """
    assert {phrase for phrase, _ in BROKEN} == set(P3)


def _literally(text: str) -> str:
    return text.replace("[", r"\[").replace("]", r"\]")
