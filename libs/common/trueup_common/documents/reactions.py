"""What follows when a step does not end well: which outcomes each kind of step has, and the default answer to each.

The defaults hold before the pivot. After it nothing is undone: `compensate` and `cancel` become `takeover` there.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.workflow import GoTo, Reaction, Step, StepKind, StepOutcome

DEFAULTS: Final[Mapping[StepKind, Mapping[StepOutcome, Reaction]]] = MappingProxyType(
    {
        StepKind.COMMAND: {
            StepOutcome.FAILED: Reaction.COMPENSATE,
            StepOutcome.CONFLICT: Reaction.TAKEOVER,
            StepOutcome.EXHAUSTED: Reaction.TAKEOVER,
        },
        StepKind.WAIT: {StepOutcome.TIMEOUT: Reaction.TAKEOVER},
        StepKind.APPROVAL: {StepOutcome.REJECTED: Reaction.COMPENSATE, StepOutcome.TIMEOUT: Reaction.TAKEOVER},
        StepKind.CHECK: {StepOutcome.FAILED: Reaction.TAKEOVER},
    }
)
"""The outcomes that a kind of step can have, with what follows where the document says nothing."""

BACKWARD: Final = frozenset({Reaction.COMPENSATE, Reaction.CANCEL})


def reaction(step: Step, outcome: StepOutcome, *, pivot_passed: bool = False) -> Reaction | GoTo:
    """The answer to one outcome of a step. Raises KeyError for an outcome that this kind of step does not have."""
    default = DEFAULTS[step.kind][outcome]
    found = step.on.get(outcome, default)
    return Reaction.TAKEOVER if pivot_passed and isinstance(found, Reaction) and found in BACKWARD else found


def reactions(step: Step) -> dict[StepOutcome, Reaction | GoTo]:
    """The answers to all outcomes of a step, before the pivot."""
    return {outcome: reaction(step, outcome) for outcome in DEFAULTS[step.kind]}


def gotos(step: Step) -> dict[StepOutcome, str]:
    """The outcomes that go on elsewhere."""
    return {outcome: answer.goto for outcome, answer in step.on.items() if isinstance(answer, GoTo)}
