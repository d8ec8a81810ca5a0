"""Going on by a corrected version: the case keeps what it did, and from there on runs what the new document says.

Nothing is migrated that does not fit: the rule stands in `contracts.resumption`, and the gateway's preview asked it.
"""

from collections.abc import Mapping

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.resumption import carried, misfits, reassessed
from trueup_common.contracts.workflow import StepState
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.workflow import Workflow


def fresh(state: StepState) -> StepState:
    """A step from its beginning, under a generation of its own."""
    return StepState(id=state.id, kind=state.kind, command_type=state.command_type, generation=state.generation + 1)


def rows_of(fold: Fold) -> Mapping[str, JournalRow]:
    """Every operation that a step may rest on, also those of other cases."""
    return {**fold.foreign, **fold.operations}


def unfit(fold: Fold, asked: OperatorCommand, corrected: Workflow) -> str | None:
    """Why the case cannot go on by this version; None where it can."""
    assert fold.workflow is not None
    if fold.instance.paused is not None:
        return "a paused case goes on by the version that it runs by"
    current: Mapping[str, CommandDeclaration] = corrected.declarations
    wrong = misfits(
        list(fold.steps.values()),
        rows_of(fold),
        fold.workflow.document,
        corrected.document,
        str(asked.params.get("from_step")),
        fold.workflow.declarations,
        current,
    )
    return "; ".join(f"{step_id} {why}" for step_id, why in wrong[:20]) or None


def migrate(fold: Fold, asked: OperatorCommand, corrected: Workflow, cause: str | None) -> None:
    """Let the case run by the corrected version: what it did is kept, what the version judges anew has not begun."""
    assert fold.workflow is not None
    old, new, instance = fold.workflow.document, corrected.document, fold.instance
    steps = carried(list(fold.steps.values()), new)
    anew = reassessed(steps, rows_of(fold), old, new, str(asked.params.get("from_step")))
    known = fold.steps
    fold.workflow = corrected
    fold.steps = {
        state.id: fresh(state) if state.id in anew and state.id in known else _retyped(state, corrected)
        for state in steps
    }
    fold.instance = instance.evolve(version=new.version, sha256=new.sha256)
    fold.case_note(
        "CaseMigrated",
        actor=asked.actor,
        at=asked.at,
        cause=cause,
        operator_command_id=asked.operator_command_id,
        decision_id=asked.decision_id,
        from_step=asked.params.get("from_step"),
        from_version=instance.version,
        to_version=new.version,
        from_sha256=instance.sha256,
        to_sha256=new.sha256,
        reason=asked.reason,
    )


def _retyped(state: StepState, corrected: Workflow) -> StepState:
    """A step that begins anew may have another command type from here on; one that is done has the same."""
    command_type = corrected.document.by_id[state.id].command
    if command_type == state.command_type:
        return state
    retyped: StepState = state.evolve(command_type=command_type)
    return retyped
