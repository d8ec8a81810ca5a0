"""What may be said about a failure outside of the database: types, codes and places, never the data it choked on.

Libraries quote what they could not digest (a refused row, an invalid value), and that may be a payload or a secret. So
only our own exceptions and the operating system's keep their words.
"""

from collections.abc import Iterator
from pathlib import PurePath
from traceback import extract_tb, walk_tb
from typing import Final

OURS: Final = "trueup_"
TEXT_MAX: Final = 500
FRAMES_MAX: Final = 30


def told(error: BaseException) -> str:
    """One line about an exception, safe for logs, spans, messages and the quarantine."""
    kind = type(error).__name__
    if type(error).__module__.startswith(OURS) or isinstance(error, OSError):
        text = str(error)
        return (f"{kind}: {text}" if text else kind)[:TEXT_MAX]
    code = getattr(error, "sqlstate", None)
    named = [kind, code, getattr(error, "table_name", None), getattr(error, "constraint_name", None)]
    place = _place(error)
    text = " ".join(part for part in named if isinstance(part, str) and part)
    return (f"{text} in {place}" if place else text)[:TEXT_MAX]


def _place(error: BaseException) -> str:
    """The innermost of our own functions that an exception passed."""
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(OURS):
            path = PurePath(frame.f_code.co_filename)
            place = f"{path.parent.name}/{path.name}:{line} {frame.f_code.co_name}"
    return place


def traced(error: BaseException) -> list[str]:
    """An exception with its causes and the places that it passed, innermost last."""
    lines: list[str] = []
    for one in _chain(error):
        frames = extract_tb(one.__traceback__)[-FRAMES_MAX:]
        lines.append(told(one))
        lines += [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return lines


def _chain(error: BaseException) -> Iterator[BaseException]:
    known: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in known:
        known.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
