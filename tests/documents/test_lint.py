"""One case or more per rule of the linter: a document that breaks exactly this rule, at exactly the marked lines."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.documents.builders import DECLARATIONS, declared, faults_of, marked_lines, text_of

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import EffectClass, Findability
from trueup_common.documents.faults import DocumentInvalid
from trueup_common.documents.lint import RULES, sound_document

STRICT = "  - id: a\n    command: t.strict\n    with:\n      name: x\n      count: "
EVENT = "  - id: a\n    wait:\n      event: e\n      timeout: P1D\n      owner: o\n      data: "
MAKE = "  - { id: make, command: t.make, with: {} }\n"
PUBLISH = "  - { id: publish, command: t.publish, with: {} }\n"
TELL = "  - { id: tell, command: t.tell, with: {} }\n"
APPROVE = '  - { id: approve, approval: { scope: "a:b", binds: ["${input.id}"], timeout: P1D, owner: o } }\n'
CHECK = '  - { id: check, check: ["input.count > 0"] }\n'
WAIT = "  - { id: wait, wait: { event: e, timeout: P1D, owner: o } }\n"

BROKEN: list[tuple[str, str]] = [
    ("duplicate-step", MAKE + "  - { id: make, command: t.look, with: {} } # <-\n"),
    ("unknown-step", "  - { id: a, command: t.look, with: {}, needs: [b] } # <-\n"),
    ("unknown-step", CHECK.replace(" }\n", ", on: { failed: { goto: b } } } # <-\n")),
    (
        "cycle",
        "  - { id: a, command: t.look, with: {}, needs: [c] } # <-\n"
        "  - { id: b, command: t.look, with: {} } # <-\n"
        "  - { id: c, command: t.look, with: {} } # <-\n"
        "  - { id: d, command: t.look, with: {} }\n",
    ),
    ("cycle", "  - { id: a, command: t.look, with: {}, needs: [a] } # <-\n"),
    ("outcome", CHECK.replace(" }\n", ", on: { failed: takeover, timeout: takeover } } # <-\n")),
    ("outcome", WAIT.replace("} }\n", "}, on: { rejected: takeover } } # <-\n")),
    ("outcome", APPROVE.replace("} }\n", "}, on: { failed: takeover } } # <-\n")),
    ("outcome", "  - { id: a, command: t.look, with: {}, on: { timeout: takeover } } # <-\n"),
    # S2: an irreversible step before, or beside, a step that may still fail backwards
    ("effect-order", PUBLISH + "  - { id: sign, command: t.sign, with: {} } # <-\n"),
    ("effect-order", "  - { id: pay, command: t.pay, with: {} }\n" + APPROVE.rstrip() + " # <-\n"),
    ("effect-order", PUBLISH + "  - { id: sign, command: t.sign, with: {}, needs: [] } # <-\n"),
    (
        "effect-order",
        "  - { id: touch, command: t.touch, with: {}, on: { failed: cancel } } # <-\n"
        + PUBLISH.replace("with", "needs: [], with"),
    ),
    (
        "effect-order",
        CHECK.replace(" }\n", ", on: { failed: compensate } } # <-\n") + PUBLISH.replace("with", "needs: [], with"),
    ),
    ("undo-after-pivot", PUBLISH + "  - { id: sign, command: t.make, with: {}, on: { failed: compensate } } # <-\n"),
    ("undo-after-pivot", PUBLISH + TELL.replace("{} }", "{}, on: { exhausted: cancel } } # <-")),
    ("undo-after-pivot", PUBLISH + WAIT.replace("} }\n", "}, on: { timeout: cancel } } # <-\n")),
    ("pivot-left-behind", PUBLISH.replace("{} }", "{}, on: { failed: continue } } # <-") + TELL),
    ("pivot-left-behind", PUBLISH.replace("{} }", "{}, on: { conflict: { goto: tell } } } # <-") + TELL),
    ("two-pivots", PUBLISH + "  - { id: pay, command: t.pay, with: {} } # <-\n"),
    ("cannot-be-undone", TELL.replace("}\n", "} # <-\n") + PUBLISH),
    ("cannot-be-undone", TELL.replace("}\n", "} # <-\n") + APPROVE),
    ("cannot-be-undone", TELL.replace("}\n", "} # <-\n") + MAKE.replace("with", "needs: [], with")),
    ("guard-bypassed", APPROVE.replace("} }\n", "}, on: { rejected: continue } } # <-\n") + PUBLISH),
    ("guard-bypassed", APPROVE.replace("} }\n", "}, on: { timeout: { goto: publish } } } # <-\n") + MAKE + PUBLISH),
    ("guard-bypassed", CHECK.replace(" }\n", ", on: { failed: continue } } # <-\n") + MAKE + PUBLISH),
    (
        "guard-bypassed",
        "  - { id: make, command: t.make, with: {}, on: { failed: { goto: publish } } } # <-\n" + APPROVE + PUBLISH,
    ),
    (
        "goto-target",
        CHECK.replace(" }\n", ", on: { failed: { goto: make } } } # <-\n") + MAKE.replace("with", "needs: [], with"),
    ),
    ("goto-target", CHECK.replace(" }\n", ", on: { failed: { goto: check } } } # <-\n")),
    (
        "goto-target",
        CHECK.replace(" }\n", ", on: { failed: { goto: last } } } # <-\n")
        + MAKE.replace("with", "needs: [], with")
        + "  - { id: last, command: t.look, with: {}, needs: [check] }\n",
    ),
    ("goto-repeats", WAIT + MAKE + CHECK.replace(" }\n", ", on: { failed: { goto: wait } } } # <-\n")),
    (
        "hot-loop",
        "  - { id: a, command: t.look, with: {} }\n" + CHECK.replace(" }\n", ", on: { failed: { goto: a } } } # <-\n"),
    ),
    (
        "unbound-hash",
        MAKE + APPROVE + "  - id: publish\n    command: t.publish\n    with:\n"
        '      content_sha256: "${steps.make.content_sha256}" # <-\n',
    ),
    (
        "unbound-hash",
        MAKE
        + APPROVE.replace("input.id", "steps.make.content_sha256")
        + "  - { id: again, command: t.make, with: {} }\n  - id: publish\n    command: t.publish\n    with:\n"
        '      content_sha256: "${steps.again.content_sha256}" # <-\n',
    ),
    ("approval-binds", APPROVE.replace('["${input.id}"]', '["approved"]').rstrip() + " # <-\n"),
    ("approval-binds", APPROVE.replace('}"]', '}", "${case.workflow_id}", {a: "${input.id}"}]').rstrip() + " # <-\n"),
    ("unknown-command", "  - { id: a, command: t.gone, with: {} } # <-\n"),
    ("payload", "  - { id: a, command: t.strict, with: { name: x } } # <-\n"),
    ("payload", "  - id: a\n    command: t.strict\n    with:\n      name: x\n      count: 1\n      colour: red # <-\n"),
    ("payload", "  - id: a\n    command: t.strict\n    with:\n      name: too long # <-\n      count: '1' # <-\n"),
    ("payload", '  - id: a\n    command: t.strict\n    with:\n      name: x\n      count: "${input.id}" # <-\n'),
    ("payload", '  - id: a\n    command: t.strict\n    with:\n      name: x\n      count: "n ${input.id}" # <-\n'),
    ("payload", '  - id: a\n    command: t.strict\n    with:\n      name: x\n      count: "${?input.count}" # <-\n'),
    (
        "payload",
        STRICT.replace("x", '"${input.id}"') + "1\n      inner: {} # <-\n",
    ),
    (
        "payload",
        STRICT + '1\n      tags:\n        - "${input.count}" # <-\n        - fine\n',
    ),
    ("payload", '  - { id: a, command: t.choice, with: { other: "${input.id}" } } # <-\n'),
    ("expected-version", "  - { id: a, command: t.versioned, with: {} } # <-\n"),
    ("expected-version", '  - { id: a, command: t.unversioned, with: {}, expected_version: "${input.id}" } # <-\n'),
    ("loosens", "  - { id: a, command: t.look, with: {}, retry: { attempts_max: 7 } } # <-\n"),
    ("lifetime", WAIT.replace("P1D", "P8D").replace("}\n", "} # <-\n")),
    ("lifetime", APPROVE.replace("P1D", "P8D").replace("}\n", "} # <-\n")),
    ("lifetime", "  - { id: a, command: t.look, with: {}, timeout: P8D } # <-\n"),
    (
        "schema",
        EVENT + "{ type: strange } # <-\n",
    ),
    (
        "schema",
        EVENT + '{ $ref: "http://x.example/s" } # <-\n',
    ),
    ("expression", '  - { id: a, command: t.look, with: { text: "${input.id" } } # <-\n'),
    ("expression", '  - { id: a, command: t.look, with: {}, when: "${input.count > 1}" } # <-\n'),
    ("expression", '  - { id: a, command: t.look, with: {}, key: "${?input.note}" } # <-\n'),
    ("unknown-value", '  - { id: a, command: t.look, with: { text: "${input.nme}" } } # <-\n'),
    ("unknown-value", '  - { id: a, command: t.look, with: { text: "${event.x}" } } # <-\n'),
    ("unknown-value", MAKE + '  - { id: a, command: t.look, with: {}, when: "has(steps.make.nothing)" } # <-\n'),
    ("reads-ahead", '  - { id: a, command: t.look, with: { text: "${steps.make.link}" } } # <-\n' + MAKE),
    (
        "reads-ahead",
        MAKE + '  - { id: a, command: t.look, with: { text: "${steps.make.link}" }, needs: [] } # <-\n',
    ),
    ("type", '  - { id: a, command: t.look, with: {}, when: "input.id" } # <-\n'),
    ("type", '  - { id: a, command: t.look, with: { text: "${input.count + input.id}" } } # <-\n'),
    ("type", '  - { id: a, command: t.look, with: { text: "all ${input.names}" } } # <-\n'),
    ("type", '  - { id: a, command: t.look, with: {}, key: "${input.names}" } # <-\n'),
    ("type", "  - { id: a, command: t.look, with: { other: \"${timestamp('2026-01-01T00:00:00Z')}\" } } # <-\n"),
    ("may-be-missing", '  - { id: a, command: t.look, with: { text: "${input.note}" } } # <-\n'),
    ("may-be-missing", '  - { id: a, command: t.look, with: { text: "${input.meta.title}" } } # <-\n'),
    (
        "may-be-missing",
        "  - { id: a, command: t.look, with: { text: \"${has(input.meta) ? input.meta.hint : ''}\" } } # <-\n",
    ),
    (
        "may-be-missing",
        MAKE.replace("with", 'when: "input.count > 1", with')
        + '  - { id: a, command: t.look, with: { text: "${steps.make.link}" } } # <-\n',
    ),
    (
        "may-be-missing",
        MAKE.replace("with", "on: { failed: continue }, with")
        + '  - { id: a, command: t.look, with: { text: "${steps.make.link}" } } # <-\n',
    ),
    (
        "may-be-missing",
        CHECK.replace(" }\n", ", on: { failed: { goto: last } } }\n")
        + MAKE
        + '  - { id: last, command: t.look, with: { text: "${steps.make.link}" } } # <-\n',
    ),
    ("constant", '  - { id: a, command: t.look, with: {}, when: "1 > 2" } # <-\n'),
    ("constant", '  - { id: a, check: ["input.count > 0", "true"] } # <-\n'),
    ("constant-key", "  - { id: a, command: t.look, with: {}, key: always } # <-\n"),
    ("constant-key", '  - { id: a, command: t.look, with: {}, key: "x-${case.workflow_id}" } # <-\n'),
]


@pytest.mark.parametrize(("rule", "steps"), BROKEN, ids=[f"{number}-{rule}" for number, (rule, _) in enumerate(BROKEN)])
def test_each_rule_is_told_at_its_line(rule: str, steps: str) -> None:
    """The document breaks this one rule, and the fault names exactly the marked lines.

    Requirements: S2
    """
    text = text_of(steps)
    found = faults_of(text)
    assert {fault.rule for fault in found} == {rule}, [str(fault) for fault in found]
    assert sorted({fault.line for fault in found}, key=lambda line: line or 0) == marked_lines(text)
    with pytest.raises(DocumentInvalid) as caught:
        sound_document(text, DECLARATIONS)
    assert list(caught.value.faults) == found


def changed(name: str, **changes: Any) -> dict[str, CommandDeclaration]:
    """The declarations with one that its model would refuse, as a foreign registry might hold it."""
    return {**DECLARATIONS, name: DECLARATIONS[name].evolve(**changes)}


def test_a_compensable_step_without_compensation_is_refused() -> None:
    """Whether none is declared, or one that does not exist.

    Requirements: S2
    """
    for declarations in (
        changed("t.make", compensation=None),
        {name: item for name, item in DECLARATIONS.items() if name != "t.unmake"},
    ):
        found = faults_of(text_of(MAKE), declarations)
        assert [(fault.rule, fault.pointer) for fault in found] == [("no-compensation", "/steps/0/command")]


def test_an_effect_that_nobody_finds_needs_a_manual_policy() -> None:
    """The declaration's own model refuses it too; the linter does not rely on that.

    Requirements: X8
    """
    found = faults_of(text_of(MAKE), changed("t.make", findability=Findability.NONE))
    assert [(fault.rule, fault.pointer) for fault in found] == [("findability", "/steps/0/command")]
    policy = changed("t.make", findability=Findability.NONE, manual_policy="somebody looks")
    assert faults_of(text_of(MAKE), policy) == []
    with pytest.raises(ValueError, match="manual policy"):
        declared("lost", EffectClass.READ, findability=Findability.NONE)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda text: text.replace('id: "${input.id}"', 'id: "${case.workflow_id}"'), "unknown-value"),
        (lambda text: text.replace('id: "${input.id}"', 'id: "${steps.make.id}"'), "unknown-value"),
        (
            lambda text: text.replace("lifetime: P7D", 'lifetime: P7D\nlocks: ["a", "x-${input.note}"]'),
            "may-be-missing",
        ),
        (
            lambda text: text.replace("lifetime: P7D", 'lifetime: P7D\nlocks: ["a", "x-${steps.make.id}"]'),
            "unknown-value",
        ),
        (
            lambda text: text.replace('"${input.id}" }', '"${input.id}", concurrency: queue, queue_timeout: P8D }'),
            "lifetime",
        ),
        (lambda text: text.replace("id: { type: string }", "id: { type: text }"), "schema"),
        (lambda text: text.replace("id: { type: string }", 'id: { $ref: "file:///x" }'), "schema"),
        (lambda text: text.replace("id: { type: string }", 'id: { $ref: "#/properties/id" }'), "schema"),
        (lambda text: text.replace("id: { type: string }", 'id: { type: string, pattern: "(?=a)b" }'), "schema"),
    ],
)
def test_the_head_is_checked_too(change: Callable[[str], str], rule: str) -> None:
    """Object, locks and input stand at the start: they know the input and nothing else."""
    found = faults_of(change(text_of(MAKE)))
    assert [fault.rule for fault in found] == [rule], [str(fault) for fault in found]
    assert found[0].line is not None


SOUND = [
    MAKE + CHECK + APPROVE + PUBLISH + TELL,
    MAKE
    + APPROVE.replace("input.id", "steps.make.content_sha256")
    + '  - { id: publish, command: t.publish, with: { content_sha256: "${ steps.make.content_sha256 }" } }\n',
    "  - { id: touch, command: t.touch, with: {} }\n" + MAKE + PUBLISH,
    PUBLISH + "  - { id: sign, command: t.sign, with: {}, on: { failed: takeover, conflict: takeover } }\n",
    PUBLISH + MAKE,
    PUBLISH + APPROVE.replace("} }\n", "}, on: { rejected: takeover } }\n"),
    PUBLISH + "  - { id: touch, command: t.touch, with: {}, needs: [] }\n",
    TELL + "  - { id: more, command: t.tell, with: {} }\n",
    APPROVE + WAIT + CHECK.replace(" }\n", ", on: { failed: { goto: approve } } }\n") + MAKE + PUBLISH,
    MAKE.replace("with", "on: { failed: { goto: last } }, with")
    + "  - { id: skipped, command: t.make, with: {} }\n  - { id: last, command: t.look, with: {} }\n",
    MAKE.replace("with", 'when: "input.count > 1", with')
    + '  - { id: a, command: t.look, when: "input.count > 1", with: { text: "${steps.make.link}" } }\n',
    MAKE.replace("with", 'when: "input.count > 1", with')
    + '  - { id: a, command: t.look, when: "has(steps.make.id)", with: { text: "${steps.make.link}" } }\n',
    MAKE.replace("with", "on: { failed: continue }, with")
    + '  - { id: a, command: t.look, with: { text: "${?steps.make.link}" } }\n',
    "  - { id: a, command: t.look, with: { text: \"${has(input.meta.hint) ? input.meta.hint : ''}\" } }\n",
    "  - { id: a, command: t.look, with: { text: \"${has(input.meta) ? input.meta.title : ''}\" } }\n",
    '  - { id: a, command: t.strict, with: { name: "${input.id}", count: "${input.count + 1}" } }\n',
    STRICT + '1\n      tags: "${input.names}"\n',
    '  - { id: a, command: t.strict, with: { name: x, count: 1, inner: { x: "${input.count > 1}" } } }\n',
    '  - { id: a, wait: { event: e, timeout: P1D, owner: o, match: "event.sum > 2.5 && event.of == input.id" } }\n'
    '  - { id: b, command: t.look, with: { text: "${string(steps.a.data.sum)}" } }\n',
]


@pytest.mark.parametrize("steps", SOUND, ids=range(len(SOUND)))
def test_what_is_sound_is_not_refused(steps: str) -> None:
    """The neighbours of the broken documents.

    Requirements: S2
    """
    text = text_of(steps)
    assert [str(fault) for fault in faults_of(text)] == []
    assert sound_document(text, DECLARATIONS).document.sha256


def test_two_pivots_with_a_reason_are_allowed() -> None:
    """The reason is part of the document, so it is part of what was approved.

    Requirements: S2
    """
    text = text_of(PUBLISH + "  - { id: pay, command: t.pay, with: {} }\n")
    assert [fault.rule for fault in faults_of(text)] == ["two-pivots"]
    assert faults_of(text.replace("steps:", "pivots_reason: the fee is due once the text is public\nsteps:")) == []


def test_every_fault_is_told_at_once() -> None:
    """All faults of all rules, in the order of their lines."""
    text = text_of(
        '  - { id: a, command: t.gone, with: { text: "${input.nme}" } }\n'
        "  - { id: b, command: t.look, with: {}, key: k, timeout: P9D }\n" + APPROVE.replace('"${input.id}"', "1")
    )
    found = faults_of(text)
    assert [fault.rule for fault in found] == [
        "unknown-command",
        "unknown-value",
        "constant-key",
        "lifetime",
        "approval-binds",
    ]
    assert [fault.line for fault in found] == sorted(fault.line or 0 for fault in found)
    assert str(found[0]).startswith(f"line {found[0].line}, /steps/0/command: no adapter declares t.gone")


def test_every_rule_has_its_case_and_its_sentence() -> None:
    """A rule without a test, or without a first line for the documentation, does not exist."""
    elsewhere = {"no-compensation", "findability"}
    assert {rule for rule, _ in BROKEN} | elsewhere == set(RULES)
    for rule in RULES.values():
        sentence = str(rule.__doc__).splitlines()[0]
        assert sentence.endswith("."), rule
