"""`decide`: one case and one message in, the next case with its history and what is to be sent out. Pure."""

from dataclasses import dataclass
from datetime import datetime

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import (
    ApprovalDecided,
    ElementVerified,
    GrantRefused,
    Settlement,
    SignalReceived,
)
from trueup_common.contracts.shape import record
from trueup_common.contracts.task import Receipt, RunningAttempt
from trueup_orchestrator.core.case import Authority, Case, Decision, Moment, Terms
from trueup_orchestrator.core.due import fold_beat, fold_cancel, fold_due
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant, dispatch, fold_refusal
from trueup_orchestrator.core.opening import fold_lifetime
from trueup_orchestrator.core.receipts import fold_receipt
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.core.settlement import fold_settlement
from trueup_orchestrator.core.signals import fold_signal
from trueup_orchestrator.core.success import fold_overdue, fold_verified
from trueup_orchestrator.core.waits import fold_approval, fold_timers


@dataclass(frozen=True, slots=True)
class Due:
    """Time has come to look at the case."""


@dataclass(frozen=True, slots=True)
class Beaten:
    """A worker reported an attempt of this case as alive."""

    attempt: RunningAttempt
    worker: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody wants the case cancelled."""

    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class Woken:
    """Time has come to look at the case as a whole."""


@record
class Dispatch:
    """The window admits the queued operation."""

    sequence: int
    grant: AcceptanceGrant | None = None


Stimulus = Receipt | Settlement | ElementVerified | GrantRefused | Due | Beaten | Cancel | Dispatch
"""About one operation."""

CaseStimulus = ApprovalDecided | SignalReceived | Woken
"""About a case as a whole."""


def fold_in_case(fold: Fold, message: CaseStimulus, cause: str | None = None) -> None:
    """Fold one message about the case as a whole."""
    match message:
        case ApprovalDecided():
            fold_approval(fold, message, cause)
        case SignalReceived():
            fold_signal(fold, message, cause)
        case Woken():
            fold_overdue(fold)
            fold_lifetime(fold)
            fold_timers(fold)


def fold_in(
    fold: Fold,
    message: Stimulus,
    declaration: CommandDeclaration,
    authority: Authority,
    cause: str | None = None,
) -> None:
    """Fold one message into a case; several may be folded before the fold is sealed."""
    match message:
        case Receipt():
            fold_receipt(fold, message, declaration, cause)
        case Settlement():
            fold_settlement(fold, message, declaration, authority, cause)
        case ElementVerified():
            fold_verified(fold, message, cause)
        case GrantRefused():
            fold_refusal(fold, message, declaration, cause)
        case Due():
            fold_due(fold, declaration)
            fold_overdue(fold)
        case Beaten():
            fold_beat(fold, message.attempt, message.worker, message.at, declaration)
        case Cancel():
            fold_cancel(fold, reason=message.reason, actor=message.actor, cause=cause)
        case Dispatch():
            dispatch(fold, declaration, authority, sequence=message.sequence, grant=message.grant)


def decide(
    case: Case,
    message: Stimulus,
    moment: Moment,
    declaration: CommandDeclaration,
    terms: Terms,
    *,
    authority: Authority,
    cause: str | None = None,
) -> Decision:
    """Fold one message into a case and seal it."""
    fold = Fold(case, moment, terms)
    fold_in(fold, message, declaration, authority, cause)
    return seal(fold)
