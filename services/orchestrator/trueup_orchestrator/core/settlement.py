"""Folding a settlement: what the reconciler found out about an undecided operation.

Absence lets the same operation be sent again only while its authority still holds, only above the fence that the find
shut out, and never against evidence that an attempt landed.
"""

from datetime import timedelta
from typing import Any

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import Settlement
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.states import ErrorClass, Findability, FindVerdict, OperationState
from trueup_orchestrator.core import attempts
from trueup_orchestrator.core.acts import decided_by, in_hand
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import mandate_expired
from trueup_orchestrator.core.operation import BEFORE_SENDING, UNDECIDED, Trigger
from trueup_orchestrator.core.receipts import schedule
from trueup_orchestrator.core.recovery import Situation
from trueup_orchestrator.core.success import succeed


def fold_settlement(
    fold: Fold, settlement: Settlement, declaration: CommandDeclaration, authority: Authority, cause: str | None
) -> None:
    """One settlement message: started or finished, in whatever state it meets the operation."""
    row = fold.operation
    if row.state not in UNDECIDED or settlement.fence < row.fence:
        if settlement.finished:
            _evidence(fold, settlement, cause)
        return
    reconciling = row.state is OperationState.RECONCILING
    if reconciling and not settlement.finished:
        return
    fold.note(
        "SettlementFinished" if settlement.finished else "SettlementStarted",
        actor="reconciler",
        at=settlement.at,
        cause=cause,
        settlement_id=settlement.settlement_id,
        fence=settlement.fence,
        verdict=settlement.verdict and settlement.verdict.value,
        finds_count=settlement.finds_count,
        evidence=settlement.finding.evidence if settlement.finding else None,
    )
    if not reconciling:
        wake = fold.moment.business + timedelta(seconds=fold.terms.reminder_seconds)
        fold.move(Trigger.RECONCILE, reconciliation_status="running", wake_at=wake)
    if settlement.finished:
        fold.asking.pop(fold.focus, None)
        fold.set(
            last_reconciled_at=settlement.at,
            reconciliation_status="finished",
            reconciliation_result=settlement.verdict.value if settlement.verdict else FindVerdict.UNKNOWN.value,
            fence=max(row.fence, settlement.fence),
        )
        _verdict(fold, settlement, declaration, authority, attempt_fence=attempts.newest_fence(row))


def _evidence(fold: Fold, settlement: Settlement, cause: str | None) -> None:
    """A settlement that comes too late to decide: its fence is not used again, a landed effect is not forgotten."""
    row = fold.operation
    unsent = row.state in BEFORE_SENDING or row.state is OperationState.RETRY_PENDING
    if unsent and not row.proposed and settlement.fence > row.fence:
        fold.set(fence=settlement.fence)
    finding = settlement.finding
    if settlement.verdict is not FindVerdict.CONFIRMED or finding is None or row.state is OperationState.SUCCESS:
        return
    fold.note(
        "LateSettlementReceived",
        actor="reconciler",
        at=settlement.at,
        cause=cause,
        settlement_id=settlement.settlement_id,
        fence=settlement.fence,
        verdict=settlement.verdict.value,
    )
    known = attempts.entry(
        row.command_id,
        settlement.fence,
        attempts.CONFIRMED,
        attempt_id=settlement.settlement_id,
        external_resource_id=finding.external_resource_id,
    )
    fold.set(**attempts.recorded(fold.operation, known))


def _verdict(
    fold: Fold, settlement: Settlement, declaration: CommandDeclaration, authority: Authority, attempt_fence: int
) -> None:
    finding = settlement.finding
    if settlement.verdict is FindVerdict.CONFIRMED and finding is not None and finding.candidates <= 1:
        _mark(fold, attempt_fence, attempts.CONFIRMED, sent=True, external_resource_id=finding.external_resource_id)
        succeed(
            fold,
            declaration,
            result=finding.result,
            reference=settlement.settlement_id,
            external_resource_id=finding.external_resource_id,
            external_version=finding.external_version,
            observations=finding.observations,
        )
    elif settlement.verdict is FindVerdict.MISSING:
        _absent(fold, declaration, authority, attempt_fence)
    else:
        reason = finding.reason if finding and finding.reason else ""
        code = "undecidable"
        if settlement.verdict is not FindVerdict.UNKNOWN:
            code = "effects_duplicated" if finding is not None and finding.candidates > 1 else "ambiguous"
        _give_up(fold, code, reason)


def _absent(fold: Fold, declaration: CommandDeclaration, authority: Authority, attempt_fence: int) -> None:
    row = fold.operation
    own = attempts.of_fence(row, attempt_fence)
    if attempts.barred(row):
        _give_up(fold, "evidence_contradicts", "an attempt is known to have landed, and its effect is not there")
        return
    if declaration.findability is Findability.NONE and own is not None and own["sent"]:
        _give_up(fold, "not_findable", declaration.manual_policy or "")
        return
    if own is not None:
        _mark(fold, attempt_fence, attempts.ABSENT)
    if row.cancel_requested:
        fold.move(Trigger.PROVE_CANCELLED)
    elif in_hand(row) and row.operator_action == OperatorAction.RECONCILE:
        fold.fail(Trigger.PROVE_FAILED, ErrorClass.PERMANENT, "proved_absent", "looked for by an operator: not there")
    elif (
        decided_by(row) is None
        and own is not None
        and own.get("error_class") in (ErrorClass.PERMANENT.value, ErrorClass.BUSINESS.value)
    ):
        fold.fail(Trigger.PROVE_FAILED, ErrorClass(own["error_class"]), own["error_code"] or "rejected")
    elif row.compensates is None and (authority.revoked or mandate_expired(fold.instance, fold.moment.business)):
        code = "revoked" if authority.revoked else "mandate_expired"
        fold.fail(Trigger.PROVE_FAILED, ErrorClass.PERMANENT, code, authority.revoked or "")
    else:
        fold.fail(Trigger.PROVE_ABSENT, ErrorClass.TRANSIENT, "proved_absent")
        schedule(fold, declaration, situation=Situation.ABSENT)


def _give_up(fold: Fold, code: str, reason: str) -> None:
    fold.fail(Trigger.GIVE_UP, ErrorClass.UNKNOWN, code, reason, human_review_required=True)
    fold.recover(Situation.AMBIGUOUS)


def _mark(fold: Fold, fence: int, state: str, **facts: Any) -> None:
    """What the settlement proved of the attempt it was about."""
    fold.set(**attempts.recorded(fold.operation, attempts.entry(fold.operation.command_id, fence, state, **facts)))
