"""What an expression or a schema could take of everybody's time is known before it is tried."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.documents.test_expressions import DOCUMENT

from trueup_common.documents.cel_text import TextInvalid, read_expression
from trueup_common.documents.expressions import ExpressionFailed, Expressions
from trueup_common.documents.payloads import SCHEMAS_MAX, PayloadSchemas
from trueup_common.documents.schema import document_schema
from trueup_common.documents.schema_work import LOOKS_MAX, SchemaTooMuch, looks
from trueup_common.documents.work import Effort, pattern_size_of, work, work_of

LONG = "a" * 200_000
SCOPE: dict[str, Any] = {
    "input": {"c": LONG, "d": LONG[1:] + "b", "n": list(range(5_000)), "slug": "an-article", "l": ["b" * 20] * 3_000},
    "steps": {},
    "case": {},
}


@pytest.mark.parametrize(
    "text",
    [
        "input.n.all(i, sha256(input.c) != '')",
        "input.n.all(i, sha256(input.c + input.c) != '')",
        "input.c.contains(input.d)",
        "input.n.all(i, input.n.all(j, input.c.lowerAscii() != ''))",
        "input.c.matches('(a|b)*a(a|b){150}c')",
        "input.n.exists(i, input.c.matches('<h1>'))",
    ],
)
def test_what_would_take_everybodys_time_fails_at_once(text: str) -> None:
    """One document of one tenant must not stop a service for all. Requirements: T3, E7"""
    begun = time.process_time()
    with pytest.raises(ExpressionFailed, match="steps through these values"):
        Expressions(DOCUMENT).holds(text, SCOPE)
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "!input.c.contains(input.slug)",
        "input.slug.matches('^[a-z0-9-]{1,80}$')",
        "!input.c.matches('(?s)<h1>.*</h1>')",
        "input.l.all(x, x.size() == 20 && x.startsWith('b'))",
        "sha256(input.c).size() == 64",
        "input.n.filter(i, i > 10).size() > 100",
        r"'2026-11-30'.matches(r'^\d{4}-\d{2}-\d{2}$')",
        "matches(input.slug, 'article')",
        "input.slug in ['an-article', 'another']",
    ],
)
def test_what_is_usual_is_not_refused(text: str) -> None:
    """Long contents and lists of thousands are looked through every day."""
    effort = Effort()
    for _ in range(4):
        assert Expressions(DOCUMENT).holds(text, SCOPE, effort)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("input.c.matches('(a?){900}b')", "2500 are possible"),
        ("input.c.matches('((a{50}){50}){50}')", "2500 are possible"),
        ("input.c.matches(input.d)", "written out"),
        ("input.c.matches('a' + 'b')", "written out"),
        ("matches(input.c, input.d)", "written out"),
        (r"input.c.matches('a\x7b900\x7d')", "written raw"),
        (r"input.c.matches('a\u007b900}')", "written raw"),
        (r"input.c.matches(r'(\Q)\E){1000}')", "not offered"),
        ("input.c.matches(b'a')", "not bytes"),
    ],
)
def test_a_pattern_is_written_out_and_small(text: str, why: str) -> None:
    """What cannot be told beforehand is no pattern. Requirements: T3"""
    with pytest.raises(TextInvalid, match=why):
        read_expression(text)


@pytest.mark.parametrize(
    ("pattern", "at_least"),
    [
        ("abc", 3),
        ("(abc){100}", 300),
        ("((ab){10}){10}", 200),
        ("(a{2,30}|b){3,}", 120),
        (r"\pL{10}", 5_000),
        (r"[^\]]{10}x[[:alpha:]]{20}", 30),
        ("a{", 2),
        ("a)b){100}", 200),
        ("[", 1),
        ("(" * 50, 0),
        ("", 0),
    ],
)
def test_a_repetition_counts_as_often_as_it_repeats(pattern: str, at_least: int) -> None:
    """Requirements: T3"""
    assert pattern_size_of(pattern) >= at_least


def test_all_expressions_of_one_message_share_what_they_may_take() -> None:
    """A document with a thousand checks takes no more of one commit than one with ten. Requirements: T3, E7"""
    expressions, text = Expressions(DOCUMENT), "input.c.matches('^[ab]*c?$')"
    read = read_expression(text)
    need = work(read.work, [(LONG, False)])
    effort = Effort(3 * need)
    for _ in range(3):
        assert expressions.holds(text, SCOPE, effort)
    with pytest.raises(ExpressionFailed, match="could take"):
        expressions.holds(text, SCOPE, effort)
    assert effort.left == 0


def test_an_expression_without_values_takes_nothing() -> None:
    """Requirements: T3"""
    assert work(work_of([]), []) == 1


def doubling(levels: int) -> dict[str, Any]:
    """A schema of a few lines that looks at one value 2^levels times."""
    parts: dict[str, Any] = {"a0": {"type": "object"}}
    for level in range(1, levels + 1):
        parts[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": parts, "properties": {"x": {"$ref": f"#/$defs/a{levels}"}}}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40),
        {"$ref": "#"},
        {"additionalProperties": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}},
        {"properties": {"x": {"$ref": "#"}}, "patternProperties": {"x": {"$ref": "#"}}},
        {"$defs": {"a": {"$anchor": "b", "items": {"anyOf": [{"$ref": "#b"}, {"$ref": "#b"}]}}}, "$ref": "#b"},
        {"properties": {"x": {"$id": "https://example.com/other", "$ref": "#"}}},
        {"$defs": {f"a{n}": {"not": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(5_000)}, "$ref": "#/$defs/a0"},
    ],
)
def test_a_schema_that_looks_at_one_value_too_often_is_refused(schema: dict[str, Any]) -> None:
    """Requirements: T3"""
    begun = time.process_time()
    with pytest.raises(SchemaTooMuch):
        looks(schema)
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(2_000)}},
        {"properties": {"next": {"$ref": "#"}}},
        {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
        {"$ref": "#/$defs/not~1there"},
        {"$defs": {"a": {"prefixItems": [{"type": "string"}]}}, "items": {"$ref": "#/$defs/a/prefixItems/0"}},
        doubling(6),
    ],
)
def test_usual_schemas_are_not_refused(schema: dict[str, Any]) -> None:
    """Lists and trees refer to themselves; each time they are deeper in the value."""
    assert looks(schema) <= LOOKS_MAX
    assert looks(document_schema()) < 100


def test_patterns_of_schemas_take_linear_time_and_compiled_schemas_are_bounded() -> None:
    """Requirements: T3, B5"""
    schemas = PayloadSchemas()
    begun = time.process_time()
    wrong = schemas.errors_of("p", {"type": "string", "pattern": "^(a|a)*$"}, "a" * 100_000 + "b", "input")
    assert wrong and time.process_time() - begun < 1.0
    with pytest.raises(ValueError, match=r"(?i)regex|pattern|look"):
        schemas.errors_of("q", {"type": "string", "pattern": "(?=a)b"}, "b", "input")
    for number in range(SCHEMAS_MAX + 50):
        schemas.errors_of(str(number), {"type": "string"}, "x", "input")
    assert len(schemas._validators) == SCHEMAS_MAX
