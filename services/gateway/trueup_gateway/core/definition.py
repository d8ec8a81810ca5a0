"""Workflow documents as governance sees them: which types they run, who guards a pivot, what may be started."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EffectClass
from trueup_common.contracts.workflow import Step, StepKind, WorkflowDocument

GUARDABLE: Final = frozenset({EffectClass.PIVOT, EffectClass.IRREVERSIBLE})
BUILT_IN_BY: Final = "trueup"


@dataclass(frozen=True, slots=True)
class Definition:
    """One registered version of a workflow, a tenant's own or one that ships with the product."""

    document: WorkflowDocument
    text: str
    built_in: bool
    created_by: str
    created_at: datetime | None = None
    retired_at: datetime | None = None
    retired_by: str | None = None
    retirement_reason: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Name and version."""
        return self.document.name, self.document.version


def chosen(definitions: Iterable[Definition], name: str, version: int | None) -> Definition | None:
    """The version that is named, or the newest that is not retired."""
    named = [item for item in definitions if item.document.name == name]
    if version is not None:
        return next((item for item in named if item.document.version == version), None)
    open_ones = [item for item in named if item.retired_at is None]
    return max(open_ones, key=lambda item: item.document.version, default=None)


def behind(document: WorkflowDocument, step_id: str) -> frozenset[str]:
    """Every step that must have ended before this one starts, directly or through others."""
    found: set[str] = set()
    left = list(document.needs.get(step_id, ()))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(document.needs.get(name, ()))
    return frozenset(found)


def approvals_before(document: WorkflowDocument, step: Step) -> list[Step]:
    """The approval steps that always stand before a step, in the document's order; a conditional one guards nothing."""
    before = behind(document, step.id)
    return [
        other
        for other in document.steps
        if other.id in before and other.kind is StepKind.APPROVAL and other.when is None
    ]


def guarded(
    document: WorkflowDocument, declarations: Mapping[str, CommandDeclaration]
) -> dict[str, list[dict[str, Any]]]:
    """The pivotal command types before each of whose steps the document asks a person, with what it asks."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in document.command_types:
        declaration = declarations.get(name)
        if declaration is None or declaration.effect_class not in GUARDABLE:
            continue
        asked = [(step, approvals_before(document, step)) for step in document.steps if step.command == name]
        if all(steps for _, steps in asked):
            found[name] = [
                {"kind": "approval", "scope": last.approval.scope, "step": last.id, "before": step.id}
                for step, steps in asked
                if (last := steps[-1]).approval is not None
            ]
    return found


def undone_by(declarations: Iterable[CommandDeclaration]) -> list[str]:
    """The command types that undo these, sorted."""
    return sorted({item.compensation.command_type for item in declarations if item.compensation is not None})
