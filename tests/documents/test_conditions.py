"""Conditions over known facts: typed when they are made, true or false for every case, nothing else can be asked."""

from __future__ import annotations

import pytest

from trueup_common.documents.cel_text import TextInvalid
from trueup_common.documents.conditions import Condition
from trueup_common.documents.expressions import ExpressionFailed

FACTS = {"exception.kind": str, "exception.repairs_count": int, "drift.repairable": bool}
TRUE = {"exception.kind": "failed", "exception.repairs_count": 2, "drift.repairable": True}


@pytest.mark.parametrize(
    ("written", "holds"),
    [
        ('exception.kind == "failed"', True),
        ("exception.repairs_count > 2", False),
        ("drift.repairable && exception.repairs_count in [1, 2]", True),
        ('["a", "failed"].exists(kind, kind == exception.kind)', True),
        ("true", True),
    ],
)
def test_a_condition_is_true_or_false(written: str, holds: bool) -> None:
    """Requirements: Q5"""
    assert Condition(written, FACTS).holds(TRUE) is holds


@pytest.mark.parametrize(
    "written",
    [
        "exception.repairs_count",
        "exception.nothing == 1",
        "other.kind == 'x'",
        "has(drift.repairable)",
        "exception.kind == 1",
        "exception",
        "",
        "exception.kind.replace('a', 'b') == 'x'",
    ],
)
def test_what_could_be_neither_is_refused_when_it_is_made(written: str) -> None:
    """Requirements: Q5"""
    with pytest.raises(TextInvalid):
        Condition(written, FACTS)


def test_a_fact_that_is_not_there_is_told_and_never_guessed() -> None:
    with pytest.raises(ExpressionFailed):
        Condition("drift.repairable", FACTS).holds({})
