"""The text of a CEL expression: which values it reads, and its form with those values as typed variables.

The CEL library knows variables but no records. So each path that is read (`steps.draft.post_id`) becomes a variable of
that name, and each `has(path)` a boolean variable: a misspelt path is then an unknown variable when the document is
registered. The roots can be read in no other way.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trueup_common.documents.growth import REFUSED_FUNCTIONS, Growth, growth_of
from trueup_common.documents.work import TooMuchWork, Work, work_of

ROOTS: Final = ("input", "steps", "case", "event")
PRESENCE: Final = "has_"
"""Root of the variables that say whether a path is there."""
EXPRESSION_LENGTH_MAX: Final = 2000

Path = tuple[str, ...]

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<raw>[bB]?[rR][bB]?(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*"))
    |(?P<string>[bB]?(?:'''(?:\\.|(?!''').)*'''|\"\"\"(?:\\.|(?!\"\"\").)*\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<number>0x[0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


class TextInvalid(ValueError):
    """An expression that cannot be read."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an expression; white space and comments are none."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CelText:
    """An expression: as written, in its normal form, as compiled, what it reads and what it asks the presence of.

    `path` is set where the expression is nothing but one path.
    """

    written: str
    normal: str
    compiled: str
    reads: tuple[Path, ...]
    asks: tuple[Path, ...]
    path: Path | None
    growth: Growth
    work: Work
    repeated: frozenset[Path] = frozenset()
    """What is read more than once."""


def tokens(text: str, start: int = 0, *, until_brace: bool = False) -> tuple[list[Token], int]:
    """The tokens from `start`, and where they end: at the end, or at the brace that closes an open `${`."""
    found: list[Token] = []
    depth, place = 0, start
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise TextInvalid(f"unreadable at {text[place : place + 10]!r}")
        word = match.group()
        if match.lastgroup == "sign" and word in "'\"`":
            raise TextInvalid("a quotation mark is not closed" if word != "`" else "backticks are not used here")
        if word == "{":
            depth += 1
        elif word == "}":
            if depth == 0 and until_brace:
                return found, place
            depth -= 1
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup, word, place, match.end()))
        place = match.end()
    if until_brace:
        raise TextInvalid("${ is not closed")
    return found, place


def read_expression(text: str, roots: Sequence[str] = ROOTS) -> CelText:
    """What an expression reads, where values stand under these roots. Raises TextInvalid."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise TextInvalid(f"an expression has at most {EXPRESSION_LENGTH_MAX} characters")
    words, _ = tokens(text)
    if not words:
        raise TextInvalid("the expression is empty")
    refused = next((word.text for word in words if word.kind == "name" and word.text in REFUSED_FUNCTIONS), None)
    if refused is not None:
        raise TextInvalid(f"{refused} is not offered: it can make very much out of little")
    try:
        work = work_of(words)
    except TooMuchWork as error:
        raise TextInvalid(str(error)) from error
    reads: dict[Path, None] = {}
    asks: dict[Path, None] = {}
    repeated: set[Path] = set()
    pieces, place, index, pure = [], 0, 0, None
    while index < len(words):
        word = words[index]
        if word.kind == "name" and not _is_member(words, index):
            asked = word.text == "has" and index + 2 < len(words) and words[index + 1].text == "("
            found = _path(words, index + 2 if asked else index, roots)
            if asked and found and found[1] < len(words) and words[found[1]].text == ")":
                path, after = found[0], found[1] + 1
                asks[path] = None
                written = ".".join((PRESENCE, *path))
            elif found and not asked:
                path, after = found
                if path in reads:
                    repeated.add(path)
                reads[path] = None
                written = ".".join(path)
                pure = path if index == 0 and after == len(words) else None
            else:
                index += 1
                continue
            pieces += [text[place : word.start], written]
            place, index = words[after - 1].end, after
            continue
        index += 1
    compiled = "".join([*pieces, text[place:]])
    return CelText(
        text.strip(),
        " ".join(word.text for word in words),
        compiled,
        tuple(reads),
        tuple(asks),
        pure,
        growth_of([word.text for word in words if word.kind in ("name", "sign")]),
        work,
        frozenset(repeated),
    )


def _is_member(words: Sequence[Token], index: int) -> bool:
    """True for a name after a dot. A dot that follows nothing would name a root around the checks: refused."""
    if index == 0 or words[index - 1].text != ".":
        if words[index].text == PRESENCE:
            raise TextInvalid(f"{PRESENCE!r} is no name here")
        return False
    before = words[index - 2] if index > 1 else None
    if before is None or (before.kind == "sign" and before.text not in ")]}") or before.kind == "number":
        raise TextInvalid("a name does not start with a dot")
    return True


def _path(words: Sequence[Token], index: int, roots: Sequence[str]) -> tuple[Path, int] | None:
    """The path that starts here and the index after it; None where no root stands here."""
    if words[index].text not in roots or words[index].kind != "name":
        return None
    path, after = [words[index].text], index + 1
    while after + 1 < len(words) and words[after].text == "." and words[after + 1].kind == "name":
        path.append(words[after + 1].text)
        after += 2
    if after < len(words) and words[after].text == "(" and len(path) > 1:  # the last name is a function of the value
        path.pop()
        after -= 2
    if len(path) == 1:
        raise TextInvalid(f"{path[0]!r} alone is no value: name a field of it")
    return tuple(path), after
