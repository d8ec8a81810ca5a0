"""A fault says which rule a document breaks, where (pointer and line), and what to do about it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LineOf = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason to refuse a document. `line` counts from 1; None where the text is not at hand."""

    rule: str
    pointer: str
    line: int | None
    detail: str

    def __str__(self) -> str:
        place = f"line {self.line}, {self.pointer or '/'}" if self.line else self.pointer or "/"
        return f"{place}: {self.detail} [{self.rule}]"

    def dumped(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class DocumentInvalid(ValueError):
    """A document that is refused, with every fault found."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def escaped(part: str | int) -> str:
    """One member name or index as a part of a JSON pointer."""
    return str(part).replace("~", "~0").replace("/", "~1")


def below(pointer: str, *parts: str | int) -> str:
    """The pointer to something inside."""
    return pointer + "".join(f"/{escaped(part)}" for part in parts)
