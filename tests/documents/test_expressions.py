"""Expressions: typed where they are registered, JSON where they are evaluated, and the same again in a replay."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.builders import faults_of, text_of

from trueup_common.documents.cel_text import TextInvalid, read_expression
from trueup_common.documents.expressions import ExpressionFailed, Expressions, expressions_of
from trueup_common.documents.read import read_document
from trueup_common.documents.templates import read_template

DOCUMENT = read_document(text_of('  - { id: one, check: ["input.count > 0"] }\n')).document
SCOPE: dict[str, Any] = {
    "input": {
        "id": "A",
        "count": 3,
        "ratio": 2.0,
        "names": ["u", "v"],
        "nothing": None,
        "extra": {"k": {"deep": 1}, "on-sale": True},
        "price": 3,
        "in": "reserved",
    },
    "steps": {"draft": {"post_id": 7, "ok": True}},
    "case": {"workflow_id": "wf_1", "version": 2},
}


@pytest.fixture
def expressions() -> Expressions:
    return Expressions(DOCUMENT)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain", "plain"),
        ("${input.count}", 3),
        ("${ input . count }", 3),
        ("${input.nothing}", None),
        ("${input.extra}", {"k": {"deep": 1}, "on-sale": True}),
        ("${input.extra['on-sale']}", True),
        ("${input.extra.k.deep + 1}", 2),
        ("v${input.count}-${input.id}", "v3-A"),
        ("${input.ratio}|${input.ratio * 1.5}|${steps.draft.ok}", "2|3|true"),
        ("$${input.id} costs $5 and ${input.id}", "${input.id} costs $5 and A"),
        ("${{'a': {'b': input.count}, 'c': '}'}}", {"a": {"b": 3}, "c": "}"}),
        ("${input.names.map(name, name + '!')}", ["u!", "v!"]),
        ("${has(input.gone) ? input.gone : 'none'}", "none"),
        ("${has(input.extra.k.deep)}", True),
        ("${has(input.extra.k.gone)}", False),
        ("${has(steps.gone.id) || input.count == 3}", True),
        ("${sha256('abc')}", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("${size(input.names)}", 2),
        ("${input.id.lowerAscii() + '/' + string(input.count)}", "a/3"),
        ("${'héllo'.size()}", 5),
        ("${input.id.matches('^[A-Z]$')}", True),
        ("${r'\\d'.size()}", 2),
        ("${double(input.price) * 1.5}", 4.5),
        ("${'steps.x.y // no comment' + input.id} // text", "steps.x.y // no commentA // text"),
        ("${input.count // a comment with a }\n + 1}", 4),
        ({"a": "${?input.gone}", "b": "${?input.id}", "c": {"d": "${?steps.gone.x}"}}, {"b": "A", "c": {}}),
        (["${?input.gone}", "${input.id}", 1, None], ["A", 1, None]),
        ({"keys ${input.id} stay": 1}, {"keys ${input.id} stay": 1}),
        ([[{"x": ["${input.count}"]}]], [[{"x": [3]}]]),
    ],
)
def test_a_template_gives_its_value(expressions: Expressions, template: Any, value: Any) -> None:
    """Typed alone, written out within text, twice the same."""
    for _ in range(2):
        found = expressions.fill(template, SCOPE)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("${input.gone}", "is not there"),
        ("${?input.gone}", "is not there"),
        ("${input.gone + 1}", "input.gone"),
        ("${input.extra.k.gone + 1}", "input.extra.k.gone"),
        ("${input.count / (input.count - 3)}", "divide by zero"),
        ("${9223372036854775807 + input.count}", "overflow"),
        ("${9007199254740993 + input.count - input.count}", "no JSON value"),
        ("${input.names[5]}", "index"),
        ("${input.extra['gone']}", "gone"),
        ("${input.id + input.count}", "overload"),
        ("${timestamp('2020-01-01T00:00:00Z')}", "no JSON value"),
        ("${duration('1s')}", "no JSON value"),
        ("${b'abc'}", "no JSON value"),
        ("${0.0 / (input.ratio - 2.0)}", "no JSON value"),
        ("${{1: input.count}}", "no JSON value"),
        ("${type(input.count)}", "no JSON value"),
        ("x${input.names}", "cannot stand inside text"),
        ("x${input.nothing}", "cannot stand inside text"),
        ("${input.names.map(a, input.names.map(b, a + b)).all(x, nonsense(x))}", "nonsense"),
        ("${now()}", "now"),
        ("${", "not closed"),
        ("${'a}", "not closed"),
        ("${}", "empty"),
        ("${x}", "undeclared"),
        ("a ${?input.id}", "stands alone"),
        ("${?input.id + 'x'}", "stands alone"),
    ],
)
def test_what_has_no_value_fails_with_its_reason_and_place(
    expressions: Expressions, template: str, reason: str
) -> None:
    """Never a default, never a foreign exception; the pointer says where in the template."""
    with pytest.raises(ExpressionFailed) as caught:
        expressions.fill({"a": [1, {"b/c": "fine"}, {"b/c": template}]}, SCOPE)
        expressions.fill(template, SCOPE)  # an entry that may be left out fails only where nothing can be left out
    assert reason.lower() in str(caught.value).lower()
    if not template.startswith("${?input.gone"):
        assert caught.value.pointer == "/a/2/b~1c"


def test_conditions_are_boolean(expressions: Expressions) -> None:
    """Anything but true and false is a failure, also where CEL would take it."""
    assert expressions.holds("input.count == 3 && steps.draft.ok", SCOPE)
    assert not expressions.holds("has(input.gone) && input.gone > 1", SCOPE)
    assert expressions.holds("steps.draft.ok", SCOPE)
    assert expressions.holds("event.sum > 2.5", {**SCOPE, "event": {"sum": 3}})
    for text in ("input.count", "input.id", "input.gone", "null", "${input.count == 3}"):
        with pytest.raises(ExpressionFailed):
            expressions.holds(text, SCOPE)


def test_evaluation_is_bounded(expressions: Expressions) -> None:
    """Loops within loops and long results end in a failure, not in minutes."""
    scope = {"input": {"names": [str(number) for number in range(2_000)]}, "steps": {}, "case": {}}
    started = time.perf_counter()
    for text in (
        "input.names.all(a, input.names.all(b, input.names.all(c, a + b + c != 'x')))",
        "input.names.map(a, input.names).size() > 0 && input.names.map(a, input.names.map(b, a + b)).size() > 0",
    ):
        with pytest.raises(ExpressionFailed):
            expressions.holds(text, scope)
    with pytest.raises(ExpressionFailed):
        expressions.fill("${input.names.map(a, input.names)}", scope)
    with pytest.raises(ExpressionFailed):
        expressions.fill(f"${{input.names.size() + {' + '.join(['1'] * 1500)}}}", scope)
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize(
    "text",
    [
        "input",
        "steps",
        "input['id']",
        "size(input)",
        ".input.id",
        "true && .input.id == ''",
        "[1].map(input, input + 1)",
        "has_.input.id",
        "{'a': input}",
        "`input`",
        "has(input)",
        "input.size()",
        "",
        "  // nothing",
        "'open",
        "x" * 2001,
    ],
)
def test_a_root_is_read_in_no_other_way(text: str) -> None:
    """What would get around the check of names is refused."""
    with pytest.raises(TextInvalid):
        read_expression(text)


def test_what_an_expression_reads_and_asks() -> None:
    """Paths outside of strings, comments and members; functions of a value are none of its fields."""
    found = read_expression("x.input.a || input.b.c.size() > 1 && has(steps.d.e) && input.l[0].case.z == 'case.q'")
    assert found.reads == (("input", "b", "c"), ("input", "l"))
    assert found.asks == (("steps", "d", "e"),)
    assert read_expression("has(input.l[0].x)").reads == (("input", "l"),)
    assert read_expression("input.a // input.b").reads == (("input", "a"),)
    assert read_expression('"""input.a""" + r"input.b" + \'\\\'input.c\'').reads == ()


def test_names_are_checked_at_registration() -> None:
    """A misspelt step, field or input is a fault with its line; so is a type that does not fit.

    Requirements: S2
    """
    text = text_of("""\
  - { id: draft, command: t.make, with: {} }
  - id: next
    command: t.look
    with:
      good: "${steps.draft.link}"
      one: "${steps.drafft.link}"
      two: "${steps.draft.lnk}"
      three: "${input.idd}"
      four: "${input.meta.titel}"
      five: "${case.tenants}"
      six: "${input.count + input.id}"
      seven: "${input.names.filter(n, n > 3)}"
      eight: "${input.id.first}"
""")
    start = text.splitlines().index("    with:") + 3
    found = [((fault.line or 0) - start, fault.rule) for fault in faults_of(text)]
    assert found == [
        (0, "unknown-value"),
        (1, "unknown-value"),
        (2, "unknown-value"),
        (3, "unknown-value"),
        (4, "unknown-value"),
        (5, "type"),
        (6, "type"),
        (7, "unknown-value"),
    ], [str(fault) for fault in faults_of(text)]


def test_registered_and_running_agree() -> None:
    """What is typed at registration evaluates without types when the case runs: nothing else is compiled there."""
    text = text_of('  - { id: a, command: t.make, with: { text: "${input.id + string(input.count)}" } }\n')
    assert faults_of(text) == []
    document = read_document(text).document
    assert expressions_of(document).fill(document.steps[0].payload, SCOPE) == {"text": "A3"}
    assert expressions_of(document) is expressions_of(read_document(text).document)


@given(st.text(alphabet="abinput.steps()[]{}'\"$?! \\/\n+-1", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever stands in a template is read or refused, and read text comes back as it is."""
    try:
        template = read_template(text)
    except TextInvalid:
        return
    if "${" not in text:
        assert "".join(part for part in template.parts if isinstance(part, str)) == text


def test_a_simple_fill_is_cheap(expressions: Expressions) -> None:
    """Far below 50 µs, so that filling costs nothing beside a commit. Best of many rounds: the machine is shared."""
    for template in ("v${input.count}-${input.id}", "${input.id + '-' + string(input.count)}"):
        rounds = []
        for _ in range(30):
            started = time.perf_counter()
            for _ in range(200):
                expressions.fill(template, SCOPE)
            rounds.append((time.perf_counter() - started) / 200)
        assert min(rounds) < 50e-6, rounds
