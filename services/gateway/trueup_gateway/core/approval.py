"""Approvals: what becomes of an ask, of a person's answer, and who may give one. The row arbitrates.

A row leaves `pending` once. What comes later learns how it ended, and changes nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from trueup_common.contracts.events import ApprovalAsked, ApprovalDecided
from trueup_common.contracts.shape import record
from trueup_gateway.core import roles
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import Refused, forbidden

WORKFLOW: Final = "workflow"
DECISION: Final = "decision"

PENDING: Final = "pending"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
SUPERSEDED: Final = "superseded"
STATUSES: Final = (PENDING, APPROVED, REJECTED, EXPIRED, SUPERSEDED)

VERBS: Final = {"approve": APPROVED, "reject": REJECTED}
"""What a person says → what the row becomes."""

_OUTCOMES: Final = {APPROVED: "approved", REJECTED: "rejected", EXPIRED: "expired", SUPERSEDED: "withdrawn"}
OPEN: Final = "open"
ACTIONS: Final = frozenset({OPEN, "expire", "withdraw"})
APPROVE: Final = "approve"
PERSON: Final = "operator:"
"""Subjects of people. Agents and services approve nothing, whatever roles their tokens claim."""


def covers_scope(given: str, wanted: str) -> bool:
    """True where a token's scope covers the scope of an approval.

    Scopes are parts joined by `:`. A last part `*` stands for one or more parts, a `*` elsewhere for exactly one;
    `*` alone covers everything. Without `*` a scope covers only itself: `content` does not cover `content:publish`.
    A `*` in the wanted scope is an ordinary part that only `*` covers.
    """
    have, want = given.split(":"), wanted.split(":")
    if have[-1] == "*":
        have = have[:-1]
        if len(want) <= len(have):
            return False
        want = want[: len(have)]
    return len(have) == len(want) and all(left in ("*", right) for left, right in zip(have, want, strict=True))


@dataclass(slots=True)
class Folded:
    """What a batch of asks changes: new rows, changed rows, and the rows whose end is told (again)."""

    fresh: dict[str, ApprovalRow] = field(default_factory=dict)
    changed: dict[str, ApprovalRow] = field(default_factory=dict)
    told: dict[str, ApprovalRow] = field(default_factory=dict)


class Folding:
    """Folds asks in their order over the locked rows of their cases."""

    def __init__(self, known: Iterable[ApprovalRow], now: datetime, new_nonce: Callable[[], str]) -> None:
        self._rows = {row.approval_id: row for row in known}
        self._now = now
        self._new_nonce = new_nonce
        self.folded = Folded()

    def take(self, asked: ApprovalAsked) -> None:
        """Fold one ask. An ask about an approval that nobody knows yet makes its row: order is not promised."""
        row = self._rows.get(asked.approval_id)
        if row is None:
            row = self._open(asked)
        if row.status == PENDING and asked.action == "withdraw":
            row = self._end(row, SUPERSEDED)
        elif row.status == PENDING and asked.action == "expire" and self._now >= row.expires_at:
            row = self._end(row, EXPIRED)
        if row.status != PENDING:
            self.folded.told[row.approval_id] = row

    def _open(self, asked: ApprovalAsked) -> ApprovalRow:
        """The row of a new ask: it replaces older ones of the same step, unless a newer one is here already."""
        row = _row_of(asked, self._new_nonce())
        siblings = [
            other
            for other in self._rows.values()
            if other.workflow_id == row.workflow_id and other.step_id == row.step_id
        ]
        newer = max((other for other in siblings), key=lambda other: other.state_version, default=None)
        if newer is not None and newer.state_version > row.state_version:
            row = row.evolve(status=SUPERSEDED, decided_at=self._now, superseded_by=newer.approval_id)
        elif asked.action != OPEN:  # what ends a question that never came replaces nothing
            if pending := next((other for other in siblings if other.status == PENDING), None):
                row = row.evolve(status=SUPERSEDED, decided_at=self._now, superseded_by=pending.approval_id)
        else:
            for other in siblings:
                self._replace(other, row)
        self._rows[row.approval_id] = self.folded.fresh[row.approval_id] = row
        return row

    def _replace(self, older: ApprovalRow, row: ApprovalRow) -> None:
        """A pending one ends; an approved one of other content is void (requirement S6)."""
        if older.status == PENDING:
            ended = self._end(older, SUPERSEDED, row.approval_id)
            self.folded.told[ended.approval_id] = ended
        elif older.status == APPROVED and older.content_sha256 != row.content_sha256:
            self._put(older.evolve(status=SUPERSEDED, superseded_by=row.approval_id))

    def _end(self, row: ApprovalRow, status: str, by: str | None = None) -> ApprovalRow:
        ended: ApprovalRow = row.evolve(status=status, decided_at=self._now, superseded_by=by)
        self._put(ended)
        return ended

    def _put(self, row: ApprovalRow) -> None:
        self._rows[row.approval_id] = row
        place = self.folded.fresh if row.approval_id in self.folded.fresh else self.folded.changed
        place[row.approval_id] = row


def _row_of(asked: ApprovalAsked, nonce: str) -> ApprovalRow:
    return ApprovalRow(
        **asked.model_dump(include=ApprovalRow.model_fields.keys() & ApprovalAsked.model_fields.keys()),
        kind=WORKFLOW,
        nonce=nonce,
        status=PENDING,
    )


def told(row: ApprovalRow) -> ApprovalDecided:
    """What the orchestrator is told of a workflow's approval that ended."""
    assert row.workflow_id is not None and row.step_id is not None and row.decided_at is not None
    return ApprovalDecided(
        approval_id=row.approval_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        step_id=row.step_id,
        outcome=_OUTCOMES[row.status],
        reviewer=row.reviewer,
        reason=row.reason,
        content_sha256=row.content_sha256,
        decision_id=row.decision_id,
        decided_at=row.decided_at,
    )


@record
class Answer:
    """What a person answers: for exactly this content, under exactly this nonce."""

    status: str
    nonce: str
    content_sha256: str
    reviewer: str
    reason: str | None


def review(row: ApprovalRow, *, subject: str, tenant: str, held: Sequence[str], scopes: Sequence[str]) -> Act:
    """The act that policy is asked about."""
    return Act(
        subject=subject,
        tenant=tenant,
        roles=tuple(held),
        action=APPROVE,
        target_tenant=row.tenant,
        system="trueup",
        resource=f"approval/{row.approval_id}",
        facts=(
            ("kind", row.kind),
            ("scope", row.scope),
            ("covered", any(covers_scope(scope, row.scope) for scope in scopes)),
            ("own", subject == row.requested_by),
            ("person", subject.startswith(PERSON)),
        ),
    )


def check_reviewer(act: Act, actors: Collection[str]) -> None:
    """The floor below any policy: role, person, scope, separation of duties. Raises Refused."""
    facts = dict(act.facts)
    if not roles.may(act.roles, roles.APPROVE):
        raise forbidden("role", f"This needs one of the roles {roles.needed(roles.APPROVE)}.")
    if not facts["person"]:
        raise forbidden("approval", "Only a person approves; this token stands for an agent or a service.")
    if not facts["covered"]:
        raise forbidden("scope", "None of the token's scopes covers the scope of this approval.")
    if act.subject in actors:
        raise forbidden("approval", "Whoever asked for this, or sent the case an event, cannot review it.")


def repeats(row: ApprovalRow, answer: Answer) -> bool:
    """True where the row already holds exactly this answer of this person: a second click."""
    return (row.status, row.reviewer, row.nonce, row.content_sha256) == (
        answer.status,
        answer.reviewer,
        answer.nonce,
        answer.content_sha256,
    )


def misuses_nonce(row: ApprovalRow, answer: Answer) -> bool:
    """True where an answer comes under a nonce that was used up already, or that is not this approval's."""
    return row.nonce != answer.nonce if row.status == PENDING else row.status in VERBS.values()


def refusal(row: ApprovalRow, answer: Answer, now: datetime) -> Refused:
    """Why an answer did not decide the row. Nothing here tells the right nonce or hash."""
    if row.status == SUPERSEDED:
        return _conflict(row, "superseded", "The approval was withdrawn or replaced; look for the one that is pending.")
    if row.status == EXPIRED or (row.status == PENDING and now >= row.expires_at):
        return _conflict(row, "expired", "The approval expired undecided; it can be asked for again.", status=EXPIRED)
    if row.status != PENDING:
        return _conflict(row, "decided", f"The approval was {row.status} already.")
    if row.content_sha256 != answer.content_sha256:
        return _conflict(row, "content", "The content to approve has another hash; read it again.")
    if row.nonce != answer.nonce:
        return _conflict(row, "nonce", "The nonce is not the one of this approval; read it again.")
    return _conflict(row, "superseded", "The case is over; nothing is to be approved any more.")


def _conflict(row: ApprovalRow, reason: str, detail: str, *, status: str | None = None) -> Refused:
    return Refused("conflict", detail, extra={"reason": reason, "approval_status": status or row.status})
