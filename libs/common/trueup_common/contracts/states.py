"""The closed lists: every state, class and kind that services name to each other."""

from enum import StrEnum
from typing import Final


class OperationState(StrEnum):
    """States of one operation; the transitions stand in the orchestrator's operation table."""

    RECEIVED = "RECEIVED"
    VALIDATING = "VALIDATING"
    AUTHORIZED = "AUTHORIZED"
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    RETRY_PENDING = "RETRY_PENDING"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    ORPHAN_SUSPECTED = "ORPHAN_SUSPECTED"
    RECONCILING = "RECONCILING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CONFLICT = "CONFLICT"
    NEEDS_REVIEW = "NEEDS_REVIEW"
    DEAD_LETTERED = "DEAD_LETTERED"
    CANCELLED = "CANCELLED"
    RESOLVED = "RESOLVED"


SETTLED: Final = frozenset({OperationState.SUCCESS, OperationState.CANCELLED, OperationState.RESOLVED})
"""States that never change again."""

ANSWERED: Final = SETTLED | {
    OperationState.FAILED,
    OperationState.CONFLICT,
    OperationState.DEAD_LETTERED,
    OperationState.NEEDS_REVIEW,
}
"""States that end the waiting of a client."""

REPLACEABLE: Final = ANSWERED - {OperationState.NEEDS_REVIEW}
"""States in which another command may take a command's place: it has ended, and what it did is known."""


class InstanceStatus(StrEnum):
    """Status of a case (workflow instance)."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"
    PAUSED = "PAUSED"
    CANCEL_PENDING = "CANCEL_PENDING"
    COMPENSATING = "COMPENSATING"
    HUMAN_TAKEOVER = "HUMAN_TAKEOVER"
    VERIFYING = "VERIFYING"
    CLOSED = "CLOSED"
    COMPENSATED = "COMPENSATED"
    CANCELLED = "CANCELLED"
    SAFE_STOPPED = "SAFE_STOPPED"
    RESOLVED = "RESOLVED"


INSTANCE_TERMINAL: Final = frozenset(
    {
        InstanceStatus.CLOSED,
        InstanceStatus.COMPENSATED,
        InstanceStatus.CANCELLED,
        InstanceStatus.SAFE_STOPPED,
        InstanceStatus.RESOLVED,
    }
)


class EffectClass(StrEnum):
    """What a command does to the world (requirement S2)."""

    READ = "READ"
    COMPENSABLE = "COMPENSABLE"
    RETRYABLE = "RETRYABLE"
    PIVOT = "PIVOT"
    IRREVERSIBLE = "IRREVERSIBLE"


EFFECT_CLASS_RANK: Final = {
    EffectClass.READ: 0,
    EffectClass.COMPENSABLE: 1,
    EffectClass.RETRYABLE: 2,
    EffectClass.PIVOT: 3,
    EffectClass.IRREVERSIBLE: 4,
}


class Findability(StrEnum):
    """How an effect can be found again, by descending strength of evidence."""

    NATIVE_KEY = "native_key"
    MARKER = "marker"
    BUSINESS_KEY = "business_key"
    NONE = "none"


class CompensationState(StrEnum):
    """Compensation of a succeeded operation."""

    NONE = "NONE"
    COMPENSATION_PENDING = "COMPENSATION_PENDING"
    COMPENSATING = "COMPENSATING"
    COMPENSATED = "COMPENSATED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    COMPENSATION_UNKNOWN = "COMPENSATION_UNKNOWN"


class ErrorClass(StrEnum):
    """Class of one attempt's failure; it decides what may follow."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    BUSINESS = "business"
    UNKNOWN = "unknown"


class FailureClass(StrEnum):
    """Class of an exception (requirement Q3)."""

    DATA_ERROR = "DATA_ERROR"
    SCHEMA_ERROR = "SCHEMA_ERROR"
    BUSINESS_RULE_ERROR = "BUSINESS_RULE_ERROR"
    AUTH_ERROR = "AUTH_ERROR"
    PERMISSION_ERROR = "PERMISSION_ERROR"
    DEPENDENCY_ERROR = "DEPENDENCY_ERROR"
    CONCURRENCY_CONFLICT = "CONCURRENCY_CONFLICT"
    TIMEOUT_UNKNOWN = "TIMEOUT_UNKNOWN"
    RESOURCE_MISSING = "RESOURCE_MISSING"
    STATE_DRIFT = "STATE_DRIFT"
    COMPENSATION_FAILURE = "COMPENSATION_FAILURE"


class ReceiptStatus(StrEnum):
    """What an adapter reports of one attempt."""

    CONFIRMED = "CONFIRMED"
    REJECTED = "REJECTED"
    NOT_SENT = "NOT_SENT"
    UNKNOWN = "UNKNOWN"
    STALE = "STALE"


class FindVerdict(StrEnum):
    """What a find says of one operation's effect."""

    CONFIRMED = "CONFIRMED"
    MISSING = "MISSING"
    UNKNOWN = "UNKNOWN"
    AMBIGUOUS = "AMBIGUOUS"


class ProbeVerdict(StrEnum):
    """What a probe says of one element."""

    CONFIRMED = "CONFIRMED"
    MISSING = "MISSING"
    UNKNOWN = "UNKNOWN"


class Phase(StrEnum):
    """Phase of one state element."""

    HEALTHY = "HEALTHY"
    CONVERGING = "CONVERGING"
    DRIFT = "DRIFT"
    UNKNOWN = "UNKNOWN"


class ExceptionKind(StrEnum):
    """Kinds of exceptions that operators see."""

    DEAD_LETTER = "dead_letter"
    FAILED = "failed"
    CONFLICT = "conflict"
    NEEDS_REVIEW = "needs_review"
    UNKNOWN_OUTCOME = "unknown_outcome"
    STALE_RUNNING = "stale_running"
    COMPENSATION_FAILED = "compensation_failed"
    STATE_DRIFT = "state_drift"
    QUARANTINED_MESSAGE = "quarantined_message"
    QUARANTINED_CALLBACK = "quarantined_callback"


class RiskLevel(StrEnum):
    """Level of a deterministic risk score."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"
