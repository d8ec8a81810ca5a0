"""Comparing desired with observed, once, for the orchestrator's receipt and the reconciler's visits alike.

A target that rewrites a value in a known, harmless way has not drifted: the normaliser named by the declaration says
which ways those are.
"""

import html
import re
from collections.abc import Callable
from typing import Any, Final

from trueup_common.contracts.canonical import canonical
from trueup_common.contracts.states import Phase, ProbeVerdict

_SPACE: Final = re.compile(r"\s+")
_TAG: Final = re.compile(r"</?p>|<br\s*/?>|<!--.*?-->", re.S)


def _exact(value: Any) -> Any:
    return canonical(value)


def _text(value: Any) -> Any:
    return _SPACE.sub(" ", str(value)).strip()


def _html_text(value: Any) -> Any:
    return _text(html.unescape(_TAG.sub(" ", str(value))))


def _unordered(value: Any) -> Any:
    return sorted(canonical(item) for item in value) if isinstance(value, list) else canonical(value)


NORMALISERS: Final[dict[str, Callable[[Any], Any]]] = {
    "exact": _exact,
    "text": _text,
    "html_text": _html_text,
    "unordered": _unordered,
}


def same(normaliser: str, desired: Any, observed: Any) -> bool:
    """True where the two values mean the same under the named normaliser (KeyError for an unknown name)."""
    normalise = NORMALISERS[normaliser]
    return bool(normalise(desired) == normalise(observed))


def phase_of(verdict: ProbeVerdict, *, equal: bool, within_window: bool) -> Phase:
    """The phase that one observation gives an element.

    UNKNOWN is neither healthy nor drifted. A difference inside the consistency window is CONVERGING, later it is DRIFT.
    """
    if verdict is ProbeVerdict.UNKNOWN:
        return Phase.UNKNOWN
    if verdict is ProbeVerdict.CONFIRMED and equal:
        return Phase.HEALTHY
    return Phase.CONVERGING if within_window else Phase.DRIFT
