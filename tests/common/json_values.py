"""Random JSON values, as strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SAFE_INTEGER = 2**53 - 1

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-SAFE_INTEGER, SAFE_INTEGER),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(TEXTS, VALUES, max_size=4)
