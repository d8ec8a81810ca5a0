"""Going on from a step, also by a corrected version: what runs again, what is kept, what waits anew, what does not fit.

One answer for the preview at the gateway and for the orchestrator that does it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.standing import barred
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.workflow import StepKind, StepPhase, StepState, WorkflowDocument

S = OperationState
_BEGINS_ANEW: Final = frozenset({None, S.FAILED, S.CONFLICT, S.CANCELLED})
_DOUBTED: Final = frozenset({S.DEAD_LETTERED, S.NEEDS_REVIEW})
_COMES_BACK: Final = frozenset({StepPhase.PENDING, StepPhase.WITHDRAWN})
_WAITS: Final = frozenset({StepKind.WAIT, StepKind.APPROVAL})
CASE: Final = "case"
"""In place of a step, what does not fit of the whole case."""

Misfit = tuple[str, str]
"""(step, why it does not fit)."""


@record
class Resumption:
    """What going on from a step does, each in the document's order.

    `again` begins, anew or for the first time. Of these, `redriven` may have happened: it is looked at first and sent
    only where it is not there; `reopened` waits for somebody or something once more. `held` ended badly and stays in
    the person's hands. Everything that is not in `again` is `kept`.
    """

    again: tuple[str, ...]
    kept: tuple[str, ...]
    redriven: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


def resumption(
    steps: Sequence[StepState],
    rows: Mapping[str, JournalRow],
    from_step: str,
    anew: Collection[str] = (),
) -> Resumption | None:
    """What happens when a case goes on from a step; None where it has no such step. `rows` by command, also foreign
    ones; `anew` are steps that run again whatever they came to.

    From there on everything runs again but effects that stand or are on their way, and what was waited for or asked
    before them. One that may have happened is looked at and sent again only where nothing before it runs again; else it
    stays with its exception. Before it, what never began or was withdrawn begins, since automation is back.
    """
    order = [step.id for step in steps]
    if from_step not in order:
        return None
    first = order.index(from_step)
    came_to = [_came_to(step, rows) for step in steps]
    relied_on = max((at for at, state in enumerate(came_to) if state not in _BEGINS_ANEW), default=-1)
    again: list[str] = []
    redriven: list[str] = []
    resumed = False
    for at, step in enumerate(steps):
        state = came_to[at]
        if at < first:
            if step.id in anew or step.phase in _COMES_BACK:
                again.append(step.id)
            continue
        done = step.phase is StepPhase.DONE and at < relied_on and step.kind is not StepKind.COMMAND
        if done and step.id not in anew:
            continue
        if state in _BEGINS_ANEW or (state in _DOUBTED and not resumed):
            again.append(step.id)
            resumed = True
            redriven += [step.id] if state in _DOUBTED else []
    return Resumption(
        again=tuple(again),
        kept=tuple(step_id for step_id in order if step_id not in again),
        redriven=tuple(redriven),
        reopened=tuple(step.id for step in steps if step.id in again and step.kind in _WAITS),
        held=tuple(step.id for step in steps if step.id not in again and step.phase is StepPhase.FAILED),
    )


def _came_to(step: StepState, rows: Mapping[str, JournalRow]) -> OperationState | None:
    """The state that decides about a step; an effect that landed without succeeding is in doubt for good."""
    row = rows.get(step.command_id or "") if step.kind is StepKind.COMMAND else None
    if row is None:
        return None
    return S.RECONCILING if barred(row) and row.state in _BEGINS_ANEW else row.state


def has_begun(step: StepState) -> bool:
    """True for a step that anything is known of."""
    return step.phase is not StepPhase.PENDING or step.command_id is not None or step.generation > 1


def misfits(  # noqa: PLR0917 - a case, two documents and two sets of declarations
    steps: Sequence[StepState],
    rows: Mapping[str, JournalRow],
    old: WorkflowDocument,
    new: WorkflowDocument,
    from_step: str,
    pinned: Mapping[str, CommandDeclaration],
    current: Mapping[str, CommandDeclaration],
) -> list[Misfit]:
    """Why a case cannot go on by a corrected version; nothing where it can.

    `pinned` are the declarations that the case keeps to, `current` those in force, both by command type.
    """
    found = _of_the_whole(old, new)
    order = [step.id for step in new.steps]
    if from_step not in order:
        return [*found, (from_step, f"version {new.version} has no such step")]
    first = order.index(from_step)
    for state in steps:
        found += _of_a_step(state, rows, new, order.index(state.id) < first if state.id in order else None)
    for step in new.steps:
        if step.command is not None:
            found += [(step.id, why) for why in _of_a_type(step.command, pinned, current)]
    return found


def _of_the_whole(old: WorkflowDocument, new: WorkflowDocument) -> list[Misfit]:
    said = {
        "is another workflow": old.name == new.name,
        "names another business object": (old.object.type, old.object.id) == (new.object.type, new.object.id),
        "takes other locks": old.locks == new.locks,
        "takes another input": old.input == new.input,
    }
    return [(CASE, f"version {new.version} {why}") for why, fits in said.items() if not fits]


def _of_a_step(
    state: StepState, rows: Mapping[str, JournalRow], new: WorkflowDocument, precedes: bool | None
) -> list[Misfit]:
    if not has_begun(state):
        return []
    step, came_to = new.by_id.get(state.id), _came_to(state, rows)
    if step is None or precedes is None:
        return [(state.id, f"began already, and version {new.version} has no such step")]
    if step.kind is not state.kind:
        return [(state.id, f"is a {state.kind.value}, and in version {new.version} a {step.kind.value}")]
    if came_to in _BEGINS_ANEW:
        return []
    if came_to not in (S.SUCCESS, S.RESOLVED):
        return [(state.id, "is not known to be done or not done: settle it first")]
    wrong: list[Misfit] = []
    if step.command != state.command_type:
        wrong.append((state.id, f"is done as {state.command_type}, and in version {new.version} it is {step.command}"))
    if not precedes:
        wrong.append((state.id, "is done, and does not come before the step to go on from"))
    return wrong


def _of_a_type(
    command_type: str, pinned: Mapping[str, CommandDeclaration], current: Mapping[str, CommandDeclaration]
) -> list[str]:
    mine, now = pinned.get(command_type), current.get(command_type)
    if mine is None:
        return [f"{command_type} is not among the command types that the case may use"]
    if now is None or now.effect_class is not mine.effect_class:
        declared = now.effect_class.value if now is not None else "not declared any more"
        return [f"{command_type} was {mine.effect_class.value} when the case began and is {declared} now"]
    return []


def carried(steps: Sequence[StepState], new: WorkflowDocument) -> list[StepState]:
    """The steps of a case in the order of a corrected version; what is new in it has not begun."""
    known = {step.id: step for step in steps}
    return [
        known[step.id]
        if step.id in known and has_begun(known[step.id])
        else StepState(id=step.id, kind=step.kind, command_type=step.command)
        for step in new.steps
    ]


def reassessed(
    steps: Sequence[StepState], rows: Mapping[str, JournalRow], old: WorkflowDocument, new: WorkflowDocument, at: str
) -> frozenset[str]:
    """Steps that were done by the old version and are not done by the new one: checks and waits that it corrects, and
    every approval that something still to run rests on: it was given for another document."""
    changed = frozenset(
        step.id
        for step in new.steps
        if step.kind in (StepKind.CHECK, StepKind.WAIT) and step.id in old.by_id and old.by_id[step.id] != step
    )
    first = resumption(steps, rows, at, changed)
    runs = set(first.again) if first is not None else set()
    needed = {need for step_id in runs for need in new.before[step_id]}
    return changed | {step.id for step in new.steps if step.kind is StepKind.APPROVAL and step.id in needed}
