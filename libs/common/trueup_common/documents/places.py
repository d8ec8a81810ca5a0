"""Where expressions stand in a document, and what each of them may read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueup_common.contracts.workflow import Assertion, Step, WorkflowDocument
from trueup_common.documents.cel_text import CelText, TextInvalid, read_expression
from trueup_common.documents.faults import below
from trueup_common.documents.templates import OPEN, Template, read_template, strings

_AT_START: Final = frozenset({"input"})
_IN_STEP: Final = frozenset({"input", "steps", "case"})
_ON_EVENT: Final = _IN_STEP | {"event"}


@dataclass(frozen=True, slots=True)
class Place:
    """A string with expressions. `name` is the field it stands in; `entry` where it could be left out."""

    pointer: str
    text: str
    name: str
    roots: frozenset[str]
    step: Step | None = None
    condition: bool = False
    entry: bool = False

    def read(self) -> "Reading":
        """Its expressions. Raises TextInvalid."""
        if self.condition:
            if OPEN in self.text:
                raise TextInvalid(f"{self.name} is CEL itself: leave out the ${{ and the }}")
            return Reading(self, None, (read_expression(self.text),))
        template = read_template(self.text)
        if template.optional and not self.entry:
            raise TextInvalid("${?…} stands where an entry can be left out")
        return Reading(self, template, template.expressions)


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands in a place: a condition (no template), or a template with its expressions."""

    place: Place
    template: Template | None
    expressions: tuple[CelText, ...]

    @property
    def roots(self) -> frozenset[str]:
        """The roots that it reads."""
        return frozenset(path[0] for text in self.expressions for path in text.reads)


def places(document: WorkflowDocument) -> Iterator[Place]:
    """Every place of the document that holds an expression."""
    yield from _templates("/object/id", document.object.id, "id", _AT_START, None)
    yield from _templates("/locks", list(document.locks), "locks", _AT_START, None)
    for index, step in enumerate(document.steps):
        yield from _of_step(f"/steps/{index}", step)


def _of_step(pointer: str, step: Step) -> Iterator[Place]:
    if step.when is not None:
        yield Place(f"{pointer}/when", step.when, "when", _IN_STEP, step, condition=True)
    for name, value in (
        ("with", step.payload),
        ("resource", step.resource),
        ("expected_version", step.expected_version),
        ("key", step.key),
    ):
        yield from _templates(f"{pointer}/{name}", value, name, _IN_STEP, step)
    if step.approval is not None:
        yield from _templates(f"{pointer}/approval/binds", list(step.approval.binds), "binds", _IN_STEP, step)
        yield from _templates(f"{pointer}/approval/shows", step.approval.shows, "shows", _IN_STEP, step)
    if step.wait is not None and step.wait.match is not None:
        yield Place(f"{pointer}/wait/match", step.wait.match, "match", _ON_EVENT, step, condition=True)
    for number, item in enumerate(step.check or ()):
        inside = below(f"{pointer}/check", number)
        if isinstance(item, Assertion):
            yield Place(f"{inside}/that", item.that, "that", _IN_STEP, step, condition=True)
        else:
            yield Place(inside, item, "check", _IN_STEP, step, condition=True)


def _templates(pointer: str, value: Any, name: str, roots: frozenset[str], step: Step | None) -> Iterator[Place]:
    for inside, text, entry in strings(value, pointer):
        if OPEN in text:
            yield Place(inside, text, name, roots, step, entry=entry and name in ("with", "shows"))
