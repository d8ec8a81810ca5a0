"""Folding what came back into the ledger: outcomes of attempts and verdicts of look-ups.

The ledger moves at most once per attempt. What returns after the ledger moved on is evidence: kept, told, and never a
second transition, except that a late CONFIRMED turns "nothing happened" into UNKNOWN, so that nothing is sent before
somebody has looked.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from trueup_adapters.core.effect import AttemptRow, EffectRow, LedgerStatus
from trueup_adapters.core.receipt import (
    finding_of_receipt,
    receipt_of_finding,
    receipt_of_outcome,
    storable,
    storable_finding,
)
from trueup_common.contracts.adapter import Outcome
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.ids import attempt_id as derive_attempt_id
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import Findability, FindVerdict, ReceiptStatus
from trueup_common.contracts.task import Receipt

OPEN: Final = frozenset({LedgerStatus.SENT, LedgerStatus.UNKNOWN})
"""Statuses in which an attempt may have acted and nobody knows yet."""

ANSWERED: Final = frozenset({LedgerStatus.REJECTED, LedgerStatus.NOT_SENT})
"""Statuses in which no attempt can act any more: the last one ended by its own word, and every earlier one was settled
before the last one could be sent. Nothing comes late."""

_OF_RECEIPT: Final = {
    ReceiptStatus.CONFIRMED: LedgerStatus.CONFIRMED,
    ReceiptStatus.REJECTED: LedgerStatus.REJECTED,
    ReceiptStatus.NOT_SENT: LedgerStatus.NOT_SENT,
    ReceiptStatus.UNKNOWN: LedgerStatus.UNKNOWN,
}


class Purpose(StrEnum):
    """Why somebody looks: a find task, an execute task that met an open effect, or the scan."""

    FIND = "find"
    EXECUTE = "execute"
    SCAN = "scan"


@record
class Attempt:
    """One transmission as it was committed."""

    attempt_id: str
    fence: int
    sent_at: datetime
    late_until: datetime


@dataclass(frozen=True, slots=True)
class Look:
    """One look-up as it was begun: under which fence, for whom, and which attempt was the last one then."""

    purpose: Purpose
    fence: int
    last_attempt_id: str | None
    answer_attempt_id: str
    answer_fence: int
    begun_at: datetime
    """Before the first read. Absence counts from here: what the target did later, this look did not see."""
    final: bool = True
    """False while the last attempt may still answer for itself: then only what is found counts, not what is not."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What follows. `row` is None where the ledger does not move, `receipt` where nobody is told."""

    row: EffectRow | None = None
    receipt: Receipt | None = None
    attempt: AttemptRow | None = None
    finding: Finding | None = None
    provable_at: datetime | None = None


def fold_outcome(row: EffectRow, attempt: Attempt, outcome: Outcome, now: datetime) -> Folded:
    """An attempt's own answer."""
    outcome = storable(outcome)
    receipt = receipt_of_outcome(
        row.operation,
        outcome,
        attempt_id=attempt.attempt_id,
        fence=attempt.fence,
        ended_at=now,
        sent_at=attempt.sent_at,
        late_until=attempt.late_until,
        worker=row.worker,
    )
    own = row.attempt_id == attempt.attempt_id
    moves = own and (
        row.status is LedgerStatus.SENT
        or (row.status is LedgerStatus.UNKNOWN and outcome.status is not ReceiptStatus.UNKNOWN)
    )
    changed: EffectRow | None = None
    if moves:
        changed = row.evolve(
            status=_OF_RECEIPT[outcome.status],
            error_class=outcome.error_class,
            look_at=None,
            receipt=receipt,
            updated_at=now,
        )
    elif outcome.status is ReceiptStatus.CONFIRMED:
        changed = doubt(row, now)
    evidence = _evidence(row, attempt.attempt_id, attempt.fence, receipt, now, late=not moves)
    return Folded(row=changed, receipt=receipt, attempt=evidence)


def doubt(row: EffectRow, now: datetime) -> EffectRow | None:
    """A late CONFIRMED against a ledger that says "nothing happened": nobody sends before somebody has looked."""
    if row.status in OPEN or row.status is LedgerStatus.CONFIRMED:
        return None
    doubted: EffectRow = row.evolve(status=LedgerStatus.UNKNOWN, error_class=None, look_at=None, updated_at=now)
    return doubted


def judge(row: EffectRow, look: Look, finding: Finding, declaration: CommandDeclaration, now: datetime) -> Finding:
    """The verdict that the ledger can stand for. MISSING needs proof of access, the late window, and older fences out;
    there is no late window where the target itself answered that it did nothing.

    Where the target's silence proves nothing (no findability, or past its own key lifetime), MISSING is UNKNOWN.
    """
    finding = storable_finding(finding)
    if finding.verdict is not FindVerdict.MISSING:
        return finding
    reason = None
    if look.purpose is not Purpose.FIND or look.fence <= row.sent_fence:
        reason = "older_fence_open"
    elif row.fence != look.fence or row.attempt_id != look.last_attempt_id:
        reason = "overtaken"
    elif row.late_until is not None and row.status not in ANSWERED and look.begun_at <= row.late_until:
        reason = "too_early"
    elif declaration.findability is Findability.NONE:
        reason = "not_findable"
    elif _forgotten(row, declaration, now):
        reason = "target_key_expired"
    if reason is None:
        return finding
    doubted: Finding = finding.evolve(verdict=FindVerdict.UNKNOWN, reason=reason)
    return doubted


def _forgotten(row: EffectRow, declaration: CommandDeclaration, now: datetime) -> bool:
    """True where the target itself may have forgotten the key by now."""
    lifetime = declaration.target_key_lifetime_seconds
    return lifetime is not None and row.sent_at is not None and now - row.sent_at > timedelta(seconds=lifetime)


def fold_finding(
    row: EffectRow, look: Look, finding: Finding, declaration: CommandDeclaration, now: datetime
) -> Folded:
    """A look-up's verdict: what it does to the ledger and what is answered."""
    finding = judge(row, look, finding, declaration, now)
    if row.status is LedgerStatus.CONFIRMED and row.receipt is not None and finding.candidates <= 1:
        finding = finding_of_receipt(row.receipt)
    if look.purpose is Purpose.SCAN and not look.final and finding.verdict is not FindVerdict.CONFIRMED:
        return Folded(finding=finding)
    receipt = receipt_of_finding(
        row.operation,
        finding,
        attempt_id=look.answer_attempt_id,
        fence=look.answer_fence,
        ended_at=now,
        sent_at=row.sent_at,
        late_until=row.late_until,
        worker=row.worker,
    )
    changed = _moved(row, look, finding, receipt, now)
    provable_at = row.late_until if finding.reason == "too_early" else None
    told = receipt if look.purpose is not Purpose.FIND else None
    if look.purpose is Purpose.SCAN and changed is None:
        told = None
    evidence = None
    if changed is not None and row.status is LedgerStatus.SENT and row.attempt_id is not None:
        evidence = _evidence(row, row.attempt_id, row.sent_fence, receipt, now, found=True)
    return Folded(row=changed, receipt=told, attempt=evidence, finding=finding, provable_at=provable_at)


def _evidence(
    row: EffectRow,
    attempt_id: str,
    fence: int,
    receipt: Receipt,
    now: datetime,
    *,
    found: bool = False,
    late: bool = False,
) -> AttemptRow:
    kept_in_ledger = receipt.status is ReceiptStatus.CONFIRMED and not late
    return AttemptRow.trusted(
        attempt_id=attempt_id,
        status=receipt.status.value,
        command_id=row.command_id,
        tenant=row.tenant,
        fence=fence,
        worker=row.worker,
        error_class=receipt.error_class,
        error_code=receipt.error_code,
        external_status=receipt.external_status,
        sent_at=receipt.sent_at,
        ended_at=now,
        found=found,
        late=late,
        receipt=None if kept_in_ledger else receipt,
    )


def _moved(row: EffectRow, look: Look, finding: Finding, receipt: Receipt, now: datetime) -> EffectRow | None:
    if row.status is LedgerStatus.CONFIRMED:
        return None
    if finding.verdict is FindVerdict.CONFIRMED:
        if row.attempt_id != look.last_attempt_id:
            return doubt(row, now)  # another attempt is under way or over: its own word, or the next find, decides
        found = _evolved(row, LedgerStatus.CONFIRMED, now)
        confirmed: EffectRow = found.evolve(error_class=None, receipt=receipt)
        return confirmed
    if row.status not in OPEN or row.attempt_id != look.last_attempt_id:
        return None
    if finding.verdict is FindVerdict.MISSING:
        absent = _evolved(row, LedgerStatus.ABSENT, now)
        proved: EffectRow = absent.evolve(receipt=receipt)
        return proved
    if row.status is LedgerStatus.SENT and look.final:
        # Its worker would have answered by now: the outcome is unknown and belongs to the reconciler from here.
        unknown: EffectRow = _evolved(row, LedgerStatus.UNKNOWN, now).evolve(receipt=receipt)
        return unknown
    return None


def _evolved(row: EffectRow, status: LedgerStatus, now: datetime) -> EffectRow:
    moved: EffectRow = row.evolve(status=status, look_at=None, updated_at=now)
    return moved


def answer_attempt(row: EffectRow) -> tuple[str, int]:
    """Under whose name the scan answers: the attempt that was sent last, else one of the ledger's fence."""
    if row.attempt_id is not None:
        return row.attempt_id, row.sent_fence
    return derive_attempt_id(row.command_id, row.fence), row.fence
