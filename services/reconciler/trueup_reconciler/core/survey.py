"""Looking for effects that nobody manages: what carries one of our markers outside and stands in no ledger (R10).

A survey goes page by page at a bounded rate, round after round. What it finds is an exception until a whole later round
does not find it any more. The reverse: an object of ours that a round listed and the next one does not is looked at by
itself, now; only that look says that it is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import Field

from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass, ProbeVerdict
from trueup_common.contracts.survey import NOT_SURVEYABLE, RESOURCE, SURVEY, Compared, Mark
from trueup_common.contracts.task import ProbeElement, ProbeTask
from trueup_reconciler.core.report import close
from trueup_reconciler.core.turned import Care

CODE: Final = "unmanaged_effect"
UNLISTED_MAX: Final = 500
"""Objects that are looked at because one round did not list them any more; the next round sees what is left."""
FOUND_MAX: Final = 50
"""Exceptions of one (tenant, system) at a time: more than that are one trouble, and are counted."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often all of a system is looked through, and how fast."""

    period_seconds: float = 6 * 3600.0
    page_seconds: float = 5.0
    answer_seconds: float = 120.0
    """How long a page may stay unanswered before it is asked for again."""


class SurveyRow(ForwardContract):
    """One (tenant, system) and how far its round is. `next_at` is business time."""

    survey_key: str
    tenant: str
    system: str
    round: int = 1
    pages_count: int = 0
    listed_count: int = 0
    cursor: str | None = None
    visit_id: str | None = None
    begun_at: Instant
    next_at: Instant
    found: list[str] = Field(default_factory=list)
    """Obligations of what this round found."""
    standing: list[str] = Field(default_factory=list)
    """Obligations that are open."""
    passed_over_count: int = 0
    """Findings of this round beyond what is reported."""
    reason: str | None = None
    """Why the last page said nothing."""
    state_version: int = 1


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What an answer came to."""

    row: SurveyRow
    opened: tuple[ObligationRow, ...] = ()
    closed: tuple[ObligationRow, ...] = ()


def survey_key(tenant: str, system: str) -> str:
    """The survey of a pair."""
    return f"{tenant}:{system}"


def page_in(row: SurveyRow, visit_id: str, seen: Observation) -> Compared | None:
    """The page that an answer brings; None where it is not the one that was asked for last, or says nothing."""
    if row.visit_id != visit_id or seen.verdict is not ProbeVerdict.CONFIRMED:
        return None
    return Compared.model_validate(seen.value)


def begin(tenant: str, system: str, now: datetime, rounds: Rounds) -> SurveyRow:
    """The first round of a pair."""
    at = now + timedelta(seconds=rounds.page_seconds)
    return SurveyRow(
        survey_key=survey_key(tenant, system), tenant=tenant, system=system, begun_at=at, next_at=at, state_version=0
    )


def due(row: SurveyRow, now: datetime, rounds: Rounds) -> tuple[SurveyRow, ProbeTask]:
    """Ask for the next page."""
    visit_id = derived_id("vis", RESOURCE, row.survey_key, row.round, row.pages_count, row.state_version)
    element = ProbeElement(
        element=f"{row.system}.{SURVEY}",
        kind=SURVEY,
        params={"cursor": row.cursor} if row.cursor is not None else {},
    )
    task = ProbeTask(
        visit_id=visit_id,
        tenant=row.tenant,
        system=row.system,
        resource=RESOURCE,
        command_id=derived_id("cmd", RESOURCE, row.survey_key),
        elements=(element,),
    )
    asked: SurveyRow = row.evolve(visit_id=visit_id, next_at=now + timedelta(seconds=rounds.answer_seconds))
    return asked, task


def answered(
    row: SurveyRow,
    seen: Observation,
    obligations: Mapping[str, ObligationRow],
    *,
    now: datetime,
    care: Care,
    rounds: Rounds,
) -> Surveyed:
    """Take in a page. What says nothing is asked for again, and proves no absence."""
    if seen.verdict is not ProbeVerdict.CONFIRMED:
        wait = rounds.period_seconds if seen.reason == NOT_SURVEYABLE else rounds.answer_seconds
        return Surveyed(
            row.evolve(visit_id=None, next_at=now + timedelta(seconds=wait), reason=seen.reason or "no_answer")
        )
    page = Compared.model_validate(seen.value)
    found, opened = dict.fromkeys(row.found), []
    passed_over = row.passed_over_count
    for mark in page.unmanaged:
        obligation_id = _obligation_id(row, mark)
        if obligation_id in found:
            continue
        if len(found) >= FOUND_MAX:
            passed_over += 1
            continue
        found[obligation_id] = None
        known = obligations.get(obligation_id)
        if known is None or (known.status != "open" and obligation_id not in row.standing):  # else a person let it be
            opened.append(_opened(row, mark, known, seen=seen, now=now, care=care))
    on = row.evolve(
        visit_id=None,
        reason=None,
        pages_count=row.pages_count + 1,
        listed_count=row.listed_count + page.listed_count,
        cursor=page.next_cursor,
        found=list(found),
        standing=sorted({*row.standing, *(item.obligation_id for item in opened)}),
        passed_over_count=passed_over,
        next_at=now + timedelta(seconds=rounds.page_seconds),
    )
    if page.next_cursor is not None:
        return Surveyed(on, opened=tuple(opened))
    return _ended(on, tuple(opened), obligations, now, rounds)


def _ended(
    row: SurveyRow,
    opened: tuple[ObligationRow, ...],
    obligations: Mapping[str, ObligationRow],
    now: datetime,
    rounds: Rounds,
) -> Surveyed:
    """A whole round is through: what it did not find is gone, or stands in the ledger by now."""
    gone = [name for name in row.standing if name not in row.found] if not row.passed_over_count else []
    closed = tuple(
        close(obligations[name], "observed_healthy", now)
        for name in gone
        if name in obligations and obligations[name].status == "open"
    )
    again = row.evolve(
        round=row.round + 1,
        pages_count=0,
        listed_count=0,
        cursor=None,
        found=[],
        passed_over_count=0,
        standing=[name for name in row.standing if name not in gone],
        begun_at=now + timedelta(seconds=rounds.period_seconds),
        next_at=now + timedelta(seconds=rounds.period_seconds),
    )
    return Surveyed(again, opened=opened, closed=closed)


def obligations_of(row: SurveyRow, seen: Observation) -> set[str]:
    """The obligations that an answer may open or close."""
    names = set(row.standing)
    if seen.verdict is ProbeVerdict.CONFIRMED:
        names.update(_obligation_id(row, mark) for mark in Compared.model_validate(seen.value).unmanaged[:FOUND_MAX])
    return names


def _obligation_id(row: SurveyRow, mark: Mark) -> str:
    return derived_id("obl", CODE, row.tenant, row.system, mark.operation_id, mark.external_resource_id)


def _opened(
    row: SurveyRow, mark: Mark, known: ObligationRow | None, *, seen: Observation, now: datetime, care: Care
) -> ObligationRow:
    at = rfc3339(now)
    return ObligationRow(
        obligation_id=_obligation_id(row, mark),
        tenant=row.tenant,
        workflow_id=mark.operation_id,
        saga_id="",
        command_id=mark.operation_id,
        kind=ExceptionKind.NEEDS_REVIEW.value,
        failure_class=FailureClass.STATE_DRIFT.value,
        owner=care.owner,
        opened_at=now,
        deadline_at=now + timedelta(seconds=care.sla_seconds),
        version=known.version + 1 if known is not None else 1,
        envelope={
            "command_id": mark.operation_id,
            "failure_class": FailureClass.STATE_DRIFT.value,
            "failure_code": CODE,
            "failure_reason": f"{row.system} holds {mark.external_resource_id} with the marker of {mark.operation_id},"
            " which stands in no ledger",
            "first_failed_at": at,
            "last_failed_at": at,
            "attempt_count": 0,
            "recommended_repair": "find out where it comes from (another installation, a restored backup, a copy), then"
            " take it over or remove it",
            "human_review_required": True,
            "external_resource_id": mark.external_resource_id,
            "target_resource": mark.resource,
            "observed_at": rfc3339(seen.observed_at),
        },
    )
