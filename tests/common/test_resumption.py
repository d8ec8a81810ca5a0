"""Going on from a step, and closing a case: what runs again, what fits another version, what must be spoken about."""

from __future__ import annotations

from typing import Any

import pytest

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.resumption import carried, misfits, reassessed, resumption
from trueup_common.contracts.standing import standing, unspoken
from trueup_common.contracts.states import CompensationState, EffectClass, Findability, OperationState
from trueup_common.contracts.workflow import StepKind, StepPhase, StepState, WorkflowDocument
from trueup_common.documents.read import read_document

S = OperationState


def test_a_resumption_runs_again_what_does_not_stand() -> None:
    """From the step on, in the document's order; effects that stand are kept, waits and checks are not.

    Requirements: O7
    """
    steps = [
        StepState(id="a", kind=StepKind.COMMAND, command_id="cmd_a"),
        StepState(id="ask", kind=StepKind.APPROVAL),
        StepState(id="b", kind=StepKind.COMMAND, command_id="cmd_b"),
        StepState(id="c", kind=StepKind.COMMAND, command_id="cmd_c"),
        StepState(id="d", kind=StepKind.COMMAND),
    ]
    states = {"cmd_a": S.SUCCESS, "cmd_b": S.SUCCESS, "cmd_c": S.DEAD_LETTERED}

    def plan(given: list[StepState], came_to: dict[str, S], at: str) -> tuple[list[str], list[str]]:
        found = resumption(given, {name: journal(name, state) for name, state in came_to.items()}, at)
        assert found is not None
        return list(found.again), list(found.kept)

    done = [step.evolve(phase=StepPhase.DONE) for step in steps]
    reached = [*(step.evolve(phase=StepPhase.FAILED) for step in steps[:4]), steps[4]]
    assert plan(reached, states, "a") == (["ask", "d"], ["a", "b", "c"]), "c may have happened, and ask comes first"
    assert plan(reached, {**states, "cmd_c": S.FAILED}, "a") == (["ask", "c", "d"], ["a", "b"])
    assert plan(reached, {**states, "cmd_c": S.RUNNING}, "c") == (["d"], ["a", "ask", "b", "c"])
    assert plan(reached, states, "c") == (["c", "d"], ["a", "ask", "b"])
    assert plan(done, {**states, "cmd_c": S.FAILED}, "a") == (["c", "d"], ["a", "ask", "b"]), "b rests on it"
    assert plan(done, {}, "ask") == (["ask", "b", "c", "d"], ["a"])
    assert plan(done, {}, "d") == (["d"], ["a", "ask", "b", "c"])
    assert resumption(steps, {}, "nowhere") is None


def journal(name: str, state: S, *attempts: str, **facts: Any) -> JournalRow:
    """An operation in a state, with attempts that came to these ends."""
    entries = [{"attempt_id": f"att_{n}", "fence": n, "state": item} for n, item in enumerate(attempts, 1)]
    return JournalRow.model_construct(
        **{
            "command_id": name,
            "state": state,
            "attempts": entries,
            "resolution_type": None,
            "compensates": None,
            "compensation_state": CompensationState.NONE,
            "declaration_sha256": "d",
            **facts,
        }
    )


def test_a_preview_leaves_nothing_out() -> None:
    """What never began or was withdrawn begins as well, wherever it stands; what is looked at first and what stays with
    a person is told apart; an effect that landed without succeeding is never begun anew.

    Requirements: O7
    """
    steps = [
        StepState(id="beside", kind=StepKind.COMMAND, command_id="cmd_beside", phase=StepPhase.WITHDRAWN),
        StepState(id="early", kind=StepKind.WAIT, phase=StepPhase.WITHDRAWN),
        StepState(id="broken", kind=StepKind.COMMAND, command_id="cmd_broken", phase=StepPhase.FAILED),
        StepState(id="dead", kind=StepKind.COMMAND, command_id="cmd_dead", phase=StepPhase.FAILED),
        StepState(id="landed", kind=StepKind.COMMAND, command_id="cmd_landed", phase=StepPhase.FAILED),
        StepState(id="last", kind=StepKind.APPROVAL),
    ]
    rows = {
        "cmd_beside": journal("cmd_beside", S.CANCELLED),
        "cmd_broken": journal("cmd_broken", S.FAILED, "REJECTED"),
        "cmd_dead": journal("cmd_dead", S.DEAD_LETTERED, "UNKNOWN"),
        "cmd_landed": journal("cmd_landed", S.FAILED, "CONFIRMED", "REJECTED"),
    }
    found = resumption(steps, rows, "dead")
    assert found is not None
    assert found.again == ("beside", "early", "dead", "last")
    assert found.redriven == ("dead",) and found.reopened == ("early", "last")
    assert found.held == ("broken", "landed") and set(found.kept) == {"broken", "landed"}


OLD = """
name: flow
version: 1
object: { type: note, id: "${input.id}" }
lifetime: P1D
input: { type: object, required: [id], properties: { id: { type: string } } }
steps:
  - id: draft
    command: site.make
    with: { id: "${input.id}" }
  - id: good
    check: ["input.id != ''"]
  - id: approve
    approval: { scope: "content:publish", binds: ["${input.id}"], timeout: PT1H, owner: editors }
  - id: publish
    command: site.publish
    with: { id: "${input.id}" }
"""


def corrected(*changes: tuple[str, str]) -> WorkflowDocument:
    """Version 2 of the document, with these changes."""
    text = OLD.replace("version: 1", "version: 2")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read_document(text).document


def declared(command_type: str, effect: EffectClass = EffectClass.RETRYABLE) -> CommandDeclaration:
    return CommandDeclaration(
        type=command_type,
        system=command_type.partition(".")[0],
        title=command_type,
        permission="site:write",
        effect_class=effect,
        payload_schema={"type": "object"},
        findability=Findability.NATIVE_KEY,
        success_condition="2xx",
    )


PINNED = {name: declared(name) for name in ("site.make", "site.publish")}
RUN = [
    StepState(id="draft", kind=StepKind.COMMAND, command_type="site.make", command_id="c1", phase=StepPhase.DONE),
    StepState(id="good", kind=StepKind.CHECK, phase=StepPhase.DONE),
    StepState(id="approve", kind=StepKind.APPROVAL, phase=StepPhase.DONE),
    StepState(
        id="publish", kind=StepKind.COMMAND, command_type="site.publish", command_id="c2", phase=StepPhase.FAILED
    ),
]
ROWS = {"c1": journal("c1", S.SUCCESS), "c2": journal("c2", S.FAILED, "REJECTED")}
LATE_DRAFT = ('  - id: draft\n    command: site.make\n    with: { id: "${input.id}" }\n', "")


@pytest.mark.parametrize(
    ("new", "from_step", "steps", "why"),
    [
        (corrected(), "nowhere", RUN, "no such step"),
        (corrected(("name: flow", "name: other")), "publish", RUN, "another workflow"),
        (corrected(("type: note", "type: page")), "publish", RUN, "another business object"),
        (corrected(("required: [id]", "required: []")), "publish", RUN, "another input"),
        (corrected(LATE_DRAFT), "publish", RUN, "began already"),
        (
            corrected(
                (
                    "id: good\n    check: [\"input.id != ''\"]",
                    "id: good\n    wait: { event: x, timeout: PT1H, owner: o }",
                )
            ),
            "publish",
            RUN,
            "is a check",
        ),
        (corrected(("site.make", "site.publish")), "publish", RUN, "is done as site.make"),
        (corrected(), "draft", RUN, "does not come before"),
        (corrected(("site.publish", "site.drop")), "publish", RUN, "not among the command types"),
    ],
)
def test_a_version_that_does_not_fit_is_refused_by_name(
    new: WorkflowDocument, from_step: str, steps: list[StepState], why: str
) -> None:
    """Steps that are done have the same id, kind, command type and effect class in the corrected version, and come
    before the step to go on from; object, input and command types stay those that the case was admitted for.

    Requirements: O7, L13
    """
    found = misfits(steps, ROWS, read_document(OLD).document, new, from_step, PINNED, PINNED)
    assert any(why in detail for _, detail in found), found


def test_what_is_neither_done_nor_not_done_goes_on_by_no_other_version() -> None:
    """Requirements: O7, X4"""
    old = read_document(OLD).document
    assert misfits(RUN, ROWS, old, corrected(), "publish", PINNED, PINNED) == []
    for state, attempts in (
        (S.DEAD_LETTERED, ("UNKNOWN",)),
        (S.NEEDS_REVIEW, ()),
        (S.RUNNING, ()),
        (S.FAILED, ("CONFIRMED",)),
    ):
        rows = {**ROWS, "c2": journal("c2", state, *attempts)}
        ((step, why),) = misfits(RUN, rows, old, corrected(), "publish", PINNED, PINNED)
        assert step == "publish" and "settle it first" in why
    graver = {**PINNED, "site.publish": declared("site.publish", EffectClass.PIVOT)}
    ((step, why),) = misfits(RUN, ROWS, old, corrected(), "publish", PINNED, graver)
    assert step == "publish" and "was RETRYABLE" in why


def test_a_corrected_version_judges_anew_what_it_changes_and_asks_again() -> None:
    """Effects are kept; a check that was corrected is evaluated again, and an approval was given for another document.

    Requirements: O7, S6
    """
    old, new = read_document(OLD).document, corrected(("!= ''", "!= 'x'"))
    steps = carried(RUN, new)
    assert [step.id for step in steps] == ["draft", "good", "approve", "publish"]
    assert reassessed(steps, ROWS, old, new, "publish") == {"good", "approve"}
    assert reassessed(steps, ROWS, old, corrected(), "publish") == {"approve"}
    found = resumption(steps, ROWS, "publish", {"good", "approve"})
    assert found is not None and found.again == ("good", "approve", "publish") and found.kept == ("draft",)
    more = corrected(("  - id: approve", "  - id: spell\n    check: [\"input.id != 'y'\"]\n  - id: approve"))
    found = resumption(carried(RUN, more), ROWS, "publish")
    assert found is not None and found.again == ("spell", "publish")


@pytest.mark.parametrize(
    ("state", "attempts", "stands"),
    [
        (S.SUCCESS, ("CONFIRMED",), True),
        (S.FAILED, ("REJECTED",), False),
        (S.FAILED, ("CONFIRMED", "REJECTED"), True),
        (S.DEAD_LETTERED, ("REJECTED", "NOT_SENT"), False),
        (S.DEAD_LETTERED, ("UNKNOWN", "REJECTED"), True),
        (S.NEEDS_REVIEW, ("UNKNOWN",), True),
        (S.CONFLICT, (), False),
        (S.QUEUED, (), False),
        (S.CANCELLED, (), False),
        (S.RESOLVED, ("UNKNOWN",), False),
    ],
)
def test_which_effects_must_be_spoken_about(state: S, attempts: tuple[str, ...], stands: bool) -> None:
    """What happened or may have; not what is known not to have, what was read, what was undone or settled.

    Requirements: O3, E3
    """
    row = journal("c", state, *attempts)
    assert standing([row], {}) == (["c"] if stands else [])
    undone = journal("c", state, *attempts, compensation_state=CompensationState.COMPENSATED)
    read = {"d": declared("site.look", EffectClass.READ)}
    assert standing([undone], {}) == standing([row], read) == []
    assert standing([journal("c", state, *attempts, compensates="x")], {}) == []


def test_a_disposition_names_every_effect_once_and_no_other() -> None:
    """Requirements: O3, E3"""
    assert unspoken(["a", "b"], ["a", "b"]) == unspoken(["a", "b"], ["a"], {"b"}) == unspoken([], []) == []
    assert unspoken(["a", "b"], ["a"]) == ["says nothing of b"]
    assert unspoken(["a"], ["a", "z"]) == ["z is no effect of this case that stands"]
    assert unspoken(["a"], ["a", "a"]) == ["speaks of a more than once"]
