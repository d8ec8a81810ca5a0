"""Strict JSON: what two readers could understand differently is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup_gateway.core.strict_json import DEPTH_MAX, Malformed, parse

HOSTILE = {
    "empty": b"",
    "not json": b"{not json}",
    "trailing": b'{"a":1} x',
    "latin-1": '{"a":"é"}'.encode("latin-1"),
    "utf-16": '{"a":1}'.encode("utf-16"),
    "utf-16 without mark": '{"a":1}'.encode("utf-16-le"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "cut utf-8": b'{"a":"\xe2\x82"}',
    "duplicate key": b'{"a":1,"a":2}',
    "duplicate key by escape": b'{"a":1,"\\u0061":2}',
    "duplicate key below": b'{"x":[{"a":1,"a":2}]}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "1e999": b'{"a":1e999}',
    "-1e999": b"[-1e999]",
    "huge integer": b'{"a":' + b"9" * 30 + b"}",
    "beyond doubles": b'{"a":9007199254740993}',
    "too deep": b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    "far too deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "lone surrogate": b'{"a":"\\ud800"}',
    "lone surrogate key": b'{"\\udc00":1}',
    "NUL": b'{"a":"\\u0000"}',
    "NUL key": b'{"\\u0000":1}',
    "raw NUL": b'{"a":"\x00"}',
    "raw control": b'{"a":"\x01"}',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_malformed(raw: bytes) -> None:
    """Each is refused as such, with a reason that shows no value.

    Requirements: T3
    """
    with pytest.raises(Malformed) as caught:
        parse(raw)
    assert len(str(caught.value)) < 80


def test_the_deepest_permitted_value_is_read() -> None:
    """32 levels are fine, as arrays and as objects, with and without escapes."""
    for inner in (b"1", b'"\\u00e9"'):
        assert parse(b"[" * DEPTH_MAX + inner + b"]" * DEPTH_MAX)
        assert parse(b'{"a":' * DEPTH_MAX + inner + b"}" * DEPTH_MAX)


def test_paired_surrogates_and_escapes_are_text() -> None:
    """What is valid stays valid."""
    assert parse(b'{"a":"\\ud83d\\ude00\\u00e9"}') == {"a": "\U0001f600é"}


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(_VALUES, st.booleans())
def test_ordinary_values_are_read_as_they_are(value: object, ascii_only: bool) -> None:
    """Whatever JSON can say unambiguously comes back as itself."""
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    """Any bytes are read or refused, nothing else."""
    with contextlib.suppress(Malformed):
        parse(raw)
