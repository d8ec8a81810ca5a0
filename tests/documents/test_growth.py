"""What an expression could make out of its values is known before it is tried; nothing ever takes all the memory."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.documents.test_expressions import DOCUMENT

from trueup_common.documents.cel_text import TextInvalid, read_expression
from trueup_common.documents.expressions import ExpressionFailed, Expressions
from trueup_common.documents.growth import REFUSED_FUNCTIONS, RESULT_BYTES_MAX, Growth, bound, size_of

LONG = "a" * 100_000
MANY = ["b" * 20] * 3_000
SCOPE: dict[str, Any] = {"input": {"c": LONG, "l": MANY, "n": list(range(200))}, "steps": {}, "case": {}}


@pytest.mark.parametrize(
    "text",
    [
        "${" + " + ".join(["input.c"] * 100) + "}",
        "${[" + ", ".join(["input.c"] * 100) + "]}",
        "${input.l.map(x, input.c)}",
        "${input.l.map(x, x + x).map(y, y + y).map(z, z + z).map(a, a + a).map(b, b + b)}",
        "${input.n.map(x, input.l)}",
        "${input.n.map(x, input.n.map(y, input.c))}",
        "${input.c.split('').map(x, input.c)}",
        "${input.c}" * 50,
    ],
)
def test_what_would_take_all_the_memory_fails_at_once(text: str) -> None:
    """From 200 kB that every limit admits, none of these ever makes its gigabytes. Requirements: T3"""
    begun = time.process_time()
    with pytest.raises(ExpressionFailed, match=r"bytes|recursion"):
        Expressions(DOCUMENT).fill(text, SCOPE)
    assert time.process_time() - begun < 1.0


def test_a_template_is_bounded_as_a_whole() -> None:
    """Many places that each hold little enough are too much together. Requirements: T3"""
    with pytest.raises(ExpressionFailed, match="bytes"):
        Expressions(DOCUMENT).fill({f"k{number}": "${input.c}" for number in range(30)}, SCOPE)


@pytest.mark.parametrize("name", sorted(REFUSED_FUNCTIONS))
def test_functions_that_multiply_are_not_offered(name: str) -> None:
    """Requirements: T3"""
    with pytest.raises(TextInvalid, match=name):
        read_expression(f"input.c.{name}('a', input.c)")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${[input.c] + input.l}", [LONG, *MANY]),
        ("${input.l.map(x, x + '!')}", [f"{item}!" for item in MANY]),
        ("${input.l.filter(x, x.size() > 30)}", []),
        ("${input.l.all(x, x.size() == 20)}", True),
        ("${size(input.c)}", len(LONG)),
    ],
)
def test_what_is_usual_is_not_refused(text: str, value: Any) -> None:
    """Lists of thousands of addresses and long contents are worked with every day."""
    assert Expressions(DOCUMENT).fill(text, SCOPE) == value


EXPRESSIONS = [
    ("input.a + input.b", Growth(1, 0)),
    ("[input.a, input.b, input.a]", Growth(2, 0)),
    ("input.l.map(x, x + input.a)", Growth(2, 1)),
    ("input.l.map(x, [x, input.a])", Growth(2, 1)),
    ("input.l.map(x, input.l)", Growth(1, 1)),
    ("input.l.map(x, input.a + x)", Growth(2, 1)),
    ("input.a.split('').map(x, input.a)", Growth(1, 2)),
    ("input.l.map(x, x + x).map(y, y + input.a)", Growth(4, 2)),
    ("input.l.filter(x, x != input.a) + input.l", Growth(2, 1)),
    ("input.a.split(input.b)", Growth(0, 1)),
]


@settings(max_examples=60, deadline=None)
@given(
    a=st.text(alphabet="xy", max_size=300),
    b=st.text(alphabet="xy", min_size=1, max_size=3),
    items=st.lists(st.text(alphabet="xyz", max_size=50), max_size=40),
    chosen=st.sampled_from(EXPRESSIONS),
)
def test_the_bound_is_never_exceeded(a: str, b: str, items: list[str], chosen: tuple[str, Growth]) -> None:
    """What really comes out is never larger than what was said before. Requirements: T3"""
    text, growth = chosen
    scope = {"input": {"a": a, "b": b, "l": items}, "steps": {}, "case": {}}
    read = read_expression(text)
    assert read.growth == growth
    value = Expressions(DOCUMENT).fill("${" + text + "}", scope)
    values = [(scope["input"][path[1]], path in read.repeated) for path in read.reads]
    assert size_of(value) <= bound(growth, values) + 64
    assert len(json.dumps(value)) < RESULT_BYTES_MAX
