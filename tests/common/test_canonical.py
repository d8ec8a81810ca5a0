"""Canonical JSON and clean text: one byte string per value, and foreign text that every store accepts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.common.json_values import SAFE_INTEGER, VALUES

from trueup_common.contracts.canonical import canonical, digest, fingerprint
from trueup_common.contracts.clean import DEPTH_MAX, clean, clean_text


@settings(max_examples=500, deadline=None)
@given(value=VALUES)
def test_the_fast_path_gives_the_bytes_of_rfc_8785(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_a_value_read_back_has_the_same_hash_whatever_the_order_of_its_keys(value: Any) -> None:
    """Requirements: I4"""

    def reversed_keys(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: reversed_keys(node[key]) for key in reversed(list(node))}
        return [reversed_keys(item) for item in node] if isinstance(node, list) else node

    assert digest(json.loads(canonical(value))) == digest(value) == digest(reversed_keys(value))


def test_the_examples_of_the_standard() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert (
        canonical(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )
    assert canonical({"\u20ac": 1, "\r": 2, "\U0001f600": 3, "1": 4, "\ufb33": 5}) == (
        '{"\\r":2,"1":4,"€":1,"😀":3,"\ufb33":5}'.encode()
    )


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [-math.inf],
        {"a": math.nan},
        "\ud800",
        {"\ud800": 1},
        {"a": ["\udfff"]},
        SAFE_INTEGER + 2,
        {"a": -(2**63) - 1},
        10**400,
        {1: "key"},
        object(),
        {"a": b"bytes"},
    ],
)
def test_what_json_cannot_hold_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        canonical(value)


def test_a_large_number_has_one_form_whether_a_store_kept_it_as_float_or_as_integer() -> None:
    """A database that normalises numbers gives 10^17 back where 1e17 went in; the hash must not change."""
    assert canonical({"n": 10**17}) == canonical({"n": 1e17}) == b'{"n":100000000000000000}'
    assert canonical([10**21]) == canonical([1e21]) == b"[1e+21]"


def test_the_fingerprint_is_type_target_and_payload_and_nothing_else() -> None:
    """Requirements: I2"""
    target = {"system": "wordpress", "resource": "site"}
    one = fingerprint("wordpress.create_draft", target, {"slug": "a", "title": "A"})
    assert one == fingerprint("wordpress.create_draft", dict(reversed(target.items())), {"title": "A", "slug": "a"})
    others = {
        fingerprint("wordpress.update_post", target, {"slug": "a", "title": "A"}),
        fingerprint("wordpress.create_draft", {**target, "resource": "blog"}, {"slug": "a", "title": "A"}),
        fingerprint("wordpress.create_draft", target, {"slug": "a", "title": "a"}),
    }
    assert one not in others
    assert len(others) == 3


# --- foreign text -----------------------------------------------------------------------------------------------------

FOREIGN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=20)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(value=FOREIGN)
def test_whatever_a_target_says_becomes_storable_and_stays_as_it_is_once_it_is(value: Any) -> None:
    """No NUL, no lone surrogate, no NaN is left; cleaning again changes nothing."""
    cleaned = clean(value)
    text = json.dumps(cleaned, ensure_ascii=False, allow_nan=False)
    assert "\\u0000" not in text
    text.encode("utf-8")
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("foreign", "kept"),
    [
        ("plain ü 😀", "plain ü 😀"),
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffd\ufffd\ufffdb"),
    ],
)
def test_nul_and_lone_surrogates_are_replaced_and_all_else_is_kept(foreign: str, kept: str) -> None:
    cleaned = clean_text(foreign)
    assert cleaned.replace("\ufffd", "") == kept.replace("\ufffd", "")
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")


def test_text_is_cut_and_depth_is_bounded() -> None:
    assert clean_text("x" * 10, 3) == "xxx"
    deep: Any = "end"
    for _ in range(DEPTH_MAX + 20):
        deep = [deep]
    json.dumps(clean(deep))
    depth, node = 0, clean(deep)
    while isinstance(node, list):
        node, depth = node[0], depth + 1
    assert depth == DEPTH_MAX
    assert isinstance(node, str)
