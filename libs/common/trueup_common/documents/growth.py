"""How large a result could become, before anything is evaluated.

The library bounds the steps of an evaluation, not the bytes: from 200 kB of input, `map` and `+` can make gigabytes. So
functions that multiply are not offered, and of what is left an upper bound follows from the sizes of the values that an
expression reads, from how often it adds, and from how often it makes lists.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

RESULT_BYTES_MAX: Final = 2_000_000
"""What one expression, and all values of one template together, may come to."""

ITERATIONS_MAX: Final = 10_000
"""The library's own bound on one evaluation."""

REFUSED_FUNCTIONS: Final = frozenset({"replace", "join", "format", "quote"})
"""String functions whose result may be far larger than what they are given."""

_LIST_MAKERS: Final = frozenset({"map", "filter", "split", "transformList", "transformMap", "transformMapEntry"})
_ADDING: Final = frozenset({"+", ","})
_ITEM_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Growth:
    """How an expression can make its values grow: by adding (`+` and list literals) and by making lists."""

    additions: int = 0
    lists: int = 0


def growth_of(words: Sequence[str]) -> Growth:
    """Counted over the words of an expression."""
    return Growth(sum(word in _ADDING for word in words), sum(word in _LIST_MAKERS for word in words))


def size_of(value: Any, left: int = RESULT_BYTES_MAX) -> int:
    """Roughly the bytes of a JSON value; stops counting once it is past `left`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        total = 0
        for key, item in value.items():
            total += len(key) + size_of(item, left - total) + _ITEM_BYTES
            if total > left:
                break
        return total
    if isinstance(value, list | tuple):
        total = 0
        for item in value:
            total += size_of(item, left - total) + _ITEM_BYTES
            if total > left:
                break
        return total
    return _ITEM_BYTES


def bound(growth: Growth, values: Iterable[tuple[Any, bool]]) -> int:
    """An upper bound on the bytes of a result made from these values; each comes with whether it is read repeatedly.

    A list that is read once is gone through: each round sees one item of it. Everything else may stand in each round.
    """
    known = [(size_of(value), value, again) for value, again in values]
    whole = sum(size for size, _, _ in known) + _ITEM_BYTES
    if not growth.lists:
        return whole * (growth.additions + 1)
    items = max((len(value) for _, value, _ in known if isinstance(value, list | dict | str)), default=1)
    rounds = min(max(items, 1) ** growth.lists, ITERATIONS_MAX)
    gone_through = max((size for size, value, again in known if isinstance(value, list) and not again), default=0)
    item = gone_through // max(items, 1) + _ITEM_BYTES + whole - gone_through
    return int(item * (growth.additions + 1) ** growth.lists * rounds)
