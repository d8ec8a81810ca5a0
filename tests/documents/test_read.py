"""Reading: YAML 1.2 only, one meaning per text, and every fault with its line."""

import json

import pytest
from tests.documents.builders import text_of

from trueup_common.documents.faults import DocumentInvalid, Fault
from trueup_common.documents.read import read_document
from trueup_common.documents.text import DEPTH_MAX, SIZE_BYTES_MAX, parsed

GOOD = text_of("""\
  - id: one
    command: t.look
    with: { text: plain }
    on: { failed: takeover }
  - { id: two, check: ["input.count > 0"], on: { failed: { goto: three } } }
  - { id: three, approval: { scope: "a:b", binds: ["${input.id}"], timeout: P2D, owner: editors } }
""")


def refused(text: str | bytes) -> list[Fault]:
    with pytest.raises(DocumentInvalid) as caught:
        read_document(text)
    return list(caught.value.faults)


def test_a_document_is_read_with_the_line_of_each_part() -> None:
    """`on` is a key; a pointer into nothing answers the line of what it would stand in."""
    read = read_document(GOOD)
    assert read.document.steps[0].on
    assert read.text == GOOD
    lines = GOOD.splitlines()
    for pointer, start in (
        ("", "name:"),
        ("/lifetime", "lifetime:"),
        ("/input/properties/meta/required", "      required: [title]"),
        ("/steps/0", "  - id: one"),
        ("/steps/0/with/text", "    with:"),
        ("/steps/0/needs/3", "  - id: one"),
        ("/steps/1/on/failed/goto", "  - { id: two"),
    ):
        line = read.line_of(pointer)
        assert line is not None
        assert lines[line - 1].startswith(start), pointer


def test_the_spelling_does_not_change_the_identity() -> None:
    """JSON, with escaped surrogate pairs, is YAML too, and gives the same hash."""
    document = read_document(GOOD.replace("plain", '"\\U0001F600"')).document
    again = read_document(json.dumps(document.dumped(), ensure_ascii=True))
    assert "\\ud83d\\ude00" in again.text
    assert again.document.sha256 == document.sha256
    assert again.line_of("/steps/0") == 1


def test_the_core_schema_of_yaml_1_2() -> None:
    """Only what YAML 1.2 calls a number, a boolean or null is one."""
    text = """
    strings: [on, yes, no, off, y, 2026-01-01, 1:30, 1_000, "1", 'true', 0b1, .5.5, =, <<]
    numbers: [1, -2, +3, 012, 0o17, 0x1F, 1.5, .5, 5., 1e3, -1.5E-2]
    others: [true, False, TRUE, null, ~, Null]
    nothing:
    """
    value, _ = parsed(text)
    assert all(type(item) is str for item in value["strings"]), value["strings"]
    assert value["numbers"] == [1, -2, 3, 12, 15, 31, 1.5, 0.5, 5.0, 1000.0, -0.015]
    assert value["others"] == [True, False, True, None, None, None]
    assert value["nothing"] is None


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("a: 1\nb: 2\na: 3", "duplicate-key", 3),
        ('a: 1\n"a": 3', "duplicate-key", 2),
        ("a: &x 1\nb: 2", "syntax", 1),
        ("a: 1\nb: *x", "syntax", 2),
        ("a: !!str 1", "syntax", 1),
        ("a: !!python/object:os.system x", "syntax", 1),
        ("a: 1\n---\nb: 2", "syntax", 2),
        ("%TAG ! tag:x,2000:\n---\na: 1", "syntax", 1),
        ("%YAML 2.0\n---\na: 1", "syntax", 1),
        ("", "syntax", 1),
        ("a: 1\n\tb: 2", "syntax", 2),
        ("a: [1, 2\nb: 3", "syntax", 2),
        ("? [a]\n: 1", "syntax", 1),
        ("&a b: 1", "syntax", 1),
        ("a: .nan", "number", 1),
        ("a: -.inf", "number", 1),
        ("a: 1e999", "number", 1),
        ("a: 9007199254740993", "number", 1),
        ("a: " + "9" * 5000, "number", 1),
        ("a: 0x" + "f" * 5000, "number", 1),
        ('a: "\\ud800"', "encoding", 1),
        ("a:\n" + "".join(f"{' ' * n}b:\n" for n in range(1, DEPTH_MAX + 3)), "depth", DEPTH_MAX + 2),
        ("[" * 100, "depth", 1),
        ("[" * 100_000, "syntax", 1),
        ("a: 1\n" + "#" * SIZE_BYTES_MAX, "size", 1),
        ("- a", "shape", 1),
        ("just text", "shape", 1),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(text: str, rule: str, line: int) -> None:
    """Each text is refused by its rule, at its line."""
    found = refused(text)
    assert [(fault.rule, fault.line) for fault in found] == [(rule, line)], found


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    """Latin-1, UTF-16 and lone surrogates are no text."""
    for raw in (GOOD.replace("plain", "ä").encode("latin-1"), GOOD.encode("utf-16")):
        assert refused(raw)[0].rule in ("encoding", "syntax")
    assert refused("a: \ud800")[0].rule == "encoding"


def test_every_fault_of_form_has_its_pointer_and_line() -> None:
    """All at once, without the echoes that a union or a list adds."""
    text = text_of("""\
  - id: One
    command: t.look
    with: {}
    on: { failed: explode }
  - { id: two, check: [], surprise: 1 }
  - { id: three, approval: { scope: "a:b", binds: ["${input.id}"], owner: editors } }
  - { id: four, command: t.look, check: ["true"], with: {} }
  - { id: five, wait: { event: e, timeout: PT0S, owner: o }, on: { timeout: { goto: "?" } } }
""").replace("lifetime: P7D", "lifetime: soon\nlife: 1")
    first = text.splitlines().index("steps:") + 2
    found = [(fault.pointer, (fault.line or 0) - first) for fault in refused(text)]
    assert all(fault.rule == "shape" for fault in refused(text))
    assert found == [
        ("/lifetime", 3 - first + 1),
        ("/life", 3 - first + 2),
        ("/steps/0/id", 0),
        ("/steps/0/on/failed", 3),
        ("/steps/1/surprise", 4),
        ("/steps/2/approval", 5),
        ("/steps/3", 6),
        ("/steps/4/on/timeout/goto", 7),
        ("/steps/4/wait/timeout", 7),
    ], [str(fault) for fault in refused(text)]


@pytest.mark.parametrize("text", ['a: "x\\0y"', '"x\\0y": 1', '{"a": "x\\u0000y"}'])
def test_nul_is_refused(text: str) -> None:
    """No store of text holds NUL, so no document may bring one in by an escape."""
    with pytest.raises(DocumentInvalid) as caught:
        read_document(text)
    assert [fault.rule for fault in caught.value.faults] == ["encoding"]
