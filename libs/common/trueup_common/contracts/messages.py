"""Which messages travel on which subject: the one table. Who sends and who receives follows from the topology.

A new kind of message is a model in `events` or `task` and its name in a row here; the AsyncAPI document follows.
"""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from trueup_common.contracts.events import (
    ApprovalAsked,
    ApprovalDecided,
    CaseAnswered,
    CaseChanged,
    ElementChanged,
    ElementVerified,
    Established,
    ExceptionChanged,
    ExceptionReported,
    GovernanceBeat,
    GrantRefused,
    GrantRequest,
    IncidentChanged,
    MessageQuarantined,
    OperatorCommand,
    OperatorCommandEnded,
    RepairChanged,
    Retired,
    Settlement,
    SettleRequested,
    SignalDisposed,
    SignalReceived,
    StartCase,
    StartWorkflow,
)
from trueup_common.contracts.task import Beat, ExecuteTask, FindTask, Found, Observed, ProbeTask, Receipt


@dataclass(frozen=True, slots=True)
class Channel:
    """One subject, with `{tenant}`, `{system}` and the like where it varies, and what may be said on it."""

    address: str
    models: tuple[type[BaseModel], ...]
    enveloped: bool = True
    """False for what goes over core NATS from process to process, without headers."""

    @property
    def pattern(self) -> str:
        """The address as a subscription."""
        return ".".join("*" if token.startswith("{") else token for token in self.address.split("."))

    @property
    def name(self) -> str:
        """The fixed part of the address: `evt-gateway-signal`."""
        fixed = [token for token in self.address.split(".")[1:] if not token.startswith("{")]
        return "-".join(fixed)


CHANNELS: Final = (
    Channel("trueup.cmd.{tenant}", (StartCase, StartWorkflow)),
    Channel("trueup.grant.request.{tenant}", (GrantRequest,)),
    Channel("trueup.task.{system}.execute.{tenant}", (ExecuteTask,)),
    Channel("trueup.task.{system}.find.{tenant}", (FindTask,)),
    Channel("trueup.task.{system}.probe.{tenant}", (ProbeTask,)),
    Channel("trueup.evt.gateway.grant-refused.{tenant}", (GrantRefused,)),
    Channel("trueup.evt.gateway.approval.{tenant}", (ApprovalDecided,)),
    Channel("trueup.evt.gateway.signal.{tenant}", (SignalReceived,)),
    Channel("trueup.evt.gateway.operator.{tenant}", (OperatorCommand,)),
    Channel("trueup.evt.orchestrator.case.{tenant}", (CaseChanged,)),
    Channel("trueup.evt.orchestrator.settle.{tenant}", (SettleRequested,)),
    Channel("trueup.evt.orchestrator.established.{tenant}", (Established, Retired)),
    Channel("trueup.evt.orchestrator.exception.{tenant}", (ExceptionReported,)),
    Channel("trueup.evt.orchestrator.signal.{tenant}", (SignalDisposed,)),
    Channel("trueup.evt.orchestrator.approval.{tenant}", (ApprovalAsked,)),
    Channel("trueup.evt.adapter.{system}.receipt.{tenant}", (Receipt,)),
    Channel("trueup.evt.adapter.{system}.found.{tenant}", (Found,)),
    Channel("trueup.evt.adapter.{system}.observed.{tenant}", (Observed,)),
    Channel("trueup.evt.reconciler.settlement.{tenant}", (Settlement,)),
    Channel("trueup.evt.reconciler.verified.{tenant}", (ElementVerified,)),
    Channel("trueup.evt.reconciler.element.{tenant}", (ElementChanged,)),
    Channel("trueup.evt.reconciler.exception.{tenant}", (ExceptionReported,)),
    Channel("trueup.evt.gateway.exception.{tenant}", (ExceptionReported,)),
    Channel("trueup.evt.planner.exception.{tenant}", (ExceptionChanged,)),
    Channel("trueup.evt.planner.repair.{tenant}", (RepairChanged,)),
    Channel("trueup.evt.planner.incident.{tenant}", (IncidentChanged,)),
    Channel("trueup.evt.orchestrator.operator-ended.{tenant}", (OperatorCommandEnded,)),
    Channel("trueup.evt.planner.operator-ended.{tenant}", (OperatorCommandEnded,)),
    Channel("trueup.evt.reconciler.operator-ended.{tenant}", (OperatorCommandEnded,)),
    Channel("trueup.evt.{service}.quarantined.{tenant}", (MessageQuarantined,)),
    Channel("trueup.answer.{instance}", (CaseAnswered,)),
    Channel("trueup.beat.adapter.{system}", (Beat,), enveloped=False),
    Channel("trueup.beat.governance", (GovernanceBeat,), enveloped=False),
)


def covers(pattern: str, subject: str) -> bool:
    """True where a subscription hears all of a subject, or of another pattern."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or (token != "*" and token != given[index]):
            return False
    return len(wanted) == len(given)


def channel_of(subject: str) -> Channel | None:
    """The channel that a subject belongs to."""
    return next((channel for channel in CHANNELS if covers(channel.pattern, subject)), None)
