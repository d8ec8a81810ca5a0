"""The order of a document's steps: who comes before whom, and what a `goto` passes over or runs again."""

from trueup_common.contracts.workflow import WorkflowDocument


class Order:
    """The partial order that `needs` makes. Steps that are not ordered may run side by side."""

    def __init__(self, document: WorkflowDocument) -> None:
        self.standing = tuple(document.by_id)
        known = document.by_id
        self.needs = {step: [need for need in needs if need in known] for step, needs in document.needs.items()}
        self.before = document.before
        self.after: dict[str, frozenset[str]] = {
            step: frozenset(other for other in self.needs if step in self.before[other]) for step in self.needs
        }

    def beside(self, step: str) -> list[str]:
        """Steps that are neither before nor after this one."""
        return [other for other in self.needs if other not in self.before[step] | self.after[step] | {step}]

    def between(self, first: str, last: str) -> frozenset[str]:
        """The steps that come after the one and before the other."""
        return self.after[first] & self.before[last]

    def slice(self, first: str, last: str) -> tuple[str, ...]:
        """The steps that stand between the two in the document; a `goto` skips them, or does them again."""
        return self.standing[self.standing.index(first) + 1 : self.standing.index(last)]
