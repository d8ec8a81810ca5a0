"""Words: one catalogue per language, the same keys in each. A page speaks the language that the person chose."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

LANGUAGES: Final = ("en", "zh")
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_TWOFOLD: Final = ("d", "h")
FEW: Final = 10
"""From so many hours or days on, what is over does not matter."""


@dataclass(frozen=True)
class Words:
    """One language's words."""

    language: str
    catalogue: Mapping[str, str]

    def __call__(self, key: str, /, **facts: Any) -> str:
        """A sentence. A key that is missing is a mistake of ours: tests look for it, and people see the key."""
        text = self.catalogue.get(key, key)
        for name, value in facts.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def term(self, group: str, value: object, otherwise: str | None = None) -> str:
        """The word for a value of a closed list; a value that the list does not know yet stands for itself."""
        return self.catalogue.get(f"{group}.{value}", str(value) if otherwise is None else otherwise)

    def resolution(self, value: object) -> str:
        """How something ended: by a name of its own, or by what its operation or case came to."""
        name = str(value or "–")
        for prefix, group in (("operation_", "state"), ("case_", "case")):
            if name.startswith(prefix):
                return self(f"resolution.{prefix[:-1]}", state=self.term(group, name.removeprefix(prefix).upper()))
        return self.term("resolution", name)

    def span(self, seconds: float, *, short: bool = False) -> str:
        """A duration in its largest fitting unit; of few hours or days also what is over: `1 h 59 min` is not `1 h`.

        Where there is room for one unit only, `short` leaves that out.
        """
        whole = int(abs(seconds))
        place = next((place for place, (size, _) in enumerate(_UNITS) if whole >= size), len(_UNITS) - 1)
        size, unit = _UNITS[place]
        count, rest = whole // size, whole % size
        text = self(f"span.{unit}", count=count)
        if short or unit not in _TWOFOLD or count >= FEW:
            return text
        smaller, name = _UNITS[place + 1]
        return f"{text} {self(f'span.{name}', count=rest // smaller)}" if rest >= smaller else text

    def relative(self, seconds: float) -> str:
        """A moment so many seconds from now; negative ones lie in the past."""
        key = "span.in" if seconds > 0 else "span.ago"
        return self(key, span=self.span(seconds))


@cache
def words_of(language: str) -> Words:
    """The words of a language that there is."""
    text = files(__package__ or "").joinpath("words", f"{language}.json").read_text(encoding="utf-8")
    return Words(language, json.loads(text))


def language_of(chosen: str | None, accepted: str | None) -> str:
    """The language to speak: the one chosen, else the best of what the browser accepts, else English."""
    if chosen in LANGUAGES:
        return str(chosen)
    weighed: list[tuple[float, int, str]] = []
    for place, part in enumerate((accepted or "")[:500].split(",")):
        name, _, rest = part.strip().partition(";")
        base = name.strip().lower().partition("-")[0]
        if base in LANGUAGES:
            weighed.append((-_weight(rest), place, base))
    return min(weighed)[2] if weighed and min(weighed)[0] < 0 else "en"


def _weight(text: str) -> float:
    name, _, value = text.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return max(0.0, min(1.0, float(value)))
    except ValueError:
        return 0.0
