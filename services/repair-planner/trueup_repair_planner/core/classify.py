"""What kind of trouble an exception is: its class, its cause, and an envelope that answers every question of Q2."""

from collections.abc import Mapping
from typing import Any, Final

from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.failures import failure_class
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import ErrorClass, ExceptionKind, FailureClass

ENVELOPE_FIELDS: Final = (
    "command_id",
    "workflow_id",
    "saga_id",
    "failed_step",
    "failure_class",
    "failure_code",
    "failure_reason",
    "first_failed_at",
    "last_failed_at",
    "attempt_count",
    "last_external_status",
    "payload_reference",
    "decision_id",
    "capability_id",
    "recommended_repair",
    "human_review_required",
)
"""The failure envelope (requirement Q2): every field is there, null only where there is nothing to say."""

BY_KIND: Final[dict[ExceptionKind, FailureClass]] = {
    ExceptionKind.DEAD_LETTER: FailureClass.DEPENDENCY_ERROR,
    ExceptionKind.FAILED: FailureClass.DATA_ERROR,
    ExceptionKind.CONFLICT: FailureClass.CONCURRENCY_CONFLICT,
    ExceptionKind.NEEDS_REVIEW: FailureClass.TIMEOUT_UNKNOWN,
    ExceptionKind.UNKNOWN_OUTCOME: FailureClass.TIMEOUT_UNKNOWN,
    ExceptionKind.STALE_RUNNING: FailureClass.TIMEOUT_UNKNOWN,
    ExceptionKind.COMPENSATION_FAILED: FailureClass.COMPENSATION_FAILURE,
    ExceptionKind.STATE_DRIFT: FailureClass.STATE_DRIFT,
    ExceptionKind.QUARANTINED_MESSAGE: FailureClass.SCHEMA_ERROR,
    ExceptionKind.QUARANTINED_CALLBACK: FailureClass.SCHEMA_ERROR,
}
"""The class of an exception about which nothing but its kind is known."""

ENVIRONMENT: Final = frozenset(
    {
        FailureClass.DEPENDENCY_ERROR,
        FailureClass.AUTH_ERROR,
        FailureClass.PERMISSION_ERROR,
        FailureClass.TIMEOUT_UNKNOWN,
    }
)
"""Classes that speak against the surroundings; the others speak against the work, which repeating cannot heal."""

RECOMMENDED: Final[dict[FailureClass, str]] = {
    FailureClass.DATA_ERROR: "REDRIVE_WITH_CORRECTED_PAYLOAD",
    FailureClass.SCHEMA_ERROR: "REDRIVE_WITH_CORRECTED_PAYLOAD",
    FailureClass.BUSINESS_RULE_ERROR: "DECIDE_BY_PERSON",
    FailureClass.AUTH_ERROR: "RENEW_CREDENTIAL_THEN_REDRIVE",
    FailureClass.PERMISSION_ERROR: "REQUEST_DECISION_THEN_REDRIVE",
    FailureClass.DEPENDENCY_ERROR: "REDRIVE",
    FailureClass.CONCURRENCY_CONFLICT: "DECIDE_BY_PERSON",
    FailureClass.TIMEOUT_UNKNOWN: "RECONCILE",
    FailureClass.RESOURCE_MISSING: "REPAIR",
    FailureClass.STATE_DRIFT: "REPAIR",
    FailureClass.COMPENSATION_FAILURE: "DECIDE_BY_PERSON",
}

NO_PERSON_NEEDED: Final = frozenset({ExceptionKind.UNKNOWN_OUTCOME, ExceptionKind.STALE_RUNNING})
"""Kinds that the system works on by itself; they turn into another kind when it cannot."""


def class_of(report: ExceptionReported) -> FailureClass:
    """The class: what the reporter says, else what the failure's code says, else what its kind says."""
    obligation = report.obligation
    if obligation.failure_class is not None and obligation.failure_class in FailureClass.__members__:
        return FailureClass(obligation.failure_class)
    code = obligation.envelope.get("failure_code")
    error = obligation.envelope.get("error_class")
    if code is not None or error is not None:
        known = ErrorClass(error) if error in set(ErrorClass) else None
        by_code = failure_class(known, str(code) if code is not None else None)
        if known is not None or by_code is not FailureClass.TIMEOUT_UNKNOWN:
            return by_code
    return BY_KIND[ExceptionKind(obligation.kind)]


def cause_of(failure: FailureClass, code: Any) -> str:
    """What exceptions of one outage share: their code where there is one, else their class."""
    return str(code) if code else failure.value.lower()


def envelope_of(report: ExceptionReported, failure: FailureClass) -> dict[str, Any]:
    """A complete failure envelope from a report, whatever the reporter left out."""
    obligation = report.obligation
    opened = rfc3339(obligation.opened_at)
    given = {key: value for key, value in obligation.envelope.items() if value is not None}
    kind = ExceptionKind(obligation.kind)
    return _complete(
        given,
        failure,
        {
            "command_id": obligation.command_id,
            "workflow_id": obligation.workflow_id,
            "saga_id": obligation.saga_id,
            "failed_step": "command",
            "failure_code": obligation.kind,
            "failure_reason": obligation.kind.replace("_", " "),
            "first_failed_at": opened,
            "last_failed_at": opened,
            "attempt_count": 0,
            "human_review_required": kind not in NO_PERSON_NEEDED,
            "command_type": report.command_type,
            "target_system": report.target_system,
            "target_resource": report.target_resource,
        },
    )


def envelope_of_message(event: MessageQuarantined) -> dict[str, Any]:
    """The failure envelope of a message that nobody could process."""
    at = rfc3339(event.at)
    return _complete(
        {},
        FailureClass.SCHEMA_ERROR,
        {
            "workflow_id": event.workflow_id,
            "failed_step": event.consumer,
            "failure_code": "message_unprocessable",
            "failure_reason": event.reason,
            "first_failed_at": at,
            "last_failed_at": at,
            "attempt_count": 0,
            "payload_reference": f"sha256:{event.sha256}",
            "human_review_required": True,
            "service": event.service,
            "subject": event.subject,
            "message_id": event.message_id,
            "message_type": event.message_type,
            "size_bytes": event.size_bytes,
        },
    )


def _complete(given: Mapping[str, Any], failure: FailureClass, known: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**dict.fromkeys(ENVELOPE_FIELDS), **known, **given}
    merged["failure_class"] = failure.value
    merged["recommended_repair"] = given.get("recommended_repair") or RECOMMENDED[failure]
    merged["cause"] = cause_of(failure, merged["failure_code"])
    merged["origin"] = "environment" if failure in ENVIRONMENT else "work"
    return merged
