"""Operators' acts before they go out: who is entitled, which parameters an action takes, what evidence it needs.

What is possible in which state stands in `trueup_common.contracts.operators`; here is what a request must bring.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import (
    APART,
    INVARIANT,
    ORCHESTRATOR,
    RENEWS,
    REPAIRERS,
    REPAIRS,
    CaseFacts,
    ExceptionFacts,
    Facts,
    OperatorAction,
    Settled,
    case_facts,
    is_unverified,
    maybe_sent,
    operation_facts,
)
from trueup_common.contracts.shape import record
from trueup_common.contracts.standing import standing
from trueup_common.contracts.states import ExceptionKind, Findability, InstanceStatus, OperationState
from trueup_common.contracts.workflow import Direction
from trueup_gateway.core import roles
from trueup_gateway.core.operator_params import AssignParams, Params, SettleParams
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import Refused, forbidden, invalid
from trueup_gateway.core.view_records import CaseView, ExceptionView

A = OperatorAction
OPERATE: Final = "operate"
TIME_SECONDS_MIN: Final = 60.0
TIME_DAYS_MAX: Final = 366
"""How far ahead a person may put a deadline: beyond it nobody waits, and counting on from it leaves the calendar."""


_KINDS: Final = frozenset(kind.value for kind in ExceptionKind)


@record
class Target:
    """What an act is about, as the read model has it."""

    kind: str
    name: str
    tenant: str
    case: CaseView | None = None
    row: JournalRow | None = None
    exception: ExceptionView | None = None
    revoked: bool = False
    replaced: bool = False
    """Another command has the business identity of its operation by now."""

    @property
    def own(self) -> str | None:
        """Whose case it is."""
        return self.case.subject if self.case is not None else None

    @property
    def exception_kind(self) -> ExceptionKind | None:
        """The kind of the exception that it is; None for one that this version does not know."""
        known = self.exception is not None and self.exception.kind in _KINDS
        return ExceptionKind(self.exception.kind) if known and self.exception is not None else None

    @property
    def state(self) -> str:
        """Where it stands, for whoever is refused."""
        if self.row is not None:
            return self.row.state.value
        return self.case.status if self.case is not None else str(self.exception and self.exception.status)


def has_case(exception: ExceptionView) -> bool:
    """True for the trouble of a case. Before the case is shown nobody may act as if there were none: of what is about
    no case at all, whoever looked into it ends it."""
    return (exception.workflow_id or "").startswith("wf_") and exception.kind not in APART


def facts_of(target: Target, declaration: CommandDeclaration | None) -> Facts:
    """What the table must know."""
    exception = target.exception
    return Facts(
        case=None
        if target.case is None
        else case_facts(
            target.case.instance, revoked=target.revoked, unverified=is_unverified(target.case.obligations)
        ),
        operation=None
        if target.row is None
        else operation_facts(
            target.row,
            findable=declaration is None or declaration.findability is not Findability.NONE,
            alert=_alert(target.case, target.row) or _told_of(target.exception, target.row),
            replaced=target.replaced,
        ),
        exception=None
        if exception is None or target.exception_kind is None
        else ExceptionFacts(target.exception_kind, exception.status == "open"),
    )


def facts_of_command(row: JournalRow) -> Facts:
    """The same for a single command that nobody has to decide about: from its row alone."""
    status = InstanceStatus.CANCEL_PENDING if row.cancel_requested else InstanceStatus.RUNNING
    return Facts(CaseFacts(True, status, Direction.FORWARD, "no"), operation_facts(row))


def _alert(case: CaseView | None, row: JournalRow) -> bool:
    """True where the case owes a person's look at an operation that is over by its state."""
    return case is not None and any(
        item.status == "open" and item.command_id == row.command_id and item.kind == ExceptionKind.NEEDS_REVIEW
        for item in case.obligations
    )


def _told_of(exception: ExceptionView | None, row: JournalRow) -> bool:
    """The same, said by the exception that stands for it: it may be shown before the case is. What breaks an invariant
    is owed by no case."""
    if exception is None or exception.status != "open":
        return False
    if exception.kind != ExceptionKind.NEEDS_REVIEW and exception.kind.upper() != row.state:
        return False
    envelope = exception.envelope
    broken = str(envelope.get("failure_code") or "").startswith(INVARIANT)
    return envelope.get("reported_by") == ORCHESTRATOR and not broken


def act_of(  # noqa: PLR0917 - one act and who acts
    action: OperatorAction, target: Target, subject: str, tenant: str, held: tuple[str, ...], kind: str
) -> Act:
    """The act that policy is asked about."""
    return Act(
        subject=subject,
        tenant=tenant,
        roles=held,
        action=OPERATE,
        target_tenant=target.tenant,
        system="trueup",
        resource=f"{kind}/{target.name}",
        facts=(("operation", action.value), ("own", target.own == subject)),
    )


def check_entitled(act: Act) -> None:
    """The floor below any policy: operators; repairs within their narrow list; agents that cancel their own case."""
    if roles.may(act.roles, roles.OPERATE):
        return
    facts = dict(act.facts)
    if roles.may(act.roles, roles.REPAIR) and facts["operation"] in REPAIRERS:
        return
    if not (roles.may(act.roles, roles.CANCEL_OWN) and facts["own"] and facts["operation"] == A.CANCEL):
        raise forbidden("role", f"This needs one of the roles {roles.needed(roles.OPERATE)}.")


def check_settlement(wanted: SettleParams, evidence: Sequence[Any], row: JournalRow) -> None:
    """A finding needs what makes it one: a receipt, evidence, or what became of every effect. Raises Refused."""
    errors: list[tuple[str, str]] = []
    over = row.state in (OperationState.SUCCESS, OperationState.CANCELLED)
    if wanted.finding is Settled.CLOSE:
        if not wanted.disposition:
            errors.append(("/params/disposition", "must say what became of every effect that was caused"))
        for item in wanted.disposition:
            if item.effect.startswith("cmd_") and item.effect != row.command_id:
                errors.append(("/params/disposition", f"{item.effect} is not what is settled"))
    elif over:
        errors.append(("/params/finding", f"an operation that is {row.state} can only be closed (CLOSE)"))
    elif not evidence:
        errors.append(("/evidence", "a finding needs evidence from the target"))
    if wanted.finding is Settled.EXISTS and not over:
        if wanted.receipt is None:
            errors.append(("/params/receipt", "is needed: what the target shows of the effect"))
        if not maybe_sent(row):
            errors.append(("/params/finding", "nothing was ever sent, so nothing can exist"))
    elif wanted.receipt is not None:
        errors.append(("/params/receipt", "belongs to EXISTS only"))
    if errors:
        raise invalid(errors)


def effects_of(
    rows: Sequence[JournalRow], declarations: Mapping[str, CommandDeclaration] = MappingProxyType({})
) -> list[str]:
    """The effects of a case that stand, or may: what a person who closes it must speak about."""
    return standing(rows, declarations)


def new_deadline(target: Target, wanted: Params, now: datetime) -> datetime | None:
    """Until when what goes on may take: as asked for, else as long as it was given at first. Raises Refused."""
    given: datetime | None = getattr(wanted, "deadline", None)
    if given is not None:
        return _within_bounds(given, now)
    owner = target.row if target.row is not None else target.case
    if owner is None:
        return None
    seconds = max((owner.deadline_at - owner.created_at).total_seconds(), TIME_SECONDS_MIN)
    return now + timedelta(seconds=seconds)


def check_duty(wanted: AssignParams, now: datetime) -> None:
    """Whoever gets an exception gets a time for it that is to come, and soon enough to be kept. Raises Refused."""
    if wanted.deadline is not None:
        _within_bounds(wanted.deadline, now)


def _within_bounds(given: datetime, now: datetime) -> datetime:
    if given <= now:
        raise invalid([("/params/deadline", "lies in the past")])
    if given - now > timedelta(days=TIME_DAYS_MAX):
        raise invalid([("/params/deadline", f"lies more than {TIME_DAYS_MAX} days ahead")])
    return given


def mandate_of(workflow_id: str) -> str:
    """The id of a case's mandate."""
    return derived_id("man", workflow_id)


def renews(action: OperatorAction) -> bool:
    """True where this action gives new time to what it is about."""
    return action in RENEWS or action is A.REPAIR


def holds(action: OperatorAction, target: Target, *, repairer: bool) -> tuple[str | None, str | None]:
    """(command, exception) of which this act is the only one at work, until it has ended.

    A repair that goes on through its own identity holds the operation alone: the person who asked for it holds the
    exception. What is not the operation's own trouble (one of several elements that drifted) does not hold it.
    """
    if action not in REPAIRS:
        return None, None
    command = target.row.command_id if target.row is not None and target.exception_kind not in APART else None
    exception = target.exception.exception_id if target.exception is not None and not repairer else None
    return command, exception


def already_at_work(operator_command_id: str, action: str) -> Refused:
    """409: one repair at a time."""
    return Refused(
        "repair-in-flight",
        f"{operator_command_id} ({action}) is at work on this already.",
        extra={"operator_command_id": operator_command_id},
    )
