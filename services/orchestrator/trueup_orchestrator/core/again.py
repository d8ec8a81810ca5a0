"""Trying again on a person's decision: with a new budget and deadline, and never by replaying what was asked for once.

A redrive observes first. What is found has happened; what is proved absent is scheduled like any resend: deadline and
budget are weighed again, and mandate, document, policy and versions when its fresh grant is minted.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.operators import OperatorAction, maybe_sent
from trueup_common.contracts.states import ErrorClass, Findability
from trueup_orchestrator.core.acts import take_in_hand
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import wake_when_too_late
from trueup_orchestrator.core.operation import Trigger
from trueup_orchestrator.core.receipts import FENCE_LEAP

REDRIVEN = "redrive"


class Way(StrEnum):
    """How a redrive begins."""

    LOOK = "look, and send what is proved absent"
    SEND = "send: nothing was ever sent, and nothing could be found"


REDRIVE: Final[Mapping[tuple[bool, bool], Way]] = MappingProxyType(
    {
        (True, True): Way.LOOK,
        (True, False): Way.LOOK,  # which finds nothing out: a person settles it, nothing is resent
        (False, True): Way.LOOK,  # also of what every attempt was refused: the world goes on without us
        (False, False): Way.SEND,
    }
)
"""(an attempt was sent or may have been, its effect can be found) → how a redrive begins."""


def redrive(fold: Fold, asked: OperatorCommand, declaration: CommandDeclaration, identity: str | None) -> None:
    """By the table. Trying to undo again says so; all else comes to a redrive here."""
    undoes = asked.action == OperatorAction.COMPENSATE
    take_in_hand(fold, asked, OperatorAction.COMPENSATE if undoes else OperatorAction.REDRIVE)
    way = REDRIVE[maybe_sent(fold.operation), declaration.findability is not Findability.NONE]
    queue_again(fold, asked, declaration, identity)
    if way is Way.LOOK:
        look(fold)


def queue_again(fold: Fold, asked: OperatorCommand, declaration: CommandDeclaration, identity: str | None) -> None:
    """Back into the queue as if it had just been accepted, under the same identity."""
    row = fold.operation
    deadline = asked.deadline_at or row.deadline_at
    fold.move(
        Trigger.RETRY_BY_PERSON,
        deadline_at=deadline,
        wake_at=wake_when_too_late(row.evolve(deadline_at=deadline), declaration),
        attempts_before=row.attempt_count,
        backoff_count=0,
        identity=identity,
        human_review_required=False,
        cancel_requested=False,
        dead_lettered_at=None,
        dead_letter_reason=None,
        error_class=None,
        error_code=None,
        error_detail=None,
    )
    renew(fold, asked)


def renew(fold: Fold, asked: OperatorCommand) -> None:
    """The case's time goes on as far as the command says, and so does its authority where its decision renewed it."""
    instance, until = fold.instance, asked.mandate_expires_at
    if until is not None and (instance.mandate_until is None or instance.mandate_until < until):
        fold.instance = instance = instance.evolve(mandate_until=until)
    if asked.deadline_at is not None and asked.deadline_at > instance.deadline_at:
        fold.instance = instance.evolve(deadline_at=asked.deadline_at)


def look(fold: Fold) -> None:
    """Only looking can tell. A settlement that its own receipt overtook may have used fences above ours."""
    row = fold.operation
    leap = FENCE_LEAP if row.reconciliation_status == "overtaken" else 0
    fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, REDRIVEN, fence=row.fence + leap)
    fold.ask(REDRIVEN)
