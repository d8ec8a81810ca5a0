"""Operator commands: what people and repairs do with an operation or a case. One table of acts, asked only after the
table of `contracts.operators` has admitted the action for what is true now.

Nothing is sent here and nothing is believed: what may have happened is looked at before it is sent again, under a
fresh grant. Exceptions close by what becomes true, never by having been acted upon.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import (
    SETTLED_ABSENT,
    CommandState,
    Facts,
    OperatorAction,
    Settled,
    TargetKind,
    allowed,
    case_facts,
    is_unverified,
    operation_facts,
)
from trueup_common.contracts.shape import record
from trueup_common.contracts.standing import said_of, standing, unspoken
from trueup_common.contracts.states import Findability, OperationState
from trueup_orchestrator.core.acts import done_by, take_in_hand, tell_end
from trueup_orchestrator.core.again import look, queue_again, redrive
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.case_acts import CASE_ACTS, end_owing, go_forward
from trueup_orchestrator.core.due import fold_cancel, fold_due
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.obligations import alert_of, replaced
from trueup_orchestrator.core.operation import PERSONS, Trigger
from trueup_orchestrator.core.recovery import pivot_of_all
from trueup_orchestrator.core.resuming import migrate, unfit
from trueup_orchestrator.core.saga import has_ended
from trueup_orchestrator.core.status import on_its_way, status_by_now
from trueup_orchestrator.core.success import succeed
from trueup_orchestrator.core.workflow import Workflow

A = OperatorAction


@record
class Ground:
    """What a command rests on beside the case, looked up by whoever holds the transaction.

    `identity` is the operation's business identity, `rival` the command that has it, or its key, by now. `corrected`
    is the version of its document that a case shall go on by.
    """

    authority: Authority
    declaration: CommandDeclaration | None = None
    identity: str | None = None
    rival: str | None = None
    corrected: Workflow | None = None


def possible(fold: Fold, ground: Ground) -> tuple[OperatorAction, ...]:
    """What is possible on the operation in focus, or where there is no declaration on the case as a whole."""
    unverified = is_unverified(fold.obligations.values())
    instance = fold.instance.evolve(status=status_by_now(fold))
    if fold.workflow is not None:  # a finding before it in the same commit may say that the pivot happened
        instance = instance.evolve(pivot=pivot_of_all(fold.operations.values()))
    case = case_facts(instance, revoked=ground.authority.revoked is not None, unverified=unverified)
    if ground.declaration is None:
        out = any(on_its_way(row) for row in fold.operations.values())
        found = allowed(TargetKind.WORKFLOW, Facts(case=case))
        return tuple(action for action in found if not (out and action is A.MARK_RESOLVED))  # nobody knows its end yet
    row = fold.operation
    if replaced(fold, row):
        return ()  # a later operation speaks for its step
    facts = operation_facts(
        row,
        findable=ground.declaration.findability is not Findability.NONE,
        alert=alert_of(row, alone=fold.workflow is None) is not None or (fold.workflow is None and unverified),
    )
    found = allowed(TargetKind.COMMAND, Facts(case=case, operation=facts))
    if _comes_too_early(fold, row):
        return tuple(action for action in found if action not in _LOOKS)
    return found


def _comes_too_early(fold: Fold, row: JournalRow) -> bool:
    """True for a step of which something that it needs runs again: only then it is its turn."""
    if fold.workflow is None or row.compensates is not None or row.state not in PERSONS:
        return False
    return not all(has_ended(fold, needed) for needed in fold.workflow.document.needs[row.step_id])


def fold_command(fold: Fold, asked: OperatorCommand, ground: Ground, cause: str | None) -> None:
    """Take up a command, once; what does not fit the state any more is refused and changes nothing."""
    action = OperatorAction(asked.action)
    if action is A.REPAIR:
        action = A.REDRIVE  # of an operation, to repair is to look and to send again what is not there
    available = possible(fold, ground)
    if action not in available:
        _refuse(fold, asked, "the state does not permit this any more", available, cause)
    elif action in _TAKES_KEY and ground.rival is not None:
        left = tuple(item for item in available if item not in _TAKES_KEY)
        _refuse(fold, asked, f"{ground.rival} has the key or the business identity by now", left, cause)
    elif _finds_what_is_over(fold, asked, action):
        _refuse(fold, asked, f"an operation that is {fold.state} can only be closed (CLOSE)", available, cause)
    elif ground.declaration is None:
        _on_case(fold, asked, ground, available, cause)
    else:
        _note(fold, asked, action, cause)
        ACTS[action](fold, asked, ground)


def _finds_what_is_over(fold: Fold, asked: OperatorCommand, action: OperatorAction) -> bool:
    """True for a finding about an operation that has ended since the gateway looked: its end never changes."""
    return action is A.SETTLE and fold.state not in PERSONS and asked.params.get("finding") != Settled.CLOSE


def _on_case(
    fold: Fold, asked: OperatorCommand, ground: Ground, available: tuple[OperatorAction, ...], cause: str | None
) -> None:
    """An act on the case as a whole. What the gateway looked at may have moved since: it is looked at again."""
    action, wrong = OperatorAction(asked.action), None
    if action is A.MARK_RESOLVED:
        wrong = _unspoken(fold, asked)
    elif ground.corrected is not None:
        wrong = unfit(fold, asked, ground.corrected)
    if wrong is not None:
        _refuse(fold, asked, wrong, available, cause)
        return
    if ground.corrected is not None:
        migrate(fold, asked, ground.corrected, cause)
    CASE_ACTS[action](fold, asked, cause)
    fold.acted, fold.acted_by[None] = True, asked.actor


def _unspoken(fold: Fold, asked: OperatorCommand) -> str | None:
    """What closing the case would pass over in silence: effects that stand by now, or that are none of it."""
    assert fold.workflow is not None
    by_hash = {item.sha256: item for item in fold.workflow.declarations.values()}
    owed = standing(list(fold.operations.values()), by_hash)
    return "; ".join(unspoken(owed, said_of(asked.params), asked.seen)[:20]) or None


_TAKES_KEY: Final = frozenset({A.RETRY, A.REDRIVE, A.COMPENSATE})
_LOOKS: Final = _TAKES_KEY | {A.RECONCILE}
"""After these an operation is on its way again."""


def _refuse(
    fold: Fold, asked: OperatorCommand, detail: str, available: tuple[OperatorAction, ...], cause: str | None
) -> None:
    fold.case_note(
        "OperatorRefused",
        actor=asked.actor,
        at=asked.at,
        cause=cause,
        operator_command_id=asked.operator_command_id,
        action=asked.action,
        reason=detail,
    )
    tell_end(fold, asked.operator_command_id, CommandState.REFUSED, detail=detail, allowed=available)


def _note(fold: Fold, asked: OperatorCommand, action: OperatorAction, cause: str | None) -> None:
    if action is A.CANCEL:
        return  # noted as such
    fold.note(
        "OperatorActed",
        actor=asked.actor,
        at=asked.at,
        cause=cause,
        operator_command_id=asked.operator_command_id,
        decision_id=asked.decision_id,
        action=action.value,
        reason=asked.reason,
        finding=asked.params.get("finding"),
        disposition=asked.params.get("disposition"),
        observation=asked.params.get("observation"),
        unobserved=_unobserved(fold, action),
        evidence=asked.evidence or None,
    )


def _unobserved(fold: Fold, action: OperatorAction) -> list[str] | None:
    """The elements that a person's word stands for from here on: nobody could observe them."""
    if fold.workflow is not None or action not in (A.SETTLE, A.MARK_RESOLVED):
        return None
    known = is_unverified(fold.obligations.values())
    return [item["element"] for item in fold.instance.owed] if known else None


def _cancel(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    take_in_hand(fold, asked, A.CANCEL)
    fold_cancel(fold, reason=asked.reason, actor=asked.actor, cause=asked.operator_command_id)


def _retry(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    """Now, not later: what waits for its retry, or what never sent anything."""
    assert ground.declaration is not None
    take_in_hand(fold, asked, A.RETRY)
    if fold.state is OperationState.RETRY_PENDING:
        fold.set(wake_at=fold.moment.business, next_retry_at=fold.moment.business)
        fold_due(fold, ground.declaration)
    else:
        queue_again(fold, asked, ground.declaration, ground.identity)
    _forward(fold, asked)


def _redrive(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    assert ground.declaration is not None
    redrive(fold, asked, ground.declaration, ground.identity)
    _forward(fold, asked)


def _reconcile(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    """Look, and nothing else: what is not there has failed."""
    take_in_hand(fold, asked, A.RECONCILE)
    fold.move(Trigger.RETRY_BY_PERSON, human_review_required=False)
    look(fold)


def _forward(fold: Fold, asked: OperatorCommand) -> None:
    """A step that is tried again takes its case out of a person's hands; an undoing goes on backwards."""
    if fold.workflow is not None and fold.instance.direction == "person":
        go_forward(fold, asked, undoing=fold.operation.compensates is not None)


def _settle(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    """A person's finding, with the evidence that the gateway demanded."""
    assert ground.declaration is not None
    finding = Settled(asked.params["finding"])
    settled: dict[str, Any] = {"resolved_at": fold.moment.business}
    if finding is Settled.EXISTS:
        given = asked.params.get("receipt") or {}
        succeed(
            fold,
            ground.declaration,
            result=given,
            reference=asked.operator_command_id,
            external_resource_id=asked.params.get("external_resource_id"),
            external_version=asked.params.get("external_version"),
            trigger=Trigger.SETTLE_EXISTS,
            resolution_type="settled_exists",
            identity=ground.identity if ground.rival is None else None,
            **settled,
        )
    elif finding is Settled.ABSENT:
        kind = fold.operation.error_class
        fold.fail(Trigger.SETTLE_ABSENT, kind, SETTLED_ABSENT, asked.reason, resolution_type=SETTLED_ABSENT, **settled)
    else:
        _close(fold, asked, ground)
        return
    _done(fold, asked)


def _close(fold: Fold, asked: OperatorCommand, ground: Ground) -> None:
    """The rest of it is somebody's decision: resolved, or what a person had to look at was looked at."""
    kind = "closed" if asked.action == A.SETTLE else "resolved"
    settled = {"resolved_at": fold.moment.business, "resolution_type": kind, "human_review_required": False}
    if fold.workflow is None and is_unverified(fold.obligations.values()):
        end_owing(fold, asked)
    if fold.state in PERSONS:
        fold.move(Trigger.RESOLVE, **settled)
    else:
        fold.set(**settled)
    _done(fold, asked)


def _done(fold: Fold, asked: OperatorCommand) -> None:
    """In effect at once, and over with it."""
    done_by(fold, asked)
    row = fold.operation
    result = {"command_id": row.command_id, "state": row.state.value, "resolution_type": row.resolution_type}
    tell_end(fold, asked.operator_command_id, result=result)


Act = Callable[[Fold, OperatorCommand, Ground], None]

ACTS: Final[Mapping[OperatorAction, Act]] = {
    A.RETRY: _retry,
    A.REDRIVE: _redrive,
    A.COMPENSATE: _redrive,
    A.RECONCILE: _reconcile,
    A.CANCEL: _cancel,
    A.SETTLE: _settle,
    A.MARK_RESOLVED: _close,
}
"""What an action does with the operation in focus."""
