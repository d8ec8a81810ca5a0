"""Settling an unknown outcome: looking until the outside says what happened, or a person has to.

Every look raises the fence. "Not done" needs proof of access, a look later than the last moment at which the target
could still act, and the older attempts shut out; several effects are ambiguous; when budget or time run out the answer
is "unknown", never a guess.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.events import Settlement, SettleRequested
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import FindVerdict
from trueup_common.contracts.task import FindTask, Found, Operation
from trueup_reconciler.core.settlement import TABLE, Act, Heard, SettlementRow, SettlementState

BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
EARLY_SECONDS: Final = (1.0, 3.0, 10.0, 30.0, 60.0)
"""While absence cannot be proved yet: what happened late is seen soon, and the look that can prove is never far."""
ANSWER_SECONDS: Final = (30.0, 60.0, 120.0, 300.0)
FINDS_MAX: Final = 40
EVIDENCE_MAX: Final = 20
HOPELESS: Final = frozenset({"not_findable", "target_key_expired"})
"""Reasons for which looking again cannot say more: a person decides at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one message did: the row as it stands, a look to send, and what to tell the orchestrator."""

    row: SettlementRow
    act: Act
    find: FindTask | None = None
    told: tuple[Settlement, ...] = ()


def delay(table: tuple[float, ...], count: int) -> timedelta:
    """The entry for a count; the last one for all beyond."""
    return timedelta(seconds=table[min(count, len(table) - 1)])


def request(
    row: SettlementRow | None,
    asked: SettleRequested,
    *,
    business: datetime,
    real: datetime,
    traceparent: str | None = None,
    not_before: datetime | None = None,
) -> Step:
    """Take up a request. A request with a higher fence than the last one opens a new round.

    `not_before` is where the rate of its system has the first look; the request is taken up all the same.
    """
    operation, first = asked.operation, row is None
    if row is None:
        row = SettlementRow(
            settlement_id=derived_id("stl", operation.command_id),
            command_id=operation.command_id,
            workflow_id=operation.workflow_id,
            tenant=operation.tenant,
            system=operation.target.system,
            operation=operation.model_dump(mode="json"),
            state_version=0,
            round=0,
            request_fence=0,
            fence=0,
            reason=asked.reason,
            requested_at=asked.requested_at,
            deadline_at=asked.deadline_at,
        )
    if not first and asked.fence <= row.request_fence:
        state, act = TABLE[row.state, Heard.REQUESTED_AGAIN]
        return Step(row, act, told=(told(row, row.finished_at or business),) if act is Act.REPEAT_RESULT else ())
    state, act = TABLE[row.state, Heard.REQUESTED]
    opened = row.evolve(
        state=state,
        round=row.round + 1,
        request_fence=asked.fence,
        fence=max(row.fence, asked.fence),
        finds_count=0,
        answers_count=0,
        reason=asked.reason,
        late_until=asked.late_until,
        provable_at=None,
        requested_at=asked.requested_at,
        deadline_at=asked.deadline_at,
        finished_at=None,
        verdict=None,
        finding=None,
        effect_seen=False,
        traceparent=traceparent,
    )
    if not_before is not None and not_before > business:
        waiting = opened.evolve(
            state=SettlementState.OPEN, find_id=None, asked_at=None, answer_by=None, next_at=not_before
        )
        return Step(waiting, Act.WAIT, told=(told(waiting, business),))
    looking = _find(opened, act, business=business, real=real)
    return Step(looking.row, act, looking.find, (told(looking.row, business),))


def due(row: SettlementRow, *, business: datetime, real: datetime) -> Step:
    """The row's time has come: look, look again under a higher fence, or give up."""
    heard = Heard.DUE
    if row.state is SettlementState.FINDING and row.answer_by is not None and real < row.answer_by:
        heard = Heard.TOO_EARLY
    elif row.finds_count > 0 and (row.finds_count >= FINDS_MAX or business >= row.deadline_at):
        heard = Heard.EXHAUSTED
    state, act = TABLE[row.state, heard]
    if act is Act.FIND:
        return _find(row.evolve(state=state), act, business=business, real=real)
    if act is Act.FINISH:
        spent = "budget" if row.finds_count >= FINDS_MAX else "deadline"
        verdict = Finding(verdict=FindVerdict.UNKNOWN, reason=f"{spent}_exhausted")
        return _finish(row.evolve(state=state), verdict, business)
    if act is Act.WAIT and row.answer_by is not None:
        return Step(row.evolve(next_at=business + (row.answer_by - real)), act)
    return Step(row.evolve(next_at=None) if row.state is SettlementState.DONE else row, act)


def is_new(row: SettlementRow | None, asked: SettleRequested) -> bool:
    """True where a request leads to a look: the first one, or one with a higher fence than the last."""
    return row is None or asked.fence > row.request_fence


def will_look(row: SettlementRow, *, business: datetime, real: datetime) -> bool:
    """True where a due row would look now, so that the look has to be paid for."""
    return due(row, business=business, real=real).find is not None


def found(row: SettlementRow, answer: Found, *, business: datetime, real: datetime) -> Step:
    """Take the answer of a look. Only the look in hand decides; every other answer is evidence."""
    finding = judge(row, answer)
    if row.state is not SettlementState.FINDING or answer.find_id != row.find_id:
        heard = Heard.STALE_ANSWER
    elif finding.verdict is FindVerdict.UNKNOWN and finding.reason not in HOPELESS:
        heard = Heard.UNDECIDED
    else:
        heard = Heard.DECIDED
    state, act = TABLE[row.state, heard]
    if act is Act.KEEP_EVIDENCE:
        return _keep(row, answer, act)
    if act is Act.FINISH:
        return _finish(row.evolve(state=state, fence=max(row.fence, answer.fence)), finding, business)
    wait = _pause(row, answer, real)
    waiting = row.evolve(
        state=state,
        fence=max(row.fence, answer.fence),
        find_id=None,
        asked_at=None,
        answer_by=None,
        answers_count=row.answers_count + 1,
        provable_at=answer.provable_at or row.provable_at,
        next_at=business + wait,
        finding=finding.model_dump(mode="json"),
    )
    return Step(waiting, act)


def _pause(row: SettlementRow, answer: Found, real: datetime) -> timedelta:
    """Until the next look. One shortly before absence can be proved is left out: the latter says more."""
    if answer.provable_at is None or answer.provable_at <= real:
        return delay(BACKOFF_SECONDS, row.answers_count)
    left = answer.provable_at - real + timedelta(milliseconds=50)
    early = delay(EARLY_SECONDS, row.answers_count)
    return early if 2 * early < left else left


def judge(row: SettlementRow, answer: Found) -> Finding:
    """The verdict that one answer supports; what it does not support becomes UNKNOWN with the reason."""
    finding: Finding = answer.finding
    if finding.candidates > 1 or finding.verdict is FindVerdict.AMBIGUOUS:
        return _doubt(finding, FindVerdict.AMBIGUOUS, finding.reason or "several_candidates")
    if finding.verdict is not FindVerdict.MISSING:
        return finding
    doubts = (
        ("no_proof_of_access", not finding.proof_of_access),
        ("older_attempt_not_shut_out", answer.fence < row.fence),
        ("newer_attempt_known", answer.fence > row.fence),
        ("too_early", any(at is not None and answer.found_at <= at for at in (answer.provable_at, row.late_until))),
        ("effect_seen_before", row.effect_seen),
    )
    reason = next((name for name, holds in doubts if holds), None)
    return finding if reason is None else _doubt(finding, FindVerdict.UNKNOWN, reason)


def _doubt(finding: Finding, verdict: FindVerdict, reason: str) -> Finding:
    doubted: Finding = finding.evolve(verdict=verdict, reason=reason)
    return doubted


def told(row: SettlementRow, at: datetime) -> Settlement:
    """The row as the orchestrator hears of it."""
    done = row.state is SettlementState.DONE
    return Settlement(
        settlement_id=row.settlement_id,
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        started=True,
        finished=done,
        fence=row.fence,
        verdict=row.verdict if done else None,
        finding=Finding.model_validate(row.finding) if done and row.finding is not None else None,
        finds_count=row.finds_count,
        at=at,
    )


def _find(row: SettlementRow, act: Act, *, business: datetime, real: datetime) -> Step:
    fence = row.fence + 1
    find_id = derived_id("fnd", row.settlement_id, fence)
    patience = delay(ANSWER_SECONDS, row.finds_count - row.answers_count)
    asked = row.evolve(
        fence=fence,
        find_id=find_id,
        finds_count=row.finds_count + 1,
        asked_at=real,
        answer_by=real + patience,
        next_at=business + patience,
    )
    task = FindTask(
        operation=Operation.model_validate(row.operation),
        fence=fence,
        find_id=find_id,
        settlement_id=row.settlement_id,
    )
    return Step(asked, act, find=task)


def _finish(row: SettlementRow, finding: Finding, business: datetime) -> Step:
    done = row.evolve(
        find_id=None,
        asked_at=None,
        answer_by=None,
        next_at=None,
        finished_at=business,
        verdict=finding.verdict,
        finding=finding.model_dump(mode="json"),
    )
    return Step(done, Act.FINISH, told=(told(done, business),))


def _keep(row: SettlementRow, answer: Found, act: Act) -> Step:
    if len(row.evidence) >= EVIDENCE_MAX or any(item["find_id"] == answer.find_id for item in row.evidence):
        return Step(row, Act.NOTHING)
    item = {
        "find_id": answer.find_id,
        "fence": answer.fence,
        "verdict": answer.finding.verdict.value,
        "ledger_status": answer.ledger_status,
        "found_at": rfc3339(answer.found_at),
    }
    seen = row.effect_seen or answer.finding.verdict in (FindVerdict.CONFIRMED, FindVerdict.AMBIGUOUS)
    return Step(row.evolve(evidence=[*row.evidence, item], effect_seen=seen), act)
