"""Approvals before any store: what asks do to rows, and who may review at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trueup_common.contracts.events import ApprovalAsked
from trueup_gateway.core.approval import (
    APPROVED,
    EXPIRED,
    PENDING,
    SUPERSEDED,
    Folding,
    check_reviewer,
    review,
)
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.refusal import Refused

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OLD, NEW = "a" * 64, "b" * 64


def asked(number: int, content: str = OLD, action: str = "open", **changes: Any) -> ApprovalAsked:
    fields: dict[str, Any] = {
        "approval_id": f"apr_{number}",
        "workflow_id": "wf_1",
        "saga_id": "saga_1",
        "tenant": "acme",
        "step_id": "approve",
        "action": action,
        "scope": "content:publish",
        "content_sha256": content,
        "requested_by": "agent:publisher",
        "owner": "editors",
        "definition": "article",
        "version": 1,
        "document_sha256": "d" * 64,
        "state_version": number,
        "asked_at": NOW,
        "expires_at": NOW + timedelta(hours=1),
    }
    return ApprovalAsked(**{**fields, **changes})


def folded(*asks: ApprovalAsked, now: datetime = NOW, known: tuple[ApprovalRow, ...] = ()) -> dict[str, ApprovalRow]:
    """The rows after these asks."""
    folding = Folding(known, now, lambda: "nonce")
    for item in asks:
        folding.take(item)
    rows = {row.approval_id: row for row in known}
    return {**rows, **folding.folded.changed, **folding.folded.fresh}


def approved(number: int, content: str = OLD) -> ApprovalRow:
    row = folded(asked(number, content))[f"apr_{number}"]
    decided: ApprovalRow = row.evolve(status=APPROVED, reviewer="operator:ann", decided_at=NOW)
    return decided


@pytest.mark.parametrize(("content", "left"), [(NEW, SUPERSEDED), (OLD, APPROVED)])
def test_new_content_voids_the_approval_of_the_old(content: str, left: str) -> None:
    """Asked again about other content, what was approved before counts no longer; about the same content, it does.

    Requirements: S6
    """
    rows = folded(asked(2, content), known=(approved(1),))
    assert (rows["apr_1"].status, rows["apr_2"].status) == (left, PENDING)


def test_a_timer_that_comes_too_early_expires_nothing() -> None:
    """Only the row's own expiry ends it; the timer's message is a question, not a verdict.

    Requirements: L7
    """
    known = tuple(folded(asked(1)).values())
    early = folded(asked(1, action="expire"), now=NOW + timedelta(minutes=59), known=known)
    assert early["apr_1"].status == PENDING
    due = folded(asked(1, action="expire"), now=NOW + timedelta(hours=1), known=known)
    assert due["apr_1"].status == EXPIRED


def check(row: ApprovalRow, subject: str, actors: set[str], roles: tuple[str, ...] = ("approver",)) -> str | None:
    """The check that refuses this reviewer, if any."""
    act = review(row, subject=subject, tenant="acme", held=roles, scopes=("content:*",))
    try:
        check_reviewer(act, actors)
    except Refused as refused:
        return refused.check
    return None


def test_whoever_asked_or_spoke_to_the_case_reviews_nothing() -> None:
    """Separation of duties holds below any policy.

    Requirements: S6
    """
    row = approved(1)
    assert check(row, "operator:ann", {"operator:bob"}) is None
    assert check(row, "operator:ann", {"operator:ann", "operator:bob"}) == "approval"


@pytest.mark.parametrize("subject", ["agent:publisher", "service:planner"])
def test_an_agent_or_a_service_reviews_nothing(subject: str) -> None:
    """Whatever roles a token claims: only people approve.

    Requirements: S6
    """
    assert check(approved(1), subject, set(), ("approver", "operator", "admin")) == "approval"
