"""Operators' acts on cases: which there are, and in which status of a case each is possible. A table."""

from collections.abc import Mapping
from typing import Any, Final

from trueup_common.contracts.states import INSTANCE_TERMINAL, InstanceStatus
from trueup_gateway.core import roles
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import forbidden

OPERATE: Final = "operate"
CANCEL: Final = "CANCEL"
PAUSE: Final = "PAUSE"
RESUME: Final = "RESUME"
AVAILABLE: Final = (CANCEL, PAUSE, RESUME)

ALLOWED: Final[Mapping[InstanceStatus, tuple[str, ...]]] = {
    InstanceStatus.RUNNING: (CANCEL, PAUSE),
    InstanceStatus.WAITING: (CANCEL, PAUSE),
    InstanceStatus.PAUSED: (CANCEL, RESUME),
    InstanceStatus.CANCEL_PENDING: (),
    InstanceStatus.COMPENSATING: (),
    InstanceStatus.HUMAN_TAKEOVER: (CANCEL,),
    InstanceStatus.VERIFYING: (),
    **dict.fromkeys(INSTANCE_TERMINAL, ()),
}
"""What may be asked of a case. The orchestrator decides again on what it knows by then."""

REQUESTED: Final = "requested"
ACKNOWLEDGED: Final = "acknowledged"
DONE: Final = "done"
OVERTAKEN: Final = "overtaken"
WITHOUT_EFFECT: Final = "without_effect"
NO_EFFECT_EVENT: Final = "ControlWithoutEffect"
"""The event by which a case notes an act that did not fit its state any more."""


def operation(
    action: str, workflow_id: str, target_tenant: str, *, subject: str, tenant: str, held: tuple[str, ...], own: bool
) -> Act:
    """The act that policy is asked about."""
    return Act(
        subject=subject,
        tenant=tenant,
        roles=held,
        action=OPERATE,
        target_tenant=target_tenant,
        system="trueup",
        resource=f"workflow/{workflow_id}",
        facts=(("operation", action), ("own", own)),
    )


def check_operator(act: Act) -> None:
    """The floor below any policy: operators, and agents that cancel their own case. Raises Refused."""
    if roles.may(act.roles, roles.OPERATE):
        return
    facts = dict(act.facts)
    if not (roles.may(act.roles, roles.CANCEL_OWN) and facts["own"] and facts["operation"] == CANCEL):
        raise forbidden("role", f"This needs one of the roles {roles.needed(roles.OPERATE)}.")


def state_of(action: str, instance: Mapping[str, Any], *, heard: str | None) -> str:
    """Where an act stands: asked for, taken up by the case, in full effect, or too late to have any.

    A cancel is in effect once its consequences are settled: the case is over, or a person has it.
    """
    status = InstanceStatus(instance["status"])
    if heard == NO_EFFECT_EVENT:
        return WITHOUT_EFFECT
    if heard is None:
        return OVERTAKEN if status in INSTANCE_TERMINAL else REQUESTED
    if action == CANCEL and status not in INSTANCE_TERMINAL and status is not InstanceStatus.HUMAN_TAKEOVER:
        return ACKNOWLEDGED
    return DONE
