"""What the rules stand on: a document, the declarations of its commands, the order of its steps and its expressions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EffectClass
from trueup_common.contracts.workflow import Reaction, Step, StepKind, StepOutcome, WorkflowDocument
from trueup_common.documents.cel_text import CelText, TextInvalid
from trueup_common.documents.expressions import compiled
from trueup_common.documents.order import Order
from trueup_common.documents.places import Place, Reading, places
from trueup_common.documents.reactions import BACKWARD, DEFAULTS, reaction
from trueup_common.documents.scope import NotThere, Scope, Seen

Found = tuple[str, str]
"""A JSON pointer and what is wrong there."""
Rule = Callable[["Ground"], Iterator[Found]]

PIVOTS = frozenset({EffectClass.PIVOT, EffectClass.IRREVERSIBLE})


class Ground:
    """Everything about one document that several rules need, worked out once."""

    def __init__(self, document: WorkflowDocument, declarations: Mapping[str, CommandDeclaration]) -> None:
        self.document = document
        self.declarations = declarations
        self.scope = Scope(document, declarations)

    @cached_property
    def order(self) -> Order:
        """The order of the steps."""
        return Order(self.document)

    @cached_property
    def steps(self) -> list[tuple[str, Step]]:
        """All steps with their pointers."""
        return [(f"/steps/{index}", step) for index, step in enumerate(self.document.steps)]

    @cached_property
    def commands(self) -> list[tuple[str, Step, CommandDeclaration]]:
        """The steps whose command is known, with their pointers and declarations."""
        found = ((pointer, step, self.declarations.get(step.command or "")) for pointer, step in self.steps)
        return [(pointer, step, declaration) for pointer, step, declaration in found if declaration is not None]

    @cached_property
    def pivots(self) -> list[str]:
        """The steps that cannot be taken back."""
        return [step.id for _, step, declaration in self.commands if declaration.effect_class in PIVOTS]

    @cached_property
    def past_pivot(self) -> frozenset[str]:
        """The steps that can begin only after a pivot."""
        return frozenset(step for pivot in self.pivots for step in self.order.after[pivot])

    def effect(self, step: Step) -> EffectClass:
        """What the step does to the world."""
        declaration = self.declarations.get(step.command or "")
        return declaration.effect_class if declaration else EffectClass.READ

    def fails_backwards(self, step: Step) -> StepOutcome | None:
        """An outcome of this step that only going backwards could answer, wherever it stands; None where there is none.

        A command without its own answer goes backwards or forwards as the case stands with its pivot, if there is a
        forward way: that of its declaration.
        """
        for outcome, default in DEFAULTS[step.kind].items():
            said = step.on.get(outcome)
            if said in BACKWARD:
                return outcome
            if said is not None or default not in BACKWARD:
                continue
            declaration = self.declarations.get(step.command or "")
            if step.kind is not StepKind.COMMAND or _without_forward_way(declaration):
                return outcome
        return None

    def turns_back(self, step: Step) -> bool:
        """True where some end of this step takes the case backwards while no pivot has passed.

        A retryable command is carried through, unless the document says otherwise.
        """
        if self.effect(step) is EffectClass.RETRYABLE:
            return any(answer in BACKWARD for answer in step.on.values())
        return any(reaction(step, outcome) in BACKWARD for outcome in DEFAULTS[step.kind])

    @cached_property
    def may_lack_output(self) -> frozenset[str]:
        """Steps that may be over without their outputs: guarded, passed over, or left behind after a failure."""
        found = {step.id for _, step in self.steps if step.when is not None}
        for _, step in self.steps:
            for outcome, answer in step.on.items():
                told = step.kind is StepKind.CHECK or outcome is StepOutcome.REJECTED
                if answer is Reaction.CONTINUE and not told:
                    found.add(step.id)
                elif not isinstance(answer, Reaction):
                    if not told:
                        found.add(step.id)
                    found |= self.order.between(step.id, answer.goto) if answer.goto in self.order.needs else set()
        return frozenset(found)

    @cached_property
    def _read(self) -> list[tuple[Place, Reading | TextInvalid]]:
        found: list[tuple[Place, Reading | TextInvalid]] = []
        for place in places(self.document):
            try:
                found.append((place, place.read()))
            except TextInvalid as error:
                found.append((place, error))
        return found

    @cached_property
    def readings(self) -> list[Reading]:
        """All expressions that can be read."""
        return [reading for _, reading in self._read if isinstance(reading, Reading)]

    @cached_property
    def unreadable(self) -> list[Found]:
        """The places that hold no expression, though they should."""
        return [(place.pointer, str(error)) for place, error in self._read if isinstance(error, TextInvalid)]

    def seen(self, place: Place, path: tuple[str, ...]) -> Seen:
        """What stands at a path that is read here. Raises NotThere."""
        wait = place.step.wait if place.step else None
        return self.scope.look(path, wait.data if wait else None)

    def type_of(self, place: Place, text: CelText) -> Any:
        """The CEL type of an expression here. Raises TextInvalid, also for what it reads in vain."""
        try:
            types = {".".join(path): self.seen(place, path).type for path in (*text.reads, *text.asks)}
        except NotThere as error:
            raise TextInvalid(str(error)) from error
        if text.path:
            return types[".".join(text.path)]
        return _result(text, tuple(_Typed(name, found, str(found)) for name, found in types.items()))


@dataclass(frozen=True, slots=True)
class _Typed:
    """A variable with its type; the library's types have no hash, their names do."""

    name: str
    type: Any = field(compare=False)
    said: str


@lru_cache(maxsize=4096)
def _result(text: CelText, variables: tuple[_Typed, ...]) -> Any:
    """The type of an expression's value; a refused document is sent again with most of its text unchanged."""
    return compiled(text, {variable.name: variable.type for variable in variables}).return_type()


def _without_forward_way(declaration: CommandDeclaration | None) -> bool:
    if declaration is None or declaration.effect_class is not EffectClass.COMPENSABLE:
        return False
    return declaration.forward_recovery == "person"
