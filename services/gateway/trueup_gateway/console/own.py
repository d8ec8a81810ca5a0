"""The plane's own sentences in the language of the reader. What a person, an agent or a target wrote stands as written.

A sentence is looked up by its English text, as the catalogue holds it: exactly, or as a pattern where it names
something (`{state}`). What it does not hold is somebody else's, or a sentence that has no words in that language yet.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from trueup_gateway.console.words import Words, words_of

GROUP: Final = "own."
LENGTH_MAX: Final = 600
"""No sentence of ours is longer: a longer text is not looked up."""
_NAMED: Final = re.compile(r"\\\{(\w+)\\\}")
_SPACE: Final = re.compile(r"\s+")
_CODED: Final = re.compile(r"([A-Z_]{3,40}): ([a-z0-9_.-]{1,80})")
_PROBLEM: Final = re.compile(r"([a-z-]{3,40}): (.+)", re.S)
_TERMS: Final[Mapping[str, tuple[str, ...]]] = {
    "state": ("state", "case", "status", "batch"),
    "action": ("action",),
    "effect": ("effect",),
    "now": ("effect",),
    "status": ("repair",),
    "kind": ("step.kind",),
    "other": ("step.kind",),
    "approval": ("approval",),
}
"""Which words stand for what a sentence names."""


@dataclass(frozen=True)
class _Sentences:
    exact: Mapping[str, str]
    patterns: tuple[tuple[re.Pattern[str], str], ...]


@cache
def _sentences() -> _Sentences:
    told = {key: text for key, text in words_of("en").catalogue.items() if key.startswith(GROUP)}
    named = {key: text for key, text in told.items() if "{" in text}
    patterns = [
        (re.compile(_NAMED.sub(r"(?P<\1>.{1,200}?)", re.escape(text)).replace(r"\ ", " ")), key)
        for key, text in sorted(named.items(), key=lambda item: -len(item[1]))
    ]
    return _Sentences({text: key for key, text in told.items() if key not in named}, tuple(patterns))


def own(words: Words, text: object) -> str:
    """A sentence of ours in this language, any other text as it is."""
    raw = str(text or "")
    if words.language == "en" or not raw or len(raw) > LENGTH_MAX:
        return raw
    known, whole = _sentences(), _SPACE.sub(" ", raw).strip()
    if (key := known.exact.get(whole)) is not None:
        return words(key)
    for pattern, key in known.patterns:
        if (found := pattern.fullmatch(whole)) is not None:
            return words(key, **{name: _term(words, name, value) for name, value in found.groupdict().items()})
    parts = whole.split("; ")
    return "；".join(own(words, part) for part in parts) if len(parts) > 1 else raw


def _term(words: Words, name: str, value: str) -> str:
    if name == "reason":
        return own(words, value)
    for group in _TERMS.get(name, ()):
        if (found := words.catalogue.get(f"{group}.{value}")) is not None:
            return found
    return value


def outcome(words: Words, reason: object) -> str:
    """Why an item of a batch ended as it did: a state, a state with its code, a refusal with what it said."""
    text = str(reason or "")
    if (state := words.catalogue.get(f"state.{text}") or words.catalogue.get(f"case.{text}")) is not None:
        return state
    if (found := _CODED.fullmatch(text)) is not None:
        return f"{words.term('state', found[1])}: {found[2]}"
    if (found := _PROBLEM.fullmatch(text)) is not None and f"problem.{found[1]}" in words.catalogue:
        return f"{words(f'problem.{found[1]}')}: {own(words, found[2])}"
    return own(words, text)
