"""The plane's own sentences in the reader's language, and nobody else's: playbooks, refusals, what an item came to."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.gateway.edge import later
from tests.gateway.test_resuming import CORRECTED, FIRST

from trueup_common.contracts.operators import CommandState, OperatorAction
from trueup_common.contracts.resumption import misfits
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.workflow import StepKind, StepPhase, StepState
from trueup_common.documents.read import read_document
from trueup_gateway.console.own import LENGTH_MAX, outcome, own
from trueup_gateway.console.words import words_of
from trueup_gateway.core import approval as rules
from trueup_gateway.core.anomalies import MEANINGS
from trueup_gateway.core.batches import ended_as
from trueup_gateway.core.person_records import ApprovalRow
from trueup_orchestrator.core.invariants import RULES
from trueup_repair_planner.core.classify import RECOMMENDED
from trueup_repair_planner.core.playbook import Playbook
from trueup_repair_planner.playbooks import texts

CHINESE = words_of("zh")
HAN = re.compile("[\u4e00-\u9fff]")


def test_every_sentence_of_a_playbook_has_chinese_words() -> None:
    """Requirements: O4, Q5"""
    told = [
        (playbook.name, text)
        for playbook in (Playbook.model_validate(yaml.safe_load(text)) for text in texts().values())
        for text in (playbook.verification, playbook.rollback, playbook.explanation)
    ]
    assert len(told) >= 48
    for name, text in told:
        assert HAN.search(own(CHINESE, text)), (name, text)
        assert own(words_of("en"), text) == text


def test_what_the_plane_says_of_itself_has_words() -> None:
    """Anomalies, broken invariants, and what is recommended for each class of failure.

    Requirements: V5, V6, Q2, O4
    """
    told = [
        *(meaning.reason.format(actor="agent:x", count=7, window=600) for meaning in MEANINGS.values()),
        *(meaning.recommended for meaning in MEANINGS.values()),
        *(rule.recommended for rule in RULES.values()),
        *(f"{rule.reason} (since 2026-11-30T09:00:00Z)" for rule in RULES.values()),
    ]
    for text in told:
        said = own(CHINESE, text)
        assert said != text and HAN.search(said), text
        assert ("agent:x" in text) is ("agent:x" in said)
    for advice in RECOMMENDED.values():
        assert all(f"advice.{advice}" in words_of(language).catalogue for language in ("en", "zh")), advice


@pytest.mark.parametrize("text", ["Sorry, you are not allowed to do that.", "decided by the night shift", "", "It was"])
def test_what_somebody_else_wrote_stands_as_written(text: str) -> None:
    """Requirements: O4, T3"""
    assert own(CHINESE, text) == text
    assert outcome(CHINESE, text) == text
    assert own(CHINESE, "It is " + "x" * LENGTH_MAX) == "It is " + "x" * LENGTH_MAX


def test_what_became_of_each_item_of_a_batch_has_words() -> None:
    """Every end: an operation's state, one with its error code, and a refusal with what it said.

    Requirements: O5, O4
    """
    for state in OperationState:
        for result in ({"state": state.value}, {"state": state.value, "error_code": "forbidden"}):
            ended = ended_as(CommandState.DONE, None, result)
            assert ended is not None and ended[1] is not None
            said = outcome(CHINESE, ended[1])
            assert said != ended[1] and HAN.search(said), ended[1]
            if "error_code" in result and ended[1] != state.value:
                assert said.endswith(": forbidden"), "a code is a code in every language"
    for state in ("CLOSED", "FAILED", "open"):
        assert outcome(CHINESE, f"action-not-available: It is {state}.").count(state) == 0
    for action in OperatorAction:
        said = outcome(CHINESE, f"repair-in-flight: opc_{'1' * 32} ({action}) is at work on this already.")
        assert "opc_1" in said and action.value not in said
    assert HAN.search(outcome(CHINESE, (ended_as(CommandState.REFUSED, None, {}) or ("", ""))[1]))


def _fits(text: str, **changes: Any) -> list[tuple[str, str]]:
    old, new = (read_document(item).document for item in (FIRST, text))
    steps = [
        StepState(
            id=step.id,
            kind=step.kind,
            command_type=step.command,
            phase=StepPhase.DONE,
            command_id=f"cmd_{number:032x}" if step.command else None,
        ).evolve(**changes if step.kind is StepKind.COMMAND else {})
        for number, step in enumerate(old.steps)
    ]
    return misfits(steps, {}, old, new, "publish", {}, {})


def test_what_does_not_fit_of_a_version_has_words() -> None:
    """Requirements: O7, O4"""
    texts = (
        FIRST.replace("id: draft\n", "id: outline\n").replace("steps.draft.", "steps.outline."),
        FIRST.replace("{type: article,", "{type: page,"),
        FIRST.replace("maxLength: 200", "maxLength: 150"),
        FIRST.replace("id: publish", "id: release"),
        CORRECTED,
    )
    told = {why for text in texts for _, why in _fits(text)}
    assert len(told) >= 5, told
    for why in told:
        assert HAN.search(own(CHINESE, why)), why
    assert HAN.search(own(CHINESE, "; ".join(sorted(told))))


@pytest.mark.parametrize("status", rules.STATUSES)
def test_why_an_answer_to_an_approval_does_not_count_has_words(status: str) -> None:
    """Requirements: S6, O4"""
    row = ApprovalRow(
        approval_id="apr_" + "1" * 32,
        tenant="acme",
        kind=rules.DECISION,
        scope="content",
        content_sha256="a" * 64,
        nonce="n",
        requested_by="agent:x",
        owner="editors",
        status=status,
        asked_at=later(-60),
        expires_at=later(60),
    )
    for nonce, content in (("n", "a" * 64), ("other", "a" * 64), ("n", "b" * 64)):
        answer = rules.Answer(rules.APPROVED, nonce, content, "operator:erin", None)
        said = rules.refusal(row, answer, later(0)).detail
        assert said and HAN.search(own(CHINESE, said)), said
