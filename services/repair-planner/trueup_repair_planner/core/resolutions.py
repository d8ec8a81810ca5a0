"""What the ends of an obligation say: that what was wanted is true, that a doubt is over, or nothing yet."""

from typing import Final

from trueup_common.contracts.states import (
    ANSWERED,
    INSTANCE_TERMINAL,
    ExceptionKind,
    InstanceStatus,
    OperationState,
)

UNDONE: Final = "undone"
"""A person decided to take a case back, and nothing of it stands any more. One that came there by itself says less."""

VERIFIED_BY: Final = frozenset({"observed_healthy", "operation_success", "operation_resolved", UNDONE})
"""Resolutions that say: what was wanted is true, and was seen to be."""

ENDED_OTHERWISE: Final = frozenset(
    f"operation_{state.value.lower()}"
    for state in (
        OperationState.FAILED,
        OperationState.CONFLICT,
        OperationState.NEEDS_REVIEW,
        OperationState.DEAD_LETTERED,
    )
)
"""How an obligation ends whose operation has ended again, and not well: what was sent to mend it did not hold."""

GOES_ON: Final = frozenset(
    {
        *(f"operation_{state.value.lower()}" for state in OperationState if state not in ANSWERED),
        *(
            f"case_{status.value.lower()}"
            for status in InstanceStatus
            if status not in INSTANCE_TERMINAL and status is not InstanceStatus.HUMAN_TAKEOVER
        ),
    }
)
"""How an obligation ends whose operation or case is on its way again: whether it gets there will be seen."""

SETTLED_BY: Final = frozenset(
    {"operation_retry_pending", "operation_failed", "operation_cancelled", "operation_running"}
)
"""Resolutions that end a doubt, and only a doubt: it is known now what happened."""

PENDING: Final = frozenset({"EXECUTING", "VERIFYING"})
"""Statuses of a repair that was sent, or may have been, and of which nobody knows yet whether it held."""

DONE: Final = "DONE"

DOUBTS: Final = frozenset({ExceptionKind.UNKNOWN_OUTCOME.value, ExceptionKind.STALE_RUNNING.value})


def mended(kind: str, resolution: str | None) -> bool:
    """True where an exception that ends so is over by what was wanted: it holds, or what was in doubt is known."""
    return resolution in VERIFIED_BY or (kind in DOUBTS and resolution in SETTLED_BY)
