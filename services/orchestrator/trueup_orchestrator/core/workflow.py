"""A workflow as a case runs it: its document, its expressions and the declarations that the case pinned."""

from collections.abc import Mapping
from dataclasses import dataclass

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Workflow:
    """Everything about a case that is not its state. `declarations` are by command type."""

    document: WorkflowDocument
    expressions: Expressions
    declarations: Mapping[str, CommandDeclaration]
