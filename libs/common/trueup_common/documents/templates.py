"""Templates: JSON in which strings hold `${CEL}`.

A string that is nothing but one `${…}` gives the typed value; within text it is written out; `${?path}` stands only
alone and leaves the entry out where the path is not there; `$${` is a plain `${`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueup_common.documents.cel_text import CelText, TextInvalid, read_expression, tokens
from trueup_common.documents.faults import below

OPEN: Final = "${"
_LITERAL: Final = "$${"


@dataclass(frozen=True, slots=True)
class Template:
    """A string as its parts: text, or an expression."""

    parts: tuple[str | CelText, ...]
    optional: bool = False

    @property
    def whole(self) -> CelText | None:
        """The expression where there is nothing beside it."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part if isinstance(part, CelText) else None

    @property
    def expressions(self) -> tuple[CelText, ...]:
        """All its expressions."""
        return tuple(part for part in self.parts if isinstance(part, CelText))

    @property
    def normal(self) -> str:
        """The same for templates that mean the same."""
        return "".join(part if isinstance(part, str) else f"${{{part.normal}}}" for part in self.parts)


def read_template(text: str) -> Template:
    """A string as a template. Raises TextInvalid."""
    parts: list[str | CelText] = []
    place, optional = 0, False
    while (found := text.find(OPEN, place)) >= 0:
        if found > place and text[found - 1] == "$":
            parts.append(text[place : found - 1] + OPEN)
            place = found + len(OPEN)
            continue
        if found > place:
            parts.append(text[place:found])
        start = found + len(OPEN)
        optional = optional or text.startswith("?", start)
        _, end = tokens(text, start, until_brace=True)
        parts.append(read_expression(text[start:end].removeprefix("?")))
        place = end + 1
    if place < len(text):
        parts.append(text[place:])
    template = Template(tuple(parts), optional)
    if optional and (template.whole is None or template.whole.path is None):
        raise TextInvalid("${?…} stands alone and names one value")
    return template


def strings(value: Any, pointer: str = "") -> Iterator[tuple[str, str, bool]]:
    """All strings inside a JSON value, with their pointers, and whether each is an entry that could be left out."""
    if isinstance(value, str):
        yield pointer, value, False
    elif isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in entries:
            inside = below(pointer, key)
            for place, text, entry in strings(item, inside):
                yield place, text, entry or place == inside
