"""How much work an expression could make, before it is evaluated.

The library bounds the steps of an evaluation, not what a step costs: one search with a pattern through 200 kB takes a
minute, ten thousand hashes of 200 kB half of one, and for so long a service would serve nobody else. So patterns are
written out, where their size can be told, and of everything an upper bound follows from the sizes of the values that
an expression reads and from how often it goes through lists. The unit is one byte looked at once: about 10 ns.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trueup_common.documents.growth import ITERATIONS_MAX, size_of

WORK_MAX: Final = 50_000_000
"""What one expression may take."""

MESSAGE_WORK_MAX: Final = 100_000_000
"""What all expressions may take that one message leads to."""

PATTERN_SIZE_MAX: Final = 2_500
"""Instructions of the patterns of one expression. Up to here RE2 remembers its states and takes at most 3 ns for an
instruction and a byte; of 7,000 it cannot, and takes fifty (measured with patterns made for it)."""

_PATTERN_SHARE: Final = 2
"""Instructions for a byte that are one unit."""

_LOOPS: Final = frozenset(
    {"all", "exists", "exists_one", "existsOne", "map", "filter", "transformList", "transformMap", "transformMapEntry"}
)
_SEARCHES: Final = frozenset({"contains", "indexOf", "lastIndexOf", "split", "startsWith", "endsWith"})
_SEARCH_BYTES: Final = 8
"""Bytes that a comparison takes at once: a search may compare the whole needle at each place."""
_OPERATORS: Final = frozenset("=<>+!?")
_MATCHES: Final = "matches"
_SPLIT: Final = "split"
_COUNT: Final = re.compile(r"\{(\d{1,5})(?:,(\d{0,5}))?\}")
_CLASS_SIZE: Final = 500
"""A class of Unicode, or one that leaves characters out, in byte ranges."""
_ANY_SIZE: Final = 12
_LETTERS_SIZE: Final = 6


class TooMuchWork(ValueError):
    """A pattern whose size cannot be told, or is too large."""


class Word(Protocol):
    """A word of an expression."""

    @property
    def kind(self) -> str:
        """What it is: raw, string, number, name, sign."""
        ...

    @property
    def text(self) -> str:
        """As it is written."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What an expression does with what it reads."""

    calls: int = 0
    """Functions and operators: each may go through everything once."""
    loops: int = 0
    """Macros that go through a list; the worst is that each stands inside the one before."""
    additions: int = 0
    searches: int = 0
    pattern_size: int = 0
    """Instructions of all patterns."""
    splits: bool = False
    """True where lists are made of texts."""


class Effort:
    """What is left of the work that one message may lead to."""

    __slots__ = ("left",)

    def __init__(self, left: int = MESSAGE_WORK_MAX) -> None:
        self.left = left

    def take(self, work: int) -> bool:
        """False where not so much is left; then nothing is taken."""
        if work > self.left:
            return False
        self.left -= work
        return True


def work_of(words: Sequence[Word]) -> Work:
    """Counted over the words of an expression. Raises TooMuchWork for a pattern whose size cannot be told."""
    calls = loops = additions = searches = pattern_size = 0
    for index, word in enumerate(words):
        if word.kind == "sign":
            additions += word.text in "+,"
            calls += word.text in _OPERATORS
        elif word.kind == "name" and index + 1 < len(words) and words[index + 1].text == "(":
            calls += 1
            loops += word.text in _LOOPS
            searches += word.text in _SEARCHES
            if word.text == _MATCHES:
                pattern_size += pattern_size_of(_pattern(words, index + 1))
        elif word.kind == "name" and word.text == "in":
            calls += 1
    if pattern_size > PATTERN_SIZE_MAX:
        raise TooMuchWork(f"its patterns come to {pattern_size} steps a character; {PATTERN_SIZE_MAX} are possible")
    splits = any(word.text == _SPLIT for word in words)
    return Work(calls, loops, max(additions - loops, 0), searches, pattern_size, splits)


def work(how: Work, values: Iterable[tuple[Any, bool]]) -> int:
    """An upper bound on the bytes looked at; each value comes with whether it is read repeatedly.

    A list that is read once is gone through: each round sees one item of it. Everything else may stand in each round.
    """
    known = [(size_of(value), value, again) for value, again in values]
    whole = sum(size for size, _, _ in known)
    rounds, seen = 1, whole
    if how.loops:
        listed = (list, dict, str) if how.splits else (list, dict)
        items = max((len(value) for _, value, _ in known if isinstance(value, listed)), default=1)
        rounds = min(max(items, 1) ** how.loops, ITERATIONS_MAX)
        gone_through = max((size for size, value, again in known if isinstance(value, list) and not again), default=0)
        seen = gone_through // max(items, 1) + whole - gone_through
    seen = (seen + 1) * (how.additions + 1)
    total = rounds * seen * (how.calls + 1 + how.pattern_size // _PATTERN_SHARE)
    if how.searches:
        largest = max((size for size, _, _ in known), default=0)
        twice = any(again and size == largest for size, _, again in known)
        needle = (whole if twice else whole - largest) * (how.additions + 1)
        total += how.searches * rounds * seen * (needle // _SEARCH_BYTES)
    return total


def _pattern(words: Sequence[Word], opening: int) -> str:
    """The pattern of a call of `matches`, the last thing between its brackets."""
    depth, index = 0, opening
    while index < len(words):
        depth += words[index].text in ("(", "[", "{") and words[index].kind == "sign"
        depth -= words[index].text in (")", "]", "}") and words[index].kind == "sign"
        if depth == 0:
            break
        index += 1
    last, before = words[index - 1], words[index - 2]
    if last.kind not in ("raw", "string") or before.text not in ("(", ","):
        raise TooMuchWork("a pattern is written out as one string: what it costs must be known beforehand")
    return _written(last)


def _written(word: Word) -> str:
    """The pattern that a string literal stands for."""
    text = word.text
    if text[0] in "bB" or text[1:2] in ("b", "B"):
        raise TooMuchWork("a pattern is text, not bytes")
    raw = word.kind == "raw"
    text = text.lstrip("rR")
    width = 3 if text[:3] in ("'''", '"""') else 1
    inner = text[width:-width]
    if raw:
        return inner
    if re.search(r"\\[^\\'\"nrt]", re.sub(r"\\\\", "", inner)):
        raise TooMuchWork(r"a pattern with escapes is written raw: r'\d+'")
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), inner)


def pattern_size_of(pattern: str) -> int:
    """An upper bound on the instructions that RE2 makes of a pattern. Raises TooMuchWork where it cannot be told.

    Classes count as 6, 12 or 500 byte ranges; a counted repetition stands as often as its larger count.
    """
    sums, last, place = [0], 0, 0
    while place < len(pattern):
        sign = pattern[place]
        count = _COUNT.match(pattern, place)
        if count is not None:
            times = max(int(count[2]) if count[2] else int(count[1]) + 1, 1)
            sums[-1] += last * (times - 1)
            last *= times
            place = count.end()
        elif sign == "(":
            sums.append(0)
            last, place = 0, place + 1
        elif sign == ")" and len(sums) > 1:
            last = sums.pop() + 2
            sums[-1] += last
            place += 1
        elif sign in "*+?|":
            sums[-1] += 1
            last += 1
            place += 1
        else:
            last, place = _atom(pattern, place)
            sums[-1] += last
        if sums[-1] > 1_000_000:
            break
    return 2 * sum(sums) + 2  # twice: without regard to upper and lower case a letter is two


def _atom(pattern: str, place: int) -> tuple[int, int]:
    """The size of one character or class, and where it ends."""
    sign = pattern[place]
    if sign == "\\":
        escaped = pattern[place + 1 : place + 2]
        if escaped == "Q":
            raise TooMuchWork(r"\Q is not offered in patterns")
        if escaped in ("p", "P"):
            closing = pattern.find("}", place) if pattern[place + 2 : place + 3] == "{" else place + 2
            return _CLASS_SIZE, max(closing, place + 2) + 1
        return (_ANY_SIZE if escaped in "DWSBCX" else 1), place + 2
    if sign == "[":
        closing = _class_end(pattern, place)
        inside = pattern[place:closing]
        wide = not inside.isascii() or re.search(r"\\[pPx]", inside) is not None
        return (_CLASS_SIZE if wide else _ANY_SIZE if "^" in inside or "\\" in inside else _LETTERS_SIZE), closing
    return (_ANY_SIZE if sign == "." else len(sign.encode("utf-8", "replace"))), place + 1


def _class_end(pattern: str, place: int) -> int:
    """The place after the bracket that closes a class."""
    index = place + 1
    if pattern[index : index + 1] == "^":
        index += 1
    if pattern[index : index + 1] == "]":
        index += 1
    while index < len(pattern) and pattern[index] != "]":
        if pattern[index] == "\\":
            index += 1
        elif pattern.startswith("[:", index):
            end = pattern.find(":]", index)
            index = end + 1 if end > 0 else index
        index += 1
    return min(index + 1, len(pattern))
