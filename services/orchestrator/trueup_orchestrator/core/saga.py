"""The saga: which way a case moves and which steps may begin, decided by what is true now, never by what came last.

`advance` may be called at any moment and any number of times. It reads the ends of the steps' operations, turns the
case where a step ended badly, evaluates guards and checks, opens approvals and waits, plans what is to be undone, and
answers which effects the case wants to begin.
"""

from typing import Any

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import INSTANCE_TERMINAL, CompensationState, OperationState
from trueup_common.contracts.workflow import (
    STEP_OVER,
    Assertion,
    Direction,
    GoTo,
    Reaction,
    Step,
    StepKind,
    StepOutcome,
    StepPhase,
    StepState,
)
from trueup_common.documents.expressions import ExpressionFailed
from trueup_orchestrator.core.fencing import fence
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.operation import PERSONS
from trueup_orchestrator.core.pausing import hold
from trueup_orchestrator.core.reactions import DIRECTION_OF_REACTION, OUTCOME_OF_STATE, reaction_of, turn
from trueup_orchestrator.core.recovery import Pivot, pivot_of_all
from trueup_orchestrator.core.signals import open_wait
from trueup_orchestrator.core.status import CANCELLED, continues
from trueup_orchestrator.core.steps import UNDOING, Begin, actions_left, prepare, scope_of
from trueup_orchestrator.core.undo import undo
from trueup_orchestrator.core.waits import describe_wait, open_approval, withdraw


def advance(fold: Fold) -> list[Begin]:
    """Bring the case to where it stands; answers the effects that may begin now.

    Who begins them asks again afterwards, or keeps the steps (`keep_steps`) where nothing can follow.
    """
    if fold.workflow is None or fold.instance.status in INSTANCE_TERMINAL:
        return []
    begins: list[Begin] = []
    for _ in range(2 * len(fold.steps) + 2):
        before = fold.instance.direction, dict(fold.steps)
        _sync(fold)
        if fold.instance.cancel is None:  # a cancel may fence operations, which the steps have to learn of
            before = fold.instance.direction, dict(fold.steps)
        if fold.instance.direction == Direction.FORWARD:
            _react(fold)
        if fold.instance.cancel is not None:
            take_cancel(fold)
        if fold.instance.direction == Direction.FORWARD:
            begins = _schedule(fold)
        if _is_at_rest(fold, *before):
            break
    if fold.instance.direction != Direction.FORWARD:
        begins = []
        _stop_forward(fold)
        if fold.instance.direction == Direction.BACKWARD:
            undo(fold)
    hold(fold)
    if not begins:
        keep_steps(fold)
    return begins


def _is_at_rest(fold: Fold, direction: str, steps: dict[str, StepState]) -> bool:
    """True where nothing moved that a step could follow."""
    return fold.instance.direction == direction and all(fold.steps[name] is state for name, state in steps.items())


def keep_steps(fold: Fold) -> None:
    """Steps, what is waited for and the next wake-up, written back where they changed."""
    steps = fold.written_steps()
    wait = describe_wait(fold)
    wakes = [item.wake_at for item in fold.steps.values() if item.wake_at is not None and item.phase not in STEP_OVER]
    queues = not fold.instance.locked and fold.instance.direction == Direction.FORWARD
    if queues and fold.instance.wake_at is not None:
        wakes.append(fold.instance.wake_at)
    changes: dict[str, Any] = {"steps": steps, "wait": wait, "wake_at": min(wakes, default=None)}
    if any(getattr(fold.instance, name) != value for name, value in changes.items()):
        fold.instance = fold.instance.evolve(**changes)


def _sync(fold: Fold) -> None:
    """Take over into the steps what their operations came to."""
    for state in list(fold.steps.values()):
        if state.command_id is None or state.phase in (StepPhase.SKIPPED, StepPhase.WITHDRAWN):
            continue
        row = fold.operations.get(state.command_id) or fold.foreign.get(state.command_id)
        if row is None:
            continue
        if state.phase is StepPhase.DONE:
            if state.attached and row.compensation_state is not CompensationState.NONE:
                _lose(fold, state, row)
            continue
        if state.attached and row.compensation_state in UNDOING:
            continue  # it goes away: what this step does is decided by how that ends
        if state.attached and (
            row.state in PERSONS | {OperationState.CANCELLED} or row.compensation_state is not CompensationState.NONE
        ):
            fold.step(
                state.id, phase=StepPhase.PENDING, command_id=None, attached=False, generation=state.generation + 1
            )
        elif row.state in (OperationState.SUCCESS, OperationState.RESOLVED):
            fold.step(state.id, phase=StepPhase.DONE, outcome=None, reason=None, ended_at=fold.moment.business)
        elif row.state is OperationState.CANCELLED:
            fold.step(state.id, phase=StepPhase.WITHDRAWN, ended_at=fold.moment.business)
        elif row.state in PERSONS:
            if state.phase is not StepPhase.FAILED:
                fold.step(
                    state.id,
                    phase=StepPhase.FAILED,
                    outcome=OUTCOME_OF_STATE.get(row.state),
                    reason=row.error_code,
                    ended_at=fold.moment.business,
                )
        elif state.phase is not StepPhase.RUNNING:
            fold.step(state.id, phase=StepPhase.RUNNING, outcome=None, reason=None, ended_at=None, held=False)


def _lose(fold: Fold, state: StepState, row: JournalRow) -> None:
    """Another case takes back an effect that a step of this one relied on: a person decides what that means."""
    if fold.instance.direction == Direction.FORWARD:
        detail = f"{row.workflow_id} undoes {row.command_id}"
        turn(fold, Direction.PERSON, "attached_effect_undone", step_id=state.id, detail=detail)


def _react(fold: Fold) -> None:
    pivot = pivot_of_all(fold.operations.values())
    for state in list(fold.steps.values()):
        if state.phase is not StepPhase.FAILED or state.held:
            continue
        said = reaction_of(fold, state, pivot)
        if isinstance(said, GoTo):
            _go_to(fold, state, said.goto)
        elif said is not None and said is not Reaction.CONTINUE:
            reason = CANCELLED if said is Reaction.CANCEL else f"{state.id}_{state.outcome or 'undecided'}"
            turn(fold, DIRECTION_OF_REACTION[said], reason, step_id=state.id, detail=state.reason)
            return


def _go_to(fold: Fold, state: StepState, target: str) -> None:
    """Go on with another step. Backwards, the linter admits no effects on the way."""
    assert fold.workflow is not None
    order = [step.id for step in fold.workflow.document.steps]
    here, there = order.index(state.id), order.index(target)
    fold.case_note("CaseWentTo", step_id=state.id, outcome=state.outcome, target=target)
    if there > here:
        fold.step(state.id, phase=StepPhase.SKIPPED)
        for step_id in order[here + 1 : there]:
            if fold.steps[step_id].phase is StepPhase.PENDING:
                fold.step(step_id, phase=StepPhase.SKIPPED, ended_at=fold.moment.business)
        return
    for step_id in order[there : here + 1]:
        old = fold.steps[step_id]
        fold.steps[step_id] = StepState(
            id=old.id, kind=old.kind, command_type=old.command_type, generation=old.generation + 1
        )


def take_cancel(fold: Fold) -> None:
    """A cancel that was asked for: backwards before the pivot, wait beside an unknown one, a person after it.

    It also takes a case out of a person's hands, where nothing irreversible has happened.
    """
    direction = fold.instance.direction
    if direction not in (Direction.FORWARD, Direction.PERSON):
        return
    pivot = pivot_of_all(fold.operations.values())
    if pivot is Pivot.NO:
        turn(fold, Direction.BACKWARD, CANCELLED)
    elif direction == Direction.PERSON:
        return
    elif pivot is Pivot.PASSED:
        turn(fold, Direction.PERSON, "cancelled_after_pivot", detail="the pivot had happened; nothing is undone")
    else:
        for row in list(fold.operations.values()):
            fence(fold, row.command_id, "the case is being cancelled")


def _stop_forward(fold: Fold) -> None:
    """Nothing forward begins any more: what was not sent is fenced, what is waited for is withdrawn."""
    for row in list(fold.operations.values()):
        if row.compensates is None:
            fence(fold, row.command_id, str((fold.instance.turned or {}).get("reason")))
    _sync(fold)
    for state in list(fold.steps.values()):
        if state.phase is StepPhase.WAITING:
            withdraw(fold, state)


def has_ended(fold: Fold, step_id: str) -> bool:
    """True for a step that those which need it may follow."""
    state = fold.steps[step_id]
    return state.phase in (StepPhase.DONE, StepPhase.SKIPPED) or continues(fold, state)


def _schedule(fold: Fold) -> list[Begin]:
    """Open every step whose needs have ended; answers the effects that may begin."""
    workflow = fold.workflow
    assert workflow is not None
    if fold.instance.paused is not None or not fold.instance.locked or fold.instance.cancel is not None:
        return []
    begins: list[Begin] = []
    for step in workflow.document.steps:
        if fold.instance.direction != Direction.FORWARD:
            return []
        state = fold.steps[step.id]
        if state.phase is not StepPhase.PENDING:
            continue
        if not all(has_ended(fold, needed) for needed in workflow.document.needs[step.id]):
            continue
        begin = _open(fold, step, state, beginning=len(begins))
        if begin is not None:
            begins.append(begin)
    return begins


def _open(fold: Fold, step: Step, state: StepState, *, beginning: int) -> Begin | None:
    workflow = fold.workflow
    assert workflow is not None
    try:
        if step.when is not None and not workflow.expressions.holds(step.when, scope_of(fold), fold.effort):
            fold.case_note("StepSkipped", step_id=step.id, when=step.when)
            fold.step(step.id, phase=StepPhase.SKIPPED, ended_at=fold.moment.business)
            return None
        match step.kind:
            case StepKind.COMMAND:
                if not actions_left(fold, beginning=beginning):
                    most = fold.instance.actions_max
                    detail = f"the case may cause no more effects than max_actions says: {most}"
                    turn(fold, Direction.PERSON, "actions_exhausted", step_id=step.id, detail=detail)
                    return None
                return prepare(fold, step, state)
            case StepKind.CHECK:
                _check(fold, step)
            case StepKind.APPROVAL:
                open_approval(fold, step, state)
            case StepKind.WAIT:
                open_wait(fold, step)
    except ExpressionFailed as failure:
        fold.case_note("StepFailed", step_id=step.id, reason=str(failure)[:300])
        fold.step(
            step.id,
            phase=StepPhase.FAILED,
            outcome=StepOutcome.FAILED,
            reason=str(failure)[:300],
            ended_at=fold.moment.business,
        )
    return None


def _check(fold: Fold, step: Step) -> None:
    """Evaluate every assertion, so that the person sees all that is wrong and not only the first."""
    assert fold.workflow is not None and step.check is not None
    scope, failed = scope_of(fold), []
    for item in step.check:
        assertion = item if isinstance(item, Assertion) else Assertion(that=item)
        try:
            holds = fold.workflow.expressions.holds(assertion.that, scope, fold.effort)
        except ExpressionFailed as failure:
            holds = False
            failed.append(f"{assertion.says or assertion.that}: {failure}"[:300])
        else:
            if not holds:
                failed.append((assertion.says or assertion.that)[:300])
    fold.case_note("CheckEvaluated", step_id=step.id, passed=not failed, failed=failed or None)
    fold.step(
        step.id,
        phase=StepPhase.FAILED if failed else StepPhase.DONE,
        outcome=StepOutcome.FAILED if failed else None,
        reason="; ".join(failed)[:500] or None,
        output={"passed": not failed, "failed": failed},
        started_at=fold.moment.business,
        ended_at=fold.moment.business,
    )
