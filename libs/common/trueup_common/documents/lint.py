"""The linter: whether a document can be run safely. Each rule is one function; RULES is the list, printed in the docs.

Who registers a document gets every fault at once, with its line. Only where the steps do not hang together, nothing
else is checked: the rest would be noise.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents import rules_of_commands as commands
from trueup_common.documents import rules_of_effects as effects
from trueup_common.documents import rules_of_structure as structure
from trueup_common.documents import rules_of_values as values
from trueup_common.documents.faults import DocumentInvalid, Fault, LineOf
from trueup_common.documents.ground import Ground, Rule
from trueup_common.documents.read import ReadDocument, read_document

STRUCTURE: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "duplicate-step": structure.duplicate_step,
        "unknown-step": structure.unknown_step,
        "cycle": structure.cycle,
        "outcome": structure.outcome,
    }
)
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **STRUCTURE,
        "effect-order": effects.effect_order,
        "undo-after-pivot": effects.undo_after_pivot,
        "pivot-left-behind": effects.pivot_left_behind,
        "two-pivots": effects.two_pivots,
        "no-compensation": effects.no_compensation,
        "cannot-be-undone": effects.cannot_be_undone,
        "findability": effects.findability,
        "guard-bypassed": effects.guard_bypassed,
        "goto-target": effects.goto_target,
        "goto-repeats": effects.goto_repeats,
        "hot-loop": effects.hot_loop,
        "unbound-hash": effects.unbound_hash,
        "approval-binds": effects.approval_binds,
        "unknown-command": commands.unknown_command,
        "payload": commands.payload,
        "expected-version": commands.expected_version,
        "loosens": commands.loosens,
        "lifetime": commands.lifetime,
        "schema": values.schema,
        "expression": values.expression,
        "unknown-value": values.unknown_value,
        "reads-ahead": values.reads_ahead,
        "type": values.value_type,
        "may-be-missing": values.may_be_missing,
        "constant": values.constant,
        "constant-key": values.constant_key,
    }
)


def faults(
    document: WorkflowDocument, declarations: Mapping[str, CommandDeclaration], line_of: LineOf | None = None
) -> list[Fault]:
    """Everything that is wrong with a document, given the declarations by command type."""
    ground = Ground(document, declarations)
    found = _faults(ground, STRUCTURE, line_of)
    return found or _faults(ground, RULES, line_of)


def _faults(ground: Ground, rules: Mapping[str, Rule], line_of: LineOf | None) -> list[Fault]:
    found = {
        Fault(name, pointer, line_of(pointer) if line_of else None, detail)
        for name, rule in rules.items()
        for pointer, detail in rule(ground)
    }
    return sorted(found, key=lambda fault: (fault.line or 0, fault.pointer, fault.rule, fault.detail))


def sound_document(text: str | bytes, declarations: Mapping[str, CommandDeclaration]) -> ReadDocument:
    """The document in a text, read and linted. Raises DocumentInvalid with every fault."""
    found = read_document(text)
    broken = faults(found.document, declarations, found.line_of)
    if broken:
        raise DocumentInvalid(broken)
    return found
