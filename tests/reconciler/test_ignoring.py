"""Rules of accepted drift: scoped, with an end, and never a reason to call anything healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.reconciler.builders import at, established, message, moment, seen
from tests.reconciler.memory import MemoryStore
from tests.reconciler.test_handler import answer_of, told
from tests.reconciler.test_repairs import GONE, look, take

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import Phase
from trueup_common.contracts.task import ProbeTask
from trueup_common.documents.faults import DocumentInvalid
from trueup_reconciler.core import drift, visit
from trueup_reconciler.core.drift import Terms
from trueup_reconciler.core.element import Stage
from trueup_reconciler.core.ignoring import IgnoreRule, IgnoreRules
from trueup_reconciler.core.turned import Turned
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.main import read_rules

RULE: dict[str, Any] = {
    "id": "redesign",
    "tenant": "acme",
    "system": "wordpress",
    "resource": "post/1",
    "since": at(0),
    "until": at(1000),
    "reason": "the site is rebuilt this week",
    "owner": "operators",
}


def looked(row: Any, observation: Any, seconds: float, **rule: Any) -> Turned:
    (due,) = visit.plan([row.evolve(next_visit_at=at(seconds))], {}, visit.Pace(), at(seconds)).elements
    terms = Terms(rules=(IgnoreRule(**{**RULE, **rule}),))
    return drift.observe(due, observation, now=at(seconds), terms=terms)


def test_accepted_drift_calls_nobody_and_is_no_health() -> None:
    """Requirements: R11, L15. What is owed stays owed, and the difference stays visible."""
    turned = looked(take(None, established()).row, seen("draft"), 10)
    assert (turned.opened, turned.closed, turned.paid) == (None, None, ())
    assert (turned.row.phase, turned.row.stage, turned.row.owed) == (Phase.DRIFT, Stage.IGNORED, True)
    assert turned.row.reason == f"accepted by redesign until {rfc3339(at(1000))}"


def test_when_the_rule_ends_the_drift_is_found_at_the_next_look_and_that_comes_in_time() -> None:
    """Requirements: R11"""
    row = looked(take(None, established()).row, seen("draft"), 950).row
    assert row.next_visit_at == at(1000)
    over = looked(row, seen("draft"), 1000)
    assert over.opened is not None
    assert over.row.stage is Stage.MANUAL


def test_a_drift_that_is_open_already_is_closed_as_accepted_and_not_as_healthy() -> None:
    """Requirements: R11, Q8"""
    opened = look(take(None, established()).row, seen("draft"), 10)
    assert opened.opened is not None
    turned = looked(opened.row, seen("draft"), 20)
    assert turned.closed == (opened.opened.obligation_id, "accepted")
    assert looked(turned.row, seen("publish"), 30).row.phase is Phase.HEALTHY


@pytest.mark.parametrize(
    "rule",
    [
        {"tenant": "globex"},
        {"system": "github"},
        {"resource": "post/2"},
        {"element": "wordpress.content"},
        {"since": at(100)},
        {"observed": "private"},
        {"missing": True},
    ],
)
def test_a_rule_covers_its_scope_and_nothing_else(rule: dict[str, Any]) -> None:
    """Requirements: R11, T1"""
    assert looked(take(None, established()).row, seen("draft"), 10, **rule).opened is not None


def test_a_rule_about_an_absence_or_a_value() -> None:
    row = take(None, established()).row
    assert looked(row, GONE, 10, missing=True).opened is None
    assert looked(row, seen("draft"), 10, observed="draft", resource="post/*").opened is None
    assert looked(row, GONE, 10, observed="draft").opened is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"until": at(0)}, "ends"),
        ({"until": at(100 * 86400)}, "at most 90 days"),
        ({"until": None}, "until"),
        ({"resource": "*"}, "which resource or which element"),
        ({"tenant": "*"}, "named"),
        ({"reason": ""}, "reason"),
        ({"owner": ""}, "owner"),
        ({"for_ever": True}, "for_ever"),
    ],
)
def test_a_rule_without_scope_end_reason_or_owner_is_refused(changes: dict[str, Any], why: str) -> None:
    """Requirements: R11"""
    with pytest.raises(ValidationError, match=why):
        IgnoreRule(**{**RULE, **changes})


def test_the_document_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Requirements: R11"""
    path = tmp_path / "rules.yaml"
    text = """
rules:
  - id: redesign
    tenant: acme
    system: wordpress
    element: wordpress.*
    since: "2026-03-01T00:00:00Z"
    until: "2026-03-08T00:00:00Z"
    reason: the site is rebuilt this week
    owner: operators
"""
    path.write_text(text)
    (rule,) = read_rules(path)
    assert (rule.id, rule.element, rule.resource) == ("redesign", "wordpress.*", "*")
    assert read_rules(None) == ()
    path.write_text(text.replace("until:", "til:"))
    with pytest.raises(ValueError, match="until"):
        read_rules(path)
    path.write_text(text + "    owner: somebody else\n")
    with pytest.raises(DocumentInvalid):
        read_rules(path)
    with pytest.raises(ValidationError, match="same id"):
        IgnoreRules(rules=(IgnoreRule(**RULE), IgnoreRule(**RULE)))


async def test_when_a_rule_of_the_document_ends_the_difference_is_drift_again(tmp_path: Path) -> None:
    """From the file to the exception: nobody is called while it holds, and the look that its end brings calls somebody.

    The first look after the end comes by itself and no later than the end; it does not wait for the decaying schedule.
    Requirements: R11, R8
    """
    path = tmp_path / "rules.yaml"
    path.write_text(
        f"""
rules:
  - id: redesign
    tenant: acme
    system: wordpress
    element: wordpress.status
    since: "{at(-10).isoformat()}"
    until: "{at(500).isoformat()}"
    reason: the site is rebuilt for a while
    owner: operators
"""
    )
    handler, store, number = EventsHandler(Terms(rules=read_rules(path))), MemoryStore(), 0

    async def see(value: str, seconds: float) -> None:
        nonlocal number
        async with store.transaction() as tx:
            await tx.post(await Ticks().visits(tx, moment(seconds)))
        for probe in told(store, ProbeTask)[number:]:
            number += 1
            async with store.transaction() as tx:
                answer = message(answer_of(probe, value, seconds=seconds), f"o{number}")
                await tx.post(await handler.handle(tx, moment(seconds), [answer]))

    async with store.transaction() as tx:
        event = established(verified=True, observation=seen("publish"))
        await tx.post(await handler.handle(tx, moment(0), [message(event, "m1")]))
    for seconds in (60, 130, 499):
        await see("draft", seconds)
    (row,) = store.element.values()
    assert (row.stage, told(store, ExceptionReported)) == ("IGNORED", [])
    assert row.next_visit_at is not None and row.next_visit_at <= at(500)
    await see("draft", 500)
    (report,) = told(store, ExceptionReported)
    assert (report.obligation.status, report.obligation.envelope["element"]) == ("open", "wordpress.status")
    await see("draft", 10_000)
    assert len(told(store, ExceptionReported)) == 1
